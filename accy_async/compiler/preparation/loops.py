"""Loops written out: a plan of kernels has no loops.

A counted loop becomes its body, as often as it runs. A conditional one too, for its
greatest count: from the time on at which its flag is false, its carries stay what
they are. What a kernel call of it gives then is nobody's value, so the call is
launched, on the carries as they are, and changes nothing. Kernels alike share their
code, so that only the launches grow.
"""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.compiler.semantic import (
    FunctionBuilder,
    Loop,
    Operation,
    Value,
)
from accy_async.errors import UnsupportedOperation

__all__ = ["MAX_WRITTEN_OUT", "loop_rule", "write_out"]

MAX_WRITTEN_OUT = 20_000
"""Operations that one loop may become."""


def write_out(
    f: FunctionBuilder, loop: Loop, operands: tuple[Value, ...]
) -> Sequence[Value]:
    """The carries after the loop, recorded without it.

    Raises:
        UnsupportedOperation: it would become too long.
    """
    size = len(loop.body.operations)
    if loop.count * size > MAX_WRITTEN_OUT:
        raise UnsupportedOperation(
            f"loop: {loop.count} times {size} operations are over the "
            f"{MAX_WRITTEN_OUT} that a loop may have in all; run it as a loop of a "
            "launch graph"
        )
    carries = list(operands[: loop.carries])
    captures = operands[loop.carries :]
    going: Value | None = None
    for _ in range(loop.count):
        given = _body(f, loop, (*carries, *captures))
        if not loop.conditional:
            carries = list(given)
            continue
        after, flag = given[:-1], given[-1]
        if going is not None:
            after = [
                _chosen(f, going, new, old)
                for new, old in zip(after, carries, strict=True)
            ]
            flag = f.logical_and(going, flag)
        carries, going = list(after), flag
    return carries


def _body(
    f: FunctionBuilder, loop: Loop, operands: tuple[Value, ...]
) -> Sequence[Value]:
    renamed = dict(zip(loop.body.parameters, operands, strict=True))
    for entry in loop.body.operations:
        results = f.record(entry.op, [renamed[value] for value in entry.operands])
        renamed.update(zip(entry.results, results, strict=True))
    return [renamed[value] for value in loop.body.results]


def _chosen(f: FunctionBuilder, flag: Value, new: Value, old: Value) -> Value:
    if new is old:
        return new
    return f.select(f.broadcast(flag, new.shape), new, old)


def loop_rule(
    f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
) -> Sequence[Value] | None:
    """The rule for `rewrite` that writes every loop out."""
    if not isinstance(entry.op, Loop):
        return None
    return write_out(f, entry.op, operands)
