"""The GPU benchmarks say what they measured, on a driver that measures nothing."""

from __future__ import annotations

from contextlib import AsyncExitStack

import numpy as np
import pytest

import accy_async
from benchmarks.gpu import __main__ as program
from benchmarks.gpu import launch, overlap, peers, replay, scan, wake
from benchmarks.gpu.tables import Row, Target, show, verdict
from benchmarks.gpu.ways import LOOPS
from tests.cuda.fake import FakeDriver


def test_what_leaves_a_kernel_running_comes_last() -> None:
    found = program.sections()
    assert {"launch", "overlap", "scan", "cancel"} <= set(found)
    assert found[-1] == "cancel"


def test_an_unknown_section_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["scam"]) == 2
    told = capsys.readouterr().out
    assert "scam" in told
    assert "scan" in told


@pytest.mark.parametrize(
    ("figure", "more_is_better", "verdict"),
    [
        (1.2, False, "<= 1.25 x it: 1.20, met"),
        (1.3, False, "<= 1.25 x it: 1.30, MISSED"),
        (1.3, True, ">= 1.25 x it: 1.30, met"),
        (1.2, True, ">= 1.25 x it: 1.20, MISSED"),
    ],
)
def test_a_target_stands_beside_what_it_is_held_against(
    figure: float,
    more_is_better: bool,
    verdict: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        Row("it", [1.0, 2.0, 0.5]),
        Row("ours", [figure], targets=(Target("it", 1.25), Target("gone", 1.0))),
        Row("gone", (), "not installed"),
    ]
    show(
        "title", rows, unit="us", ratio_to="it", more_is_better=more_is_better
    )  # fmt: skip
    told = capsys.readouterr().out
    assert verdict in told
    assert "not installed" in told
    assert told.count("met") - told.count("whether it is met") == ("met" in verdict)


def test_a_verdict_says_bound_and_figure() -> None:
    assert verdict(2, 2, digits=0) == "<= 2: 2, met"
    assert verdict(3.04, 3.0, "% of a core", digits=1) == (
        "<= 3 % of a core: 3.0, MISSED"
    )
    assert verdict(float("nan"), 1.0).endswith("MISSED")


def test_waking_is_held_against_its_targets(capsys: pytest.CaptureFixture[str]) -> None:
    samples = [13.0] * 98 + [16.0] * 2
    slow = [30.0] * 100
    rounds = [wake._both(taken) for taken in (samples, slow, samples)]
    assert wake._middle(rounds) == (13.0, 16.0)
    times = wake._times(rounds, [(10.0, 11.0), (20.0, 20.0), (5.0, 8.0)])
    assert times == pytest.approx((1.5, 1.5))
    times = wake._times(rounds, 3 * [(10.0, 11.0)])
    wake._judge_short("asyncio", times)
    wake._judge_short("trio", times)
    wake._judge_long([34.0, 20.0, 90.0], 0.031)
    wake._judge_waiters([100.0] * 98 + [2500.0] * 2, 2)
    assert capsys.readouterr().out.splitlines() == [
        "    p50 <= 1.4 x C++: 1.30, met",
        "    p99 <= 1.4 x C++: 1.45, MISSED",
        "    p50 <= 1.7 x C++: 1.30, met",
        "    p99 <= 1.7 x C++: 1.45, met",
        "    late, p50 <= 35 us: 34.0, met",
        "    busy <= 3 % of a core: 3.1, MISSED",
        "    threads more <= 2: 2, met",
        "    the ticker's p99 <= 2000 us late: 2500, MISSED",
    ]
    assert set(wake.MOST_TIMES) == set(LOOPS)


def test_a_replay_is_held_against_the_bare_graph() -> None:
    taken = {
        replay.BARE: [20.0, 21.0, 30.0],
        "ours, prepared (asyncio)": [25.0, 25.5],
        "ours, prepared (trio)": [29.0],
    }
    assert replay.judge(taken) == [
        "ours, prepared (asyncio), more than bare: <= 5 us: 4.25, met",
        "ours, prepared (trio), more than bare: <= 5 us: 8.00, MISSED",
    ]


def test_numba_finds_the_names_that_numpy_has_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are given back before its target is imported."""
    for name in peers.NAMES_GONE:
        monkeypatch.setattr(np, name, None, raising=False)
        monkeypatch.delattr(np, name)

    def found(module: str) -> None:
        assert module == "numba.cuda"
        assert all(hasattr(np, name) for name in peers.NAMES_GONE)
        raise ImportError(module)

    monkeypatch.setattr(peers, "import_module", found)
    with pytest.raises(ImportError, match="numba"):
        peers.numba_cuda()


def test_our_ways_to_launch_all_launch(driver: FakeDriver) -> None:
    async def main() -> dict[str, int]:
        counts = {}
        async with AsyncExitStack() as stack:
            ours = await launch._ours(stack, lambda: None)
            for name, peer in ours.bursts.items():
                before = len(driver.launches)
                peer.launch()
                counts[name] = len(driver.launches) - before
        return counts

    several = launch.STAGES
    counts = [1, 1, 1, 1, several, several, 1]
    assert list(accy_async.run(main).values()) == counts


def test_overlap_and_scan_measure_each_of_their_rows(driver: FakeDriver) -> None:
    rows = accy_async.run(overlap.measure)
    assert all(row.samples for row in rows)
    assert [row.name for row in rows if row.targets] == list(overlap.GRAPHS)
    rates, stages = accy_async.run(scan.measure)
    assert rates[-1].targets
    assert len(stages) == 3
    assert all(row.samples for row in stages)
