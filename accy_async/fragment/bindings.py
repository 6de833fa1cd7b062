"""The buffers of one invocation, bound once and used as often as wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio.lowlevel

from accy_async.artifact.slots import SlotRole
from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.backends.closing import ClosedOnExit
from accy_async.backends.handles import BufferAccess, BufferBinding, BufferHandle
from accy_async.errors import InvalidArtifact, InvalidType, LaunchArgumentMismatch
from accy_async.fragment.graphs import count_slot_name, element_counts, slot_name
from accy_async.fragment.memory import Buffers, write_constants
from accy_async.graph.options import LaunchOptions, check_options
from accy_async.graph.prepared import PreparedGraph

if TYPE_CHECKING:
    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.artifact.planned import ArtifactPlan, PlannedKernel
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import LoadedArtifact
    from accy_async.dtypes import ScalarArgument
    from accy_async.fragment.graphs import RuntimeScalars
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.tuning.choice import LaunchTuning

__all__ = [
    "InvocationBindings",
    "allocate_bindings",
    "check_bindings_given",
    "check_kernel_buffers",
]

_MOST_GRAPHS = 8
"""Graphs that bindings keep prepared; the one unused longest goes first."""


class InvocationBindings(ClosedOnExit):
    """Every buffer of a fragment's invocation; `prepare_invocation_bindings` makes one.

    Inputs and constants are uploaded; outputs and scratch are undefined until the
    first invocation. It serves any number of invocations, one after the other in the
    order of their submission to one stream. It is an async context manager; `aclose`
    destroys the buffers.

    Attributes:
        plan: whose slots they are for.
        runtime_scalars: those of the call whose arguments they hold, see
            `LoadedFragment.capture_invocation`; none otherwise.
    """

    def __init__(
        self,
        backend: Backend,
        plan: ArtifactPlan,
        kernels: Mapping[int, tuple[KernelArtifact, LoadedArtifact]],
        buffers: Buffers,
    ) -> None:
        self.plan = plan
        self.runtime_scalars: tuple[ScalarArgument, ...] = ()
        self._backend = backend
        self._kernels = kernels
        self._buffers = buffers
        self._prepared: dict[tuple[object, ...], PreparedGraph] = {}
        self._last_graph: tuple[LaunchGraphPlan, object, LaunchGraphPlan] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._buffers)} buffers"
        return f"<InvocationBindings of {self.plan.name!r}: {state}>"

    @property
    def is_closed(self) -> bool:
        """True once `aclose` has been called."""
        return self._is_closed

    @property
    def live_buffer_count(self) -> int:
        """How many buffers it owns."""
        return len(self._buffers)

    @property
    def slot_bindings(self) -> Mapping[int, BufferBinding]:
        """The buffer of each slot that has one, by slot id; constants read-only."""
        self._check()
        return {
            slot.slot_id: BufferBinding(
                handle=self._buffers[slot_name(slot)],
                access="read_only" if slot.role is SlotRole.CONSTANT else "read_write",
                byte_size=slot.byte_size,
            )
            for slot in self.plan.slots
            if slot.is_bound
        }

    @property
    def element_count_bindings(self) -> Mapping[int, BufferBinding]:
        """The buffer with its element count, of each kernel that takes one, by id."""
        self._check()
        return {
            kernel_id: BufferBinding(
                handle=self._buffers[count_slot_name(count)], access="read_only"
            )
            for kernel_id, count in element_counts(self.plan).items()
        }

    def binding(
        self, slot_id: int, access: BufferAccess | str = BufferAccess.READ_ONLY
    ) -> BufferBinding:
        """A slot's buffer, to be used so.

        Raises:
            InvalidArtifact: there is no such slot, or it is folded into the code.
            LaunchArgumentMismatch: the bindings are closed.
        """
        self._check()
        slot = self.plan.slot(slot_id)
        if not slot.is_bound:
            raise InvalidArtifact(f"slot {slot_id} is folded into the code: no buffer")
        return BufferBinding(
            handle=self._buffers[slot_name(slot)],
            access=access,
            byte_size=slot.byte_size,
        )

    def buffers_for_kernel(self, index: int) -> tuple[BufferBinding, ...]:
        """A kernel's buffers in its order, an element count last.

        Raises:
            InvalidArtifact: there is no such kernel.
            LaunchArgumentMismatch: the bindings are closed.
        """
        kernel = self.plan.kernel(index)
        found = [self.binding(a.slot_id, a.access) for a in kernel.arguments]
        count = self.element_count_bindings.get(kernel.kernel_id)
        return (*found, count) if count is not None else tuple(found)

    def graph_bindings(self) -> dict[str, BufferHandle]:
        """What `Session.start` and `Session.prepare` take to run a fragment's graph.

        Scratch is left out: runs have their own.

        Raises:
            LaunchArgumentMismatch: the bindings are closed.
        """
        self._check()
        scratch = {
            slot_name(slot) for slot in self.plan.slots if slot.role is SlotRole.SCRATCH
        }
        return {
            name: handle
            for name, handle in self._buffers.items()
            if name not in scratch
        }

    def prepared(self, graph: LaunchGraphPlan, options: LaunchOptions) -> PreparedGraph:
        """A graph of the fragment, its launches packed for these buffers.

        Raises:
            LaunchArgumentMismatch: the bindings are closed, or the options do not fit
                the graph.
            InvalidArtifact: the graph is of another fragment.
            CapabilityMismatch: a geometry is beyond the device's limits.
        """
        self._check()
        tuning = tuple(sorted(options.tuning.items()))
        key = (id(graph), tuning, options.runtime_scalars)
        found = self._prepared.pop(key, None)
        if found is None:
            found = self._prepare(graph, options)
            while len(self._prepared) >= _MOST_GRAPHS:
                self._prepared.pop(next(iter(self._prepared)))
        self._prepared[key] = found
        return found

    def graph_for(
        self,
        plain: LaunchGraphPlan,
        tuning: LaunchTuning,
        runtime_scalars: RuntimeScalars | None,
        make: Callable[[], LaunchGraphPlan],
    ) -> LaunchGraphPlan:
        """The graph for these choices: made once, as long as they stay the same.

        Args:
            plain: the fragment's graph without them.
            tuning: launch candidates.
            runtime_scalars: scalars.
            make: makes it.
        """
        key, last = (tuning, runtime_scalars), self._last_graph
        if last is None or last[0] is not plain or last[1] != key:
            last = self._last_graph = (plain, key, make())
        return last[2]

    def _prepare(self, graph: LaunchGraphPlan, options: LaunchOptions) -> PreparedGraph:
        check_options(self._backend, graph, options)
        bound = dict(self._buffers.items())
        for entry in graph.entries:
            if id(entry) not in self._kernels:
                raise InvalidArtifact(
                    f"kernel {entry.target!r} of the graph is not the fragment's"
                )
        for slot in graph.slots:
            handle = bound.get(slot.name)
            if handle is None or slot.byte_size > handle.byte_size:
                raise InvalidArtifact(
                    f"slot {slot.name!r} of the graph is not the fragment's"
                )
        prepared = PreparedGraph(
            self._backend, graph, [self._kernels], bound, {}, options
        )
        for _ in prepared.make_actions():
            pass
        return prepared

    def handles(self) -> list[BufferHandle]:
        """The buffers, newest first, as they are to be destroyed."""
        return list(self._buffers.handles())

    def close(self) -> None:
        """`aclose` for sync code: destroying never waits."""
        if self._is_closed:
            return
        self._is_closed = True
        self._prepared.clear()  # they own nothing
        self._buffers.close()

    async def aclose(self) -> None:
        """Destroy the buffers, newest first. Idempotent; waits for no invocation.

        A buffer that queued work still uses is freed when that work is done.

        Raises:
            AccyError: the device refused to destroy one; the others were destroyed
                all the same. Several errors come as an ExceptionGroup.

        Cancellation: shielded from it; all buffers are destroyed.
        """
        self.close()
        await anyio.lowlevel.cancel_shielded_checkpoint()

    def _check(self) -> None:
        if self._is_closed:
            raise LaunchArgumentMismatch(f"{self!r} cannot be used")


def check_bindings_given(name: str, bindings: object, plan: ArtifactPlan) -> None:
    """Refuse what are no bindings of a fragment with this plan.

    Raises:
        InvalidType: it is something else.
        LaunchArgumentMismatch: they are of another fragment.
    """
    if not isinstance(bindings, InvocationBindings):
        raise InvalidType(name, bindings, "InvocationBindings")
    if bindings.plan is not plan and bindings.plan != plan:
        raise LaunchArgumentMismatch(
            f"{name}: {bindings!r} are of another fragment than {plan.name!r}"
        )


def check_kernel_buffers(
    plan: ArtifactPlan, kernel: PlannedKernel, buffers: Sequence[BufferBinding]
) -> None:
    """Refuse buffers that a kernel would reach beyond.

    Raises:
        LaunchArgumentMismatch: one is smaller than its slot; a number of others than
            it takes is refused with the launch.
    """
    for place, (argument, given) in enumerate(
        zip(kernel.arguments, buffers, strict=False)
    ):
        wanted = plan.slot(argument.slot_id).byte_size
        if given.handle.byte_size < wanted:
            raise LaunchArgumentMismatch(
                f"kernel {kernel.entry_name!r}: buffer {place} has "
                f"{given.handle.byte_size} bytes, it takes {wanted}"
            )


def allocate_bindings(
    backend: Backend,
    plan: ArtifactPlan,
    kernels: Mapping[int, tuple[KernelArtifact, LoadedArtifact]],
    inputs: Sequence[object] | None,
) -> InvocationBindings:
    """Allocate every buffer, and submit the uploads to the default stream. Sync.

    Args:
        backend: the device.
        plan: the fragment's.
        kernels: its kernels, made and loaded, by their entries.
        inputs: what to upload; None to leave the inputs undefined.

    Raises:
        OutOfMemory, DeviceError: no room, or the device refused; nothing is left.
    """
    buffers = Buffers(backend, f"bindings of {plan.name!r}")
    bindings = InvocationBindings(backend, plan, kernels, buffers)
    try:
        for slot in plan.slots:
            if slot.role is not SlotRole.CONSTANT:
                buffers.allocate(slot_name(slot), slot.byte_size)
        given = () if inputs is None else zip(plan.input_slot_ids, inputs, strict=True)
        for slot_id, data in given:
            backend.write_buffer(buffers[slot_name(plan.slot(slot_id))], data)
        write_constants(backend, plan, buffers)
    except BaseException as error:
        errors: list[Exception] = []
        destroy_all(backend, buffers.detach(), errors)
        raise_together(f"binding {plan.name!r}", error, errors)
        raise
    return bindings
