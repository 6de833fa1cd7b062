"""The printed CUDA C++ is taken by NVRTC as it stands, and nothing in it is fused."""

from __future__ import annotations

import re

import pytest

from accy_async.artifact.formats import ArtifactFormat
from accy_async.compiler.emit.text import emit_cuda
from accy_async.compiler.emit.versions import compiler_version
from accy_async.compiler.form import KernelBuilder, sqrt
from accy_async.compiler.kernelization import kernelize
from accy_async.compiler.kernelization.schedules import MatrixProductSchedule
from accy_async.compiler.kernels.catalogue import library_kernels
from accy_async.compiler.nvrtc import compile_cuda, nvrtc_version
from accy_async.dtypes import DType
from accy_async.errors import BackendUnavailable
from tests.compiler.harness import elementwise
from tests.compiler.test_emit_ptx import every_operation
from tests.kernelization.harness import function, item
from tests.kernelization.test_units import UNITS


def _reason() -> str:
    """Why nothing can be compiled here; empty where it can."""
    try:
        nvrtc_version()
    except BackendUnavailable as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(_reason()), reason=_reason() or "NVRTC is here")


def _ptx(text: str, *names: str) -> str:
    binary = compile_cuda(
        text,
        names,
        architecture="sm_80",
        format=ArtifactFormat.CUDA_PTX,
        cache=False,
    )
    payload = binary.payload
    return payload if isinstance(payload, str) else payload.decode()


def test_every_operation_on_every_dtype_compiles() -> None:
    kernels = every_operation()
    names = [kernel.name for kernel in kernels]
    text = _ptx(emit_cuda(kernels), *names)
    assert all(f".entry {name}(" in text for name in names)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_the_library_compiles_to_cubins(dtype: DType) -> None:
    kernels = [library.kernel for library in library_kernels(dtype)]
    names = [kernel.name for kernel in kernels]
    binary = compile_cuda(emit_cuda(kernels), names, architecture="sm_90", cache=False)
    assert isinstance(binary.payload, bytes)
    assert all(name.encode() in binary.payload for name in names)


def test_floats_are_rounded_as_written() -> None:
    kernel = elementwise(
        "mixed", [DType.F32] * 3, DType.F32, lambda a, b, c: sqrt(a * b + c) / (a - b)
    )
    text = _ptx(emit_cuda([kernel]), "mixed")
    used = set(re.findall(r"\t((?:add|sub|mul|div|sqrt|fma|mad)\S*f32)", text))
    assert used == {
        "add.rn.f32",
        "sub.rn.f32",
        "mul.rn.f32",
        "div.rn.f32",
        "sqrt.rn.f32",
    }


def test_16_bit_floats_are_converted_by_instructions() -> None:
    kernel = elementwise(
        "halves",
        [DType.F16],
        DType.F16,
        lambda x: (x.cast(DType.F32) + 1).cast(DType.F16),
    )
    text = _ptx(emit_cuda([kernel]), "halves")
    assert "cvt.f32.f16" in text
    assert "cvt.rn.f16.f32" in text


def test_a_failed_assertion_calls_the_drivers_own() -> None:
    k = KernelBuilder("guard", threadgroup=(32, 1, 1))
    a = k.buffer("a", DType.U32, "read_only")
    with k.region():
        k.require(a[k.thread] < 5, 42)
    text = _ptx(emit_cuda([k.build()]), "guard")
    assert "__assertfail" in text


@pytest.mark.parametrize("shape", [(128, 256, 64, 8, 1, 4), (64, 64, 32, 2, 2, 3)])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_products_of_tiles_use_the_tensor_cores_there_are(
    shape: tuple[int, ...], architecture: str
) -> None:
    """Four warps at a time on sm_90, where the tile suits; else one."""
    schedule = MatrixProductSchedule.of(shape)
    of = function(["f16[200,77]", "f16[77,300]"], lambda f, a, b: f.matmul(a, b))
    kernel = kernelize(item("dot_general", of), UNITS, schedule).step.kernel
    binary = compile_cuda(
        emit_cuda([kernel]),
        kernel.name,
        architecture=architecture,
        format=ArtifactFormat.CUDA_PTX,
        cache=False,
    )
    ptx = str(binary.payload)
    in_groups = architecture == "sm_90a" and shape[4] == 1
    assert ("wgmma.mma_async" in ptx) is in_groups
    assert ("mma.sync" in ptx) is not in_groups
    # Lines of 300 elements begin at multiples of 8 bytes, of 77 at any.
    assert "cp.async.ca.shared.global" in ptx
    assert "cp.async.cg.shared.global" not in ptx


def test_code_is_known_by_the_compiler_that_made_it() -> None:
    version = compiler_version(ArtifactFormat.CUDA_CUBIN)
    assert version.startswith("NVRTC")
    assert version != compiler_version(ArtifactFormat.CUDA_PTX)
