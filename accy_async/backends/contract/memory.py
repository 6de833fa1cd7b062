"""Kernels and buffers: made, loaded, allocated, written, read, copied, filled."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, cast

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.kernel import ArtifactRequest, KernelArtifact
from accy_async.backends.contract.checks import (
    byte_count,
    check_range,
    check_size,
    check_writable,
)
from accy_async.backends.contract.core import advance
from accy_async.backends.contract.ownership import Ownership
from accy_async.backends.handles import (
    BufferHandle,
    LoadedArtifact,
    ObjectKind,
    StreamHandle,
)
from accy_async.backends.hostmemory import host_bytes
from accy_async.errors import (
    InvalidBuffer,
    InvalidType,
    OutOfMemory,
    ReadBufferDestinationTooSmall,
)

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard

__all__ = ["Memory"]


class Memory(Ownership):
    """Artifacts and buffers of one device."""

    @property
    def default_format(self) -> ArtifactFormat:
        """The artifact format that callers who name none get."""
        return self.kind.default_format

    def create_artifact(self, request: ArtifactRequest) -> KernelArtifact:
        """Make a kernel artifact that this backend can load.

        Raises:
            UnsupportedOperation: the format is not one the device loads.
            CapabilityMismatch: the device lacks what the kernel requires.
            InvalidArtifact: the payload is malformed.
            CompilationError: the compiler refused it.
        """
        self._check("create_artifact")
        if not isinstance(request, ArtifactRequest):
            raise InvalidType("create_artifact", request, "an ArtifactRequest")
        self.capabilities.check_request(request)
        return self._create(request)

    def load_artifact(self, artifact: KernelArtifact) -> LoadedArtifact:
        """Load a kernel onto the device.

        Raises:
            InvalidArtifact: the payload is malformed or lacks the kernel.
            RuntimeUnavailable: the driver or loader refused it.
            OutOfMemory: no room.
        """
        with self._makers:
            self._check("load_artifact")
            if not isinstance(artifact, KernelArtifact):
                raise InvalidType("load_artifact", artifact, "a KernelArtifact")
            resource = self._keep(
                ObjectKind.ARTIFACT,
                lambda object_id: LoadedArtifact(
                    id=object_id,
                    backend=self.kind,
                    kernel_name=artifact.kernel_name,
                    origin=self._origin,
                ),
                self._load(artifact),
                f" ({artifact.kernel_name})",
            )
        return cast("LoadedArtifact", resource.handle)

    def allocate_buffer(self, byte_size: int, *, alignment: int = 256) -> BufferHandle:
        """Allocate device memory; its contents are undefined.

        If there is none left, what is waiting to be freed is collected and the
        allocation tried once more.

        Args:
            byte_size: its size; 0 is allowed.
            alignment: of its address, a power of two.

        Raises:
            InvalidType: the size or the alignment is no integer.
            InvalidBuffer: a size below 0 or an alignment that is no power of 2.
            OutOfMemory: there is no room, with the sizes in the message.
        """
        self._check("allocate_buffer")
        check_size("allocate_buffer.byte_size", byte_size)
        check_size("allocate_buffer.alignment", alignment)
        if alignment < 1 or alignment & (alignment - 1):
            raise InvalidBuffer(f"alignment: got {alignment}, expected a power of two")
        self._discard_abandoned()
        with self._makers:
            self._check("allocate_buffer")
            resource = self._keep(
                ObjectKind.BUFFER,
                lambda object_id: BufferHandle(
                    id=object_id,
                    backend=self.kind,
                    byte_size=byte_size,
                    origin=self._origin,
                ),
                self._allocate_or_reclaim(byte_size, alignment),
                f" ({byte_size} bytes)",
            )
        return cast("BufferHandle", resource.handle)

    def memory_statistics(self) -> dict[str, int]:
        """How much memory buffers take, and may take, in bytes. Sync.

        Returns:
            ``used_bytes`` of buffers that are not freed; ``reserved_bytes`` taken from
            the device for them, what is kept for later ones included;
            ``limit_bytes``, the backend's limit, or else all that the device has, 0
            where that is unknown. On GPUs there is more: the most that was used and
            reserved so far (CUDA), what copies are staged in (Vulkan).

        Raises:
            SessionClosed: the backend is closed.
            DeviceLost: the device is gone, and its memory with it.
        """
        self._check("memory_statistics")
        return self._memory_statistics()

    def trim(self, keep_bytes: int = 0) -> None:
        """Give memory that no buffer takes back to the device. Sync.

        Args:
            keep_bytes: how much stays reserved nevertheless, where so much is. A
                backend that keeps none for later has none to give back.

        Raises:
            InvalidType, InvalidBuffer: that is no number of bytes.
            SessionClosed: the backend is closed.
            DeviceLost: the device is gone.
        """
        self._check("trim")
        check_size("trim.keep_bytes", keep_bytes)
        self._trim(keep_bytes)

    def _allocate_or_reclaim(self, byte_size: int, alignment: int) -> object:
        """Get device memory, if need be from what waits to be freed."""
        try:
            return self._allocate(byte_size, alignment)
        except OutOfMemory:
            if not self._reclaim():
                raise
        return self._allocate(byte_size, alignment)

    def _reclaim(self) -> bool:
        """Free what nobody uses any more; True if that freed anything."""
        before = sum(self._table.counts().values())
        gc.collect()
        self._discard_abandoned()
        self._table.sweep()
        return sum(self._table.counts().values()) < before

    def write_buffer(
        self,
        buffer: BufferHandle,
        data: object,
        *,
        offset_bytes: int = 0,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Submit a copy from host memory to a buffer.

        Args:
            buffer: where to.
            data: bytes or a C-contiguous array; *borrowed*: leave it unchanged
                until the stream has passed the copy.
            offset_bytes: where in the buffer to begin.
            stream: the stream that copies; None for the default stream.
            guard: asked before, and told of its failure; see `guards`.

        Returns:
            Its position on the stream's timeline.

        Raises:
            InvalidBuffer: the handle is not alive, the data are not contiguous,
                or the copy would pass the buffer's end.
        """
        self._check("write_buffer")
        offset = byte_count("write_buffer.offset_bytes", offset_bytes)
        memory = host_bytes(data, writable=False)
        with self._lock:
            resource = self._table.get(buffer)
            check_range(resource, offset, memory.byte_size, "write")
            check_writable(resource, "write")
            state = self._stream(stream)
            position = advance(state, resource)
            self._write(state, position, resource, offset, memory, guard)
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
        """Submit a copy from a buffer to host memory.

        Args:
            buffer: where from.
            out: a writable C-contiguous array or bytearray; *borrowed*: its
                contents are undefined until the stream has passed the copy.
            byte_size: how much to read; as much as ``out`` holds if left out.
            offset_bytes: where in the buffer to begin.
            stream: the stream that copies; None for the default stream.
            guard: asked before, and told of its failure; see `guards`.

        Returns:
            Its position on the stream's timeline.

        Raises:
            ReadBufferDestinationTooSmall: ``out`` is smaller than ``byte_size``.
            InvalidBuffer: the handle is not alive, ``out`` is not writable or
                contiguous, the size is below 0, or the copy would pass the buffer's
                end.
        """
        self._check("read_buffer")
        offset = byte_count("read_buffer.offset_bytes", offset_bytes)
        memory = host_bytes(out, writable=True)
        with self._lock:
            resource = self._table.get(buffer)
            if byte_size is not None:
                size = byte_count("read_buffer.byte_size", byte_size)
                if memory.byte_size < size:
                    raise ReadBufferDestinationTooSmall(
                        f"reading {size} bytes of {resource.name} into "
                        f"{memory.byte_size} bytes"
                    )
                memory = memory.first(size)
            check_range(resource, offset, memory.byte_size, "read")
            state = self._stream(stream)
            position = advance(state, resource)
            self._read(state, position, resource, offset, memory, guard)
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
        """Submit a copy from one buffer's start to another's, on the device.

        Args:
            source: where from.
            target: where to; another buffer.
            byte_size: how much; all of ``source`` if left out.
            stream: the stream that copies; None for the default stream.
            guard: asked before, and told of its failure; see `guards`.

        Returns:
            Its position on the stream's timeline.

        Raises:
            InvalidBuffer: a handle is not alive, both are one buffer, the size is
                below 0, or the copy would pass an end.
        """
        self._check("copy_buffer")
        with self._lock:
            read, written = self._table.get(source), self._table.get(target)
            size = source.byte_size
            if byte_size is not None:
                size = byte_count("copy_buffer.byte_size", byte_size)
            if read is written:
                raise InvalidBuffer(f"copy of {read.name} over itself")
            check_range(read, 0, size, "copy")
            check_range(written, 0, size, "copy")
            check_writable(written, "copy")
            state = self._stream(stream)
            position = advance(state, read, written)
            self._copy(state, position, read, written, size, guard)
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
        """Submit the writing of a pattern, again and again, over a buffer's start.

        Args:
            buffer: where to.
            pattern: 1, 2, 4 or 8 bytes.
            byte_size: how much to write, a multiple of the pattern's size; the
                whole buffer if left out.
            stream: the stream that fills; None for the default stream.
            guard: asked before, and told of its failure; see `guards`.

        Returns:
            Its position on the stream's timeline.

        Raises:
            InvalidType: the pattern is no bytes.
            InvalidBuffer: the handle is not alive, the pattern is of another
                size, or it does not fit ``byte_size`` or the buffer.
        """
        self._check("fill_buffer")
        if not isinstance(pattern, bytes):
            raise InvalidType("fill_buffer.pattern", pattern, "bytes")
        with self._lock:
            resource = self._table.get(buffer)
            size = buffer.byte_size
            if byte_size is not None:
                size = byte_count("fill_buffer.byte_size", byte_size)
            check_range(resource, 0, size, "fill")
            if len(pattern) not in (1, 2, 4, 8) or size % len(pattern):
                raise InvalidBuffer(
                    f"fill of {size} bytes with a pattern of {len(pattern)}, expected "
                    "1, 2, 4 or 8 that divide it"
                )
            check_writable(resource, "fill")
            state = self._stream(stream)
            position = advance(state, resource)
            self._fill(state, position, resource, pattern, size, guard)
        return position
