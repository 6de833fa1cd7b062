"""Checking a plan, once, before anything is allocated or launched.

Everything that can be wrong with a graph in itself is found here: names that
mean nothing or two things, arguments that do not fit their kernels, loops and
carries that contradict each other, cycles, and conflicts without an order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.geometry import DerivedLaunch
from accy_async.artifact.parameters import check_buffer_sizes
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import GraphError, LaunchArgumentMismatch
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
from accy_async.graph.nodes import (
    BufferSlot,
    BufferUse,
    CopyBuffer,
    CopyFromDevice,
    CopyToDevice,
    Fill,
    HostCall,
    HostSlot,
    KernelCall,
    LaunchGraphDependency,
    LaunchGraphLoop,
    LaunchGraphNode,
    RuntimeScalar,
)
from accy_async.graph.order import LOOP, Block, GraphOrder, nest_loops

__all__ = ["PlanIndex", "index_plan"]

Slot = BufferSlot | HostSlot


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
    checker = _NodeChecker({slot.name: slot for slot in slots}, runtime_scalar_count)
    for node in nodes:
        checker.check(node)
    check_written(nodes, uses, loops, slots)
    ranges = [loop_range(loop, node_index) for loop in loops]
    nest_loops([loop.name for loop in loops], ranges)
    for loop in loops:
        _check_loop(loop, checker.slots, runtime_scalar_count)
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


class _NodeChecker:
    """Checks of one node against the plan's slots and runtime scalars."""

    def __init__(self, slots: Mapping[str, Slot], runtime_scalar_count: int) -> None:
        self.slots = slots
        self.runtime_scalar_count = runtime_scalar_count
        self.entries: dict[int, KernelCallArtifact] = {}
        self.scalar_dtypes: dict[int, DType] = {}
        self._wanted: dict[int, tuple[DType | None, ...]] = {}

    def check(self, node: LaunchGraphNode) -> None:
        operation = node.operation
        if isinstance(operation, KernelCall):
            for use in operation.buffers:
                self._need_buffer(node, use.slot)
            self.entries[id(operation.entry)] = operation.entry
            self._check_kernel(node, operation)
            return
        if node.runtime_scalars or node.tuning_candidate is not None:
            what = "runtime scalars" if node.runtime_scalars else "a tuning candidate"
            raise GraphError(
                f"node {node.name!r} has {what}, but launches no kernel: "
                f"{type(operation).__name__}"
            )
        if isinstance(operation, (CopyToDevice, CopyFromDevice, CopyBuffer)):
            self._check_copy(node, operation)
        elif isinstance(operation, Fill):
            self._check_fill(node, operation)
        elif isinstance(operation, HostCall) and (
            node.stream is not None or node.priority is not None
        ):
            what = "a stream label" if node.stream is not None else "a priority"
            raise GraphError(
                f"node {node.name!r} calls a function on the host, which runs on no "
                f"stream, but has {what}"
            )

    def _need_buffer(self, node: LaunchGraphNode, name: str) -> BufferSlot:
        slot = self.slots[name]
        if not isinstance(slot, BufferSlot):
            raise GraphError(
                f"node {node.name!r} uses host slot {name!r} as a buffer; copy it to "
                "a buffer slot first"
            )
        return slot

    def _need_host(self, node: LaunchGraphNode, name: str) -> HostSlot:
        slot = self.slots[name]
        if not isinstance(slot, HostSlot):
            raise GraphError(
                f"node {node.name!r} uses buffer slot {name!r} as host memory; "
                "expected a host slot"
            )
        return slot

    def _check_copy(
        self,
        node: LaunchGraphNode,
        operation: CopyToDevice | CopyFromDevice | CopyBuffer,
    ) -> None:
        source: Slot
        target: Slot
        if isinstance(operation, CopyToDevice):
            source = self._need_host(node, operation.source)
            target = self._need_buffer(node, operation.target)
        elif isinstance(operation, CopyFromDevice):
            source = self._need_buffer(node, operation.source)
            target = self._need_host(node, operation.target)
        else:
            source = self._need_buffer(node, operation.source)
            target = self._need_buffer(node, operation.target)
        if source is target:
            raise GraphError(
                f"node {node.name!r} copies slot {source.name!r} to itself"
            )
        if source.byte_size != target.byte_size:
            raise GraphError(
                f"node {node.name!r} copies slot {source.name!r} of "
                f"{source.byte_size} bytes to slot {target.name!r} of "
                f"{target.byte_size}; expected the same size"
            )

    def _check_fill(self, node: LaunchGraphNode, operation: Fill) -> None:
        slot = self._need_buffer(node, operation.target)
        if operation.value.dtype is not slot.dtype:
            raise GraphError(
                f"node {node.name!r} fills slot {slot.name!r} of {slot.dtype} with "
                f"{operation.value!r}; expected {slot.dtype}"
            )

    def _check_uses(
        self, where: str, uses: Sequence[BufferUse], entry: KernelCallArtifact
    ) -> None:
        for number, (use, parameter) in enumerate(
            zip(uses, entry.buffers, strict=False)
        ):
            slot = self.slots[use.slot]
            if slot.dtype is not parameter.dtype:
                raise GraphError(
                    f"{where}: buffer {number} is slot {use.slot!r} of {slot.dtype}, "
                    f"expected {parameter.dtype}"
                )
            if parameter.is_written and not use.access.writes:
                raise GraphError(
                    f"{where}: buffer {number} is slot {use.slot!r}, only read; the "
                    f"kernel writes it ({parameter.access})"
                )

    def _check_kernel(self, node: LaunchGraphNode, operation: KernelCall) -> None:
        entry = operation.entry
        where = f"node {node.name!r}, kernel {entry.target!r}"
        self._check_uses(where, operation.buffers, entry)
        scalars = node.runtime_scalars
        count = entry.runtime_scalar_argument_count
        if scalars:
            if len(scalars) != count:
                raise GraphError(
                    f"{where}: got {len(scalars)} runtime scalars, expected {count}"
                )
            self._check_scalars(where, scalars, entry)
        elif count and not entry.runtime_scalar_defaults:
            raise GraphError(
                f"{where}: got no runtime scalars, expected {count}; the kernel has "
                "no defaults for them"
            )
        if entry.buffers:
            self._check_sizes(where, node, operation)
        if node.tuning_candidate is not None:
            plan = entry.launch_resources
            candidates = len(plan.candidates) if plan is not None else 0
            if node.tuning_candidate >= candidates:
                raise GraphError(
                    f"{where}: tuning candidate {node.tuning_candidate}, but it has "
                    f"{candidates} launch candidates"
                )

    def _check_scalars(
        self,
        where: str,
        scalars: Sequence[ScalarArgument | RuntimeScalar],
        entry: KernelCallArtifact,
    ) -> None:
        wanted = self._wanted.get(id(entry))
        if wanted is None:
            wanted = self._wanted[id(entry)] = _scalar_dtypes(entry)
        for number, (scalar, dtype) in enumerate(zip(scalars, wanted, strict=True)):
            if isinstance(scalar, RuntimeScalar):
                if scalar.index >= self.runtime_scalar_count:
                    raise GraphError(
                        f"{where}: scalar {number} is {scalar!r}, but the plan has "
                        f"runtime_scalar_count={self.runtime_scalar_count}"
                    )
                if dtype is not None:
                    self.want(where, scalar.index, dtype)
            elif dtype is not None and scalar.dtype is not dtype:
                raise GraphError(
                    f"{where}: scalar {number} is {scalar!r}, expected {dtype}"
                )

    def want(self, where: str, index: int, dtype: DType) -> None:
        known = self.scalar_dtypes.setdefault(index, dtype)
        if known is not dtype:
            raise GraphError(
                f"{where}: takes runtime scalar {index} as {dtype}, another node as "
                f"{known}"
            )

    def _check_sizes(
        self, where: str, node: LaunchGraphNode, operation: KernelCall
    ) -> None:
        """Refuse slots too small for scalars that are known already."""
        entry = operation.entry
        given = node.runtime_scalars or entry.runtime_scalar_defaults
        scalars = [one for one in given if isinstance(one, ScalarArgument)]
        if len(scalars) != len(given):
            return
        sizes = [self.slots[use.slot].byte_size for use in operation.buffers]
        try:
            check_buffer_sizes(where, entry.buffers, scalars, sizes)
        except LaunchArgumentMismatch as error:
            raise GraphError(str(error)) from None


def _scalar_dtypes(entry: KernelCallArtifact) -> tuple[DType | None, ...]:
    """What dtype an entry says each of its runtime scalars has, where it does."""
    found: list[DType | None] = [None] * entry.runtime_scalar_argument_count
    for index, default in enumerate(entry.runtime_scalar_defaults):
        found[index] = default.dtype
    if isinstance(entry.launch, DerivedLaunch):
        for index in entry.launch.argument_indices:
            found[index] = DType.U32
    return tuple(found)


def _check_loop(
    loop: LaunchGraphLoop, slots: Mapping[str, Slot], runtime_scalar_count: int
) -> None:
    count = loop.count
    if isinstance(count, RuntimeScalar) and count.index >= runtime_scalar_count:
        raise GraphError(
            f"loop {loop.name!r}: its count is {count!r}, but the plan has "
            f"runtime_scalar_count={runtime_scalar_count}"
        )
    if loop.condition is not None:
        slot = _loop_buffer(loop, loop.condition, slots, "condition")
        if slot.dtype not in (DType.I32, DType.U32) or slot.byte_size != 4:
            raise GraphError(
                f"loop {loop.name!r}: its condition {slot.name!r} is {_shape(slot)}, "
                "expected one i32 or u32"
            )
    carried: set[str] = set()
    for carry in loop.carries:
        current = _loop_buffer(loop, carry.current, slots, "carry")
        following = _loop_buffer(loop, carry.next, slots, "carry")
        if current is following:
            raise GraphError(
                f"loop {loop.name!r}: slot {current.name!r} is carried to itself; "
                "expected two slots, which change places"
            )
        if (current.dtype, current.shape) != (following.dtype, following.shape):
            raise GraphError(
                f"loop {loop.name!r}: carry from {following.name!r}, "
                f"{_shape(following)}, to {current.name!r}, {_shape(current)}; "
                "expected the same dtype and shape"
            )
        for slot in (current, following):
            if slot.name in carried:
                raise GraphError(
                    f"loop {loop.name!r}: slot {slot.name!r} is carried twice"
                )
            carried.add(slot.name)


def _loop_buffer(
    loop: LaunchGraphLoop, name: str, slots: Mapping[str, Slot], what: str
) -> BufferSlot:
    slot = slots.get(name)
    if slot is None:
        raise GraphError(f"loop {loop.name!r}: its {what} {name!r} is no known slot")
    if not isinstance(slot, BufferSlot):
        raise GraphError(
            f"loop {loop.name!r}: its {what} {name!r} is a host slot; expected a "
            "buffer slot"
        )
    return slot


def _shape(slot: BufferSlot) -> str:
    extents = "x".join(str(extent) for extent in slot.shape) or "one element"
    return f"{slot.dtype} [{extents}]"
