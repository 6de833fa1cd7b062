"""Functions that make expressions, beside Python's operators."""

from __future__ import annotations

from accy_async.compiler.form.expressions import (
    Binary,
    Expression,
    MultiplyAdd,
    Operand,
    Select,
    Unary,
    constant,
    operands,
)
from accy_async.compiler.form.operations import BinaryOperation, UnaryOperation

__all__ = [
    "ceiling",
    "exp",
    "floor",
    "log",
    "maximum",
    "minimum",
    "multiply_add",
    "round_even",
    "select",
    "sqrt",
    "tanh",
    "truncate",
]


def select(condition: Expression, then: Operand, otherwise: Operand) -> Expression:
    """``then`` where the condition holds, else ``otherwise``; both are evaluated."""
    return Select(condition, *operands("select", then, otherwise))


def minimum(left: Operand, right: Operand) -> Expression:
    """The smaller of two values; a NaN loses to a number."""
    return Binary(BinaryOperation.MINIMUM, *operands("minimum", left, right))


def maximum(left: Operand, right: Operand) -> Expression:
    """The larger of two values; a NaN loses to a number."""
    return Binary(BinaryOperation.MAXIMUM, *operands("maximum", left, right))


def multiply_add(left: Expression, right: Operand, addend: Operand) -> Expression:
    """``left * right + addend`` of f32 or f64, rounded once or twice."""
    return MultiplyAdd(left, constant(left.dtype, right), constant(left.dtype, addend))


def exp(value: Expression) -> Expression:
    """The exponential, of f32 or f64."""
    return Unary(UnaryOperation.EXP, value)


def log(value: Expression) -> Expression:
    """The natural logarithm, of f32 or f64; NaN below zero."""
    return Unary(UnaryOperation.LOG, value)


def sqrt(value: Expression) -> Expression:
    """The square root, of f32 or f64, correctly rounded; NaN below zero."""
    return Unary(UnaryOperation.SQRT, value)


def tanh(value: Expression) -> Expression:
    """The hyperbolic tangent, of f32 or f64."""
    return Unary(UnaryOperation.TANH, value)


def floor(value: Expression) -> Expression:
    """The largest whole number not above the value, of f32 or f64."""
    return Unary(UnaryOperation.FLOOR, value)


def ceiling(value: Expression) -> Expression:
    """The smallest whole number not below the value, of f32 or f64."""
    return Unary(UnaryOperation.CEILING, value)


def truncate(value: Expression) -> Expression:
    """The whole number next to the value toward zero, of f32 or f64."""
    return Unary(UnaryOperation.TRUNCATE, value)


def round_even(value: Expression) -> Expression:
    """The nearest whole number, the even one of two, of f32 or f64."""
    return Unary(UnaryOperation.ROUND_EVEN, value)
