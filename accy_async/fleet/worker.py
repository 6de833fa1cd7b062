"""The work of one worker: a session of ours that measures what it is told to.

It is the same in this process and in any other: what comes in and what goes out are
bytes (`accy_async.fleet.wire`), and nothing is raised for what happens on the device.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.backends.completion import run_abandonable
from accy_async.backends.handles import BufferBinding
from accy_async.backends.launch import LaunchRequest
from accy_async.errors import (
    AccyError,
    DeviceLost,
    OutOfMemory,
    SessionClosed,
    TuningStopped,
)
from accy_async.fleet.found import DeviceKind, FleetDevice, JobFound
from accy_async.fleet.jobs import JobReply, JobRequest
from accy_async.fleet.wire import from_wire, to_wire
from accy_async.fleet.work import FleetWork
from accy_async.tuning.measuring import Candidate, CandidateStatus, measure

if TYPE_CHECKING:
    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.backends.array import DeviceArray
    from accy_async.backends.handles import LoadedArtifact
    from accy_async.session.single import Session

__all__ = ["SessionWorker", "device_of_session"]


def device_of_session(session: Session) -> FleetDevice:
    """What a fleet is told of a session's device."""
    capabilities = session.capabilities
    identity = capabilities.identity
    return FleetDevice(
        host=platform.node() or "localhost",
        device=_device_of_host(session.backend.device, identity.index),
        name=identity.name,
        kind=DeviceKind(
            backend=identity.backend,
            fingerprint=capabilities.fingerprint,
            driver=identity.driver,
        ),
        formats=tuple(capabilities.formats),
    )


def _device_of_host(device: str, index: int) -> str:
    """A device's name, by its number on the host, where the process sees only some."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if not device.startswith("cuda:") or not index < len(visible):
        return device
    return f"cuda:{visible[index].strip()}" if visible[index].strip() else device


class SessionWorker:
    """Measures candidates of one list at a time in a session.

    Args:
        session: open until the worker is no longer used.
    """

    def __init__(self, session: Session) -> None:
        self.device = device_of_session(session)
        self._session = session
        self._work: FleetWork | None = None
        self._buffers: list[DeviceArray] = []
        self._loaded: dict[KernelArtifact, LoadedArtifact] = {}

    async def take(self, work: bytes) -> bytes:
        """Take a list, and make its buffers on the device; the one before is dropped.

        Returns:
            A `JobReply` as bytes, empty where all is well.

        Cancellation: the worker has no list.
        """
        return await self._answer(self._take(work))

    async def measure(self, request: bytes) -> bytes:
        """Measure some candidates of the list against each other.

        Args:
            request: a `JobRequest` as bytes.

        Returns:
            A `JobReply` as bytes.

        Cancellation: what is on the device is awaited for the grace at most.
        """
        return await self._answer(self._measure(request))

    async def _answer(self, doing: Coroutine[object, object, JobReply]) -> bytes:
        """What came of it; what went wrong is told as data."""
        try:
            reply = await doing
        except TuningStopped as error:
            reply = JobReply(lost=error.message, culprit=error.candidate)
        except DeviceLost as error:
            reply = JobReply(lost=str(error))
        except AccyError as error:
            reply = self._lost_or(error)
        except ExceptionGroup as group:
            reply = self._lost_or(group)
        return to_wire(reply)

    def _lost_or(self, error: Exception) -> JobReply:
        """Refused; unless the device went meanwhile, of which the error is a part."""
        loss = self._session.backend.loss
        if loss is not None:
            return JobReply(lost=str(loss))
        return JobReply(refused=f"{type(error).__name__}: {error}")

    async def _take(self, data: bytes) -> JobReply:
        self.drop()
        work = from_wire(data, FleetWork)
        try:
            for buffer in work.buffers:
                array = await self._session.upload(buffer.values())
                self._buffers.append(array)
        except BaseException:
            self.drop()
            raise
        self._work = work
        return JobReply()

    async def _measure(self, data: bytes) -> JobReply:
        request = from_wire(data, JobRequest)
        work = self._work
        if work is None:
            return JobReply(refused="it has no list")
        candidates, failed = [], {}
        for name in request.names:
            try:
                candidates.append(await self._candidate(work, name))
            except (OutOfMemory, SessionClosed, DeviceLost):
                raise
            except AccyError as error:
                failed[name] = str(error)
        found = None
        if candidates:
            backend = self._session.backend
            found = await measure(backend, candidates, work.measured_as)
        reply = JobFound.of(request.names, found, failed)
        return JobReply(found=reply, lost=self._held_by(reply))

    async def _candidate(self, work: FleetWork, name: str) -> Candidate:
        one = work.candidate(name)
        loaded = self._loaded.get(one.artifact)
        if loaded is None:
            loaded = await self._load(one.artifact)
            self._loaded[one.artifact] = loaded
        request = LaunchRequest(
            artifact=one.artifact,
            loaded=loaded,
            geometry=one.geometry,
            buffers=tuple(
                BufferBinding(handle=array.handle, access=buffer.access)
                for array, buffer in zip(self._buffers, work.buffers, strict=True)
            ),
            scalars=one.scalars,
            diagnostic_id=name,
        )
        return Candidate(name=name, request=request)

    async def _load(self, artifact: KernelArtifact) -> LoadedArtifact:
        backend = self._session.backend
        if not backend.loads_block:
            return backend.load_artifact(artifact)

        def unload(late: LoadedArtifact) -> None:
            destroy_all(backend, (late,), [])

        return await run_abandonable(
            lambda: backend.load_artifact(artifact),
            unload,
            name=f"load {artifact.kernel_name}",
        )

    def _held_by(self, found: JobFound) -> str:
        """Whether a candidate that never ended still has the device."""
        hung = [
            one.name
            for one in found.candidates
            if one.status is CandidateStatus.TIMED_OUT
        ]
        if not hung or not self._session.statistics().held_by_reaper:
            return ""
        return f"candidate {hung[0]!r} did not end: it holds the device"

    def drop(self) -> None:
        """Give back what the list has on the device. Idempotent.

        Raises:
            ExceptionGroup: the device refused.
        """
        self._work = None
        errors: list[Exception] = []
        loaded, self._loaded = list(self._loaded.values()), {}
        buffers, self._buffers = self._buffers, []
        backend = self._session.backend
        destroy_all(backend, loaded, errors)
        destroy_all(backend, [array.handle for array in buffers], errors)
        raise_together("dropping a list of candidates", None, errors)
