"""The only door to LLVM: text in, optimised text or object code out.

LLVM answers a broken module with an assertion that ends the process, so the
text is parsed and verified before anything else touches it. Each call has its
own LLVM context; one call runs at a time, from whatever thread.
"""

from __future__ import annotations

import threading
from typing import Any, cast

import llvmlite.binding as llvm
from llvmlite.binding.ffi import ObjectRef

from accy_async.compiler.emit.target import CpuTarget, PtxTarget
from accy_async.errors import CompilationError

__all__ = ["Target", "data_layout", "emit_assembly", "emit_object", "optimised_ir"]

Target = CpuTarget | PtxTarget

_Untyped = Any  # llvmlite has no types

_lock = threading.Lock()
_initialized = False


def emit_object(module_text: str, target: CpuTarget) -> bytes:
    """A relocatable ELF object.

    Raises:
        CompilationError: LLVM refused the text; a bug of the emitter.
    """
    with _lock:
        machine = _machine(target)
        return cast("bytes", machine.emit_object(_optimise(module_text, machine)))


def emit_assembly(module_text: str, target: Target) -> str:
    """The same as assembly text."""
    with _lock:
        machine = _machine(target)
        return cast("str", machine.emit_assembly(_optimise(module_text, machine)))


def optimised_ir(module_text: str, target: Target) -> str:
    """The module's IR after optimisation."""
    with _lock:
        return str(_optimise(module_text, _machine(target)))


def data_layout(target: Target) -> str:
    """The data layout that modules of a target declare."""
    with _lock:
        return str(_machine(target).target_data)


def _machine(target: Target) -> _Untyped:
    global _initialized
    if not _initialized:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        _initialized = True
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=3,
        reloc="pic",
        codemodel="small",
    )


def _optimise(module_text: str, machine: _Untyped) -> _Untyped:
    try:
        module = llvm.parse_assembly(module_text, context=llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise CompilationError("LLVM refused a module", log=str(error)) from error
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = True
    options.loop_interleaving = True
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    manager = builder.getModulePassManager()
    try:
        manager.run(module, builder)
    finally:
        _dispose(manager)
    return module


def _dispose(manager: _Untyped) -> None:
    """Free a pass manager: some 50 to 100 KiB, which llvmlite never does by itself.

    Its managers find the `_dispose` of the wrong base class, which does nothing
    (llvmlite 0.50, binding/newpassmanagers.py).
    """
    for base in type(manager).__mro__:
        dispose = vars(base).get("_dispose")
        if dispose is not None and base is not ObjectRef:
            dispose(manager)
            break
    manager.detach()
