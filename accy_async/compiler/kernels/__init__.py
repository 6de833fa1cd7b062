"""The kernel library: ready-made kernels, device-neutral."""

from accy_async.compiler.kernels.elementwise import (
    ARITHMETIC_DTYPES,
    add,
    axpy,
    copy,
    fill,
)
from accy_async.compiler.kernels.library import TILE, LibraryKernel
from accy_async.compiler.kernels.linalg import (
    MATRIX_PRODUCT_FAMILY,
    MATRIX_PRODUCT_FAMILY_VERSION,
    MatrixProduct,
    MatrixProductRequest,
    OwnedCatalogDescriptor,
    create_owned_kernel_call_artifact_registry,
    matrix_product_candidates,
    matrix_product_family_target,
    select_owned,
)
from accy_async.compiler.kernels.pipelines import LIBRARY_VERSION, scan_pipeline
from accy_async.compiler.kernels.scan import (
    MAX_SCAN_LENGTH,
    SCAN_DTYPES,
    SCAN_TILE,
    reference_scan,
    scan_additions,
    sums_scan,
    tile_scan,
    tile_sums,
)
from accy_async.compiler.kernels.vectors import Axpy8F32, VectorAdd8F32, VectorKernel

__all__ = [
    "MATRIX_PRODUCT_FAMILY",
    "MATRIX_PRODUCT_FAMILY_VERSION",
    "Axpy8F32",
    "MatrixProduct",
    "MatrixProductRequest",
    "OwnedCatalogDescriptor",
    "VectorAdd8F32",
    "VectorKernel",
    "create_owned_kernel_call_artifact_registry",
    "matrix_product_candidates",
    "matrix_product_family_target",
    "select_owned",
    "ARITHMETIC_DTYPES",
    "LIBRARY_VERSION",
    "MAX_SCAN_LENGTH",
    "SCAN_DTYPES",
    "SCAN_TILE",
    "TILE",
    "LibraryKernel",
    "add",
    "axpy",
    "copy",
    "fill",
    "reference_scan",
    "scan_additions",
    "scan_pipeline",
    "sums_scan",
    "tile_scan",
    "tile_sums",
]
