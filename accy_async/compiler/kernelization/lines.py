"""Work that goes along the lines of a tensor: what it has in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from accy_async.compiler.kernelization.elements import is_elementwise
from accy_async.compiler.semantic import Function, Op, Operation
from accy_async.errors import UnsupportedOperation

__all__ = ["around", "last_operation"]

_Op = TypeVar("_Op", bound=Op)


def last_operation(function: Function, kind: type[_Op]) -> tuple[Operation, _Op]:
    """The one operation of its kind, whose result is all; the others lead to it.

    Raises:
        UnsupportedOperation: there are several, or more than elementwise operations
            before it.
    """
    name = kind.__name__.lower()
    found = [(e, e.op) for e in function.operations if isinstance(e.op, kind)]
    if len(found) != 1 or function.results != (found[0][0].result,):
        raise UnsupportedOperation(f"{name} work has one {name}, its only result")
    for entry in function.operations:
        if entry is not found[0][0] and not is_elementwise(entry.op):
            raise UnsupportedOperation(
                f"{entry.op.opcode} is no elementwise operation before a {name}"
            )
    return found[0]


def around(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Elements before an axis, along it, and after it: ``outer, extent, inner``."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
