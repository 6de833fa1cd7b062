"""A plan bound to a device: kernels loaded, buffers known, launches packed.

Preparing does once what every run of a plan would do again: look up and load
kernels, allocate scratch, work out geometry, pack arguments. A prepared plan
serves one run at a time, as its scratch would be shared otherwise.

Slots change hands inside a run: a loop's carries swap the buffers of two slots.
So a node whose slots are carried somewhere has one prepared action for each
combination of buffers that it has met; all others have exactly one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.parameters import check_buffer_sizes
from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.backends.handles import (
    BufferAccess,
    BufferBinding,
    BufferHandle,
    EventHandle,
    Handle,
    StreamHandle,
)
from accy_async.backends.launch import LaunchRequest, PreparedLaunch
from accy_async.dtypes import ScalarArgument
from accy_async.errors import LaunchArgumentMismatch
from accy_async.graph.bindings import Memory
from accy_async.graph.nodes import (
    BufferSlot,
    CopyBuffer,
    CopyFromDevice,
    CopyToDevice,
    EventSignal,
    EventWait,
    Fill,
    KernelCall,
    LaunchGraphNode,
    RuntimeScalar,
)

if TYPE_CHECKING:
    from accy_async.artifact.entry import KernelCallArtifact
    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.backends.base import Backend
    from accy_async.backends.guards import Guard
    from accy_async.backends.handles import LoadedArtifact
    from accy_async.backends.joined import JoinedBackend
    from accy_async.graph.lowering.lowered import LoweredGraph
    from accy_async.graph.lowering.outline import Obstacle
    from accy_async.graph.lowering.parted import LoweredParts
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.whereabouts import Whereabouts

__all__ = [
    "Action",
    "PreparedGraph",
]

_PACKED_KEPT = 4
"""Launches of one node that are kept for buffers that it had before."""

_PACKED_NODES = 64
"""Nodes of a plan up to which any are: more would take much memory for little."""

Action = Callable[[StreamHandle | None, "Guard | None"], int]
"""Submits one node to a stream; returns its position there."""


class PreparedGraph:
    """A plan made ready for one set of bindings, once `make_actions` is through.

    Args:
        backend: the device.
        plan: the plan.
        kernels: each entry's artifact, as made and as loaded.
        bound: what `check_bindings` gave.
        events: what external events are bound to.
        options: scalars and candidates.
        places: where everything is; None for one device.
        kernels_on: with ``places``, what ``kernels`` is on each device.

    Attributes:
        has_lost_kernels: whether a kernel of it, which somebody lent, was destroyed.
        runs: how many runs it has served, one that goes on included.
        lowered: it as a device graph, once it is one; its own.
        has_calls: whether some nodes are called on the host.
        parted: it as several of them around its calls on the host, likewise.
        obstacles: what keeps it from being one, where that was found.
        awaited: the items of the plan's top block that runs' users awaited by
            themselves.

    Raises:
        OutOfMemory: no room for the scratch; none is left allocated.
    """

    def __init__(
        self,
        backend: Backend,
        plan: LaunchGraphPlan,
        kernels: Mapping[int, tuple[KernelArtifact, LoadedArtifact]],
        bound: Mapping[str, Memory],
        events: Mapping[str, EventHandle],
        options: LaunchOptions,
        places: Whereabouts | None = None,
        kernels_on: Sequence[Mapping[int, tuple[KernelArtifact, LoadedArtifact]]] = (),
    ) -> None:
        self.backend = backend
        self.places = places
        self.plan = plan
        self._set_bound(bound)
        self.options = options
        self.events: dict[str, EventHandle] = dict(events)
        self.initial_memories: tuple[Memory, ...] = ()
        self.is_in_use = False
        self.has_lost_kernels = False
        self.runs = 0
        self.lowered: LoweredGraph | None = None
        self.parted: LoweredParts | None = None
        self.has_calls = any(node.is_host for node in plan.nodes)
        self.obstacles: tuple[Obstacle, ...] = ()
        self.awaited: set[int] = set()
        self._alive_in: object = None
        self.geometries: dict[int, FixedLaunch] = {}
        self._kernels = kernels
        self._kernels_on = kernels_on
        self._scratch: list[BufferHandle] = []
        self._own_events: list[EventHandle] = []
        try:
            self._allocate()
            self._slot_of = plan.slot_index
            self.carried = frozenset(
                self._slot_of[name]
                for loop in plan.loops
                for carry in loop.carries
                for name in (carry.current, carry.next)
            )
        except BaseException as error:
            errors: list[Exception] = []
            self._destroy(errors)
            raise_together("preparing a plan", error, errors)
            raise
        # Of kernels that nothing else is asked of, the launch; of other nodes the
        # action. Not both: what is kept of 100,000 nodes, the collector walks through.
        self.launches: list[PreparedLaunch | None] = []
        self._actions: list[Action | None] = []
        self.unguarded: set[int] = set()
        self._variants: dict[tuple[int, ...], Action | PreparedLaunch] = {}
        self._packed: dict[int, dict[tuple[int, ...], PreparedLaunch]] = {}
        self._bindings: dict[tuple[str, int, BufferAccess], BufferBinding] = {}

    def make_actions(self) -> Iterator[None]:
        """Make what submits each node, one at each step.

        Step by step, for plans of 100,000 nodes: each takes some 10 us.

        Raises:
            LaunchArgumentMismatch, CapabilityMismatch: a launch does not fit its
                kernel or the device; nothing was submitted.
        """
        count = len(self.plan.nodes)
        self.launches, self._actions = [None] * count, [None] * count
        for index, node in enumerate(self.plan.nodes):
            if not node.is_host:
                self._renew(index)
            yield

    def _renew(self, index: int) -> None:
        """Make what submits a node whose slots have the buffers they begin with."""
        made = self._make(index, self.initial_memories)
        is_launch = isinstance(made, PreparedLaunch)
        self.launches[index] = cast("PreparedLaunch", made) if is_launch else None
        self._actions[index] = None if is_launch else cast("Action", made)
        operation = self.plan.nodes[index].operation
        if isinstance(operation, (EventWait, EventSignal)) or (
            isinstance(operation, KernelCall) and 0 in self.geometries[index].grid
        ):
            self.unguarded.add(index)
        else:
            self.unguarded.discard(index)

    def make_launch(self, index: int, memories: Sequence[Memory]) -> PreparedLaunch:
        """A kernel's launch where the slots have these buffers."""
        node = self.plan.nodes[index]
        return self._make_launch(node, cast("KernelCall", node.operation), memories)

    @property
    def is_alive(self) -> bool:
        """True where everything that it refers to is still there."""
        if self.has_lost_kernels:
            return False
        epoch = None if self.places is not None else self.backend.epoch
        if epoch is not None and self._alive_in is epoch:
            return True
        handles: list[Handle] = [*self.events.values()]
        handles += [m for m in self.initial_memories if isinstance(m, BufferHandle)]
        found = all(self.backend.is_alive(handle) for handle in handles)
        self._alive_in = epoch if found else None
        return found

    def rebind(self, bound: Mapping[str, Memory], options: LaunchOptions) -> list[int]:
        """Take other buffers, arrays and scalars; nothing of it may be in use.

        Some 10 us for each node that has others then, less for those that it had
        lately, and nothing for the rest.

        Returns:
            The nodes that have others.

        Raises:
            LaunchArgumentMismatch, CapabilityMismatch: a launch does not fit its
                kernel or the device; the plan has to be closed then.
        """
        plan, old = self.plan, self.initial_memories
        new = tuple(
            bound.get(slot.name, memory)
            for slot, memory in zip(plan.slots, old, strict=True)
        )
        slots = {i for i, one in enumerate(new) if one is not old[i]}
        scalars = {
            i
            for i, scalar in enumerate(options.runtime_scalars)
            if scalar != self.options.runtime_scalars[i]
        }
        self._set_bound(bound)
        self.options, self.initial_memories = options, new
        self._alive_in = None
        self._bindings.clear()
        self._variants.clear()
        changed = [
            index
            for index, node in enumerate(plan.nodes)
            if not node.is_host
            and (
                any(slot in slots for slot, _ in plan.uses[index])
                or (scalars and _has_scalar(node, scalars))
            )
        ]
        for index in changed:
            self._take_up(index)
        return changed

    def _take_up(self, index: int) -> None:
        """Renew a node; a launch that was packed for these buffers is used again."""
        node = self.plan.nodes[index]
        takes_scalars = any(isinstance(s, RuntimeScalar) for s in node.runtime_scalars)
        is_large = len(self.plan.nodes) > _PACKED_NODES
        if is_large or self.launches[index] is None or takes_scalars:
            self._renew(index)
            return
        memories = self.initial_memories
        # Identities that stay their own: what is packed keeps its buffers' handles.
        key = tuple([id(memories[slot]) for slot, _ in self.plan.uses[index]])
        packed = self._packed.setdefault(index, {})
        found = packed.get(key)
        if found is not None:
            self.launches[index] = found
            return
        self._renew(index)
        if len(packed) >= _PACKED_KEPT:
            del packed[next(iter(packed))]
        packed[key] = cast("PreparedLaunch", self.launches[index])

    def close(self) -> None:
        """Destroy scratch and events; what is in use goes to the reaper."""
        errors: list[Exception] = []
        self._destroy(errors)
        raise_together("closing a prepared plan", None, errors)

    def action(self, index: int, memories: Sequence[Memory]) -> Action:
        """What submits a node whose slots have these buffers now."""
        slots = [slot for slot, _ in self.plan.uses[index]]
        if self.carried.isdisjoint(slots):
            made = self.launches[index] or self._actions[index]
        else:
            key = (index, *(id(memories[slot]) for slot in slots))
            made = self._variants.get(key)
            if made is None:
                made = self._variants[key] = self._make(index, memories)
        if isinstance(made, PreparedLaunch):
            return partial(self.backend.submit_launch, made)
        assert made is not None
        return made

    def _set_bound(self, bound: Mapping[str, Memory]) -> None:
        self.bound = bound
        self.bound_slots = [(n, m, self.plan.slot(n)) for n, m in bound.items()]

    def slot_index(self, name: str) -> int:
        """A slot's place among the plan's."""
        return self._slot_of[name]

    def _allocate(self) -> None:
        plan = self.plan
        memories: list[Memory] = []
        for index, slot in enumerate(plan.slots):
            memory = self.bound.get(slot.name)
            if memory is None:
                memory = self._at(index).allocate_buffer(slot.byte_size)
                self._scratch.append(memory)
            memories.append(memory)
        self.initial_memories = tuple(memories)
        for name in plan.signalled_events:
            if name not in self.events:
                event = self._of_event(name).create_event()
                self._own_events.append(event)
                self.events[name] = event

    def _at(self, slot: int) -> Backend:
        """The device that a slot is on."""
        if self.places is None:
            return self.backend
        return cast("JoinedBackend", self.backend).at(self.places.slots[slot])

    def _of_event(self, name: str) -> Backend:
        """The device that an event is signalled on."""
        if self.places is None:
            return self.backend
        return cast("JoinedBackend", self.backend).at(self.places.events[name])

    def _is_awaited_by_host(self, node: LaunchGraphNode, name: str) -> bool:
        """Whether a node's device cannot wait for an event of the plan itself.

        The edge from the node that signals it is resolved on the host then.
        """
        if self.places is None or name not in self.plan.signalled_events:
            return False
        joined = cast("JoinedBackend", self.backend)
        on = joined.at(self.places.nodes[self.plan.node_index[node.name]])
        return not on.can_wait_for(self._of_event(name))

    def _destroy(self, errors: list[Exception]) -> None:
        handles: list[Handle] = []
        if self.lowered is not None:
            handles += self.lowered.handles()
            self.lowered = None
        if self.parted is not None:
            handles += self.parted.handles()
            self.parted = None
        handles += reversed(self._own_events)
        handles += reversed(self._scratch)
        destroy_all(self.backend, handles, errors)
        self._own_events.clear()
        self._scratch.clear()

    def _make(self, index: int, memories: Sequence[Memory]) -> Action | PreparedLaunch:
        node = self.plan.nodes[index]
        made = self._make_operation(node, memories)
        if not node.wait_events and node.signal_event is None:
            return made
        backend = self.backend
        action = (
            partial(backend.submit_launch, made)
            if isinstance(made, PreparedLaunch)
            else made
        )
        waits = [
            self.events[name]
            for name in node.wait_events
            if not self._is_awaited_by_host(node, name)
        ]
        signal = None if node.signal_event is None else self.events[node.signal_event]

        def with_events(stream: StreamHandle | None, guard: Guard | None) -> int:
            for event in waits:
                backend.stream_wait_event(stream, event)
            position = action(stream, guard)
            return position if signal is None else backend.record_event(signal, stream)

        return with_events

    def _make_operation(
        self, node: LaunchGraphNode, memories: Sequence[Memory]
    ) -> Action | PreparedLaunch:
        backend, operation = self.backend, node.operation

        def memory(name: str) -> Memory:
            return memories[self._slot_of[name]]

        def buffer(name: str) -> BufferHandle:
            return cast("BufferHandle", memory(name))

        if isinstance(operation, KernelCall):
            return self._make_launch(node, operation, memories)
        if isinstance(operation, CopyToDevice):
            target, source = buffer(operation.target), memory(operation.source)
            return lambda stream, guard: backend.write_buffer(
                target, source, stream=stream, guard=guard
            )
        if isinstance(operation, CopyFromDevice):
            source, out = buffer(operation.source), memory(operation.target)
            return lambda stream, guard: backend.read_buffer(
                source, out, stream=stream, guard=guard
            )
        if isinstance(operation, CopyBuffer):
            first, second = buffer(operation.source), buffer(operation.target)
            size = self._slot(operation.target).byte_size
            return lambda stream, guard: backend.copy_buffer(
                first, second, byte_size=size, stream=stream, guard=guard
            )
        if isinstance(operation, Fill):
            filled, pattern = buffer(operation.target), operation.value.to_bytes()
            size = self._slot(operation.target).byte_size
            return lambda stream, guard: backend.fill_buffer(
                filled, pattern, byte_size=size, stream=stream, guard=guard
            )
        if isinstance(operation, EventWait):
            awaited = self.events[operation.event]
            if self._is_awaited_by_host(node, operation.event):
                return lambda stream, _: backend.mark(stream).position
            return lambda stream, _: backend.stream_wait_event(stream, awaited)
        assert isinstance(operation, EventSignal)
        signalled = self.events[operation.event]
        return lambda stream, _: backend.record_event(signalled, stream)

    def _make_launch(
        self, node: LaunchGraphNode, call: KernelCall, memories: Sequence[Memory]
    ) -> PreparedLaunch:
        backend, entry = self.backend, call.entry
        index = self.plan.node_index[node.name]
        kernels = self._kernels
        if self.places is not None:
            kernels = self._kernels_on[self.places.nodes[index]]
        artifact, loaded = kernels[id(entry)]
        runtime = self._runtime_scalars(node, entry)
        geometry = self._geometry(node, entry, runtime)
        self.geometries[index] = geometry
        if entry.shape_profile is not None:
            entry.shape_profile.check(runtime)
        if entry.buffers:
            check_buffer_sizes(
                f"node {node.name!r}, kernel {entry.target!r}",
                entry.buffers,
                runtime,
                [self._slot(use.slot).byte_size for use in call.buffers],
            )
        buffers = tuple(
            [self._binding(use.slot, use.access, memories) for use in call.buffers]
        )
        return backend.prepare_launch(
            LaunchRequest(
                artifact=artifact,
                loaded=loaded,
                buffers=buffers,
                scalars=runtime + entry.static_arguments,
                geometry=geometry,
                diagnostic_id=node.name,
            )
        )

    def _binding(
        self, name: str, access: BufferAccess, memories: Sequence[Memory]
    ) -> BufferBinding:
        """A slot's buffer as a kernel uses it; one serves all that use it so."""
        memory = cast("BufferHandle", memories[self._slot_of[name]])
        key = (name, memory.id, access)
        found = self._bindings.get(key)
        if found is None:
            found = self._bindings[key] = BufferBinding(
                handle=memory, access=access, byte_size=self._slot(name).byte_size
            )
        return found

    def _slot(self, name: str) -> BufferSlot:
        return cast("BufferSlot", self.plan.slots[self._slot_of[name]])

    def _runtime_scalars(
        self, node: LaunchGraphNode, entry: KernelCallArtifact
    ) -> tuple[ScalarArgument, ...]:
        given = node.runtime_scalars or entry.runtime_scalar_defaults
        return tuple(
            self.options.runtime_scalars[scalar.index]
            if isinstance(scalar, RuntimeScalar)
            else scalar
            for scalar in given
        )

    def _geometry(
        self,
        node: LaunchGraphNode,
        entry: KernelCallArtifact,
        runtime: Sequence[ScalarArgument],
    ) -> FixedLaunch:
        chosen = self.options.tuning.get(node.name, node.tuning_candidate)
        if chosen is None:
            return entry.launch.geometry(runtime)
        if entry.launch_resources is None:
            raise LaunchArgumentMismatch(
                f"node {node.name!r}: kernel {entry.target!r} has no launch candidates"
            )
        return entry.launch_resources.candidate(chosen).geometry


def _has_scalar(node: LaunchGraphNode, scalars: Container[int]) -> bool:
    """True where a kernel takes one of the run's scalars with these indices."""
    return any(
        isinstance(scalar, RuntimeScalar) and scalar.index in scalars
        for scalar in node.runtime_scalars
    )
