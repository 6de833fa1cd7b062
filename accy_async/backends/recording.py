"""The recording backend: executes nothing, records everything, fails on request.

It is the reference fake of the Backend contract. Operations complete as soon as
they are submitted, unless their stream is held back; reads give zeros; device
time is simulated. Ids count up from 1, over buffers, artifacts, streams and
events alike.

What a test can ask of it:

* `fail` makes the n-th call of a kind raise, before the call has any effect
  (`destroy` has its effect first: a driver's refusal frees nothing later).
* `fail_execution` makes the n-th launch fail on the device, for its waits to
  report; with ``sticky=True`` it takes the device with it.
* `hold` and `release` keep a stream's work from completing; `step` lets one
  operation through.
* `on_call` is told of every call, to cancel or interrupt at a chosen one.

Handles that it never gave out are taken on trust in launches, so that tests can
invent operands; handles that it gave out and destroyed are refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, cast

import attrs

from accy_async.artifact.formats import (
    ArtifactFormat,
    BackendKind,
    artifact_format,
    backend_kind,
)
from accy_async.artifact.geometry import Dim3
from accy_async.backends.base import DEFAULT_GRACE_S, Backend
from accy_async.backends.capabilities import Capabilities, DeviceIdentity
from accy_async.backends.handles import (
    BufferAccess,
    BufferHandle,
    EventHandle,
    Handle,
    LoadedArtifact,
    ObjectKind,
    StreamHandle,
)
from accy_async.backends.hooks import EventState, StreamState
from accy_async.backends.lifetimes import Resource, Timeline
from accy_async.dtypes import ScalarArgument
from accy_async.errors import (
    AccyError,
    DeviceError,
    InvalidValue,
    OutOfMemory,
    RuntimeUnavailable,
)

if TYPE_CHECKING:
    from accy_async.artifact.kernel import ArtifactRequest, KernelArtifact
    from accy_async.backends.contract.steps import LaunchStep
    from accy_async.backends.guards import Guard
    from accy_async.backends.hostmemory import HostMemory
    from accy_async.backends.launch import LaunchRequest, PreparedLaunch

__all__ = ["CALL_KINDS", "CallRecord", "LaunchRecord", "RecordingBackend", "SyncScope"]

CALL_KINDS = (
    "create_artifact",
    "load_artifact",
    "allocate_buffer",
    "write_buffer",
    "read_buffer",
    "copy_buffer",
    "fill_buffer",
    "create_stream",
    "create_event",
    "record_event",
    "stream_wait_event",
    "launch",
    "destroy",
    "wait_stream",
    "wait_event",
    "wait_default_stream",
    "wait_buffer",
    "wait_device",
)
"""The calls that are recorded, and that `RecordingBackend.fail` can make fail."""


class SyncScope(str, Enum):
    """What a wait waited for."""

    STREAM = "stream"
    EVENT = "event"
    BUFFER = "buffer"
    DEFAULT_STREAM = "default_stream"
    DEVICE = "device"

    def __str__(self) -> str:
        return self.value


@attrs.frozen
class CallRecord:
    """One call: its kind, and the id of the object it was about, if any."""

    kind: str
    object_id: int | None = None

    def __str__(self) -> str:
        return self.kind if self.object_id is None else f"{self.kind}({self.object_id})"


@attrs.frozen(kw_only=True)
class LaunchRecord:
    """One launch, as it was submitted."""

    kernel_name: str
    grid: Dim3
    threadgroup: Dim3
    dynamic_shared_memory_bytes: int
    buffer_ids: tuple[int, ...]
    buffer_access: tuple[BufferAccess, ...]
    scalars: tuple[ScalarArgument, ...]
    loaded_id: int
    stream: StreamHandle | None
    diagnostic_id: str | None


class _Operation:
    """Something submitted and not yet completed."""

    __slots__ = ("guard", "position", "run", "takes_ns", "waits_for")

    def __init__(
        self,
        position: int,
        run: Callable[[], bool | None] | None = None,
        waits_for: tuple[Timeline, int] | None = None,
        takes_ns: float = 0.0,
        guard: Guard | None = None,
    ) -> None:
        self.position = position
        self.run = run
        self.waits_for = waits_for
        self.takes_ns = takes_ns
        self.guard = guard


class _RecordingStream(StreamState):
    def __init__(self, timeline: Timeline, priority: int) -> None:
        super().__init__(timeline, priority)
        self.pending: deque[_Operation] = deque()
        self.is_held = False
        self.steps = 0
        self.time_ns = 0.0


@attrs.define
class _Failure:
    kind: str
    countdown: int
    error: BaseException


class RecordingBackend(Backend):
    """A device that only remembers. See the module.

    Args:
        kind: the kind of device it pretends to be.
        format: the one artifact format it loads.
        fail_load_after_count: loads that succeed before all others fail with
            `RuntimeUnavailable`; None for no failure.
        fail_buffer_allocate_after_count: allocations that succeed before all
            others fail with `OutOfMemory`; None for no failure.
        memory_limit_bytes: what buffers may take together; None for no limit.
        operation_ns: how long each launch takes in simulated time.
        is_holding: True to begin with every stream held back.
        grace_s: how long cleanup waits for the device.
        keeps_records: False to count without keeping `launches` and `calls`.

    Attributes:
        create_count, load_count, launch_count, destroy_count,
        buffer_allocate_count, write_count, read_count, copy_count, fill_count,
        sync_count: calls that
            succeeded; ``destroy_count`` counts objects freed.
        destroyed_ids: ids of freed objects, in order.
        allocated_buffer_ids, allocated_buffer_byte_sizes: of every buffer.
        last_sync_scope, last_sync_stream: of the last wait begun.
        launches: every launch submitted, in order.
        calls: every call made, failed ones included, in order.
        on_call: called with each `CallRecord` before the call has effect.
    """

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
    ) -> None:
        kind = backend_kind(kind)
        if not isinstance(kind, BackendKind):
            raise InvalidValue("RecordingBackend.kind", kind, "a BackendKind")
        chosen = kind.default_format if format is None else artifact_format(format)
        if not isinstance(chosen, ArtifactFormat):
            raise InvalidValue("RecordingBackend.format", format, "an ArtifactFormat")
        self.format = chosen
        self.fail_load_after_count = fail_load_after_count
        self.fail_buffer_allocate_after_count = fail_buffer_allocate_after_count
        self.memory_limit_bytes = memory_limit_bytes
        self.operation_ns = operation_ns
        self.create_count = self.load_count = self.launch_count = 0
        self.destroy_count = self.buffer_allocate_count = self.sync_count = 0
        self.write_count = self.read_count = 0
        self.copy_count = self.fill_count = 0
        self.destroyed_ids: list[int] = []
        self.allocated_buffer_ids: list[int] = []
        self.allocated_buffer_byte_sizes: list[int] = []
        self.last_sync_scope: SyncScope | None = None
        self.last_sync_stream: StreamHandle | None = None
        self.launches: list[LaunchRecord] = []
        self.calls: list[CallRecord] = []
        self.on_call: Callable[[CallRecord], None] | None = None
        self._keeps_records = keeps_records
        self._holds_new_streams = is_holding
        self._bytes_in_use = 0
        self._failures: list[_Failure] = []
        self._execution_failures: dict[int, tuple[DeviceError, bool]] = {}
        self._streams: list[_RecordingStream] = []
        self._pending_count = 0
        self._capabilities = _capabilities(kind, chosen)
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

    # What a test can ask

    def fail(
        self, kind: str = "*", nth: int = 1, error: BaseException | None = None
    ) -> None:
        """Make the ``nth`` call of a kind from now raise, once.

        Args:
            kind: one of `CALL_KINDS`, or ``*`` for any call.
            nth: which one, counting from 1.
            error: what to raise; a kind's usual error if left out.
        """
        if kind != "*" and kind not in CALL_KINDS:
            raise InvalidValue(
                "RecordingBackend.fail.kind", kind, f"one of {CALL_KINDS}"
            )
        if nth < 1:
            raise InvalidValue("RecordingBackend.fail.nth", nth, "1 or more")
        self._failures.append(_Failure(kind, nth, error or _usual_error(kind)))

    def fail_execution(
        self,
        nth_launch: int = 1,
        *,
        code: int = 700,
        message: str = "the kernel failed on the device",
        sticky: bool = False,
    ) -> None:
        """Make the ``nth_launch`` from now fail on the device.

        Its waits raise a `DeviceError` naming kernel, node and stream. With
        ``sticky`` the whole device is lost at that moment, as when a CUDA
        context dies of an illegal access.
        """
        error = DeviceError(message, code=code)
        self._execution_failures[self.launch_count + nth_launch] = (error, sticky)

    def hold(self, stream: StreamHandle | None = None) -> None:
        """Keep what is submitted to a stream (None: the default) from completing."""
        self._recording_stream(stream).is_held = True

    def hold_all(self) -> None:
        """Hold every stream, and every one opened from now on."""
        self._holds_new_streams = True
        for stream in self._streams:
            stream.is_held = True

    def step(self, stream: StreamHandle | None = None, count: int = 1) -> None:
        """Let so many operations of a held stream complete."""
        self._recording_stream(stream).steps += count
        self._pump()

    def ready_streams(self) -> list[StreamHandle | None]:
        """The held streams that have something to complete, waiting for no event.

        In the order they were opened, the default stream (None) first; those
        destroyed with work left are among them.
        """
        found: list[StreamHandle | None] = []
        for stream in self._streams:
            if stream.is_held and stream.pending:
                awaited = stream.pending[0].waits_for
                if awaited is None or awaited[0].completed >= awaited[1]:
                    found.append(self._handle_of(stream))
        return found

    def release(self, stream: StreamHandle | None = None) -> None:
        """Let a held stream go on."""
        self._recording_stream(stream).is_held = False
        self._pump()

    def release_all(self) -> None:
        """Let every stream go on, destroyed ones included."""
        self._holds_new_streams = False
        for stream in self._streams:
            stream.is_held = False
        self._pump()

    def lose_device(self, message: str = "the device fell off the bus") -> None:
        """Lose the device now: waits end, and every later call fails."""
        self._lose(DeviceError(message, code=46, call="lose_device"))

    @property
    def call_log(self) -> list[str]:
        """The calls as short texts, e.g. ``launch(3)``."""
        return [str(call) for call in self.calls]

    # The contract, with every call noted first

    def create_artifact(self, request: ArtifactRequest) -> KernelArtifact:
        """Record the call; see `Backend.create_artifact`."""
        self._note("create_artifact")
        artifact = super().create_artifact(request)
        self.create_count += 1
        return artifact

    def load_artifact(self, artifact: KernelArtifact) -> LoadedArtifact:
        """Record the call; see `Backend.load_artifact`."""
        self._note("load_artifact")
        limit = self.fail_load_after_count
        if limit is not None and self.load_count >= limit:
            raise _usual_error("load_artifact")
        loaded = super().load_artifact(artifact)
        self.load_count += 1
        return loaded

    def allocate_buffer(self, byte_size: int, *, alignment: int = 256) -> BufferHandle:
        """Record the call; see `Backend.allocate_buffer`."""
        self._note("allocate_buffer")
        buffer = super().allocate_buffer(byte_size, alignment=alignment)
        self.buffer_allocate_count += 1
        self.allocated_buffer_ids.append(buffer.id)
        self.allocated_buffer_byte_sizes.append(byte_size)
        return buffer

    def write_buffer(
        self,
        buffer: BufferHandle,
        data: object,
        *,
        offset_bytes: int = 0,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Record the call; see `Backend.write_buffer`."""
        self._note("write_buffer", buffer)
        position = super().write_buffer(
            buffer, data, offset_bytes=offset_bytes, stream=stream, guard=guard
        )
        if self._pending_count:
            self._pump()
        return position

    def read_buffer(
        self,
        buffer: BufferHandle,
        out: object,
        *,
        byte_size: int | None = None,
        offset_bytes: int = 0,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Record the call; see `Backend.read_buffer`. It reads zeros."""
        self._note("read_buffer", buffer)
        position = super().read_buffer(
            buffer,
            out,
            byte_size=byte_size,
            offset_bytes=offset_bytes,
            stream=stream,
            guard=guard,
        )
        if self._pending_count:
            self._pump()
        return position

    def copy_buffer(
        self,
        source: BufferHandle,
        target: BufferHandle,
        *,
        byte_size: int | None = None,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Record the call; see `Backend.copy_buffer`."""
        self._note("copy_buffer", source)
        position = super().copy_buffer(
            source, target, byte_size=byte_size, stream=stream, guard=guard
        )
        if self._pending_count:
            self._pump()
        return position

    def fill_buffer(
        self,
        buffer: BufferHandle,
        pattern: bytes,
        *,
        byte_size: int | None = None,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Record the call; see `Backend.fill_buffer`."""
        self._note("fill_buffer", buffer)
        position = super().fill_buffer(
            buffer, pattern, byte_size=byte_size, stream=stream, guard=guard
        )
        if self._pending_count:
            self._pump()
        return position

    def create_stream(self, *, priority: int = 0) -> StreamHandle:
        """Record the call; see `Backend.create_stream`."""
        self._note("create_stream")
        return super().create_stream(priority=priority)

    def create_event(self, *, timing: bool = False) -> EventHandle:
        """Record the call; see `Backend.create_event`."""
        self._note("create_event")
        return super().create_event(timing=timing)

    def record_event(
        self, event: EventHandle, stream: StreamHandle | None = None
    ) -> int:
        """Record the call; see `Backend.record_event`."""
        self._note("record_event", event)
        position = super().record_event(event, stream)
        if self._pending_count:
            self._pump()
        return position

    def stream_wait_event(self, stream: StreamHandle | None, event: EventHandle) -> int:
        """Record the call; see `Backend.stream_wait_event`."""
        self._note("stream_wait_event", event)
        position = super().stream_wait_event(stream, event)
        if self._pending_count:
            self._pump()
        return position

    def submit_launch(
        self,
        prepared: PreparedLaunch,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Record the call as ``launch``; see `Backend.submit_launch`."""
        self._note("launch", prepared.loaded)
        position = super().submit_launch(prepared, stream, guard)
        if self._pending_count:
            self._pump()
        return position

    def submit_steps(self, steps: Sequence[LaunchStep], positions: list[int]) -> None:
        """See `Backend.submit_steps`; takes none while anybody looks at each call."""
        if self._is_watched:
            return
        super().submit_steps(steps, positions)
        if self._pending_count:
            self._pump()

    def destroy(self, handle: Handle) -> bool:
        """Record the call; see `Backend.destroy`. A failure frees all the same."""
        failure = self._take_failure("destroy", handle)
        is_freed = super().destroy(handle)
        if failure is not None:
            raise failure
        return is_freed

    async def wait_stream(self, stream: StreamHandle) -> None:
        """Record the call; see `Backend.wait_stream`."""
        self._note_wait("wait_stream", SyncScope.STREAM, stream)
        await super().wait_stream(stream)

    async def wait_event(self, event: EventHandle) -> None:
        """Record the call; see `Backend.wait_event`."""
        self._note_wait("wait_event", SyncScope.EVENT, event)
        await super().wait_event(event)

    async def wait_default_stream(self) -> None:
        """Record the call; see `Backend.wait_default_stream`."""
        self._note_wait("wait_default_stream", SyncScope.DEFAULT_STREAM)
        await super().wait_default_stream()

    async def wait_buffer(self, buffer: BufferHandle) -> None:
        """Record the call; see `Backend.wait_buffer`."""
        self._note_wait("wait_buffer", SyncScope.BUFFER, buffer)
        await super().wait_buffer(buffer)

    async def wait_device(self) -> None:
        """Record the call; see `Backend.wait_device`."""
        self._note_wait("wait_device", SyncScope.DEVICE)
        await super().wait_device()

    async def wait_open_streams(self) -> None:
        """Record the call as ``wait_device``; see `Backend.wait_open_streams`."""
        self._note_wait("wait_device", SyncScope.DEVICE)
        await super().wait_open_streams()

    # Hooks

    def _load(self, artifact: KernelArtifact) -> object:
        return artifact

    def _allocate(self, byte_size: int, alignment: int) -> object:
        del alignment
        limit = self.fail_buffer_allocate_after_count
        if limit is not None and self.buffer_allocate_count >= limit:
            raise OutOfMemory(
                f"{byte_size} bytes: allocation {self.buffer_allocate_count + 1} was "
                "told to fail",
                requested_bytes=byte_size,
            )
        capacity = self.memory_limit_bytes
        if capacity is not None and self._bytes_in_use + byte_size > capacity:
            raise OutOfMemory(
                f"{byte_size} bytes asked for, {self._bytes_in_use} of {capacity} "
                "in use",
                requested_bytes=byte_size,
            )
        self._bytes_in_use += byte_size
        return byte_size

    def _write(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        data: HostMemory,
        guard: Guard | None,
    ) -> None:
        del buffer, offset_bytes, data
        self.write_count += 1
        self._submit(stream, position, guard=guard)

    def _read(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        out: HostMemory,
        guard: Guard | None,
    ) -> None:
        del buffer, offset_bytes
        self.read_count += 1
        self._submit(stream, position, run=lambda: out.array.fill(0), guard=guard)

    def _copy(
        self,
        stream: StreamState,
        position: int,
        source: Resource,
        target: Resource,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        del source, target, byte_size
        self.copy_count += 1
        self._submit(stream, position, guard=guard)

    def _fill(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        pattern: bytes,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        del buffer, pattern, byte_size
        self.fill_count += 1
        self._submit(stream, position, guard=guard)

    def _prepare(
        self,
        request: LaunchRequest,
        artifact: Resource | None,
        buffers: list[Resource | None],
    ) -> object:
        """Take every launch: a kernel that is not run can take anything."""
        del request, artifact, buffers
        return None

    def _launch(
        self,
        stream: StreamState,
        position: int,
        prepared: PreparedLaunch,
        guard: Guard | None,
    ) -> None:
        self.launch_count += 1
        if self._keeps_records:
            self.launches.append(self._launch_record(prepared.request, stream))
        run = None
        if self._execution_failures:
            failure = self._execution_failures.pop(self.launch_count, None)
            if failure is not None:
                run = self._failing(failure, stream, position, prepared.request, guard)
        self._submit(stream, position, run, None, self.operation_ns, guard)

    def _launch_record(
        self, request: LaunchRequest, stream: StreamState
    ) -> LaunchRecord:
        return LaunchRecord(
            kernel_name=request.artifact.kernel_name,
            grid=request.geometry.grid,
            threadgroup=request.geometry.threadgroup,
            dynamic_shared_memory_bytes=request.geometry.dynamic_shared_memory_bytes,
            buffer_ids=tuple(binding.handle.id for binding in request.buffers),
            buffer_access=tuple(binding.access for binding in request.buffers),
            scalars=request.scalars,
            loaded_id=request.loaded.id,
            stream=self._handle_of(stream),
            diagnostic_id=request.diagnostic_id,
        )

    def _failing(
        self,
        failure: tuple[DeviceError, bool],
        stream: StreamState,
        position: int,
        request: LaunchRequest,
        guard: Guard | None,
    ) -> Callable[[], bool]:
        told, is_sticky = failure
        error = DeviceError(
            told.message,
            code=told.code,
            call="launch",
            node=request.diagnostic_id,
            kernel=request.artifact.kernel_name,
            stream=stream.id,
        )

        def run() -> bool:
            if is_sticky:
                self._lose(error)
            elif guard is not None:
                guard.failed(error)
            else:
                stream.timeline.fail(position, error)
            return True  # it failed

        return run

    def _open_stream(self, priority: int, name: str) -> StreamState:
        stream = _RecordingStream(Timeline(name), priority)
        stream.is_held = self._holds_new_streams
        self._streams.append(stream)
        return stream

    def _open_event(self, *, has_timing: bool) -> EventState:
        return EventState(has_timing=has_timing)

    def _record(self, stream: StreamState, position: int, event: EventState) -> None:
        if not event.has_timing:
            self._submit(stream, position)
            return
        mark = event.mark
        recording = cast("_RecordingStream", stream)

        def run() -> None:
            if event.mark == mark:
                event.time_ns = recording.time_ns

        self._submit(stream, position, run)

    def _stream_wait(
        self, stream: StreamState, position: int, event: EventState
    ) -> None:
        self._submit(stream, position, waits_for=event.mark)

    def _free(self, resource: Resource) -> None:
        self.destroy_count += 1
        self.destroyed_ids.append(resource.handle.id)
        if resource.kind is ObjectKind.STREAM:
            self._streams.remove(cast("_RecordingStream", resource.payload))
        if isinstance(resource.handle, BufferHandle):
            self._bytes_in_use -= resource.handle.byte_size

    def _find_for_launch(self, handle: Handle) -> Resource | None:
        if handle.backend is self.kind and handle.id >= self._table.next_id:
            return None
        return self._table.get(handle)

    # Within

    def _handle_of(self, stream: StreamState) -> StreamHandle | None:
        if stream.id is None:
            return None
        return StreamHandle(id=stream.id, backend=self.kind, priority=stream.priority)

    def _recording_stream(self, stream: StreamHandle | None) -> _RecordingStream:
        """A stream to hold or let go on: a destroyed one, too, while it has work."""
        if stream is not None:
            for one in self._streams:
                if one.id == stream.id:
                    return one
        return cast("_RecordingStream", self._stream(stream))

    def _submit(
        self,
        stream: StreamState,
        position: int,
        run: Callable[[], bool | None] | None = None,
        waits_for: tuple[Timeline, int] | None = None,
        takes_ns: float = 0.0,
        guard: Guard | None = None,
    ) -> None:
        """Run an operation at once if nothing holds it back; else keep it."""
        on: _RecordingStream = stream  # type: ignore[assignment]
        is_plain = run is None and guard is None
        if waits_for is None:
            is_ready = True
        else:
            is_ready = waits_for[0].completed >= waits_for[1]
            is_plain = is_plain and not waits_for[0].has_failed
        if is_ready and not on.pending and not on.is_held:
            if is_plain:
                on.time_ns += takes_ns
                on.timeline.complete(position)
            else:
                _run(on, position, run, waits_for, takes_ns, guard)
        else:
            operation = _Operation(position, run, waits_for, takes_ns, guard)
            on.pending.append(operation)
            self._pending_count += 1

    def _pump(self) -> None:
        """Let every stream run as far as holds and event waits allow."""
        # What is pending waits for a hold, or for another stream.
        has_progress = self._pending_count > 0
        while has_progress:
            has_progress = False
            for stream in list(self._streams):
                while self._run_next(stream):
                    has_progress = True
        self._table.sweep()

    def _run_next(self, stream: _RecordingStream) -> bool:
        with self._lock:
            if not stream.pending or (stream.is_held and stream.steps == 0):
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

    def _note(self, kind: str, handle: Handle | None = None) -> None:
        if self._is_watched:
            failure = self._take_failure(kind, handle)
            if failure is not None:
                raise failure

    @property
    def _is_watched(self) -> bool:
        return bool(self._keeps_records or self._failures or self.on_call is not None)

    def _note_wait(
        self, kind: str, scope: SyncScope, handle: Handle | None = None
    ) -> None:
        self.last_sync_scope = scope
        self.last_sync_stream = handle if isinstance(handle, StreamHandle) else None
        self.sync_count += 1
        self._note(kind, handle)

    def _take_failure(self, kind: str, handle: Handle | None) -> BaseException | None:
        if self._keeps_records or self.on_call is not None:
            record = CallRecord(kind, None if handle is None else handle.id)
            if self._keeps_records:
                self.calls.append(record)
            if self.on_call is not None:
                self.on_call(record)
        if not self._failures:
            return None
        matching = [one for one in self._failures if one.kind in ("*", kind)]
        for failure in matching:
            failure.countdown -= 1
        due = [one for one in matching if one.countdown <= 0]
        if not due:
            return None
        self._failures.remove(due[0])
        if due[0].kind == "*" and isinstance(due[0].error, _AnyError):
            return _usual_error(kind)
        return due[0].error


def _run(
    stream: _RecordingStream,
    position: int,
    run: Callable[[], bool | None] | None,
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
        has_failed = run is not None and run() is True
        if guard is not None and not has_failed:
            guard.ended()
    timeline.complete(position)


class _AnyError(AccyError):
    """Stands for the usual error of whichever call it hits."""


def _usual_error(kind: str) -> AccyError:
    if kind == "*":
        return _AnyError("the usual error")
    if kind == "load_artifact":
        return RuntimeUnavailable("load_artifact: told to fail")
    if kind == "allocate_buffer":
        return OutOfMemory("allocate_buffer: told to fail")
    return DeviceError(f"{kind}: told to fail", call=kind, code=999)


def _consequence(cause: DeviceError) -> DeviceError:
    error = cause.copy()
    error.is_consequence = True
    error.__cause__ = cause
    return error


def _capabilities(kind: BackendKind, format: ArtifactFormat) -> Capabilities:
    return Capabilities(
        identity=DeviceIdentity(
            backend=kind,
            name=f"recording ({kind})",
            vendor="accy_async",
            architecture="recording",
        ),
        formats=frozenset({format}),
        priorities=(2, -2),
        max_shared_memory_bytes=227 << 10,
        max_streams=32,
        timing_resolution_ns=1.0,
    )
