"""What the kernels of a scan share: its lines, their elements' places and values."""

from __future__ import annotations

import attrs

from accy_async.compiler import semantic
from accy_async.compiler.form import ArrayHandle, Expression
from accy_async.compiler.kernelization import operations
from accy_async.compiler.kernelization.assembly import Assembly
from accy_async.compiler.kernelization.places import Coordinate, Place
from accy_async.compiler.semantic import Operation

__all__ = ["ScanCode", "ScanLines"]


@attrs.frozen
class ScanLines:
    """The lines of a scan: ``outer * inner`` of ``extent`` elements."""

    entry: Operation
    op: semantic.Scan
    outer: int
    extent: int
    inner: int

    @property
    def count(self) -> int:
        """How many lines there are."""
        return self.outer * self.inner

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the operand and the result."""
        return self.entry.result.shape


class ScanCode:
    """What the kernels of a scan share."""

    def __init__(self, a: Assembly, lines: ScanLines, threads: int) -> None:
        self.a, self.lines, self.threads = a, lines, threads
        self.dtype = lines.op.accumulate
        self.kind = lines.op.kind.value

    @property
    def start(self) -> Expression:
        """What a scan begins with."""
        return operations.identity(self.kind, self.dtype)

    def combine(self, left: Expression, right: Expression) -> Expression:
        """Two neighbouring stretches of a line as one."""
        return operations.combine(self.kind, left, right)

    def place(self, line: Expression, at: Expression) -> Place:
        """The ``at``-th element of a line, counted as the scan goes."""
        a, lines = self.a, self.lines
        if lines.op.reverse:
            at = a.number(lines.extent - 1) - at
        row: Coordinate = line
        column: Coordinate = 0
        if lines.inner > 1:
            row, column = line / lines.inner, line % lines.inner
        linear = (a.places.number(row) * lines.extent + at) * lines.inner
        return a.places.at(lines.shape, a.k.let(None, linear + a.places.number(column)))

    def element(self, place: Place) -> Expression:
        """The operand's element, in the dtype of the sums."""
        value = self.a.elements.value(self.lines.entry.operands[0], place)
        return operations.convert(value, self.dtype)

    def store(self, out: ArrayHandle, place: Place, value: Expression) -> None:
        """Write an element of the result, or of sums that are yet to be finished."""
        at = self.a.places.number(self.a.places.linear(place))
        out[at] = operations.convert(value, out.dtype)
