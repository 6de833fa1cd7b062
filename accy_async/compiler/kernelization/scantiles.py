"""Stretches of lines that a block's threads scan or combine together, tile by tile.

In a tile a thread has *groups* of elements that lie next to each other, all on their
way before one is used. It combines each group by itself; what came before a group in
the tile is found by Hillis and Steele's steps over the threads' totals in shared
memory, two steps at a time.

Source: W. D. Hillis and G. L. Steele, "Data parallel algorithms", CACM 29(12), 1986.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from accy_async.compiler.form import (
    ArrayHandle,
    Expression,
    VariableHandle,
    constant,
    maximum,
    select,
)
from accy_async.compiler.kernelization.places import Coordinate, Place
from accy_async.compiler.kernelization.scancode import ScanCode
from accy_async.dtypes import DType

__all__ = ["ScanTiles"]


class ScanTiles:
    """Writes what a block does to a stretch of a line.

    Args:
        code: what the kernels of the scan share.
        each: elements of a group, next to each other.
        groups: groups that a thread has in a tile.
    """

    def __init__(self, code: ScanCode, each: int, groups: int) -> None:
        self.code, self.a, self.threads = code, code.a, code.threads
        self.each, self.groups = each, groups
        self.span = code.threads * each
        self.tile = self.span * groups
        self.units = code.lines.count
        self._arrays: list[ArrayHandle] = []

    def scan(
        self,
        line: Expression,
        begin: Expression,
        size: Coordinate,
        segment: Expression | None = None,
    ) -> None:
        """Scan a stretch into the first result.

        Where it is a segment, onto the totals of those before it, the first partials.
        """
        a, k, dtype = self.a, self.a.k, self.code.dtype
        before = self.code.start
        if segment is not None:
            before = self._preceding(a.partials[0], line, segment)
        own = [
            [k.thread_variable(f"own{group}_{i}", dtype) for i in range(self.each)]
            for group in range(self.groups)
        ]
        ahead = [k.thread_variable(f"ahead{i}", dtype) for i in range(self.groups)]
        sums = k.shared("sums", dtype, self.groups)
        total = k.variable(a.fresh("total"), before)
        end = k.let(None, self._sum(begin, size))
        bases = k.count(a.fresh("base"), begin, end, self.tile)
        with bases as base, a.places.scope():
            for last in self._ways(size, base, end):
                self._load(line, base, last, own)
            with k.region():
                for number, group in enumerate(own):
                    for left, right in pairwise(group):
                        right.set(self.code.combine(left.value, right.value))
                    self._array(0)[self._slot(number, k.thread)] = group[-1].value
            self._scan_threads(own, ahead, sums)
            carried = [k.let(None, total.value)]
            for number in range(self.groups):
                known = sums.at(constant(DType.U32, number))
                carried.append(k.let(None, self.code.combine(carried[-1], known)))
            with k.region():
                for carry, variable in zip(carried, ahead, strict=False):
                    variable.set(self.code.combine(carry, variable.value))
            for last in self._ways(size, base, end):
                self._store(line, base, last, own, ahead)
            total.set(carried[-1])

    def leave_total(
        self, line: Expression, segment: Expression, begin: Expression, size: Coordinate
    ) -> None:
        """Combine a segment's elements into the first result."""
        total = self._combined(line, begin, size)
        with self.a.k.region(limit=constant(DType.U32, 1)):
            self.a.results[0][segment * self.code.lines.count + line] = total

    def _combined(
        self, line: Expression, begin: Expression, size: Coordinate
    ) -> Expression:
        """A stretch's elements combined, for all of the block."""
        a, k, code = self.a, self.a.k, self.code
        totals = [k.thread_variable(f"total{i}", code.dtype) for i in range(self.each)]
        with k.region():
            for variable in totals:
                variable.set(code.start)
        whole, rest = self._cut(size)
        if whole != 0:
            end = self._sum(begin, whole)
            with a.loop("base", begin, end, self.tile) as base:
                self._take(line, base, totals)
        with self._unless_none(rest) as is_any:
            if is_any:
                base = k.let(None, self._sum(begin, whole))
                end = k.let(None, self._sum(base, rest))
                with k.region(), a.places.scope():
                    self._take_some(line, base, end, totals)
        return self._whole([variable.value for variable in totals])

    def _preceding(
        self, totals: ArrayHandle, line: Expression, segment: Expression
    ) -> Expression:
        """The totals of a line's segments before this one combined, for all threads."""
        a, k, code = self.a, self.a.k, self.code
        total = k.thread_variable("earlier", code.dtype)
        with k.region():
            total.set(code.start)
        with a.loop("first", a.number(0), segment, self.threads) as first:
            at = k.let(None, first + a.thread)
            with k.when(at < segment):
                own = totals[at * code.lines.count + line]
                total.set(code.combine(total.value, own))
        return self._whole([total.value])

    # A tile.

    def _ways(
        self, size: Coordinate, base: Expression, end: Expression
    ) -> Iterator[Expression | None]:
        """Once for a tile that is whole, and once for one that ends before, at its end.

        Each is written where it is of use only.
        """
        is_whole = end - base >= self.tile
        if not isinstance(size, int) or (size > self.tile and size % self.tile):
            with self.a.k.when(is_whole):
                yield None
            with self.a.k.otherwise():
                yield end
        else:
            yield end if size % self.tile else None

    def _load(
        self,
        line: Expression,
        base: Expression,
        end: Expression | None,
        own: Sequence[Sequence[VariableHandle]],
    ) -> None:
        k, code = self.a.k, self.code
        with k.region(), self.a.places.scope():
            found = self._places(line, base)
            if end is None:
                values = [
                    [k.let(None, code.element(place())) for place in places]
                    for _, places in found
                ]
                for group, taken in zip(own, values, strict=True):
                    for variable, value in zip(group, taken, strict=True):
                        variable.set(value)
                return
            for group, (first, places) in zip(own, found, strict=True):
                for i, (variable, place) in enumerate(zip(group, places, strict=True)):
                    variable.set(code.start)
                    with self._when_left(first, i, end):
                        variable.set(code.element(place()))

    def _store(
        self,
        line: Expression,
        base: Expression,
        end: Expression | None,
        own: Sequence[Sequence[VariableHandle]],
        ahead: Sequence[VariableHandle],
    ) -> None:
        code, out = self.code, self.a.results[0]
        with self.a.k.region(), self.a.places.scope():
            found = self._places(line, base)
            for group, before, (first, places) in zip(own, ahead, found, strict=True):
                for i, place in enumerate(places):
                    with self._when_left(first, i, end):
                        code.store(out, place(), self._shown(before.value, group, i))

    def _shown(
        self, before: Expression, group: Sequence[VariableHandle], i: int
    ) -> Expression:
        """An element's result: with the element, or with those before it only."""
        if not self.code.lines.op.exclusive:
            return self.code.combine(before, group[i].value)
        return self.code.combine(before, group[i - 1].value) if i else before

    def _take(
        self, line: Expression, base: Expression, totals: Sequence[VariableHandle]
    ) -> None:
        values = [
            [self.a.k.let(None, self.code.element(place())) for place in places]
            for _, places in self._places(line, base)
        ]
        for variable, *taken in zip(totals, *values, strict=True):
            total = variable.value
            for value in taken:
                total = self.a.k.let(None, self.code.combine(total, value))
            variable.set(total)

    def _take_some(
        self,
        line: Expression,
        base: Expression,
        end: Expression,
        totals: Sequence[VariableHandle],
    ) -> None:
        for own, places in self._places(line, base):
            for i, (variable, place) in enumerate(zip(totals, places, strict=True)):
                with self._when_left(own, i, end):
                    value = self.code.element(place())
                    variable.set(self.code.combine(variable.value, value))

    # The threads' totals.

    def _scan_threads(
        self,
        mine: Sequence[Sequence[VariableHandle]],
        ahead: Sequence[VariableHandle],
        sums: ArrayHandle,
    ) -> None:
        """What came before each thread's groups in the tile, and the groups' sums."""
        k, code = self.a.k, self.code
        steps = self._steps()
        for number, (distance, taps) in enumerate(steps):
            source, target = self._array(number % 2), self._array(1 - number % 2)
            with k.region():
                for group, variable in enumerate(ahead):
                    # The first looks one further back, so that a thread's own total
                    # is not among what comes before it.
                    backs = [tap * distance + (number == 0) for tap in range(taps)]
                    parts = [
                        self._behind(source, group, back) if back else variable.value
                        for back in reversed(backs)
                    ]
                    variable.set(self._paired(parts))
                    if number < len(steps) - 1:
                        target[self._slot(group, k.thread)] = variable.value
                if number == len(steps) - 1:
                    with k.when(k.thread >= self.threads - 1):
                        for group, variable in enumerate(ahead):
                            last = mine[group][-1].value
                            sums[group] = code.combine(variable.value, last)

    def _steps(self) -> list[tuple[int, int]]:
        """How far apart what is combined in each step lies, and how much it is."""
        steps, distance = [], 1
        while distance < self.threads:
            taps = 4 if 2 * distance < self.threads else 2
            steps.append((distance, taps))
            distance *= taps
        return steps or [(1, 1)]

    def _behind(self, source: ArrayHandle, group: int, back: int) -> Expression:
        """What the thread so far before this one left, or what changes nothing."""
        k = self.a.k
        nearest = maximum(k.thread, back) - back
        value = source[self._slot(group, nearest)]
        return k.let(None, select(k.thread >= back, value, self.code.start))

    def _paired(self, parts: list[Expression]) -> Expression:
        while len(parts) > 1:
            parts = [
                self.code.combine(left, right)
                for left, right in zip(parts[::2], parts[1::2], strict=True)
            ]
        return parts[0]

    def _whole(self, values: list[Expression]) -> Expression:
        """All threads' values combined, in a tree in shared memory."""
        k, array = self.a.k, self._array(0)
        with k.region():
            array[k.thread] = self._paired(values)
        reach = self.threads
        while reach > 1:
            half = (reach + 1) // 2
            with k.region(limit=constant(DType.U32, reach - half)):
                left, right = array[k.thread], array[k.thread + half]
                array[k.thread] = self.code.combine(left, right)
            reach = half
        return k.let(None, array.at(constant(DType.U32, 0)))

    def _array(self, index: int) -> ArrayHandle:
        while len(self._arrays) <= index:
            name, length = f"tile{len(self._arrays)}", self.groups * self.threads
            self._arrays.append(self.a.k.shared(name, self.code.dtype, length))
        return self._arrays[index]

    def _slot(self, group: int, thread: Expression) -> Expression:
        return thread + group * self.threads if group else thread

    # Where things are.

    def _cut(self, size: Coordinate) -> tuple[Coordinate, Coordinate]:
        """How much of a stretch whole tiles take, and what is left."""
        places = self.a.places
        whole = places.multiply(places.quotient(size, self.tile), self.tile)
        return places.named(whole), places.remainder(size, self.tile)

    @contextmanager
    def _unless_none(self, rest: Coordinate) -> Iterator[bool]:
        """What is done with the rest of a stretch, if there can be one."""
        if isinstance(rest, int):
            yield rest > 0
            return
        with self.a.k.when(rest > 0), self.a.places.scope():
            yield True

    @contextmanager
    def _when_left(
        self, own: Expression, i: int, end: Expression | None
    ) -> Iterator[None]:
        if end is None:
            yield
            return
        with self.a.k.when(own + i < end), self.a.places.scope():
            yield

    def _sum(self, left: Coordinate, right: Coordinate) -> Expression:
        return self.a.places.number(self.a.places.add(left, right))

    def _places(
        self, line: Expression, base: Expression
    ) -> list[tuple[Expression, list[_Place]]]:
        """For each group its first element's number in the line, and all elements.

        What tells neighbours apart is added last: LLVM sees which ones they are.
        """
        a, lines, each = self.a, self.code.lines, self.each
        own = a.k.let(None, base + a.thread * each)
        row, column = line, None
        if lines.inner > 1:
            row, column = line / lines.inner, line % lines.inner
        begin = row * lines.extent
        if lines.op.reverse:
            first = a.k.let(None, begin + (lines.extent - each) - own)
        else:
            first = a.k.let(None, begin + own)
        found = []
        for group in range(self.groups):
            offset = group * self.span
            ours = a.k.let(None, own + offset) if offset else own
            if lines.op.reverse:
                near = a.k.let(None, first - offset) if offset else first
                numbers = [(near, each - 1 - i) for i in range(each)]
            else:
                numbers = [(first, offset + i) for i in range(each)]
            places = [_Place(self.code, *one, column) for one in numbers]
            found.append((ours, places))
        return found


class _Place:
    """An element's place, computed where it is asked for."""

    def __init__(
        self, code: ScanCode, first: Expression, offset: int, column: Expression | None
    ) -> None:
        self._code, self._first, self._offset = code, first, offset
        self._column = column

    def __call__(self) -> Place:
        a, lines = self._code.a, self._code.lines
        linear = self._first + self._offset if self._offset else self._first
        if self._column is not None:
            linear = linear * lines.inner + self._column
        return a.places.at(lines.shape, a.k.let(None, linear))
