"""The kernel library: ready-made kernels, device-neutral."""

from accy_async.compiler.kernels.elementwise import (
    ARITHMETIC_DTYPES,
    add,
    axpy,
    copy,
    fill,
)
from accy_async.compiler.kernels.library import TILE, LibraryKernel
from accy_async.compiler.kernels.scan import (
    SCAN_DTYPES,
    add_base,
    block_scan,
    reference_scan,
    scan_additions,
    sums_scan,
)

__all__ = [
    "ARITHMETIC_DTYPES",
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
    "sums_scan",
]
