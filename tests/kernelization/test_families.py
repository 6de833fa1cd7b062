"""Families of ready-made kernels: names, selection, registries, code that runs."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.native.abi import LaunchBlock
from accy_async.artifact.native.loader import load_machine_code, load_object
from accy_async.artifact.planned import CompileLaunch, KernelSource
from accy_async.compiler.kernelization.schedules import (
    MatrixProductSchedule,
    matrix_product_threads_for_extents,
)
from accy_async.compiler.kernels import (
    MATRIX_PRODUCT_FAMILY_VERSION,
    Axpy8F32,
    MatrixProduct,
    MatrixProductRequest,
    OwnedCatalogDescriptor,
    VectorAdd8F32,
    create_owned_kernel_call_artifact_registry,
    matrix_product_candidates,
    matrix_product_family_target,
    select_owned,
)
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import InvalidValue
from tests.kernelization.harness import CPU, CUDA

PROBE = MatrixProduct(m=5, n=7, k=3)


def request(**changes: object) -> MatrixProductRequest:
    given: dict[str, object] = {
        "dtype": DType.F32,
        "lhs_indices": "mk",
        "rhs_indices": "kn",
        "output_indices": "mn",
        "lhs_dims": (5, 3),
        "rhs_dims": (3, 7),
        "output_dims": (5, 7),
    }
    return MatrixProductRequest(**{**given, **changes})  # type: ignore[arg-type]


def test_names_say_problem_and_thread_block() -> None:
    targets = [
        matrix_product_family_target(p) for p in matrix_product_candidates(PROBE)
    ]
    assert len(set(targets)) == len(targets) >= 2
    assert targets[0] == "accy.kernel.matrix_product.f32.5x7x3.t16x16"
    assert matrix_product_family_target(PROBE) == targets[0]
    narrow = MatrixProduct(m=1, n=2, k=3, dtype=DType.F16, accumulation_dtype=DType.F16)
    assert ".f16.1x2x3.in_f16.t" in matrix_product_family_target(narrow)
    with pytest.raises(InvalidValue, match="sums"):
        MatrixProduct(m=1, n=1, k=1, dtype=DType.BOOL)


def test_selection_by_letters() -> None:
    for candidate in matrix_product_candidates(PROBE):
        assert candidate.threads is not None
        schedule = MatrixProductSchedule(thread_blocks=candidate.threads)
        chosen = select_owned(request(schedule=schedule))
        assert chosen == OwnedCatalogDescriptor(product=candidate)
        assert chosen.target() == matrix_product_family_target(candidate)
    heuristic = select_owned(request())
    assert heuristic is not None
    assert heuristic.product.schedule(CUDA.backend).thread_blocks == (
        matrix_product_threads_for_extents(5, 7)
    )
    for changes in (
        {"lhs_indices": "km", "lhs_dims": (3, 5)},
        {"output_indices": "nm", "output_dims": (7, 5)},
        {"rhs_indices": "km"},
        {"rhs_dims": (4, 7)},
        {"lhs_dims": (5,)},
        {"dtype": DType.BOOL},
    ):
        assert select_owned(request(**changes)) is None


def test_registries_hold_every_thread_block() -> None:
    descriptors = [
        OwnedCatalogDescriptor(product=p) for p in matrix_product_candidates(PROBE)
    ]
    registry = create_owned_kernel_call_artifact_registry(CUDA, descriptors)
    for descriptor in descriptors:
        entry = registry.find(
            descriptor.target(), MATRIX_PRODUCT_FAMILY_VERSION, ArtifactFormat.CUDA_PTX
        )
        assert entry is not None
        assert entry.argument_count == 3
        threads = descriptor.product.threads
        assert threads is not None
        assert entry.launch.threadgroup == (threads.x, threads.y, 1)
        assert entry.entry_name in str(entry.payload)
    with pytest.raises(InvalidValue, match="no other entry"):
        create_owned_kernel_call_artifact_registry(CUDA, descriptors[:1] * 2)


def test_a_products_code_runs() -> None:
    (first, *_) = matrix_product_candidates(PROBE)
    entry = OwnedCatalogDescriptor(product=first).entry(CPU)
    a = np.arange(15, dtype=np.float32).reshape(5, 3)
    b = np.arange(21, dtype=np.float32).reshape(3, 7)
    out = np.zeros((5, 7), np.float32)
    call(entry.payload, entry.entry_name, [out, a, b], (), entry.launch)
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize("format", ["cpu_object", "cpu_machine_code"])
def test_vectors_of_eight(format: str) -> None:
    entry = Axpy8F32.create_kernel_call_artifact(format)
    assert entry.argument_count == 11
    assert entry.runtime_scalar_argument_count == 1
    assert len(entry.static_arguments) == 7
    x, y = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    out = np.zeros(8, np.float32)
    scalars = (ScalarArgument.f32(2.0), *entry.static_arguments)
    call(entry.payload, entry.entry_name, [out, x, y], scalars, entry.launch)
    np.testing.assert_array_equal(out, 2 * x + y)

    plan = VectorAdd8F32.artifact_plan(format, diagnostic_id="a/name")
    (kernel,) = plan.kernels
    assert kernel.artifact.argument_count == 10
    assert kernel.source is KernelSource.AUTHORED
    assert kernel.compile_launch is CompileLaunch.AUTHORED
    assert kernel.launch_resources.fixed_threadgroup
    assert kernel.launch_resources.geometry.grid == (2, 1, 1)
    assert kernel.launch_resources.geometry.threadgroup == (4, 1, 1)
    assert len(kernel.static_arguments) == 7
    assert kernel.diagnostic_id == "a/name"
    call(
        kernel.artifact.payload,
        kernel.entry_name,
        [out, x, y],
        kernel.static_arguments,
        kernel.launch,
    )
    np.testing.assert_array_equal(out, x + y)


def test_vectors_with_offsets_and_strides() -> None:
    entry = VectorAdd8F32.create_kernel_call_artifact("cpu_machine_code")
    x, y = np.arange(30, dtype=np.float32), np.arange(30, 60, dtype=np.float32)
    out = np.zeros(20, np.float32)
    layout = map(ScalarArgument.u32, (5, 2, 3, 1, 4, 7, 2))
    call(entry.payload, entry.entry_name, [out, x, y], tuple(layout), entry.launch)
    expected = np.zeros(20, np.float32)
    expected[2:17:3] = x[1:21:4] + y[7:17:2]
    np.testing.assert_array_equal(out, expected)


def call(
    payload: object,
    name: str,
    arrays: list[np.ndarray],
    scalars: tuple[ScalarArgument, ...],
    launch: object,
) -> None:
    """Run a kernel's native code once over its whole grid."""
    geometry = launch.geometry(())  # type: ignore[attr-defined]
    assert isinstance(payload, bytes)
    is_object = payload[16:18] == b"\x01\x00"  # ELF's e_type: ET_REL
    load = load_object if is_object else load_machine_code
    loaded = load(payload, name)
    try:
        slots = [a.ctypes.data for a in arrays] + [s.slot for s in scalars]
        packed = (ctypes.c_uint64 * len(slots))(*slots)
        block = LaunchBlock(
            grid=geometry.grid,
            threadgroup=geometry.threadgroup,
            block_begin=0,
            block_end=geometry.block_count,
        )
        status = loaded.function(ctypes.addressof(packed), ctypes.byref(block))
        assert status == 0
    finally:
        loaded.close()
