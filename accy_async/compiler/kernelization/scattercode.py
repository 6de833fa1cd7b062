"""What the kernels of a scatter share: its lines, and where its updates go."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.resources import LaunchResourceClass
from accy_async.artifact.tiles import LaunchTile, LaunchTileKind
from accy_async.compiler import semantic
from accy_async.compiler.form import Expression
from accy_async.compiler.kernelization.assembly import (
    Assembly,
    ceil_div,
    grid_candidates,
)
from accy_async.compiler.kernelization.lines import around, last_operation
from accy_async.compiler.kernelization.places import Coordinate
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.kernelization.work import BufferOrigin, KernelStep, WorkItem
from accy_async.compiler.semantic import Function, Operation, ScatterKind, TensorType
from accy_async.dtypes import DType

__all__ = ["ScatterCode", "ScatterLines", "ScatterWork"]


@attrs.frozen
class ScatterLines:
    """The lines of a scatter: ``outer * inner`` of ``extent`` elements."""

    entry: Operation
    op: semantic.Scatter
    outer: int
    extent: int
    inner: int

    @classmethod
    def of(cls, function: Function) -> ScatterLines:
        """Those of a function that ends in a scatter.

        Raises:
            UnsupportedOperation: it does not, or is more than elementwise work before.
        """
        entry, op = last_operation(function, semantic.Scatter)
        return cls(entry, op, *around(entry.result.shape, op.axis))

    @property
    def count(self) -> int:
        """How many lines there are."""
        return self.outer * self.inner

    @property
    def updates(self) -> int:
        """How many a line has."""
        return self.entry.operands[1].type.element_count

    @property
    def adds(self) -> bool:
        """Whether updates are added rather than put."""
        return self.op.kind is ScatterKind.ADD

    @property
    def name(self) -> str:
        """What the kernel that gives the result does."""
        return "scatter_add" if self.adds else "scatter"


class ScatterCode:
    """Computes a scatter's elements and updates, and where those go."""

    def __init__(self, a: Assembly, lines: ScatterLines) -> None:
        self.a, self.lines = a, lines

    def before(self, own: Expression) -> Expression:
        """The operand's element of that number."""
        operand = self.lines.entry.operands[0]
        return self.a.elements.value(operand, self.a.places.at(operand.shape, own))

    def update(self, own: Expression) -> Expression:
        """The update of that number, of those of all lines."""
        updates = self.lines.entry.operands[2]
        return self.a.elements.value(updates, self.a.places.at(updates.shape, own))

    def update_of(self, line: Expression, number: Expression) -> Expression:
        """One of a line's updates."""
        return self.update(self.where(line, number, self.lines.updates))

    def target(self, update: Expression) -> tuple[Expression, Expression]:
        """Whether an update falls onto the axis, and where; elsewhere any number."""
        a, indices = self.a, self.lines.entry.operands[1]
        index = a.elements.value(indices, a.places.at(indices.shape, update))
        wide = a.k.let(None, index.cast(_wide(index.dtype, a.index)))
        inside = wide < self.lines.extent
        if wide.dtype.is_signed:
            inside = (wide >= 0) & inside
        return inside, a.k.let(None, wide.cast(a.index))

    def place(self, own: Expression, extent: int) -> tuple[Expression, Expression]:
        """The line of an element, of the result or of the updates, and where in it."""
        places, inner = self.a.places, self.lines.inner
        row = places.quotient(own, extent * inner)
        at = places.remainder(places.quotient(own, inner), extent)
        column = places.remainder(own, inner)
        line = places.add(places.multiply(row, inner), column)
        return self.a.k.let("line", places.number(line)), places.number(at)

    def where(self, line: Expression, at: Coordinate, extent: int) -> Expression:
        """The number of a line's element, in the result or in the updates."""
        a, inner = self.a, self.lines.inner
        at = a.places.number(at)
        if inner == 1:
            return a.k.let(None, line * extent + at)
        row, column = line / inner, line % inner
        return a.k.let(None, (row * extent + at) * inner + column)

    def step(self, count: int) -> KernelStep:
        """The kernel, whose threads have one of so many tasks each."""
        a = self.a
        resources = grid_candidates(
            a.profile,
            ceil_div(count, a.threads),
            (a.threads, 1, 1),
            LaunchResourceClass.GATHER_SCATTER,
        )
        return a.step(resources, LaunchTile(kind=LaunchTileKind.ELEMENTWISE))


@attrs.frozen
class ScatterWork:
    """A scatter that takes several kernels, and what they are made for.

    Attributes:
        item: the work item.
        profile: the target.
        lines: the scatter's.
        threads: of a block.
    """

    item: WorkItem
    profile: TargetProfile
    lines: ScatterLines
    threads: int

    def code(
        self,
        what: str,
        count: int,
        *,
        written: Sequence[TensorType] = (),
        read: Sequence[TensorType] = (),
        updated: bool = False,
    ) -> ScatterCode:
        """A kernel to be written.

        Args:
            what: what it does, for its name.
            count: its threads' tasks in all.
            written: the scratch that it writes; none: it writes the result.
            read: the scratch that it reads.
            updated: whether it reads what it writes.
        """
        results = [(BufferOrigin.SCRATCH, type) for type in written]
        a = Assembly(
            self.item,
            self.profile,
            what,
            (self.threads, 1, 1),
            element_count=count,
            results=results or None,
            partials=read,
            updated=updated,
        )
        return ScatterCode(a, self.lines)


def _wide(dtype: DType, index: DType) -> DType:
    """A dtype of its sign that holds an index and any number of elements."""
    if dtype.bits > index.bits:
        return dtype
    if dtype.is_signed:
        return DType.I32 if index is DType.U32 else DType.I64
    return index
