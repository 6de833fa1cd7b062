"""A plan bound to a device: kernels loaded, buffers known, launches packed.

Preparing does once what every run of a plan would do again: look up and load
kernels, allocate scratch, work out geometry, pack arguments. A prepared plan
serves one run at a time, as its scratch would be shared otherwise.

Slots change hands inside a run: a loop's carries swap the buffers of two slots.
So a node whose slots are carried somewhere has one prepared action for each
combination of buffers that it has met; all others have exactly one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from accy_async.artifact.geometry import FixedLaunch
from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.backends.handles import (
    BufferHandle,
    EventHandle,
    Handle,
)
from accy_async.backends.launch import PreparedLaunch
from accy_async.graph.actions import Action, Actions
from accy_async.graph.bindings import Memory
from accy_async.graph.nodes import (
    EventSignal,
    EventWait,
    KernelCall,
    RuntimeScalar,
)
from accy_async.graph.rereads import HostCopies

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.joined import JoinedBackend
    from accy_async.graph.actions import Kernels
    from accy_async.graph.lowering.obstacle import Obstacle
    from accy_async.graph.lowering.policy import Lowered
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.whereabouts import Whereabouts

__all__ = ["PreparedGraph"]

_PACKED_KEPT = 4
"""Launches of one node that are kept for buffers that it had before."""

_PACKED_NODES = 64
"""Nodes of a plan up to which any are: more would take much memory for little."""


class PreparedGraph:
    """A plan made ready for one set of bindings, once `make_actions` is through.

    Args:
        backend: the device.
        plan: the plan.
        kernels: of each device, its kernels; a single device is number 0.
        bound: what `check_bindings` gave.
        events: what external events are bound to.
        options: scalars and candidates.
        places: where everything is; None for one device.

    Attributes:
        has_lost_kernels: whether a kernel of it, which somebody lent, was destroyed.
        runs: how many runs it has served, one that goes on included.
        has_calls: whether some nodes are called on the host.
        rereads: of some copies from host memory, the nodes whose end they wait for.
        lowered: it as a device graph, or as several, once it is; its own.
        obstacles: what keeps it from that, where that was found.
        is_closed: whether `close` was called.
        awaited: the items of the plan's top block that runs' users awaited by
            themselves.

    Raises:
        OutOfMemory: no room for the scratch; none is left allocated.
    """

    def __init__(
        self,
        backend: Backend,
        plan: LaunchGraphPlan,
        kernels: Sequence[Kernels],
        bound: Mapping[str, Memory],
        events: Mapping[str, EventHandle],
        options: LaunchOptions,
        places: Whereabouts | None = None,
    ) -> None:
        self.backend = backend
        self.places = places
        self.plan = plan
        self._copies = HostCopies(plan, self._device, places)
        self._set_bound(bound)
        self.options = options
        self.events: dict[str, EventHandle] = dict(events)
        self.initial_memories: tuple[Memory, ...] = ()
        self.is_in_use = False
        self.has_lost_kernels = False
        self.runs = 0
        self.is_closed = False
        self.lowered: Lowered | None = None
        self.has_calls = any(node.is_host for node in plan.nodes)
        self.obstacles: tuple[Obstacle, ...] = ()
        self.awaited: set[int] = set()
        self._alive_in: object = None
        self._scratch: list[BufferHandle] = []
        self._own_events: list[EventHandle] = []
        try:
            self._allocate()
            self.carried = frozenset(
                plan.slot_index[name]
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
        self._maker = Actions(backend, plan, kernels, self.events, options, places)
        self._variants: dict[tuple[int, ...], Action | PreparedLaunch] = {}
        self._packed: dict[int, dict[tuple[int, ...], PreparedLaunch]] = {}
        # Of each slot, and of each of the run's scalars, the nodes that use it.
        self._users: tuple[list[list[int]], dict[int, set[int]]] | None = None

    def _device(self, number: int) -> Backend:
        """One of the devices, by its number."""
        if self.places is None:
            return self.backend
        return cast("JoinedBackend", self.backend).at(number)

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
        made = self._maker.make(index, self.initial_memories)
        if isinstance(made, PreparedLaunch):
            self.launches[index] = made
        else:
            self._actions[index] = made
        self._note_guarding(index)

    def _note_guarding(self, index: int) -> None:
        """Note whether the device asks a node's guard."""
        operation = self.plan.nodes[index].operation
        if isinstance(operation, (EventWait, EventSignal)) or (
            isinstance(operation, KernelCall) and 0 in self.geometries[index].grid
        ):
            self.unguarded.add(index)
        else:
            self.unguarded.discard(index)

    def make_launch(self, index: int, memories: Sequence[Memory]) -> PreparedLaunch:
        """A kernel's launch where the slots have these buffers."""
        return self._maker.launch(index, memories)

    @property
    def geometries(self) -> Mapping[int, FixedLaunch]:
        """Of each node that launches a kernel, what its launch is given."""
        return self._maker.geometries

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

        Some 5 us for each node that has others then, less for those that it had
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
        self._maker.use(options)
        self._variants.clear()
        by_slot, by_scalar = self._find_users()
        takers = set().union(*(by_scalar.get(one, ()) for one in scalars))
        changed = sorted(takers.union(*(by_slot[slot] for slot in slots)))
        for index in changed:
            self._take_up(index, has_new_scalars=index in takers)
        return changed

    def _find_users(self) -> tuple[list[list[int]], dict[int, set[int]]]:
        """The nodes that use each slot, and each of the run's scalars; found once."""
        if self._users is None:
            plan = self.plan
            by_slot: list[list[int]] = [[] for _ in plan.slots]
            by_scalar: dict[int, set[int]] = {}
            for index, node in enumerate(plan.nodes):
                if node.is_host:
                    continue
                for slot, _ in plan.uses[index]:
                    by_slot[slot].append(index)
                for scalar in node.runtime_scalars:
                    if isinstance(scalar, RuntimeScalar):
                        by_scalar.setdefault(scalar.index, set()).add(index)
            self._users = by_slot, by_scalar
        return self._users

    def _take_up(self, index: int, *, has_new_scalars: bool) -> None:
        """Renew a node; a launch that was packed for these buffers is used again."""
        before, memories = self.launches[index], self.initial_memories
        if before is None:
            self._renew(index)
            return
        if has_new_scalars:
            self._packed.pop(index, None)
        packed: dict[tuple[int, ...], PreparedLaunch] = {}
        key: tuple[int, ...] = ()
        if len(self.plan.nodes) <= _PACKED_NODES:
            # Identities that stay their own: what is packed keeps its buffers' handles.
            key = tuple([id(memories[slot]) for slot, _ in self.plan.uses[index]])
            packed = self._packed.setdefault(index, packed)
            found = packed.get(key)
            if found is not None:
                self.launches[index] = found
                return
        made = self._maker.relaunch(
            index, before, memories, has_new_scalars=has_new_scalars
        )
        self.launches[index] = made
        if made.request.geometry is not before.request.geometry:
            self._note_guarding(index)
        if len(packed) >= _PACKED_KEPT:
            del packed[next(iter(packed))]
        packed[key] = made

    def close(self) -> None:
        """Destroy scratch and events; what is in use goes to the reaper."""
        self.is_closed = True
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
                made = self._variants[key] = self._maker.make(index, memories)
        if isinstance(made, PreparedLaunch):
            return partial(self.backend.submit_launch, made)
        assert made is not None
        return made

    def _set_bound(self, bound: Mapping[str, Memory]) -> None:
        self.bound = bound
        self.rereads = self._copies.rereads(bound)
        self.bound_slots = [(n, m, self.plan.slot(n)) for n, m in bound.items()]

    def slot_index(self, name: str) -> int:
        """A slot's place among the plan's."""
        return self.plan.slot_index[name]

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
        return self._device(0 if self.places is None else self.places.slots[slot])

    def _of_event(self, name: str) -> Backend:
        """The device that an event is signalled on."""
        return self._device(0 if self.places is None else self.places.events[name])

    def _destroy(self, errors: list[Exception]) -> None:
        handles: list[Handle] = []
        if self.lowered is not None:
            handles += self.lowered.handles()
            self.lowered = None
        handles += reversed(self._own_events)
        handles += reversed(self._scratch)
        destroy_all(self.backend, handles, errors)
        self._own_events.clear()
        self._scratch.clear()
