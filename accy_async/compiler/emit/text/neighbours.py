"""Stores of neighbours: which ones a kernel could make at once.

A kernel that takes neighbours, see `Kernel`, begins with a multiple of as many. So two
stores, one right after the other, an even number of elements behind there and one more,
are to one word, and are one access where the buffer begins at such an address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from accy_async.compiler.form import (
    Binary,
    BinaryOperation,
    Constant,
    Expression,
    For,
    If,
    Kernel,
    Let,
    Name,
    Region,
    Statement,
    Store,
)
from accy_async.compiler.form.traversal import every_statement

__all__ = ["store_pairs"]


def store_pairs(kernel: Kernel) -> dict[int, Store]:
    """The second store of each pair, by the identity of the first."""
    if not kernel.takes_neighbours:
        return {}
    lets = {
        statement.name: statement.value
        for statement in every_statement(kernel.body)
        if isinstance(statement, Let)
    }
    buffers = {b.name for b in kernel.buffers if b.dtype.size_bytes in (2, 4)}
    pairs: dict[int, Store] = {}
    for body in _bodies(kernel.body):
        taken = False
        for one, two in pairwise(body):
            taken = not taken and _is_pair(one, two, buffers, lets)
            if taken:
                assert isinstance(two, Store)
                pairs[id(one)] = two
    return pairs


def _bodies(body: Sequence[Statement]) -> Iterator[Sequence[Statement]]:
    yield body
    for statement in body:
        match statement:
            case If(then=then, otherwise=otherwise):
                yield from _bodies(then)
                yield from _bodies(otherwise)
            case For(body=inner) | Region(body=inner):
                yield from _bodies(inner)
            case _:
                pass


def _is_pair(
    one: Statement,
    two: Statement,
    buffers: set[str],
    lets: Mapping[str, Expression],
) -> bool:
    if not isinstance(one, Store) or not isinstance(two, Store):
        return False
    if one.array != two.array or one.array not in buffers:
        return False
    begin, behind = _parts(one.index, lets)
    return behind % 2 == 0 and _parts(two.index, lets) == (begin, behind + 1)


def _parts(index: Expression, lets: Mapping[str, Expression]) -> tuple[Expression, int]:
    """An index as another one and how many elements behind it."""
    behind = 0
    while True:
        index = _meant(index, lets)
        match index:
            case Binary(BinaryOperation.ADD, left, Constant(scalar=scalar)):
                index, behind = left, behind + int(scalar.value)
            case _:
                return index, behind


def _meant(expression: Expression, lets: Mapping[str, Expression]) -> Expression:
    """What a name stands for, where it was given once."""
    while isinstance(expression, Name) and expression.name in lets:
        expression = lets[expression.name]
    return expression
