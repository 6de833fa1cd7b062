"""A value of every class that callers make, to change one field of at a time."""

from __future__ import annotations

import attrs

from accy_async.artifact import (
    ArtifactFormat,
    ArtifactPlan,
    BackendKind,
    DerivedLaunch,
    DeviceFeatures,
    DType,
    Fixed,
    FixedLaunch,
    KernelArtifact,
    KernelBuffer,
    KernelCallArtifact,
    KernelCallRegistry,
    LaunchReduction,
    LaunchResourceCandidate,
    LaunchResourcePlan,
    LaunchTile,
    PlannedArgument,
    PlannedKernel,
    PlannedSlot,
    PushConstants,
    RuntimeCeilDiv,
    ScalarArgument,
    ScalarBlock,
    ShapeBounds,
    ShapeDimension,
    ShapeProfile,
    SubgroupFeatures,
)
from accy_async.artifact.native.signature import (
    BufferParameter,
    KernelSignature,
    SignatureTable,
)
from accy_async.backends import (
    BufferBinding,
    BufferHandle,
    Capabilities,
    DeviceIdentity,
    EventHandle,
    GraphHandle,
    LaunchRequest,
    LoadedArtifact,
    StreamHandle,
)
from accy_async.pipeline import (
    CeilDiv,
    Forward,
    Intermediate,
    KernelCallPipeline,
    Operand,
    PipelineIntermediate,
    PipelineLaunch,
    PipelineStage,
    PoolEntry,
    Result,
    RuntimeScalarBound,
)

__all__ = ["ENTRY", "KERNEL_BUFFER", "PLANNED", "SAMPLES", "SLOT"]

FIXED = FixedLaunch(grid=(79, 1, 1), threadgroup=(64, 1, 1))
DERIVED = DerivedLaunch(
    grid=(RuntimeCeilDiv(argument_index=0, divisor=64), Fixed(1), Fixed(1)),
    threadgroup=(64, 1, 1),
)
KERNEL_BUFFER = KernelBuffer(
    dtype=DType.F32,
    access="read_only",
    elements=RuntimeCeilDiv(argument_index=0, divisor=1),
)
BOUNDS = ShapeBounds(min=1, max=1 << 20)
DIMENSION = ShapeDimension(name="n", runtime_scalar_argument_index=0, bounds=BOUNDS)
PROFILE = ShapeProfile(name="vector", fingerprint=7, dimensions=(DIMENSION,))
CANDIDATE = LaunchResourceCandidate(geometry=FIXED, registers_per_thread=32)
PLAN = LaunchResourcePlan(candidates=(CANDIDATE,))
ENTRY = KernelCallArtifact(
    target="accy.kernel.scale",
    version=1,
    format=ArtifactFormat.CUDA_PTX,
    entry_name="scale",
    argument_count=5,
    payload=".version 8.0",
    launch=DERIVED,
    runtime_scalar_argument_count=1,
    required_dtypes=frozenset({DType.F32}),
    static_arguments=(ScalarArgument.f32(2.0),),
    element_count_argument="scalar_u32",
    runtime_scalar_defaults=(ScalarArgument.u32(5000),),
    shape_profile=PROFILE,
    shape_family_fingerprint=11,
    launch_resources=PLAN,
    required_features=DeviceFeatures(async_copy=True),
    required_subgroup=SubgroupFeatures(supported=True, shuffle=True, size=32),
    push_constants=PushConstants(byte_size=8, offset_bytes=4),
)
REQUEST = ENTRY.artifact_request("scale[0]")
ARTIFACT = KernelArtifact.from_request(REQUEST)
REDUCTION = LaunchReduction(kind="sum", rank=1, axis=0, extent=256)
SLOT = PlannedSlot(
    slot_id=0, role="constant", dtype=DType.F32, shape=(2,), data=bytes(8)
)
ARGUMENT = PlannedArgument(slot_id=0, access="read_write")
PLANNED = PlannedKernel(
    kernel_id=0,
    work_item_id=0,
    source="kernel_call",
    compile_launch="kernel_call",
    artifact=ARTIFACT,
    arguments=(ARGUMENT, ARGUMENT),
    element_count_argument="scalar_u32",
    static_arguments=ENTRY.static_arguments,
    runtime_scalar_argument_count=1,
    runtime_scalar_defaults=ENTRY.runtime_scalar_defaults,
    launch=DERIVED,
    launch_resources=PLAN,
)
BUFFER = BufferHandle(id=1, backend=BackendKind.CUDA, byte_size=1024)
BINDING = BufferBinding(handle=BUFFER)
LOADED = LoadedArtifact(id=2, backend=BackendKind.CUDA, kernel_name="scale")
STREAM = StreamHandle(id=3, backend=BackendKind.CUDA)
IDENTITY = DeviceIdentity(backend=BackendKind.CUDA, name="H200", architecture="sm_90")
STAGE = PipelineStage(
    target="accy.kernel.scale",
    version=1,
    buffers=(Operand(0), Result(0), Intermediate(0)),
    scalars=(Forward(0), CeilDiv(argument_index=0, divisor=64)),
)
SCRATCH = PipelineIntermediate(
    dtype=DType.F32, extent=CeilDiv(argument_index=0, divisor=64)
)
BOUND = RuntimeScalarBound(argument_index=0, max_u32=5000)
PIPELINE = KernelCallPipeline(
    target="accy.pipeline.scale",
    version=1,
    operand_count=1,
    result_count=1,
    stages=(STAGE,),
    intermediates=(SCRATCH,),
    runtime_scalar_argument_count=1,
    runtime_scalar_bounds=(BOUND,),
)
PARAMETER = BufferParameter(DType.F32, "read_only")
SIGNATURE = KernelSignature("scale", (PARAMETER,), (DType.U32,), (64, 1, 1))

SAMPLES: dict[type[attrs.AttrsInstance], attrs.AttrsInstance] = {
    type(sample): sample
    for sample in (
        # artifact and dtypes
        ScalarArgument.u32(5000),
        Fixed(1),
        RuntimeCeilDiv(argument_index=0, divisor=64),
        FIXED,
        ENTRY.launch,
        KERNEL_BUFFER,
        BOUNDS,
        DIMENSION,
        PROFILE,
        CANDIDATE,
        PLAN,
        DeviceFeatures(),
        SubgroupFeatures(supported=True, shuffle=True),
        PushConstants(),
        ScalarBlock((DType.U32, DType.F64)),
        REQUEST,
        ARTIFACT,
        ENTRY,
        # plans
        REDUCTION,
        LaunchTile(kind="reduction", reduction=REDUCTION),
        SLOT,
        ARGUMENT,
        PLANNED,
        ArtifactPlan(
            name="scale",
            format=ArtifactFormat.CUDA_PTX,
            slots=(SLOT,),
            kernels=(PLANNED,),
            input_slot_ids=(),
            output_slot_ids=(0,),
        ),
        # backends
        BUFFER,
        BINDING,
        LOADED,
        STREAM,
        EventHandle(id=4, backend=BackendKind.CUDA),
        GraphHandle(id=5, backend=BackendKind.CUDA),
        IDENTITY,
        Capabilities(identity=IDENTITY, formats=frozenset({ArtifactFormat.CUDA_PTX})),
        LaunchRequest(artifact=ARTIFACT, loaded=LOADED, geometry=FIXED),
        # pipeline
        Operand(0),
        Result(0),
        Intermediate(0),
        Forward(0),
        CeilDiv(argument_index=0, divisor=64),
        SCRATCH,
        STAGE,
        BOUND,
        PIPELINE,
        PipelineLaunch(
            pipeline=PIPELINE,
            registry=KernelCallRegistry((ENTRY,)),
            format=ArtifactFormat.CUDA_PTX,
        ),
        PoolEntry(ARTIFACT, LOADED),
        # native signatures
        PARAMETER,
        SIGNATURE,
        SignatureTable("x86_64", "x86-64-v3", (SIGNATURE,)),
    )
}
