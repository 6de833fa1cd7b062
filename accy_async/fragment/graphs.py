"""The launch graph of an artifact plan: slots, nodes, and edges from the dataflow.

A slot is named by its role and number, ``input_0``. A node is named by its kernel's
entry point; where several share one, the later ones have their kernel's number added,
``accy_add#3``. Buffers that hold an element count are slots of their own,
``count_8``, one for each count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from accy_async.artifact.entry import ElementCountArgument, KernelCallArtifact
from accy_async.artifact.geometry import (
    DerivedLaunch,
    GridExtent,
    KernelCallLaunch,
    RuntimeCeilDiv,
)
from accy_async.artifact.planned import ArtifactPlan, PlannedKernel
from accy_async.artifact.slots import PlannedSlot, SlotRole
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import LaunchArgumentMismatch
from accy_async.graph.dataflow import dataflow_dependencies
from accy_async.graph.nodes import (
    BufferSlot,
    BufferUse,
    KernelCall,
    LaunchGraphNode,
    RuntimeScalar,
)
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.values import U32_MAX

__all__ = [
    "RuntimeScalars",
    "count_slot_name",
    "element_counts",
    "kernel_entries",
    "launch_graph_plan",
    "node_names",
    "slot_name",
]

RuntimeScalars = (
    Sequence[ScalarArgument] | Mapping[int, Sequence[ScalarArgument | RuntimeScalar]]
)
"""The scalars of every kernel that takes some; or of each, by kernel id."""


def slot_name(slot: PlannedSlot) -> str:
    """What a graph calls a slot."""
    return f"{slot.role}_{slot.slot_id}"


def count_slot_name(count: int) -> str:
    """What a graph calls the buffer that holds an element count."""
    return f"count_{count}"


def element_counts(plan: ArtifactPlan) -> dict[int, int]:
    """The element counts that kernels take in a buffer, by kernel id.

    Raises:
        LaunchArgumentMismatch: one is beyond what a u32 holds.
    """
    found = {}
    for kernel in plan.kernels:
        if kernel.element_count_argument is ElementCountArgument.BUFFER_U32:
            found[kernel.kernel_id] = _count(kernel)
    return found


def node_names(plan: ArtifactPlan) -> tuple[str, ...]:
    """What a graph calls each kernel, in the plan's order."""
    names: dict[str, None] = {}
    for kernel in plan.kernels:
        name = kernel.entry_name
        names[name if name not in names else f"{name}#{kernel.kernel_id}"] = None
    return tuple(names)


def kernel_entries(plan: ArtifactPlan) -> tuple[KernelCallArtifact, ...]:
    """The plan's kernels as entries, in its order, for graphs to launch.

    An element count that a kernel takes as a scalar is its first scalar there.
    """
    return tuple(_entry(plan, kernel) for kernel in plan.kernels)


def launch_graph_plan(
    plan: ArtifactPlan,
    entries: Sequence[KernelCallArtifact],
    *,
    candidates: Mapping[int, int],
    runtime_scalars: RuntimeScalars | None = None,
) -> LaunchGraphPlan:
    """The graph that a plan's kernels make.

    Args:
        plan: the artifact plan.
        entries: its kernels, from `kernel_entries`.
        candidates: the launch candidates that were chosen, by kernel id.
        runtime_scalars: the kernels' scalars. Left out, a kernel takes its defaults;
            one that has none takes the run's next ones.

    Raises:
        LaunchArgumentMismatch: there are more or fewer scalars than a kernel takes,
            or a kernel that takes none, or does not exist, was given some.
    """
    given = _Scalars(plan, runtime_scalars)
    slots = [_slot(slot) for slot in plan.slots if slot.is_bound]
    counts = element_counts(plan)
    slots += [
        BufferSlot(count_slot_name(count), DType.U32, 1)
        for count in dict.fromkeys(counts.values())
    ]
    nodes = tuple(
        LaunchGraphNode(
            name=name,
            operation=KernelCall(
                entry=entry, buffers=_uses(plan, kernel, counts.get(kernel.kernel_id))
            ),
            runtime_scalars=given.of(kernel),
            tuning_candidate=candidates.get(kernel.kernel_id),
        )
        for kernel, name, entry in zip(
            plan.kernels, node_names(plan), entries, strict=True
        )
    )
    return LaunchGraphPlan(
        nodes=nodes,
        dependencies=dataflow_dependencies(nodes, slots),
        slots=slots,
        runtime_scalar_count=given.from_run,
    )


class _Scalars:
    """Deals out runtime scalars to the kernels, in their order."""

    def __init__(self, plan: ArtifactPlan, given: RuntimeScalars | None) -> None:
        self.from_run = 0
        takers = {k.kernel_id for k in plan.kernels if k.runtime_scalar_argument_count}
        if given is None:
            self._by_kernel: Mapping[int, Sequence[ScalarArgument | RuntimeScalar]] = {}
        elif isinstance(given, Mapping):
            self._by_kernel = given
        else:
            self._by_kernel = dict.fromkeys(takers, tuple(given)) if given else {}
            if given and not takers:
                raise LaunchArgumentMismatch(
                    f"{len(given)} runtime scalars, but no kernel of {plan.name!r} "
                    "takes any"
                )
        for kernel_id in self._by_kernel:
            if kernel_id not in takers:
                raise LaunchArgumentMismatch(
                    f"runtime scalars for kernel {kernel_id} of {plan.name!r}, which "
                    "takes none"
                )
        # What a run brings comes behind what is named here.
        named = [
            one.index
            for scalars in self._by_kernel.values()
            for one in scalars
            if isinstance(one, RuntimeScalar)
        ]
        self.from_run = max(named, default=-1) + 1

    def of(self, kernel: PlannedKernel) -> tuple[ScalarArgument | RuntimeScalar, ...]:
        """The scalars of a kernel's node; none where its defaults serve."""
        wanted = kernel.runtime_scalar_argument_count
        given = tuple(self._by_kernel.get(kernel.kernel_id, ()))
        if kernel.kernel_id in self._by_kernel and len(given) != wanted:
            raise LaunchArgumentMismatch(
                f"kernel {kernel.entry_name!r} takes {wanted} runtime scalars, "
                f"{len(given)} were given"
            )
        if not given and wanted and not kernel.runtime_scalar_defaults:
            given = tuple(RuntimeScalar(self.from_run + i) for i in range(wanted))
            self.from_run += wanted
        if given and _takes_count_before(kernel):
            return (ScalarArgument.u32(_count(kernel)), *given)
        return given


def _count(kernel: PlannedKernel) -> int:
    if kernel.element_count > U32_MAX:
        raise LaunchArgumentMismatch(
            f"kernel {kernel.entry_name!r}: {kernel.element_count} elements, it takes "
            "their number as a u32"
        )
    return kernel.element_count


def _takes_count_before(kernel: PlannedKernel) -> bool:
    """True where the element count comes before scalars that a launch brings."""
    is_scalar = kernel.element_count_argument is ElementCountArgument.SCALAR_U32
    return is_scalar and kernel.runtime_scalar_argument_count > 0


def _slot(slot: PlannedSlot) -> BufferSlot:
    is_scratch = slot.role is SlotRole.SCRATCH
    return BufferSlot(slot_name(slot), slot.dtype, slot.shape, is_scratch=is_scratch)


def _uses(
    plan: ArtifactPlan, kernel: PlannedKernel, count: int | None
) -> tuple[BufferUse, ...]:
    uses = [
        BufferUse(slot_name(plan.slot(argument.slot_id)), argument.access)
        for argument in kernel.arguments
    ]
    if count is not None:
        uses.append(BufferUse(count_slot_name(count), "read_only"))
    return tuple(uses)


def _entry(plan: ArtifactPlan, kernel: PlannedKernel) -> KernelCallArtifact:
    launch: KernelCallLaunch = kernel.launch
    statics, defaults = kernel.static_arguments, kernel.runtime_scalar_defaults
    runtime = kernel.runtime_scalar_argument_count
    counted = kernel.element_count_argument
    if counted is ElementCountArgument.SCALAR_U32:
        count = (ScalarArgument.u32(_count(kernel)),)
        if runtime:
            runtime, launch = runtime + 1, _shifted(launch)
            defaults = (*count, *defaults) if defaults else ()
        else:
            statics = (*count, *statics)
        counted = ElementCountArgument.NONE
    return KernelCallArtifact(
        target=f"{plan.name}.{kernel.entry_name}",
        version=1,
        format=plan.format,
        entry_name=kernel.entry_name,
        argument_count=kernel.artifact.argument_count,
        payload=kernel.artifact.payload,
        launch=launch,
        runtime_scalar_argument_count=runtime,
        required_dtypes=kernel.required_dtypes,
        static_arguments=statics,
        element_count_argument=counted,
        runtime_scalar_defaults=defaults,
        launch_resources=kernel.launch_resources,
        required_features=kernel.required_features,
        required_subgroup=kernel.required_subgroup,
        push_constants=kernel.artifact.push_constants,
    )


def _shifted(launch: KernelCallLaunch) -> KernelCallLaunch:
    """The launch where one more scalar comes before those that it follows from."""
    if not isinstance(launch, DerivedLaunch):
        return launch

    def shift(extent: GridExtent) -> GridExtent:
        if isinstance(extent, RuntimeCeilDiv):
            return attrs.evolve(extent, argument_index=extent.argument_index + 1)
        return extent

    x, y, z = launch.grid
    return attrs.evolve(launch, grid=(shift(x), shift(y), shift(z)))
