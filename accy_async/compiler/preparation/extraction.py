"""Functions made of some operations of another."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.compiler.semantic import (
    Function,
    Operation,
    Reshape,
    TensorType,
    Value,
)

__all__ = ["copy_function", "extract"]


def extract(
    name: str,
    operands: tuple[Value, ...],
    operations: Sequence[Operation],
    results: tuple[Value, ...],
) -> Function:
    """A function of some operations of another, which reads the rest as parameters."""
    renamed = {v: Value(index, v.type) for index, v in enumerate(operands)}
    entries = []
    for entry in operations:
        made = tuple(
            Value(len(renamed) + offset, value.type)
            for offset, value in enumerate(entry.results)
        )
        entries.append(
            attrs.evolve(
                entry,
                operands=tuple(renamed[value] for value in entry.operands),
                results=made,
            )
        )
        renamed.update(zip(entry.results, made, strict=True))
    return Function(
        name,
        tuple(renamed[value] for value in operands),
        tuple(entries),
        tuple(renamed[value] for value in results),
    )


def copy_function(type: TensorType, result: TensorType) -> Function:
    """A function that gives its parameter's elements in another shape."""
    parameter, copied = Value(0, type), Value(1, result)
    entry = Operation(Reshape(result.shape), (parameter,), (copied,))
    return Function("copy", (parameter,), (entry,), (copied,))
