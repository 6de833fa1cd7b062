"""The kernel library: ready-made kernels, device-neutral."""

from accy_async.compiler.kernels.elementwise import (
    ARITHMETIC_DTYPES,
    add,
    axpy,
    copy,
    fill,
)
from accy_async.compiler.kernels.library import TILE, LibraryKernel
from accy_async.compiler.kernels.pipelines import LIBRARY_VERSION, scan_pipeline
from accy_async.compiler.kernels.scan import (
    MAX_SCAN_LENGTH,
    SCAN_DTYPES,
    add_base,
    block_scan,
    reference_scan,
    scan_additions,
    sums_scan,
)

__all__ = [
    "ARITHMETIC_DTYPES",
    "LIBRARY_VERSION",
    "MAX_SCAN_LENGTH",
    "SCAN_DTYPES",
    "TILE",
    "LibraryKernel",
    "add",
    "add_base",
    "axpy",
    "block_scan",
    "copy",
    "fill",
    "reference_scan",
    "scan_additions",
    "scan_pipeline",
    "sums_scan",
]
