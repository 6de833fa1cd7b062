"""Pipelines: ready-made chains of kernels with scratch buffers between the stages."""

from accy_async.artifact.entry import KernelCallArtifact, KernelCallRegistry
from accy_async.artifact.geometry import (
    DerivedLaunch,
    Fixed,
    FixedLaunch,
    RuntimeCeilDiv,
)
from accy_async.pipeline.graph import add_pipeline
from accy_async.pipeline.intermediates import (
    PipelineIntermediates,
    allocate_pipeline_intermediates,
    intermediate_byte_size,
)
from accy_async.pipeline.launch import launch_pipeline, submit_pipeline
from accy_async.pipeline.model import (
    BufferRef,
    CeilDiv,
    Derivation,
    Forward,
    Intermediate,
    KernelCallPipeline,
    Operand,
    PipelineIntermediate,
    PipelineStage,
    Result,
    RuntimeScalarBound,
)
from accy_async.pipeline.pool import (
    PipelineArtifactPool,
    PoolEntry,
    load_pipeline_artifacts,
)
from accy_async.pipeline.request import PipelineLaunch

__all__ = [
    "BufferRef",
    "CeilDiv",
    "Derivation",
    "DerivedLaunch",
    "Fixed",
    "FixedLaunch",
    "Forward",
    "Intermediate",
    "KernelCallArtifact",
    "KernelCallPipeline",
    "KernelCallRegistry",
    "Operand",
    "PipelineArtifactPool",
    "PipelineIntermediate",
    "PipelineIntermediates",
    "PipelineLaunch",
    "PipelineStage",
    "PoolEntry",
    "Result",
    "RuntimeCeilDiv",
    "RuntimeScalarBound",
    "add_pipeline",
    "allocate_pipeline_intermediates",
    "intermediate_byte_size",
    "launch_pipeline",
    "load_pipeline_artifacts",
    "submit_pipeline",
]
