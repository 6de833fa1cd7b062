"""``accy-async demo``: runs, checks, cancels, counts; and finds faults if there are."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import attrs
import numpy as np
import pytest

from accy_async.backends import RecordingBackend
from accy_async.backends.cpu import CpuBackend
from accy_async.cli.demo import run as run_module
from accy_async.cli.demo.check import Distance, distance_from_exact, first_difference
from accy_async.cli.demo.outcome import CancelOutcome, Spread
from accy_async.cli.demo.report import _share
from accy_async.cli.exits import ExitCode
from accy_async.compiler.kernels import reference_scan, scan_additions
from accy_async.errors import DeviceError, OutOfMemory
from tests.cli.conftest import Run

NOTHING = {"buffers": 0, "artifacts": 0, "streams": 0, "events": 0, "graphs": 0}


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("length", [1, 255, 5000, 300_000])
def test_demo_passes(run: Run, loop: str, length: int) -> None:
    """From end to end: all results right, one launch cancelled, nothing left."""
    ended = run("demo", "--length", length, "--loop", loop, "--json", "--launches", 12)
    assert ended.code == 0, ended.err
    document = ended.document
    assert document["passed"]
    assert document["executes"]
    assert document["backend"] == "cpu"
    assert document["loop"] == loop
    assert document["input"]["length"] == length
    assert document["launches"]["launches"] == 12
    assert document["launches"]["rounds"] == 4
    assert 1 <= document["launches"]["peak_in_flight"] <= 3
    assert document["launches"]["numpy"]["samples"] == run_module.NUMPY_SAMPLES
    assert document["launches"]["ratio_to_numpy"] > 0
    check = document["check"]
    assert (check["checked"], check["wrong"]) == (12, 0)
    assert check["distance"]["is_within_bound"]
    assert check["distance"]["values"] == length
    cancel = document["cancel"]
    assert cancel["was_in_flight"]
    assert cancel["was_cancelled"]
    assert cancel["is_clean"]
    assert cancel["live_during"]["buffers"] == cancel["live_before"]["buffers"] + 2
    assert document["live_at_end"] == NOTHING


def test_demo_report_says_what_matters(run: Run) -> None:
    ended = run("demo", "--length", 100_000, "--launches", 8)
    assert ended.code == 0, ended.err
    text = " ".join(ended.out.split())
    for words in (
        "device cpu:",
        "100,000 f32 values",
        "seed",
        "8 from one loaded pool on 4 streams",
        "GB/s, counting each value read once and each result written once",
        "numpy.cumsum median",
        "times as fast as numpy",
        "all 8 results have the bits of the documented order",
        "within Higham's bound",
        "nothing of it is left",
        "at the end: 0 buffers, 0 artifacts, 0 streams, 0 events",
        "PASSED",
    ):
        assert words in text
    assert ended.err == ""  # no progress bar where there is no terminal


def test_demo_of_no_values(run: Run) -> None:
    """Nothing to scan is nothing to cancel either, and all is well."""
    ended = run("demo", "--length", 0, "--json")
    assert ended.code == 0
    document = ended.document
    assert document["check"]["checked"] == 64
    assert document["launches"]["numpy"] is None
    assert "no values" in document["cancel"]["skipped"]
    assert document["live_at_end"] == NOTHING


def test_demo_on_one_stream_launches_once(run: Run) -> None:
    ended = run("demo", "--length", 1000, "--launches", 1, "--streams", 1, "--json")
    assert ended.code == 0
    assert ended.document["launches"]["peak_in_flight"] == 1


def test_demo_report_counts_one_as_one(run: Run) -> None:
    ended = run("demo", "--length", 1, "--launches", 1, "--streams", 1)
    text = " ".join(ended.out.split())
    for words in (
        "1 f32 value (",
        "1 from one loaded pool on 1 stream, in 1 round",
        "1 sample)",
        "the 1 result has the bits",
    ):
        assert words in text


def test_demo_report_of_no_values_describes_none(run: Run) -> None:
    text = " ".join(run("demo", "--length", 0, "--launches", 2000).out.split())
    assert "0 f32 values (0 bytes, CRC-32 00000000): nothing to scan" in text
    assert "all 2,000 results have the bits" in text
    assert "gyroscope" not in text
    assert "its bound" not in text


@pytest.mark.parametrize(
    ("error", "share", "words"),
    [
        (0.0, 0.0, "no result is off at all"),
        (1e-9, 2e-7, "no error takes more than 0.01% of its bound"),
        (1e-3, 0.0212, "no error takes more than 2.12% of its bound"),
    ],
)
def test_share_of_the_bound_is_never_said_to_be_none_where_it_is_some(
    error: float, share: float, words: str
) -> None:
    distance = Distance(additions=8, values=9, largest_error=error, largest_share=share)
    assert _share(distance).startswith(words)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_demo_on_the_recording_backend_says_that_it_executes_nothing(
    run: Run, loop: str
) -> None:
    arguments = ("demo", "--backend", "recording", "--length", 9000, "--loop", loop)
    ended = run(*arguments)
    assert ended.code == 0, ended.err
    text = " ".join(ended.out.split())
    assert "it executes nothing" in text
    assert "skipped: the recording backend executes nothing" in text
    assert "as far as nothing was executed" in text
    assert "GB/s" not in text
    document = run(*arguments, "--json").document
    assert not document["executes"]
    assert document["launches"]["peak_in_flight"] == 16
    assert document["cancel"]["was_in_flight"]
    assert document["cancel"]["is_clean"]


def test_demo_draws_the_same_signal_each_time(run: Run) -> None:
    first, second = (
        run("demo", "--backend", "recording", "--length", 70_000, "--json").document
        for _ in range(2)
    )
    assert first["input"] == second["input"]


def test_loop_that_is_not_installed_is_wrong_usage(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    ended = run("demo", "--loop", "uvloop", "--length", 10)
    assert ended.code == ExitCode.USAGE
    assert "--loop uvloop: it is not installed; pip install uvloop" in ended.err


# Faults


def test_wrong_result_fails_the_demo(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        scanned = reference_scan(values)
        scanned[700] += 1
        return scanned

    monkeypatch.setattr(run_module, "reference", wrong)
    ended = run("demo", "--length", 1000, "--launches", 3)
    assert ended.code == ExitCode.CHECK_FAILED
    text = " ".join(ended.out.split())
    assert "WRONG: 3 of 3 results; result 0, element 700: got" in text
    assert "FAILED" in text


def test_launches_that_do_nothing_fail_the_demo(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old results are not taken for new ones."""
    count = 0
    submit = CpuBackend.submit_launches

    def lazy(self: CpuBackend, launches: Any, stream: Any = None) -> None:
        nonlocal count
        count += 1
        if count <= run_module.WARM_UP + 2:
            submit(self, launches, stream)

    monkeypatch.setattr(CpuBackend, "submit_launches", lazy)
    ended = run("demo", "--length", 1000, "--launches", 8, "--streams", 1, "--json")
    assert ended.code == ExitCode.CHECK_FAILED
    assert ended.document["check"]["wrong"] == 6


def test_leftovers_fail_the_demo(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def leaving(*_: object) -> CancelOutcome:
        return CancelOutcome(live_before=NOTHING, live_after={**NOTHING, "buffers": 2})

    monkeypatch.setattr(run_module, "cancel_one", leaving)
    ended = run("demo", "--length", 100)
    assert ended.code == ExitCode.CHECK_FAILED
    assert "SOMETHING OF IT IS LEFT" in " ".join(ended.out.split())


@pytest.mark.parametrize("kind", ["device", "memory"])
def test_failing_device_is_exit_code_4(
    run: Run, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    opened: list[RecordingBackend] = []
    make = RecordingBackend.__init__

    def failing(self: RecordingBackend, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        opened.append(self)
        if kind == "device":
            self.fail_execution(5, message="a bit fell over")
        else:
            self.fail("allocate_buffer", 3, OutOfMemory("no room for it"))

    monkeypatch.setattr(RecordingBackend, "__init__", failing)
    ended = run("demo", "--backend", "recording", "--length", 1000, "--json")
    assert ended.code == ended.document["exit_code"] == ExitCode.FAILED
    words = "a bit fell over" if kind == "device" else "no room for it"
    assert words in ended.err
    assert "Traceback" not in ended.err
    assert not any(opened[0].live_objects().values())


def test_error_with_traceback_shows_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise DeviceError("broken on purpose")

    monkeypatch.setattr(run_module, "sensor_source", broken)
    ended = run("demo", "--traceback")
    assert ended.code == ExitCode.FAILED
    assert "Traceback" in ended.err
    assert ended.err.endswith("accy-async: broken on purpose\n")


# Judging


def test_difference_is_found_where_it_is() -> None:
    expected = np.arange(3_000_000, dtype=np.float32)
    got = expected.copy()
    assert first_difference(got, expected) is None
    got[2_500_000] = -1
    assert first_difference(got, expected) == 2_500_000
    assert first_difference(got[:-1], expected) == 0


def test_nans_are_equal_and_zeros_are_not() -> None:
    """Any NaN is as good as another; the sign of a zero is part of the bits."""
    one = np.array([np.nan, 0.0], np.float32)
    other = np.array([0xFFC00001, 0], np.uint32).view(np.float32)
    assert first_difference(one, other) is None
    other[1] = -0.0
    assert first_difference(one, other) == 1


def test_distance_of_the_reference_is_within_its_bound() -> None:
    values = np.random.default_rng(3).normal(size=2_200_000).astype(np.float32)
    distance = distance_from_exact(values, reference_scan(values))
    assert distance.is_within_bound
    assert distance.values == len(values)
    assert distance.additions == scan_additions(len(values))
    assert 0 < distance.largest_error < distance.numpy_error


def test_distance_beyond_the_bound_is_seen() -> None:
    values = np.ones(1000, np.float32)
    scanned = reference_scan(values)
    scanned[500] += 1
    distance = distance_from_exact(values, scanned)
    assert not distance.is_within_bound
    assert distance.largest_error == 1


@pytest.mark.parametrize(
    ("bad", "judged"), [(np.nan, 400), (np.inf, 400), (-np.inf, 400), (3e38, 401)]
)
def test_distance_is_judged_up_to_the_first_bad_value(bad: float, judged: int) -> None:
    values = np.ones(1000, np.float32)
    values[400] = values[401] = bad
    distance = distance_from_exact(values, reference_scan(values))
    assert distance.values == judged
    assert distance.is_within_bound


def test_distance_of_integers_is_equality() -> None:
    values = np.full(1000, 2**31 - 1, np.int32)
    scanned = reference_scan(values)
    assert distance_from_exact(values, scanned).is_within_bound
    scanned[3] += 1
    assert not distance_from_exact(values, scanned).is_within_bound


def test_spread_of_samples() -> None:
    assert attrs.astuple(Spread.of([3.0, 1.0, 2.0])) == (3, 2.0, 1.0, 3.0)
    assert Spread.of([4.0, 1.0]).median_s == 2.5


def test_progress_bar_is_for_terminals() -> None:
    """With a terminal's name and a pseudo-terminal for errors, a bar appears."""
    pty = pytest.importorskip("pty")
    import os

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "accy_async", "demo", "--length", "1000"]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # Linux's way to say that the other end was closed
        pass
    out, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert b"launches" in shown
    assert b"\x1b[?25h" in shown  # the cursor is back
    assert b"PASSED" in out
    assert b"\x1b" not in out
