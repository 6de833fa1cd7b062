"""Going through all of a kernel."""

from __future__ import annotations

from collections.abc import Iterator

from accy_async.compiler.form.expressions import Expression
from accy_async.compiler.form.kernel import Kernel
from accy_async.compiler.form.products import TileProduct
from accy_async.compiler.form.statements import (
    Assert,
    Assign,
    Combine,
    Declare,
    For,
    If,
    Let,
    Region,
    Statement,
    Store,
    every_statement,
)

__all__ = ["evaluated_by", "every_expression", "every_statement"]


def evaluated_by(statement: Statement) -> list[Expression]:
    """What a statement evaluates itself, without the statements in it."""
    match statement:
        case Let() | Declare() | Assign():
            return [statement.value]
        case Store() | Combine():
            return [statement.index, statement.value]
        case If() | Assert():
            return [statement.condition]
        case For():
            return [statement.begin, statement.end]
        case Region(limit=limit):
            return [] if limit is None else [limit]
        case TileProduct():
            return statement.places
        case _:
            raise AssertionError(f"no rule for {type(statement).__name__}")


def every_expression(kernel: Kernel) -> Iterator[Expression]:
    """All that a kernel evaluates, each expression before its parts."""
    for statement in every_statement(kernel.body):
        for expression in evaluated_by(statement):
            yield from expression.walk()
