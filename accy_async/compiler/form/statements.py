"""The statements of a kernel, and where each may stand.

A kernel's body is *uniform*: every thread of a block runs it alike. It holds
`Let`, `Declare`, `Assign`, `If` and `For` on uniform values, and `Region`s. A
region's body is *per thread*: it holds `Let`, `Declare`, `Assign`, `If`, `For`,
`Store`, `Combine` and `Assert`, and no region. `accy_async.compiler.form.kernel`
states the rules on memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from accy_async.compiler.form.dtypechecks import require_bool, require_integer
from accy_async.compiler.form.expressions import (
    EXPECTED_EXPRESSION,
    IDENTIFIER,
    Expression,
)
from accy_async.compiler.form.operations import BinaryOperation
from accy_async.dtypes import DType
from accy_async.errors import InvalidType
from accy_async.values import instances, integer, one_of, optional, text, tuple_of

__all__ = [
    "Assert",
    "Assign",
    "Combine",
    "Declare",
    "For",
    "If",
    "Let",
    "Region",
    "Statement",
    "Store",
    "every_statement",
]

_name = text(pattern=IDENTIFIER, what="an identifier")
_value = instances(Expression, expected=EXPECTED_EXPRESSION)


@attrs.frozen
class Statement:
    """The common base of all statements."""


_body = tuple_of(Statement, expected="a tuple of statements")


@attrs.frozen
class Let(Statement):
    """Evaluate once, here, and name the value for the rest of this body."""

    name: str = attrs.field(validator=_name)
    value: Expression = attrs.field(validator=_value)


@attrs.frozen
class Declare(Statement):
    """A variable with its first value, known for the rest of this body."""

    name: str = attrs.field(validator=_name)
    value: Expression = attrs.field(validator=_value)


@attrs.frozen
class Assign(Statement):
    """A new value for a variable of the same kind of body, uniform or per thread."""

    name: str = attrs.field(validator=_name)
    value: Expression = attrs.field(validator=_value)


@attrs.frozen
class Store(Statement):
    """Write one element of a buffer or block-shared array."""

    array: str = attrs.field(validator=_name)
    index: Expression = attrs.field(validator=_value)
    value: Expression = attrs.field(validator=_value)

    def __attrs_post_init__(self) -> None:
        require_integer(f"index of {self.array}", self.index)


@attrs.frozen
class Combine(Statement):
    """Combine an element of a buffer with a value in one step.

    Any threads of a launch may combine one element, by one operation and in any order:
    nothing comes between a step's reading and its writing. Elements are integers of 32
    bits, and operations those whose outcome does not depend on the order: sums, which
    wrap, the least, the greatest, and those of bits.
    """

    operation: BinaryOperation = attrs.field(
        validator=one_of(
            (
                BinaryOperation.ADD,
                BinaryOperation.MINIMUM,
                BinaryOperation.MAXIMUM,
                BinaryOperation.AND,
                BinaryOperation.OR,
                BinaryOperation.XOR,
            )
        )
    )
    array: str = attrs.field(validator=_name)
    index: Expression = attrs.field(validator=_value)
    value: Expression = attrs.field(validator=_value)

    def __attrs_post_init__(self) -> None:
        require_integer(f"index of {self.array}", self.index)
        if self.value.dtype not in (DType.I32, DType.U32):
            raise InvalidType(
                f"Combine of {self.array}", f"{self.value.dtype}", "i32 or u32"
            )


@attrs.frozen
class If(Statement):
    """Run one of two bodies."""

    condition: Expression = attrs.field(validator=_value)
    then: tuple[Statement, ...] = attrs.field(validator=_body)
    otherwise: tuple[Statement, ...] = attrs.field(default=(), validator=_body)

    def __attrs_post_init__(self) -> None:
        require_bool("condition of if", self.condition)


@attrs.frozen
class For(Statement):
    """Count ``name`` from ``begin`` in steps while it is below ``end``.

    Both bounds are evaluated once, before the first round. There are
    ``ceil((end - begin) / step)`` rounds in exact arithmetic, none where ``end
    <= begin``; the index never wraps.
    """

    name: str = attrs.field(validator=_name)
    begin: Expression = attrs.field(validator=_value)
    end: Expression = attrs.field(validator=_value)
    body: tuple[Statement, ...] = attrs.field(validator=_body)
    step: int = attrs.field(default=1, validator=integer(1, 2**31 - 1))

    def __attrs_post_init__(self) -> None:
        require_integer(f"begin of for {self.name}", self.begin)
        if self.end.dtype is not self.begin.dtype:
            raise InvalidType(
                f"bounds of for {self.name}",
                f"{self.begin.dtype} and {self.end.dtype}",
                "two bounds of one dtype",
            )
        if self.step > self.begin.dtype.maximum:
            raise InvalidType(
                f"step of for {self.name}",
                self.step,
                f"a step that {self.begin.dtype} holds",
            )


@attrs.frozen
class Assert(Statement):
    """End the launch with ``code`` as its status where the condition is false.

    Nothing after the statement runs in that thread. Which of several failing
    threads is reported is up to the device (the lowest block and linear id on
    one CPU thread), and so is how much of the other threads' work is done.
    """

    condition: Expression = attrs.field(validator=_value)
    code: int = attrs.field(validator=integer(1, 2**31 - 1))

    def __attrs_post_init__(self) -> None:
        require_bool("condition of assert", self.condition)


@attrs.frozen
class Region(Statement):
    """What the threads of a block do between two barriers, in any order.

    Only threads whose linear id is below ``limit`` take part: a uniform integer,
    which may be more than the block has, or negative for none. None is all.
    """

    body: tuple[Statement, ...] = attrs.field(validator=_body)
    limit: Expression | None = attrs.field(default=None, validator=optional(_value))

    def __attrs_post_init__(self) -> None:
        if self.limit is not None:
            require_integer("limit of region", self.limit)


def every_statement(body: Iterable[Statement]) -> Iterator[Statement]:
    """The statements of a body and those in them, in order."""
    for statement in body:
        yield statement
        match statement:
            case If(then=then, otherwise=otherwise):
                yield from every_statement((*then, *otherwise))
            case For(body=inner) | Region(body=inner):
                yield from every_statement(inner)
            case _:
                pass
