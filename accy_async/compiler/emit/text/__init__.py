"""Kernels as text: GLSL and from it SPIR-V, the Metal Shading Language, CUDA C++."""

from accy_async.compiler.emit.text.cuda import emit_cuda
from accy_async.compiler.emit.text.glsl import emit_glsl
from accy_async.compiler.emit.text.msl import emit_msl
from accy_async.compiler.emit.text.spirv import compile_spirv
from accy_async.compiler.emit.text.targets import (
    MetalTarget,
    VulkanFeature,
    VulkanTarget,
)

__all__ = [
    "MetalTarget",
    "VulkanFeature",
    "VulkanTarget",
    "compile_spirv",
    "emit_cuda",
    "emit_glsl",
    "emit_msl",
]
