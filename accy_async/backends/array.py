"""Device arrays: a buffer with a shape and a dtype, and an owner."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import numpy as np

from accy_async.backends import lending
from accy_async.backends.cleanup import raise_together
from accy_async.backends.collecting import is_collecting
from accy_async.backends.handles import (
    BufferAccess,
    BufferBinding,
    BufferHandle,
    BufferOwnership,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidBuffer, InvalidType, InvalidValue
from accy_async.values import packed_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from accy_async.backends.base import Backend
    from accy_async.backends.exchange import Loan
    from accy_async.backends.handles import StreamHandle

__all__ = ["DeviceArray", "OnDevice", "array_byte_size"]


class OnDevice(Protocol):
    """What is on a device, as a session is."""

    @property
    def backend(self) -> Backend:
        """The device."""


def array_byte_size(shape: Sequence[int], dtype: DType) -> int:
    """Bytes that an array takes: its elements, packed, in C order.

    Raises:
        InvalidType: ``dtype`` is no DType, or an extent is no integer.
        InvalidValue: an extent is below 0, or they are more than 2^63 - 1.
    """
    if not isinstance(dtype, DType):
        raise InvalidType("DeviceArray.dtype", dtype, "a DType, such as DType.F32")
    for extent in shape:
        if isinstance(extent, bool) or not isinstance(extent, int):
            raise InvalidType("DeviceArray.shape", shape, "a tuple of integers")
        if extent < 0:
            raise InvalidValue("DeviceArray.shape", shape, "extents of at least 0")
    return packed_bytes("DeviceArray.shape", shape, dtype.size_bytes)


class DeviceArray:
    """An array in device memory: packed elements in C order.

    It owns its buffer: `free` destroys it, leaving its ``with`` block does, and
    so does the garbage collector; the session that it was made in does at the
    latest. Freeing never waits: work that still uses the buffer finishes first.

    Args:
        backend: the device.
        handle: the buffer, the array's from here on.
        shape: extents, outermost first.
        dtype: the element type.
        reclaim: asked when nobody holds the array any more, on any thread and by the
            garbage collector: who has the buffer afterwards, work that still uses it
            included, returns True. Takes no lock. What `free` frees is freed.

    Attributes:
        handle: the buffer.
        shape: extents, outermost first; an extent of 0 makes an empty array.
        dtype: the element type.
    """

    __slots__ = (
        "__weakref__",
        "_backend",
        "_finalizer",
        "_shown",
        "dtype",
        "handle",
        "shape",
    )

    def __init__(
        self,
        backend: Backend,
        handle: BufferHandle,
        shape: tuple[int, ...],
        dtype: DType,
        *,
        reclaim: Callable[[BufferHandle], bool] | None = None,
    ) -> None:
        self.handle = handle
        self.shape = shape
        self.dtype = dtype
        self._backend = weakref.ref(backend.base)
        # A loan to who was shown the CUDA array interface, and keeps the array.
        self._shown: Loan | None = None
        self._finalizer = weakref.finalize(self, _free, self._backend, handle, reclaim)
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

    def is_of(self, backend: Backend) -> bool:
        """True where the array is this backend's."""
        return self._backend() is backend.base

    @property
    def is_read_only(self) -> bool:
        """True where it is another library's memory, not to be written to."""
        return self.handle.is_read_only

    @property
    def is_borrowed(self) -> bool:
        """True where it is another library's memory."""
        return self.handle.ownership is BufferOwnership.EXTERNAL

    def binding(self, access: BufferAccess | str | None = None) -> BufferBinding:
        """The array as a launch uses it; the binding keeps the array alive.

        Args:
            access: how it is used; read_write if left out, read_only where the array
                is read-only.

        Raises:
            InvalidBuffer: it was freed.
            InvalidValue: ``access`` writes, and the array is read-only.
        """
        if self.is_freed:
            raise InvalidBuffer(f"{self!r} cannot be bound: it was freed")
        if access is None:
            access = "read_only" if self.is_read_only else "read_write"
        return BufferBinding(handle=self.handle, access=access, owner=self)

    async def copy_to(
        self, device: OnDevice | Backend, *, stream: StreamHandle | None = None
    ) -> DeviceArray:
        """Copy the array to a new one on another device; awaits the copy.

        The copy follows every use of the array submitted before. Which way it goes,
        `Backend.route_to` says. On the array's own device it is a plain copy.

        Args:
            device: where to: a session on it, as `MultiSession.on` gives one, whose
                the new array is; or a backend.
            stream: the stream that carries it out, of the device that the route says;
                None for its default stream.

        Raises:
            InvalidType: ``device`` is neither.
            InvalidBuffer: the array was freed.
            UnsupportedOperation: there is no way to that device; both are named.
            OutOfMemory: no room there.
            DeviceError: the copy, or earlier work on the array, failed.

        Cancellation: the new array is freed once the copy is done with it.
        """
        there = cast("Backend", getattr(cast("object", device), "backend", device))
        if not hasattr(there, "copy_to_peer"):
            raise InvalidType("copy_to.device", device, "a session or a backend")
        source = self._lender()
        route = source.route_to(there)
        copy = DeviceArray.allocate(there, self.shape, self.dtype)
        try:
            on = there if route.is_pulled else source
            await source.wait_buffer(self.handle)
            source.copy_to_peer(self.handle, copy.handle, there, stream=stream)
            if stream is None:
                await on.wait_default_stream()
            else:
                await on.wait_stream(stream)
        except BaseException as error:
            errors: list[Exception] = []
            try:
                copy.free()
            except Exception as refused:  # noqa: BLE001 - raised together below
                errors.append(refused)
            raise_together(f"copying {self!r}", error, errors)
            raise
        return copy

    def free(self) -> None:
        """Free the array. Idempotent; never waits."""
        if self._finalizer.detach() is not None:
            _free(self._backend, self.handle, None)

    # What other libraries ask; see docs/interop.md.

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device type and index.

        Raises:
            ExchangeRefused: its memory is nothing that others could use.
        """
        return lending.device(self, self._lender())

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:  # noqa: ANN401 - a capsule, for which Python 3.11 has no type
        """A DLPack capsule over the array's memory, which stays until it is given back.

        Sync; never waits: on a GPU ``stream`` is made to wait for every use of the
        array that was submitted. In host memory there is nothing that could wait:
        the array must be idle, ``await session.wait_array(array)``.

        Args:
            stream: the consumer's stream, by its number: None or 1 for the legacy
                default stream, 2 for the thread's, -1 to wait for nothing.
            max_version: the newest DLPack that the consumer knows; (1, 0) or later for
                a capsule that can say that memory is read-only.
            dl_device: where the consumer wants it; the array's own device or None.
            copy: True for the consumer to get a copy of its own.

        Raises:
            ExchangeRefused: one of these cannot be had (also a BufferError).
            InvalidBuffer: the array was freed.
        """
        lender = self._lender()
        return lending.capsule(self, lender, stream, max_version, dl_device, copy)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The CUDA array interface, version 3. Who reads it keeps the array.

        From then on the memory stays for as long as the array object does.

        Raises:
            InterfaceMissing: it is not on a GPU, or bf16 (also an AttributeError).
            InvalidBuffer: the array was freed.
        """
        lender = self._lender()
        interface = lending.interface(self, lender)
        if self._shown is None:
            self._shown = lender.lend_buffer(self.handle, None)
        return interface

    def __array__(
        self, dtype: object = None, copy: bool | None = None
    ) -> NDArray[np.generic]:
        """A numpy array over the same memory; bf16 as uint16. Host memory only.

        Raises:
            ExchangeRefused: it is on a device, or in use there: await a download.
            InvalidBuffer: the array was freed.
        """
        found = lending.numpy_view(self, self._lender())
        if dtype is not None and found.dtype != np.dtype(dtype):  # type: ignore[call-overload]
            if copy is False:
                raise ValueError(f"{self!r} cannot be {dtype} without a copy")
            return found.astype(dtype)  # type: ignore[call-overload,no-any-return]
        return found.copy() if copy else found

    def _lender(self) -> Backend:
        backend = self._backend()
        if backend is None or self.is_freed:
            raise InvalidBuffer(f"{self!r} cannot be shared: it was freed")
        return backend

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.free()


def _free(
    backend: weakref.ref[Backend],
    handle: BufferHandle,
    reclaim: Callable[[BufferHandle], bool] | None,
) -> None:
    owner = backend()
    if owner is None or (reclaim is not None and reclaim(handle)):
        return
    if is_collecting():
        owner.abandon(handle)
    else:
        owner.discard(handle)
