"""Traced arrays: what a traced function is called with instead of numpy's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from accy_async.compiler.semantic import TensorType, Value
from accy_async.compiler.tracing.places import refusal, unknown
from accy_async.compiler.tracing.registry import FUNCTIONS
from accy_async.compiler.tracing.state import Trace, current
from accy_async.dtypes import DType

__all__ = ["TracedArray", "UFuncTracer"]

UFuncTracer = Callable[[np.ufunc, str, tuple[object, ...], dict[str, Any]], object]
_WHERE = "use numpy.where, or accy_async.compiler.tensor.repeat and iterate for loops"


class TracedArray(NDArrayOperatorsMixin):
    """An array of known shape and dtype whose elements are not known yet.

    It takes numpy's operators, ufuncs, functions and most methods, and records
    what they compute. Shapes are plain integers; asking for an element's value,
    as ``if`` does, is refused with the line that asked.

    ``x += y`` changes this array, and so all names of it, as numpy does; where
    the array is an argument of the traced function, or a view may be had of it,
    that is refused. Items cannot be assigned: see `accy_async.compiler.tensor`
    for scatter and scatter_add.
    """

    __array_priority__ = 1000

    # Each is numpy's function of that name, with the array as its first argument.
    sum: Callable[..., TracedArray]
    prod: Callable[..., TracedArray]
    mean: Callable[..., TracedArray]
    var: Callable[..., TracedArray]
    std: Callable[..., TracedArray]
    min: Callable[..., TracedArray]
    max: Callable[..., TracedArray]
    any: Callable[..., TracedArray]
    all: Callable[..., TracedArray]
    argmin: Callable[..., TracedArray]
    argmax: Callable[..., TracedArray]
    cumsum: Callable[..., TracedArray]
    cumprod: Callable[..., TracedArray]
    ravel: Callable[..., TracedArray]
    flatten: Callable[..., TracedArray]
    squeeze: Callable[..., TracedArray]
    swapaxes: Callable[..., TracedArray]
    take: Callable[..., TracedArray]
    repeat: Callable[..., TracedArray]
    clip: Callable[..., TracedArray]
    diagonal: Callable[..., TracedArray]
    trace: Callable[..., TracedArray]
    round: Callable[..., TracedArray]

    trace_ufunc: UFuncTracer
    """Set by the module that knows numpy's ufuncs."""

    def __init__(self, trace: Trace, value: Value, *, fresh: bool = True) -> None:
        self._trace = trace
        self._value = value
        self._fresh = fresh

    @property
    def value(self) -> Value:
        """The value in the innermost trace."""
        return current().own(self._trace, self._value)

    @property
    def type(self) -> TensorType:
        """The tensor type."""
        return self._value.type

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, plain integers."""
        return self._value.shape

    @property
    def dtype(self) -> np.dtype[Any] | DType:
        """Numpy's dtype; `DType.BF16` for bf16, which numpy lacks."""
        dtype = self._value.dtype
        return dtype if dtype is DType.BF16 else dtype.numpy

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return self._value.rank

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def T(self) -> TracedArray:  # noqa: N802 - numpy's name
        """The axes in the opposite order."""
        return self.transpose()

    @property
    def mT(self) -> TracedArray:  # noqa: N802 - numpy's name
        """The last two axes exchanged."""
        return _call(np.swapaxes, self, -1, -2)

    def __repr__(self) -> str:
        return f"TracedArray({self.type})"

    # ------------------------------------------------------------ numpy's protocols

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **options: Any
    ) -> object:
        return TracedArray.trace_ufunc(ufunc, method, inputs, options)

    def __array_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        rule = FUNCTIONS.get(func)
        if rule is None:
            raise refusal(f"numpy.{func.__name__} is not traced")
        return rule(*args, **kwargs)

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray[Any, Any]:
        raise unknown(
            "it cannot be made a numpy array",
            "numpy.stack joins traced arrays where numpy.array would",
        )

    # ------------------------------------------------------------ values wanted

    def __bool__(self) -> bool:
        raise unknown("it is neither true nor false", _WHERE)

    def __int__(self) -> int:
        raise unknown("int() cannot take it", "x.astype(int) converts each element")

    def __float__(self) -> float:
        raise unknown("float() cannot take it", "x.astype(float) converts each element")

    def __complex__(self) -> complex:
        raise unknown("complex() cannot take it", "only real dtypes are traced")

    def __index__(self) -> int:
        raise unknown("it cannot be an index of Python's", "index with x[i], or take")

    def item(self, *_: object) -> object:
        """Refused: there is no value yet."""
        raise unknown("it has no item()", "return the array instead")

    def tolist(self) -> object:
        """Refused: there are no values yet."""
        raise unknown("it has no tolist()", "return the array instead")

    def __contains__(self, item: object) -> bool:
        raise unknown("'in' cannot be answered", "numpy.any(x == item) is traced")

    __hash__ = None  # type: ignore[assignment]

    # ------------------------------------------------------------ items

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[TracedArray]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, key: object) -> TracedArray:
        result: TracedArray = FUNCTIONS[TracedArray.__getitem__](self, key)
        return result

    @property
    def at(self) -> NoReturn:
        """Not there, unlike other libraries' arrays: what is, is named."""
        raise refusal(
            "a traced array has no `at`; scatter and scatter_add of "
            "accy_async.compiler.tensor make a changed array"
        )

    def __setitem__(self, key: object, value: object) -> None:
        # x[i] += y arrives here too, with what it read and changed.
        raise refusal(
            "items of a traced array cannot be assigned; numpy.where, or scatter and "
            "scatter_add of accy_async.compiler.tensor, make a changed array"
        )

    # ------------------------------------------------------------ in place

    def change(self, result: TracedArray, ufunc: str) -> TracedArray:
        """Become another value, as an in-place operator asks.

        Raises:
            InvalidProgram: the array may be an argument, or share its elements.
        """
        if not self._fresh or self._trace is not current():
            raise refusal(
                f"numpy.{ufunc} in place would change an argument, a view, or an array "
                "around the loop; write x = x + y for x += y"
            )
        if result.shape != self.shape:
            raise refusal(f"{result.type} does not fit into {self.type} in place")
        builder = current().builder
        self._value = builder.convert(result.value, self.type.dtype)
        return self

    def viewed(self, value: Value) -> TracedArray:
        """An array that numpy would give as a view of this one."""
        self._fresh = False
        return TracedArray(current(), value, fresh=False)

    # ------------------------------------------------------------ methods

    def astype(self, dtype: object, *_: object, **__: object) -> TracedArray:
        """The numbers in another dtype, as a new array."""
        wanted = dtype if isinstance(dtype, DType) else _from_numpy(dtype)
        return TracedArray(current(), current().builder.convert(self.value, wanted))

    def copy(self, order: str = "C") -> TracedArray:
        """The same elements as a new array."""
        return TracedArray(current(), self.value)

    def reshape(self, *shape: Any, **options: Any) -> TracedArray:
        """numpy.reshape; the shape as a tuple or as arguments."""
        return _call(
            np.reshape, self, shape[0] if len(shape) == 1 else shape, **options
        )

    def transpose(self, *axes: Any) -> TracedArray:
        """numpy.transpose; the axes as a tuple or as arguments."""
        return _call(np.transpose, self, axes[0] if len(axes) == 1 else axes or None)

    def dot(self, other: object) -> TracedArray:
        """numpy.dot."""
        return _call(np.dot, self, other)


_NAMES = {member.value: member for member in DType} | {"i1": DType.BOOL}


def _from_numpy(dtype: object) -> DType:
    """Of numpy's dtypes, and of our names for them: ``f32``."""
    ours = _NAMES.get(dtype) if isinstance(dtype, str) else None
    return DType.from_numpy(dtype) if ours is None else ours


def _call(
    function: Callable[..., Any], *args: object, **options: object
) -> TracedArray:
    result: TracedArray = FUNCTIONS[function](*args, **options)
    return result


def _method(name: str, function: Callable[..., Any]) -> None:
    def method(self: TracedArray, *args: object, **options: object) -> object:
        return FUNCTIONS[function](self, *args, **options)

    method.__name__ = name
    method.__qualname__ = f"TracedArray.{name}"
    method.__doc__ = f"numpy.{function.__name__} of this array."
    setattr(TracedArray, name, method)


_METHODS: Sequence[str] = [
    "sum",
    "prod",
    "mean",
    "var",
    "std",
    "min",
    "max",
    "any",
    "all",
    "argmin",
    "argmax",
    "cumsum",
    "cumprod",
    "ravel",
    "squeeze",
    "swapaxes",
    "take",
    "repeat",
    "clip",
    "diagonal",
    "trace",
    "round",
]
for _name in _METHODS:
    _method(_name, getattr(np, _name))
_method("flatten", np.ravel)
