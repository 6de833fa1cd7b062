"""Running a benchmark file: the ceilings first, then each benchmark.

`BenchRun.report` is at any time what was found so far, so that a run which is broken
off has something to show.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from accy_async.bench.ceilings import CeilingKernel, ceiling_kernels, ceiling_of
from accy_async.bench.declare import Benchmark, FragmentBenchmark, KernelBenchmark
from accy_async.bench.kernels import Arguments, bytes_of_arguments, check_of, made
from accy_async.bench.loading import where_of
from accy_async.bench.options import BenchOptions, Unwatched, Watcher
from accy_async.bench.racing import Races
from accy_async.bench.report import BenchmarkReport, DeviceReport, Report
from accy_async.errors import AccyError, DeviceLost, InvalidType, SessionClosed

if TYPE_CHECKING:
    from accy_async.session import Session

__all__ = ["BenchRun", "device_report"]


class BenchRun:
    """One run of a benchmark file in a session.

    Args:
        file: the file's name, for the report.
        benchmarks: what it declares.
        options: how; the usual way if left out.
        watcher: told how far it has come, if there is one.
        version: of this package, for the report; left out of it where it is empty.

    Raises:
        InvalidType: one of them is of another kind.
    """

    def __init__(
        self,
        *,
        file: str,
        benchmarks: Sequence[Benchmark],
        options: BenchOptions | None = None,
        watcher: Watcher | None = None,
        version: str = "",
    ) -> None:
        options = BenchOptions() if options is None else options
        if not isinstance(file, str):
            raise InvalidType("BenchRun.file", file, "text")
        if not isinstance(options, BenchOptions):
            raise InvalidType("BenchRun.options", options, "BenchOptions")
        self._benchmarks = tuple(benchmarks)
        given: tuple[object, ...] = self._benchmarks
        for one in given:
            if not isinstance(one, Benchmark):
                expected = "benchmarks: see fragment_benchmark, KernelBenchmark"
                raise InvalidType("BenchRun.benchmarks", one, expected)
        self._options = options
        self._file = file
        self._version = version
        self._report: Report | None = None
        self._races = Races(options, Unwatched() if watcher is None else watcher)

    @property
    def report(self) -> Report | None:
        """What was found so far; None before the device is known."""
        if self._report is None:
            return None
        return attrs.evolve(self._report, benchmarks=tuple(self._races.done.values()))

    async def run(self, session: Session) -> Report:
        """Measure everything.

        What is wrong with one benchmark is in its report, and the others go on.

        Raises:
            DeviceLost: the device is gone.
            SessionClosed: the session was left.

        Cancellation: `report` has what was measured, the one that was broken off too.
        """
        options = self._options
        self._report = Report(
            file=self._file,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            device=device_report(session),
            versions={
                **({"accy-async": self._version} if self._version else {}),
                "python": platform.python_version(),
                "numpy": np.__version__,
                "system": platform.platform(),
            },
            options={
                name: str(value)
                for name, value in attrs.asdict(options).items()
                if value is not None
            },
        )
        if options.exclusive:
            await session.backend.wait_device()
        for ceiling in ceiling_kernels(session.capabilities):
            await self._measure_ceiling(session, ceiling)
        for benchmark in self._benchmarks:
            try:
                await self._measure(session, benchmark)
            except (DeviceLost, SessionClosed):
                raise
            except Exception as error:  # noqa: BLE001 - code of the file's
                self._fail(benchmark, error)
        self._report = attrs.evolve(self._report, is_complete=True)
        return attrs.evolve(self._report, benchmarks=tuple(self._races.done.values()))

    # One after the other

    async def _measure_ceiling(self, session: Session, kernel: CeilingKernel) -> None:
        """What the device does at most; left out where that cannot be measured."""
        assert self._report is not None
        source = np.linspace(0.5, 1.0, kernel.elements, dtype=np.float32)
        try:
            arguments = await Arguments.upload(session, [source, source])
        except AccyError:
            return
        out, read = arguments.bindings
        blank = BenchmarkReport(
            name=f"{kernel.name} ceiling", kind="kernel", declared=""
        )
        try:
            await self._races.race_kernels(
                session,
                blank,
                {kernel.name: kernel.variant},
                kernel.bindings(out, read),
                None,
            )
        finally:
            arguments.free()
            found = self._races.done.pop(blank.name, None)
        candidate = None if found is None else found.candidate(kernel.name)
        if candidate is None or candidate.median_ns is None:
            return
        assert candidate.low_ns is not None
        assert candidate.high_ns is not None
        ceiling = ceiling_of(
            kernel, candidate.median_ns, candidate.low_ns, candidate.high_ns
        )
        self._report = attrs.evolve(
            self._report, ceilings=(*self._report.ceilings, ceiling)
        )

    async def _measure(self, session: Session, benchmark: Benchmark) -> None:
        if isinstance(benchmark, FragmentBenchmark):
            inputs = await _given(benchmark, benchmark.inputs)
            await self._races.race_fragment(session, benchmark, inputs)
            return
        given = await _given(benchmark, benchmark.arguments)
        moved = benchmark.bytes_moved
        blank = BenchmarkReport(
            name=benchmark.name,
            kind="kernel",
            declared=benchmark.declared,
            bytes_moved=bytes_of_arguments(given) if moved is None else moved,
            flops=benchmark.flops,
        )
        arguments = await Arguments.upload(session, given)
        try:
            await self._races.race_kernels(
                session,
                blank,
                benchmark.candidates,
                arguments.bindings,
                check_of(benchmark, given),
            )
        finally:
            arguments.free()

    def _fail(self, benchmark: Benchmark, error: Exception) -> None:
        known = self._races.done.get(benchmark.name)
        where = where_of(error, benchmark.declared.rpartition(":")[0], "")
        at = where if where.rpartition(":")[2].isdigit() else benchmark.declared
        kind = "kernel" if isinstance(benchmark, KernelBenchmark) else "fragment"
        blank = BenchmarkReport(
            name=benchmark.name, kind=kind, declared=benchmark.declared
        )
        self._races.done[benchmark.name] = attrs.evolve(
            blank if known is None else known,
            is_complete=False,
            error=f"{at}: {type(error).__name__}: {error}",
        )


def device_report(session: Session) -> DeviceReport:
    """Which device a session has."""
    identity = session.capabilities.identity
    return DeviceReport(
        backend=str(identity.backend),
        name=identity.name,
        architecture=identity.architecture,
        compute_units=identity.compute_units,
        driver=identity.driver,
        fingerprint=f"{identity.fingerprint:016x}",
    )


async def _given(benchmark: Benchmark, inputs: object) -> list[Any]:
    """A benchmark's arrays, made on a thread where a function makes them."""
    if callable(inputs):
        inputs = await made(inputs, f"make inputs of {benchmark.name}")
    if not isinstance(inputs, (list, tuple)):
        raise InvalidType(
            f"inputs of {benchmark.name!r}", inputs, "a list or tuple of arrays"
        )
    return list(inputs)
