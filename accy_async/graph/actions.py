"""What submits each node of a plan: launches packed once, other operations bound.

Where a node gets other buffers or scalars, its launch is made from the one before: what
was checked and packed for both is neither checked nor packed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from accy_async.artifact.parameters import check_buffer_sizes
from accy_async.backends.handles import (
    BufferAccess,
    BufferBinding,
    BufferHandle,
    StreamHandle,
)
from accy_async.backends.launch import LaunchRequest, PreparedLaunch
from accy_async.errors import LaunchArgumentMismatch
from accy_async.graph.nodes import (
    BufferSlot,
    CopyBuffer,
    CopyFromDevice,
    CopyToDevice,
    EventWait,
    Fill,
    KernelCall,
    RuntimeScalar,
)

if TYPE_CHECKING:
    from accy_async.artifact.entry import KernelCallArtifact
    from accy_async.artifact.geometry import FixedLaunch
    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.backends.base import Backend
    from accy_async.backends.guards import Guard
    from accy_async.backends.handles import EventHandle, LoadedArtifact
    from accy_async.backends.joined import JoinedBackend
    from accy_async.dtypes import ScalarArgument
    from accy_async.graph.bindings import Memory
    from accy_async.graph.nodes import EventSignal, LaunchGraphNode
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.whereabouts import Whereabouts

__all__ = ["Action", "Actions", "Kernels"]

Action = Callable[[StreamHandle | None, "Guard | None"], int]
"""Submits one node to a stream; returns its position there."""

Kernels = Mapping[int, "tuple[KernelArtifact, LoadedArtifact]"]
"""Each entry's kernel, as made and as loaded, by the entry's identity."""


class Actions:
    """Makes them for one prepared plan.

    Args:
        backend: the device.
        plan: the plan.
        kernels: of each device, its kernels; a single device is number 0.
        events: what named events are.
        options: scalars and candidates.
        places: where everything is; None for one device.

    Attributes:
        options: as given; others from `use` on.
        geometries: of each node that launches a kernel, what its launch was given.
    """

    def __init__(
        self,
        backend: Backend,
        plan: LaunchGraphPlan,
        kernels: Sequence[Kernels],
        events: Mapping[str, EventHandle],
        options: LaunchOptions,
        places: Whereabouts | None = None,
    ) -> None:
        self.options = options
        self.geometries: dict[int, FixedLaunch] = {}
        self._backend = backend
        self._plan = plan
        self._kernels = kernels
        self._events = events
        self._places = places
        self._slot_of = plan.slot_index
        self._bindings: dict[tuple[str, int, BufferAccess], BufferBinding] = {}
        # By a binding's identity, which is kept its own: that, and what follows it.
        self._following: dict[int, tuple[BufferBinding, BufferBinding]] = {}

    def use(self, options: LaunchOptions) -> None:
        """Take other scalars from here on, and forget the buffers so far."""
        self.options = options
        self._bindings.clear()
        self._following.clear()

    def make(self, index: int, memories: Sequence[Memory]) -> Action | PreparedLaunch:
        """What submits a node whose slots have these buffers.

        Returns:
            Of a kernel that nothing else is asked of, the launch itself.

        Raises:
            LaunchArgumentMismatch, CapabilityMismatch: a launch does not fit its
                kernel or the device.
        """
        node = self._plan.nodes[index]
        made = self._make_operation(index, node, memories)
        if not node.wait_events and node.signal_event is None:
            return made
        backend = self._backend
        action = (
            partial(backend.submit_launch, made)
            if isinstance(made, PreparedLaunch)
            else made
        )
        waits = [
            self._events[name]
            for name in node.wait_events
            if not self._is_awaited_by_host(index, name)
        ]
        signal = None if node.signal_event is None else self._events[node.signal_event]

        def with_events(stream: StreamHandle | None, guard: Guard | None) -> int:
            for event in waits:
                backend.stream_wait_event(stream, event)
            position = action(stream, guard)
            return position if signal is None else backend.record_event(signal, stream)

        return with_events

    def launch(self, index: int, memories: Sequence[Memory]) -> PreparedLaunch:
        """A kernel's launch where the slots have these buffers.

        Raises:
            As `make`.
        """
        node = self._plan.nodes[index]
        call = cast("KernelCall", node.operation)
        entry = call.entry
        place = 0 if self._places is None else self._places.nodes[index]
        artifact, loaded = self._kernels[place][id(entry)]
        runtime = self._runtime_scalars(node, entry)
        geometry = self._geometry(node, entry, runtime)
        self.geometries[index] = geometry
        self._check(node, call, runtime)
        buffers = [
            self._binding(use.slot, use.access, memories) for use in call.buffers
        ]
        return self._backend.prepare_launch(
            LaunchRequest(
                artifact=artifact,
                loaded=loaded,
                buffers=tuple(buffers),
                scalars=runtime + entry.static_arguments,
                geometry=geometry,
                diagnostic_id=node.name,
            )
        )

    def relaunch(
        self,
        index: int,
        before: PreparedLaunch,
        memories: Sequence[Memory],
        *,
        has_new_scalars: bool,
    ) -> PreparedLaunch:
        """The same, made from the launch that the node had before.

        Raises:
            As `make`; InvalidBuffer: a buffer was destroyed.
        """
        node, request = self._plan.nodes[index], before.request
        call: KernelCall = node.operation  # type: ignore[assignment]
        scalars = request.scalars
        if has_new_scalars:
            runtime = self._runtime_scalars(node, call.entry)
            geometry = self._geometry(node, call.entry, runtime)
            if geometry is not request.geometry and geometry != request.geometry:
                return self.launch(index, memories)
            self._check(node, call, runtime)
            scalars = runtime + call.entry.static_arguments
        buffers, following = [], self._following
        for use, binding in zip(call.buffers, request.buffers, strict=True):
            found = following.get(id(binding))
            if found is None:
                now = binding
                if memories[self._slot_of[use.slot]] is not binding.handle:
                    now = self._binding(use.slot, use.access, memories)
                found = following[id(binding)] = binding, now
            buffers.append(found[1])
        return self._backend.renew_launch(before, tuple(buffers), scalars)

    def _make_operation(
        self, index: int, node: LaunchGraphNode, memories: Sequence[Memory]
    ) -> Action | PreparedLaunch:
        backend, operation = self._backend, node.operation

        def memory(name: str) -> Memory:
            return memories[self._slot_of[name]]

        def buffer(name: str) -> BufferHandle:
            return cast("BufferHandle", memory(name))

        if isinstance(operation, KernelCall):
            return self.launch(index, memories)
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
            awaited = self._events[operation.event]
            if self._is_awaited_by_host(index, operation.event):
                return lambda stream, _: backend.mark(stream).position
            return lambda stream, _: backend.stream_wait_event(stream, awaited)
        signalled = self._events[cast("EventSignal", operation).event]
        return lambda stream, _: backend.record_event(signalled, stream)

    def _is_awaited_by_host(self, index: int, name: str) -> bool:
        """Whether a node's device cannot wait for an event of the plan itself.

        The edge from the node that signals it is resolved on the host then.
        """
        places = self._places
        if places is None or name not in self._plan.signalled_events:
            return False
        joined = cast("JoinedBackend", self._backend)
        on = joined.at(places.nodes[index])
        return not on.can_wait_for(joined.at(places.events[name]))

    # Kernels

    def _check(
        self, node: LaunchGraphNode, call: KernelCall, runtime: Sequence[ScalarArgument]
    ) -> None:
        """Refuse scalars that the kernel does not take with slots of these sizes."""
        entry = call.entry
        if entry.shape_profile is not None:
            entry.shape_profile.check(runtime)
        if entry.buffers:
            check_buffer_sizes(
                f"node {node.name!r}, kernel {entry.target!r}",
                entry.buffers,
                runtime,
                [self._slot(use.slot).byte_size for use in call.buffers],
            )

    def _binding(
        self, name: str, access: BufferAccess, memories: Sequence[Memory]
    ) -> BufferBinding:
        """A slot's buffer as a kernel uses it; one serves all that use it so."""
        memory: BufferHandle = memories[self._slot_of[name]]  # type: ignore[assignment]
        key = (name, memory.id, access)
        found = self._bindings.get(key)
        if found is None:
            found = self._bindings[key] = BufferBinding(
                handle=memory, access=access, byte_size=self._slot(name).byte_size
            )
        return found

    def _slot(self, name: str) -> BufferSlot:
        return cast("BufferSlot", self._plan.slots[self._slot_of[name]])

    def _runtime_scalars(
        self, node: LaunchGraphNode, entry: KernelCallArtifact
    ) -> tuple[ScalarArgument, ...]:
        given = self.options.runtime_scalars
        return tuple(
            [
                given[scalar.index] if isinstance(scalar, RuntimeScalar) else scalar
                for scalar in node.runtime_scalars or entry.runtime_scalar_defaults
            ]
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
