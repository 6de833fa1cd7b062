"""Arrays in and out of the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from accy_async.backends.array import DeviceArray
from accy_async.backends.cleanup import raise_together
from accy_async.backends.writing import submit_write
from accy_async.dtypes import DType
from accy_async.errors import (
    InvalidBuffer,
    InvalidType,
    InvalidValue,
    ReadBufferDestinationTooSmall,
)
from accy_async.observe.protocol import phase
from accy_async.session.core import SessionCore
from accy_async.values import refuse_masked, to_integer, to_integers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from accy_async.backends.handles import StreamHandle

__all__ = ["SessionArrays", "check_array", "extents_of"]


class SessionArrays(SessionCore):
    """The arrays of a session."""

    def allocate(self, shape: int | Sequence[int], dtype: DType) -> DeviceArray:
        """Allocate an array; its contents are undefined. Sync; never waits.

        Args:
            shape: extents, outermost first; an int for one dimension.
            dtype: the element type.

        Raises:
            InvalidValue: the shape or dtype is no shape or dtype.
            OutOfMemory: no room.
            SessionClosed: the session is not open.
        """
        self._check("allocate")
        return DeviceArray.allocate(self.backend, extents_of(shape), dtype)

    async def upload(
        self,
        array: ArrayLike,
        *,
        dtype: DType | None = None,
        copy: bool = False,
        stream: StreamHandle | None = None,
    ) -> DeviceArray:
        """Copy a numpy array to a new array on the device; awaits the copy.

        Args:
            array: any shape; C-contiguous unless ``copy``; *borrowed*: leave it
                unchanged until the call returns.
            dtype: the element type, where numpy's says too little (bf16 as
                uint16); it must have the same size.
            copy: True to take a view that is not C-contiguous, through a
                contiguous copy.
            stream: the stream that copies; None for the default stream.

        Raises:
            InvalidBuffer: it is not C-contiguous (also a ValueError).
            InvalidValue: its dtype has no counterpart on a device.
            OutOfMemory: no room.
            DeviceError: the copy failed.
            SessionClosed: the session is not open.

        Cancellation: the new array is freed once the copy is done with it.
        """
        self._check("upload")
        refuse_masked("upload", array)
        host = np.asarray(array)
        element = _element_type(host, dtype)
        if copy:
            host = np.ascontiguousarray(host).reshape(host.shape)
        _check_contiguous("upload", host)
        target = DeviceArray.allocate(self.backend, host.shape, element)
        try:
            with phase(self.observer, "upload", repr(target)):
                await submit_write(
                    self.backend, target.handle, host, stream, name="upload"
                )
                await self._wait_stream(stream)
        except BaseException as error:
            errors: list[Exception] = []
            try:
                target.free()
            except Exception as refused:  # noqa: BLE001 - raised together below
                errors.append(refused)
            if isinstance(error, InvalidBuffer):
                self._check("upload")  # its end took the array that nobody had yet
            raise_together("upload", error, errors)
            raise
        return target

    async def write(
        self,
        target: DeviceArray,
        array: ArrayLike,
        *,
        stream: StreamHandle | None = None,
    ) -> None:
        """Copy a numpy array over an array on the device; awaits the copy.

        The copy follows every use of ``target`` submitted before.

        Raises:
            InvalidType: ``target`` is no DeviceArray.
            InvalidBuffer: it is not C-contiguous, not as large as ``target``, or of
                another dtype: to copy its bits as they are, pass
                ``array.view(dtype)``.
            DeviceError: the copy, or earlier work on ``target``, failed.
            SessionClosed: the session is not open.

        Cancellation: the copy may still happen.
        """
        self._check("write")
        check_array("write.target", target)
        refuse_masked("write", array)
        host = np.asarray(array)
        _check_contiguous("write", host)
        if host.nbytes != target.byte_size:
            raise InvalidBuffer(
                f"write: {host.nbytes} bytes for {target!r} of {target.byte_size}"
            )
        _check_dtype("write", target, host)
        await self.backend.wait_buffer(target.handle)
        with phase(self.observer, "upload", repr(target)):
            await submit_write(self.backend, target.handle, host, stream, name="upload")
            await self._wait_stream(stream)

    async def download(
        self,
        source: DeviceArray,
        *,
        out: NDArray[np.generic] | None = None,
        stream: StreamHandle | None = None,
    ) -> NDArray[np.generic]:
        """Copy an array from the device to numpy; awaits the copy.

        The copy follows every use of ``source`` submitted before, on any stream.

        Args:
            source: what to copy.
            out: a writable C-contiguous array to copy into; a new one if left
                out. bf16 comes as uint16.
            stream: the stream that copies; None for the default stream.

        Returns:
            The copy, of the array's shape.

        Raises:
            ReadBufferDestinationTooSmall: ``out`` is smaller than ``source``.
            InvalidType: ``source`` is no DeviceArray, or ``out`` no numpy array.
            InvalidBuffer: ``out`` is larger, read-only, not C-contiguous, or of
                another dtype: pass ``out.view(dtype)`` to have the bits as they are.
            DeviceError: work that writes ``source``, or the copy, failed.
            SessionClosed: the session is not open.

        Cancellation: only the wait stops; ``out`` is undefined and is kept
            alive until the copy is done with it.
        """
        self._check("download")
        check_array("download.source", source)
        if out is None:
            out = np.empty(source.shape, dtype=_numpy_dtype(source))
        _check_out(source, out)
        await self.backend.wait_buffer(source.handle)
        with phase(self.observer, "download", repr(source)):
            self.backend.read_buffer(source.handle, out, stream=stream)
            await self._wait_stream(stream)
        return out


def extents_of(shape: object) -> tuple[int, ...]:
    """A shape's extents; those of an integer are one dimension's.

    Raises:
        InvalidType: it is no sequence.
    """
    shape = to_integer(shape)
    if isinstance(shape, int):
        return (shape,)
    if not isinstance(shape, Sequence) or isinstance(shape, (str, bytes)):
        raise InvalidType("shape", shape, "an integer, or a sequence of them")
    return to_integers(shape)


def _element_type(host: NDArray[np.generic], dtype: DType | None) -> DType:
    if dtype is None:
        return DType.from_numpy(host.dtype)
    if not isinstance(dtype, DType):
        raise InvalidType("upload.dtype", dtype, "a DType")
    if host.dtype.hasobject or dtype.size_bytes != host.dtype.itemsize:
        raise InvalidValue(
            "upload.dtype", dtype, f"a dtype as wide as the array's {host.dtype}"
        )
    return dtype


def _numpy_dtype(array: DeviceArray) -> np.dtype[np.generic]:
    """The dtype of an array's elements on the host; numpy has no name for bf16."""
    dtype = array.dtype
    return np.dtype("uint16" if dtype is DType.BF16 else dtype.numpy)


def check_array(name: str, array: object) -> None:
    """Refuse what is no array of a device.

    Raises:
        InvalidType: it is none.
    """
    if not isinstance(array, DeviceArray):
        raise InvalidType(name, array, "a DeviceArray")


def _check_dtype(call: str, array: DeviceArray, host: NDArray[np.generic]) -> None:
    expected = _numpy_dtype(array)
    if host.dtype != expected:
        raise InvalidBuffer(
            f"{call}: the host's array is of {host.dtype}, {array!r} takes {expected}; "
            f"to copy the bits as they are, pass its .view({expected.name!r})"
        )


def _check_contiguous(call: str, host: NDArray[np.generic]) -> None:
    if not host.flags.c_contiguous:
        raise InvalidBuffer(
            f"{call}: an array of shape {host.shape} and strides {host.strides} is not "
            "C-contiguous; pass numpy.ascontiguousarray(array)"
        )


def _check_out(source: DeviceArray, out: NDArray[np.generic]) -> None:
    if not isinstance(out, np.ndarray):
        raise InvalidType("download.out", out, "a numpy array")
    if out.nbytes < source.byte_size:
        raise ReadBufferDestinationTooSmall(
            f"download: {source!r} has {source.byte_size} bytes, out has {out.nbytes}"
        )
    if out.nbytes > source.byte_size:
        raise InvalidBuffer(
            f"download: {source!r} has {source.byte_size} bytes, out has {out.nbytes}"
        )
    _check_dtype("download", source, out)
