"""Building a plan step by step.

A vector addition, its result copied back while the next step runs::

    g = LaunchGraphBuilder()
    x, y = g.buffer("x", DType.F32, n), g.buffer("y", DType.F32, n)
    out = g.host("out", DType.F32, n)
    g.kernel(add, [x.read, y.read_write])
    g.copy_out(y, out)
    with g.loop(count=10):
        g.kernel(step, [x.read_write])
    plan = g.build()

Edges follow from what the steps read and write, in the order of the calls; what
else must wait is said with ``after``. A builder made with ``edges="explicit"``
knows only the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar, Unpack

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.backends.handles import BufferAccess
from accy_async.dtypes import DType, ScalarArgument, ScalarValue
from accy_async.errors import GraphError, InvalidType, InvalidValue
from accy_async.graph.dataflow import dataflow_dependencies
from accy_async.graph.nodes import (
    BufferSlot,
    BufferUse,
    CopyBuffer,
    CopyFromDevice,
    CopyToDevice,
    EventSignal,
    EventWait,
    Fill,
    HostCall,
    HostSlot,
    KernelCall,
    LaunchGraphDependency,
    LaunchGraphLoop,
    LaunchGraphLoopCarry,
    LaunchGraphNode,
    Operation,
    RuntimeScalar,
)
from accy_async.graph.plan import LaunchGraphPlan, function_name
from accy_async.graph.refs import (
    GraphBuffer,
    GraphHost,
    LoopRef,
    NodeOptions,
    NodeRef,
    Ref,
    check_name,
    own_name,
    own_names,
    own_pairs,
    refuse_other,
    steps_before,
)
from accy_async.values import listed

__all__ = [
    "GraphBuffer",
    "GraphHost",
    "LaunchGraphBuilder",
    "LoopRef",
    "NodeOptions",
    "NodeRef",
]


_SlotT = TypeVar("_SlotT", BufferSlot, HostSlot)


class LaunchGraphBuilder:
    """Collects the parts of a plan; see the module.

    Args:
        edges: ``"dataflow"`` for edges from what the steps read and write
            besides those asked for; ``"explicit"`` for the latter alone.

    What is wrong with a single step raises when it is added, what is wrong with
    the whole in `build`.
    """

    def __init__(self, *, edges: Literal["dataflow", "explicit"] = "dataflow") -> None:
        if edges not in ("dataflow", "explicit"):
            raise InvalidValue(
                "LaunchGraphBuilder.edges", edges, "'dataflow' or 'explicit'"
            )
        self.edges = edges
        self._slots: dict[str, BufferSlot | HostSlot] = {}
        self._nodes: dict[str, LaunchGraphNode] = {}
        self._loops: dict[str, LaunchGraphLoop | None] = {}
        self._dependencies: list[tuple[Ref, str]] = []
        self._refs: dict[str, LoopRef] = {}
        self._external: list[str] = []
        self._runtime_scalars = 0
        self._made_up: dict[str, int] = {}
        self._groups: dict[str, int] = {}
        self._device: str | None = None

    @contextmanager
    def on(self, device: str) -> Iterator[None]:
        """Have what is added within the ``with`` block be on a device, by its name.

        That is slots and launches that name none themselves. Copies and fills are
        where their buffers are.
        """
        check_name("on.device", device)
        before, self._device = self._device, device
        try:
            yield
        finally:
            self._device = before

    # Slots, scalars, events

    def buffer(
        self,
        name: str,
        dtype: DType,
        shape: int | Sequence[int],
        *,
        device: str | None = None,
    ) -> GraphBuffer:
        """A buffer that whoever runs the plan binds; for ``device`` see `on`."""
        on = self._device if device is None else device
        slot = BufferSlot(name, dtype, shape, device=on)
        return GraphBuffer(self._add_slot(slot))

    def scratch(
        self,
        name: str,
        dtype: DType,
        shape: int | Sequence[int],
        *,
        device: str | None = None,
    ) -> GraphBuffer:
        """A buffer that each run allocates and frees; for ``device`` see `on`."""
        on = self._device if device is None else device
        slot = BufferSlot(name, dtype, shape, is_scratch=True, device=on)
        return GraphBuffer(self._add_slot(slot))

    def host(self, name: str, dtype: DType, shape: int | Sequence[int]) -> GraphHost:
        """Host memory that whoever runs the plan binds."""
        return GraphHost(self._add_slot(HostSlot(name, dtype, shape)))

    def runtime_scalar(self) -> RuntimeScalar:
        """The next of the scalars that each run brings."""
        self._runtime_scalars += 1
        return RuntimeScalar(self._runtime_scalars - 1)

    def external_event(self, name: str) -> str:
        """An event of the caller's, to wait for or to signal. Returns its name."""
        check_name("external_event.name", name)
        if name in self._external:
            raise GraphError(f"external event {name!r} exists already")
        self._external.append(name)
        return name

    # Steps

    def kernel(
        self,
        entry: KernelCallArtifact,
        buffers: Iterable[BufferUse | GraphBuffer] = (),
        scalars: Iterable[ScalarArgument | RuntimeScalar] = (),
        *,
        tuning_candidate: int | None = None,
        **options: Unpack[NodeOptions],
    ) -> NodeRef:
        """Launch a kernel.

        A buffer without a use is used as the kernel says it uses it; where the
        entry does not say, as read and written.
        """
        if not isinstance(entry, KernelCallArtifact):
            raise InvalidType("kernel.entry", entry, "a KernelCallArtifact")
        known = [BufferAccess(buffer.access) for buffer in entry.buffers]
        uses = []
        for number, use in enumerate(listed("kernel.buffers", buffers, "buffers")):
            if isinstance(use, GraphBuffer):
                access = (
                    known[number] if number < len(known) else BufferAccess.READ_WRITE
                )
                use = BufferUse(use.name, access, use.slot)
            uses.append(use)
        operation = KernelCall(entry=entry, buffers=tuple(uses))
        for use in operation.buffers:
            if use.declared is not None:
                refuse_other("kernel", use.declared, self._slots)
        short = entry.target.rpartition(".")[2] or entry.target
        if self._device is not None:
            options.setdefault("device", self._device)
        given = listed("kernel.scalars", scalars, "scalars")
        return self._add(operation, short, options, given, tuning_candidate)

    def copy_in(
        self, source: GraphHost, target: GraphBuffer, **options: Unpack[NodeOptions]
    ) -> NodeRef:
        """Copy host memory over a buffer."""
        first, second = self._names("copy_in", source, target)
        operation = CopyToDevice(source=first, target=second)
        return self._add(operation, f"copy_in_{target.name}", options)

    def copy_out(
        self, source: GraphBuffer, target: GraphHost, **options: Unpack[NodeOptions]
    ) -> NodeRef:
        """Copy a buffer over host memory."""
        first, second = self._names("copy_out", source, target)
        operation = CopyFromDevice(source=first, target=second)
        return self._add(operation, f"copy_out_{source.name}", options)

    def copy(
        self, source: GraphBuffer, target: GraphBuffer, **options: Unpack[NodeOptions]
    ) -> NodeRef:
        """Copy a buffer over another, on its own device or another."""
        first, second = self._names("copy", source, target)
        operation = CopyBuffer(source=first, target=second)
        return self._add(operation, f"copy_{source.name}_{target.name}", options)

    def fill(
        self,
        target: GraphBuffer,
        value: ScalarArgument | ScalarValue,
        **options: Unpack[NodeOptions],
    ) -> NodeRef:
        """Write a value, of the buffer's dtype unless it has one, everywhere."""
        (name,) = self._names("fill", target)
        if not isinstance(value, ScalarArgument):
            value = ScalarArgument.of(target.slot.dtype, value)
        operation = Fill(target=name, value=value)
        return self._add(operation, f"fill_{name}", options)

    def host_call(
        self,
        function: Callable[[], object],
        reads: Iterable[GraphBuffer | GraphHost] = (),
        writes: Iterable[GraphBuffer | GraphHost] = (),
        **options: Unpack[NodeOptions],
    ) -> NodeRef:
        """Call a function, sync or async, on the host; it takes no argument."""
        operation = HostCall(
            function=function,
            reads=own_names("host_call.reads", reads, self._slots),
            writes=own_names("host_call.writes", writes, self._slots),
        )
        short = function_name(function).rpartition(".")[2].strip("<>")
        return self._add(operation, short, options)

    def wait_event(self, event: str, **options: Unpack[NodeOptions]) -> NodeRef:
        """A node that waits for an event; what is ``after`` it waits with it."""
        return self._add(EventWait(event), f"wait_{event}", options)

    def signal_event(self, event: str, **options: Unpack[NodeOptions]) -> NodeRef:
        """A node that signals an event once what it is ``after`` is done."""
        return self._add(EventSignal(event), f"signal_{event}", options)

    @contextmanager
    def loop(
        self,
        *,
        count: int | RuntimeScalar | None = None,
        while_: GraphBuffer | None = None,
        carries: Iterable[tuple[GraphBuffer, GraphBuffer]] = (),
        max_iterations: int | None = None,
        name: str | None = None,
    ) -> Iterator[LoopRef]:
        """Repeat the steps added within the ``with`` block.

        Args:
            count: how often.
            while_: or a buffer of one i32 or u32: another iteration follows
                while it is not zero.
            carries: pairs of buffers; what an iteration leaves in the second the
                next one finds in the first.
            max_iterations: how many there may be at most, with ``while_``.
            name: the loop's name; made up if left out.

        Raises:
            GraphError: nothing was added within the block.
        """
        pairs = own_pairs("loop.carries", carries, self._slots)
        condition = None if while_ is None else self._names("loop", while_)[0]
        ref = LoopRef(self._name("loop" if name is None else name, name is None))
        self._loops[ref.name] = None
        before = len(self._nodes)
        try:
            yield ref
        except BaseException:
            del self._loops[ref.name]
            raise
        added = list(self._nodes)[before:]
        if not added:
            raise GraphError(f"loop {ref.name!r} has no steps")
        ref.first, ref.last = added[0], added[-1]
        self._refs[ref.name] = ref
        self._loops[ref.name] = LaunchGraphLoop(
            name=ref.name,
            first=ref.first,
            last=ref.last,
            count=count,
            condition=condition,
            max_iterations=max_iterations,
            carries=tuple([LaunchGraphLoopCarry(*pair) for pair in pairs]),
        )

    def build(self) -> LaunchGraphPlan:
        """The plan of everything added so far, validated.

        Raises:
            GraphError: something is wrong with it; the message names what.
        """
        loops = []
        for name, loop in self._loops.items():
            if loop is None:
                raise GraphError(f"loop {name!r} has not ended yet")
            loops.append(loop)
        nodes, slots = tuple(self._nodes.values()), tuple(self._slots.values())
        edges = [
            LaunchGraphDependency(self._end_of(before), after)
            for before, after in self._dependencies
        ]
        if self.edges == "dataflow":
            edges += dataflow_dependencies(nodes, slots, loops)
        return LaunchGraphPlan(
            nodes=nodes,
            dependencies=tuple(edges),
            loops=tuple(loops),
            slots=slots,
            runtime_scalar_count=self._runtime_scalars,
            external_events=tuple(self._external),
        )

    def group(self, name: str) -> str:
        """A prefix for names that no other group has: the name, or one like it."""
        number = self._groups.get(name, 0) + 1
        self._groups[name] = number
        return name if number == 1 else f"{name}_{number}"

    # Helpers

    def _names(self, call: str, *given: GraphBuffer | GraphHost) -> tuple[str, ...]:
        """The names of slots of this builder; see `own_name`."""
        return tuple([own_name(call, one, self._slots) for one in given])

    def _add(
        self,
        operation: Operation,
        short: str,
        options: NodeOptions,
        scalars: tuple[ScalarArgument | RuntimeScalar, ...] = (),
        tuning_candidate: int | None = None,
    ) -> NodeRef:
        given = options.get("name")
        wait = options.get("wait", ())
        befores = steps_before(options.get("after", ()))
        node = LaunchGraphNode(
            name=self._name(short if given is None else given, given is None),
            operation=operation,
            stream=options.get("stream"),
            priority=options.get("priority"),
            wait_events=(wait,)
            if isinstance(wait, str)
            else listed("wait", wait, "names of events"),
            signal_event=options.get("signal"),
            runtime_scalars=scalars,
            tuning_candidate=tuning_candidate,
            device=options.get("device"),
        )
        self._check_slots(node)
        self._dependencies += [(before, node.name) for before in befores]
        self._nodes[node.name] = node
        return NodeRef(node.name)

    def _check_slots(self, node: LaunchGraphNode) -> None:
        for slot, _ in node.uses():
            if slot not in self._slots:
                raise GraphError(
                    f"node {node.name!r} uses slot {slot!r}, which this builder has "
                    "not made"
                )

    def _end_of(self, ref: Ref) -> str:
        name = ref if isinstance(ref, str) else ref.name
        loop = self._refs.get(name)
        return loop.last if loop is not None and loop.last is not None else name

    def _name(self, name: str, is_made_up: bool) -> str:
        check_name("name", name)
        taken = name in self._nodes or name in self._loops
        if not taken:
            return name
        if not is_made_up:
            raise GraphError(f"a node or loop is named {name!r} already")
        number = self._made_up.get(name, 1)
        while f"{name}_{number}" in self._nodes or f"{name}_{number}" in self._loops:
            number += 1
        self._made_up[name] = number + 1
        return f"{name}_{number}"

    def _add_slot(self, slot: _SlotT) -> _SlotT:
        if slot.name in self._slots:
            raise GraphError(f"a slot is named {slot.name!r} already")
        self._slots[slot.name] = slot
        return slot
