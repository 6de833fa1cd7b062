"""Which indices of a kernel rise with the thread and then begin again.

LLVM's loop vectoriser (seen in 22.1) goes wrong on some of them: it takes
``(thread & 15) + n`` for something that rises without end, reads whole vectors from
its first element on, and so reads beyond where it should have begun again. An index
that may be of this kind is kept from it: see `KernelFunction`.
"""

from __future__ import annotations

from accy_async.compiler.form import (
    Assign,
    Binary,
    BinaryOperation,
    Builtin,
    Cast,
    Declare,
    Expression,
    Kernel,
    Let,
    Load,
    Name,
)
from accy_async.compiler.form.traversal import every_statement

__all__ = ["Wrapping"]

_WRAPPING = frozenset(
    {
        BinaryOperation.AND,
        BinaryOperation.DIVIDE,
        BinaryOperation.REMAINDER,
        BinaryOperation.SHIFT_LEFT,
        BinaryOperation.SHIFT_RIGHT,
    }
)
"""What wraps, or does so together with others: ``x - x / 16 * 16``, say."""


class Wrapping:
    """Tells indices that may begin again from those that only rise or fall.

    Args:
        kernel: whose indices.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._named: dict[str, list[Expression]] = {}
        for statement in every_statement(kernel.body):
            if isinstance(statement, (Let, Declare, Assign)):
                self._named.setdefault(statement.name, []).append(statement.value)
        self._uniform = {scalar.name for scalar in kernel.scalars}
        self._wraps: dict[str, bool] = {}
        self._varies: dict[str, bool] = {}

    def wraps(self, index: Expression) -> bool:
        """True where part of it wraps, and is not the same for the whole block."""
        match index:
            case Load():
                return False  # LLVM knows nothing of what is in memory
            case Name(name=name):
                if name not in self._wraps:
                    self._wraps[name] = False  # while its own value is looked at
                    self._wraps[name] = any(map(self.wraps, self._named.get(name, ())))
                return self._wraps[name]
            case Binary(operation=operation) if operation in _WRAPPING:
                return self._differs(index)
            case Cast(target=target, value=value) if target.bits < value.dtype.bits:
                return self._differs(index)
            case _:
                return any(map(self.wraps, index.children()))

    def _differs(self, expression: Expression) -> bool:
        """True where it may have several values within a block."""
        match expression:
            case Builtin(which=which):
                return not which.is_uniform
            case Name(name=name):
                if name in self._uniform:
                    return False
                if name not in self._varies:
                    values = self._named.get(name)
                    # A loop's index has none; a variable's may be its own.
                    self._varies[name] = True
                    self._varies[name] = values is None or any(
                        map(self._differs, values)
                    )
                return self._varies[name]
            case _:
                return any(map(self._differs, expression.children()))
