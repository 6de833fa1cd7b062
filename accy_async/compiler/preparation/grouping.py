"""Which operations of a program become one kernel: what computes as it goes.

Operations are looked at from the last to the first. One whose every user is in one
group joins that group, where the group's kernel can compute it as it goes; one that
costs next to nothing is computed anew in each group that uses it; one that others
use too may be written by a group of its own shape beside what that group writes.
All else begins a group of its own. As an operation only ever joins groups that use
it, no two groups can come to wait for each other, but by the last of these rules,
which looks for that.
"""

from __future__ import annotations

from accy_async.artifact.planned import CompileLaunch
from accy_async.compiler.kernelization.elements import is_elementwise
from accy_async.compiler.preparation.groups import (
    MAX_GROUP_BUFFERS,
    MAX_GROUP_OPERATIONS,
    Group,
    GroupGraph,
)
from accy_async.compiler.semantic import (
    POINTWISE,
    Binary,
    BinaryKind,
    Broadcast,
    Constant,
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
    Slice,
    Softmax,
    Unary,
    UnaryKind,
)
from accy_async.errors import UnsupportedOperation

__all__ = ["group_operations"]

MAX_COSTLY_TIMES = 4
"""How often a costly element is computed rather than kept in memory."""

MAX_TIMES = 16
"""How often an element is computed at all for each element that is written."""

MAX_SLOT_SPLAT_BYTES = 2**16
"""Bytes of a constant of one number that lie in memory; a kernel fills more."""

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
_COMPUTES_ANY = (
    CompileLaunch.ELEMENTWISE,
    CompileLaunch.GATHER,
    CompileLaunch.REDUCTION,
    CompileLaunch.ROW_PIPELINE,
    CompileLaunch.CROSS_ENTROPY,
    CompileLaunch.SCAN,
)
"""Kernels that look at each element of their operands a few times at most."""

_MOVES_ONLY = (CompileLaunch.DOT_GENERAL, CompileLaunch.SCATTER)
"""Kernels that look at elements often, and may as well find them elsewhere."""

_MOVES = (Broadcast, Slice, Reshape, Iota, Constant)


def group_operations(function: Function) -> GroupGraph:
    """The groups of a program of operations that kernels are made of.

    Raises:
        UnsupportedOperation: there is no kernel for an operation.
    """
    graph = GroupGraph(function)
    for entry in reversed(function.operations):
        _assign(graph, entry)
    return graph


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


def _assign(graph: GroupGraph, entry: Operation) -> None:
    using = _using(graph, entry)
    is_kept = any(v in graph.results or graph.is_viewed(v) for v in entry.results)
    if isinstance(entry.op, Constant):
        _assign_constant(graph, entry, entry.op, using, is_kept=is_kept)
    elif not is_elementwise(entry.op):
        _begin(graph, entry)
    elif not is_kept and using and _joins_all(graph, entry, using):
        return
    elif isinstance(entry.op, Reshape):
        graph.view(entry.result, entry.operands[0])
    else:
        beside = (g for g in using if _may_write_beside(graph, entry, g, using))
        group = next(beside, None)
        if group is None:
            _begin(graph, entry)
        else:
            _join(graph, entry, group)
            graph.write(group, entry.result)


def _using(graph: GroupGraph, entry: Operation) -> list[Group]:
    """The groups with a user of it, each once; a view of it is no group's."""
    found: dict[int, Group] = {}
    for value in entry.results:
        for user in graph.users(value):
            for group in graph.groups_of(user):
                found[id(group)] = group
    return list(found.values())


def _begin(graph: GroupGraph, entry: Operation) -> None:
    graph.add(Group(graph.place(entry), entry, kind_of(entry.op)))


def _join(graph: GroupGraph, entry: Operation, group: Group) -> None:
    graph.join(group, entry, _times(graph, entry, group))


def _assign_constant(
    graph: GroupGraph,
    entry: Operation,
    op: Constant,
    using: list[Group],
    *,
    is_kept: bool,
) -> None:
    """Into the code of each group that uses it, where it is small; else into memory."""
    in_memory = is_kept
    for group in using:
        if is_elementwise(op) and _can_compute(entry, group):
            _join(graph, entry, group)
        else:
            in_memory = True
    if in_memory and op.is_splat and op.type.byte_size > MAX_SLOT_SPLAT_BYTES:
        _begin(graph, entry)
    elif in_memory:
        graph.constants[entry.result] = op


def _joins_all(graph: GroupGraph, entry: Operation, using: list[Group]) -> bool:
    """Join the one group that uses it, or all that do, where that pays."""
    if len(using) > 1 and not isinstance(entry.op, (Iota, Broadcast, Reshape)):
        return False
    if not all(_may_compute(graph, entry, group) for group in using):
        return False
    for group in using:
        _join(graph, entry, group)
    return True


def _can_compute(entry: Operation, group: Group) -> bool:
    """Whether the group's kernel can compute it as it goes."""
    if group.kind in _MOVES_ONLY:
        return isinstance(entry.op, _MOVES)
    return group.kind in _COMPUTES_ANY


def _may_compute(graph: GroupGraph, entry: Operation, group: Group) -> bool:
    return (
        _can_compute(entry, group)
        and _fits(entry, group)
        and not _is_wasteful(graph, entry, group)
    )


def _fits(entry: Operation, group: Group, more_results: int = 0) -> bool:
    if len(group.members) >= MAX_GROUP_OPERATIONS:
        return False
    buffers = len(group.read([entry])) + len(group.written) + more_results + 1
    return buffers <= MAX_GROUP_BUFFERS


def _is_wasteful(graph: GroupGraph, entry: Operation, group: Group) -> bool:
    """Whether the group would compute the same elements again and again."""
    times = _times(graph, entry, group)
    count = max(entry.results[0].type.element_count, 1)
    if _is_costly(entry.op) and times > MAX_COSTLY_TIMES * count:
        return True
    return times > MAX_TIMES * max(group.elements, count)


def _times(graph: GroupGraph, entry: Operation, group: Group) -> int:
    """How many of its elements the group computes.

    Users that ask for the same places share them.
    """
    together, apart = 0, 0
    for user in graph.users(entry.results[0]):
        place = graph.place(user)
        if place not in group.members:
            continue
        if isinstance(user.op, POINTWISE):
            together = max(together, group.times[place])
        else:
            apart += group.times[place]
    return together + apart or entry.results[0].type.element_count


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


def _may_write_beside(
    graph: GroupGraph, entry: Operation, group: Group, using: list[Group]
) -> bool:
    """Whether the group may write this value beside what it writes."""
    if group.kind is not CompileLaunch.ELEMENTWISE:
        return False
    if entry.result.shape != group.shape or not _fits(entry, group, 1):
        return False
    if _is_wasteful(graph, entry, group) or graph.reads_view_of(group, entry.result):
        return False
    others = [other for other in using if other is not group]
    others += [g for g in graph.readers(entry.result) if g is not group]
    return not graph.reaches(others, group)
