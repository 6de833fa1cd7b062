"""Device arrays: a buffer with a shape and a dtype, and an owner."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Self

from accy_async.backends.collecting import is_collecting
from accy_async.backends.handles import BufferAccess, BufferBinding, BufferHandle
from accy_async.dtypes import DType
from accy_async.errors import InvalidBuffer, InvalidType, InvalidValue

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from accy_async.backends.base import Backend

__all__ = ["DeviceArray", "array_byte_size"]


def array_byte_size(shape: Sequence[int], dtype: DType) -> int:
    """Bytes that an array takes: its elements, packed, in C order.

    Raises:
        InvalidType: ``dtype`` is no DType, or an extent is no integer.
        InvalidValue: an extent is below 0.
    """
    if not isinstance(dtype, DType):
        raise InvalidType("DeviceArray.dtype", dtype, "a DType")
    for extent in shape:
        if isinstance(extent, bool) or not isinstance(extent, int):
            raise InvalidType("DeviceArray.shape", shape, "a tuple of integers")
        if extent < 0:
            raise InvalidValue("DeviceArray.shape", shape, "extents of at least 0")
    return math.prod(shape) * dtype.size_bytes


class DeviceArray:
    """An array in device memory: packed elements in C order.

    It owns its buffer: `free` destroys it, leaving its ``with`` block does, and
    so does the garbage collector; the session that it was made in does at the
    latest. Freeing never waits: work that still uses the buffer finishes first.

    Attributes:
        handle: the buffer.
        shape: extents, outermost first; an extent of 0 makes an empty array.
        dtype: the element type.
    """

    __slots__ = ("__weakref__", "_finalizer", "dtype", "handle", "shape")

    def __init__(
        self,
        backend: Backend,
        handle: BufferHandle,
        shape: tuple[int, ...],
        dtype: DType,
    ) -> None:
        self.handle = handle
        self.shape = shape
        self.dtype = dtype
        self._finalizer = weakref.finalize(
            self, _free, weakref.ref(backend.base), handle
        )
        # At interpreter exit the device goes as a whole.
        self._finalizer.atexit = False

    @classmethod
    def allocate(
        cls, backend: Backend, shape: Sequence[int], dtype: DType
    ) -> DeviceArray:
        """Allocate an array; its contents are undefined.

        Raises:
            InvalidValue: the shape or dtype is no shape or dtype.
            OutOfMemory: no room.
        """
        shape = tuple(shape)
        handle = backend.allocate_buffer(array_byte_size(shape, dtype))
        return cls(backend, handle, shape, dtype)

    def __repr__(self) -> str:
        state = "freed" if self.is_freed else f"buffer {self.handle.id}"
        return f"<DeviceArray {self.dtype}{list(self.shape)}: {state}>"

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    @property
    def byte_size(self) -> int:
        """How many bytes they take."""
        return self.handle.byte_size

    @property
    def is_freed(self) -> bool:
        """True once the array has been freed."""
        return not self._finalizer.alive

    def binding(self, access: BufferAccess | str = "read_write") -> BufferBinding:
        """The array as a launch uses it; the binding keeps the array alive.

        Raises:
            InvalidBuffer: it was freed.
        """
        if self.is_freed:
            raise InvalidBuffer(f"{self!r} cannot be bound: it was freed")
        return BufferBinding(handle=self.handle, access=access, owner=self)

    def free(self) -> None:
        """Free the array. Idempotent; never waits."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.free()


def _free(backend: weakref.ref[Backend], handle: BufferHandle) -> None:
    owner = backend()
    if owner is None:
        return
    if is_collecting():
        owner.abandon(handle)
    else:
        owner.discard(handle)
