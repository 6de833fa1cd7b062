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

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from accy_async.compiler.form import (
    Expression,
    constant,
    minimum,
)
from accy_async.compiler.kernelization import operations
from accy_async.compiler.kernelization.places import Coordinate
from accy_async.compiler.kernelization.rowelements import (
    Reach,
    RowElements,
    accumulator_of,
)
from accy_async.compiler.semantic import Operation, Value
from accy_async.dtypes import DType

__all__ = ["RowCode"]


class RowCode(RowElements):
    """Writes one kernel over rows; see `RowElements` for its arguments."""

    def write(self) -> None:
        """All of the kernel's body."""
        a, layout = self.a, self.layout
        a.k.takes_neighbours = layout.neighbours > 1
        rows = self._row_count()
        self._accumulate(self.plan.stages)
        units = layout.tiles(self.plan.rows)
        with self.a.tasks(units * layout.parts) as tile:
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
        begin, size = self._stretch(part)
        for number, stage in enumerate(plan.stages, 1):
            with a.k.region():
                self._clear(stage)
            self._along(
                begin,
                size,
                lambda at, s=stage: self._gather(s, row, at),  # type: ignore[misc]
            )
            self._tree(stage)
            for slot, entry in enumerate(stage):
                shared = self._scratch(slot, accumulator_of(entry))
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
            self._along(begin, size, lambda at: self._store_full(row, at))

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

    def _along(
        self,
        begin: Coordinate,
        size: Coordinate,
        body: Callable[[list[Reach]], None],
    ) -> None:
        """Run a body for all elements of a row's stretch, a thread some at a time.

        Where fewer are left than the threads take at a time, they take as many as lie
        next to each other, and of what then is left one each.
        """
        a, threads, layout = self.a, self.layout.threads, self.layout
        each = layout.neighbours
        rest = size
        for taken in dict.fromkeys((layout.unrolled, each)):
            if taken == 1 and layout.unrolled > 1:
                break
            span = threads * taken
            many = a.places.quotient(rest, span)
            whole = a.places.multiply(many, span)
            if whole != 0:
                bounds = a.places.number(begin), self._sum(begin, whole)
                with a.loop("at", *bounds, span) as at:
                    own = a.k.let(None, at + a.thread * each)
                    body(
                        [
                            (own, group * threads * each + i)
                            for group in range(taken // each)
                            for i in range(each)
                        ]
                    )
            begin = a.places.named(a.places.add(begin, whole))
            rest = a.places.remainder(rest, span)
        most = layout.unrolled if each == 1 else each
        for i in range(most):
            if isinstance(rest, int) and rest <= i * threads:
                break
            left = a.places.number(rest).cast(a.signed) - i * threads
            first = a.places.add(begin, i * threads)
            with a.k.region(limit=left), a.places.scope():
                body([(a.k.let(None, a.places.number(first) + a.thread), 0)])

    def _sum(self, left: Coordinate, right: Coordinate) -> Expression:
        return self.a.places.number(self.a.places.add(left, right))

    def _tree(self, stage: tuple[Operation, ...]) -> None:
        """Combine the threads' results in shared memory; element 0 is the whole."""
        a = self.a
        arrays = [self._scratch(i, accumulator_of(e)) for i, e in enumerate(stage)]
        with a.k.region():
            for entry, array in zip(stage, arrays, strict=True):
                array[a.k.thread] = self._total(entry)
        half = self.layout.threads // 2
        while half:
            with a.k.region(limit=constant(DType.U32, half)):
                self._pair(stage, arrays, half)
            half //= 2

    # Apart: each row has threads of its own, often one.

    def _apart(
        self, tile: Expression, part: Coordinate, rows: Expression, lanes: int
    ) -> None:
        a, plan = self.a, self.plan
        base = a.k.let("base", tile * self.layout.rows_at_once)
        left = a.k.let("left", a.left(rows, base) * lanes)
        begin, size = self._stretch(part)
        row = base + (a.thread / lanes if lanes > 1 else a.thread)
        for number, stage in enumerate(plan.stages, 1):
            with a.k.region(limit=left):
                self._clear(stage)
            self._down(
                left,
                begin,
                size,
                lambda at, s=stage: self._gather(s, row, at),  # type: ignore[misc]
            )
            if lanes > 1:
                self._meet(stage, left, lanes)
            if self.layout.parts > 1:
                with a.k.region(limit=left), self._first_lane(), a.places.scope():
                    for slot, entry in enumerate(stage):
                        at = a.places.multiply(part, plan.rows)
                        where = a.places.number(a.places.add(at, row))
                        a.results[slot][where] = self._held(entry, lanes)
                return
            with a.k.region(limit=left), a.places.scope():
                self._keep(number, stage, row)
        if plan.row_results:
            with a.k.region(limit=left), self._first_lane(), a.places.scope():
                self._store_rows(row)
        if plan.full_results:
            self._down(left, begin, size, lambda at: self._store_full(row, at))

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
        size: Coordinate,
        body: Callable[[list[Reach]], None],
    ) -> None:
        """Run a body for all elements of a stretch of the threads' rows."""
        a, lanes = self.a, self.layout.lanes or 1
        span = self.layout.unrolled * lanes
        whole = a.places.multiply(a.places.quotient(size, span), span)
        if whole != 0:
            bounds = a.places.number(begin), self._sum(begin, whole)
            with a.loop("at", *bounds, span, limit=left) as at:
                first = at + self._lane() if lanes > 1 else at
                offsets = [i * lanes for i in range(self.layout.unrolled)]
                body([(first, offset) for offset in offsets])
        if whole == size:
            return
        bounds = self._sum(begin, whole), self._sum(begin, size)
        with a.loop("at", *bounds, lanes, limit=left) as at:
            if lanes == 1:
                body([(at, 0)])
                return
            own = a.k.let(None, at + self._lane())
            with a.k.when(own < bounds[1]), a.places.scope():
                body([(own, 0)])

    def _meet(self, stage: tuple[Operation, ...], left: Expression, lanes: int) -> None:
        """Combine the results of each row's threads; all of them get the whole."""
        a = self.a
        arrays = [self._scratch(i, accumulator_of(e)) for i, e in enumerate(stage)]
        with a.k.region():
            for entry, array in zip(stage, arrays, strict=True):
                array[a.k.thread] = self._total(entry)
        half = lanes // 2
        while half:
            with a.k.region(), a.k.when(a.k.thread % lanes < half):
                self._pair(stage, arrays, half)
            half //= 2
        with a.k.region(limit=left):
            first = a.k.thread - a.k.thread % lanes
            for entry, array in zip(stage, arrays, strict=True):
                self._accumulators[entry][0].set(array[first])

    def _held(self, entry: Operation, lanes: int) -> Expression:
        """A row's result in each of its threads; those of several met before."""
        return self._total(entry) if lanes == 1 else self._accumulators[entry][0].value

    def _keep(self, number: int, stage: tuple[Operation, ...], row: Expression) -> None:
        """What a thread's row is known by after a stage, in the thread's variables."""
        a = self.a
        place = self._row_place(row)
        kept: list[tuple[Value, Expression]] = []
        for entry in stage:
            total = self._held(entry, self.layout.lanes or 1)
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
