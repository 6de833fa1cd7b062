"""The operations of the kernel form as LLVM instructions.

Each is written so that no input reaches an undefined or poisoned result: shift
amounts are masked, divisors of 0 and -1 replaced, float casts saturate.
"""

from __future__ import annotations

from accy_async.compiler.emit.halves import from_f32, to_f32
from accy_async.compiler.emit.writer import FunctionWriter, value_type
from accy_async.compiler.form import (
    Binary,
    BinaryOperation,
    Comparison,
    Constant,
    UnaryOperation,
)
from accy_async.dtypes import DType

__all__ = ["binary", "bitcast", "cast", "compare", "integer_as_i64", "unary"]

_U = UnaryOperation
_B = BinaryOperation
_MATH = {
    _U.ABSOLUTE: "fabs",
    _U.EXP: "exp",
    _U.LOG: "log",
    _U.SQRT: "sqrt",
    _U.TANH: "tanh",
    _U.FLOOR: "floor",
    _U.CEILING: "ceil",
    _U.TRUNCATE: "trunc",
    _U.ROUND_EVEN: "roundeven",
}
_SIMPLE = {
    _B.ADD: ("add", "fadd"),
    _B.SUBTRACT: ("sub", "fsub"),
    _B.MULTIPLY: ("mul", "fmul"),
    _B.AND: ("and", ""),
    _B.OR: ("or", ""),
    _B.XOR: ("xor", ""),
}
_ORDERINGS = {
    Comparison.LESS: "lt",
    Comparison.LESS_EQUAL: "le",
    Comparison.GREATER: "gt",
    Comparison.GREATER_EQUAL: "ge",
}


def _suffix(dtype: DType) -> str:
    return f"f{dtype.bits}" if dtype.is_float else f"i{dtype.bits}"


def unary(writer: FunctionWriter, op: UnaryOperation, dtype: DType, value: str) -> str:
    """One operation on one value."""
    kind = value_type(dtype)
    if op is _U.NOT:
        return writer.value(f"xor {kind} {value}, {'true' if kind == 'i1' else -1}")
    if op is _U.NEGATE:
        if dtype.is_float:
            return writer.value(f"fneg {kind} {value}")
        return writer.value(f"sub {kind} 0, {value}")
    if op is _U.ABSOLUTE and dtype.is_integer:
        if not dtype.is_signed:
            return value
        name = f"llvm.abs.{_suffix(dtype)}"
        return writer.call(kind, name, (kind, value), ("i1", "false"))
    return writer.call(kind, f"llvm.{_MATH[op]}.{_suffix(dtype)}", (kind, value))


def binary(
    writer: FunctionWriter, node: Binary, left: str, right: str, flags: str = ""
) -> str:
    """One operation on two values of one dtype; ``flags`` are those of floats'."""
    op, dtype = node.operation, node.dtype
    kind = value_type(dtype)
    if op in _SIMPLE:
        if dtype.is_float:
            return writer.value(f"{_SIMPLE[op][1]} {flags}{kind} {left}, {right}")
        return writer.value(f"{_SIMPLE[op][0]} {kind} {left}, {right}")
    if op in (_B.MINIMUM, _B.MAXIMUM):
        word = "min" if op is _B.MINIMUM else "max"
        if dtype.is_float:
            name = f"llvm.{word}imumnum.{_suffix(dtype)}"
        else:
            name = f"llvm.{'s' if dtype.is_signed else 'u'}{word}.{_suffix(dtype)}"
        return writer.call(kind, name, (kind, left), (kind, right))
    if op in (_B.SHIFT_LEFT, _B.SHIFT_RIGHT):
        amount = writer.value(f"and {kind} {right}, {dtype.bits - 1}")
        right_shift = "ashr" if dtype.is_signed else "lshr"
        word = "shl" if op is _B.SHIFT_LEFT else right_shift
        return writer.value(f"{word} {kind} {left}, {amount}")
    if dtype.is_float:
        return writer.value(f"fdiv {flags}{kind} {left}, {right}")
    return _divide(writer, node, left, right)


def _divide(writer: FunctionWriter, node: Binary, left: str, right: str) -> str:
    """Integer division that is defined for all divisors."""
    dtype = node.dtype
    kind = value_type(dtype)
    is_quotient = node.operation is _B.DIVIDE
    sign = "s" if dtype.is_signed else "u"
    word = f"{sign}{'div' if is_quotient else 'rem'}"
    known = node.right.scalar.value if isinstance(node.right, Constant) else None
    if known is not None and known not in (0, -1):
        return writer.value(f"{word} {kind} {left}, {right}")
    op = writer.value
    unsafe = is_zero = op(f"icmp eq {kind} {right}, 0")
    if dtype.is_signed:
        is_minus_one = op(f"icmp eq {kind} {right}, -1")
        unsafe = op(f"or i1 {is_zero}, {is_minus_one}")
    divisor = op(f"select i1 {unsafe}, {kind} 1, {kind} {right}")
    result = op(f"{word} {kind} {left}, {divisor}")
    if dtype.is_signed and is_quotient:
        negated = op(f"sub {kind} 0, {left}")
        result = op(f"select i1 {is_minus_one}, {kind} {negated}, {kind} {result}")
    return op(f"select i1 {is_zero}, {kind} 0, {kind} {result}")


def compare(
    writer: FunctionWriter, op: Comparison, dtype: DType, left: str, right: str
) -> str:
    """A comparison; an i1."""
    kind = value_type(dtype)
    if dtype.is_float:
        words = {Comparison.EQUALS: "oeq", Comparison.DIFFERS: "une"}
        word = words.get(op) or f"o{_ORDERINGS[op]}"
        return writer.value(f"fcmp {word} {kind} {left}, {right}")
    words = {Comparison.EQUALS: "eq", Comparison.DIFFERS: "ne"}
    sign = "s" if dtype.is_signed else "u"
    word = words.get(op) or f"{sign}{_ORDERINGS[op]}"
    return writer.value(f"icmp {word} {kind} {left}, {right}")


def cast(
    writer: FunctionWriter, source: DType, target: DType, value: str, *, native: bool
) -> str:
    """A value in another dtype."""
    halves = (DType.F16, DType.BF16)
    if source is target:
        return value
    if source in halves:
        return to_f32(writer, source, value, native=native)
    if target in halves:
        return from_f32(writer, target, value, native=native)
    old, new = value_type(source), value_type(target)
    if source.is_float and target.is_float:
        word = "fpext" if target.bits > source.bits else "fptrunc"
        return writer.value(f"{word} {old} {value} to {new}")
    if source.is_float:
        sign = "s" if target.is_signed else "u"
        name = f"llvm.fpto{sign}i.sat.{_suffix(target)}.{_suffix(source)}"
        return writer.call(new, name, (old, value))
    signed = source.is_integer and source.is_signed
    if target.is_float:
        return writer.value(f"{'si' if signed else 'ui'}tofp {old} {value} to {new}")
    if target.bits == source.bits:
        return value
    if target.bits < source.bits:
        return writer.value(f"trunc {old} {value} to {new}")
    return writer.value(f"{'sext' if signed else 'zext'} {old} {value} to {new}")


def bitcast(writer: FunctionWriter, source: DType, target: DType, value: str) -> str:
    """The same bits as another dtype."""
    old, new = value_type(source), value_type(target)
    return value if old == new else writer.value(f"bitcast {old} {value} to {new}")


def integer_as_i64(writer: FunctionWriter, dtype: DType, value: str) -> str:
    """An integer extended by its own sign to 64 bits."""
    wide = DType.I64 if dtype.is_signed else DType.U64
    return cast(writer, dtype, wide, value, native=False)
