"""Plans with loops that have a limit, and what became of a run of one."""

from __future__ import annotations

import contextlib

import attrs
import numpy as np

from accy_async.dtypes import DType, ScalarArgument
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions, Run
from accy_async.graph.builder import GraphBuffer
from accy_async.session import Session
from tests.graphs.programs import Kernels

__all__ = ["LIMIT", "Outcome", "countdown", "limited", "outcome"]

U32, LIMIT = DType.U32, 3
ONE, THREE = ScalarArgument.u32(1), ScalarArgument.u32(3)


def countdown(b: LaunchGraphBuilder, turns: int) -> tuple[GraphBuffer, GraphBuffer]:
    """A word that a loop counts down to 0, and what it is counted down by."""
    left, minus = b.scratch("left", U32, 1), b.scratch("minus", U32, 1)
    b.fill(left, turns)
    b.fill(minus, 2**32 - 1)
    return left, minus


def limited(
    kernels: Kernels, turns: int, *, carries: bool = False, second: int | None = None
) -> LaunchGraphPlan:
    """A loop of so many turns, what follows it and what does not.

    Where there is a second loop beside it, something follows both.
    """
    b = LaunchGraphBuilder()
    left, minus = countdown(b, turns)
    x, y, aside = (b.scratch(name, U32, 3) for name in ("x", "y", "aside"))
    b.fill(x, 1)
    b.fill(y, 100)
    with b.loop(
        while_=left,
        carries=[(x, y)] if carries else [],
        max_iterations=LIMIT,
        name="bounded",
    ):
        down = [left.read_write, left.read_write, minus.read]
        b.kernel(kernels.add, down, [ONE], name="down")
        b.kernel(kernels.add, [y.write, x.read, x.read], [THREE], name="twice")
    b.kernel(kernels.add, [x.read_write, x.read, y.read], [THREE], name="after")
    b.copy_out(x, b.host("x out", U32, 3), name="x to host")
    b.fill(aside, 7, name="beside")
    b.copy_out(aside, b.host("aside out", U32, 3), name="aside to host")
    if second is not None:
        more = b.scratch("more", U32, 1)
        b.fill(more, second)
        with b.loop(while_=more, max_iterations=LIMIT, name="second"):
            uses = [more.read_write, more.read_write, minus.read]
            b.kernel(kernels.add, uses, [ONE], name="more down")
        b.copy_out(more, b.host("more out", U32, 1), name="more to host")
        b.kernel(kernels.add, [aside.write, x.read, aside.read], [ONE], name="none")
        b.kernel(kernels.add, [more.read_write, more.read, x.read], [ONE], name="both")
        b.copy_out(more, b.host("both out", U32, 1), name="both to host")
    return b.build()


@attrs.frozen
class Outcome:
    """What became of a run."""

    errors: dict[str, str]
    states: dict[str, str]
    arrays: dict[str, list[int]]


async def outcome(
    session: Session, plan: LaunchGraphPlan, options: LaunchOptions
) -> tuple[Outcome, Run]:
    arrays = {
        slot.name: np.full(slot.shape, 9, np.uint32)
        for slot in plan.slots
        if slot.name.endswith(" out")
    }
    run = session.start(plan, arrays, options)
    with contextlib.suppress(ExceptionGroup):  # looked at below, by its parts
        await run
    names = [node.name for node in plan.nodes] + [loop.name for loop in plan.loops]
    found = Outcome(
        {name: str(error) for name, error in run.errors.items()},
        {name: run[name].state.value for name in names},
        {name: array.tolist() for name, array in arrays.items()},
    )
    return found, run
