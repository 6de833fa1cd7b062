"""Artifact plans made by hand: of text that the recording backend loads."""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.artifact import (
    ArtifactFormat,
    ArtifactPlan,
    CompileLaunch,
    DType,
    ElementCountArgument,
    FixedLaunch,
    KernelArtifact,
    KernelCallLaunch,
    KernelSource,
    LaunchResourceCandidate,
    LaunchResourcePlan,
    PlannedArgument,
    PlannedKernel,
    PlannedSlot,
    ScalarArgument,
    SlotRole,
)
from accy_async.fragment import CompiledFragment

__all__ = ["ADD", "CHAIN", "SCALED", "UPDATE", "add_of", "kernel", "slot"]

READ, WRITE, BOTH = "read_only", "write_only", "read_write"


def slot(
    slot_id: int,
    role: SlotRole,
    shape: tuple[int, ...] = (8,),
    data: bytes | None = None,
    *,
    is_bound: bool = True,
) -> PlannedSlot:
    """A slot of f32."""
    return PlannedSlot(
        slot_id=slot_id,
        role=role,
        dtype=DType.F32,
        shape=shape,
        data=data,
        is_bound=is_bound,
    )


def kernel(
    kernel_id: int,
    *arguments: tuple[int, str],
    name: str = "",
    counted: ElementCountArgument = ElementCountArgument.BUFFER_U32,
    statics: Sequence[ScalarArgument] = (),
    runtime: int = 0,
    defaults: Sequence[ScalarArgument] = (),
    launch: KernelCallLaunch | None = None,
    format: ArtifactFormat = ArtifactFormat.CUDA_PTX,
) -> PlannedKernel:
    """A kernel of 8 elements, with two candidates."""
    name = name or f"kernel_{kernel_id}"
    scalars = runtime + len(statics) + (counted is ElementCountArgument.SCALAR_U32)
    buffers = len(arguments) + (counted is ElementCountArgument.BUFFER_U32)
    first = FixedLaunch(grid=(1, 1, 1), threadgroup=(32, 1, 1))
    second = FixedLaunch(grid=(2, 1, 1), threadgroup=(4, 1, 1))
    return PlannedKernel(
        kernel_id=kernel_id,
        work_item_id=10 + kernel_id,
        source=KernelSource.TENSOR,
        compile_launch=CompileLaunch.ELEMENTWISE,
        artifact=KernelArtifact(
            kernel_name=name,
            format=format,
            argument_count=buffers + scalars,
            scalar_argument_count=scalars,
            payload=f".visible .entry {name}() {{ ret; }}",
        ),
        arguments=tuple(
            PlannedArgument(slot_id=slot_id, access=access)
            for slot_id, access in arguments
        ),
        element_count=8,
        element_count_argument=counted,
        static_arguments=statics,
        runtime_scalar_argument_count=runtime,
        runtime_scalar_defaults=defaults,
        launch=launch or first,
        launch_resources=LaunchResourcePlan(
            candidates=(
                LaunchResourceCandidate(geometry=first),
                LaunchResourceCandidate(geometry=second),
            ),
            fixed_threadgroup=False,
        ),
    )


def _plan(
    name: str,
    slots: Sequence[PlannedSlot],
    kernels: Sequence[PlannedKernel],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> CompiledFragment:
    plan = ArtifactPlan(
        name=name,
        format=ArtifactFormat.CUDA_PTX,
        slots=slots,
        kernels=kernels,
        input_slot_ids=inputs,
        output_slot_ids=outputs,
    )
    return CompiledFragment(plan)


def add_of(**options: object) -> CompiledFragment:
    """A fragment of one kernel of two inputs, made with options."""
    return _plan(
        "add",
        (
            slot(0, SlotRole.INPUT),
            slot(1, SlotRole.INPUT),
            slot(2, SlotRole.OUTPUT),
        ),
        (kernel(0, (2, WRITE), (0, READ), (1, READ), **options),),  # type: ignore[arg-type]
        (0, 1),
        (2,),
    )


ADD = add_of()
"""One kernel, which takes its element count in a buffer."""

SCALED = add_of(
    counted=ElementCountArgument.SCALAR_U32,
    statics=(ScalarArgument.u32(7),),
    runtime=1,
)
"""One that takes it as a scalar, before one that each launch brings."""

CHAIN = _plan(
    "chain",
    (
        slot(0, SlotRole.INPUT),
        slot(1, SlotRole.CONSTANT, data=bytes(32)),
        slot(2, SlotRole.CONSTANT, data=bytes(32), is_bound=False),
        slot(3, SlotRole.SCRATCH),
        slot(4, SlotRole.SCRATCH),
        slot(5, SlotRole.OUTPUT),
    ),
    (
        kernel(0, (3, WRITE), (0, READ), (1, READ)),
        kernel(1, (4, WRITE), (0, READ), (0, READ), name="again"),
        kernel(2, (5, WRITE), (3, READ), (4, READ), name="again"),
        kernel(3, (5, BOTH), counted=ElementCountArgument.NONE),
    ),
    (0,),
    (5, 0, 2, 5),
)
"""Four kernels of three codes. Results: written, an input, a constant, one again."""

UPDATE = _plan(
    "update",
    (slot(0, SlotRole.INPUT),),
    (kernel(0, (0, BOTH), (0, READ), counted=ElementCountArgument.NONE),),
    (0,),
    (0,),
)
"""One that writes over its input, which is its result."""
