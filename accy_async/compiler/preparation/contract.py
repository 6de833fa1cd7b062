"""The first phase: whether the target can take the program at all."""

from __future__ import annotations

from collections.abc import Iterator

from accy_async.artifact.entry import (
    ElementCountArgument,
    KernelCallArtifact,
    KernelCallRegistry,
)
from accy_async.compiler.kernelization import TargetProfile
from accy_async.compiler.preparation.passes import PassContext, Pipeline
from accy_async.compiler.semantic import (
    Function,
    KernelCall,
    Loop,
    Module,
    Operation,
    TensorType,
)
from accy_async.errors import CapabilityMismatch, InvalidProgram

__all__ = ["CONTRACT_PASSES", "check_contract"]

CONTRACT_PASSES = ("types", "kernel_calls")
"""The passes of the phase."""


def check_contract(
    module: Module,
    profile: TargetProfile,
    registry: KernelCallRegistry,
    pipeline: Pipeline,
) -> Function:
    """The module's entry function, once it is sure that the target can take it.

    Raises:
        CapabilityMismatch: the device lacks a dtype of the program.
        KernelEntryMissing: the registry lacks a kernel that is called.
        PassFailed: a call does not fit its kernel.
    """
    function = module.entry
    context = pipeline.context
    pipeline.run("types", _check_types, function, profile, context)
    pipeline.run("kernel_calls", _check_calls, function, profile, registry, context)
    return function


def _operations(function: Function) -> Iterator[Operation]:
    """All operations, those of loop bodies among them."""
    for entry in function.operations:
        yield entry
        if isinstance(entry.op, Loop):
            yield from _operations(entry.op.body)


def _check_types(
    function: Function, profile: TargetProfile, context: PassContext
) -> None:
    capabilities = profile.capabilities

    def check(type: TensorType, what: str) -> None:
        if type.dtype not in capabilities.dtypes:
            raise CapabilityMismatch(
                f"{what} is {type}, {capabilities.identity.name} lacks {type.dtype}"
            )

    for name, value in zip(function.parameter_names, function.parameters, strict=True):
        check(value.type, f"parameter {name}")
    for entry in _operations(function):
        context.at(entry)
        for value in entry.results:
            check(value.type, f"{entry.op.opcode}: the result")


def _check_calls(
    function: Function,
    profile: TargetProfile,
    registry: KernelCallRegistry,
    context: PassContext,
) -> None:
    for entry in _operations(function):
        context.at(entry)
        if isinstance(entry.op, KernelCall):
            call = entry.op
            kernel = registry.get(call.target, call.version, profile.format)
            _check_call(entry, call, kernel)


def _check_call(entry: Operation, call: KernelCall, kernel: KernelCallArtifact) -> None:
    values = (*entry.results, *entry.operands)
    counted = kernel.element_count_argument is ElementCountArgument.BUFFER_U32
    taken = kernel.buffer_argument_count - int(counted)
    if taken != len(values):
        raise InvalidProgram(
            f"{call.target!r} takes {taken} buffers, the call has "
            f"{len(entry.results)} results and {len(entry.operands)} operands"
        )
    # The element count, if it is a buffer, is the last and no value of the program.
    for number, (value, buffer) in enumerate(zip(values, kernel.buffers, strict=False)):
        if buffer.dtype is not value.dtype:
            raise InvalidProgram(
                f"{call.target!r} takes {buffer.dtype} for buffer {number}, the call "
                f"has {value.type}"
            )
        operand = number - len(entry.results)
        is_written = operand >= 0 and buffer.is_written
        if is_written and not call.operand_effects[operand].writes:
            raise InvalidProgram(
                f"{call.target!r} writes buffer {number}, operand {operand} of the "
                f"call is said to be {call.operand_effects[operand]}"
            )
