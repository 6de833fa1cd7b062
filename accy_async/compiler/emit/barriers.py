"""Where the threads of a block must meet, for devices that run them all at once.

The kernel form has a barrier between any two regions. One is needed only where
something that threads share was touched since the last one: a region or uniform
load that reads what a region wrote, or a region that writes what threads may
still be reading or writing. Uniform code is run by every thread by itself, so a
fast thread could otherwise overwrite what a slow one has yet to read.

Buffers may overlap and count as one piece of memory; every block-shared array is
a piece of its own. Barriers stand in uniform code only, which all threads of a
block run alike, so none can be missed.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from accy_async.compiler.form import (
    Combine,
    Constant,
    Expression,
    For,
    If,
    Kernel,
    Load,
    Region,
    Statement,
    Store,
    TileProduct,
)
from accy_async.compiler.form.traversal import evaluated_by, every_statement

__all__ = ["WARP", "BarrierPlan", "plan_barriers"]

WARP = 32
"""Threads that run together on NVIDIA's devices: the first ones are a warp."""

_BUFFERS = ""
"""Stands for the memory of all buffers; no array has this name."""


@attrs.frozen
class BarrierPlan:
    """The statements that need a barrier, by identity.

    Attributes:
        before: ahead of the statement, its conditions and bounds.
        within: between a region's limit and its body.
        of_a_warp: those within, before which only the block's first threads touched
            anything, and only they do so now: it is enough that a warp meets, where a
            device has warps.
        through_buffers: whether threads of a block come, in buffers, upon what
            others of it wrote.
    """

    before: frozenset[int]
    within: frozenset[int]
    of_a_warp: frozenset[int]
    through_buffers: bool

    def stands_before(self, statement: Statement) -> bool:
        """Whether all threads meet ahead of the statement."""
        return id(statement) in self.before

    def stands_within(self, region: Region) -> bool:
        """Whether all threads meet between the region's limit and its body."""
        return id(region) in self.within

    def is_of_a_warp(self, region: Region) -> bool:
        """Whether the first `WARP` threads are all who need to meet there."""
        return id(region) in self.of_a_warp


def plan_barriers(kernel: Kernel) -> BarrierPlan:
    """The barriers of a kernel."""
    planner = _Planner({array.name for array in kernel.shared})
    planner.body(kernel.body, _Touched())
    return BarrierPlan(
        frozenset(planner.before),
        frozenset(planner.within),
        frozenset(planner.within_warp - planner.within_block),
        planner.through_buffers,
    )


@attrs.frozen
class _Touched:
    """What threads may have read and written since they last met.

    ``wide_reads`` and ``wide_writes`` are those by more than the block's first warp.
    """

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    wide_reads: frozenset[str] = frozenset()
    wide_writes: frozenset[str] = frozenset()

    def __or__(self, other: _Touched) -> _Touched:
        return _Touched(
            self.reads | other.reads,
            self.writes | other.writes,
            self.wide_reads | other.wide_reads,
            self.wide_writes | other.wide_writes,
        )

    def widened(self) -> _Touched:
        """The same, touched by every thread."""
        return _Touched(self.reads, self.writes, self.reads, self.writes)

    def wide(self) -> _Touched:
        """What more than a warp touched."""
        return _Touched(self.wide_reads, self.wide_writes)

    def meets(self, later: _Touched) -> frozenset[str]:
        """The pieces of memory that need a barrier in between."""
        return self.writes & (later.reads | later.writes) | self.reads & later.writes


class _Planner:
    def __init__(self, shared: set[str]) -> None:
        self._shared = shared
        self.before: set[int] = set()
        self.within: set[int] = set()
        self.within_warp: set[int] = set()
        self.within_block: set[int] = set()
        self.through_buffers = False

    def body(self, body: Iterable[Statement], touched: _Touched) -> _Touched:
        """Go through uniform code; what is touched at its end."""
        for statement in body:
            touched = self._statement(statement, touched)
        return touched

    def _statement(self, statement: Statement, touched: _Touched) -> _Touched:
        head = self._reads(evaluated_by(statement)).widened()
        touched = self._meet(statement, touched, head, self.before)
        match statement:
            case If():
                then = self.body(statement.then, touched)
                return then | self.body(statement.otherwise, touched)
            case For():
                while True:  # ends: `touched` only grows, and there are few arrays
                    after = self.body(statement.body, touched)
                    if after | touched == touched:
                        return touched
                    touched |= after
            case Region():
                inside = self._inside(statement.body)
                if not _is_narrow(statement):
                    inside = inside.widened()
                return self._meet_within(statement, touched, inside)
            case TileProduct():  # a barrier, behind which they have read all they do
                if _BUFFERS in touched.writes:
                    self.through_buffers = True
                return _Touched()
            case _:
                return touched

    def _meet(
        self,
        statement: Statement,
        touched: _Touched,
        next_: _Touched,
        where: set[int],
    ) -> _Touched:
        meeting = touched.meets(next_)
        if not meeting:
            return touched | next_
        where.add(id(statement))
        written = touched.writes & (next_.reads | next_.writes)
        self.through_buffers |= _BUFFERS in written
        return next_

    def _meet_within(
        self, region: Region, touched: _Touched, inside: _Touched
    ) -> _Touched:
        if not touched.meets(inside):
            return touched | inside
        if inside.wide() != _Touched() or touched.wide().meets(inside):
            self.within_block.add(id(region))
            return self._meet(region, touched, inside, self.within)
        self.within_warp.add(id(region))
        self._meet(region, touched, inside, self.within)
        return touched | inside  # the other warps did not meet them

    def _inside(self, body: Iterable[Statement]) -> _Touched:
        """All that the threads of a region touch."""
        touched = _Touched()
        for statement in every_statement(body):
            touched |= self._reads(evaluated_by(statement))
            if isinstance(statement, (Store, Combine)):
                touched |= _Touched(writes=frozenset({self._piece(statement.array)}))
        return touched

    def _reads(self, expressions: Iterable[Expression]) -> _Touched:
        arrays = (
            self._piece(part.array)
            for expression in expressions
            for part in expression.walk()
            if isinstance(part, Load)
        )
        return _Touched(reads=frozenset(arrays))

    def _piece(self, array: str) -> str:
        return array if array in self._shared else _BUFFERS


def _is_narrow(region: Region) -> bool:
    """Whether only threads of the block's first warp take part."""
    limit = region.limit
    return isinstance(limit, Constant) and 0 <= limit.scalar.value <= WARP
