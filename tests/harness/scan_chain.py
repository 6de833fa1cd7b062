"""The seed's pipeline: a three-stage scan of 5000 elements in blocks of 64."""

from __future__ import annotations

from accy_async.artifact import ArtifactFormat, DType, ScalarArgument
from accy_async.backends import (
    BackendKind,
    BufferAccess,
    BufferBinding,
    BufferHandle,
    BufferOwnership,
)
from accy_async.pipeline import (
    CeilDiv,
    DerivedLaunch,
    Fixed,
    Forward,
    Intermediate,
    KernelCallArtifact,
    KernelCallPipeline,
    KernelCallRegistry,
    Operand,
    PipelineIntermediate,
    PipelineLaunch,
    PipelineStage,
    Result,
    RuntimeCeilDiv,
)

PTX = ArtifactFormat.CUDA_PTX
BLOCKS = RuntimeCeilDiv(argument_index=0, divisor=64)
ONE = Fixed(1)


def entry(
    target: str, argument_count: int, runtime_scalars: int, launch: DerivedLaunch
) -> KernelCallArtifact:
    return KernelCallArtifact(
        target=target,
        version=1,
        format=PTX,
        entry_name=target,
        argument_count=argument_count,
        payload=f"// {target}",
        launch=launch,
        runtime_scalar_argument_count=runtime_scalars,
    )


ENTRIES = (
    entry(
        "accy.kernel.test.block_scan",
        4,
        1,
        DerivedLaunch(grid=(BLOCKS, ONE, ONE), threadgroup=(64, 1, 1)),
    ),
    entry(
        "accy.kernel.test.sums_scan",
        3,
        1,
        DerivedLaunch(grid=(ONE, ONE, ONE), threadgroup=(96, 1, 1)),
    ),
    entry(
        "accy.kernel.test.add_base",
        3,
        1,
        DerivedLaunch(grid=(BLOCKS, ONE, ONE), threadgroup=(64, 1, 1)),
    ),
)

SUMS = PipelineIntermediate(
    dtype=DType.F32, extent=CeilDiv(argument_index=0, divisor=64)
)

PIPELINE = KernelCallPipeline(
    target="accy.kernel.test.device_scan",
    version=1,
    operand_count=1,
    result_count=1,
    runtime_scalar_argument_count=1,
    intermediates=(SUMS, SUMS),
    stages=(
        PipelineStage(
            target="accy.kernel.test.block_scan",
            version=1,
            buffers=(Result(0), Operand(0), Intermediate(0)),
            scalars=(Forward(0),),
        ),
        PipelineStage(
            target="accy.kernel.test.sums_scan",
            version=1,
            buffers=(Intermediate(1), Intermediate(0)),
            scalars=(CeilDiv(argument_index=0, divisor=64),),
        ),
        PipelineStage(
            target="accy.kernel.test.add_base",
            version=1,
            buffers=(Result(0), Intermediate(1)),
            scalars=(Forward(0),),
        ),
    ),
)

ARGS = (ScalarArgument.u32(5000),)


def binding(buffer_id: int) -> BufferBinding:
    return BufferBinding(
        handle=BufferHandle(
            id=buffer_id,
            backend=BackendKind.CUDA,
            byte_size=20000,
            ownership=BufferOwnership.BACKEND,
        ),
        access=BufferAccess.READ_WRITE,
        byte_size=20000,
    )


REGISTRY = KernelCallRegistry(ENTRIES)
OPERANDS = (binding(1001),)
RESULTS = (binding(1002),)
LAUNCH = PipelineLaunch(
    pipeline=PIPELINE,
    registry=REGISTRY,
    format=PTX,
    operands=OPERANDS,
    results=RESULTS,
    runtime_scalar_arguments=ARGS,
)
