"""Running benchmarks: on the recording backend, and really on the processor."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest

from accy_async.artifact import ArtifactFormat, FixedLaunch, KernelCallArtifact
from accy_async.backends import BackendKind, RecordingBackend
from accy_async.bench import (
    Benchmark,
    BenchOptions,
    BenchRun,
    FragmentBenchmark,
    KernelBenchmark,
    Output,
    ReadWrite,
    Report,
    fragment_benchmark,
)
from accy_async.bench import running as running_module
from accy_async.bench.ceilings import ceiling_kernels
from accy_async.errors import DeviceError, DeviceLost, InvalidType, OutOfMemory
from accy_async.session import open_session
from tests.bench.files import doubling, kernel_benchmark

pytestmark = pytest.mark.anyio

QUICK = BenchOptions(samples=8)


class Steps:
    """A watcher that remembers, and may do something at a step."""

    def __init__(self, at: int = -1, then: Callable[[], None] | None = None) -> None:
        self.begun: list[str] = []
        self.steps = 0
        self._at, self._then = at, then

    def begin(self, what: str, steps: int) -> None:
        self.begun.append(what)

    def step(self) -> None:
        self.steps += 1
        if self.steps == self._at and self._then is not None:
            self._then()


@pytest.fixture
def no_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a while to be compiled and measured."""
    monkeypatch.setattr(running_module, "ceiling_kernels", lambda _: ())


def twice(x: Any) -> Any:
    return x + x


def product(x: Any) -> Any:
    return x * np.float32(2)


def thrice(x: Any) -> Any:
    return x + x + x


def fragments(**more: Any) -> FragmentBenchmark:
    """Two programs that agree, and one that does not."""
    return FragmentBenchmark(
        name="double",
        candidates={"sum": twice, "product": product},
        inputs=lambda: [np.ones((8, 16), np.float32)],
        **more,
    )


def bench_run(
    *benchmarks: Benchmark,
    options: BenchOptions = QUICK,
    watcher: Steps | None = None,
) -> BenchRun:
    return BenchRun(
        file="bench.py",
        benchmarks=benchmarks,
        options=options,
        watcher=watcher,
        version="1.0",
    )


async def bench_on(
    device: str | RecordingBackend,
    *benchmarks: Benchmark,
    options: BenchOptions = QUICK,
    watcher: Steps | None = None,
) -> Report:
    running = bench_run(*benchmarks, options=options, watcher=watcher or Steps())
    async with open_session(device) as session:
        before = session.live_objects()
        report = await running.run(session)
        after = session.live_objects()
        assert {k: after[k] for k in ("events", "streams")} == {
            k: before[k] for k in ("events", "streams")
        }
    assert running.report == report
    return report


@pytest.mark.usefixtures("no_ceilings")
async def test_kernels_are_measured_with_what_they_move() -> None:
    watcher = Steps()
    report = await bench_on(
        "cpu", kernel_benchmark(a=2.0, b=2.0, wrong=3.0), watcher=watcher
    )
    (found,) = report.benchmarks
    assert report.is_complete
    assert found.is_complete
    assert (found.kind, found.bytes_moved, found.flops) == ("kernel", 2048, None)
    first, second, wrong = found.candidates
    for one in (first, second):
        assert one.status == "measured"
        assert len(one.times_ns) == 8
        assert one.low_ns is not None
        assert one.median_ns is not None
        assert one.low_ns <= one.median_ns
        assert one.bytes_per_s == pytest.approx(2048e9 / one.median_ns)
    assert first.standing is None
    assert second.speedup is not None
    assert wrong.status == "wrong result"
    assert "buffer 0 differs" in wrong.reason
    assert not found.is_sound
    assert watcher.begun == ["scaled"]
    assert watcher.steps >= 8
    assert report.device.backend == "cpu"
    assert set(report.versions) == {"accy-async", "python", "numpy", "system"}


@pytest.mark.usefixtures("no_ceilings")
async def test_one_candidate_alone_is_measured_as_well() -> None:
    report = await bench_on("cpu", kernel_benchmark(only=2.0))
    (found,) = report.benchmarks
    assert len(found.candidates[0].times_ns) == 8
    assert found.winner == "only"


@pytest.mark.usefixtures("no_ceilings")
async def test_a_program_that_raises_is_out_and_the_others_are_measured() -> None:
    def broken(x: Any) -> Any:
        return x + 1 // 0

    declared = FragmentBenchmark(
        name="double",
        candidates={"broken": broken, "sum": twice, "product": product},
        inputs=[np.ones((8, 16), np.float32)],
        kernels=False,
    )
    (found,) = (await bench_on("cpu", declared)).benchmarks
    failed, *others = found.candidates
    assert failed.status == "failed"
    assert re.fullmatch(r".*test_running\.py:\d+: ZeroDivisionError: .*", failed.reason)
    assert [one.status for one in others] == ["measured", "measured"]


@pytest.mark.usefixtures("no_ceilings")
async def test_fragments_are_measured_whole_and_kernel_by_kernel() -> None:
    report = await bench_on("cpu", fragments())
    whole, *kernels = report.benchmarks
    assert (whole.name, whole.kind) == ("double", "fragment")
    assert [one.name for one in whole.candidates] == ["sum", "product"]
    assert all(len(one.times_ns) == 8 for one in whole.candidates)
    assert whole.bytes_moved == 2 * 8 * 16 * 4
    assert whole.flops == 8 * 16
    assert [one.kind for one in kernels] == ["fragment kernel"]
    assert kernels[0].name.startswith("double/")
    assert kernels[0].bytes_moved == 2 * 8 * 16 * 4
    assert kernels[0].candidates[0].median_ns is not None


@pytest.mark.usefixtures("no_ceilings")
async def test_fragments_that_fail_or_differ_are_rejected_and_the_rest_goes_on() -> (
    None
):
    def traced(x: Any) -> Any:
        if x > 0:
            return x
        return -x

    benchmark = FragmentBenchmark(
        name="double",
        candidates={"sum": twice, "wrong": thrice, "traced": traced, "two": product},
        inputs=[np.ones(8, np.float32)],
        kernels=False,
    )
    (found,) = (await bench_on("cpu", benchmark)).benchmarks
    statuses = {one.name: one.status for one in found.candidates}
    assert statuses == {
        "sum": "measured",
        "wrong": "wrong result",
        "traced": "failed",
        "two": "measured",
    }
    reasons = {one.name: one.reason for one in found.candidates}
    assert "first in element 0" in reasons["wrong"]
    assert "test_running.py" in reasons["traced"]
    assert not found.is_sound


@pytest.mark.usefixtures("no_ceilings")
async def test_what_is_wrong_with_one_is_told_by_its_line_and_others_go_on() -> None:
    def broken() -> list[Any]:
        raise OSError("no such data")

    @fragment_benchmark(inputs=broken)
    def first(x: Any) -> Any:
        return x

    @fragment_benchmark(inputs=lambda: 3)  # type: ignore[arg-type,return-value]
    def second(x: Any) -> Any:
        return x

    def never(_: object) -> Any:
        raise ValueError("no code")

    third = KernelBenchmark(
        name="third", candidates={"never": never}, arguments=[Output((4,))]
    )
    report = await bench_on("cpu", first, second, third, kernel_benchmark(a=2.0))
    assert [one.name for one in report.benchmarks] == [
        "first",
        "second",
        "third",
        "scaled",
    ]
    errors = [one.error for one in report.benchmarks]
    assert "test_running.py" in errors[0]
    assert errors[0].endswith("OSError: no such data")
    assert "a list or tuple of arrays" in errors[1]
    (candidate,) = report.benchmarks[2].candidates
    assert (candidate.status, candidate.reason) == ("failed", "ValueError: no code")
    assert report.benchmarks[3].is_sound


@pytest.mark.usefixtures("no_ceilings")
async def test_candidates_that_are_never_made_are_given_up() -> None:
    gate = threading.Event()

    def stuck(capabilities: Any) -> Any:
        gate.wait(60.0)
        return doubling(2.0)(capabilities)

    def traced_for_ever(x: Any) -> Any:
        gate.wait(60.0)
        return x + x

    device = RecordingBackend()
    made = doubling(2.0)(device.capabilities)
    kernels = KernelBenchmark(
        name="kernels",
        candidates={"stuck": stuck, "good": made},
        arguments=[Output((256,)), np.ones(256, np.float32)],
    )
    programs = FragmentBenchmark(
        name="programs",
        candidates={"stuck": traced_for_ever},
        inputs=[np.ones(8, np.float32)],
    )
    options = BenchOptions(samples=4, build_limit_s=0.05)
    try:
        report = await bench_on(device, kernels, programs, options=options)
    finally:
        gate.set()
    for found in report.benchmarks:
        assert found.candidates[0].status == "failed"
        assert "after 0.05 s" in found.candidates[0].reason
    good = report.benchmarks[0].candidates[1]
    assert (good.status, good.reason) == ("measured", "")


@pytest.mark.usefixtures("no_ceilings")
async def test_cold_caches_are_overwritten_before_each_launch() -> None:
    device = RecordingBackend()
    await bench_on(
        device, kernel_benchmark(a=2.0), options=BenchOptions(samples=4, cache="cold")
    )
    assert device.fill_count >= device.launch_count > 4


def test_ceilings_fit_into_the_grids_of_every_device() -> None:
    capabilities = RecordingBackend(
        kind=BackendKind.CUDA, format=ArtifactFormat.CUDA_PTX
    ).capabilities
    for kernel in ceiling_kernels(capabilities):
        artifact = kernel.variant(capabilities).artifact
        assert isinstance(artifact, KernelCallArtifact)
        assert isinstance(artifact.launch, FixedLaunch)
        assert artifact.launch.grid[0] <= 65_535


@pytest.mark.usefixtures("no_ceilings")
async def test_what_is_read_and_written_begins_anew_each_time() -> None:
    def raising(capabilities: Any) -> Any:
        from accy_async.bench import compile_variant
        from accy_async.compiler.form import KernelBuilder
        from accy_async.dtypes import DType

        k = KernelBuilder("raise_it", threadgroup=(4, 1, 1))
        x = k.buffer("x", DType.F32, "read_write")
        with k.region():
            x[k.thread] = x[k.thread] + 1.0
        return compile_variant(k.build(), capabilities, grid=(1, 1, 1))

    benchmark = KernelBenchmark(
        name="raise",
        candidates={"a": raising, "b": raising},
        arguments=[ReadWrite(np.zeros(4, np.float32))],
        flops=4,
    )
    (found,) = (await bench_on("cpu", benchmark)).benchmarks
    assert found.is_sound
    assert found.bytes_moved == 32
    assert found.candidates[0].flops_per_s is not None


@pytest.mark.usefixtures("no_ceilings")
async def test_a_benchmark_ends_in_time_with_at_least_four_samples() -> None:
    options = BenchOptions(samples=10_000, seconds=0.0)
    report = await bench_on(
        "cpu", kernel_benchmark(a=2.0), fragments(), options=options
    )
    for found in report.benchmarks:
        assert len(found.candidates[0].times_ns) == 4
        assert found.is_complete


async def test_ceilings_are_measured_by_kernels_of_our_own() -> None:
    report = await bench_on("recording", options=BenchOptions(samples=4))
    copy, fma = report.ceilings
    assert (copy.name, copy.unit, fma.name, fma.unit) == (
        "copy",
        "B/s",
        "fma",
        "FLOP/s",
    )
    # It says 1 us of everything.
    assert copy.value == pytest.approx(2 * (1 << 26) / 1e-6)
    assert fma.value == pytest.approx(2 * 8 * 64 * (1 << 16) / 1e-6)
    assert copy.low <= copy.value <= copy.high
    assert report.benchmarks == ()


@pytest.mark.usefixtures("no_ceilings")
async def test_cancelled_it_has_what_was_measured_and_leaves_nothing() -> None:
    for place in (1, 6, 12, 18):
        scope = anyio.CancelScope()
        watcher = Steps(place, scope.cancel)
        running = bench_run(fragments(), kernel_benchmark(a=2.0), watcher=watcher)
        async with open_session("cpu") as session:
            with scope:
                await running.run(session)
            assert scope.cancelled_caught
            left = session.live_objects()
            assert all(count == 0 for count in left.values()), left
        report = running.report
        assert report is not None
        assert not report.is_complete
        last = report.benchmarks[-1]
        assert not last.is_complete
        done = sum(len(one.candidates[0].times_ns) for one in report.benchmarks)
        assert done >= place


@pytest.mark.usefixtures("no_ceilings")
async def test_a_lost_device_ends_it_and_what_was_measured_is_there() -> None:
    device = RecordingBackend()

    def lose() -> None:
        device.fail_execution(1, sticky=True)

    watcher = Steps(4, lose)
    running = bench_run(kernel_benchmark(a=2.0, b=2.0), watcher=watcher)
    with pytest.raises(DeviceLost):
        async with open_session(device) as session:
            await running.run(session)
    report = running.report
    assert report is not None
    lost, other = sorted(
        report.benchmarks[0].candidates, key=lambda one: len(one.times_ns)
    )
    assert (lost.status, other.status) == ("failed", "measured")
    assert "cuda:0 is lost" in lost.reason
    assert 3 <= len(other.times_ns) <= 5


@pytest.mark.usefixtures("no_ceilings")
async def test_exclusive_measures_anew_where_the_machine_did_not_hold_still() -> None:
    assert BenchOptions(exclusive=True).rules.repeats == 1
    report = await bench_on(
        "recording",
        KernelBenchmark(
            name="steady",
            candidates={"a": doubling(2.0)},
            arguments=[Output((256,)), np.ones(256, np.float32)],
        ),
        options=BenchOptions(samples=8, exclusive=True),
    )
    assert report.benchmarks[0].is_steady
    assert report.options["exclusive"] == "True"


@pytest.mark.usefixtures("no_ceilings")
async def test_failing_calls_leave_nothing_and_are_told() -> None:
    """Some backend calls of a run fail in turn, once."""
    options = BenchOptions(samples=4)
    given = (fragments(), kernel_benchmark(a=2.0))
    nth = 1
    while True:
        device = RecordingBackend()
        running = bench_run(*given, options=options)
        before = device.live_objects()
        failed = True
        try:
            async with open_session(device) as session:
                device.fail("*", nth)
                report = await running.run(session)
            failed = not all(one.is_sound for one in report.benchmarks)
        except (OutOfMemory, DeviceError, ExceptionGroup):
            pass
        assert device.live_objects() == before, nth
        if not failed and device._failures:
            break
        nth += 9 if nth > 10 else 1
    assert nth > 40


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(InvalidType, match=r"BenchRun.benchmarks: got 3, .*Kernel"):
        BenchRun(file="bench.py", benchmarks=[3])  # type: ignore[list-item]
    with pytest.raises(InvalidType, match=r"BenchRun.options: got 16, expected Bench"):
        BenchRun(file="bench.py", benchmarks=[], options=16)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"BenchRun.file: got \["):
        BenchRun(file=[], benchmarks=[])  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_ceilings")
async def test_nobody_needs_to_watch() -> None:
    running = BenchRun(file="bench.py", benchmarks=[fragments()], options=QUICK)
    async with open_session("recording") as session:
        report = await running.run(session)
    assert report.is_complete
    assert "accy-async" not in report.versions
