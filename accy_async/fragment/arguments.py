"""Arguments of a call: what each array is, and where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from accy_async.backends.adopting import adopt_array
from accy_async.backends.array import DeviceArray
from accy_async.backends.hostmemory import host_array, host_bytes
from accy_async.compiler.semantic import TensorType
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    InvalidBuffer,
    InvalidType,
    InvalidValue,
    LaunchArgumentMismatch,
)
from accy_async.interop.dlpack import CPU, CUDA_HOST
from accy_async.interop.foreign import device_of, is_foreign
from accy_async.values import refuse_masked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accy_async.artifact.planned import ArtifactPlan
    from accy_async.artifact.slots import PlannedSlot
    from accy_async.backends.base import Backend

__all__ = ["HostArray", "array_type", "check_inputs", "host_dtype", "take_array"]

HostArray = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

_BY_NAME: dict[str, DType] = {
    **{dtype.numpy.name: dtype for dtype in DType if dtype is not DType.BF16},
    "bfloat16": DType.BF16,
}
_KNOWN: dict[object, DType] = {}
"""Dtypes of other libraries that were met, which are objects that stay."""

_MOST_KNOWN = 256


def array_type(value: object) -> TensorType | None:
    """The type of an array of any library; None for what is no array.

    Raises:
        InvalidType: its elements have no counterpart here.
    """
    shape = getattr(value, "shape", None)
    dtype = getattr(value, "dtype", None)
    if shape is None or dtype is None or isinstance(value, type):
        return None
    if isinstance(value, TensorType):
        return value
    return TensorType(_dtype(value, dtype), tuple(shape))


def _dtype(value: object, dtype: object) -> DType:
    if isinstance(dtype, DType):
        return dtype
    known = _KNOWN.get(dtype)
    if known is None:
        name = str(dtype).rpartition(".")[2]  # torch.float32, jax's and numpy's float32
        known = _BY_NAME.get(name)
        if known is None:
            expected = "an array of " + ", ".join(_BY_NAME)
            shape = tuple(getattr(value, "shape", ()))
            raise InvalidType("an argument", f"{dtype}{list(shape)}", expected)
        if len(_KNOWN) < _MOST_KNOWN:
            _KNOWN[dtype] = known
    return known


def host_dtype(dtype: DType) -> np.dtype[np.generic]:
    """What numpy calls an element; bf16, which it has no name for, is uint16."""
    return np.dtype("uint16") if dtype is DType.BF16 else dtype.numpy


def check_inputs(plan: ArtifactPlan, inputs: Sequence[object]) -> None:
    """Refuse inputs that are not the plan's, before anything is allocated.

    Bytes may be of any parameter; an array of numbers is of its dtype, or it would be
    read as something else. Shapes are not looked at.

    Raises:
        LaunchArgumentMismatch: more or fewer than it takes, or one of another size or
            dtype.
        InvalidBuffer: one is no host memory, or not contiguous.
    """
    wanted = plan.input_slot_ids
    if len(inputs) != len(wanted):
        raise LaunchArgumentMismatch(
            f"{plan.name!r} takes {len(wanted)} inputs, {len(inputs)} were given"
        )
    for index, (slot_id, data) in enumerate(zip(wanted, inputs, strict=True)):
        slot = plan.slot(slot_id)
        given = host_array(data).dtype
        size = host_bytes(data, writable=False).byte_size
        if size != slot.byte_size:
            raise LaunchArgumentMismatch(
                f"{plan.name!r}: input {index} of {size} bytes, expected the "
                f"{slot.byte_size} of {slot.dtype}{list(slot.shape)}"
            )
        if not (_holds(given, slot.dtype) or _is_of_bytes(given)):
            raise LaunchArgumentMismatch(
                f"{plan.name!r}: input {index} of {given}, expected "
                f"{slot.dtype}{list(slot.shape)}, or its bytes"
            )


def _holds(given: np.dtype[np.generic], dtype: DType) -> bool:
    """Whether numpy's elements are those; bf16 is uint16 or ml_dtypes' bfloat16."""
    return given == host_dtype(dtype) or (
        dtype is DType.BF16 and given.name == "bfloat16"
    )


def _is_of_bytes(given: np.dtype[np.generic]) -> bool:
    """Whether numpy's elements are bytes of anything, and no numbers."""
    return given.kind in "SV" or (given.kind in "iu" and given.itemsize == 1)


def take_array(
    backend: Backend, value: object, slot: PlannedSlot, name: str
) -> DeviceArray | HostArray:
    """An argument as it is used: on the device, or packed in host memory.

    What lies on the device is taken without a copy, whichever library's it is. Host
    memory that is not C-contiguous is copied into such that is. A number of Python's
    is taken where a number is, of any dtype that holds it.

    Raises:
        LaunchArgumentMismatch: it is of another type than the program's parameter.
        InvalidBuffer: it was freed, or is of another device.
        ExchangeRefused: another library's array cannot be taken as it is.
        InvalidValue: it has a mask.
    """
    if isinstance(value, DeviceArray):
        if value.is_freed or not value.is_of(backend):
            why = backend.foreign(value.handle) or "is of another backend"
            if value.is_freed:
                why = "was freed"
            raise InvalidBuffer(f"{name}: {value!r} {why}")
        if value.dtype is not slot.dtype or value.shape != slot.shape:
            raise _mismatch(name, f"{value.dtype}{list(value.shape)}", slot)
        return value
    if not isinstance(value, np.ndarray):
        if is_foreign(value) and not _is_of_host(backend, value, name):
            array = adopt_array(backend, value, what=name)
            return take_array(backend, array, slot, name)
        if isinstance(value, (tuple, list, dict)):
            kind = type(value).__name__
            raise _mismatch(name, f"a {kind} of {len(value)}", slot)
        if type(value) in (bool, int, float) and not slot.shape:
            return _number(value, slot, name)
        value = np.from_dlpack(value) if is_foreign(value) else np.asarray(value)  # type: ignore[arg-type]
    refuse_masked(name, value)
    return _take_host(np.asarray(value), slot, name)


def _number(value: object, slot: PlannedSlot, name: str) -> HostArray:
    """A number of Python's as the array without axes that is taken."""
    try:
        data = ScalarArgument.of(slot.dtype, value).to_bytes()
    except (InvalidType, InvalidValue) as error:
        raise _mismatch(name, repr(value), slot) from error
    return np.frombuffer(data, host_dtype(slot.dtype)).reshape(())


def _is_of_host(backend: Backend, value: object, name: str) -> bool:
    """True for memory of the host, where the device's is another."""
    place = backend.exchange_device
    is_host = device_of(value, name)[0] in (CPU, CUDA_HOST)
    return is_host and (place is None or place[0] != CPU)


def _take_host(value: HostArray, slot: PlannedSlot, name: str) -> HostArray:
    wanted = host_dtype(slot.dtype)
    if not _holds(value.dtype, slot.dtype) or value.shape != slot.shape:
        raise _mismatch(name, f"{value.dtype}{list(value.shape)}", slot)
    if value.dtype != wanted:
        value = value.view(wanted)
    if value.flags.c_contiguous:
        return value
    return np.ascontiguousarray(value).reshape(value.shape)


def _mismatch(name: str, got: str, slot: PlannedSlot) -> LaunchArgumentMismatch:
    return LaunchArgumentMismatch(
        f"{name}: {got}, expected an array of {slot.dtype}{list(slot.shape)}"
    )
