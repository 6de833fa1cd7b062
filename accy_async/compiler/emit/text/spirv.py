"""SPIR-V for Vulkan: a kernel in, the module that its device loads out."""

from __future__ import annotations

from accy_async.artifact.spirv import check_spirv
from accy_async.compiler.emit.text.glsl import emit_glsl
from accy_async.compiler.emit.text.glslang import compile_shader
from accy_async.compiler.emit.text.targets import VulkanTarget
from accy_async.compiler.form import Kernel

__all__ = ["compile_spirv"]


def compile_spirv(kernel: Kernel, target: VulkanTarget | None = None) -> bytes:
    """Compile one kernel into a SPIR-V module with an entry point of its name.

    `accy_async.compiler.emit.text.glsl` states the module's interface.

    Args:
        kernel: the kernel.
        target: the device it is for; None is the default `VulkanTarget`.

    Returns:
        The module, the same for the same arguments and the same glslang.

    Raises:
        CapabilityMismatch: the device lacks a feature or limit that the kernel needs.
        RuntimeUnavailable: there is no glslang; the message says how to get it.
        CompilationError: glslang refused what was emitted.

    Blocks for some 100 ms where the module was not made before in this process: call
    it in a worker thread.
    """
    module = compile_shader(emit_glsl(kernel, target), kernel.name)
    check_spirv(module, kernel.name)
    return module
