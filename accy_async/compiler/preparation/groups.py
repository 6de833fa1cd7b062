"""Which operations of a program become one kernel.

Operations are looked at from the last to the first. One whose every user is in one
group joins that group, where the group's kernel can compute it as it goes; one that
costs next to nothing is computed anew in each group that uses it; one that others
use too may be written by a group of its own shape beside what that group writes.
All else begins a group of its own. As an operation only ever joins groups that use
it, no two groups can come to wait for each other, but by the last of these rules,
which looks for that.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import pairwise

from accy_async.artifact.planned import CompileLaunch
from accy_async.compiler.kernelization.elements import is_elementwise
from accy_async.compiler.semantic import (
    Binary,
    BinaryKind,
    Broadcast,
    Compare,
    Constant,
    Convert,
    DotGeneral,
    Function,
    Gather,
    Iota,
    KernelCall,
    Op,
    Operation,
    Reduce,
    Reshape,
    RowSparseCrossEntropy,
    Scan,
    Scatter,
    Select,
    Softmax,
    Unary,
    UnaryKind,
    Value,
)
from accy_async.errors import UnsupportedOperation

__all__ = ["MAX_GROUP_BUFFERS", "MAX_GROUP_OPERATIONS", "Group", "Grouping"]

MAX_GROUP_OPERATIONS = 64
"""Operations of one kernel: what compiles in some 50 ms."""

MAX_GROUP_BUFFERS = 24
"""Buffers of one kernel; Metal takes 31, and Vulkan's devices 16 or many more."""

MAX_COSTLY_TIMES = 4
"""How often a costly element is computed rather than kept in memory."""

MAX_TIMES = 16
"""How often an element is computed at all for each element that is written."""

_MAX_SEARCH = 512

_KINDS: tuple[tuple[type[Op], CompileLaunch], ...] = (
    (Reduce, CompileLaunch.REDUCTION),
    (Scan, CompileLaunch.SCAN),
    (DotGeneral, CompileLaunch.DOT_GENERAL),
    (Scatter, CompileLaunch.SCATTER),
    (Softmax, CompileLaunch.ROW_PIPELINE),
    (RowSparseCrossEntropy, CompileLaunch.CROSS_ENTROPY),
    (KernelCall, CompileLaunch.KERNEL_CALL),
)
_COSTLY_UNARY = (UnaryKind.EXP, UnaryKind.LOG, UnaryKind.TANH, UnaryKind.SQRT)
_COSTLY_BINARY = (BinaryKind.DIVIDE, BinaryKind.REMAINDER)
_POINTWISE = (Unary, Binary, Compare, Select, Convert)


def kind_of(op: Op) -> CompileLaunch:
    """The kind of kernel that an operation by itself becomes.

    Raises:
        UnsupportedOperation: it becomes none.
    """
    if is_elementwise(op) or isinstance(op, Constant):
        is_gather = isinstance(op, Gather)
        return CompileLaunch.GATHER if is_gather else CompileLaunch.ELEMENTWISE
    for kind, launch in _KINDS:
        if isinstance(op, kind):
            return launch
    raise UnsupportedOperation(f"there is no kernel for {op.opcode}")


class Group:
    """Operations that one kernel computes.

    Attributes:
        root: the operation that the group began with, the last in the program.
        kind: what the kernel is.
        members: the operations, by their places in the program.
        times: how many elements of each are computed.
        shape: of all that it writes.
        elements: that the root computes, or takes in where it reduces.
    """

    def __init__(self, place: int, root: Operation, kind: CompileLaunch) -> None:
        self.root = root
        self.kind = kind
        self.members: dict[int, Operation] = {place: root}
        taken = root.operands[0] if kind is CompileLaunch.REDUCTION else root.results[0]
        self.elements = max(taken.type.element_count, 1)
        self.times = {place: self.elements}
        self.shape = root.results[0].shape
        self.written: dict[Value, None] = dict.fromkeys(root.results)

    @property
    def takes_producers(self) -> bool:
        """Whether the kernel can compute its operands as it goes."""
        return self.kind in (
            CompileLaunch.ELEMENTWISE,
            CompileLaunch.GATHER,
            CompileLaunch.REDUCTION,
        )

    def operations(self) -> list[Operation]:
        """The operations in the program's order."""
        return [self.members[place] for place in sorted(self.members)]

    def made(self) -> set[Value]:
        """All values that it computes."""
        return {v for entry in self.members.values() for v in entry.results}

    def read(self, more: Iterable[Operation] = ()) -> dict[Value, None]:
        """The values that it needs from elsewhere, with ``more`` as members too."""
        entries = [*self.operations(), *more]
        made = {value for entry in entries for value in entry.results}
        return {
            value: None
            for entry in entries
            for value in entry.operands
            if value not in made
        }


class Grouping:
    """The groups of a program.

    Args:
        function: the program, of operations that kernels are made of.

    Attributes:
        groups: in no particular order; see `Grouping.ordered`.
        views: values that are another's elements in another shape: that other.
        constants: constants that lie in memory.

    Raises:
        UnsupportedOperation: there is no kernel for an operation.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.groups: list[Group] = []
        self.views: dict[Value, Value] = {}
        self.constants: dict[Value, Constant] = {}
        self._results = set(function.results)
        self._users = function.users()
        self._producers = function.producers()
        self._places = {id(entry): i for i, entry in enumerate(function.operations)}
        self._groups_of: dict[int, list[Group]] = {}
        self._views_of: dict[Value, list[Value]] = {}
        for entry in reversed(function.operations):
            self._assign(entry)

    # Which group

    def _assign(self, entry: Operation) -> None:
        place = self._places[id(entry)]
        using = self._using_groups(entry)
        is_kept = any(v in self._results or v in self._views_of for v in entry.results)
        if isinstance(entry.op, Constant):
            self._assign_constant(place, entry, using, is_kept=is_kept)
            return
        if not is_elementwise(entry.op):
            self._begin(place, entry)
            return
        if not is_kept and using and self._joins_all(place, entry, using):
            return
        if isinstance(entry.op, Reshape):
            base = entry.operands[0]
            self.views[entry.result] = base
            self._views_of.setdefault(base, []).append(entry.result)
            return
        for group in using:
            if self._may_write_beside(entry, group, using):
                self._join(group, place, entry)
                group.written[entry.result] = None
                return
        self._begin(place, entry)

    def _using_groups(self, entry: Operation) -> list[Group]:
        """The groups that read one of its results, each once."""
        found: dict[int, Group] = {}
        for value in entry.results:
            for user in self._users[value]:
                for group in self._groups_of.get(self._places[id(user)], ()):
                    found[id(group)] = group
        return list(found.values())

    def _assign_constant(
        self, place: int, entry: Operation, using: list[Group], *, is_kept: bool
    ) -> None:
        needs_memory = is_kept
        for group in using:
            if is_elementwise(entry.op) and group.takes_producers:
                self._join(group, place, entry)
            else:
                needs_memory = True
        if needs_memory:
            assert isinstance(entry.op, Constant)
            self.constants[entry.result] = entry.op

    def _begin(self, place: int, entry: Operation) -> None:
        group = Group(place, entry, kind_of(entry.op))
        self.groups.append(group)
        self._groups_of[place] = [group]

    def _join(self, group: Group, place: int, entry: Operation) -> None:
        group.times[place] = self._times(entry, group)
        group.members[place] = entry
        self._groups_of.setdefault(place, []).append(group)

    def _joins_all(self, place: int, entry: Operation, using: list[Group]) -> bool:
        """Join the one group that uses it, or all that do, where that pays."""
        if len(using) > 1 and not isinstance(entry.op, (Iota, Broadcast, Reshape)):
            return False
        if not all(self._may_compute(entry, group) for group in using):
            return False
        for group in using:
            self._join(group, place, entry)
        return True

    def _may_compute(self, entry: Operation, group: Group) -> bool:
        return (
            group.takes_producers
            and self._fits(entry, group)
            and not self._is_wasteful(entry, group)
        )

    def _fits(self, entry: Operation, group: Group, more_results: int = 0) -> bool:
        if len(group.members) >= MAX_GROUP_OPERATIONS:
            return False
        buffers = len(group.read([entry])) + len(group.written) + more_results + 1
        return buffers <= MAX_GROUP_BUFFERS

    def _is_wasteful(self, entry: Operation, group: Group) -> bool:
        """Whether the group would compute the same elements again and again."""
        times = self._times(entry, group)
        count = max(entry.results[0].type.element_count, 1)
        if _is_costly(entry.op) and times > MAX_COSTLY_TIMES * count:
            return True
        return times > MAX_TIMES * max(group.elements, count)

    def _times(self, entry: Operation, group: Group) -> int:
        """How many of its elements the group computes.

        Users that ask for the same places share them.
        """
        together, apart = 0, 0
        for user in self._users[entry.results[0]]:
            place = self._places[id(user)]
            if place not in group.members:
                continue
            if isinstance(user.op, _POINTWISE):
                together = max(together, group.times[place])
            else:
                apart += group.times[place]
        return together + apart or entry.results[0].type.element_count

    def _may_write_beside(
        self, entry: Operation, group: Group, using: list[Group]
    ) -> bool:
        """Whether the group may write this value beside what it writes."""
        if group.kind is not CompileLaunch.ELEMENTWISE:
            return False
        if entry.result.shape != group.shape or not self._fits(entry, group, 1):
            return False
        others = [other for other in using if other is not group]
        views = list(self._views_of.get(entry.result, ()))
        while views:
            view = views.pop()
            others += self._readers(view)
            views += self._views_of.get(view, ())
        return not self._reaches(others, group)

    def _readers(self, value: Value) -> list[Group]:
        return [
            group
            for user in self._users[value]
            for group in self._groups_of.get(self._places[id(user)], ())
        ]

    def _reaches(self, begin: list[Group], goal: Group) -> bool:
        """Whether what follows from some groups comes to another; True if unknown."""
        seen: dict[int, Group] = {id(group): group for group in begin}
        waiting = list(begin)
        while waiting:
            group = waiting.pop()
            if group is goal or len(seen) > _MAX_SEARCH:
                return True
            for after in self._followers(group):
                if id(after) not in seen:
                    seen[id(after)] = after
                    waiting.append(after)
        return False

    def _followers(self, group: Group) -> Iterator[Group]:
        values = list(group.written)
        while values:
            value = values.pop()
            for user in self._users[value]:
                if user.results[0] in self.views:
                    values.extend(user.results)
                for after in self._groups_of.get(self._places[id(user)], ()):
                    if after is not group:
                        yield after

    # In which order

    def base(self, value: Value) -> Value:
        """The value whose memory a value is in."""
        while value in self.views:
            value = self.views[value]
        return value

    def ordered(self) -> list[Group]:
        """The groups, each after those that it reads from.

        Of those that can run, kernel calls wait for the others: what only reads a
        value is then done before a call takes its memory over. Calls keep their
        order among each other.
        """
        writer = {v: group for group in self.groups for v in group.written}
        place = {id(group): max(group.members) for group in self.groups}
        calls = [g for g in self.groups if g.kind is CompileLaunch.KERNEL_CALL]
        calls.sort(key=lambda group: place[id(group)])
        needs: dict[int, set[int]] = {}
        for group in self.groups:
            bases = (self.base(value) for value in group.read())
            needs[id(group)] = {id(writer[v]) for v in bases if v in writer}
        for before, after in pairwise(calls):
            needs[id(after)].add(id(before))
        return _sorted_groups(self.groups, needs, place)


def _sorted_groups(
    groups: list[Group], needs: dict[int, set[int]], place: dict[int, int]
) -> list[Group]:
    by_id = {id(group): group for group in groups}
    followers: dict[int, list[int]] = {id(group): [] for group in groups}
    missing = {}
    for number, before in needs.items():
        missing[number] = len(before)
        for other in before:
            followers[other].append(number)

    def entry(number: int) -> tuple[bool, int, int]:
        is_call = by_id[number].kind is CompileLaunch.KERNEL_CALL
        return is_call, place[number], number

    ready = [entry(number) for number, count in missing.items() if count == 0]
    heapq.heapify(ready)
    ordered = []
    while ready:
        number = heapq.heappop(ready)[-1]
        ordered.append(by_id[number])
        for after in followers[number]:
            missing[after] -= 1
            if missing[after] == 0:
                heapq.heappush(ready, entry(after))
    assert len(ordered) == len(groups), "two groups wait for each other"
    return ordered


def _is_costly(op: Op) -> bool:
    """Whether an element is cheaper read than computed again."""
    match op:
        case Unary(kind=kind):
            return kind in _COSTLY_UNARY
        case Binary(kind=binary):
            return binary in _COSTLY_BINARY
        case Gather():
            return True
        case _:
            return False
