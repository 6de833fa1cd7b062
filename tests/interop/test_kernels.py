"""Kernels that other libraries compiled, as they show them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from accy_async import ArtifactFormat, FixedLaunch, RuntimeCeilDiv, ScalarArgument
from accy_async.artifact.geometry import DerivedLaunch
from accy_async.errors import InvalidArtifact
from accy_async.interop import cupy_kernel, numba_kernel, triton_kernel

LAUNCH = FixedLaunch(grid=(4, 1, 1), threadgroup=(128, 1, 1))


def ptx(parameters: int, name: str = "add") -> str:
    listed = ",\n".join(f"\t.param .u64 p{i}" for i in range(parameters))
    return (
        f".version 8.0\n.target sm_80\n.visible .entry {name}(\n{listed}\n)\n{{ret;}}\0"
    )


def compiled_by_triton(parameters: int = 6, **changes: Any) -> Any:
    metadata = {
        "name": "add",
        "num_warps": 4,
        "shared": 2048,
        "num_ctas": 1,
        "global_scratch_size": 0,
        **changes.pop("metadata", {}),
    }
    signature = changes.pop(
        "signature",
        {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "b": "constexpr"},
    )
    return SimpleNamespace(
        metadata=SimpleNamespace(**metadata),
        src=SimpleNamespace(signature=signature),
        asm={"ptx": ptx(parameters), "cubin": b"\x7fELF..."},
    )


def test_triton_kernel_has_its_block_shared_memory_and_hidden_parameters() -> None:
    entry = triton_kernel(compiled_by_triton(), grid=[7, 2])
    assert entry.target == "triton.add"
    assert (entry.format, entry.payload) == (ArtifactFormat.CUDA_CUBIN, b"\x7fELF...")
    assert (entry.argument_count, entry.runtime_scalar_argument_count) == (6, 1)
    assert entry.static_arguments == (ScalarArgument.u64(0),) * 2
    assert isinstance(entry.launch, FixedLaunch)
    assert (entry.launch.grid, entry.launch.threadgroup) == ((7, 2, 1), (128, 1, 1))
    assert entry.launch.dynamic_shared_memory_bytes == 2048


def test_triton_grids_may_follow_from_scalars() -> None:
    grid = [RuntimeCeilDiv(argument_index=0, divisor=512)]
    entry = triton_kernel(compiled_by_triton(4), grid=grid, target="my.add")
    assert isinstance(entry.launch, DerivedLaunch)
    assert entry.launch.geometry([ScalarArgument.u32(1000)]).grid == (2, 1, 1)
    assert (entry.target, entry.static_arguments) == ("my.add", ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signature": {"n": "i32", "x": "*fp32"}}, "expected pointers first"),
        ({"metadata": {"num_ctas": 2}}, "clusters of 2"),
        ({"metadata": {"global_scratch_size": 64}}, "needs scratch memory"),
        ({"parameters": 3}, "3 parameters, expected 4"),
    ],
)
def test_triton_kernels_that_cannot_be_launched_so(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArtifact, match=message):
        triton_kernel(compiled_by_triton(**changes), grid=[1])


class CPointer:
    """As numba names the type."""


class Integer:
    """A scalar."""


class Array:
    """An array, which numba passes as many values."""


def compiled_by_numba(*signatures: tuple[object, ...], parameters: int) -> Any:
    texts = {signature: ptx(parameters, "_ZN3add$1E") for signature in signatures}
    return SimpleNamespace(inspect_asm=lambda: texts, py_func=test_ptx_has_one_entry)


def test_numba_kernel() -> None:
    signature = (CPointer(), CPointer(), Integer())
    entry = numba_kernel(compiled_by_numba(signature, parameters=3), launch=LAUNCH)
    assert entry.entry_name == "_ZN3add$1E"
    assert entry.target == "numba.test_ptx_has_one_entry"
    assert (entry.argument_count, entry.runtime_scalar_argument_count) == (3, 1)
    assert entry.format is ArtifactFormat.CUDA_PTX
    assert not str(entry.payload).endswith("\0")


@pytest.mark.parametrize(
    ("signatures", "parameters", "message"),
    [
        ([], 1, "compiled for 0 signatures"),
        ([(CPointer(),), (Integer(),)], 1, "compiled for 2 signatures"),
        ([(Array(),)], 7, "expected CPointer types, then scalars"),
        ([(Integer(), CPointer())], 2, "expected CPointer types, then scalars"),
        ([(CPointer(),)], 2, "2 parameters in the PTX, 1 in its signature"),
    ],
)
def test_numba_kernels_that_cannot_be_launched_so(
    signatures: list[tuple[object, ...]], parameters: int, message: str
) -> None:
    kernel = compiled_by_numba(*signatures, parameters=parameters)
    with pytest.raises(InvalidArtifact, match=message):
        numba_kernel(kernel, launch=LAUNCH)


def test_ptx_has_one_entry() -> None:
    compiled = compiled_by_triton()
    compiled.asm["ptx"] = ptx(4) + ptx(4)
    with pytest.raises(InvalidArtifact, match="has 2 entries"):
        triton_kernel(compiled, grid=[1])


@pytest.mark.parametrize("image", [b"\x7fELF...", ptx(3).encode(), ptx(3)])
def test_cupy_kernel(monkeypatch: pytest.MonkeyPatch, image: bytes | str) -> None:
    asked = []

    def compile_using_nvrtc(code: str, options: tuple[str, ...]) -> object:
        asked.append((code, options))
        return image, {}

    compiler = SimpleNamespace(compile_using_nvrtc=compile_using_nvrtc)
    monkeypatch.setitem(__import__("sys").modules, "cupy.cuda.compiler", compiler)
    monkeypatch.setitem(__import__("sys").modules, "cupy.cuda", SimpleNamespace())
    monkeypatch.setitem(__import__("sys").modules, "cupy", SimpleNamespace())
    kernel = SimpleNamespace(name="add", code="...", backend="nvrtc", options=["-O"])
    entry = cupy_kernel(kernel, buffers=2, scalars=1, launch=LAUNCH)
    assert asked == [("...", ("-O",))]
    is_cubin = image == b"\x7fELF..."
    assert entry.format is ArtifactFormat.CUDA_CUBIN if is_cubin else "cuda_ptx"
    assert (entry.argument_count, entry.entry_name) == (3, "add")
    kernel.backend = "nvcc"
    with pytest.raises(InvalidArtifact, match="made from source for NVRTC"):
        cupy_kernel(kernel, buffers=2, scalars=1, launch=LAUNCH)
