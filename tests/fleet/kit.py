"""Workers that answer by a script, and lists to give them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from accy_async.artifact import FixedLaunch, KernelArtifact
from accy_async.dtypes import DType
from accy_async.errors import WorkerLost
from accy_async.fleet import (
    DeviceKind,
    FleetBuffer,
    FleetCandidate,
    FleetDevice,
    FleetWork,
    FleetWorker,
    WorkerPlace,
)
from accy_async.fleet.found import JobFound
from accy_async.fleet.jobs import JobReply, JobRequest
from accy_async.fleet.wire import from_wire, to_wire
from accy_async.tuning import CandidateStatus, Standing, TimeSource
from accy_async.tuning.measuring import CandidateOutcome
from accy_async.tuning.race import Comparison
from accy_async.tuning.statistics import Interval

__all__ = ["FakePlace", "device", "found", "work_of"]

Fate = Callable[[str, tuple[str, ...]], "JobReply | None"]
"""What a worker answers to a job; None where it is lost with it."""


def device(name: str = "cuda:0", kind: int = 1, **more: Any) -> FleetDevice:
    """A device of a kind that is told by a number."""
    more.setdefault("formats", ("cuda_ptx",))
    return FleetDevice(
        host="here",
        device=name,
        name="made up",
        kind=DeviceKind(backend="cuda", fingerprint=kind),
        **more,
    )


def work_of(*names: str, format: str = "cuda_ptx", **more: Any) -> FleetWork:
    """A list of candidates of these names, all of one kernel."""
    artifact = KernelArtifact(
        kernel_name="k",
        format=format,
        argument_count=1,
        scalar_argument_count=0,
        payload="code",
    )
    return FleetWork(
        candidates=tuple(
            FleetCandidate(
                name=name,
                artifact=artifact,
                geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(32 * (i + 1), 1, 1)),
            )
            for i, name in enumerate(names)
        ),
        buffers=(FleetBuffer.zeros(DType.F32, 16),),
        **more,
    )


def found(
    names: tuple[str, ...],
    effects: Mapping[str, float] | None = None,
    statuses: Mapping[str, CandidateStatus] | None = None,
    half_width: float = 0.001,
) -> JobFound:
    """What measuring these comes to: each the logarithm ``effects`` from the baseline.

    As `measure` does it, the first that works is the baseline.
    """
    effects, statuses = effects or {}, statuses or {}
    fit = [n for n in names if n not in statuses]
    base = fit[0] if fit else None
    faster = [n for n in fit if effects.get(n, 0.0) < -0.01 and n != base]
    best = min(faster, key=lambda n: effects.get(n, 0.0), default=base)

    def outcome(name: str) -> CandidateOutcome:
        if name in statuses:
            status = statuses[name]
            return CandidateOutcome(name=name, status=status, reason=str(status))
        effect = effects.get(name, 0.0)
        comparison = None
        if name != base:
            standing = Standing.FASTER if name in faster else Standing.NO_DIFFERENCE
            interval = Interval(effect - half_width, effect, effect + half_width)
            comparison = Comparison(1, standing, interval, 16)
        return CandidateOutcome(
            name=name,
            status=CandidateStatus.MEASURED,
            median_ns=1000.0 * (1.0 + effect) if len(fit) > 1 else None,
            sample_count=16 if len(fit) > 1 else 0,
            comparison=comparison,
        )

    return JobFound(
        baseline=base,
        winner=best,
        standing=Standing.FASTER if faster else Standing.NO_DIFFERENCE,
        candidates=tuple(outcome(name) for name in names),
        source=TimeSource.DEVICE,
        is_storable=base is not None,
        why_not="" if base is not None else "no candidate works",
    )


class FakePlace(WorkerPlace):
    """A place whose workers answer what a function says, after a turn of the loop.

    Attributes:
        open_count: workers that are open now.
        opened: how many were opened in all.
        jobs: what they were asked to measure, in order.
        cancelled: how often that was cancelled.
        holds: what its jobs wait for, if anything.
        opening: what opening waits for, if anything.
        fails_to_close: what closing raises, if anything.
    """

    def __init__(
        self, name: str, fate: Fate, device_: FleetDevice | None = None
    ) -> None:
        self.name = name
        self.fate = fate
        self.device = device_ or device(name)
        self.fails_to_open: list[Exception | None] = []
        self.open_count = self.opened = self.cancelled = 0
        self.jobs: list[tuple[str, ...]] = []
        self.taken: list[FleetWork] = []
        self.holds: anyio.Event | None = None
        self.opening: anyio.Event | None = None
        self.fails_to_close: Exception | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[FleetWorker]:
        await anyio.lowlevel.checkpoint()
        if self.opening is not None:
            await self.opening.wait()
        error = self.fails_to_open.pop(0) if self.fails_to_open else None
        if error is not None:
            raise error
        self.open_count += 1
        self.opened += 1
        try:
            yield _FakeWorker(self)
        finally:
            self.open_count -= 1
            if self.fails_to_close is not None:
                raise self.fails_to_close


class _FakeWorker(FleetWorker):
    def __init__(self, place: FakePlace) -> None:
        self._place = place

    @property
    def device(self) -> FleetDevice:
        return self._place.device

    async def take(self, work: bytes) -> bytes:
        await anyio.lowlevel.checkpoint()
        self._place.taken.append(from_wire(work, FleetWork))
        return to_wire(JobReply())

    async def measure(self, request: bytes) -> bytes:
        place = self._place
        names = from_wire(request, JobRequest).names
        place.jobs.append(names)
        try:
            await anyio.lowlevel.checkpoint()
            if place.holds is not None:
                await place.holds.wait()
        except anyio.get_cancelled_exc_class():
            place.cancelled += 1
            raise
        reply = place.fate(place.name, names)
        if reply is None:
            raise WorkerLost("it was killed", worker=place.name)
        return to_wire(reply)
