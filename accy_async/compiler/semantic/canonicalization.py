"""One form for functions that compute alike.

Pure operations that no result needs are dropped, equal ones merged, and the rest
put in the order in which a walk from the results meets them, operands first. What
is not pure stays, in its order, ahead of what it does not need.
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs

from accy_async.compiler.semantic.program import Function, Operation
from accy_async.compiler.semantic.types import Value

__all__ = ["canonical"]


def canonical(function: Function) -> Function:
    """The function in its canonical form; itself if it is in it already."""
    walk = _Walk(function)
    for entry in function.operations:
        if not entry.op.is_pure:
            walk.visit(entry)
    for value in function.results:
        walk.need(value)
    results = tuple(walk.renamed[value] for value in function.results)
    if tuple(walk.operations) == function.operations and results == function.results:
        return function
    return attrs.evolve(function, operations=tuple(walk.operations), results=results)


class _Walk:
    """Collects operations, operands first, and gives their values new indices."""

    def __init__(self, function: Function) -> None:
        self.operations: list[Operation] = []
        self.renamed: dict[Value, Value] = {v: v for v in function.parameters}
        self._producers = function.producers()
        self._next = function.arity
        self._seen: dict[Hashable, tuple[Value, ...]] = {}

    def need(self, value: Value) -> None:
        if value not in self.renamed:
            self.visit(self._producers[value])

    def visit(self, entry: Operation) -> None:
        """Without recursion: a program may be one long chain."""
        stack = [entry]
        while stack:
            top = stack[-1]
            if top.results[0] in self.renamed:
                stack.pop()
                continue
            missing = [v for v in top.operands if v not in self.renamed]
            if missing:
                stack.extend(self._producers[v] for v in reversed(missing))
                continue
            stack.pop()
            self._place(top)

    def _place(self, entry: Operation) -> None:
        operands = tuple(self.renamed[value] for value in entry.operands)
        key = (entry.op, operands)
        results = self._seen.get(key) if entry.op.is_pure else None
        if results is None:
            results = tuple(
                Value(self._next + offset, value.type)
                for offset, value in enumerate(entry.results)
            )
            self._next += len(results)
            self._seen[key] = results
            self.operations.append(
                attrs.evolve(entry, operands=operands, results=results)
            )
        self.renamed.update(zip(entry.results, results, strict=True))
