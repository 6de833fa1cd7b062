"""Planned kernels made by hand, with launch candidates to choose from."""

from __future__ import annotations

from typing import Any

from accy_async.artifact import (
    ArtifactFormat,
    CompileLaunch,
    FixedLaunch,
    KernelArtifact,
    KernelSource,
    LaunchResourceCandidate,
    LaunchResourcePlan,
    PlannedArgument,
    PlannedKernel,
)
from accy_async.artifact.tiles import (
    LaunchReduction,
    LaunchReductionKind,
    LaunchTile,
    LaunchTileKind,
)
from accy_async.backends.capabilities import Capabilities
from accy_async.backends.recording import RecordingBackend
from accy_async.dtypes import DType
from accy_async.tuning.choice import LaunchCandidateMeasurement
from accy_async.tuning.launches import (
    LaunchCandidateRecord,
    LaunchTuningCacheKey,
    LaunchTuningCacheRecord,
    launch_candidate_record,
)

__all__ = [
    "CAPABILITIES",
    "REDUCTION_TILE",
    "cache_record",
    "candidate_record",
    "kernel",
    "measurement",
]

CAPABILITIES: Capabilities = RecordingBackend().capabilities

REDUCTION_TILE = LaunchTile(
    kind=LaunchTileKind.REDUCTION,
    m=32,
    n=256,
    input_dtype=DType.F32,
    output_dtype=DType.F32,
    input_tile_bytes=32768,
    output_tile_bytes=128,
    reduction=LaunchReduction(kind=LaunchReductionKind.SUM, rank=1, axis=0, extent=256),
)
"""Sums 256 elements into each of 32 results."""


def kernel(
    number: int = 0, widths: tuple[int, ...] = (32, 64, 128), **more: Any
) -> PlannedKernel:
    """``out = left + right`` of 8 elements, with a candidate for each width."""
    more.setdefault("payload", "code")
    candidates = tuple(
        LaunchResourceCandidate(
            geometry=FixedLaunch(
                grid=(-(-8 // width), 1, 1), threadgroup=(width, 1, 1)
            ),
            label=f"{width} threads",
        )
        for width in widths
    )
    more.setdefault(
        "arguments",
        (
            PlannedArgument(slot_id=2, access="write_only"),
            PlannedArgument(slot_id=0, access="read_only"),
            PlannedArgument(slot_id=1, access="read_only"),
        ),
    )
    payload = more.pop("payload")
    return PlannedKernel(
        **{
            "kernel_id": number,
            "work_item_id": 10 + number,
            "source": KernelSource.TENSOR,
            "compile_launch": CompileLaunch.ELEMENTWISE,
            "artifact": KernelArtifact(
                kernel_name=f"add_{number}",
                format=ArtifactFormat.CUDA_PTX,
                argument_count=len(more["arguments"]),
                scalar_argument_count=0,
                payload=payload,
            ),
            "element_count": 8,
            "launch": candidates[0].geometry,
            "launch_resources": LaunchResourcePlan(
                candidates=candidates, fixed_threadgroup=False
            ),
            "output_layout_fingerprint": 7,
            "input_layout_fingerprint": 8,
            **more,
        }
    )


def measurement(
    index: int, median_ns: int, sample_count: int = 8, kernel_id: int = 0
) -> LaunchCandidateMeasurement:
    """What a candidate took."""
    return LaunchCandidateMeasurement(
        kernel_id=kernel_id,
        candidate_index=index,
        median_ns=median_ns,
        sample_count=sample_count,
    )


def candidate_record(
    of: PlannedKernel, index: int, median_ns: int, sample_count: int = 8
) -> LaunchCandidateRecord:
    """A measured candidate of a kernel."""
    return launch_candidate_record(
        of,
        of.launch_resources.candidate(index),
        measurement(index, median_ns, sample_count, of.kernel_id),
    )


def cache_record(
    of: PlannedKernel,
    index: int,
    median_ns: int,
    sample_count: int = 8,
    capabilities: Capabilities = CAPABILITIES,
) -> LaunchTuningCacheRecord:
    """A kernel's winner."""
    return LaunchTuningCacheRecord(
        key=LaunchTuningCacheKey.of(capabilities, of),
        selection=measurement(index, median_ns, sample_count, of.kernel_id),
    )
