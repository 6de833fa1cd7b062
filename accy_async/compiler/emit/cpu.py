"""Native code for CPUs: kernels in, an object file or machine code out.

The code keeps `accy_async.artifact.native.abi`. It calls nothing but functions
of the C library's mathematics, and of those only `exp`, `log`, `tanh` and their float
forms on levels without fused multiply-adds, which compute them in vectors themselves,
and the roundings on x86-64-v1, which has no instructions for them. LLVM is told not
to turn loops into calls of memory functions. The same kernels give the same
bytes in every process.
"""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.artifact.native.abi import SIGNATURE_SECTION, SIGNATURE_SYMBOL
from accy_async.artifact.native.imports import IMPORTABLE
from accy_async.artifact.native.signature import SignatureTable, encode_signatures
from accy_async.compiler.emit import llvm
from accy_async.compiler.emit.function import KernelFunction
from accy_async.compiler.emit.metadata import Metadata
from accy_async.compiler.emit.naming import check_kernels
from accy_async.compiler.emit.target import CpuTarget, cpu_target
from accy_async.compiler.form import Kernel
from accy_async.errors import InvalidValue

__all__ = ["compile_cpu", "emit_cpu_assembly", "emit_llvm_ir"]

# 512-bit vectors ran 10 % slower on a Zen 4 core (add of 10M f32) and no kernel faster.
_VECTOR_BITS = 256


def compile_cpu(
    kernels: Sequence[Kernel], *, format: str, level: str | None = None
) -> bytes:
    """Compile kernels into one payload.

    Args:
        kernels: at least one, each with a name of its own.
        format: ``"cpu_object"`` for a relocatable ELF object, or
            ``"cpu_machine_code"`` for its linked, position-independent image.
        level: the instruction-set level, as `SignatureTable.level` names it;
            None is this host's.

    Returns:
        The payload, the same bytes for the same arguments.

    Raises:
        InvalidValue: no such format or level, no kernel, or two of one name.
        CompilationError: LLVM refused what was emitted.

    Blocks for some 20 ms a kernel: call it in a worker thread.
    """
    if format not in ("cpu_object", "cpu_machine_code"):
        raise InvalidValue("format", format, "'cpu_object' or 'cpu_machine_code'")
    target = _target(level)
    payload = llvm.emit_object(_module(kernels, target), target)
    if format == "cpu_object":
        return payload
    from accy_async.artifact.native.link import link_object

    return link_object(payload)


def emit_llvm_ir(
    kernels: Sequence[Kernel], *, level: str | None = None, optimised: bool = False
) -> str:
    """The LLVM IR of kernels, as written or as LLVM optimises it."""
    target = _target(level)
    module = _module(kernels, target)
    return llvm.optimised_ir(module, target) if optimised else module


def emit_cpu_assembly(kernels: Sequence[Kernel], *, level: str | None = None) -> str:
    """The assembly text of kernels, for reading."""
    target = _target(level)
    return llvm.emit_assembly(_module(kernels, target), target)


def _target(level: str | None) -> CpuTarget:
    if level is None:
        from accy_async.artifact.native.host import host_level

        level = host_level()
    return cpu_target(level)


def _module(kernels: Sequence[Kernel], target: CpuTarget) -> str:
    check_kernels(kernels, _is_taken, "no symbol that code refers to")
    kernels = [kernel.without_units() for kernel in kernels]
    table = SignatureTable(
        architecture=target.architecture,
        level=target.level,
        kernels=tuple(kernel.signature for kernel in kernels),
    )
    metadata, externals = Metadata(), set[str]()
    functions = [
        KernelFunction(
            kernel,
            externals,
            metadata,
            converts_halves=target.converts_halves,
            multiplies_and_adds=target.multiplies_and_adds,
        ).text()
        for kernel in kernels
    ]
    signatures = encode_signatures(table)
    escaped = "".join(f"\\{byte:02X}" for byte in signatures)
    attributes = (
        f'nounwind "no-builtins" "target-cpu"="{target.cpu}" '
        f'"prefer-vector-width"="{_VECTOR_BITS}"'
    )
    return "\n\n".join(
        [
            f'target datalayout = "{llvm.data_layout(target)}"\n'
            f'target triple = "{target.triple}"',
            f"@{SIGNATURE_SYMBOL} = constant [{len(signatures)} x i8] "
            f'c"{escaped}", section "{SIGNATURE_SECTION}", align 1',
            *functions,
            "\n".join(sorted(externals)),
            f"attributes #0 = {{ {attributes} }}",
            metadata.text(),
            "",
        ]
    )


def _is_taken(name: str) -> bool:
    return name == SIGNATURE_SYMBOL or name in IMPORTABLE
