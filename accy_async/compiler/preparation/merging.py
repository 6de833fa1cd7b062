"""Groups that become one: products and reductions with what comes around them.

A kernel of a product can go on with elementwise operations on the product's elements.
A kernel over rows can hold several reductions along the same axes of one shape, and
elementwise operations on the rows' elements and on what the reductions give. Groups
are merged two at a time, as long as the merged one is such a kernel and no other group
would have to run between its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accy_async.artifact.planned import CompileLaunch
from accy_async.compiler.kernelization.products import find_product
from accy_async.compiler.kernelization.rowplan import RowPlan, plan_rows
from accy_async.compiler.preparation.extraction import extract
from accy_async.compiler.preparation.groups import (
    MAX_GROUP_BUFFERS,
    MAX_GROUP_OPERATIONS,
    ROW_KINDS,
    Group,
    GroupGraph,
)
from accy_async.compiler.semantic import Function, RowSparseCrossEntropy, expand
from accy_async.errors import UnsupportedOperation

__all__ = ["merge_groups"]

_MANY_ROWS = 512
"""Rows that keep a device busy with a block each."""

_LONG_ROW = 2**14
"""Elements of a row that one block goes through in the time of some launches."""

_MANY_COLUMNS = 2**14
"""Rows that keep a device busy with a thread each."""

_LONG_COLUMN = 2**8
"""Elements of a row that one thread goes through in that time."""

_NARROW = 16
"""Neighbours in memory of different rows from which on a thread takes a row alone."""


def merge_groups(graph: GroupGraph) -> GroupGraph:
    """Merge groups as far as that goes; the graph, changed."""
    for kinds in ((CompileLaunch.DOT_GENERAL,), ROW_KINDS):
        # What lay between two groups may have been merged with one of them since.
        while _merge_each(graph, kinds):
            pass
    return graph


def _merge_each(graph: GroupGraph, kinds: Sequence[CompileLaunch]) -> bool:
    """Merge each group of some kinds with what it can be merged with; True if any."""
    waiting = [group for group in reversed(graph.groups) if group.kind in kinds]
    gone: dict[int, Group] = {}
    while waiting:
        group = waiting.pop()
        if id(group) in gone:
            continue
        for other in list(_neighbours(graph, group)):
            merged = _merged(graph, group, other)
            if merged is not None:
                graph.replace((group, other), merged)
                gone.update({id(group): group, id(other): other})
                waiting.append(merged)
                break
    return bool(gone)


def _neighbours(graph: GroupGraph, group: Group) -> Iterator[Group]:
    """The groups that might become one with a group, each once: those after it first.

    A kernel over rows also takes what it reads from, and what reads the same.
    """
    seen = {id(group)}
    is_rows = group.kind in ROW_KINDS
    wanted = (CompileLaunch.ELEMENTWISE, *(ROW_KINDS if is_rows else ()))
    found = list(graph.followers(group))
    if is_rows:
        found += graph.sources(group)
        found += (g for value in group.read() for g in graph.readers(value))
    for other in found:
        if id(other) not in seen and other.kind in wanted:
            seen.add(id(other))
            yield other


def _merged(graph: GroupGraph, group: Group, other: Group) -> Group | None:
    """The two as one; None where that is no kernel, or not worth it."""
    parts = (group, other)
    if len({**group.members, **other.members}) > MAX_GROUP_OPERATIONS:
        return None
    if graph.is_between(group, other):
        return None
    written = [
        value
        for value in (*group.written, *other.written)
        if graph.is_needed_outside(value, parts)
    ]
    merged = Group.of(parts, written, group.kind)
    graph.take_views(merged)
    read = tuple(merged.read())
    if len(read) + len(written) + 1 > MAX_GROUP_BUFFERS:
        return None
    function = extract("merged", read, merged.operations(), tuple(written))
    try:
        if group.kind is CompileLaunch.DOT_GENERAL:
            find_product(function)
        else:
            plan = plan_rows(expand(function))
            if not _is_worth_it(plan) or _is_repeated(graph, group, other, plan):
                return None
            merged.kind = _kind(function, plan)
    except UnsupportedOperation:
        return None
    return merged


def _is_worth_it(plan: RowPlan) -> bool:
    """Whether the device stays as busy as with a kernel for each part.

    What needs no second look at the elements can be cut along the rows.
    """
    if not plan.full_results and len(plan.stages) == 1:
        return True
    if _neighbouring_rows(plan) >= _NARROW:
        return plan.rows >= _MANY_COLUMNS or plan.extent <= _LONG_COLUMN
    return plan.rows >= _MANY_ROWS or plan.extent <= _LONG_ROW


def _neighbouring_rows(plan: RowPlan) -> int:
    """How many rows have elements next to each other in memory."""
    count = 1
    for axis in reversed(range(len(plan.shape))):
        if axis in plan.axes and plan.shape[axis] > 1:
            break
        count *= plan.shape[axis]
    return count


def _is_repeated(graph: GroupGraph, group: Group, other: Group, plan: RowPlan) -> bool:
    """Whether what came before is computed for each element, and was for fewer."""
    is_before = any(source is other for source in graph.sources(group))
    return is_before and other.shape != plan.shape and other.kind not in ROW_KINDS


def _kind(function: Function, plan: RowPlan) -> CompileLaunch:
    if any(isinstance(e.op, RowSparseCrossEntropy) for e in function.operations):
        return CompileLaunch.CROSS_ENTROPY
    if plan.full_results or len(plan.stages) > 1:
        return CompileLaunch.ROW_PIPELINE
    return CompileLaunch.REDUCTION
