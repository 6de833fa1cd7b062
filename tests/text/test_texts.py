"""The texts themselves: readable, the same each time, and refused where need be."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.spirv.words import instructions
from accy_async.compiler.emit import (
    compile_spirv,
    emit_cuda,
    emit_glsl,
    emit_msl,
)
from accy_async.compiler.emit.text import glslang
from accy_async.compiler.emit.text.names import Names
from accy_async.compiler.form import Kernel, KernelBuilder, constant, exp
from accy_async.compiler.kernels import add, tile_scan
from accy_async.compiler.kernels.catalogue import library_entries
from accy_async.dtypes import DType
from accy_async.errors import (
    CapabilityMismatch,
    CompilationError,
    InvalidValue,
    RuntimeUnavailable,
)
from tests.compiler.harness import elementwise
from tests.text.deep import DEPTH, deep_kernel

needs_glslang = pytest.mark.skipif(
    glslang.find_glslang() is None, reason="there is no glslang"
)
F32, U32 = DType.F32, DType.U32


def halves() -> Kernel:
    """A block's sum in two regions, with a bool, a limit and an assertion."""
    k = KernelBuilder("halves", threadgroup=(64, 1, 1))
    out = k.buffer("out", F32, "write_only")
    mask = k.buffer("mask", DType.BOOL, "read_only")
    scale, n = k.scalar("scale", F32), k.scalar("n", DType.I32)
    tile = k.shared("tile", F32, 64)
    with k.region():
        tile[k.thread] = 0.0
        with k.when(mask[k.thread]):
            k.require(n > 0, 7)
            tile[k.thread] = n.cast(F32) * scale
    with k.region(limit=32):
        out[k.thread] = tile[k.thread] + tile[k.thread + 32]
    return k.build()


GLSL = """\
#version 460
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_spirv_intrinsics : require
spirv_execution_mode(extensions=["SPV_KHR_float_controls"], capabilities=[4466], \
4461, 32);
spirv_execution_mode(extensions=["SPV_KHR_float_controls"], capabilities=[4467], \
4462, 32);
layout(local_size_x=64, local_size_y=1, local_size_z=1) in;
layout(set=0, binding=0, std430) writeonly buffer Buffer0 { float out_[]; };
layout(set=0, binding=1, std430) readonly buffer Buffer1 { uint8_t mask_[]; };
layout(set=0, binding=2, std430) buffer Status { uint status; };
layout(push_constant, std430) uniform Scalars {
    layout(offset=0) float scale_;
    layout(offset=4) int n_;
} scalars;
shared float tile_[64];

void meet() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup,
                   gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease);
}
float multiply_f32(float a, float b) {
    precise float result = a * b;
    return result;
}
float add_f32(float a, float b) {
    precise float result = a + b;
    return result;
}

void main() {
    const uint thread_index = gl_LocalInvocationIndex;
    const float scale_ = scalars.scale_;
    const int n_ = scalars.n_;
    bool stopped = false;
    if (!stopped) {
        tile_[thread_index] = 0.0;
        const bool t1_ = uint(mask_[thread_index]) != 0u;
        if (t1_) {
            if (!(n_ > 0)) {
                atomicCompSwap(status, 0u, 7u);
                stopped = true;
            }
            if (!stopped) {
                tile_[thread_index] = multiply_f32(float(n_), scale_);
            }
        }
    }
    const bool active1 = thread_index < 32u;
    meet();
    if (!stopped && active1) {
        const float t2_ = tile_[thread_index];
        const float t3_ = tile_[thread_index + 32u];
        out_[thread_index] = add_f32(t2_, t3_);
    }
}
"""

MSL = """\
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct Scalars0 {
    float scale_;
    int n_;
};
kernel void halves(
    device float *out_ [[buffer(0)]],
    device const uchar *mask_ [[buffer(1)]],
    constant Scalars0 &scalars [[buffer(2)]],
    device atomic_uint *status [[buffer(3)]],
    uint3 thread_id [[thread_position_in_threadgroup]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint3 block_id [[threadgroup_position_in_grid]],
    uint3 grid_size [[threadgroups_per_grid]]) {
    threadgroup float tile_[64];
    const float scale_ = scalars.scale_;
    const int n_ = scalars.n_;
    bool stopped = false;
    if (!stopped) {
        tile_[thread_index] = 0.0f;
        const bool t1_ = uint(mask_[thread_index]) != 0u;
        if (t1_) {
            if (!(n_ > 0)) {
                atomic_store_explicit(status, 7u, memory_order_relaxed);
                stopped = true;
            }
            if (!stopped) {
                tile_[thread_index] = float(n_) * scale_;
            }
        }
    }
    const bool active1 = thread_index < 32u;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!stopped && active1) {
        const float t2_ = tile_[thread_index];
        const float t3_ = tile_[thread_index + 32u];
        out_[thread_index] = t2_ + t3_;
    }
}
"""

CUDA = """\
typedef signed char int8;
typedef unsigned char uint8;
typedef short int16;
typedef unsigned short uint16;
typedef unsigned int uint;
typedef long long int64;
typedef unsigned long long uint64;

extern "C" __global__ void __launch_bounds__(64)
halves(float *out_, const uint8 *mask_, float scale_, int n_) {
    __shared__ __align__(16) float tile_[64];
    const uint thread_index = threadIdx.x;
    {
        tile_[thread_index] = 0.0f;
        const bool t1_ = uint(mask_[thread_index]) != 0u;
        if (t1_) {
            if (!(n_ > 0)) {
                __assertfail("code 7", "accy_async kernel", 7, "halves", 1);
            }
            tile_[thread_index] = __fmul_rn(float(n_), scale_);
        }
    }
    const bool active1 = thread_index < 32u;
    __syncthreads();
    if (active1) {
        const float t2_ = tile_[thread_index];
        const float t3_ = tile_[thread_index + 32u];
        out_[thread_index] = __fadd_rn(t2_, t3_);
    }
}
"""


def test_one_kernel_in_three_languages() -> None:
    kernel = halves()
    assert emit_glsl(kernel) == GLSL
    assert emit_msl([kernel]) == MSL
    assert emit_cuda([kernel]) == CUDA


def test_nothing_is_nested_deeper_than_metals_compiler_takes() -> None:
    text, depth, deepest = emit_msl([deep_kernel()]), 0, 0
    for letter in text:
        depth += (letter in "({[") - (letter in ")}]")
        deepest = max(deepest, depth)
    assert DEPTH < deepest < 128


_DIGEST = """
import hashlib
from tests.text.test_texts import all_texts
print(hashlib.sha256(all_texts().encode()).hexdigest())
"""


def all_texts() -> str:
    kernels = [add(F32).kernel, tile_scan(DType.I64).kernel, halves()]
    kernels.append(elementwise("e", [F32], F32, exp))
    return emit_msl(kernels) + emit_cuda(kernels) + "".join(map(emit_glsl, kernels))


def test_texts_are_the_same_in_every_process() -> None:
    expected = hashlib.sha256(all_texts().encode()).hexdigest()
    for seed in ("1", "2"):
        ended = subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ended.stdout.strip() == expected


def _rotate() -> Kernel:
    k = KernelBuilder("rotate", threadgroup=(64, 1, 1))
    out = k.buffer("out", U32, "read_write")
    kept = k.thread_variable("kept", U32)
    for _ in range(2):
        with k.region():
            kept.set(out[(k.thread + 1) % 64])
        with k.region():
            out[k.thread] = kept.value
    return k.build()


def test_what_threads_exchange_in_buffers_is_made_visible() -> None:
    kernel = _rotate()
    text = emit_glsl(kernel)
    assert "coherent buffer Buffer0" in text
    assert "gl_StorageSemanticsShared | gl_StorageSemanticsBuffer" in text
    assert "mem_threadgroup | mem_flags::mem_device" in emit_msl([kernel])
    assert "coherent" not in GLSL


@needs_glslang
def test_no_float_operation_may_be_contracted() -> None:
    kernel = elementwise(
        "fused", [F32] * 3, F32, lambda a, b, c: exp(a * b + c) - a * b
    )
    module = list(instructions(compile_spirv(kernel)))
    sums = {i.operands[1] for i in module if i.opcode in (129, 131, 133)}
    kept = {i.operands[0] for i in module if i.opcode == 71 and i.operands[1] == 42}
    assert len(sums) > 10
    assert sums <= kept


@needs_glslang
def test_modules_are_made_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = elementwise("once", [F32], F32, lambda x: x + 17)
    first = compile_spirv(kernel)
    monkeypatch.setattr(glslang, "find_glslang", lambda: None)
    assert compile_spirv(kernel) is first
    with pytest.raises(RuntimeUnavailable, match=r"accy-async\[vulkan\]"):
        compile_spirv(elementwise("other", [F32], F32, lambda x: x + 18))


@needs_glslang
def test_what_glslang_refuses_comes_with_its_log() -> None:
    with pytest.raises(CompilationError, match="syntax error"):
        glslang.compile_shader("#version 460\nnonsense", "main")


def test_identifiers_are_each_names_own_and_nobody_elses() -> None:
    names = Names()
    given = ["out", "float", "gl_x", "_1", "__", "a__b", "a_b", "a_b_", "main", "_"]
    identifiers = [names.of(name) for name in given]
    assert len(set(identifiers)) == len(given)
    assert [names.of(name) for name in given] == identifiers
    for identifier in identifiers:
        assert identifier.endswith("_")
        assert "__" not in identifier
        assert not identifier.startswith(("gl_", "_"))
        assert not identifier[0].isdigit()


@needs_glslang
@pytest.mark.parametrize("format", ["vulkan_spirv", "metal_msl"])
def test_the_library_has_entries_of_the_format(format: str) -> None:
    found = library_entries(format, dtype=DType.I32)
    cuda = library_entries("cuda_ptx", dtype=DType.I32)
    assert [e.launch for e in found] == [e.launch for e in cuda]
    for entry in found:
        assert entry.format is ArtifactFormat(format)
        assert entry.buffers
        if format == "vulkan_spirv":
            assert entry.push_constants is not None
            assert isinstance(entry.payload, bytes)
        else:
            assert f"kernel void {entry.entry_name}(" in str(entry.payload)
    with pytest.raises(InvalidValue, match="has no levels"):
        library_entries(format, level="sm_80")
    if format == "metal_msl":
        with pytest.raises(CapabilityMismatch, match="f64"):
            library_entries(format, dtype=DType.F64)


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -0.0, 5e-324])
def test_numbers_written_by_their_bits_bring_what_they_need(number: float) -> None:
    """A kernel without integers of 64 bits has some in such a constant of f64."""
    k = KernelBuilder("written", threadgroup=(1, 1, 1))
    out = k.buffer("out", DType.F64, "write_only")
    with k.region():
        out[k.block_x] = constant(DType.F64, number)
    text = emit_glsl(k.build())
    assert "#extension GL_EXT_shader_explicit_arithmetic_types_int64" in text
    if glslang.find_glslang() is not None:
        assert compile_spirv(k.build())
