"""From a program to a compiled fragment, for the device that a backend drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accy_async.backends.completion import run_abandonable
from accy_async.compiler.preparation import (
    FragmentCompilerOptions,
    FragmentPhase,
    PreparedJob,
    TargetProfile,
    compile_plan,
    prepare,
)
from accy_async.compiler.semantic import Module
from accy_async.compiler.tracing import Fragment, TracedProgram
from accy_async.errors import InvalidType
from accy_async.fragment.compiled import CompiledFragment
from accy_async.fragment.specs import argument_types

if TYPE_CHECKING:
    from accy_async.artifact.store import ArtifactStore
    from accy_async.backends.base import Backend

__all__ = ["Program", "compile_fragment", "compile_program", "target_profile"]

Program = Callable[..., Any] | Module | TracedProgram | PreparedJob
"""What can be compiled: a function of arrays, or what such a function became."""


class _Abandoned(Exception):
    """Nobody waits for the compiling any more."""


def target_profile(
    backend: Backend, options: FragmentCompilerOptions | None = None
) -> TargetProfile:
    """What code for a backend's device is made for.

    Raises:
        UnsupportedOperation: the device does not load the options' format.
    """
    options = options or FragmentCompilerOptions()
    return TargetProfile(
        capabilities=backend.capabilities,
        format=options.artifact_format or backend.default_format,
        math_tier=options.math_tier,
    )


async def compile_fragment(
    backend: Backend,
    program: Program,
    *specs: object,
    options: FragmentCompilerOptions | None = None,
    cache: bool | ArtifactStore = True,
    **named: object,
) -> CompiledFragment:
    """Trace, prepare and compile a program for a device, on a worker thread.

    Code that was made before is found on disk.

    Args:
        backend: whose device it is for; nothing is loaded.
        program: a function of arrays, a decorated one, a traced program, a module,
            or a prepared job, which is not prepared again.
        specs: of a function, the type of each argument, nested as the argument is:
            a text such as ``"f32[8,4]"``, a `TensorType`, or an array (what has a
            shape and a dtype). Numbers and None are constants of the program.
        options: schedules, tuning artifacts, a registry of kernels; who is told of
            phases (on the worker thread). A prepared job has its own, and of these
            only ``instrumentation`` counts for it.
        cache: True for the user's own store, False for none, or a store.
        named: types of arguments by name.

    Raises:
        InvalidType: ``program`` is none, or types are given with a program that has
            them already; or one of them is no type, and no number.
        InvalidValue: a text writes no type.
        LaunchArgumentMismatch: the function takes more arguments, fewer, or others by
            name.
        InvalidProgram: a step cannot be traced; names the line.
        PassFailed: a pass refused the program; names the operation.
        UnsupportedOperation, CapabilityMismatch: this device or format cannot do it.
        RuntimeUnavailable: a compiler is not installed; the message says which.
        OutOfMemory: the program outgrew its limits.

    Cancellation: returns at once; the thread stops at its next kernel.
    """
    _check(program, specs, named)
    if not isinstance(program, (Module, TracedProgram, PreparedJob)):
        specs, named = argument_types(program, specs, named)
    return await compile_program(
        backend, program, specs, named, options=options, cache=cache
    )


async def compile_program(
    backend: Backend,
    program: Program,
    specs: Sequence[object] = (),
    named: Mapping[str, object] | None = None,
    *,
    options: FragmentCompilerOptions | None = None,
    cache: bool | ArtifactStore = True,
) -> CompiledFragment:
    """As `compile_fragment`, for the arguments of a call.

    There whatever is no array and no type is a constant of the program, not numbers
    alone.
    """
    options = options or FragmentCompilerOptions()
    is_abandoned = False

    def check_cancelled() -> None:
        if is_abandoned:
            raise _Abandoned

    def compile_it() -> CompiledFragment:
        told = options.instrumentation
        traced: TracedProgram | None = None
        if isinstance(program, PreparedJob):
            job = program
        else:
            module = program
            if not isinstance(module, Module):
                traced = _trace(module, specs, named or {}, options)
                module = traced.module
            profile = target_profile(backend, options)
            job = prepare(module, profile, options, check_cancelled=check_cancelled)
        plan = compile_plan(
            job,
            create_artifact=backend.create_artifact,
            cache=cache,
            check_cancelled=check_cancelled,
            instrumentation=told,
        )
        return CompiledFragment(plan, traced)

    try:
        return await run_abandonable(
            compile_it, lambda _: None, name=f"compile {_title(program)}"
        )
    except BaseException:
        is_abandoned = True
        raise


def traced_program(
    program: Program, specs: Sequence[object], options: FragmentCompilerOptions
) -> Callable[[], TracedProgram | Module | PreparedJob]:
    """What traces a program on a thread, once it is known to be one.

    Raises:
        InvalidType, InvalidValue, LaunchArgumentMismatch: as `compile_fragment`.
    """
    _check(program, tuple(specs), {})
    if isinstance(program, (Module, TracedProgram, PreparedJob)):
        return lambda: program
    function = program
    typed, named = argument_types(function, specs, {})
    return lambda: _trace(function, typed, named, options)


def _trace(
    program: Callable[..., Any] | TracedProgram,
    specs: Sequence[object],
    named: Mapping[str, object],
    options: FragmentCompilerOptions,
) -> TracedProgram:
    if isinstance(program, TracedProgram):
        return program
    with options.instrumentation.timed(FragmentPhase.LOWER_TENSOR_PROGRAM):
        if isinstance(program, Fragment):
            return program.trace(*specs, **named)
        # As a decorated function's: arguments may have any names there.
        limits = options.semantic_context_limits
        return Fragment(program, limits=limits).trace(*specs, **named)


def _check(
    program: object, specs: tuple[object, ...], named: dict[str, object]
) -> None:
    if isinstance(program, (Module, TracedProgram, PreparedJob)):
        if specs or named:
            expected = "none: the program has its own"
            raise InvalidType("compile_fragment.specs", specs or named, expected)
    elif not callable(program):
        raise InvalidType(
            "compile_fragment.program",
            program,
            "a function of arrays, a Module, a TracedProgram or a PreparedJob",
        )


def _title(program: object) -> str:
    if isinstance(program, TracedProgram):
        program = program.module
    named = getattr(program, "name", None) or getattr(program, "__name__", None)
    return named if isinstance(named, str) else type(program).__name__
