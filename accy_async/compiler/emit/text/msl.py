"""Kernels in the Metal Shading Language.

The interface of a kernel: its buffers at indices 0, 1, ...; then, if it has scalars,
one buffer with all of them, laid out as `accy_async.artifact.scalarblock` says
(``setBytes`` takes it); then, if it has assertions, a buffer of one u32, zero before
the launch, in which a failed assertion leaves its code.

The text must be compiled with fast mathematics off (``mathMode = .safe``, or
``fastMathEnabled = NO`` before Metal 3.2); its pragmas say so too, to compilers that
know them. Metal may flush subnormals of f32 all the same. It has no f64.

Source: Apple, "Metal Shading Language Specification", 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accy_async.artifact.scalarblock import ScalarBlock
from accy_async.compiler.emit.text.dialect import FAST_MSL, MSL
from accy_async.compiler.emit.text.keywords import are_approximate, check_cpp_kernels
from accy_async.compiler.emit.text.operations import Operations
from accy_async.compiler.emit.text.printer import KernelPrinter
from accy_async.compiler.emit.text.targets import (
    MetalTarget,
    dtypes_of,
    refuse,
    refuse_limits,
)
from accy_async.compiler.form import Kernel
from accy_async.dtypes import DType

__all__ = ["emit_msl"]

_HEAD = """\
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)"""
_FAST_HEAD = _HEAD.replace("contract(off)", "contract(fast)")


def emit_msl(kernels: Sequence[Kernel], target: MetalTarget | None = None) -> str:
    """Kernels as one text, each a function of its own name.

    Args:
        kernels: at least one, each with a name of its own.
        target: the device they are for; None is the default `MetalTarget`.

    Returns:
        The text, the same for the same arguments.

    Raises:
        InvalidValue: no kernel, two of one name, or a name that C++ keeps.
        CapabilityMismatch: a kernel needs f64, or more than the device has.
    """
    check_cpp_kernels(kernels, "MSL")
    is_fast = are_approximate(kernels)
    operations, parts = Operations(FAST_MSL if is_fast else MSL), []
    for number, kernel in enumerate(kernels):
        printer = _MslPrinter(kernel, operations, target or MetalTarget(), number)
        parts.append(printer.text())
    head = _FAST_HEAD if is_fast else _HEAD
    return "\n\n".join([head, *operations.helpers.text(), *parts]) + "\n"


class _MslPrinter(KernelPrinter):
    def __init__(
        self, kernel: Kernel, operations: Operations, target: MetalTarget, number: int
    ) -> None:
        super().__init__(kernel.without_units(), operations.dialect, operations)
        self._block = f"Scalars{number}"
        self._refuse(target)

    def text(self) -> str:
        lines = [*self._scalars(), f"kernel void {self.kernel.name}("]
        parameters = list(self._parameters())
        lines += [f"    {parameter}," for parameter in parameters]
        lines[-1] = lines[-1].removesuffix(",") + ") {"
        for array in self.kernel.shared:
            kind = MSL.element(array.dtype, shared=True)
            name = self.names.of(array.name)
            lines.append(f"    threadgroup {kind} {name}[{array.length}];")
        for scalar in self.kernel.scalars:
            kind, name = (
                self.operations.register(scalar.dtype),
                self.names.of(scalar.name),
            )
            value = self.operations.from_word(scalar.dtype, f"scalars.{name}")
            lines.append(f"    const {kind} {name} = {value};")
        return "\n".join([*lines, *self.body(), "}"])

    def barrier(self) -> str:
        flags = "mem_flags::mem_threadgroup"
        if self.plan.through_buffers:
            flags += " | mem_flags::mem_device"
        return f"threadgroup_barrier({flags});"

    def combine(self, word: str, place: str, value: str, kind: str) -> str:
        arguments = f"(device atomic_{kind} *)&{place}, {value}, memory_order_relaxed"
        return f"atomic_fetch_{word}_explicit({arguments});"

    def fail(self, code: int) -> list[str]:
        store = f"atomic_store_explicit(status, {code}u, memory_order_relaxed);"
        return [store, "stopped = true;"]

    def _scalars(self) -> Iterator[str]:
        if not self.kernel.scalars:
            return
        yield f"struct {self._block} {{"
        for scalar in self.kernel.scalars:
            dtype = DType.U32 if scalar.dtype.bits < 32 else scalar.dtype
            yield f"    {MSL.register(dtype)} {self.names.of(scalar.name)};"
        yield "};"

    def _parameters(self) -> Iterator[str]:
        index = 0
        for buffer in self.kernel.buffers:
            constant = "const " if buffer.access == "read_only" else ""
            kind, name = MSL.element(buffer.dtype), self.names.of(buffer.name)
            yield f"device {constant}{kind} *{name} [[buffer({index})]]"
            index += 1
        if self.kernel.scalars:
            yield f"constant {self._block} &scalars [[buffer({index})]]"
            index += 1
        if self.asserts:
            yield f"device atomic_uint *status [[buffer({index})]]"
        yield "uint3 thread_id [[thread_position_in_threadgroup]]"
        yield "uint thread_index [[thread_index_in_threadgroup]]"
        yield "uint3 block_id [[threadgroup_position_in_grid]]"
        yield "uint3 grid_size [[threadgroups_per_grid]]"

    def _refuse(self, target: MetalTarget) -> None:
        kernel = self.kernel
        if DType.F64 in dtypes_of(kernel):
            refuse(kernel, "Metal", ["f64"])
        block = ScalarBlock(scalar.dtype for scalar in kernel.scalars)
        indices = len(kernel.buffers) + bool(kernel.scalars) + self.asserts
        refuse_limits(
            kernel,
            "Metal",
            [
                ("threads of a threadgroup", kernel.threads, target.max_threads),
                (
                    "bytes of threadgroup memory",
                    kernel.shared_bytes,
                    target.max_shared_bytes,
                ),
                ("bytes of scalars in one setBytes", block.byte_size, 4096),
                ("buffer indices", indices, target.max_buffers),
            ],
        )
