"""The device behind the recording backend: it completes work, and does none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import attrs

from accy_async.artifact.formats import (
    ArtifactFormat,
    BackendKind,
    artifact_format,
    backend_kind,
)
from accy_async.artifact.requirements import DeviceFeatures
from accy_async.backends.base import DEFAULT_GRACE_S, Backend
from accy_async.backends.capabilities import Capabilities, DeviceIdentity
from accy_async.backends.contract.checks import (
    check_grace,
    check_memory_limit,
    check_number,
)
from accy_async.backends.handles import (
    StreamHandle,
)
from accy_async.backends.hooks import StreamState
from accy_async.backends.timeline import Timeline
from accy_async.errors import (
    DeviceError,
    InvalidValue,
)

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard

from accy_async.backends.recording.records import (
    CallRecord,
    LaunchRecord,
    RecordedOperation,
    RecordingStream,
    SyncScope,
)

__all__ = ["STOPPED", "ExecutionFailure", "PlannedFailure", "RecordingCore"]

STOPPED = object()
"""What an operation gives that never ends, as the device has stopped."""


class RecordingCore(Backend):
    """The state of a recording backend, and the streams that pretend to run."""

    def __init__(
        self,
        kind: BackendKind | str = BackendKind.CUDA,
        format: ArtifactFormat | str | None = None,
        *,
        fail_load_after_count: int | None = None,
        fail_buffer_allocate_after_count: int | None = None,
        memory_limit_bytes: int | None = None,
        operation_ns: float = 1000.0,
        is_holding: bool = False,
        grace_s: float = DEFAULT_GRACE_S,
        keeps_records: bool = True,
        index: int = 0,
        has_graphs: bool = True,
        has_peer_access: bool = True,
        can_wait_for_peers: bool = True,
    ) -> None:
        kind = backend_kind(kind)
        if not isinstance(kind, BackendKind):
            raise InvalidValue("RecordingBackend.kind", kind, "a BackendKind")
        chosen = kind.default_format if format is None else artifact_format(format)
        if not isinstance(chosen, ArtifactFormat):
            raise InvalidValue("RecordingBackend.format", format, "an ArtifactFormat")
        self.format = chosen
        for field, count in (
            ("fail_load_after_count", fail_load_after_count),
            ("fail_buffer_allocate_after_count", fail_buffer_allocate_after_count),
        ):
            if count is not None:
                name, expected = (
                    f"RecordingBackend.{field}",
                    "an integer from 0, or None",
                )
                check_number(name, count, expected, (int,))
        check_number("RecordingBackend.operation_ns", operation_ns, "a number from 0")
        self.fail_load_after_count = fail_load_after_count
        self.fail_buffer_allocate_after_count = fail_buffer_allocate_after_count
        check_grace("RecordingBackend", grace_s)
        check_memory_limit("RecordingBackend", memory_limit_bytes)
        self.memory_limit_bytes = memory_limit_bytes
        self.operation_ns = operation_ns
        self.create_count = self.load_count = self.launch_count = 0
        self.destroy_count = self.buffer_allocate_count = self.sync_count = 0
        self.write_count = self.read_count = 0
        self.copy_count = self.fill_count = 0
        self.peer_copy_count = self.stage_count = 0
        self.has_peer_access = has_peer_access
        self.can_wait_for_peers = can_wait_for_peers
        self.destroyed_ids: list[int] = []
        self.allocated_buffer_ids: list[int] = []
        self.allocated_buffer_byte_sizes: list[int] = []
        self.last_sync_scope: SyncScope | None = None
        self.last_sync_stream: StreamHandle | None = None
        self.launches: list[LaunchRecord] = []
        self.calls: list[CallRecord] = []
        self.on_call: Callable[[CallRecord], None] | None = None
        self.exchanges: list[tuple[str, int, int | None]] = []
        self.exchanges_streams = kind is BackendKind.CUDA
        self._numbers = 0
        self._keeps_records = keeps_records
        self._holds_new_streams = is_holding
        self._bytes_in_use = 0
        self._failures: list[PlannedFailure] = []
        self._execution_failures: dict[int, ExecutionFailure] = {}
        # What has stopped the device without anybody having been told yet.
        self._fault: DeviceError | None = None
        self._keeps_journals = False  # until somebody may want to look into one
        self._streams: list[RecordingStream] = []
        self._pending_count = 0
        # Backends whose streams waited for what has completed here.
        self._woken: deque[RecordingCore] = deque()
        self._capabilities = _capabilities(
            kind, chosen, has_graphs=has_graphs, index=index
        )
        super().__init__(kind, grace_s=grace_s)

    @property
    def capabilities(self) -> Capabilities:
        """What the pretended device is and can do."""
        return self._capabilities

    @property
    def default_format(self) -> ArtifactFormat:
        """The one format it loads."""
        return self.format

    @property
    def last_destroyed_id(self) -> int | None:
        """The id of the object freed last, or None."""
        return self.destroyed_ids[-1] if self.destroyed_ids else None

    def find_fault(self, call: str = "query") -> None:
        """Ask the device whether it is well, as a driver is asked now and then.

        Args:
            call: what asks, for the message.
        """
        if self._fault is not None and self._lost is None:
            fault = self._fault
            self._lose(
                DeviceError(f"{call}: {fault.message}", code=fault.code, call=call)
            )

    def _check(self, call: str) -> None:
        self.find_fault(call)
        super()._check(call)

    def _handle_of(self, stream: StreamState) -> StreamHandle | None:
        number = (
            cast("RecordingStream", stream).alias if stream.id is None else stream.id
        )
        if number is None:
            return None
        return StreamHandle(
            id=number,
            backend=self.kind,
            priority=stream.priority,
            origin=self._origin,
        )

    def _recording_stream(self, stream: StreamHandle | None) -> RecordingStream:
        """A stream to hold or let go on: a destroyed one, too, while it has work."""
        if stream is not None:
            for one in self._streams:
                if stream.id in (one.id, one.alias):
                    return one
        return cast("RecordingStream", self._stream(stream))

    def _submit(
        self,
        stream: StreamState,
        position: int,
        run: Callable[[], object] | None = None,
        waits_for: tuple[Timeline, int] | None = None,
        takes_ns: float = 0.0,
        guard: Guard | None = None,
    ) -> None:
        """Run an operation at once if nothing holds it back; else keep it."""
        on: RecordingStream = stream  # type: ignore[assignment]
        if self._keeps_journals:
            on.journal.note(position, None)
        is_plain = run is None and guard is None
        if waits_for is None:
            is_ready = True
        else:
            is_ready = waits_for[0].completed >= waits_for[1]
            is_plain = is_plain and not waits_for[0].has_failed
        if is_ready and not (on.pending or on.is_held or self._fault):
            if is_plain:
                on.time_ns += takes_ns
                on.timeline.complete(position)
            else:
                _run(on, position, run, waits_for, takes_ns, guard)
        else:
            operation = RecordedOperation(position, run, waits_for, takes_ns, guard)
            on.pending.append(operation)
            self._pending_count += 1

    def _pump(self) -> None:
        """Let every stream run as far as holds and event waits allow.

        Then those of other devices that waited for that, and so on; no lock is held.
        """
        self._run_all()
        todo: deque[RecordingCore] = deque()
        while True:
            while self._woken:
                todo.append(self._woken.popleft())
            if not todo:
                return
            other = todo.popleft()
            if other._pending_count:  # noqa: SLF001 - this very class
                other._run_all()  # noqa: SLF001
            if other is not self:
                todo.extend(other._woken)  # noqa: SLF001
                other._woken.clear()  # noqa: SLF001

    def _pump_with(self, peer: Backend) -> None:
        """Let both devices go on."""
        if isinstance(peer, RecordingCore):
            self._woken.append(peer)
        self._pump()

    def _run_all(self) -> None:
        # What is pending waits for a hold, or for another stream.
        has_progress = self._pending_count > 0
        while has_progress:
            has_progress = False
            for stream in list(self._streams):
                while self._run_next(stream):
                    has_progress = True
        self._table.sweep()

    def _run_next(self, stream: RecordingStream) -> bool:
        with self._lock:
            if not stream.pending or (stream.is_held and stream.steps == 0):
                return False
            if self._fault is not None:
                return False
            awaited = stream.pending[0].waits_for
            if awaited is not None and awaited[0].completed < awaited[1]:
                return False
            one = stream.pending.popleft()
            self._pending_count -= 1
            if stream.steps:
                stream.steps -= 1
            _run(stream, one.position, one.run, one.waits_for, one.takes_ns, one.guard)
        return True


@attrs.frozen
class ExecutionFailure:
    """A launch that is to fail: with what, whether the device goes, and says so."""

    error: DeviceError
    is_sticky: bool
    is_silent: bool


@attrs.define
class PlannedFailure:
    """A call that is to fail: its kind, how many to go, and with what."""

    kind: str
    countdown: int
    error: BaseException


def _run(
    stream: RecordingStream,
    position: int,
    run: Callable[[], object] | None,
    waited_for: tuple[Timeline, int] | None,
    takes_ns: float,
    guard: Guard | None,
) -> None:
    """Do one operation, which is its stream's next."""
    timeline = stream.timeline
    stream.time_ns += takes_ns
    if waited_for is not None and waited_for[0].has_failed:
        cause = waited_for[0].error_at(waited_for[1])
        if cause is not None:
            timeline.fail(position, _consequence(cause))
    is_blocked = guard is not None and guard.blocks()
    is_skipped = timeline.has_failed and timeline.error_at(position) is not None
    if not is_blocked and not is_skipped:
        ended = None if run is None else run()
        if ended is STOPPED:
            return
        has_failed = ended is True
        if guard is not None and not has_failed:
            guard.ended()
    timeline.complete(position)


def _consequence(cause: DeviceError) -> DeviceError:
    error = cause.copy()
    error.is_consequence = True
    error.__cause__ = cause
    return error


def _capabilities(
    kind: BackendKind, format: ArtifactFormat, *, has_graphs: bool, index: int
) -> Capabilities:
    is_cuda = kind is BackendKind.CUDA
    return Capabilities(
        identity=DeviceIdentity(
            backend=kind,
            name=f"recording ({kind})",
            vendor="accy_async",
            architecture="recording",
            index=index,
        ),
        formats=frozenset({format}),
        features=DeviceFeatures(clusters=is_cuda, cooperative_launch=is_cuda),
        priorities=(2, -2),
        max_shared_memory_bytes=227 << 10,
        max_streams=32,
        timing_resolution_ns=1.0,
        device_graphs=has_graphs,
        device_loops=has_graphs,
    )
