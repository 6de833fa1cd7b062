"""What languages call the operations that combine an element in one step."""

from __future__ import annotations

from collections.abc import Mapping

from accy_async.compiler.form import BinaryOperation

__all__ = ["ATOMIC_WORDS"]

ATOMIC_WORDS: Mapping[BinaryOperation, str] = {
    BinaryOperation.ADD: "add",
    BinaryOperation.MINIMUM: "min",
    BinaryOperation.MAXIMUM: "max",
    BinaryOperation.AND: "and",
    BinaryOperation.OR: "or",
    BinaryOperation.XOR: "xor",
}
"""The word within ``atomicAdd``, ``atomic_fetch_add_explicit`` or ``atomicrmw add``."""
