"""Loops whose bodies are functions."""

from __future__ import annotations

from typing import ClassVar

import attrs

from accy_async.compiler.semantic.op import Op, written
from accy_async.compiler.semantic.program import Function
from accy_async.compiler.semantic.types import TensorType
from accy_async.dtypes import DType
from accy_async.values import instances, integer

__all__ = ["Loop"]

_FLAG = TensorType(DType.BOOL, ())


@attrs.frozen
class Loop(Op):
    """Runs the body ``count`` times, each time on what the time before gave.

    The operands are the carries' first values, then values that stay the same;
    the body's parameters are alike. The body gives the carries' next values. The
    results are the carries after the last time: their first values if ``count``
    is 0.

    A ``conditional`` loop's body gives one value more, a ``bool[]`` that says
    whether to go on: such a loop runs at least once, unless ``count`` is 0, and
    at most ``count`` times.
    """

    arity: ClassVar[int | None] = None
    count: int = attrs.field(validator=integer())
    carries: int = attrs.field(validator=integer(minimum=1))
    body: Function = attrs.field(validator=instances(Function))
    conditional: bool = attrs.field(default=False, validator=instances(bool))

    @property
    def is_pure(self) -> bool:  # type: ignore[override]
        """Whether every operation of the body is."""
        return all(entry.op.is_pure for entry in self.body.operations)

    @property
    def opcode(self) -> str:
        return "loop"

    def identity(self) -> object:
        body = self.body.fingerprint()
        return "Loop", self.count, self.carries, body, self.conditional

    def attributes(self) -> str:
        what = f"count={self.count} carries={self.carries}"
        if self.conditional:
            what += " conditional"
        return f"{what} {self.body}"

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        if self.carries > len(operands):
            raise self.refusal(f"{self.carries} carries, {len(operands)} operands")
        if self.body.parameter_types != operands:
            raise self.refusal(
                f"the body takes {written(self.body.parameter_types)}, the operands "
                f"are {written(operands)}"
            )
        carried = operands[: self.carries]
        expected = (*carried, _FLAG) if self.conditional else carried
        if self.body.result_types != expected:
            raise self.refusal(
                f"the body gives {written(self.body.result_types)}, expected "
                f"{written(expected)}"
                + (" (the last says whether to go on)" * self.conditional)
            )
        return carried
