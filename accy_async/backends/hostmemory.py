"""Host memory as copies see it: flat, contiguous bytes that stay where they are."""

from __future__ import annotations

from typing import cast

import attrs
import numpy as np
from numpy.typing import NDArray

from accy_async.errors import InvalidBuffer
from accy_async.values import refuse_masked

__all__ = ["HostMemory", "host_array", "host_bytes"]


@attrs.frozen(eq=False)
class HostMemory:
    """A run of bytes in host memory, which it keeps alive.

    Attributes:
        array: the bytes, one-dimensional and C-contiguous.
    """

    array: NDArray[np.uint8]

    @property
    def byte_size(self) -> int:
        """How many bytes there are."""
        return self.array.nbytes

    @property
    def address(self) -> int:
        """Where the first one lies."""
        return int(self.array.ctypes.data)

    def first(self, byte_size: int) -> HostMemory:
        """The first so many bytes."""
        return HostMemory(self.array[:byte_size])


def host_array(data: object) -> NDArray[np.generic]:
    """An array as it is, or one of what has the buffer protocol; nothing is copied.

    Raises:
        InvalidBuffer: it has no bytes of its own.
        InvalidValue: it has a mask.
    """
    if isinstance(data, np.ndarray):
        refuse_masked("host memory", data)
        return np.asarray(cast("NDArray[np.generic]", data))
    try:
        return np.asarray(memoryview(data))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InvalidBuffer(
            f"host memory: got {type(data).__name__}, expected an array or bytes"
        ) from error


def host_bytes(data: object, *, writable: bool) -> HostMemory:
    """The bytes of an array or of anything with the buffer protocol, not copied.

    Raises:
        InvalidBuffer: it has no bytes of its own, is not C-contiguous, holds
            objects, or is read-only where it is to be written.
        InvalidValue: it has a mask.
    """
    array = host_array(data)
    if array.dtype.hasobject:
        raise InvalidBuffer(f"host memory: an array of {array.dtype} holds no values")
    if not array.flags.c_contiguous:
        raise InvalidBuffer(
            f"host memory: an array of shape {array.shape} and strides {array.strides} "
            "is not C-contiguous; pass numpy.ascontiguousarray(array)"
        )
    if writable and not array.flags.writeable:
        raise InvalidBuffer("host memory: the array is read-only")
    return HostMemory(array.reshape(-1).view(np.uint8))
