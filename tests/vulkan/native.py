"""Kernels for tests on Vulkan devices that the kernel form cannot say, as GLSL."""

from __future__ import annotations

import functools

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.kernel import KernelArtifact
from accy_async.compiler.emit.text import compile_spirv
from accy_async.compiler.emit.text.glslang import compile_shader
from accy_async.dtypes import DType
from tests.harness.echo import echo_kernel

__all__ = ["NAMES", "artifact", "echo_artifact", "shader"]

_HEAD = """#version 460
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(local_size_x=1) in;
"""
_WORDS = "layout(set=0, binding=0, std430) buffer Words { uint w[]; };"
_OTHERS = "layout(set=0, binding=1, std430) readonly buffer Others { uint r[]; };"
_STATUS = "layout(set=0, binding=1, std430) buffer Status { uint status; };"
_BLOCK = "uint b = gl_WorkGroupID.x;"

_BODIES = {
    # name: buffers, scalars, declarations, body
    "count": (1, 0, _WORDS, f"{_BLOCK} w[b] += 1;"),
    "mix": (
        1,
        1,
        _WORDS + "layout(push_constant) uniform S { uint tag; };",
        "w[0] = w[0] * 31 + tag;",
    ),
    "combine": (2, 0, _WORDS + _OTHERS, "w[0] = w[0] * 31 + r[0];"),
    "copy": (2, 0, _WORDS + _OTHERS, f"{_BLOCK} w[b] = r[b];"),
    "fail": (
        1,
        2,
        _WORDS
        + _STATUS
        + "layout(push_constant) uniform S { uint64_t where; int code; };",
        "if (gl_WorkGroupID.x == where) atomicCompSwap(status, 0u, uint(code));",
    ),
    "empty": (0, 0, "", ""),
}
NAMES = tuple(_BODIES)


@functools.cache
def artifact(name: str) -> KernelArtifact:
    """One of the kernels."""
    buffers, scalars, declarations, body = _BODIES[name]
    text = f"{_HEAD}{declarations}\nvoid main() {{ {body} }}\n"
    return _artifact(name, buffers, scalars, shader(text, name))


@functools.cache
def echo_artifact(dtype: DType) -> KernelArtifact:
    """The kernel of `echo_kernel`."""
    kernel = echo_kernel(dtype)
    return _artifact(kernel.name, 1, 1, compile_spirv(kernel))


def shader(text: str, name: str) -> bytes:
    """A shader's module."""
    return compile_shader(text, name)


def _artifact(name: str, buffers: int, scalars: int, payload: bytes) -> KernelArtifact:
    return KernelArtifact(
        kernel_name=name,
        format=ArtifactFormat.VULKAN_SPIRV,
        argument_count=buffers + scalars,
        scalar_argument_count=scalars,
        payload=payload,
    )
