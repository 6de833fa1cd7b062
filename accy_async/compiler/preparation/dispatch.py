"""The third phase: a program's operations into work items, one for each launch."""

from __future__ import annotations

import attrs

from accy_async.artifact.planned import CompileLaunch
from accy_async.compiler.kernelization import WorkItem
from accy_async.compiler.preparation.extraction import extract
from accy_async.compiler.preparation.grouping import group_operations
from accy_async.compiler.preparation.groups import Group, GroupGraph
from accy_async.compiler.preparation.merging import merge_groups
from accy_async.compiler.preparation.passes import Pipeline
from accy_async.compiler.semantic import (
    Constant,
    Function,
    KernelCall,
    Value,
)

__all__ = ["DISPATCH_PASSES", "DispatchItem", "DispatchPlan", "dispatch"]

DISPATCH_PASSES = ("grouping", "merging", "ordering")
"""The passes of the phase."""


@attrs.frozen(kw_only=True, eq=False)
class DispatchItem:
    """One launch: what it computes, on which values of the program.

    Attributes:
        kind: what kind of kernel it is.
        operands: values read, in the order of the kernel's arguments, each once; a
            kernel call has its own operands, in its order.
        results: values written, in the order of the kernel's arguments.
        function: what is computed, None for a kernel call.
        call: the kernel call, None for all else.
        op_count: operations of the program that it computes.
        opcode: that of its last operation.
        location: the source line of that operation, or None.
    """

    kind: CompileLaunch
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    function: Function | None = None
    call: KernelCall | None = None
    op_count: int = 1
    opcode: str
    location: str | None = None

    def work_item(self, work_item_id: int) -> WorkItem:
        """It as kernelization takes it, under a number."""
        assert self.function is not None, "a kernel call is no work item"
        return WorkItem(
            work_item_id=work_item_id,
            kind=self.kind,
            function=self.function,
            op_count=self.op_count,
        )


@attrs.frozen(kw_only=True, eq=False)
class DispatchPlan:
    """The work items of a program.

    Attributes:
        function: the program.
        items: the launches, in an order in which they can run.
        views: values that are another's elements in another shape: that other.
        constants: constants that lie in memory.
    """

    function: Function
    items: tuple[DispatchItem, ...]
    views: dict[Value, Value]
    constants: dict[Value, Constant]

    def base(self, value: Value) -> Value:
        """The value whose memory a value is in."""
        while value in self.views:
            value = self.views[value]
        return value


def dispatch(function: Function, pipeline: Pipeline) -> DispatchPlan:
    """The work items of a function of operations that kernels are made of.

    Raises:
        UnsupportedOperation: there is no kernel for an operation.
    """
    graph = pipeline.run("grouping", group_operations, function)
    graph = pipeline.run("merging", merge_groups, graph)
    items = pipeline.run("ordering", _items, graph)
    return DispatchPlan(
        function=function,
        items=items,
        views=graph.views,
        constants=graph.constants,
    )


def _items(graph: GroupGraph) -> tuple[DispatchItem, ...]:
    return tuple(_item(group) for group in graph.ordered())


def _item(group: Group) -> DispatchItem:
    root = group.root
    if isinstance(root.op, KernelCall):
        return DispatchItem(
            kind=CompileLaunch.KERNEL_CALL,
            operands=root.operands,
            results=root.results,
            call=root.op,
            opcode=root.op.opcode,
            location=root.location,
        )
    operands, results = tuple(group.read()), tuple(group.written)
    operations = group.operations()
    counted = sum(not isinstance(entry.op, Constant) for entry in operations)
    return DispatchItem(
        kind=group.kind,
        operands=operands,
        results=results,
        function=extract(root.op.opcode, operands, operations, results),
        op_count=max(counted, 1),
        opcode=root.op.opcode,
        location=root.location,
    )
