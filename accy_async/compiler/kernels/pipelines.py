"""Ready-made pipelines of the library's kernels."""

from __future__ import annotations

from accy_async.compiler.kernels.scan import (
    MAX_SCAN_LENGTH,
    SCAN_DTYPES,
    SCAN_TILE,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue
from accy_async.pipeline.model import (
    CeilDiv,
    Forward,
    Intermediate,
    KernelCallPipeline,
    Operand,
    PipelineIntermediate,
    PipelineStage,
    Result,
    RuntimeScalarBound,
)

__all__ = ["LIBRARY_VERSION", "SCAN_TARGET", "scan_pipeline"]

LIBRARY_VERSION = 1
"""The version of every contract in the library."""

SCAN_TARGET = "accy.kernel.scan"
"""The name of the scan pipeline, and the prefix of its kernels' names."""


def scan_pipeline(dtype: DType = DType.F32) -> KernelCallPipeline:
    """``result[i] = operand[0] + ... + operand[i]``, in the order of `reference_scan`.

    Operand 0 and result 0 are arrays of ``dtype`` and may be one; the one runtime
    scalar is their length, a u32 of at most 2^31. Three stages: the tiles are added
    up, their sums scanned, and each tile is scanned onto the sum of those before it.
    Scratch: twice one element per tile of `SCAN_TILE`.

    Raises:
        InvalidValue: there are no scan kernels for the dtype.
    """
    if dtype not in SCAN_DTYPES:
        raise InvalidValue(
            "scan_pipeline.dtype", dtype, "one of " + ", ".join(map(str, SCAN_DTYPES))
        )
    tiles = CeilDiv(argument_index=0, divisor=SCAN_TILE)
    scratch = PipelineIntermediate(dtype=dtype, extent=tiles)
    return KernelCallPipeline(
        target=SCAN_TARGET,
        version=LIBRARY_VERSION,
        operand_count=1,
        result_count=1,
        stages=(
            PipelineStage(
                target=f"{SCAN_TARGET}.tile_sums",
                version=LIBRARY_VERSION,
                buffers=(Intermediate(0), Operand(0)),
                scalars=(Forward(0),),
            ),
            PipelineStage(
                target=f"{SCAN_TARGET}.sums_scan",
                version=LIBRARY_VERSION,
                buffers=(Intermediate(1), Intermediate(0)),
                scalars=(tiles,),
            ),
            PipelineStage(
                target=f"{SCAN_TARGET}.tile_scan",
                version=LIBRARY_VERSION,
                buffers=(Result(0), Operand(0), Intermediate(1)),
                scalars=(Forward(0),),
            ),
        ),
        intermediates=(scratch, scratch),
        runtime_scalar_argument_count=1,
        runtime_scalar_bounds=(
            RuntimeScalarBound(argument_index=0, max_u32=MAX_SCAN_LENGTH),
        ),
    )
