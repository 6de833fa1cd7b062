"""PTX for NVIDIA GPUs: kernels in, text for the driver's compiler out.

Each thread of the kernel form is a CUDA thread, each block a CUDA block of
exactly the kernel's threadgroup (``.reqntid``: the driver refuses to launch it
with another). Parameters are the buffers' 64-bit addresses, then the scalars,
each with its own size. Nothing is fused or approximated: every float operation
of the form is written with its rounding (``add.rn``), so that the driver's
compiler leaves it alone; only exp, log and tanh use fused multiply-adds inside. Of
kernels that are approximate, `approximate` says what may be.

A kernel that takes neighbours is there twice in one entry: for buffers that begin at
multiples of 16 bytes, with accesses of up to as many, and for others. It looks at the
addresses first.

An assertion that fails ends the launch by CUDA's own ``__assertfail``: the
driver prints the kernel, the code, the block and the thread, and reports
CUDA_ERROR_ASSERT (710), after which the context is lost. CUDA has no way to end
a grid early that leaves the context alive.

The same kernels give the same text in every process.

Source: LLVM, "User Guide for NVPTX Back-end"; PTX ISA, 5 (state spaces), 9.7.13
(bar.sync); CUDA C++ Programming Guide, assert().
"""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.compiler.emit import llvm
from accy_async.compiler.emit.metadata import Metadata
from accy_async.compiler.emit.naming import check_kernels
from accy_async.compiler.emit.ptx_function import PtxFunction
from accy_async.compiler.emit.target import PtxTarget, ptx_target
from accy_async.compiler.form import Kernel

__all__ = ["DEFAULT_PTX_TARGET", "compile_ptx", "emit_ptx_llvm_ir"]

DEFAULT_PTX_TARGET = "sm_80"
"""Runs on Ampere and everything after it."""

_REFUSED_NAMES = frozenset({"_", "WARP_SZ", "__assertfail"})
"""Identifiers of the kernel form that PTX keeps for itself or has no use for."""


def compile_ptx(
    kernels: Sequence[Kernel],
    *,
    target: str = DEFAULT_PTX_TARGET,
    ptx_version: str | None = None,
) -> str:
    """Compile kernels into one PTX module.

    Args:
        kernels: at least one, each with a name of its own.
        target: the least architecture that is to run it, as ``"sm_80"``; newer
            ones run it too.
        ptx_version: the PTX ISA version, as ``"8.0"``; None is the lowest that
            has the target, which the oldest drivers take.

    Returns:
        The text, the same for the same arguments.

    Raises:
        InvalidValue: no such target or version, no kernel, two of one name, or a
            name that PTX does not take.
        CompilationError: LLVM refused what was emitted.

    Blocks for some 10 ms a kernel: call it in a worker thread.
    """
    chosen = ptx_target(target, ptx_version)
    return llvm.emit_assembly(_module(kernels, chosen), chosen)


def emit_ptx_llvm_ir(
    kernels: Sequence[Kernel],
    *,
    target: str = DEFAULT_PTX_TARGET,
    optimised: bool = False,
) -> str:
    """The LLVM IR behind the PTX, as written or as LLVM optimises it."""
    chosen = ptx_target(target, None)
    module = _module(kernels, chosen)
    return llvm.optimised_ir(module, chosen) if optimised else module


def _module(kernels: Sequence[Kernel], target: PtxTarget) -> str:
    check_kernels(kernels, _REFUSED_NAMES.__contains__, "a name that PTX takes")
    kernels = [kernel.without_units() for kernel in kernels]
    metadata, externals, globals_ = Metadata(), set[str](), list[str]()
    functions, attributes = [], []
    for number, kernel in enumerate(kernels):
        function = PtxFunction(kernel, externals, metadata, number=number)
        functions.append(function.text())
        globals_ += function.globals
        size = ",".join(map(str, kernel.threadgroup))
        attributes.append(
            f'attributes #{number} = {{ nounwind "no-builtins" '
            f'"target-cpu"="{target.cpu}" "nvvm.reqntid"="{size}" }}'
        )
    return "\n\n".join(
        [
            f'target datalayout = "{llvm.data_layout(target)}"\n'
            f'target triple = "{target.triple}"',
            "\n".join(globals_),
            *functions,
            "\n".join(sorted(externals)),
            "\n".join(attributes),
            metadata.text(),
            "",
        ]
    )
