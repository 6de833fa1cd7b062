"""Loops that a value ends: stepped by the host, and decided on the device.

A loop of one small kernel a turn, which counts a word down to zero. Node by node the
host reads the word back before each turn; lowered, the device looks at it, also where
the loop has a limit, whose turns the device counts. A loop that counts its turns
stands beside them, as far as the device has to be asked for no value. The same turns
again, a few at a time in a loop around them, say what a turn of that costs, and what it
does where it has to ask whether the inner loop reached its limit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

import anyio
import numpy as np

from accy_async import DType, ScalarArgument, Session, open_session
from accy_async.compiler.kernels.catalogue import library_entries
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from benchmarks.gpu.tables import Row, show

__all__ = ["main"]

TURNS = 1000
INNER = 10
"""Turns of the inner loop in each of the loop around it."""

ROUNDS = 15


def plan(
    *, limit: int | None = None, counts: bool = False, is_nested: bool = False
) -> LaunchGraphPlan:
    """``left`` from so many down to 0, one by one; what is left goes to the host."""
    (add,) = (
        one
        for one in library_entries("cuda_ptx", dtype=DType.U32)
        if one.target.endswith(".add")
    )
    b = LaunchGraphBuilder()
    left, minus = b.scratch("left", DType.U32, 1), b.scratch("minus", DType.U32, 1)
    b.fill(minus, 2**32 - 1)
    with b.loop(count=TURNS // INNER) if is_nested else contextlib.nullcontext():
        b.fill(left, INNER if is_nested else TURNS)
        with (
            b.loop(count=TURNS) if counts else b.loop(while_=left, max_iterations=limit)
        ):
            uses = [left.read_write, left.read_write, minus.read]
            b.kernel(add, uses, [ScalarArgument.u32(1)])
    b.copy_out(left, b.host("out", DType.U32, 1))
    return b.build()


async def _turns_us(
    session: Session, looped: LaunchGraphPlan, lowering: str, rounds: int
) -> list[float]:
    """Microseconds for each turn, of whole runs."""
    out = np.ones(1, np.uint32)
    bindings: Mapping[str, np.ndarray] = {"out": out}
    taken = []
    for number in range(rounds + 2):
        out[0] = 1
        started = time.perf_counter()
        await session.run(looped, bindings, LaunchOptions(lowering=lowering))
        took = (time.perf_counter() - started) * 1e6 / TURNS
        if out[0]:
            raise RuntimeError(f"{out[0]} turns were left")
        if number >= 2:
            taken.append(took)
    return taken


async def measure() -> list[Row]:
    """Microseconds a turn."""
    rows = []
    async with open_session("cuda") as session:
        for name, looped, lowering in (
            ("a value ends it, node by node", plan(), "never"),
            ("a value ends it, on the device", plan(), "always"),
            ("the same with a limit", plan(limit=TURNS), "always"),
            ("it counts, on the device", plan(counts=True), "always"),
            ("in another loop, node by node", plan(is_nested=True), "never"),
            ("in another loop, on the device", plan(is_nested=True), "always"),
            ("the same with a limit", plan(is_nested=True, limit=INNER), "always"),
        ):
            rounds = 3 if lowering == "never" else ROUNDS
            rows.append(Row(name, await _turns_us(session, looped, lowering, rounds)))
    return rows


def main() -> None:
    """Measure, and print the table."""
    show(
        f"A loop of {TURNS} turns of one small kernel, also {INNER} at a time in "
        "another loop, each turn",
        anyio.run(measure),
        unit="us",
    )


if __name__ == "__main__":
    main()
