"""The CPU backend: the contract's hooks, carried out by streams and a worker pool."""

from __future__ import annotations

import threading
import warnings
import weakref
from typing import TYPE_CHECKING, ClassVar, cast

from accy_async.artifact.formats import BackendKind
from accy_async.artifact.kernel import KernelArtifact
from accy_async.artifact.native.host import core_count
from accy_async.backends.base import DEFAULT_GRACE_S
from accy_async.backends.contract.checks import check_grace, check_memory_limit
from accy_async.backends.cpu.identity import cpu_capabilities
from accy_async.backends.cpu.kernels import CpuKernel, CpuLaunch, load_kernel
from accy_async.backends.cpu.memory import CpuAllocator, CpuMemory, borrowed
from accy_async.backends.cpu.operations import (
    Copy,
    FillMemory,
    Launch,
    Record,
    WaitFor,
)
from accy_async.backends.cpu.peers import CpuPeers
from accy_async.backends.cpu.pool import Pace, WorkerPool
from accy_async.backends.cpu.streams import CpuStream, CpuTimeline
from accy_async.backends.handles import Handle, ObjectKind
from accy_async.backends.hooks import EventState, StreamState
from accy_async.errors import InvalidArtifact, InvalidType, InvalidValue
from accy_async.interop.dlpack import CPU

if TYPE_CHECKING:
    from accy_async.artifact.kernel import ArtifactRequest
    from accy_async.backends.capabilities import Capabilities
    from accy_async.backends.guards import Guard
    from accy_async.backends.hostmemory import HostMemory
    from accy_async.backends.launch import LaunchRequest, PreparedLaunch
    from accy_async.backends.resources import Resource

__all__ = ["CpuBackend"]


class CpuBackend(CpuPeers):
    """The processor this program runs on, as a device.

    Every stream has a thread, and kernels are split over a pool of workers that
    all streams share; kernels and copies run without the interpreter lock. No
    thread is started before the first operation that needs it. All are daemon
    threads: a kernel that never ends does not keep the interpreter from exiting.
    Those of a backend that is dropped without `close` end as well, and a
    ResourceWarning names it.

    Args:
        workers: how many threads may run blocks of split kernels at once; one for
            each core this process may use if left out.
        max_streams: how many streams are worth opening; by default four, or two
            for each worker.
        grace_s: how long cleanup waits for the device, in seconds.
        memory_limit_bytes: what all buffers may take together; None for no limit
            but the system's.
        index: its number, where a program has several: it is ``cpu:<index>``.

    Raises:
        InvalidValue: ``workers`` below 1, or ``grace_s``, ``memory_limit_bytes`` or
            ``index`` below 0.
        InvalidType: one of them is no number.
    """

    loads_block: ClassVar[bool] = True

    def __init__(
        self,
        *,
        workers: int | None = None,
        max_streams: int | None = None,
        grace_s: float = DEFAULT_GRACE_S,
        memory_limit_bytes: int | None = None,
        index: int = 0,
    ) -> None:
        count = core_count() if workers is None else workers
        expected = "an integer of at least 1, or None"
        if isinstance(count, bool) or not isinstance(count, int):
            raise InvalidType("CpuBackend.workers", workers, expected)
        if count < 1:
            raise InvalidValue("CpuBackend.workers", workers, expected)
        check_grace("CpuBackend", grace_s)
        check_memory_limit("CpuBackend", memory_limit_bytes)
        self._capabilities = cpu_capabilities(count, max_streams, index)
        self._allocator = CpuAllocator(memory_limit_bytes)
        self._pool = WorkerPool(count)
        self._copy_pace = Pace()
        self._opened: weakref.WeakSet[CpuStream] = weakref.WeakSet()
        super().__init__(BackendKind.CPU, grace_s=grace_s)
        self._leaving = weakref.finalize(
            self, _leave, self._opened, self._pool, f"cpu:{index}"
        )
        self._leaving.atexit = False  # the threads end with the process

    @property
    def capabilities(self) -> Capabilities:
        """What the processor is and can do."""
        return self._capabilities

    @property
    def bytes_in_use(self) -> int:
        """The sizes of all buffers not freed yet, together."""
        return self._allocator.bytes_in_use

    def _memory_statistics(self) -> dict[str, int]:
        used, limit = self._allocator.bytes_in_use, self._allocator.limit_bytes
        memory_bytes = self._capabilities.identity.memory_bytes
        return {
            "used_bytes": used,
            "reserved_bytes": used,
            "limit_bytes": memory_bytes if limit is None else limit,
        }

    def _end(self) -> None:
        """Have the threads end when what was submitted is done."""
        self._after_makers()
        self._pool.close()
        self._leaving.detach()

    def _after_makers(self) -> None:
        for stream in (self._default, *self._exchange):
            cast("CpuStream", stream).stop()

    # Hooks

    def _create(self, request: ArtifactRequest) -> KernelArtifact:
        if isinstance(request.payload, str):
            raise InvalidArtifact(
                f"kernel {request.kernel_name!r}: a payload of "
                f"{request.requested_format} is bytes, got text"
            )
        return KernelArtifact.from_request(request)

    def _load(self, artifact: KernelArtifact) -> object:
        return load_kernel(artifact)

    def _allocate(self, byte_size: int, alignment: int) -> object:
        return self._allocator.allocate(byte_size, alignment)

    def _write(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        data: HostMemory,
        guard: Guard | None,
    ) -> None:
        memory = cast("CpuMemory", buffer.payload)
        cast("CpuStream", stream).submit(
            Copy(
                position,
                self._pool,
                memory.address + offset_bytes,
                data.address,
                data.byte_size,
                (memory.array, data.array),
                self._copy_pace,
                "write_buffer",
                guard,
            )
        )

    def _read(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        out: HostMemory,
        guard: Guard | None,
    ) -> None:
        memory = cast("CpuMemory", buffer.payload)
        cast("CpuStream", stream).submit(
            Copy(
                position,
                self._pool,
                out.address,
                memory.address + offset_bytes,
                out.byte_size,
                (memory.array, out.array),
                self._copy_pace,
                "read_buffer",
                guard,
            )
        )

    def _copy(
        self,
        stream: StreamState,
        position: int,
        source: Resource,
        target: Resource,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        read = cast("CpuMemory", source.payload)
        written = cast("CpuMemory", target.payload)
        cast("CpuStream", stream).submit(
            Copy(
                position,
                self._pool,
                written.address,
                read.address,
                byte_size,
                (written.array, read.array),
                self._copy_pace,
                "copy_buffer",
                guard,
            )
        )

    def _fill(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        pattern: bytes,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        memory = cast("CpuMemory", buffer.payload)
        cast("CpuStream", stream).submit(
            FillMemory(position, memory.array[:byte_size], pattern, guard)
        )

    def _prepare(
        self,
        request: LaunchRequest,
        artifact: Resource | None,
        buffers: list[Resource | None],
    ) -> object:
        assert artifact is not None
        kernel = cast("CpuKernel", artifact.payload)
        kernel.check(request)
        memories = [
            cast("CpuMemory", buffer.payload)
            for buffer in buffers
            if buffer is not None
        ]
        return kernel.prepare(request, memories)

    def _launch(
        self,
        stream: StreamState,
        position: int,
        prepared: PreparedLaunch,
        guard: Guard | None,
    ) -> None:
        cast("CpuStream", stream).submit(
            Launch(position, self._pool, cast("CpuLaunch", prepared.payload), guard)
        )

    def _open_stream(self, priority: int, name: str) -> StreamState:
        # The stream's thread must not keep the backend alive.
        table = weakref.ref(self._table)

        def sweep() -> None:
            if (found := table()) is not None:
                found.sweep_unattended()

        stream = CpuStream(CpuTimeline(name), priority, self._lock, sweep)
        self._opened.add(stream)
        return stream

    def _open_event(self, *, has_timing: bool) -> EventState:
        return EventState(has_timing=has_timing)

    def _record(self, stream: StreamState, position: int, event: EventState) -> None:
        cast("CpuStream", stream).submit(Record(position, event, self._lock))

    def _stream_wait(
        self, stream: StreamState, position: int, event: EventState
    ) -> None:
        cast("CpuStream", stream).submit(WaitFor(position, event))

    @property
    def exchange_device(self) -> tuple[int, int] | None:
        """DLPack's device type and index: its memory is the host's."""
        return CPU, 0

    def _borrow(self, address: int, byte_size: int, keeper: object) -> object:
        return borrowed(address, byte_size, keeper)

    def _address(self, buffer: Resource) -> int:
        memory = cast("CpuMemory", buffer.payload)
        return memory.address if memory.byte_size else 0

    def _free(self, resource: Resource) -> None:
        if resource.kind is ObjectKind.BUFFER:
            self._allocator.free(cast("CpuMemory", resource.payload))
        elif resource.kind is ObjectKind.ARTIFACT:
            cast("CpuKernel", resource.payload).close()
        elif resource.kind is ObjectKind.STREAM:
            cast("CpuStream", resource.payload).stop()

    def _find_for_launch(self, handle: Handle) -> Resource | None:
        return self._table.get(handle)


def _leave(streams: weakref.WeakSet[CpuStream], pool: WorkerPool, name: str) -> None:
    """Let the threads end of a backend that was dropped without `close`.

    The collector may call this within any call of theirs, with a lock held: so they
    are told by a thread that holds none.
    """
    running = [stream for stream in streams if stream.has_thread]
    if not running and not pool.has_threads:
        return

    def end() -> None:
        for stream in running:
            stream.stop()
        pool.close()

    threading.Thread(
        target=end, name=f"accy_async cpu {name} left", daemon=True
    ).start()
    warnings.warn(f"{name} was dropped without close()", ResourceWarning, stacklevel=2)
