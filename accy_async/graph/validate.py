"""Checking a plan, once, before anything is allocated or launched.

Everything that can be wrong with a graph in itself is found here: names that
mean nothing or two things, arguments that do not fit their kernels, loops and
carries that contradict each other, cycles, and conflicts without an order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.dtypes import DType
from accy_async.errors import GraphError
from accy_async.graph.dataflow import Uses, block_uses, loop_range, node_uses
from accy_async.graph.hazards import (
    OrderEdge,
    check_cycles,
    check_hazards,
    check_signals,
    check_written,
    event_edges,
    label_edges,
    signals_and_waits,
)
from accy_async.graph.nodechecks import NodeChecker, Slot, check_loop
from accy_async.graph.nodes import (
    HostCall,
    LaunchGraphDependency,
    LaunchGraphLoop,
    LaunchGraphNode,
    RuntimeScalar,
)
from accy_async.graph.order import LOOP, Block, GraphOrder, nest_loops

__all__ = ["PlanIndex", "index_plan"]


class PlanIndex:
    """What validation finds out about a plan, for the scheduler and for reports.

    Attributes:
        nodes, slots, loops: where each name stands.
        dependencies: the edges, each once, as pairs of node indices.
        order_edges: the edges that events and stream labels add.
        order: the blocks and their order.
        uses: of each node, the slots it uses and how.
        entries: the kernels that nodes launch, each once.
        signalled: the events that nodes signal, each once.
        scalar_dtypes: the dtypes of the run's scalars, by index, where known.
    """

    __slots__ = (
        "dependencies",
        "entries",
        "loops",
        "nodes",
        "order",
        "order_edges",
        "scalar_dtypes",
        "signalled",
        "slots",
        "uses",
    )

    def __init__(
        self,
        nodes: dict[str, int],
        slots: dict[str, int],
        loops: dict[str, int],
        dependencies: list[tuple[int, int]],
        order_edges: list[OrderEdge],
        order: GraphOrder,
        uses: list[Uses],
        entries: tuple[KernelCallArtifact, ...],
        signalled: tuple[str, ...],
        scalar_dtypes: dict[int, DType],
    ) -> None:
        self.nodes = nodes
        self.slots = slots
        self.loops = loops
        self.dependencies = dependencies
        self.order_edges = order_edges
        self.order = order
        self.uses = uses
        self.entries = entries
        self.signalled = signalled
        self.scalar_dtypes = scalar_dtypes


def index_plan(
    nodes: Sequence[LaunchGraphNode],
    dependencies: Sequence[LaunchGraphDependency],
    loops: Sequence[LaunchGraphLoop],
    slots: Sequence[Slot],
    runtime_scalar_count: int,
    external_events: Collection[str],
) -> PlanIndex:
    """Validate the parts of a plan and index them.

    Raises:
        GraphError: something is wrong; the message names what.
    """
    node_index = _names("node", (node.name for node in nodes))
    slot_index = _names("slot", (slot.name for slot in slots))
    loop_index = _names("loop", (loop.name for loop in loops))
    for shared in loop_index.keys() & node_index.keys():
        raise GraphError(f"a loop and a node are both named {shared!r}")
    uses = [node_uses(node, slot_index) for node in nodes]
    checker = NodeChecker({slot.name: slot for slot in slots}, runtime_scalar_count)
    for node in nodes:
        checker.check(node)
    check_written(nodes, uses, loops, slots)
    ranges = [loop_range(loop, node_index) for loop in loops]
    nest_loops([loop.name for loop in loops], ranges)
    for loop in loops:
        check_loop(loop, checker.slots, runtime_scalar_count)
        if isinstance(loop.count, RuntimeScalar):
            checker.want(f"loop {loop.name!r}", loop.count.index, DType.U32)
    edges = _edges(dependencies, node_index)
    signals, waits = signals_and_waits(nodes)
    order_edges = event_edges(nodes, signals, waits, external_events)
    order_edges += label_edges(nodes)

    def name(block: Block, item: int) -> str:
        index = block.indices[item]
        is_loop = block.kinds[item] == LOOP
        return loops[index].name if is_loop else nodes[index].name

    order = GraphOrder([isinstance(n.operation, HostCall) for n in nodes], ranges)
    extra = [(edge.before, edge.after) for edge in order_edges]
    order.link([*edges, *extra] if extra else edges)
    check_cycles(order, name, order_edges)
    check_signals(nodes, signals, order)
    check_hazards(
        block_uses(order, uses, loops, slot_index), name, [s.name for s in slots]
    )
    return PlanIndex(
        node_index,
        slot_index,
        loop_index,
        edges,
        order_edges,
        order,
        uses,
        tuple(checker.entries.values()),
        tuple(signals),
        checker.scalar_dtypes,
    )


def _names(what: str, names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for index, name in enumerate(names):
        if found.setdefault(name, index) != index:
            raise GraphError(
                f"{what}s {found[name]} and {index} are both named {name!r}; names "
                "are identities"
            )
    return found


def _edges(
    dependencies: Sequence[LaunchGraphDependency], nodes: Mapping[str, int]
) -> list[tuple[int, int]]:
    edges: dict[tuple[int, int], None] = {}
    for dependency in dependencies:
        before = nodes.get(dependency.before)
        after = nodes.get(dependency.after)
        if before is None or after is None:
            unknown = dependency.before if before is None else dependency.after
            raise GraphError(f"{dependency!r}: node {unknown!r} is unknown")
        edges[before, after] = None
    return list(edges)
