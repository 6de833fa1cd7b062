"""Wrong values for every field of every value class: the table of test_bad_input.

Each entry is a field as ``Class.field`` and values that it must refuse.
"""

from __future__ import annotations

import math

import numpy as np

from accy_async.artifact import (
    ArtifactFormat,
    BackendKind,
    DType,
    KernelBuffer,
    RuntimeCeilDiv,
    ScalarArgument,
)
from tests.values.samples import (
    ARTIFACT,
    BINDING,
    BUFFER,
    ENTRY,
    FIXED,
    KERNEL_BUFFER,
    LOADED,
    PARAMETER,
    SIGNATURE,
    STAGE,
    STREAM,
)

__all__ = ["WRONG"]

_Wrong = tuple[object, ...]
_NAN, _INF = math.nan, math.inf
_NO_INT = (None, True, False, 1.0, _NAN, "1", b"1", (1,), np.int64(1), np.ones(2))
_NO_OPTIONAL_INT = _NO_INT[1:]
_U32 = (*_NO_INT, -1, 2**32)
_INDEX = _U32
_POSITIVE = (*_U32, 0)
_COUNT_4096 = (*_NO_INT, -1, 4097)
_U63 = (*_NO_INT, -1, 2**63)
_U64 = (*_NO_INT, -1, 2**64)
_FLAG = (None, 0, 1, "True", 1.0, np.bool_(True))
_TEXT = (None, True, 1, b"name", ("name",), "")
_ANY_TEXT = _TEXT[:-1]
_OPTIONAL_TEXT = _TEXT[1:]
_DIM3 = (
    *(None, 1, True, "111", b"111", bytearray(3), {1, 2, 3}, {1: 1, 2: 2, 3: 3}),
    *((), (1, 1), (1, 1, 1, 1), (1, True, 1), (1, 1.0, 1), (1, "1", 1), (1, None, 1)),
    *((1, -1, 1), (1, 1, 2**32), (1, _NAN, 1), np.array(1), np.array([1, 1, 1])),
)
_THREADGROUP = (*_DIM3, (1, 0, 1))
_CLUSTER = _THREADGROUP[1:]
_TUPLE_DIM3 = (*_THREADGROUP, [1, 1, 1])
_FORMAT = (
    None,
    True,
    1,
    "",
    "ptx",
    "CUDA_PTX",
    b"cuda_ptx",
    BackendKind.CUDA,
    np.ones(2),
)
_BACKEND = (None, True, 1, "", "opencl", "CUDA", ArtifactFormat.CUDA_PTX, np.ones(2))
_DTYPE = (None, True, 1, "f32", "float32", np.float32, float, np.dtype("f4"))
_DTYPES: _Wrong = (
    None,
    1,
    "f32",
    {"f32"},
    [DType.F32, None],
    ([],),
    {DType.F32: 1},
    {1: 2},
)
_FROZEN_DTYPES = (*_DTYPES, {DType.F32}, frozenset({"f32"}), frozenset({1}))
_PAYLOAD = (None, True, 1, "", b"", bytearray(b"code"), (b"code",))
_INSTANCE: _Wrong = (None, True, 1, "text", (), {}, FIXED.grid, object())
_OPTIONAL_INSTANCE = _INSTANCE[1:]
_SCALARS: _Wrong = (
    *(None, 1, "u32", b"u32", {1}, {}, ScalarArgument.u32(1)),
    *((1,), (None,), (ScalarArgument.u32(1), 1.5), (DType.U32,)),
)
_TUPLE_SCALARS = (*_SCALARS, [ScalarArgument.u32(1)])
_BINDINGS: _Wrong = (
    None,
    1,
    "text",
    b"x",
    {1},
    {},
    BINDING,
    (BUFFER,),
    (BINDING, None),
)
_VALUES: _Wrong = (None, 1, "text", b"x", {1}, {}, (1,), (None,), ("text",), object())

_SCALAR_1 = RuntimeCeilDiv(argument_index=1, divisor=1)

WRONG: dict[str, _Wrong] = {
    "ScalarArgument.dtype": _DTYPE,
    "ScalarArgument.value": (None, True, 1.0, _NAN, "1", -1, 2**32, np.ones(1)),
    # Geometry
    "Fixed.value": _U32,
    "RuntimeCeilDiv.argument_index": _INDEX,
    "RuntimeCeilDiv.divisor": _POSITIVE,
    "FixedLaunch.grid": _DIM3,
    "FixedLaunch.threadgroup": _THREADGROUP,
    "FixedLaunch.dynamic_shared_memory_bytes": _U32,
    "FixedLaunch.cluster": (*_CLUSTER, (2, 1, 1)),
    "FixedLaunch.cooperative": _FLAG,
    "DerivedLaunch.grid": (*_DIM3, (1, 1, 1), FIXED),
    "DerivedLaunch.threadgroup": _THREADGROUP,
    "DerivedLaunch.dynamic_shared_memory_bytes": _U32,
    "DerivedLaunch.cluster": _CLUSTER,
    "DerivedLaunch.cooperative": _FLAG,
    "KernelBuffer.dtype": _DTYPE,
    "KernelBuffer.access": (None, True, 1, "", "read", b"read_only"),
    "KernelBuffer.elements": (True, 1, "n", (), object()),
    # Shapes and resources
    "ShapeBounds.min": (*_U32, (1 << 20) + 1),
    "ShapeBounds.max": _U32,
    "ShapeBounds.multiple_of": _POSITIVE,
    "ShapeDimension.name": _TEXT,
    "ShapeDimension.runtime_scalar_argument_index": (*_NO_OPTIONAL_INT, -1, 2**32),
    "ShapeDimension.bounds": _INSTANCE,
    "ShapeProfile.name": _TEXT,
    "ShapeProfile.fingerprint": _U64,
    "ShapeProfile.dimensions": _VALUES,
    "LaunchResourceCandidate.geometry": (*_INSTANCE, ENTRY.launch),
    "LaunchResourceCandidate.registers_per_thread": (*_NO_OPTIONAL_INT, -1, 1025),
    "LaunchResourceCandidate.elements_per_thread": _POSITIVE,
    "LaunchResourceCandidate.label": _ANY_TEXT,
    "LaunchResourcePlan.candidates": (*_VALUES, ()),
    "LaunchResourcePlan.resource_class": (None, True, 1, "", "SCAN", "sort", b"scan"),
    "LaunchResourcePlan.fixed_threadgroup": _FLAG,
    # Requirements
    "DeviceFeatures.tensor_cores": _FLAG,
    "DeviceFeatures.async_copy": _FLAG,
    "DeviceFeatures.clusters": _FLAG,
    "DeviceFeatures.cooperative_launch": _FLAG,
    "DeviceFeatures.float_atomics": _FLAG,
    "DeviceFeatures.int64_atomics": _FLAG,
    "SubgroupFeatures.supported": (*_FLAG, False),
    "SubgroupFeatures.shuffle": _FLAG,
    "SubgroupFeatures.vote": _FLAG,
    "SubgroupFeatures.arithmetic": _FLAG,
    "SubgroupFeatures.size": (*_NO_OPTIONAL_INT, -1, 0, 1025),
    "PushConstants.byte_size": (*_NO_INT, -4, 2, (1 << 16) + 4),
    "PushConstants.offset_bytes": (*_NO_INT, -4, 6, (1 << 16) + 4),
    # Artifacts and entries
    "ArtifactRequest.kernel_name": _TEXT,
    "ArtifactRequest.requested_format": _FORMAT,
    "ArtifactRequest.argument_count": _COUNT_4096,
    "ArtifactRequest.payload": _PAYLOAD,
    "ArtifactRequest.scalar_argument_count": (*_COUNT_4096, 6),
    "ArtifactRequest.required_dtypes": _DTYPES,
    "ArtifactRequest.required_features": _INSTANCE,
    "ArtifactRequest.required_subgroup": _INSTANCE,
    "ArtifactRequest.push_constants": _OPTIONAL_INSTANCE,
    "ArtifactRequest.diagnostic_id": _OPTIONAL_TEXT,
    "KernelArtifact.kernel_name": _TEXT,
    "KernelArtifact.format": _FORMAT,
    "KernelArtifact.argument_count": _COUNT_4096,
    "KernelArtifact.scalar_argument_count": (*_COUNT_4096, 6),
    "KernelArtifact.payload": _PAYLOAD,
    "KernelArtifact.push_constants": _OPTIONAL_INSTANCE,
    "KernelArtifact.diagnostic_id": _OPTIONAL_TEXT,
    "KernelCallArtifact.target": _TEXT,
    "KernelCallArtifact.version": _U32,
    "KernelCallArtifact.format": _FORMAT,
    "KernelCallArtifact.entry_name": _TEXT,
    "KernelCallArtifact.argument_count": (*_COUNT_4096, 2),
    "KernelCallArtifact.payload": _PAYLOAD,
    "KernelCallArtifact.launch": (*_INSTANCE, (1, 1, 1)),
    "KernelCallArtifact.runtime_scalar_argument_count": _COUNT_4096,
    "KernelCallArtifact.required_dtypes": _DTYPES,
    "KernelCallArtifact.static_arguments": _SCALARS,
    "KernelCallArtifact.element_count_argument": (None, True, 0, "", "u32", b"none"),
    "KernelCallArtifact.runtime_scalar_defaults": (
        *_SCALARS,
        (ScalarArgument.u32(1), ScalarArgument.u32(2)),
    ),
    "KernelCallArtifact.shape_profile": _OPTIONAL_INSTANCE,
    "KernelCallArtifact.shape_family_fingerprint": _U64,
    "KernelCallArtifact.launch_resources": _OPTIONAL_INSTANCE,
    "KernelCallArtifact.required_features": _INSTANCE,
    "KernelCallArtifact.required_subgroup": _INSTANCE,
    "KernelCallArtifact.push_constants": _OPTIONAL_INSTANCE,
    "KernelCallArtifact.buffers": (
        *_VALUES,
        (KERNEL_BUFFER,),
        (KERNEL_BUFFER,) * 3,
        (KernelBuffer(dtype=DType.F32, access="read_only", elements=_SCALAR_1),) * 2,
    ),
    # Handles, devices, launches
    "BufferHandle.id": _U63,
    "BufferHandle.backend": _BACKEND,
    "BufferHandle.byte_size": _U63,
    "BufferHandle.ownership": (None, True, 1, "", "caller", b"backend"),
    "BufferBinding.handle": (*_INSTANCE, LOADED),
    "BufferBinding.access": (None, True, 1, "", "read", b"read_only"),
    "BufferBinding.byte_size": (*_U63, 1025),
    "LoadedArtifact.id": _U63,
    "LoadedArtifact.backend": _BACKEND,
    "LoadedArtifact.kernel_name": _ANY_TEXT,
    "BufferHandle.is_read_only": _FLAG,
    "BufferHandle.origin": _OPTIONAL_INSTANCE,
    "LoadedArtifact.origin": _OPTIONAL_INSTANCE,
    "StreamHandle.origin": _OPTIONAL_INSTANCE,
    "EventHandle.origin": _OPTIONAL_INSTANCE,
    "GraphHandle.id": _U63,
    "GraphHandle.backend": _BACKEND,
    "GraphHandle.origin": _OPTIONAL_INSTANCE,
    "StreamHandle.id": _U63,
    "StreamHandle.backend": _BACKEND,
    "StreamHandle.priority": (*_NO_INT, -(2**31) - 1, 2**31),
    "EventHandle.id": _U63,
    "EventHandle.backend": _BACKEND,
    "EventHandle.has_timing": _FLAG,
    "DeviceIdentity.backend": _BACKEND,
    "DeviceIdentity.name": _TEXT,
    "DeviceIdentity.vendor": _ANY_TEXT,
    "DeviceIdentity.architecture": _ANY_TEXT,
    "DeviceIdentity.compute_units": _U63,
    "DeviceIdentity.memory_bytes": _U63,
    "DeviceIdentity.driver": _ANY_TEXT,
    "DeviceIdentity.index": _INDEX,
    "Capabilities.identity": _INSTANCE,
    "Capabilities.device_graphs": _FLAG,
    "Capabilities.device_loops": _FLAG,
    "Capabilities.formats": (
        *(None, 1, "cuda_ptx", {ArtifactFormat.CUDA_PTX}, (ArtifactFormat.CUDA_PTX,)),
        *(frozenset({"cuda_ptx"}), frozenset({BackendKind.CUDA}), frozenset({None})),
    ),
    "Capabilities.dtypes": _FROZEN_DTYPES,
    "Capabilities.features": _INSTANCE,
    "Capabilities.subgroup": _INSTANCE,
    "Capabilities.max_threads_per_block": _POSITIVE,
    "Capabilities.max_threadgroup": _TUPLE_DIM3,
    "Capabilities.max_grid": _TUPLE_DIM3,
    "Capabilities.max_shared_memory_bytes": _U63,
    "Capabilities.max_cluster_blocks": _POSITIVE,
    "Capabilities.max_push_constant_bytes": _U32,
    "Capabilities.priorities": (
        *(None, 0, "00", [0, 0], (), (0,), (0, 0, 0), (0, None), (True, False)),
        *((0.0, -1.0), (0, -(2**31) - 1), (2**31, 0), (-2, 2), (0, 1)),
    ),
    "Capabilities.max_streams": _POSITIVE,
    "Capabilities.timing_resolution_ns": (None, True, "1", -1, -0.5, _NAN, _INF, 1j),
    "LaunchRequest.artifact": (*_INSTANCE, LOADED),
    "LaunchRequest.loaded": (*_INSTANCE, ARTIFACT),
    "LaunchRequest.geometry": (*_INSTANCE, ENTRY.launch),
    "LaunchRequest.buffers": (*_BINDINGS, [BINDING]),
    "LaunchRequest.scalars": _TUPLE_SCALARS,
    "LaunchRequest.stream": (*_OPTIONAL_INSTANCE, BUFFER),
    "LaunchRequest.diagnostic_id": _OPTIONAL_TEXT,
    # Pipelines
    "Operand.index": _INDEX,
    "Result.index": _INDEX,
    "Intermediate.index": _INDEX,
    "Forward.argument_index": _INDEX,
    "CeilDiv.argument_index": _INDEX,
    "CeilDiv.divisor": _POSITIVE,
    "PipelineIntermediate.dtype": _DTYPE,
    "PipelineIntermediate.extent": _INSTANCE,
    "PipelineStage.target": _TEXT,
    "PipelineStage.version": _U32,
    "PipelineStage.buffers": (*_VALUES, (BUFFER,), (BINDING,)),
    "PipelineStage.scalars": (*_VALUES, (ScalarArgument.u32(1),)),
    "RuntimeScalarBound.argument_index": _INDEX,
    "RuntimeScalarBound.max_u32": _U32,
    "KernelCallPipeline.target": _TEXT,
    "KernelCallPipeline.version": _U32,
    "KernelCallPipeline.operand_count": _COUNT_4096,
    "KernelCallPipeline.result_count": _COUNT_4096,
    "KernelCallPipeline.stages": (*_VALUES, STAGE),
    "KernelCallPipeline.intermediates": _VALUES,
    "KernelCallPipeline.runtime_scalar_argument_count": _COUNT_4096,
    "KernelCallPipeline.runtime_scalar_bounds": _VALUES,
    "PipelineLaunch.pipeline": _INSTANCE,
    "PipelineLaunch.registry": (*_INSTANCE, (ENTRY,)),
    "PipelineLaunch.format": _FORMAT,
    "PipelineLaunch.operands": _BINDINGS,
    "PipelineLaunch.results": _BINDINGS,
    "PipelineLaunch.runtime_scalar_arguments": _SCALARS,
    "PipelineLaunch.intermediates": (1, "", "text", b"", {1}, {}, (1,), (BUFFER,)),
    "PipelineLaunch.artifacts": (*_OPTIONAL_INSTANCE, (LOADED,)),
    "PipelineLaunch.stream": (*_OPTIONAL_INSTANCE, BUFFER),
    "PipelineLaunch.diagnostic_id": _OPTIONAL_TEXT,
    "LoadedKernel.artifact": (*_INSTANCE, LOADED),
    "LoadedKernel.loaded": (*_INSTANCE, STREAM),
    # Native signatures
    "BufferParameter.dtype": _DTYPE,
    "BufferParameter.access": (None, True, 1, "", "read", b"read_only", np.ones(2)),
    "KernelSignature.entry_name": (*_TEXT, "1st", "a b", "a\n", "naïve", "a\0"),
    "KernelSignature.buffers": (None, [PARAMETER], PARAMETER, (DType.F32,), (None,)),
    "KernelSignature.scalars": (None, [DType.F32], "f32", ("f32",), (None,)),
    "KernelSignature.threadgroup": _TUPLE_DIM3,
    "KernelSignature.shared_bytes": (*_NO_INT, -1, (1 << 30) + 1),
    "SignatureTable.architecture": (None, True, 1, "", "x86", b"x86_64", np.ones(2)),
    "SignatureTable.level": _TEXT,
    "SignatureTable.kernels": (None, [SIGNATURE], SIGNATURE, (PARAMETER,), (None,)),
}
