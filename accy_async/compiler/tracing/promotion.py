"""Operands of mixed kinds brought to one dtype and one shape, as numpy does it.

Python's numbers are weak: they take the dtype of the arrays beside them, unless
theirs is of a higher kind (a float beside integers). numpy's arrays and scalars
are constants of their own dtypes. The rules are those of numpy 2 (NEP 50), asked
through `numpy.ufunc.resolve_dtypes`; bf16, which numpy lacks, takes f16's place
in them, and the two together give f32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from accy_async.compiler.semantic import TensorType, Value
from accy_async.compiler.semantic.numbers import round_bf16
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.places import refusal
from accy_async.compiler.tracing.state import current
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue
from accy_async.values import is_masked

__all__ = [
    "as_array",
    "broadcast_shape",
    "describe",
    "dtype_of",
    "fits",
    "lift",
    "promote",
    "resolve",
    "shape_of",
]

_WEAK = (bool, int, float)


def is_weak(operand: object) -> bool:
    """Whether it is one of Python's own numbers."""
    return type(operand) in _WEAK


def fits(operand: object, dtype: DType) -> bool:
    """False for a whole number of Python's that an integer dtype does not hold."""
    if type(operand) is not int or not dtype.is_integer:
        return True
    return dtype.minimum <= operand <= dtype.maximum


def shape_of(operand: object) -> tuple[int, ...]:
    """The shape; a number's is empty."""
    if isinstance(operand, TracedArray):
        return operand.shape
    return np.asarray(operand).shape


def dtype_of(operand: object) -> DType:
    """The dtype an operand has by itself; a Python number has numpy's for it."""
    if isinstance(operand, TracedArray):
        return operand.type.dtype
    if is_masked(operand):
        raise refusal("a masked array is none of a program's; take its .filled(value)")
    try:
        return DType.from_numpy(np.asarray(operand).dtype)
    except InvalidValue:
        raise refusal(f"{describe(operand)} holds no numbers that are traced") from None


def describe(operand: object) -> str:
    """An operand as messages show it."""
    if isinstance(operand, TracedArray):
        return str(operand.type)
    if is_weak(operand):
        return repr(operand)
    array = np.asarray(operand)
    try:
        return str(TensorType(DType.from_numpy(array.dtype), array.shape))
    except ValueError:
        return f"{type(operand).__name__} {array.dtype}{list(array.shape)}"


def resolve(ufunc: np.ufunc, operands: Sequence[object]) -> list[DType]:
    """The dtypes of a ufunc's inputs and outputs for these operands.

    Raises:
        InvalidProgram: numpy has no loop for them.
    """
    stand_in = {DType.BF16: np.dtype(np.float16)}
    asked: list[Any] = []
    halves = set()
    for operand in operands:
        if is_weak(operand):
            # A truth value is not weak to numpy: it has a dtype of its own.
            weak = type(operand)
            asked.append(np.dtype(bool) if weak is bool else weak)
            continue
        dtype = dtype_of(operand)
        halves.add(dtype)
        asked.append(stand_in.get(dtype) or dtype.numpy)
    try:
        found = ufunc.resolve_dtypes((*asked, *(None for _ in range(ufunc.nout))))
    except TypeError:
        listed = ", ".join(describe(operand) for operand in operands)
        raise refusal(f"is not defined on {listed}", operation=ufunc.__name__) from None
    dtypes = [DType.from_numpy(dtype) for dtype in found]
    if DType.BF16 in halves:
        mixed = DType.F16 in halves
        replaced = DType.F32 if mixed else DType.BF16
        dtypes = [replaced if dtype is DType.F16 else dtype for dtype in dtypes]
    return dtypes


def promote(operands: Sequence[object]) -> DType:
    """The dtype that arrays joined or chosen between get."""
    strong = [operand for operand in operands if not is_weak(operand)]
    weak = [operand for operand in operands if is_weak(operand)]
    first, *rest = (*strong, *weak)
    dtype = dtype_of(first)
    for operand in rest:
        dtype = _pair(dtype, operand)
    return dtype


def _pair(dtype: DType, operand: object) -> DType:
    if is_weak(operand):
        return _beside(dtype, operand)
    theirs = dtype_of(operand)
    ours, other = (
        DType.F16 if half is DType.BF16 else half for half in (dtype, theirs)
    )
    found = DType.from_numpy(np.result_type(ours.numpy, other.numpy))
    if found is not DType.F16 or DType.BF16 not in (dtype, theirs):
        return found
    return DType.F32 if DType.F16 in (dtype, theirs) else DType.BF16


def _beside(dtype: DType, number: object) -> DType:
    """The dtype of both: a weak number keeps it, unless it is of a higher kind."""
    if isinstance(number, float) and not dtype.is_float:
        return DType.F64
    if dtype is DType.BOOL and not isinstance(number, bool):
        return DType.I64
    return dtype


def broadcast_shape(name: str, operands: Sequence[object]) -> tuple[int, ...]:
    """The shape that all operands are broadcast to.

    Raises:
        InvalidProgram: there is none.
    """
    try:
        return np.broadcast_shapes(*(shape_of(operand) for operand in operands))
    except ValueError:
        listed = ", ".join(describe(operand) for operand in operands)
        raise refusal(f"shapes do not broadcast: {listed}", operation=name) from None


def lift(
    operand: object, dtype: DType | None = None, shape: tuple[int, ...] | None = None
) -> Value:
    """An operand as a value of the innermost trace, of this dtype and shape.

    None leaves the dtype or the shape as it is.
    """
    builder = current().builder
    if isinstance(operand, TracedArray):
        value = operand.value
        if dtype is not None:
            value = builder.convert(value, dtype)
        return value if shape is None else builder.broadcast(value, shape)
    wanted = dtype_of(operand) if dtype is None else dtype
    target = shape_of(operand) if shape is None else shape
    type = TensorType(wanted, target)
    if is_weak(operand):
        number: Any = operand
        if wanted.is_float:
            # What a narrow float does not hold is infinite in it, as numpy has it.
            number = float(number)
            if abs(number) > wanted.maximum:
                number = math.copysign(math.inf, number)
        elif wanted is DType.BOOL:
            number = bool(number)
        elif wanted.is_integer:
            number = int(number)
        return builder.constant(number, type)
    array = np.asarray(operand)
    with np.errstate(all="ignore"):
        if wanted is DType.BF16:
            array = round_bf16(array.astype(np.float64))
        else:
            array = array.astype(wanted.numpy)
    if array.size == 1:
        return builder.constant(array.reshape(()), type)
    # The array as it is, and then repeated: a constant takes no more room than that.
    small = builder.constant(array, TensorType(wanted, array.shape))
    return builder.broadcast(small, target)


def as_array(operand: object) -> TracedArray:
    """An operand as a traced array of its own dtype and shape."""
    if isinstance(operand, TracedArray):
        return operand
    return TracedArray(current(), lift(operand))
