"""Emitters: kernels of the kernel form into what devices load."""

from accy_async.compiler.emit.cpu import (
    compile_cpu,
    emit_cpu_assembly,
    emit_llvm_ir,
)
from accy_async.compiler.emit.ptx import (
    DEFAULT_PTX_TARGET,
    compile_ptx,
    emit_ptx_llvm_ir,
)
from accy_async.compiler.emit.text import (
    MetalTarget,
    VulkanFeature,
    VulkanTarget,
    compile_spirv,
    emit_cuda,
    emit_glsl,
    emit_msl,
)

__all__ = [
    "DEFAULT_PTX_TARGET",
    "MetalTarget",
    "VulkanFeature",
    "VulkanTarget",
    "compile_cpu",
    "compile_ptx",
    "compile_spirv",
    "emit_cpu_assembly",
    "emit_cuda",
    "emit_glsl",
    "emit_llvm_ir",
    "emit_msl",
    "emit_ptx_llvm_ir",
]
