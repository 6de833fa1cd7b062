"""The hooks of the recording backend: every operation is noted and completes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from accy_async.artifact.formats import BackendKind
from accy_async.backends.handles import (
    BufferHandle,
    Handle,
    ObjectKind,
)
from accy_async.backends.hooks import EventState, StreamState
from accy_async.backends.resources import Resource
from accy_async.backends.timeline import Timeline
from accy_async.errors import (
    DeviceError,
    OutOfMemory,
)
from accy_async.interop.dlpack import CUDA

if TYPE_CHECKING:
    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.backends.guards import Guard
    from accy_async.backends.hostmemory import HostMemory
    from accy_async.backends.launch import LaunchRequest, PreparedLaunch

from accy_async.backends.recording.device import (
    STOPPED,
    ExecutionFailure,
    RecordingCore,
)
from accy_async.backends.recording.records import (
    BorrowedMemory,
    LaunchRecord,
    RecordingStream,
)

__all__ = ["RecordingHooks"]

_FIRST_ADDRESS = 0x7F00 << 32
_FIRST_STREAM = 0x5000
_FIRST_ALIAS = 1 << 62
"""From here on tests number the streams that have no id: the exchange streams."""


class RecordingHooks(RecordingCore):
    """What each operation comes to where nothing is executed."""

    def _load(self, artifact: KernelArtifact) -> object:
        return artifact

    def _memory_statistics(self) -> dict[str, int]:
        used, limit = self._bytes_in_use, self.memory_limit_bytes
        memory_bytes = self.capabilities.identity.memory_bytes
        return {
            "used_bytes": used,
            "reserved_bytes": used,
            "limit_bytes": memory_bytes if limit is None else limit,
        }

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
        if self._keeps_journals:
            stream.journal.note(position, prepared.label)  # type: ignore[union-attr]

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
            cluster=request.geometry.cluster,
            cooperative=request.geometry.cooperative,
        )

    def _failing(
        self,
        failure: ExecutionFailure,
        stream: StreamState,
        position: int,
        request: LaunchRequest,
        guard: Guard | None,
    ) -> Callable[[], object]:
        told = failure.error
        error = DeviceError(
            told.message,
            code=told.code,
            call="launch",
            node=request.diagnostic_id,
            kernel=request.artifact.kernel_name,
            stream=stream.id,
        )

        def run() -> object:
            if failure.is_silent:
                self._fault = error
                return STOPPED
            if failure.is_sticky:
                self._lose(error)
            elif guard is not None:
                guard.failed(error)
            else:
                stream.timeline.fail(position, error)
            return True  # it failed

        return run

    def _open_stream(self, priority: int, name: str) -> StreamState:
        stream = RecordingStream(Timeline(name), priority)
        stream.is_held = self._holds_new_streams
        if name.startswith("exchange"):
            stream.alias = _FIRST_ALIAS + len(self._exchange)
        self._streams.append(stream)
        return stream

    def _open_event(self, *, has_timing: bool) -> EventState:
        return EventState(has_timing=has_timing)

    def _record(self, stream: StreamState, position: int, event: EventState) -> None:
        if not event.has_timing:
            self._submit(stream, position)
            return
        mark = event.mark
        recording = cast("RecordingStream", stream)

        def run() -> None:
            if event.mark == mark:
                event.time_ns = recording.time_ns

        self._submit(stream, position, run)

    def _stream_wait(
        self, stream: StreamState, position: int, event: EventState
    ) -> None:
        self._submit(stream, position, waits_for=event.mark)

    # Other libraries: addresses and numbers are made up, nobody may use them.

    @property
    def exchange_device(self) -> tuple[int, int] | None:
        """DLPack's device where it pretends to be a CUDA one; None elsewhere."""
        return (CUDA, 0) if self.kind is BackendKind.CUDA else None

    def _borrow(self, address: int, byte_size: int, keeper: object) -> object:
        return BorrowedMemory(address, byte_size, keeper)

    def _address(self, buffer: Resource) -> int:
        if isinstance(buffer.payload, BorrowedMemory):
            return buffer.payload.address
        handle = cast("BufferHandle", buffer.handle)
        return _FIRST_ADDRESS + (handle.id << 32) if handle.byte_size else 0

    def _borrow_stream(self, number: int, keeper: object) -> StreamState:
        stream = cast("RecordingStream", self._open_stream(0, f"stream {number:#x}"))
        stream.number, stream.keeper = number, keeper
        return stream

    def _stream_number(self, stream: StreamState) -> int:
        recording = cast("RecordingStream", stream)
        if not recording.number:
            recording.number = _FIRST_STREAM + self._numbers
            self._numbers += 1
        return recording.number

    def _follow(self, stream: StreamState, position: int, number: int | None) -> bool:
        self.exchanges.append(("follow", self._stream_number(stream), number))
        self._submit(stream, position)
        return True

    def _lead(self, stream: StreamState, position: int, number: int) -> None:
        self.exchanges.append(("lead", self._stream_number(stream), number))
        self._submit(stream, position)

    def _pass(self, stream: StreamState, position: int) -> None:
        self._submit(stream, position)

    def _free(self, resource: Resource) -> None:
        self.destroy_count += 1
        self.destroyed_ids.append(resource.handle.id)
        payload = resource.payload
        if resource.kind is ObjectKind.STREAM:
            recording = cast("RecordingStream", payload)
            self._streams.remove(recording)
            recording.keeper = None
        elif isinstance(payload, BorrowedMemory):
            payload.keeper = None
        elif isinstance(resource.handle, BufferHandle):
            self._bytes_in_use -= resource.handle.byte_size

    def _find_for_launch(self, handle: Handle) -> Resource | None:
        is_foreign = bool(self.foreign(handle))
        if not is_foreign and handle.id >= self._table.next_id:
            return None
        return self._table.get(handle)
