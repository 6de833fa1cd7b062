"""What a language or its devices cannot do is refused, and named."""

from __future__ import annotations

import pytest

from accy_async.compiler.emit import (
    MetalTarget,
    VulkanFeature,
    VulkanTarget,
    emit_cuda,
    emit_glsl,
    emit_msl,
)
from accy_async.compiler.form import Kernel, KernelBuilder
from accy_async.compiler.kernels import add
from accy_async.dtypes import DType
from accy_async.errors import CapabilityMismatch, InvalidType, InvalidValue
from tests.compiler.harness import elementwise

F32 = DType.F32

_WIDE = elementwise("wide", [DType.F64], DType.F64, lambda x: x + 1)
_INDEXED = add(F32).kernel
_BYTES = elementwise("bytes", [DType.U8], DType.U8, lambda x: x + 1)
_WORDS = elementwise("words", [DType.F16], DType.F16, lambda x: x)


def _shared(length: int, dtype: DType = F32) -> Kernel:
    k = KernelBuilder("shared", threadgroup=(64, 1, 1))
    tile = k.shared("tile", dtype, length)
    with k.region():
        tile[k.thread] = k.thread.cast(dtype)
    return k.build()


def _scalars(count: int) -> Kernel:
    k = KernelBuilder("scalars", threadgroup=(64, 1, 1))
    for index in range(count):
        k.scalar(f"s{index}", DType.U8)
    return k.build()


def _buffers(count: int) -> Kernel:
    k = KernelBuilder("buffers", threadgroup=(64, 1, 1))
    for index in range(count):
        k.buffer(f"b{index}", F32, "read_only")
    return k.build()


@pytest.mark.parametrize(
    ("kernel", "lacking", "needed"),
    [
        (_WIDE, VulkanFeature.FLOAT64, "shaderFloat64"),
        (_INDEXED, VulkanFeature.INT64, "shaderInt64"),
        (_BYTES, VulkanFeature.STORAGE_8, "storageBuffer8BitAccess"),
        (_WORDS, VulkanFeature.STORAGE_16, "storageBuffer16BitAccess"),
    ],
)
def test_features_that_a_vulkan_device_lacks_are_named(
    kernel: Kernel, lacking: VulkanFeature, needed: str
) -> None:
    emit_glsl(kernel)
    target = VulkanTarget(features=frozenset(VulkanFeature) - {lacking})
    with pytest.raises(CapabilityMismatch, match=f"'{kernel.name}'.*lacks {needed}"):
        emit_glsl(kernel, target)


def test_modes_of_floats_are_asked_for_where_the_device_has_them() -> None:
    kernel = elementwise("f", [F32], F32, lambda x: x + 1)
    every = emit_glsl(kernel, VulkanTarget(features=frozenset(VulkanFeature)))
    assert "4459, 32" in every
    assert ", 64);" not in every
    none = emit_glsl(kernel, VulkanTarget(features=frozenset({VulkanFeature.INT64})))
    assert "spirv_execution_mode" not in none


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (_shared(8193), r"32784 bytes of maxComputeSharedMemorySize \(it has 32768\)"),
        (_shared(9000, DType.I8), "36000 bytes of maxComputeSharedMemorySize"),
        (_scalars(33), r"132 bytes of maxPushConstantsSize \(it has 128\)"),
        (_buffers(33), "33 maxPerStageDescriptorStorageBuffers"),
        (
            KernelBuilder("deep", threadgroup=(1, 1, 128)).build(),
            "128 maxComputeWorkGroupSize z",
        ),
    ],
)
def test_limits_of_vulkan_devices_are_named(kernel: Kernel, message: str) -> None:
    with pytest.raises(CapabilityMismatch, match=message):
        emit_glsl(kernel)


def test_threads_beyond_a_devices_limit_are_refused() -> None:
    kernel = KernelBuilder("big", threadgroup=(256, 1, 1)).build()
    small = VulkanTarget(max_threads=128)
    with pytest.raises(CapabilityMismatch, match="256 maxComputeWorkGroupInvocations"):
        emit_glsl(kernel, small)
    with pytest.raises(CapabilityMismatch, match="256 threads of a threadgroup"):
        emit_msl([kernel], MetalTarget(max_threads=128))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (_WIDE, "Metal: the device lacks f64"),
        (
            elementwise("inside", [F32], F32, lambda x: x.cast(DType.F64).cast(F32)),
            "lacks f64",
        ),
        (_shared(8193), "32784 bytes of threadgroup memory"),
        (_buffers(32), "32 buffer indices"),
    ],
)
def test_what_metal_lacks_is_named(kernel: Kernel, message: str) -> None:
    with pytest.raises(CapabilityMismatch, match=message):
        emit_msl([kernel])


@pytest.mark.parametrize("name", ["int", "kernel", "_x", "a__b", "half", "accy"])
@pytest.mark.parametrize("emit", [emit_msl, emit_cuda])
def test_names_that_cplusplus_keeps_are_refused(name: str, emit: object) -> None:
    kernel = KernelBuilder(name, threadgroup=(1, 1, 1)).build()
    with pytest.raises(InvalidValue, match=f"'{name}', expected a name that"):
        emit([kernel])  # type: ignore[operator]


def test_what_is_no_kernel_is_refused() -> None:
    with pytest.raises(InvalidType, match="a Kernel"):
        emit_glsl("kernel")  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"kernels\[0\]"):
        emit_msl([3])  # type: ignore[list-item]
    with pytest.raises(InvalidValue, match="at least one"):
        emit_cuda([])
    with pytest.raises(InvalidValue, match="a name of its own"):
        emit_cuda([add(F32).kernel, add(F32).kernel])
