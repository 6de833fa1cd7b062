"""Groups of operations that one kernel computes, and how they hang together."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from accy_async.artifact.planned import CompileLaunch
from accy_async.compiler.semantic import Constant, Function, Operation, Value

__all__ = [
    "MAX_GROUP_BUFFERS",
    "MAX_GROUP_OPERATIONS",
    "ROW_KINDS",
    "Group",
    "GroupGraph",
]

MAX_GROUP_OPERATIONS = 64
"""Operations of one kernel: what compiles in some 50 ms."""

MAX_GROUP_BUFFERS = 24
"""Buffers of one kernel; Metal takes 31, and Vulkan's devices 16 or many more."""

ROW_KINDS = (
    CompileLaunch.REDUCTION,
    CompileLaunch.ROW_PIPELINE,
    CompileLaunch.CROSS_ENTROPY,
)
"""Kernels over rows, which hold reductions."""

_LOOKS = {CompileLaunch.ROW_PIPELINE: 3, CompileLaunch.CROSS_ENTROPY: 2}
"""How often a softmax and a cross entropy look at each element."""

_MAX_SEARCH = 512
"""Groups that a search looks at before it gives up."""


class Group:
    """Operations that one kernel computes.

    Attributes:
        root: the operation that messages name.
        kind: what the kernel is.
        members: the operations, by their places in the program.
        times: how many elements of each are computed.
        written: the values that the kernel writes, in order.
        shape: of the root's results.
        elements: that the root computes, or takes in where it reduces.
        height: more than that of any group that reads from it.
    """

    def __init__(self, place: int, root: Operation, kind: CompileLaunch) -> None:
        self.root = root
        self.kind = kind
        self.members: dict[int, Operation] = {place: root}
        values = (*root.operands[:1], root.results[0])
        counted = values if kind in ROW_KINDS else values[-1:]
        self.elements = max(1, *(value.type.element_count for value in counted))
        self.times = {place: self.elements * _LOOKS.get(kind, 1)}
        self.shape = root.results[0].shape
        self.written: dict[Value, None] = dict.fromkeys(root.results)
        self.height = 0

    @classmethod
    def of(
        cls, parts: Sequence[Group], written: Iterable[Value], kind: CompileLaunch
    ) -> Group:
        """Several groups as one, which writes some of what they do."""
        last = max(parts, key=lambda group: max(group.members))
        merged = cls(max(last.members), last.root, kind)
        merged.members = {}
        merged.times = {}
        for part in parts:
            merged.members.update(part.members)
            merged.times.update(part.times)
        merged.written = dict.fromkeys(written)
        merged.height = max(part.height for part in parts)
        return merged

    def operations(self) -> list[Operation]:
        """The operations in the program's order."""
        return [self.members[place] for place in sorted(self.members)]

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


class GroupGraph:
    """The groups of a program, and who reads what of whom.

    Attributes:
        function: the program.
        views: values that are another's elements in another shape: that other.
        constants: constants that lie in memory.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.views: dict[Value, Value] = {}
        self.constants: dict[Value, Constant] = {}
        self.results = set(function.results)
        self._groups: dict[int, Group] = {}
        self._users: list[list[Operation]] = [[] for _ in range(function.value_count)]
        for entry in function.operations:
            for index in dict.fromkeys(value.index for value in entry.operands):
                self._users[index].append(entry)
        self._makers = function.producers()
        self._places = {id(entry): i for i, entry in enumerate(function.operations)}
        self._groups_at: dict[int, list[Group]] = {}
        self._views_of: dict[Value, list[Value]] = {}

    @property
    def groups(self) -> list[Group]:
        """The groups, in no particular order; see `ordered`."""
        return list(self._groups.values())

    def users(self, value: Value) -> list[Operation]:
        """The operations that read a value."""
        return self._users[value.index]

    def place(self, entry: Operation) -> int:
        """Where an operation stands in the program."""
        return self._places[id(entry)]

    # Changing it

    def add(self, group: Group) -> None:
        """Add a group with the members that it has."""
        self._groups[id(group)] = group
        for place in group.members:
            self._groups_at.setdefault(place, []).append(group)
        self._lift(group)

    def write(self, group: Group, value: Value) -> None:
        """Have a group write a value that one of its members makes."""
        group.written[value] = None
        self._lift(group)

    def _lift(self, group: Group) -> None:
        """Settle heights after a group came to have other readers."""
        waiting = [group]
        while waiting:
            lifted = waiting.pop()
            above = (other.height + 1 for other in self.followers(lifted))
            lifted.height = max(lifted.height, *above, 0)
            assert lifted.height <= self.function.value_count, "groups wait in a circle"
            waiting += (
                source
                for source in self.sources(lifted)
                if source.height <= lifted.height
            )

    def join(self, group: Group, entry: Operation, times: int) -> None:
        """Make an operation a member of a group."""
        place = self.place(entry)
        group.members[place] = entry
        group.times[place] = times
        self._groups_at.setdefault(place, []).append(group)

    def replace(self, parts: Sequence[Group], merged: Group) -> None:
        """Put one group in the place of several that it is made of."""
        for part in parts:
            del self._groups[id(part)]
            for place in part.members:
                self._groups_at[place].remove(part)
        self.add(merged)

    def view(self, value: Value, base: Value) -> None:
        """Say that a value is another's elements in another shape."""
        self.views[value] = base
        self._views_of.setdefault(base, []).append(value)

    # Asking it

    def base(self, value: Value) -> Value:
        """The value whose memory a value is in."""
        while value in self.views:
            value = self.views[value]
        return value

    def is_viewed(self, value: Value) -> bool:
        """Whether another value is its elements in another shape."""
        return value in self._views_of

    def groups_of(self, entry: Operation) -> list[Group]:
        """The groups that an operation is a member of."""
        return self._groups_at.get(self.place(entry), [])

    def readers(self, value: Value) -> Iterator[Group]:
        """The groups with an operation that uses a value, or a view of it."""
        values = [value]
        while values:
            value = values.pop()
            values += self._views_of.get(value, ())
            for user in self.users(value):
                yield from self.groups_of(user)

    def followers(self, group: Group) -> Iterator[Group]:
        """The groups that read what a group writes."""
        for value in group.written:
            for other in self.readers(value):
                if other is not group:
                    yield other

    def sources(self, group: Group) -> Iterator[Group]:
        """The groups that write what a group reads."""
        for value in dict.fromkeys(self.base(value) for value in group.read()):
            maker = self._makers.get(value)
            for other in () if maker is None else self.groups_of(maker):
                if value in other.written and other is not group:
                    yield other

    def is_needed_outside(self, value: Value, inside: Sequence[Group]) -> bool:
        """Whether a value has to be written if these groups are one."""
        shown = [value]
        for other in shown:
            shown += self._views_of.get(other, ())
        if not self.results.isdisjoint(shown):
            return True
        return any(group not in inside for group in self.readers(value))

    def reads_view_of(self, group: Group, value: Value) -> bool:
        """Whether a group reads a value's elements in another shape."""
        return any(self._is_view_of(read, {value}) for read in group.read())

    def take_views(self, group: Group) -> None:
        """Make views of what a group itself makes its members: it reads none of them.

        For a group that is not added yet.
        """
        made = {v for entry in group.operations() for v in entry.results}
        waiting = list(group.read())
        while waiting:
            value = waiting.pop()
            if value in self.views and self._is_view_of(value, made):
                entry = self._makers[value]
                group.members[self.place(entry)] = entry
                waiting += entry.operands

    def _is_view_of(self, value: Value, made: set[Value]) -> bool:
        while value in self.views:
            value = self.views[value]
            if value in made:
                return True
        return False

    def reaches(
        self, begin: Iterable[Group], goal: Group, but: Sequence[Group] = ()
    ) -> bool:
        """Whether what follows from some groups comes to another; True if unknown.

        Args:
            begin: where the search begins.
            goal: the other group.
            but: groups that the search does not go into.
        """
        seen = {id(group) for group in but}
        waiting = list(begin)
        while waiting:
            group = waiting.pop()
            if group is goal or len(seen) > _MAX_SEARCH:
                return True
            if id(group) in seen or group.height <= goal.height:
                continue
            seen.add(id(group))
            waiting += self.followers(group)
        return False

    def is_between(self, group: Group, other: Group) -> bool:
        """Whether a group would have to run between the two if they were one."""
        for first, second in ((group, other), (other, group)):
            others = [after for after in self.followers(first) if after is not second]
            if self.reaches(others, second, but=[first]):
                return True
        return False

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
    groups: Sequence[Group], needs: dict[int, set[int]], place: dict[int, int]
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
