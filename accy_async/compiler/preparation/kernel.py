"""The fifth phase: a kernel, or a few in sequence, for each work item."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.entry import (
    ElementCountArgument,
    KernelCallArtifact,
    KernelCallRegistry,
)
from accy_async.artifact.geometry import DerivedLaunch, FixedLaunch
from accy_async.artifact.planned import CompileLaunch, KernelSource
from accy_async.artifact.resources import LaunchResourceCandidate, LaunchResourcePlan
from accy_async.artifact.slots import PlannedArgument, PlannedSlot
from accy_async.compiler.kernelization import (
    BufferOrigin,
    KernelizedWork,
    KernelStep,
    TargetProfile,
    WorkItem,
)
from accy_async.compiler.kernelization.kernelize import kernelize
from accy_async.compiler.preparation.memory import (
    MemoryItem,
    MemoryPlan,
    ScratchPool,
    scratch_slot,
)
from accy_async.compiler.preparation.passes import PassContext, Pipeline
from accy_async.compiler.preparation.schedules import Schedules
from accy_async.compiler.semantic import TensorType
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import CapabilityMismatch, UnsupportedOperation
from accy_async.values import U32_MAX

__all__ = ["KERNEL_PASSES", "KernelPlan", "PreparedKernel", "plan_kernels"]

KERNEL_PASSES = ("kernelization", "scratch", "assembly")
"""The passes of the phase."""


@attrs.frozen(kw_only=True, eq=False)
class PreparedKernel:
    """One launch: a kernel in the kernel form, or a ready-made one.

    Attributes:
        work_item_id: the work item that it carries out, or a part of it.
        source: where its code comes from.
        kind: what kind of kernel it is.
        opcode: the operation that messages name.
        location: that operation's source line, or None.
        arguments: its buffers, without an element count.
        layouts: the type of what each of them holds for it.
        op_count: operations of the program that it computes.
        element_count: elements that it produces, or takes in where it reduces.
        step: what was generated, None for a ready-made kernel.
        entry: the ready-made kernel, None for a generated one.
        runtime_scalar_defaults: values of its runtime scalars, or none.
    """

    work_item_id: int
    source: KernelSource
    kind: CompileLaunch
    opcode: str
    location: str | None
    arguments: tuple[PlannedArgument, ...]
    layouts: tuple[TensorType, ...]
    op_count: int
    element_count: int
    step: KernelStep | None = None
    entry: KernelCallArtifact | None = None
    runtime_scalar_defaults: tuple[ScalarArgument, ...] = ()

    @property
    def launch_resources(self) -> LaunchResourcePlan:
        """The geometries to choose from."""
        if self.step is not None:
            return self.step.launch_resources
        assert self.entry is not None
        return self.entry.launch_resources or _one_geometry(
            self.entry, self.runtime_scalar_defaults
        )

    @property
    def element_count_argument(self) -> ElementCountArgument:
        """How it learns its element count."""
        if self.step is not None:
            return self.step.element_count_argument
        assert self.entry is not None
        return self.entry.element_count_argument


@attrs.frozen(kw_only=True, eq=False)
class KernelPlan:
    """All launches and all slots.

    Attributes:
        memory: where the values lie.
        slots: all buffers, those between the steps of one work item among them.
        kernels: the launches, in an order in which they can run.
    """

    memory: MemoryPlan
    slots: tuple[PlannedSlot, ...]
    kernels: tuple[PreparedKernel, ...]


def plan_kernels(
    memory: MemoryPlan,
    schedules: Schedules,
    registry: KernelCallRegistry,
    pipeline: Pipeline,
) -> KernelPlan:
    """The kernels of all work items.

    Raises:
        UnsupportedOperation: no kernel is generated for a work item.
        KernelEntryMissing: the registry lacks a kernel that is called.
        InvalidArtifact: a schedule that was measured as the fastest is none.
    """
    works = pipeline.run("kernelization", _works, memory, schedules, pipeline.context)
    scratch, types = pipeline.run("scratch", _scratch, memory, works)
    kernels = pipeline.run(
        "assembly",
        _kernels,
        memory,
        works,
        scratch,
        registry,
        schedules.profile,
        pipeline.context,
    )
    return KernelPlan(memory=memory, slots=(*memory.slots, *types), kernels=kernels)


def _works(
    memory: MemoryPlan, schedules: Schedules, context: PassContext
) -> dict[int, KernelizedWork]:
    """What each generated work item became, by its number.

    Items that compute the same share kernels, which are named after the first.
    """
    works: dict[int, KernelizedWork] = {}
    first: dict[object, KernelizedWork] = {}
    for placed in memory.items:
        context.place(placed.item.opcode, placed.item.location)
        function = placed.item.function
        if function is None:
            continue
        key = (placed.item.kind, function.fingerprint())
        work = first.get(key)
        if work is None:
            item: WorkItem = placed.item.work_item(placed.work_item_id)
            schedule = schedules.for_work(item)
            work = kernelize(item, schedules.profile, schedule)
            first[key] = work
        works[placed.work_item_id] = work
    return works


def _scratch(
    memory: MemoryPlan, works: dict[int, KernelizedWork]
) -> tuple[dict[int, tuple[int, ...]], tuple[PlannedSlot, ...]]:
    """The slots between steps: those of each work item, and all that are new."""
    pool = ScratchPool()
    begin = len(memory.slots)
    taken = {}
    for placed in memory.items:
        work = works.get(placed.work_item_id)
        if work is not None and work.scratch:
            users = 1 << placed.work_item_id
            taken[placed.work_item_id] = tuple(
                begin + pool.take(type, placed.before, users) for type in work.scratch
            )
    types = enumerate(pool.types, begin)
    return taken, tuple(scratch_slot(type, slot_id) for slot_id, type in types)


def _kernels(
    memory: MemoryPlan,
    works: dict[int, KernelizedWork],
    scratch: dict[int, tuple[int, ...]],
    registry: KernelCallRegistry,
    profile: TargetProfile,
    context: PassContext,
) -> tuple[PreparedKernel, ...]:
    kernels: list[PreparedKernel] = []
    for placed in memory.items:
        context.place(placed.item.opcode, placed.item.location)
        work = works.get(placed.work_item_id)
        if work is None:
            kernels.append(_called(placed, registry, profile))
            continue
        slots = scratch.get(placed.work_item_id, ())
        kernels += (_generated(placed, work, step, slots) for step in work.steps)
    return tuple(kernels)


def _generated(
    placed: MemoryItem, work: KernelizedWork, step: KernelStep, scratch: Sequence[int]
) -> PreparedKernel:
    function = placed.item.function
    assert function is not None
    memory = {
        BufferOrigin.RESULT: (placed.result_slot_ids, function.result_types),
        BufferOrigin.OPERAND: (placed.operand_slot_ids, function.parameter_types),
        BufferOrigin.SCRATCH: (scratch, work.scratch),
    }
    arguments, layouts = [], []
    # An element count is the kernel's last buffer, and has no slot.
    for buffer, parameter in zip(step.arguments, step.kernel.buffers, strict=False):
        slots, types = memory[buffer.origin]
        arguments.append(
            PlannedArgument(slot_id=slots[buffer.index], access=parameter.access)
        )
        layouts.append(types[buffer.index])
    return PreparedKernel(
        work_item_id=placed.work_item_id,
        source=KernelSource.TENSOR,
        kind=placed.item.kind,
        opcode=placed.item.opcode,
        location=placed.item.location,
        arguments=tuple(arguments),
        layouts=tuple(layouts),
        op_count=placed.item.op_count,
        element_count=step.element_count,
        step=step,
    )


def _called(
    placed: MemoryItem, registry: KernelCallRegistry, profile: TargetProfile
) -> PreparedKernel:
    item, call = placed.item, placed.item.call
    assert call is not None
    entry = registry.get(call.target, call.version, profile.format)
    count = item.results[0].type.element_count
    return PreparedKernel(
        work_item_id=placed.work_item_id,
        source=KernelSource.KERNEL_CALL,
        kind=item.kind,
        opcode=item.opcode,
        location=item.location,
        arguments=_call_arguments(placed, entry),
        layouts=tuple(value.type for value in (*item.results, *item.operands)),
        op_count=item.op_count,
        element_count=count,
        entry=entry,
        runtime_scalar_defaults=_defaults(entry, count),
    )


def _call_arguments(
    placed: MemoryItem, entry: KernelCallArtifact
) -> tuple[PlannedArgument, ...]:
    """Results, then operands; as the entry says that it uses them, where it says so.

    Memory that a result takes over is written through the result's argument.
    """
    arguments = placed.arguments()
    if not entry.buffers:
        return arguments
    results = len(placed.result_slot_ids)
    declared = []
    for number, argument in enumerate(arguments):
        access = entry.buffers[number].access
        if number in placed.taken:
            access = "read_write"
        elif number < results and access == "read_only":
            access = "write_only"
        declared.append(attrs.evolve(argument, access=access))
    return tuple(declared)


def _defaults(entry: KernelCallArtifact, count: int) -> tuple[ScalarArgument, ...]:
    """Values for the runtime scalars that a launch leaves out.

    The entry's own; else, of a kernel with one runtime scalar that is a size, the
    number of elements that the call gives.
    """
    if entry.runtime_scalar_defaults or entry.runtime_scalar_argument_count != 1:
        return entry.runtime_scalar_defaults
    dimensions = () if entry.shape_profile is None else entry.shape_profile.dimensions
    sized = [d for d in dimensions if d.runtime_scalar_argument_index == 0]
    derived = isinstance(entry.launch, DerivedLaunch) and entry.launch.argument_indices
    if not sized and not derived:
        return ()
    if count > U32_MAX:
        raise UnsupportedOperation(
            f"kernel_call: {entry.target} counts its elements in 32 bits, not {count}"
        )
    for dimension in sized:
        if not dimension.bounds.admits(count):
            raise CapabilityMismatch(
                f"kernel_call: {entry.target} takes {dimension.name} from "
                f"{dimension.bounds.min} to {dimension.bounds.max} in multiples of "
                f"{dimension.bounds.multiple_of}, not {count}"
            )
    return (ScalarArgument(DType.U32, count),)


def _one_geometry(
    entry: KernelCallArtifact, defaults: Sequence[ScalarArgument]
) -> LaunchResourcePlan:
    """The entry's geometry as the only candidate.

    One that follows from scalars which each launch brings is shown for one block.
    """
    launch = entry.launch
    if isinstance(launch, FixedLaunch):
        geometry = launch
    elif defaults:
        geometry = launch.geometry(defaults)
    else:
        geometry = FixedLaunch(
            grid=(1, 1, 1),
            threadgroup=launch.threadgroup,
            dynamic_shared_memory_bytes=launch.dynamic_shared_memory_bytes,
        )
    return LaunchResourcePlan(candidates=(LaunchResourceCandidate(geometry=geometry),))
