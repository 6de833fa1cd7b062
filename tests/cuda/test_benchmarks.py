"""The GPU benchmarks say what they measured, on a driver that measures nothing."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

import accy_async
from benchmarks.gpu import __main__ as program
from benchmarks.gpu import launch, overlap, scan
from benchmarks.gpu.tables import Row, Target, show
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
