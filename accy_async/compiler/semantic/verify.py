"""What makes a function valid, checked whenever one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accy_async.compiler.semantic.types import Value
from accy_async.errors import InvalidProgram

if TYPE_CHECKING:
    from accy_async.compiler.semantic.program import Function, Operation

__all__ = ["verify_function"]


def verify_function(function: Function) -> None:
    """Refuse a function whose values, order or types are not in order.

    Raises:
        InvalidProgram: names the function, the operation and the value.
    """
    known: list[Value] = []
    for position, value in enumerate(function.parameters):
        if value.index != position:
            raise InvalidProgram(
                f"function {function.name}: parameter {position} is {value!r}"
            )
        known.append(value)
    for number, entry in enumerate(function.operations):
        where = f"function {function.name}, operation {number}"
        _verify_operands(where, entry, known)
        _verify_results(where, entry, known)
    for position, value in enumerate(function.results):
        if not _is_known(value, known):
            raise InvalidProgram(
                f"function {function.name}: result {position}, {value!r}, is none of "
                "its values"
            )


def _is_known(value: Value, known: list[Value]) -> bool:
    return value.index < len(known) and known[value.index] == value


def _verify_operands(where: str, entry: Operation, known: list[Value]) -> None:
    for value in entry.operands:
        if not _is_known(value, known):
            made = value.index < len(known)
            why = (
                f"it is {known[value.index]!r}" if made else "it is made later or never"
            )
            raise InvalidProgram(
                f"{where}: operand {value!r}: {why}", operation=entry.op.opcode
            )


def _verify_results(where: str, entry: Operation, known: list[Value]) -> None:
    try:
        expected = entry.op.result_types(tuple(value.type for value in entry.operands))
    except InvalidProgram as error:
        error.add_note(where)
        raise
    given = tuple(value.type for value in entry.results)
    if given != expected:
        raise InvalidProgram(
            f"{where}: results {_listed(given)}, the op gives {_listed(expected)}",
            operation=entry.op.opcode,
        )
    for value in entry.results:
        if value.index != len(known):
            raise InvalidProgram(
                f"{where}: result {value!r}, expected index {len(known)}",
                operation=entry.op.opcode,
            )
        known.append(value)


def _listed(types: tuple[object, ...]) -> str:
    return f"({', '.join(map(str, types))})"
