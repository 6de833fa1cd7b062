"""Emitters: kernels of the kernel form into what devices load."""

from accy_async.compiler.emit.cpu import (
    compile_cpu,
    emit_cpu_assembly,
    emit_llvm_ir,
)

__all__ = ["compile_cpu", "emit_cpu_assembly", "emit_llvm_ir"]
