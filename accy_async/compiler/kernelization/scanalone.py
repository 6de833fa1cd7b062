"""Stretches of lines that a thread each goes along, neighbouring lines in a block.

The elements that a thread takes at a time are on their way before one is used.
"""

from __future__ import annotations

from collections.abc import Callable

from accy_async.compiler.form import ArrayHandle, Expression, VariableHandle
from accy_async.compiler.kernelization.assembly import ceil_div
from accy_async.compiler.kernelization.places import Coordinate, Place
from accy_async.compiler.kernelization.scancode import ScanCode

__all__ = ["ScanAlone"]


class ScanAlone:
    """Writes what a block does to a stretch of as many lines as it has threads.

    Args:
        code: what the kernels of the scan share.
        at_once: elements that a thread takes at a time.
    """

    def __init__(self, code: ScanCode, at_once: int) -> None:
        self.code, self.a = code, code.a
        self.at_once = at_once
        self.units = ceil_div(code.lines.count, code.threads)

    def scan(
        self,
        unit: Expression,
        begin: Expression,
        size: Coordinate,
        segment: Expression | None = None,
    ) -> None:
        """Scan a stretch into the first result.

        Where it is a segment, onto the totals of those before it, the first partials.
        """
        a, code = self.a, self.code
        first, left, total = self._begun(unit)
        if segment is not None:
            self._earlier(segment, first, left, total)

        def taken(places: list[Place]) -> None:
            values = [a.k.let(None, code.element(place)) for place in places]
            for place, value in zip(places, values, strict=True):
                before = a.k.let(None, total.value)
                after = a.k.let(None, code.combine(before, value))
                total.set(after)
                shown = before if code.lines.op.exclusive else after
                code.store(a.results[0], place, shown)

        self._along(first, left, begin, size, taken)

    def leave_total(
        self, unit: Expression, segment: Expression, begin: Expression, size: Coordinate
    ) -> None:
        """Combine a segment's elements into the first result."""
        a, code = self.a, self.code
        first, left, total = self._begun(unit)

        def taken(places: list[Place]) -> None:
            values = [a.k.let(None, code.element(place)) for place in places]
            for value in values:
                total.set(code.combine(total.value, value))

        self._along(first, left, begin, size, taken)
        with a.k.region(limit=left):
            a.results[0][segment * code.lines.count + (first + a.thread)] = total.value

    def _begun(self, unit: Expression) -> tuple[Expression, Expression, VariableHandle]:
        """The block's first line, how many are left, and each thread's total."""
        a, code = self.a, self.code
        total = a.k.thread_variable("total", code.dtype)
        first = a.k.let("first", unit * code.threads)
        left = a.k.let("left", a.left(a.number(code.lines.count), first))
        with a.k.region(limit=left):
            total.set(code.start)
        return first, left, total

    def _earlier(
        self,
        segment: Expression,
        first: Expression,
        left: Expression,
        total: VariableHandle,
    ) -> None:
        """Combine the totals of the segments before this one."""
        a, code = self.a, self.code
        totals: ArrayHandle = a.partials[0]
        with a.loop("earlier", a.number(0), segment, limit=left) as at:
            known = totals[at * code.lines.count + (first + a.thread)]
            total.set(code.combine(total.value, known))

    def _along(
        self,
        first: Expression,
        left: Expression,
        begin: Expression,
        size: Coordinate,
        body: Callable[[list[Place]], None],
    ) -> None:
        """Run a body for all elements of the threads' stretches, some at a time."""
        a, code, places = self.a, self.code, self.a.places
        for each in dict.fromkeys((self.at_once, 1)):
            whole = places.multiply(places.quotient(size, each), each)
            if whole != 0:
                end = places.number(places.add(begin, whole))
                with a.loop("at", begin, end, each, limit=left) as at:
                    line = first + a.thread
                    taken = [at + i if i else at for i in range(each)]
                    body([code.place(line, one) for one in taken])
            begin = a.k.let(None, places.number(places.add(begin, whole)))
            size = places.remainder(size, each)
