"""Code of kernels for a target, made or found on disk."""

from __future__ import annotations

import logging

from accy_async.artifact.fingerprint import digest
from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.store import ArtifactStore
from accy_async.compiler.emit import (
    DEFAULT_PTX_TARGET,
    MetalTarget,
    VulkanFeature,
    VulkanTarget,
    compile_cpu,
    compile_ptx,
    compile_spirv,
    emit_cuda,
    emit_msl,
)
from accy_async.compiler.emit.target import LEVELS, ptx_target
from accy_async.compiler.emit.versions import compiler_version, emitter_version
from accy_async.compiler.form import Kernel
from accy_async.compiler.kernelization import TargetProfile
from accy_async.compiler.nvrtc import compile_cuda
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue, UnsupportedOperation

__all__ = ["CODE_SCHEMA", "CodeMaker"]

CODE_SCHEMA = "kernel_code-1"
"""Under which code is kept in a store."""

_VULKAN_DTYPES = {
    VulkanFeature.FLOAT64: {DType.F64},
    VulkanFeature.INT64: {DType.I64, DType.U64},
    VulkanFeature.STORAGE_8: {DType.I8, DType.U8, DType.BOOL},
    VulkanFeature.STORAGE_16: {DType.I16, DType.U16, DType.F16, DType.BF16},
}
_FAST_CUDA = ("--prec-div=false", "--prec-sqrt=false")
_log = logging.getLogger("accy_async.compiler.preparation")


class CodeMaker:
    """Makes code of kernels in the kernel form.

    Args:
        profile: what for.
        store: where made code is kept and looked for, None for nowhere.

    Attributes:
        made: how many kernels were compiled.
        found: how many were found in the store.
    """

    def __init__(self, profile: TargetProfile, store: ArtifactStore | None) -> None:
        self._profile = profile
        self._store = store
        self._target = _target(profile)
        self.made = 0
        self.found = 0

    def code(self, kernel: Kernel) -> str | bytes:
        """The code of a kernel.

        Raises:
            CapabilityMismatch: the target cannot run it.
            RuntimeUnavailable: a compiler is not installed; the message says which.
            UnsupportedOperation: no code is made in the target's format.
            CompilationError: a compiler refused what was emitted; a bug of ours.
        """
        format = self._profile.format
        if self._store is None:
            return self._make(kernel)
        full = digest(
            (
                kernel,
                format,
                self._target,
                compiler_version(format),
                emitter_version(),
            )
        )
        kept = self._store.get(CODE_SCHEMA, full)
        if kept is not None:
            try:
                payload = kept.decode() if format.is_text else kept
            except UnicodeDecodeError:
                _log.warning("cache entry %s not used: it is no text", full)
            else:
                self.found += 1
                return payload
        made = self._make(kernel)
        data = made.encode() if isinstance(made, str) else made
        self._store.put(CODE_SCHEMA, full, data)
        return made

    def _make(self, kernel: Kernel) -> str | bytes:
        self.made += 1
        format, target = self._profile.format, self._target
        match format:
            case ArtifactFormat.CUDA_PTX:
                return compile_ptx([kernel], target=str(target))
            case ArtifactFormat.CUDA_CUBIN:
                return compile_cuda(
                    emit_cuda([kernel]),
                    kernel.name,
                    architecture=_own_features(kernel, str(target)),
                    name=f"{kernel.name}.cu",
                    options=_FAST_CUDA if kernel.is_approximate else (),
                    cache=False,
                ).payload
            case ArtifactFormat.VULKAN_SPIRV:
                assert isinstance(target, VulkanTarget)
                return compile_spirv(kernel, target)
            case ArtifactFormat.METAL_MSL:
                assert isinstance(target, MetalTarget)
                return emit_msl([kernel], target)
            case ArtifactFormat.CPU_MACHINE_CODE | ArtifactFormat.CPU_OBJECT:
                level = None if target is None else str(target)
                return compile_cpu([kernel], format=format.value, level=level)
        raise UnsupportedOperation(f"no code is made in {format}")


def _target(profile: TargetProfile) -> str | VulkanTarget | MetalTarget | None:
    """The profile's device in the emitters' words."""
    capabilities = profile.capabilities
    architecture = capabilities.identity.architecture
    match profile.backend:
        case BackendKind.CUDA:
            return _cuda_architecture(profile.format, architecture)
        case BackendKind.VULKAN:
            default = VulkanTarget()
            lacking = {
                feature
                for feature, dtypes in _VULKAN_DTYPES.items()
                if not dtypes <= capabilities.dtypes
            }
            return VulkanTarget(
                features=default.features - lacking,
                max_threads=capabilities.max_threads_per_block,
                max_threadgroup=capabilities.max_threadgroup,
                max_shared_bytes=capabilities.max_shared_memory_bytes,
            )
        case BackendKind.METAL:
            return MetalTarget(
                max_threads=capabilities.max_threads_per_block,
                max_shared_bytes=capabilities.max_shared_memory_bytes,
            )
        case BackendKind.CPU:
            level = architecture.rpartition(" ")[2]
            return level if level in LEVELS else _host_level()


def _host_level() -> str:
    from accy_async.artifact.native.host import host_level

    return host_level()


def _own_features(kernel: Kernel, architecture: str) -> str:
    """The architecture with what is its own, where tensor cores are used that have it.

    Source: CUDA C++ Programming Guide, "Architecture-Specific Features".
    """
    has_more = architecture == "sm_90" and kernel.dynamic_shared_bytes > 0
    return f"{architecture}a" if has_more else architecture


def _cuda_architecture(format: ArtifactFormat, architecture: str) -> str:
    """The device's own for machine code; for PTX the newest that LLVM knows before."""
    if format is ArtifactFormat.CUDA_CUBIN:
        return architecture
    name = architecture.rstrip("af")
    try:
        ptx_target(name, None)
    except InvalidValue:
        return DEFAULT_PTX_TARGET
    return name
