"""Tracing a Python function into a module."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import attrs
import numpy as np

from accy_async.compiler.semantic import (
    Builder,
    ContextLimits,
    Module,
    TensorType,
    evaluate,
)
from accy_async.compiler.semantic.reference import ReferenceKernel
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.calls import argument_names, check_call, title_of
from accy_async.compiler.tracing.promotion import lift
from accy_async.compiler.tracing.state import Trace
from accy_async.compiler.tracing.tree import (
    Structure,
    check_nesting,
    constant_key,
    flatten,
    unhashable,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidProgram, InvalidType, LaunchArgumentMismatch

__all__ = ["Fragment", "TracedProgram", "fragment", "trace", "trace_program"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_MAX_CACHED = 128


@attrs.frozen
class Constant:
    """An argument that is a constant, even where it is a text that writes a type."""

    value: object


@attrs.frozen
class TracedProgram:
    """A module, and how a call's arguments and results lie in its lists.

    ``arguments`` is the nesting of ``(args, kwargs)``, ``statics`` the arguments
    that were no arrays (None where one is), by leaf; ``results`` is the nesting
    of what the function returned.
    """

    module: Module
    arguments: Structure
    statics: tuple[Any, ...]
    results: Structure

    def flatten(self, *args: object, **kwargs: object) -> list[Any]:
        """The arrays of a call, in the order of the module's parameters.

        Raises:
            LaunchArgumentMismatch: nested otherwise than what was traced, or with
                other static arguments.
        """
        structure, leaves = flatten((args, kwargs))
        if structure != self.arguments:
            check_nesting(self.module.name, structure, self.arguments)
        arrays = []
        for leaf, static in zip(leaves, self.statics, strict=True):
            if static is None:
                arrays.append(leaf)
            elif constant_key(static[1]) != constant_key(leaf):
                raise LaunchArgumentMismatch(
                    f"{self.module.name} was traced for {reprlib.repr(static[1])}, "
                    f"got {reprlib.repr(leaf)}"
                )
        return arrays

    def unflatten(self, results: tuple[Any, ...] | list[Any]) -> Any:  # noqa: ANN401
        """The results, nested as the function returned them."""
        return self.results.unflatten(iter(results))

    def evaluate(
        self,
        *args: object,
        precision: Literal["declared", "float64"] = "declared",
        kernels: Mapping[str, ReferenceKernel] | None = None,
        **kwargs: object,
    ) -> Any:  # noqa: ANN401 - as nested as the function's results
        """What the reference gives for these arguments; see `evaluate`."""
        arrays = self.flatten(*args, **kwargs)
        return self.unflatten(
            evaluate(self.module, arrays, precision=precision, kernels=kernels)
        )


def trace(
    function: Callable[..., object],
    *specs: object,
    name: str | None = None,
    limits: ContextLimits = ContextLimits.STANDARD,
    **named: object,
) -> Module:
    """The module that a function of arrays computes.

    Args:
        function: takes and returns arrays, or tuples, lists and dicts of them. It
            is called once, with traced arrays.
        specs: for each argument its type, as a `TensorType`, as text
            (``"f32[2,3]"``), or as an array of that type; nested as the argument
            is. Python's numbers, and whatever else is no array, are passed on as
            they are, and are constants of the program.
        name: of the module; None: the function's.
        limits: how large it may become.
        named: specs of arguments by name.

    Raises:
        LaunchArgumentMismatch: the function takes more arguments, fewer, or others by
            name.
        InvalidProgram: a step cannot be traced; names the line.
        OutOfMemory: it exceeds the limits.
    """
    return trace_program(function, *specs, name=name, limits=limits, **named).module


def trace_program(
    function: Callable[..., object],
    *specs: object,
    name: str | None = None,
    limits: ContextLimits = ContextLimits.STANDARD,
    **named: object,
) -> TracedProgram:
    """As `trace`, with how arguments and results are nested."""
    title = check_call(function, specs, named, name)
    structure, leaves = flatten((specs, named))
    types = [_spec(leaf) for leaf in leaves]
    leaves = [one.value if isinstance(one, Constant) else one for one in leaves]
    labels = _labels(function, structure)
    builder = Builder(title, limits)
    f = builder.begin_function(
        title,
        [type for type in types if type is not None],
        parameter_names=[
            label for label, type in zip(labels, types, strict=True) if type is not None
        ],
    )
    active = Trace(f)
    parameters = iter(f.parameters)
    arguments = [
        leaf if type is None else TracedArray(active, next(parameters), fresh=False)
        for leaf, type in zip(leaves, types, strict=True)
    ]
    with active.active():
        args, kwargs = structure.unflatten(iter(arguments))
        returned, results = flatten(function(*args, **kwargs))
        f.return_([lift(_returned(result, title)) for result in results])
    f.finish()
    statics = tuple(
        (type(leaf), leaf) if kind is None else None
        for leaf, kind in zip(leaves, types, strict=True)
    )
    return TracedProgram(builder.finish(), structure, statics, returned)


def _returned(result: object, name: str) -> object:
    numbers = (TracedArray, np.ndarray, np.generic, bool, int, float)
    if not isinstance(result, numbers):
        raise InvalidProgram(
            f"{name} returned {type(result).__name__} {result!r}, expected arrays"
        )
    return result


def _spec(leaf: object) -> TensorType | None:
    """The type of an array argument; None for what is passed on as it is."""
    if isinstance(leaf, (bool, int, float, type, Constant)):
        return None
    if isinstance(leaf, TensorType):
        return leaf
    if isinstance(leaf, TracedArray):
        return leaf.type
    if isinstance(leaf, str):
        return TensorType.parse(leaf) if leaf.endswith("]") else None
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        return None
    wanted = dtype if isinstance(dtype, DType) else DType.from_numpy(dtype)
    return TensorType(wanted, shape)


def _labels(function: Callable[..., object], structure: Structure) -> list[str]:
    """Names for the parameters: the function's own, with the path within each."""
    positional, keyword = structure.children
    names = argument_names(function, len(positional.children))
    labels: list[str] = []
    for name, child in zip(names, positional.children, strict=True):
        labels += child.names(name)
    return [*labels, *keyword.names("")]


class Fragment(Generic[_P, _R]):
    """A function of arrays that can be traced; made by `fragment`.

    Called, it is the function itself: with numpy's arrays numpy computes, with
    traced arrays it becomes part of what is being traced. `trace` makes a program
    for arguments of some types, once for each combination of them.
    """

    def __init__(
        self,
        function: Callable[_P, _R],
        *,
        name: str | None = None,
        limits: ContextLimits = ContextLimits.STANDARD,
    ) -> None:
        self.function = function
        self.name = name or title_of(function)
        self.limits = limits
        functools.update_wrapper(self, function)
        self._programs: dict[object, TracedProgram] = {}

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """What the function returns."""
        return self.function(*args, **kwargs)

    def trace(self, *specs: object, **named: object) -> TracedProgram:
        """The program for arguments of these types; see `accy_async.compiler.trace`.

        It is kept, and given again for the same types, nesting and constants.

        Raises:
            InvalidType: a constant argument is not hashable.
        """
        structure, leaves = flatten((specs, named))
        types = [_spec(leaf) for leaf in leaves]
        key = (
            structure,
            tuple(
                constant_key(leaf) if kind is None else kind
                for leaf, kind in zip(leaves, types, strict=True)
            ),
        )
        try:
            program = self._programs.get(key)
        except TypeError:
            raise InvalidType(
                f"{self.name}.trace",
                unhashable(leaves),
                "arrays, and hashable constants",
            ) from None
        if program is None:
            program = trace_program(
                self.function, *specs, name=self.name, limits=self.limits, **named
            )
            while len(self._programs) >= _MAX_CACHED:
                self._programs.pop(next(iter(self._programs)))
            self._programs[key] = program
        return program

    def __repr__(self) -> str:
        return f"<Fragment {self.name}: {len(self._programs)} programs>"


def fragment(
    function: Callable[_P, _R] | None = None,
    *,
    name: str | None = None,
    limits: ContextLimits = ContextLimits.STANDARD,
) -> Any:  # noqa: ANN401 - a Fragment, or what makes one of a function
    """A decorator: the function, and its programs for arguments of any types.

    ::

        @fragment
        def norm(x):
            return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True))

        program = norm.trace("f32[8,64]")
        print(program.module)
    """
    if function is None:
        return lambda given: Fragment(given, name=name, limits=limits)
    return Fragment(function, name=name, limits=limits)
