"""Compute shaders in GLSL, for Vulkan.

The interface of a kernel's module:

* buffer ``i`` is the storage buffer at set 0, binding ``i``;
* the scalars are push constants, laid out as `accy_async.artifact.scalarblock` says;
* a kernel with assertions has one binding more than buffers: a storage buffer of one
  u32, zero before the launch, in which a failed assertion leaves its code;
* the block's extents are in the module (``LocalSize``), and a grid is dispatched as
  it is.

Whatever a GPU's own operations promise too little for the form is computed by
functions of ours: division and root of f32, exp, log and tanh, minimum and maximum,
casts to integers, conversions of 16-bit floats. Approximate kernels use the GPU's own
division, root, exp and log.

Source: GLSL 4.60; GL_KHR_vulkan_glsl; GL_KHR_memory_scope_semantics;
SPV_KHR_float_controls.
"""

from __future__ import annotations

from collections.abc import Iterator

from accy_async.artifact.scalarblock import ScalarBlock
from accy_async.compiler.emit.text.dialect import FAST_GLSL, GLSL
from accy_async.compiler.emit.text.operations import Operations
from accy_async.compiler.emit.text.printer import KernelPrinter
from accy_async.compiler.emit.text.targets import (
    VulkanFeature,
    VulkanTarget,
    refuse,
    refuse_limits,
)
from accy_async.compiler.form import Kernel
from accy_async.dtypes import DType
from accy_async.errors import InvalidType

__all__ = ["emit_glsl"]

_F = VulkanFeature
_BYTES = (DType.I8, DType.U8, DType.BOOL)
_WORDS = (DType.I16, DType.U16, DType.F16, DType.BF16)
_EXTENSIONS = {
    _F.STORAGE_8: "GL_EXT_shader_8bit_storage",
    _F.STORAGE_16: "GL_EXT_shader_16bit_storage",
    _F.INT64: "GL_EXT_shader_explicit_arithmetic_types_int64",
}
_MODES = (
    # feature, the dtype it is about, SPIR-V's capability and execution mode
    (_F.SUBNORMALS_32, DType.F32, 4464, 4459),
    (_F.SUBNORMALS_64, DType.F64, 4464, 4459),
    (_F.NANS_32, DType.F32, 4466, 4461),
    (_F.NANS_64, DType.F64, 4466, 4461),
    (_F.ROUNDING_32, DType.F32, 4467, 4462),
    (_F.ROUNDING_64, DType.F64, 4467, 4462),
)
_ACCESS = {"read_only": "readonly ", "write_only": "writeonly ", "read_write": ""}


def emit_glsl(kernel: Kernel, target: VulkanTarget | None = None) -> str:
    """One kernel as a compute shader, whose entry point is ``main``.

    Args:
        kernel: the kernel.
        target: the device it is for; None is the default `VulkanTarget`.

    Returns:
        The text, the same for the same arguments.

    Raises:
        CapabilityMismatch: the device lacks a feature or limit that the kernel needs.
    """
    if not isinstance(kernel, Kernel):
        raise InvalidType("kernel", kernel, "a Kernel")
    return _GlslPrinter(kernel, target or VulkanTarget()).text()


class _GlslPrinter(KernelPrinter):
    def __init__(self, kernel: Kernel, target: VulkanTarget) -> None:
        dialect = FAST_GLSL if kernel.is_approximate else GLSL
        super().__init__(kernel.without_units(), dialect, Operations(dialect))
        self._target = target

    def text(self) -> str:
        interface = [*self._buffers(), *self._scalars(), *self._shared_arrays()]
        read = ["    const uint thread_index = gl_LocalInvocationIndex;"]
        read += self._read_scalars()
        body = self.body()
        helpers = [*self._meet(), *self.operations.helpers.text()]
        needs = self._needs()
        self._refuse(needs)
        extensions = [_EXTENSIONS[need] for need in needs if need in _EXTENSIONS]
        lines = ["#version 460", "#extension GL_KHR_memory_scope_semantics : require"]
        modes = list(self._modes())
        extensions += ["GL_EXT_spirv_intrinsics"] if modes else []
        lines += [f"#extension {name} : require" for name in extensions]
        lines += modes
        x, y, z = self.kernel.threadgroup
        lines.append(
            f"layout(local_size_x={x}, local_size_y={y}, local_size_z={z}) in;"
        )
        lines += interface
        lines += ["", *helpers] if helpers else []
        return "\n".join([*lines, "", "void main() {", *read, *body, "}", ""])

    def barrier(self) -> str:
        return "meet();"

    def combine(self, word: str, place: str, value: str, kind: str) -> str:
        return f"atomic{word.title()}({place}, {value});"

    def _meet(self) -> list[str]:
        """The function at which the threads of a block meet, if they do."""
        if not (self.plan.before or self.plan.within):
            return []
        memory = "gl_StorageSemanticsShared"
        if self.plan.through_buffers:
            memory += " | gl_StorageSemanticsBuffer"
        scope = "gl_ScopeWorkgroup"
        return [
            "void meet() {",
            f"    controlBarrier({scope}, {scope},",
            f"                   {memory},",
            "                   gl_SemanticsAcquireRelease);",
            "}",
        ]

    def fail(self, code: int) -> list[str]:
        return [f"atomicCompSwap(status, 0u, {code}u);", "stopped = true;"]

    def _buffers(self) -> Iterator[str]:
        # Only what is coherent is seen by the other threads of a block.
        coherent = "coherent " if self.plan.through_buffers else ""
        for binding, buffer in enumerate(self.kernel.buffers):
            place = f"layout(set=0, binding={binding}, std430)"
            element, name = GLSL.element(buffer.dtype), self.names.of(buffer.name)
            yield (
                f"{place} {coherent}{_ACCESS[buffer.access]}buffer Buffer{binding} "
                f"{{ {element} {name}[]; }};"
            )
        if self.asserts:
            binding = len(self.kernel.buffers)
            place = f"layout(set=0, binding={binding}, std430)"
            yield f"{place} buffer Status {{ uint status; }};"

    def _scalars(self) -> Iterator[str]:
        if not self.kernel.scalars:
            return
        block = ScalarBlock(scalar.dtype for scalar in self.kernel.scalars)
        yield "layout(push_constant, std430) uniform Scalars {"
        for scalar, offset in zip(self.kernel.scalars, block.offsets, strict=True):
            kind = self.operations.register(_in_block(scalar.dtype))
            name = self.names.of(scalar.name)
            yield f"    layout(offset={offset}) {kind} {name};"
        yield "} scalars;"

    def _shared_arrays(self) -> Iterator[str]:
        for array in self.kernel.shared:
            dtype = DType.U32 if array.dtype is DType.BOOL else array.dtype
            kind = self.operations.register(dtype)
            yield f"shared {kind} {self.names.of(array.name)}[{array.length}];"

    def _read_scalars(self) -> Iterator[str]:
        for scalar in self.kernel.scalars:
            kind, name = (
                self.operations.register(scalar.dtype),
                self.names.of(scalar.name),
            )
            value = self.operations.from_word(scalar.dtype, f"scalars.{name}")
            yield f"    const {kind} {name} = {value};"

    def _needs(self) -> list[VulkanFeature]:
        used, stored = self.operations.used, {b.dtype for b in self.kernel.buffers}
        wanted = {
            _F.FLOAT64: DType.F64 in used,
            _F.INT64: not used.isdisjoint((DType.I64, DType.U64)),
            _F.STORAGE_8: not stored.isdisjoint(_BYTES),
            _F.STORAGE_16: not stored.isdisjoint(_WORDS),
        }
        if DType.I64 in stored or DType.U64 in stored:
            wanted[_F.INT64] = True
        if DType.F64 in stored:
            wanted[_F.FLOAT64] = True
        return [feature for feature, needed in wanted.items() if needed]

    def _modes(self) -> Iterator[str]:
        for feature, dtype, capability, mode in _MODES:
            if feature in self._target.features and dtype in self.operations.used:
                yield (
                    'spirv_execution_mode(extensions=["SPV_KHR_float_controls"], '
                    f"capabilities=[{capability}], {mode}, {dtype.bits});"
                )

    def _refuse(self, needs: list[VulkanFeature]) -> None:
        kernel, target = self.kernel, self._target
        refuse(kernel, "Vulkan", (n.value for n in needs if n not in target.features))
        block = ScalarBlock(scalar.dtype for scalar in kernel.scalars)
        shared = sum(
            -(-array.length * max(4, array.dtype.size_bytes) // 16) * 16
            for array in kernel.shared
        )
        extents = zip("xyz", kernel.threadgroup, target.max_threadgroup, strict=True)
        bindings = len(kernel.buffers) + int(self.asserts)
        refuse_limits(
            kernel,
            "Vulkan",
            [
                ("maxComputeWorkGroupInvocations", kernel.threads, target.max_threads),
                *(
                    (f"maxComputeWorkGroupSize {a}", got, top)
                    for a, got, top in extents
                ),
                (
                    "bytes of maxComputeSharedMemorySize",
                    shared,
                    target.max_shared_bytes,
                ),
                (
                    "bytes of maxPushConstantsSize",
                    block.byte_size,
                    target.max_push_constant_bytes,
                ),
                (
                    "maxPerStageDescriptorStorageBuffers",
                    bindings,
                    target.max_storage_buffers,
                ),
            ],
        )


def _in_block(dtype: DType) -> DType:
    """The dtype that a scalar has in the block of scalars."""
    return DType.U32 if dtype.bits < 32 else dtype
