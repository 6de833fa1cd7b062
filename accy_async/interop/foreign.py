"""What another library's array is: its memory, who keeps it, whom to wait for."""

from __future__ import annotations

import math
import weakref

import attrs
import numpy as np

from accy_async.dtypes import DType
from accy_async.errors import ExchangeRefused, InvalidType, InvalidValue
from accy_async.interop.dlpack import (
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    DEVICE_NAMES,
    VERSION,
    Tensor,
    take_capsule,
)
from accy_async.interop.interface import dtype_of_width, read_interface
from accy_async.values import refuse_masked

__all__ = ["ForeignArray", "describe", "device_of", "is_foreign"]


@attrs.frozen(kw_only=True, eq=False)
class ForeignArray:
    """An array of another library, taken as it is.

    Attributes:
        tensor: its memory: packed, in C order.
        keeper: keeps the memory alive.
        stream: the stream, by its number, that its last writes are on; None where
            nothing has to be waited for, or the producer has seen to it.
    """

    tensor: Tensor
    keeper: object
    stream: int | None = None

    @property
    def byte_size(self) -> int:
        """How many bytes its elements take."""
        return math.prod(self.tensor.shape) * self.tensor.dtype.size_bytes


_PLAIN: weakref.WeakSet[type] = weakref.WeakSet()
"""Types of arrays that know nothing of versioned capsules."""


def is_foreign(value: object) -> bool:
    """True where a value offers an array's memory, by whichever protocol."""
    if isinstance(value, np.ndarray):
        return True
    kind = type(value)
    # Of the type for DLPack, which is methods; of the object for the interface, which
    # not every array of a library has.
    return hasattr(kind, "__dlpack__") or hasattr(value, "__cuda_array_interface__")


def device_of(value: object, what: str) -> tuple[int, int]:
    """DLPack's device type and index of an array."""
    if isinstance(value, np.ndarray):
        return CPU, 0
    ask = getattr(value, "__dlpack_device__", None)
    if ask is not None:
        try:
            kind, index = ask()
            return int(kind), int(index)
        except Exception as error:
            raise ExchangeRefused(
                f"{what}: {type(value).__name__} does not say where it is: {error}"
            ) from error
    if hasattr(value, "__cuda_array_interface__"):
        return CUDA, 0  # whose pointer tells which
    raise InvalidType(what, value, "an array with DLPack or the CUDA array interface")


def describe(
    value: object,
    *,
    there: tuple[int, int],
    on_cuda: bool,
    stream: int | None,
    what: str,
    dtype: DType | None,
) -> ForeignArray:
    """Take another library's array.

    Args:
        value: the array.
        there: what `device_of` says of it.
        on_cuda: True to take memory of a GPU, False to take the processor's.
        stream: the stream, by its number, that a producer has to have waiting for its
            last writes; -1 for none.
        what: names the array in messages.
        dtype: the element type, where the other library's says too little.

    Raises:
        ExchangeRefused: its memory is elsewhere, not packed in C order, or holds what
            has no counterpart here; or its library refuses.
    """
    kind, _ = there
    wanted = (CUDA, CUDA_MANAGED) if on_cuda else (CPU, CUDA_HOST, CUDA_MANAGED)
    if kind not in wanted:
        raise ExchangeRefused(
            f"{what}: its memory is {DEVICE_NAMES.get(kind, f'device type {kind}')}, "
            f"expected {'CUDA' if on_cuda else 'CPU'}; copy it there first"
        )
    if isinstance(value, np.ndarray):
        found = _of_numpy(value, what, dtype)
    elif hasattr(value, "__dlpack__"):
        found = _of_dlpack(value, stream if on_cuda else None, what, dtype)
    else:
        tensor, waited = read_interface(
            value.__cuda_array_interface__,  # type: ignore[attr-defined]
            what,
            dtype,
        )
        found = ForeignArray(tensor=tensor, keeper=value, stream=waited)
    check_packed(found.tensor, what)
    return found


def _of_numpy(
    value: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    what: str,
    dtype: DType | None,
) -> ForeignArray:
    if dtype is not None and not value.dtype.hasobject:
        element = dtype_of_width(dtype, value.dtype.itemsize, what)
    else:
        try:
            element = DType.from_numpy(value.dtype)
        except InvalidValue as error:
            raise ExchangeRefused(
                f"{what}: elements of {value.dtype} have no counterpart; expected one "
                "of " + ", ".join(str(member) for member in DType)
            ) from error
    refuse_masked(what, value)
    strides = None
    if not value.flags.c_contiguous:
        # Those of a field of structures need be no multiples of its width.
        width = element.size_bytes
        if any(step % width for step in value.strides):
            raise ExchangeRefused(
                f"{what}: strides {value.strides} are no multiples of {element}"
            )
        strides = tuple(step // width for step in value.strides)
    tensor = Tensor(
        address=value.__array_interface__["data"][0],
        device=(CPU, 0),
        dtype=element,
        shape=value.shape,
        strides=strides,
        is_read_only=not value.flags.writeable,
    )
    return ForeignArray(tensor=tensor, keeper=value)


def _of_dlpack(
    value: object, stream: int | None, what: str, dtype: DType | None
) -> ForeignArray:
    """Ask for a versioned capsule, and for a plain one from who knows no other."""
    ask = value.__dlpack__  # type: ignore[attr-defined]
    keywords: dict[str, object] = {} if stream is None else {"stream": stream}
    kind = type(value)
    try:
        try:
            if kind in _PLAIN:
                capsule = ask(**keywords)
            else:
                capsule = ask(max_version=VERSION, **keywords)
        except TypeError:
            if kind in _PLAIN:
                raise
            capsule = ask(**keywords)
            _PLAIN.add(kind)
    except ExchangeRefused:
        raise
    except Exception as error:
        raise ExchangeRefused(
            f"{what}: {type(value).__name__} refuses to share it: {error}"
        ) from error
    taken = take_capsule(capsule, what)
    tensor = taken.tensor
    if dtype is not None:
        width = tensor.dtype.size_bytes
        tensor = attrs.evolve(tensor, dtype=dtype_of_width(dtype, width, what))
    return ForeignArray(tensor=tensor, keeper=taken.keeper)


def check_packed(tensor: Tensor, what: str) -> None:
    """Refuse what is not packed in C order.

    Empty arrays are packed, whatever their strides; so is a dimension of extent 1.

    Raises:
        ExchangeRefused: it is strided, reversed, transposed or broadcast.
    """
    if any(extent < 0 for extent in tensor.shape):
        raise ExchangeRefused(f"{what}: a shape of {tensor.shape}")
    if 0 in tensor.shape:
        return
    if not tensor.address:
        raise ExchangeRefused(f"{what}: {tensor.shape} elements at address 0")
    if tensor.address % tensor.dtype.size_bytes:
        raise ExchangeRefused(
            f"{what}: address {tensor.address:#x} is not aligned for {tensor.dtype}"
        )
    if tensor.strides is None:
        return
    step = 1
    for extent, stride in zip(
        reversed(tensor.shape), reversed(tensor.strides), strict=True
    ):
        if extent != 1 and stride != step:
            raise ExchangeRefused(
                f"{what}: shape {tensor.shape} with strides {tensor.strides} (in "
                "elements) is not packed in C order; make it contiguous first"
            )
        step *= extent
