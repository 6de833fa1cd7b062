"""Devices whose launches take what a script says, and kernels that really run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accy_async.artifact import ArtifactFormat, FixedLaunch, KernelArtifact
from accy_async.backends import (
    BufferAccess,
    BufferBinding,
    BufferHandle,
    LaunchRequest,
    LoadedArtifact,
)
from accy_async.backends.base import Backend
from accy_async.backends.recording import RecordingBackend
from accy_async.tuning.measuring import Candidate

if TYPE_CHECKING:
    import anyio

    from accy_async.backends.guards import Guard
    from accy_async.backends.hooks import StreamState
    from accy_async.backends.launch import PreparedLaunch

__all__ = [
    "Durations",
    "ScriptedDevice",
    "cancelling_at",
    "candidates",
    "launch_of",
    "noisy",
    "number_of",
    "upload",
]

Durations = Callable[[LaunchRequest], float]


class ScriptedDevice(RecordingBackend):
    """A recording backend whose launches take what a function says.

    Args:
        durations: gives a launch's time in nanoseconds.
        more: as for the recording backend; it has no device graphs unless told so.
    """

    def __init__(self, durations: Durations, **more: Any) -> None:
        more.setdefault("has_graphs", False)
        super().__init__(**more)
        self.durations = durations
        artifact = KernelArtifact(
            kernel_name="scripted",
            format=ArtifactFormat.CUDA_PTX,
            argument_count=2,
            scalar_argument_count=0,
            payload="code",
        )
        self.artifact = artifact
        self.loaded: LoadedArtifact = self.load_artifact(artifact)
        self.source = self.allocate_buffer(64)
        self.target = self.allocate_buffer(64)
        self.before = self.live_objects()

    def _launch(
        self,
        stream: StreamState,
        position: int,
        prepared: PreparedLaunch,
        guard: Guard | None,
    ) -> None:
        self.operation_ns = self.durations(prepared.request)
        super()._launch(stream, position, prepared, guard)

    @property
    def has_planned_failures(self) -> bool:
        """Whether a failure that was asked for is still to come."""
        return bool(self._failures)

    def fail_next_launch(self) -> None:
        """The launch that is about to be submitted fails on the device."""
        self.fail_execution(1)

    def left(self) -> dict[str, int]:
        """Objects that are there beyond those of the beginning."""
        now = self.live_objects()
        return {
            kind: now[kind] - self.before[kind]
            for kind in now
            if now[kind] != (self.before[kind])
        }


def candidates(
    device: ScriptedDevice, count: int, access: str = "write_only"
) -> list[Candidate]:
    """Candidates that differ in their threadgroups: 32, 64, 96 threads, and so on."""
    return [
        Candidate(
            name=f"c{number}",
            request=LaunchRequest(
                artifact=device.artifact,
                loaded=device.loaded,
                geometry=FixedLaunch(
                    grid=(1, 1, 1), threadgroup=(32 * (number + 1), 1, 1)
                ),
                buffers=(
                    BufferBinding(handle=device.target, access=BufferAccess(access)),
                    BufferBinding(handle=device.source, access=BufferAccess.READ_ONLY),
                ),
                diagnostic_id=f"c{number}",
            ),
        )
        for number in range(count)
    ]


def launch_of(
    name: str,
    artifact: KernelArtifact,
    loaded: LoadedArtifact,
    buffers: Sequence[tuple[BufferHandle, str]],
    grid: int,
    scalars: Sequence[Any] = (),
) -> Candidate:
    """A candidate that launches a native kernel of one thread a block."""
    return Candidate(
        name=name,
        request=LaunchRequest(
            artifact=artifact,
            loaded=loaded,
            geometry=FixedLaunch(grid=(grid, 1, 1), threadgroup=(1, 1, 1)),
            buffers=tuple(
                BufferBinding(handle=handle, access=BufferAccess(access))
                for handle, access in buffers
            ),
            scalars=tuple(scalars),
            diagnostic_id=name,
        ),
    )


def upload(backend: Backend, values: np.ndarray) -> BufferHandle:
    """A buffer that holds these values."""
    buffer = backend.allocate_buffer(values.nbytes)
    backend.write_buffer(buffer, np.ascontiguousarray(values))
    return buffer


def number_of(request: LaunchRequest) -> int:
    """Which of `candidates` a launch is of."""
    return request.geometry.threadgroup[0] // 32 - 1


def noisy(times: Sequence[float], seed: int = 1, noise: float = 0.003) -> Durations:
    """Durations around these, by the candidate's number."""
    random = np.random.default_rng(seed)

    def duration(request: LaunchRequest) -> float:
        return times[number_of(request)] * float(np.exp(random.normal(0.0, noise)))

    return duration


def cancelling_at(
    place: int, scope: anyio.CancelScope, kind: str = "wait_stream"
) -> Callable[[object], None]:
    """Cancels as the wait of that kind begins that comes after so many others."""
    waits = 0

    def on_call(call: object) -> None:
        nonlocal waits
        if str(call).startswith(kind):
            if waits == place:
                scope.cancel()
            waits += 1

    return on_call
