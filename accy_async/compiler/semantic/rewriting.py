"""Making a function of another, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from accy_async.compiler.semantic.builder import FunctionBuilder
from accy_async.compiler.semantic.limits import ContextLimits
from accy_async.compiler.semantic.loops import Loop
from accy_async.compiler.semantic.op import Op
from accy_async.compiler.semantic.program import Function, Module, Operation
from accy_async.compiler.semantic.recorder import Context
from accy_async.compiler.semantic.types import Value

__all__ = ["Rule", "rewrite", "rewrite_module"]

Rule = Callable[[FunctionBuilder, Operation, tuple[Value, ...]], Sequence[Value] | None]
"""Given the builder of the new function, an old operation and its new operands:
the values that take the place of its results, or None to keep it as it is."""


def rewrite(
    function: Function, rule: Rule, *, limits: ContextLimits = ContextLimits.STANDARD
) -> Function:
    """The function with each operation replaced as the rule says, canonical.

    Loop bodies are rewritten too, before their loop is shown to the rule. Names
    and locations stay; the parameters and the results' types are the same.

    Raises:
        InvalidProgram: what the rule gives does not fit the program.
        OutOfMemory: the program outgrew the limits.
    """
    finished: list[Function] = []
    f = FunctionBuilder(
        Context(limits),
        function.name,
        function.parameter_types,
        function.result_types,
        function.parameter_names,
        finished.append,
    )
    renamed = dict(zip(function.parameters, f.parameters, strict=True))
    for entry in function.operations:
        operands = tuple(renamed[value] for value in entry.operands)
        f.location = _constantly(entry.location)
        op: Op = entry.op
        if isinstance(op, Loop):
            op = attrs.evolve(op, body=rewrite(op.body, rule, limits=limits))
            entry = attrs.evolve(entry, op=op)
        given = rule(f, entry, operands)
        results = f.record(op, operands) if given is None else given
        renamed.update(zip(entry.results, results, strict=True))
    f.return_([renamed[value] for value in function.results])
    return f.finish()


def rewrite_module(
    module: Module, rule: Rule, *, limits: ContextLimits = ContextLimits.STANDARD
) -> Module:
    """The module with each function rewritten."""
    functions = tuple(rewrite(f, rule, limits=limits) for f in module.functions)
    return attrs.evolve(module, functions=functions)


def _constantly(location: str | None) -> Callable[[], str | None]:
    return lambda: location
