"""Programs evaluated by numpy, operation by operation: what every device must give.

With ``precision="declared"`` every operation rounds to its dtype, as a device
does: f16 and bf16 are computed in f32, sums are kept in the accumulator's dtype.
With ``"float64"`` all floats are doubles and nothing is rounded but at the end,
by whoever compares: the yardstick for errors. Integers and truth values are exact
in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from accy_async.compiler.semantic.calls import KernelCall
from accy_async.compiler.semantic.loops import Loop
from accy_async.compiler.semantic.numbers import Array, carrier
from accy_async.compiler.semantic.program import Function, Module, Operation
from accy_async.compiler.semantic.reference_math import MATH, Case
from accy_async.compiler.semantic.reference_numbers import Arithmetic
from accy_async.compiler.semantic.reference_shape import SHAPE
from accy_async.compiler.semantic.types import TensorType, Value
from accy_async.errors import (
    InvalidValue,
    LaunchArgumentMismatch,
    UnsupportedOperation,
)

__all__ = ["ReferenceKernel", "evaluate"]

ReferenceKernel = Callable[..., Any]
"""Takes the operands' arrays; gives the result's, or a tuple of them."""

_RULES = {**MATH, **SHAPE}


def evaluate(
    program: Function | Module,
    arguments: Sequence[object],
    *,
    precision: Literal["declared", "float64"] = "declared",
    kernels: Mapping[str, ReferenceKernel] | None = None,
) -> tuple[Array, ...]:
    """The results of a function, or of a module's entry.

    Args:
        program: what is evaluated.
        arguments: an array for each parameter, of its shape and dtype (bf16 as
            float32; with ``"float64"`` floats of any width).
        precision: how floats are rounded, see above.
        kernels: what each called kernel computes, by its target.

    Returns:
        A new array for each result; bf16 as float32, with ``"float64"`` all
        floats as float64.

    Raises:
        LaunchArgumentMismatch: the arguments do not fit the parameters.
        UnsupportedOperation: a kernel is called that ``kernels`` has not got.
    """
    if precision not in ("declared", "float64"):
        raise InvalidValue("precision", precision, "'declared' or 'float64'")
    function = program.entry if isinstance(program, Module) else program
    evaluator = _Evaluator(Arithmetic(wide=precision == "float64"), kernels or {})
    if len(arguments) != function.arity:
        raise LaunchArgumentMismatch(
            f"function {function.name} takes {function.arity} arguments, got "
            f"{len(arguments)}"
        )
    arrays = [
        evaluator.argument(name, given, value.type)
        for name, given, value in zip(
            function.parameter_names, arguments, function.parameters, strict=True
        )
    ]
    with np.errstate(all="ignore"):
        return tuple(np.array(array) for array in evaluator.call(function, arrays))


class _Evaluator:
    def __init__(
        self, arithmetic: Arithmetic, kernels: Mapping[str, ReferenceKernel]
    ) -> None:
        self.arithmetic = arithmetic
        self.kernels = kernels

    def argument(self, name: str, given: object, type: TensorType) -> Array:
        array = np.asarray(given)
        expected = carrier(type.dtype)
        fits = array.dtype == expected or (
            self.arithmetic.wide and type.dtype.is_float and array.dtype.kind == "f"
        )
        if not fits or array.shape != type.shape:
            raise LaunchArgumentMismatch(
                f"argument {name} is {array.dtype}{list(array.shape)}, expected {type} "
                f"as {expected}"
            )
        return self.arithmetic.settle(array, type.dtype)

    def call(self, function: Function, arguments: Sequence[Array]) -> list[Array]:
        known: dict[Value, Array] = dict(
            zip(function.parameters, arguments, strict=True)
        )
        kept = set(function.results)
        last = {v: n for n, e in enumerate(function.operations) for v in e.operands}
        for number, entry in enumerate(function.operations):
            operands = [known[value] for value in entry.operands]
            results = self.operation(entry, operands)
            known.update(zip(entry.results, results, strict=True))
            for value in set(entry.operands):  # what nothing needs any more
                if last[value] == number and value not in kept:
                    del known[value]
        return [known[value] for value in function.results]

    def operation(self, entry: Operation, operands: list[Array]) -> Sequence[Array]:
        match entry.op:
            case Loop() as loop:
                return self.loop(loop, operands)
            case KernelCall() as call:
                return self.kernel(call, operands)
            case op:
                rule = _RULES[type(op)]
                array = rule(Case(self.arithmetic, op, entry, operands))
                return (self.arithmetic.settle(array, entry.result.dtype),)

    def loop(self, loop: Loop, operands: list[Array]) -> list[Array]:
        carries, captured = operands[: loop.carries], operands[loop.carries :]
        for _ in range(loop.count):
            results = self.call(loop.body, [*carries, *captured])
            carries = results[: loop.carries]
            if loop.conditional and not results[-1]:
                break
        return carries

    def kernel(self, call: KernelCall, operands: list[Array]) -> list[Array]:
        kernel = self.kernels.get(call.target)
        if kernel is None:
            raise UnsupportedOperation(
                f"kernel_call: no reference for {call.target!r} version "
                f"{call.version}: pass it in kernels"
            )
        given = kernel(*(array.copy() for array in operands))
        results = given if isinstance(given, tuple) else (given,)
        if len(results) != len(call.types):
            raise LaunchArgumentMismatch(
                f"the reference of {call.target!r} gave {len(results)} results, "
                f"expected {len(call.types)}"
            )
        return [
            self.argument(f"{call.target} result {index}", result, type)
            for index, (result, type) in enumerate(
                zip(results, call.types, strict=True)
            )
        ]
