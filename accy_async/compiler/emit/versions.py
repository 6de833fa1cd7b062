"""What code depends on besides the kernel and the target: who made it."""

from __future__ import annotations

import functools
import hashlib
import subprocess
from importlib import metadata, resources

from accy_async.artifact.formats import ArtifactFormat
from accy_async.compiler.emit.text.glslang import find_glslang
from accy_async.compiler.nvrtc.library import nvrtc_identity
from accy_async.errors import BackendUnavailable

__all__ = ["compiler_version", "emitter_version"]

_ROOMS = ("accy_async.compiler.emit", "accy_async.compiler.emit.text")


@functools.cache
def emitter_version() -> str:
    """A fingerprint of the emitters' own source, so that any change of it shows."""
    seen = hashlib.sha256()
    for room in _ROOMS:
        files = [f for f in resources.files(room).iterdir() if f.name.endswith(".py")]
        for file in sorted(files, key=lambda f: f.name):
            seen.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return seen.hexdigest()


@functools.cache
def compiler_version(format: ArtifactFormat) -> str:
    """Which compiler makes code of a format; empty where what we emit is the code."""
    if format is ArtifactFormat.METAL_MSL:
        return ""
    if format is ArtifactFormat.VULKAN_SPIRV:
        return _glslang_version()
    if format is ArtifactFormat.CUDA_CUBIN:
        return _nvrtc_version()
    return f"llvmlite {metadata.version('llvmlite')}"


def _nvrtc_version() -> str:
    try:
        return f"NVRTC {nvrtc_identity()}"
    except BackendUnavailable:
        return ""


def _glslang_version() -> str:
    glslang = find_glslang()
    if glslang is None:
        return ""
    try:
        told = subprocess.run(
            [glslang, "--version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return glslang
    return told.stdout
