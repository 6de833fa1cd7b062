"""Composite operations written out in simpler ones.

Softmax, cross entropy, mean and einsum mean what their expansions mean, up to
rounding: an expansion of f16 or bf16 is computed in f32 throughout and rounded
where the composite is. A device that has a kernel for a composite keeps it; for
another, preparation asks for its expansion.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from accy_async.compiler.semantic.builder import FunctionBuilder
from accy_async.compiler.semantic.einsum import EinsumStep
from accy_async.compiler.semantic.kinds import ReductionKind
from accy_async.compiler.semantic.op import Op
from accy_async.compiler.semantic.products import DotGeneral, Einsum
from accy_async.compiler.semantic.program import Function, Operation
from accy_async.compiler.semantic.reductions import Reduce
from accy_async.compiler.semantic.rewriting import rewrite
from accy_async.compiler.semantic.rows import RowSparseCrossEntropy, Softmax
from accy_async.compiler.semantic.types import TensorType, Value
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue

__all__ = ["COMPOSITES", "expand", "expand_operation"]

COMPOSITES = ("softmax", "row_sparse_cross_entropy", "mean", "einsum")
"""The composites that `expand` knows; log_softmax counts as softmax."""


def expand(function: Function, composites: Collection[str] = COMPOSITES) -> Function:
    """The function with these composites written out, in loop bodies too.

    Raises:
        InvalidValue: a name that is none of `COMPOSITES`.
    """
    for name in composites:
        if name not in COMPOSITES:
            raise InvalidValue("composites", name, f"some of {', '.join(COMPOSITES)}")

    def rule(
        f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
    ) -> Sequence[Value] | None:
        if composite_of(entry.op) not in composites:
            return None
        return [expand_operation(f, entry.op, operands)]

    return rewrite(function, rule)


def composite_of(op: Op) -> str | None:
    """Which of `COMPOSITES` an op is."""
    match op:
        case Softmax():
            return "softmax"
        case RowSparseCrossEntropy():
            return "row_sparse_cross_entropy"
        case Reduce(kind=ReductionKind.MEAN):
            return "mean"
        case Einsum():
            return "einsum"
        case _:
            return None


def expand_operation(f: FunctionBuilder, op: Op, operands: Sequence[Value]) -> Value:
    """A composite's result, recorded as simpler operations.

    Raises:
        InvalidValue: the op is no composite.
    """
    match op:
        case Softmax():
            return _softmax(f, op, operands[0])
        case RowSparseCrossEntropy():
            return _cross_entropy(f, operands[0], operands[1])
        case Reduce(kind=ReductionKind.MEAN):
            return _mean(f, op, operands[0])
        case Einsum():
            return _einsum(f, op, operands)
        case _:
            raise InvalidValue("op", op.opcode, f"one of {', '.join(COMPOSITES)}")


def _widened(f: FunctionBuilder, value: Value) -> Value:
    half = value.dtype in (DType.F16, DType.BF16)
    return f.convert(value, DType.F32) if half else value


def _row_parts(f: FunctionBuilder, x: Value, axis: int) -> tuple[Value, Value]:
    """X less its greatest, and the sum of the exponentials of that, for each row."""
    greatest = f.reduce(x, "maximum", [axis], keepdims=True)
    shifted = f.sub(x, f.broadcast(greatest, x.shape))
    return shifted, f.reduce(f.exp(shifted), "sum", [axis], keepdims=True)


def _softmax(f: FunctionBuilder, op: Softmax, operand: Value) -> Value:
    if operand.shape[op.axis] == 0:
        return operand
    x = _widened(f, operand)
    shifted, total = _row_parts(f, x, op.axis)
    if op.log:
        result = f.sub(shifted, f.broadcast(f.log(total), x.shape))
    else:
        result = f.div(f.exp(shifted), f.broadcast(total, x.shape))
    return f.convert(result, operand.dtype)


def _cross_entropy(f: FunctionBuilder, logits: Value, labels: Value) -> Value:
    """The label's own logit is found by comparing, so no index leaves its row."""
    x = _widened(f, logits)
    axis = x.rank - 1
    classes = x.shape[axis]
    shifted, total = _row_parts(f, x, axis)
    # The counter must hold every class, and every label that is one.
    if classes - 1 > labels.dtype.maximum:
        labels = f.convert(labels, DType.I64)
    columns = f.iota(TensorType(labels.dtype, x.shape), axis)
    wanted = f.compare(columns, f.broadcast(labels, x.shape, range(axis)), "eq")
    chosen = f.reduce(f.select(wanted, shifted, 0.0), "sum", [axis])
    loss = f.sub(f.log(f.reshape(total, labels.shape)), chosen)
    found = f.reduce(wanted, "maximum", [axis])
    return f.convert(f.select(found, loss, float("nan")), logits.dtype)


def _mean(f: FunctionBuilder, op: Reduce, operand: Value) -> Value:
    count = 1
    for axis in op.axes:
        count *= operand.shape[axis]
    if count == 0:
        return f.constant(float("nan"), op.infer((operand.type,))[0])
    x = f.convert(operand, op.accumulate)
    total = f.reduce(x, "sum", op.axes, keepdims=op.keepdims, accumulate=op.accumulate)
    divisor = f.constant(float(count), total.type)
    return f.convert(f.div(total, divisor), operand.dtype)


def _einsum(f: FunctionBuilder, op: Einsum, operands: Sequence[Value]) -> Value:
    spec = op.spec
    current, letters = _simplified(f, op, 0, operands[0])
    steps = spec.steps()
    for index, step in enumerate(steps, 1):
        rhs, _ = _simplified(f, op, index, operands[index])
        result = op.result if index == len(steps) else operands[0].dtype
        current, letters = _product(f, op, step, current, rhs, result)
    current = f.convert(current, op.result)
    return f.transpose(current, [letters.index(letter) for letter in spec.result])


def _simplified(
    f: FunctionBuilder, op: Einsum, index: int, operand: Value
) -> tuple[Value, str]:
    """The operand without repeated letters and letters that it has alone."""
    spec = op.spec
    value, letters = _diagonals(f, operand, spec.operands[index])
    kept = spec.simplified(index)
    alone = [axis for axis, letter in enumerate(letters) if letter not in kept]
    if alone:
        value = f.reduce(value, "sum", alone, accumulate=op.accumulate)
        letters = "".join(letter for letter in letters if letter in kept)
    return f.transpose(value, [letters.index(letter) for letter in kept]), kept


def _diagonals(f: FunctionBuilder, value: Value, letters: str) -> tuple[Value, str]:
    """One axis for each letter: of a repeated one, the elements of equal indices.

    The two axes are brought to the end and made one; equal indices are then
    ``extent + 1`` elements apart.
    """
    while len(set(letters)) < len(letters):
        letter = next(c for c in letters if letters.count(c) > 1)
        first = letters.index(letter)
        second = letters.index(letter, first + 1)
        others = [a for a in range(len(letters)) if a not in (first, second)]
        value = f.transpose(value, [*others, first, second])
        extent = value.shape[-1]
        outer = value.shape[:-2]
        flat = f.reshape(value, (*outer, extent * extent))
        value = f.slice(
            flat,
            [0] * len(flat.shape),
            flat.shape,
            [*(1 for _ in outer), extent + 1],
        )
        letters = "".join(letters[a] for a in others) + letter
    return value, letters


def _product(
    f: FunctionBuilder,
    op: Einsum,
    step: EinsumStep,
    lhs: Value,
    rhs: Value,
    result: DType,
) -> tuple[Value, str]:
    """One product as a contraction; the letters of its axes, in their order."""
    batch, contracted = step.batch, step.contracted
    lone = [c for c in step.lhs if c not in step.rhs]
    lone += [c for c in step.rhs if c not in step.lhs]
    dot = DotGeneral(
        op.accumulate,
        result,
        tuple(step.lhs.index(c) for c in contracted),
        tuple(step.rhs.index(c) for c in contracted),
        tuple(step.lhs.index(c) for c in batch),
        tuple(step.rhs.index(c) for c in batch),
    )
    letters = batch + "".join(lone)
    value = f.record_one(dot, lhs, rhs)
    kept = [axis for axis, c in enumerate(letters) if c not in step.result]
    assert not kept, "letters that one operand has alone are summed before"
    order = [letters.index(letter) for letter in step.result]
    return f.transpose(value, order), step.result
