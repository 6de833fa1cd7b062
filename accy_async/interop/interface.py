"""The CUDA array interface, version 3: a dictionary that describes device memory.

(Numba documentation, "CUDA Array Interface (Version 3)".) It says nothing of who
frees the memory: whoever takes it keeps the object that showed it alive.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from accy_async.dtypes import DType
from accy_async.errors import ExchangeRefused, InvalidType, InvalidValue
from accy_async.interop.dlpack import CUDA, Tensor

__all__ = ["Interface", "make_interface", "read_interface"]

Interface = dict[str, object]


def make_interface(tensor: Tensor, stream: int | None) -> Interface:
    """The dictionary of a packed array.

    Args:
        tensor: its memory.
        stream: the stream that a consumer has to wait for; None for no wait.

    Raises:
        ExchangeRefused: bf16, for which numpy has no name.
    """
    if tensor.dtype is DType.BF16:
        raise ExchangeRefused(
            "the CUDA array interface names dtypes as numpy does, which has no bf16; "
            "share the array through DLPack"
        )
    return {
        "shape": tensor.shape,
        "typestr": tensor.dtype.numpy.str,
        "data": (tensor.address, tensor.is_read_only),
        "strides": None,
        "stream": stream,
        "version": 3,
    }


def read_interface(
    interface: object, what: str, dtype: DType | None = None
) -> tuple[Tensor, int | None]:
    """The memory that an interface describes, and the stream to wait for.

    Args:
        interface: the dictionary.
        what: names the array in messages.
        dtype: the element type, where numpy's says too little (bf16).

    Returns:
        The memory, on device 0 as the interface names none; and the stream's
        number: 1 for the legacy default stream, 2 for the thread's, a handle, or
        None where nothing has to be waited for.

    Raises:
        ExchangeRefused: it is malformed, masked, or of a dtype that has no counterpart.
    """
    if not isinstance(interface, Mapping):
        raise ExchangeRefused(f"{what}: __cuda_array_interface__ is no dictionary")
    try:
        shape = tuple(int(extent) for extent in interface["shape"])
        typestr = interface["typestr"]
        address, is_read_only = interface["data"]
        strides = interface.get("strides")
        given = np.dtype(typestr)
        address = int(address or 0)
        stream = interface.get("stream")
        steps = None if strides is None else tuple(int(step) for step in strides)
    except (KeyError, TypeError, ValueError) as error:
        raise ExchangeRefused(
            f"{what}: __cuda_array_interface__ is malformed: "
            f"{type(error).__name__}: {error}"
        ) from error
    if interface.get("mask") is not None:
        raise ExchangeRefused(f"{what}: a masked array; its mask would be lost")
    if stream is not None and (isinstance(stream, bool) or not isinstance(stream, int)):
        raise ExchangeRefused(f"{what}: stream {stream!r}, expected an integer or None")
    if stream == 0:
        raise ExchangeRefused(
            f"{what}: stream 0 does not say which default stream it means; expected 1 "
            "or 2"
        )
    element = _element(given, dtype, what)
    if steps is not None and any(step % element.size_bytes for step in steps):
        raise ExchangeRefused(f"{what}: strides {steps} are no multiples of {element}")
    tensor = Tensor(
        address=address,
        device=(CUDA, 0),
        dtype=element,
        shape=shape,
        strides=None
        if steps is None
        else tuple(s // element.size_bytes for s in steps),
        is_read_only=bool(is_read_only),
    )
    return tensor, stream


def _element(given: np.dtype[np.generic], dtype: DType | None, what: str) -> DType:
    if dtype is not None:
        return dtype_of_width(dtype, given.itemsize, what)
    try:
        return DType.from_numpy(given)
    except InvalidValue as error:
        raise ExchangeRefused(
            f"{what}: elements of {given} have no counterpart; expected one of "
            + ", ".join(str(member) for member in DType)
        ) from error


def dtype_of_width(dtype: DType, size_bytes: int, what: str) -> DType:
    """The dtype that the caller names, if the elements are as wide."""
    if not isinstance(dtype, DType):
        raise InvalidType(f"{what}.dtype", dtype, "a DType")
    if dtype.size_bytes != size_bytes:
        raise ExchangeRefused(
            f"{what}: elements of {size_bytes} bytes, which cannot be taken as {dtype}"
        )
    return dtype
