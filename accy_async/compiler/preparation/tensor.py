"""The second phase: operations that no kernel is made of, written in those that are."""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.compiler.preparation.families import matrix_product_call
from accy_async.compiler.preparation.loops import loop_rule
from accy_async.compiler.preparation.passes import PassContext, Pipeline
from accy_async.compiler.preparation.schedules import Schedules
from accy_async.compiler.preparation.simplification import simplified
from accy_async.compiler.semantic import (
    ContextLimits,
    DotGeneral,
    Einsum,
    Function,
    FunctionBuilder,
    KernelCall,
    Loop,
    Op,
    Operation,
    Reduce,
    ReductionKind,
    RowSparseCrossEntropy,
    Softmax,
    Value,
    expand_operation,
    rewrite,
)
from accy_async.compiler.semantic.rewriting import Rule

__all__ = ["TENSOR_PASSES", "lower_tensor"]

TENSOR_PASSES = (
    "loop_unrolling",
    "einsum_lowering",
    "product_selection",
    "row_lowering",
    "simplification",
)
"""The passes of the phase."""


def lower_tensor(
    function: Function,
    schedules: Schedules,
    registry: KernelCallRegistry,
    limits: ContextLimits,
    pipeline: Pipeline,
) -> Function:
    """The function in operations that kernels are made of.

    Softmax and the cross entropy of rows stay: kernels over rows compute them.

    Raises:
        UnsupportedOperation: a loop is too long to be written out.
        OutOfMemory: the program outgrew the limits.
        PassFailed: a schedule that was measured as the fastest is none.
    """
    products = _Products(schedules, registry)
    rules: tuple[tuple[str, Rule, tuple[type[Op], ...]], ...] = (
        ("loop_unrolling", loop_rule, (Loop,)),
        ("einsum_lowering", products.einsum, (Einsum,)),
        ("product_selection", products.dot_general, (DotGeneral,)),
        ("row_lowering", _rows, (Reduce, Softmax, RowSparseCrossEntropy)),
    )
    for name, rule, ops in rules:
        noting = _noting(pipeline.context, rule)
        function = pipeline.run(name, _rewritten, function, noting, ops, limits)
    return pipeline.run("simplification", simplified, function, limits=limits)


def _rewritten(
    function: Function, rule: Rule, ops: tuple[type[Op], ...], limits: ContextLimits
) -> Function:
    """The function rewritten, if it has operations that the rule is for."""
    if not any(isinstance(entry.op, ops) for entry in function.operations):
        return function
    return rewrite(function, rule, limits=limits)


def _noting(context: PassContext, rule: Rule) -> Rule:
    """The rule, which first says which operation it is at."""

    def noting(
        f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
    ) -> Sequence[Value] | None:
        context.at(entry)
        return rule(f, entry, operands)

    return noting


def _rows(
    f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
) -> Sequence[Value] | None:
    """A mean as a sum and a quotient; a softmax of rows of one element likewise.

    A kernel over rows computes them with what comes before and after.
    """
    match entry.op:
        case Reduce(kind=ReductionKind.MEAN):
            return [expand_operation(f, entry.op, operands)]
        case Softmax(axis=axis) if operands[0].shape[axis] <= 1:
            return [expand_operation(f, entry.op, operands)]
        case RowSparseCrossEntropy() if operands[0].shape[-1] == 1:
            return [expand_operation(f, entry.op, operands)]
        case _:
            return None


class _Products:
    """The rules for products: ready-made kernels where there are, else contractions."""

    def __init__(self, schedules: Schedules, registry: KernelCallRegistry) -> None:
        self._schedules = schedules
        self._registry = registry

    def einsum(
        self, f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
    ) -> Sequence[Value] | None:
        """An einsum as a call, or as contractions one after the other."""
        op = entry.op
        if not isinstance(op, Einsum):
            return None
        plain = _matrix_product(op)
        call = None if plain is None else self._call(plain, operands)
        if call is not None:
            return f.record(call, operands)
        return [expand_operation(f, op, operands)]

    def dot_general(
        self, f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
    ) -> Sequence[Value] | None:
        """A contraction as a call, where the registry has the kernel.

        One that sums nothing becomes products of elements, which kernels of other
        operations take in.
        """
        if not isinstance(entry.op, DotGeneral):
            return None
        if not entry.op.lhs_contracting:
            return [_multiplied(f, entry.op, *operands)]
        call = self._call(entry.op, operands)
        return None if call is None else f.record(call, operands)

    def _call(self, op: DotGeneral, operands: tuple[Value, ...]) -> KernelCall | None:
        lhs, rhs = (value.type for value in operands)
        return matrix_product_call(op, lhs, rhs, self._registry, self._schedules)


def _multiplied(f: FunctionBuilder, op: DotGeneral, lhs: Value, rhs: Value) -> Value:
    """A contraction of no axes: each element of the one times each of the other."""
    (type,) = op.infer((lhs.type, rhs.type))
    lhs_free, rhs_free = op.free_axes(lhs.type, rhs.type)
    batch = list(range(len(op.lhs_batch)))
    middle = len(batch) + len(lhs_free)
    factors = []
    for value, shared, free, places in (
        (lhs, op.lhs_batch, lhs_free, range(len(batch), middle)),
        (rhs, op.rhs_batch, rhs_free, range(middle, type.rank)),
    ):
        moved = f.transpose(f.convert(value, op.accumulate), [*shared, *free])
        factors.append(f.broadcast(moved, type.shape, [*batch, *places]))
    return f.convert(f.mul(*factors), op.result)


def _matrix_product(op: Einsum) -> DotGeneral | None:
    """The contraction that an einsum such as ``mk,kn->mn`` is; None for others."""
    if len(op.spec.operands) != 2:
        return None
    lhs, rhs = op.spec.operands
    letters = [*lhs, *rhs[1:]]
    if len(lhs) != 2 or len(rhs) != 2 or len(set(letters)) != 3:
        return None
    if lhs[1] != rhs[0] or op.spec.result != lhs[0] + rhs[1]:
        return None
    return DotGeneral(op.accumulate, op.result, (1,), (0,))
