"""What a kernel over rows does to the elements of a row, however they are laid out."""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.compiler import semantic
from accy_async.compiler.form import ArrayHandle, Expression, VariableHandle, minimum
from accy_async.compiler.kernelization import operations
from accy_async.compiler.kernelization.assembly import Assembly
from accy_async.compiler.kernelization.places import Coordinate, Place
from accy_async.compiler.kernelization.rowlayout import RowLayout
from accy_async.compiler.kernelization.rowplan import RowPlan
from accy_async.compiler.semantic import Operation, Value
from accy_async.dtypes import DType

__all__ = ["Reach", "RowElements", "accumulator_of"]

Reach = tuple[Expression, int]
"""An element of a row, as another one's number and how far behind it it lies."""


class RowElements:
    """The elements and results of rows in one kernel.

    Args:
        a: the kernel's assembly.
        plan: what is computed.
        layout: how it is laid out.
        partials: the buffers of parts' results to reduce instead of the operands,
            one for each reduction of the only stage; ``parts`` of them each row.
        parts: how many parts each row has in ``partials``.
    """

    def __init__(
        self,
        a: Assembly,
        plan: RowPlan,
        layout: RowLayout,
        *,
        partials: Sequence[ArrayHandle] = (),
        parts: int = 1,
    ) -> None:
        self.a = a
        self.plan = plan
        self.layout = layout
        self.partials = partials
        self.extent = parts if partials else plan.extent
        self._shared: dict[tuple[int, DType], ArrayHandle] = {}
        self._kept: list[VariableHandle] = []
        self._accumulators: dict[Operation, list[VariableHandle]] = {}

    def _stretch(self, part: Coordinate) -> tuple[Coordinate, Coordinate]:
        """Where a part of a row begins, and how many elements it has."""
        if self.layout.parts == 1:
            return 0, self.extent
        a, size = self.a, self.layout.part_extent(self.extent)
        begin = a.k.let("begin", a.places.number(part) * size)
        if self.extent % size == 0:
            return begin, size
        end = minimum(begin + size, self.extent)
        return begin, a.k.let("size", end - begin)

    def _accumulate(self, stages: tuple[tuple[Operation, ...], ...]) -> None:
        """Give each thread variables for its results."""
        for entry in (entry for stage in stages for entry in stage):
            number = len(self._accumulators)
            self._accumulators[entry] = [
                self.a.k.thread_variable(f"acc{number}_{i}", accumulator_of(entry))
                for i in range(self.layout.accumulators)
            ]

    def _clear(self, stage: tuple[Operation, ...]) -> None:
        for entry in stage:
            start = operations.identity(_kind(entry), accumulator_of(entry))
            for variable in self._accumulators[entry]:
                variable.set(start)

    def _total(self, entry: Operation) -> Expression:
        """What a thread has of a reduction, its accumulators combined in pairs."""
        totals = [variable.value for variable in self._accumulators[entry]]
        while len(totals) > 1:
            half = len(totals) // 2
            totals = [
                self.a.k.let(
                    None, operations.combine(_kind(entry), totals[i], totals[half + i])
                )
                for i in range(half)
            ]
        return totals[0]

    def _gather(
        self, stage: tuple[Operation, ...], row: Expression, at: list[Reach]
    ) -> None:
        """Combine some elements of the row into the thread's results so far."""
        a = self.a
        taken = [
            [self._element(slot, entry, row, e) for slot, entry in enumerate(stage)]
            for e in at
        ]
        for slot, entry in enumerate(stage):
            variables = self._accumulators[entry]
            for first, variable in enumerate(variables[: len(taken)]):
                total = variable.value
                for elements in taken[first :: len(variables)]:
                    total = a.k.let(
                        None, operations.combine(_kind(entry), total, elements[slot])
                    )
                variable.set(total)

    def _element(
        self, slot: int, entry: Operation, row: Expression, at: Reach
    ) -> Expression:
        a = self.a
        if self.partials:
            return self.partials[slot][self._at(at) * self.plan.rows + row]
        value = a.elements.value(entry.operands[0], self._full_place(row, at))
        return operations.convert(value, accumulator_of(entry))

    def _store_rows(self, row: Expression) -> None:
        a = self.a
        place = self._row_place(row)
        for index in self.plan.row_results:
            value = a.function.results[index]
            at = a.places.reshaped(place, value.shape)
            a.results[index][row] = a.elements.value(value, at)

    def _store_full(self, row: Expression, at: list[Reach]) -> None:
        a = self.a
        places = [self._full_place(row, e) for e in at]
        computed = [
            [a.elements.value(a.function.results[i], p) for p in places]
            for i in self.plan.full_results
        ]
        numbers = [a.places.number(a.places.linear(place)) for place in places]
        for index, values in zip(self.plan.full_results, computed, strict=True):
            for where, value in zip(numbers, values, strict=True):
                a.results[index][where] = value

    def _row_place(self, row: Expression) -> Place:
        a, shape = self.a, self.plan.row_shape
        known = a.places.known.get((row, "row"))
        if known is None:
            known = a.places.coordinate(shape, a.places.unravel(row, shape), row)
            a.places.known[row, "row"] = known
        assert isinstance(known, Place)
        return known

    def _at(self, at: Reach) -> Expression:
        """An element's number in its row."""
        first, offset = at
        if not offset:
            return first
        key = (first, offset, "at")
        found = self.a.places.known.get(key)
        if found is None:
            found = self.a.places.known[key] = self.a.k.let(None, first + offset)
        assert isinstance(found, Expression)
        return found

    def _along_rows(self, row: Expression, at: Reach) -> Expression:
        """An element's number among all, where rows lie one after another.

        The offset is added last, so that LLVM sees which ones are neighbours.
        """
        a, (first, offset) = self.a, at
        key = (row, first, "along")
        found = a.places.known.get(key)
        if found is None:
            linear = row * self.plan.extent + first
            found = a.places.known[key] = a.k.let(None, linear)
        assert isinstance(found, Expression)
        return a.k.let(None, found + offset) if offset else found

    def _full_place(self, row: Expression, reach: Reach) -> Place:
        a, plan, at = self.a, self.plan, self._at(reach)
        rest = tuple(plan.shape[axis] for axis in plan.axes)
        coordinates: list[Coordinate] = [0] * len(plan.shape)
        outer = a.places.coordinates(self._row_place(row))
        for axis, given in zip(plan.kept, outer, strict=True):
            coordinates[axis] = given
        inner = a.places.unravel(at, rest)
        for axis, given in zip(plan.axes, inner, strict=True):
            coordinates[axis] = given
        linear: Coordinate | None = None
        if plan.axes == tuple(range(len(plan.kept), len(plan.shape))):
            linear = self._along_rows(row, reach)
        elif plan.axes == tuple(range(len(plan.axes))):
            linear = a.k.let(None, at * plan.rows + row)
        return a.places.coordinate(plan.shape, coordinates, linear)

    def _bind(self, value: Value, known: Expression) -> None:
        self.a.elements.bound[value] = lambda _: known

    def _scratch(self, slot: int, dtype: DType) -> ArrayHandle:
        if (slot, dtype) not in self._shared:
            self._shared[slot, dtype] = self.a.k.shared(
                f"shared{len(self._shared)}", dtype, self.layout.threads
            )
        return self._shared[slot, dtype]

    def _pair(
        self, stage: tuple[Operation, ...], arrays: list[ArrayHandle], half: int
    ) -> None:
        """Add to a thread's results those ``half`` threads on."""
        a = self.a
        for entry, array in zip(stage, arrays, strict=True):
            left, right = array[a.k.thread], array[a.k.thread + half]
            array[a.k.thread] = operations.combine(_kind(entry), left, right)


def _kind(entry: Operation) -> str:
    assert isinstance(entry.op, semantic.Reduce)
    return entry.op.kind.value


def accumulator_of(entry: Operation) -> DType:
    """The dtype that a reduction is kept in."""
    assert isinstance(entry.op, semantic.Reduce)
    return entry.op.accumulate
