"""The code of kernels that go over rows: reductions, softmax, norms, losses.

Two ways to lay a row out on threads:

* *Together*: a block's threads share a row. Each combines every ``threads``-th
  element, then the threads' results are combined in a tree in shared memory.
* *Apart*: a thread takes a row by itself, or a few threads (*lanes*) do, so that a
  block takes many rows at once. This suits short rows, and rows whose neighbours lie
  next to each other in memory (columns).

A long row can be cut into *parts*, each reduced by itself into scratch by a first
kernel; a second reduces the parts. The order of every sum follows from the schedule
alone: the same bits on each run and for every launch candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs

from accy_async.compiler import semantic
from accy_async.compiler.form import (
    ArrayHandle,
    Expression,
    VariableHandle,
    constant,
    minimum,
)
from accy_async.compiler.kernelization import operations
from accy_async.compiler.kernelization.assembly import Assembly, ceil_div, is_cpu
from accy_async.compiler.kernelization.places import Coordinate, Place
from accy_async.compiler.kernelization.rowplan import RowPlan
from accy_async.compiler.semantic import Operation, Value
from accy_async.dtypes import DType

__all__ = ["RowCode", "RowLayout"]


@attrs.frozen
class RowLayout:
    """How rows lie on blocks and threads.

    Attributes:
        threads: of a block, a power of two where they work together.
        lanes: threads that take a row, a power of two; None: all of the block's.
        rows_per_block: rows that a block takes one after another, if together.
        unrolled: elements that a thread takes at a time.
        parts: into how many parts each row is cut.
    """

    threads: int
    lanes: int | None = None
    rows_per_block: int = 1
    unrolled: int = 1
    parts: int = 1

    def tiles(self, rows: int) -> int:
        """Blocks that the rows fill, without parts."""
        return ceil_div(rows, self.rows_at_once or self.rows_per_block)

    @property
    def rows_at_once(self) -> int:
        """Rows that a block's threads take apart; 0 where they work together."""
        return 0 if self.lanes is None else self.threads // self.lanes

    def part_extent(self, extent: int) -> int:
        """Elements of a part, but for the last."""
        step = (self.lanes or self.threads) * self.unrolled
        return ceil_div(ceil_div(extent, self.parts), step) * step


class RowCode:
    """Writes one kernel over rows.

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
        self._accumulators: dict[Operation, VariableHandle] = {}

    def write(self) -> None:
        """All of the kernel's body."""
        a, layout = self.a, self.layout
        rows = self._row_count()
        for stage in self.plan.stages:
            for entry in stage:
                self._accumulators[entry] = a.k.thread_variable(
                    f"acc{len(self._accumulators)}", _accumulator(entry)
                )
        units = layout.tiles(self.plan.rows)
        with self._each_tile(units * layout.parts) as tile:
            part: Coordinate = 0
            if layout.parts > 1:
                part = a.k.let("part", tile / units)
                tile = a.k.let("unit", tile % units)
            if layout.lanes is None:
                self._together(tile, part, rows)
            else:
                self._apart(tile, part, rows, layout.lanes)

    def _row_count(self) -> Expression:
        """Rows, by the element count where the kernel is given one."""
        n = self.a.elements_in_all()
        if not self.plan.extent or self.a.element_count != (
            self.plan.rows * self.plan.extent
        ):
            return self.a.number(self.plan.rows)
        return self.a.k.let("rows", n / self.plan.extent)

    @contextmanager
    def _each_tile(self, tiles: int) -> Iterator[Expression]:
        a = self.a
        if is_cpu(a.profile) and tiles <= a.profile.capabilities.max_grid[0]:
            yield a.block
            return
        grid = a.wide(a.k.grid_x)
        rounds = (a.number(tiles - 1) + grid - a.block) / grid
        with a.k.count("round", a.number(0), rounds) as number, a.places.scope():
            yield a.k.let("tile", a.block + number * grid)

    # Together: a block's threads share a row.

    def _together(self, tile: Expression, part: Coordinate, rows: Expression) -> None:
        a, each = self.a, self.layout.rows_per_block
        if each == 1:
            with a.k.when(tile < rows), a.places.scope():
                self._row(tile, part)
            return
        first = a.k.let("first", tile * each)
        last = a.k.let("last", minimum(first + each, rows))
        with a.k.count("row", first, last) as row, a.places.scope():
            self._row(row, part)

    def _row(self, row: Expression, part: Coordinate) -> None:
        a, plan = self.a, self.plan
        self._row_place(row)
        begin, end = self._bounds(part)
        for number, stage in enumerate(plan.stages, 1):
            with a.k.region():
                self._clear(stage)
            self._along(
                begin,
                end,
                lambda at, s=stage: self._gather(s, row, at),  # type: ignore[misc]
            )
            self._tree(stage)
            for slot, entry in enumerate(stage):
                shared = self._scratch(slot, _accumulator(entry))
                total = a.k.let(None, shared.at(constant(DType.U32, 0)))
                if self.layout.parts > 1:
                    self._leave(slot, row, part, total)
                    continue
                settled = operations.convert(total, entry.result.dtype)
                self._bind(entry.result, a.k.let(None, settled))
            if self.layout.parts == 1:
                self._settle(number, row)
        if self.layout.parts > 1:
            return
        with a.k.region(limit=constant(DType.U32, 1)), a.places.scope():
            self._store_rows(row)
        if plan.full_results:
            self._along(begin, end, lambda at: self._store_full(row, at))

    def _leave(
        self, slot: int, row: Expression, part: Coordinate, total: Expression
    ) -> None:
        """A part's result, for the kernel that reduces the parts."""
        at = self.a.places.multiply(part, self.plan.rows)
        with self.a.k.region(limit=constant(DType.U32, 1)):
            where = self.a.places.number(self.a.places.add(at, row))
            self.a.results[slot][where] = total

    def _settle(self, stage: int, row: Expression) -> None:
        """What each row is known by after a stage, computed once for all threads."""
        place = self._row_place(row)
        for value, after in self.plan.row_values:
            if after == stage and value not in self.a.elements.bound:
                at = self.a.places.reshaped(place, value.shape)
                self._bind(value, self.a.elements.value(value, at))

    def _bind(self, value: Value, known: Expression) -> None:
        self.a.elements.bound[value] = lambda _: known

    def _along(
        self,
        begin: Coordinate,
        end: Coordinate,
        body: Callable[[list[Expression]], None],
    ) -> None:
        """Run a body for all elements of a row, a thread some at a time."""
        a, threads = self.a, self.layout.threads
        span = threads * self.layout.unrolled
        if isinstance(begin, int) and isinstance(end, int):
            whole: Coordinate = begin + (end - begin) // span * span
            rest: Coordinate = (end - begin) % span
        else:
            size = a.places.number(end) - a.places.number(begin)
            whole = a.k.let(None, a.places.number(begin) + size / span * span)
            rest = a.k.let(None, size % span)
        if not (isinstance(whole, int) and whole == begin):
            bounds = a.places.number(begin), a.places.number(whole)
            offsets = [i * threads for i in range(self.layout.unrolled)]
            with a.loop("at", *bounds, span) as at:
                body([a.k.let(None, at + a.thread + offset) for offset in offsets])
        for i in range(self.layout.unrolled):
            if isinstance(rest, int) and rest <= i * threads:
                break
            left = a.places.number(rest).cast(a.signed) - i * threads
            first = a.places.add(whole, i * threads)
            with a.k.region(limit=left), a.places.scope():
                body([a.k.let(None, a.places.number(first) + a.thread)])

    def _tree(self, stage: tuple[Operation, ...]) -> None:
        """Combine the threads' results in shared memory; element 0 is the whole."""
        a = self.a
        arrays = [self._scratch(i, _accumulator(e)) for i, e in enumerate(stage)]
        with a.k.region():
            for entry, array in zip(stage, arrays, strict=True):
                array[a.k.thread] = self._accumulators[entry].value
        half = self.layout.threads // 2
        while half:
            with a.k.region(limit=constant(DType.U32, half)):
                self._pair(stage, arrays, half)
            half //= 2

    def _scratch(self, slot: int, dtype: DType) -> ArrayHandle:
        if (slot, dtype) not in self._shared:
            self._shared[slot, dtype] = self.a.k.shared(
                f"shared{len(self._shared)}", dtype, self.layout.threads
            )
        return self._shared[slot, dtype]

    # Apart: each row has threads of its own, often one.

    def _apart(
        self, tile: Expression, part: Coordinate, rows: Expression, lanes: int
    ) -> None:
        a, plan = self.a, self.plan
        base = a.k.let("base", tile * self.layout.rows_at_once)
        left = a.k.let("left", a.left(rows, base) * lanes)
        begin, end = self._bounds(part)
        row = base + (a.thread / lanes if lanes > 1 else a.thread)
        for number, stage in enumerate(plan.stages, 1):
            with a.k.region(limit=left):
                self._clear(stage)
            self._down(
                left,
                begin,
                end,
                lambda at, s=stage: self._gather(s, row, at),  # type: ignore[misc]
            )
            if lanes > 1:
                self._meet(stage, left, lanes)
            if self.layout.parts > 1:
                with a.k.region(limit=left), self._first_lane(), a.places.scope():
                    for slot, entry in enumerate(stage):
                        at = a.places.multiply(part, plan.rows)
                        where = a.places.number(a.places.add(at, row))
                        a.results[slot][where] = self._accumulators[entry].value
                return
            with a.k.region(limit=left), a.places.scope():
                self._keep(number, stage, row)
        if plan.row_results:
            with a.k.region(limit=left), self._first_lane(), a.places.scope():
                self._store_rows(row)
        if plan.full_results:
            self._down(left, begin, end, lambda at: self._store_full(row, at))

    def _lane(self) -> Expression:
        """The thread's number among those of its row."""
        return self.a.thread % (self.layout.lanes or self.layout.threads)

    @contextmanager
    def _first_lane(self) -> Iterator[None]:
        """What one thread of each row does."""
        if self.layout.lanes == 1:
            yield
            return
        with self.a.k.when(self._lane().equals(0)):
            yield

    def _down(
        self,
        left: Expression,
        begin: Coordinate,
        end: Coordinate,
        body: Callable[[list[Expression]], None],
    ) -> None:
        """Run a body for all elements of the threads' rows."""
        a, lanes = self.a, self.layout.lanes or 1
        span = self.layout.unrolled * lanes
        if isinstance(begin, int) and isinstance(end, int):
            whole: Coordinate = begin + (end - begin) // span * span
        else:
            size = a.places.number(end) - a.places.number(begin)
            whole = a.k.let(None, a.places.number(begin) + size / span * span)
        if not (isinstance(whole, int) and whole == begin):
            bounds = a.places.number(begin), a.places.number(whole)
            with a.loop("at", *bounds, span, limit=left) as at:
                first = at + self._lane() if lanes > 1 else at
                offsets = [i * lanes for i in range(self.layout.unrolled)]
                body([a.k.let(None, first + i) if i else first for i in offsets])
        if isinstance(whole, int) and whole == end:
            return
        bounds = a.places.number(whole), a.places.number(end)
        with a.loop("at", *bounds, lanes, limit=left) as at:
            if lanes == 1:
                body([at])
                return
            own = a.k.let(None, at + self._lane())
            with a.k.when(own < bounds[1]), a.places.scope():
                body([own])

    def _meet(self, stage: tuple[Operation, ...], left: Expression, lanes: int) -> None:
        """Combine the results of each row's threads; all of them get the whole."""
        a = self.a
        arrays = [self._scratch(i, _accumulator(e)) for i, e in enumerate(stage)]
        with a.k.region():
            for entry, array in zip(stage, arrays, strict=True):
                array[a.k.thread] = self._accumulators[entry].value
        half = lanes // 2
        while half:
            with a.k.region(), a.k.when(a.k.thread % lanes < half):
                self._pair(stage, arrays, half)
            half //= 2
        with a.k.region(limit=left):
            first = a.k.thread - a.k.thread % lanes
            for entry, array in zip(stage, arrays, strict=True):
                self._accumulators[entry].set(array[first])

    def _pair(
        self, stage: tuple[Operation, ...], arrays: list[ArrayHandle], half: int
    ) -> None:
        """Add to a thread's results those ``half`` threads on."""
        a = self.a
        for entry, array in zip(stage, arrays, strict=True):
            left, right = array[a.k.thread], array[a.k.thread + half]
            array[a.k.thread] = operations.combine(_kind(entry), left, right)

    def _keep(self, number: int, stage: tuple[Operation, ...], row: Expression) -> None:
        """What a thread's row is known by after a stage, in the thread's variables."""
        a = self.a
        place = self._row_place(row)
        kept: list[tuple[Value, Expression]] = []
        for entry in stage:
            total = self._accumulators[entry].value
            known = a.k.let(None, operations.convert(total, entry.result.dtype))
            kept.append((entry.result, known))
            self._bind(entry.result, known)
        needed = self._needed()
        for value, after in self.plan.row_values:
            if after == number and value not in a.elements.bound and value in needed:
                at = a.places.reshaped(place, value.shape)
                known = a.elements.value(value, at)
                kept.append((value, known))
                self._bind(value, known)
        for value, known in kept:
            if value not in needed:
                continue
            variable = a.k.thread_variable(f"row{len(self._kept)}", value.dtype)
            self._kept.append(variable)
            variable.set(known)
            a.elements.bound[value] = lambda _, v=variable: v.value  # type: ignore[misc]

    def _needed(self) -> set[Value]:
        """The values of rows that later passes read, or that are results."""
        needed = {self.a.function.results[i] for i in self.plan.row_results}
        known = dict(self.plan.row_values)
        for entry in self.a.function.operations:
            later = known.get(entry.results[0])
            for operand in entry.operands:
                if later is None or known.get(operand, later) < later:
                    needed.add(operand)
        return needed

    # What both do to a row's elements.

    def _bounds(self, part: Coordinate) -> tuple[Coordinate, Coordinate]:
        if self.layout.parts == 1:
            return 0, self.extent
        a, size = self.a, self.layout.part_extent(self.extent)
        begin = a.k.let("begin", a.places.number(part) * size)
        begin = a.k.let(None, minimum(begin, self.extent))
        return begin, a.k.let("end", minimum(begin + size, self.extent))

    def _clear(self, stage: tuple[Operation, ...]) -> None:
        for entry in stage:
            start = operations.identity(_kind(entry), _accumulator(entry))
            self._accumulators[entry].set(start)

    def _gather(
        self, stage: tuple[Operation, ...], row: Expression, at: list[Expression]
    ) -> None:
        """Combine some elements of the row into the thread's results so far."""
        a = self.a
        taken = [
            [self._element(slot, entry, row, e) for slot, entry in enumerate(stage)]
            for e in at
        ]
        for slot, entry in enumerate(stage):
            variable = self._accumulators[entry]
            total = variable.value
            for elements in taken:
                total = a.k.let(
                    None, operations.combine(_kind(entry), total, elements[slot])
                )
            variable.set(total)

    def _element(
        self, slot: int, entry: Operation, row: Expression, at: Expression
    ) -> Expression:
        a = self.a
        if self.partials:
            return self.partials[slot][at * self.plan.rows + row]
        value = a.elements.value(entry.operands[0], self._full_place(row, at))
        return operations.convert(value, _accumulator(entry))

    def _store_rows(self, row: Expression) -> None:
        a = self.a
        place = self._row_place(row)
        for index in self.plan.row_results:
            value = a.function.results[index]
            at = a.places.reshaped(place, value.shape)
            a.results[index][row] = a.elements.value(value, at)

    def _store_full(self, row: Expression, at: list[Expression]) -> None:
        a = self.a
        places = [self._full_place(row, e) for e in at]
        computed = [
            [a.elements.value(a.function.results[i], p) for i in self.plan.full_results]
            for p in places
        ]
        for place, values in zip(places, computed, strict=True):
            where = a.places.number(a.places.linear(place))
            for index, value in zip(self.plan.full_results, values, strict=True):
                a.results[index][where] = value

    def _row_place(self, row: Expression) -> Place:
        a, shape = self.a, self.plan.row_shape
        known = a.places.known.get((row, "row"))
        if known is None:
            known = a.places.coordinate(shape, a.places.unravel(row, shape), row)
            a.places.known[row, "row"] = known
        assert isinstance(known, Place)
        return known

    def _full_place(self, row: Expression, at: Expression) -> Place:
        a, plan = self.a, self.plan
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
            linear = a.k.let(None, row * plan.extent + at)
        elif plan.axes == tuple(range(len(plan.axes))):
            linear = a.k.let(None, at * plan.rows + row)
        return a.places.coordinate(plan.shape, coordinates, linear)


def _kind(entry: Operation) -> str:
    assert isinstance(entry.op, semantic.Reduce)
    return entry.op.kind.value


def _accumulator(entry: Operation) -> DType:
    assert isinstance(entry.op, semantic.Reduce)
    return entry.op.accumulate
