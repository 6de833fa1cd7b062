"""Plans with loops that have a limit, and what became of a run of one."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import numpy as np

from accy_async.backends.array import DeviceArray
from accy_async.dtypes import DType, ScalarArgument
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions, Run
from accy_async.graph.builder import GraphBuffer
from accy_async.graph.lowering import Outline, outline
from accy_async.graph.lowering.parts import Parting, part_plan
from accy_async.graph.nodes import BufferSlot
from accy_async.session import Session
from tests.graphs.programs import Kernels, Program
from tests.graphs.starting import start_program

__all__ = [
    "LIMIT",
    "Outcome",
    "Read",
    "around_calls",
    "bound",
    "countdown",
    "limited",
    "nested",
    "outcome",
    "random_outcome",
    "random_program",
    "side_by_side",
]

U32, LIMIT = DType.U32, 3
ONE, THREE = ScalarArgument.u32(1), ScalarArgument.u32(3)

Read = Callable[[Session, DeviceArray], Awaitable[list[int]]]
"""What an array of a session's holds."""


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


def nested(
    kernels: Kernels,
    outer: str | int,
    turns: int,
    first: int | None,
    *,
    deep: bool = False,
) -> LaunchGraphPlan:
    """A loop with a limit in another loop, which carries two arrays of the caller's.

    Args:
        kernels: what it launches.
        outer: the other loop: ``counted`` or ``while``, or its limit.
        turns: those that the other loop would have.
        first: the inner one's turns in the first of them; then there is one more in
            each. None for what the buffer ``first`` says.
        deep: whether another loop of one turn, which a value ends, is in between.
    """
    b = LaunchGraphBuilder()
    left, minus = countdown(b, 0)
    want, one, go = (b.scratch(name, U32, 1) for name in ("want", "one", "go"))
    for buffer, value in ((want, first), (one, 1), (go, turns)):
        if value is None:
            b.copy(b.buffer("first", U32, 1), buffer)
        else:
            b.fill(buffer, value)
    x, y, total, following = (b.buffer(n, U32, 3) for n in ("x", "y", "total", "next"))
    ones, ahead, beside = (b.scratch(n, U32, 3) for n in ("ones", "ahead", "beside"))
    for number, buffer in enumerate((x, ones, total, following, y, ahead, beside)):
        b.fill(buffer, 1 if number < 2 else 10 * number)

    def grow(target: GraphBuffer, by: GraphBuffer, name: str) -> None:
        count = ScalarArgument.u32(1 if by is one or by is minus else 3)
        uses = [target.read_write, target.read_write, by.read]
        b.kernel(kernels.add, uses, [count], name=name)

    def inner() -> None:
        bounded = b.loop(
            while_=left, carries=[(x, y)], max_iterations=LIMIT, name="bounded"
        )
        with bounded:
            grow(left, minus, "down")
            b.kernel(kernels.add, [y.write, x.read, x.read], [THREE], name="twice")

    if outer == "counted":
        loop = b.loop(count=turns, carries=[(total, following)], name="outer")
    else:
        most = outer if isinstance(outer, int) else None
        pairs = [(total, following)]
        loop = b.loop(while_=go, carries=pairs, max_iterations=most, name="outer")
    with loop:
        grow(go, minus, "turn")
        b.copy(want, left, name="set")
        grow(beside, ones, "in the turn")
        with b.loop(count=2, name="earlier"):
            grow(ahead, ones, "early")
        if deep:
            again = b.scratch("again", U32, 1)
            b.fill(again, 1, name="once")
            with b.loop(while_=again, carries=[(total, following)], name="middle"):
                grow(again, minus, "no more")
                inner()
                grow(total, x, "in the middle")
        else:
            inner()
        grow(want, one, "longer")
        uses = [following.write, total.read, x.read]
        b.kernel(kernels.add, uses, [THREE], name="sum")
        with b.loop(count=2, name="later"):
            grow(following, x, "late")
    for name, buffer in (("total", total), ("beside", beside), ("go", go)):
        size = 1 if buffer is go else 3
        b.copy_out(buffer, b.host(f"{name} out", U32, size), name=f"{name} to host")
    b.fill(ahead, 7, name="after")
    b.copy_out(ones, b.host("ones out", U32, 3), name="ones to host")
    return b.build()


def side_by_side(
    kernels: Kernels, turns: tuple[int, int], limits: tuple[int, int]
) -> LaunchGraphPlan:
    """Two loops with limits in one, ``one`` and ``other``, and what follows each."""
    b = LaunchGraphBuilder()
    lefts = [b.scratch(f"left{number}", U32, 1) for number in range(2)]
    minus = b.scratch("minus", U32, 1)
    b.fill(minus, 2**32 - 1)
    with b.loop(count=2, name="outer"):
        for number, name in enumerate(("one", "other")):
            left = lefts[number]
            b.fill(left, turns[number], name=f"set {name}")
            with b.loop(while_=left, max_iterations=limits[number], name=name):
                uses = [left.read_write, left.read_write, minus.read]
                b.kernel(kernels.add, uses, [ONE], name=f"{name} down")
            b.fill(left, 7, name=f"after {name}", after=(name,))
    b.copy_out(lefts[0], b.host("left out", U32, 1), name="to host")
    return b.build()


def around_calls(
    kernels: Kernels,
    turns: tuple[int, int] | None,
    call: Callable[[str], Callable[[], object]],
) -> LaunchGraphPlan:
    """Loops with limits before and behind calls, and what depends on both or neither.

    Args:
        kernels: what it launches.
        turns: of the loop before the calls, and of that behind one; None for what the
            buffers ``first`` and ``other`` say.
        call: makes the function of each.
    """
    b = LaunchGraphBuilder()
    left, minus = countdown(b, turns[0] if turns else 0)
    more, aside = b.scratch("more", U32, 1), b.scratch("aside", U32, 1)
    if turns:
        b.fill(more, turns[1])
    else:
        b.copy(b.buffer("first", U32, 1), left)
        b.copy(b.buffer("other", U32, 1), more)
    b.fill(aside, 5, name="beside")

    def bounded(word: GraphBuffer, name: str, *after: str) -> None:
        b.copy(word, word_of[name], name=f"start {name}", after=after)
        with b.loop(count=2, name=f"around {name}"):
            loop = b.loop(while_=word_of[name], max_iterations=LIMIT, name=name)
            with loop:
                uses = [word_of[name].read_write, word_of[name].read_write, minus.read]
                b.kernel(kernels.add, uses, [ONE], name=f"{name} down")

    word_of = {name: b.scratch(f"{name} word", U32, 1) for name in ("first", "second")}
    bounded(left, "first")
    b.host_call(call("behind"), name="behind", after=("around first",))
    b.host_call(call("aside"), name="aside", after=("beside",))
    bounded(more, "second", "aside")
    both = b.scratch("both", U32, 1)
    uses = [both.write, word_of["first"].read, word_of["second"].read]
    b.kernel(kernels.add, uses, [ONE], name="both", after=("aside",))
    b.kernel(kernels.add, [aside.read_write, aside.read, minus.read], [ONE], name="n")
    b.host_call(call("last"), name="last", after=("both",))
    b.host_call(call("other"), name="other", after=("n",))
    uses = [left.write, word_of["first"].read, minus.read]
    b.kernel(kernels.add, uses, [ONE], name="left", after=("other",))
    for name, buffer in (("both", both), ("aside", aside), ("left", left)):
        b.copy_out(buffer, b.host(f"{name} out", U32, 1), name=f"{name} to host")
    return b.build()


def bound(session: Session, plan: LaunchGraphPlan) -> dict[str, Any]:
    """What a plan is to be run with: buffers, and arrays of nines."""
    return {
        slot.name: session.allocate(slot.shape, U32)
        if isinstance(slot, BufferSlot)
        else np.full(slot.shape, 9, np.uint32)
        for slot in plan.slots
        if not isinstance(slot, BufferSlot) or not slot.is_scratch
    }


@attrs.frozen
class Outcome:
    """What became of a run."""

    errors: dict[str, str]
    states: dict[str, str]
    arrays: dict[str, list[int]]


async def outcome(
    session: Session,
    plan: LaunchGraphPlan,
    options: LaunchOptions,
    read: Read | None = None,
) -> tuple[Outcome, Run]:
    """Run a plan; ``read`` says what its bound buffers hold, if they cannot be read."""
    given = bound(session, plan)
    run = session.start(plan, given, options)
    with contextlib.suppress(ExceptionGroup):  # looked at below, by its parts
        await run
    arrays = {}
    for name, array in given.items():
        if not isinstance(array, DeviceArray):
            arrays[name] = array.tolist()
            continue
        array = run.binding(name)
        assert isinstance(array, DeviceArray)
        if read is not None:
            arrays[name] = await read(session, array)
        else:
            arrays[name] = (await session.download(array)).tolist()
    return _told(run, plan, arrays), run


def random_program(
    seed: int, length: int, kernels: Kernels, *, has_hosts: bool
) -> Program | None:
    """One whose loops may reach their limits; None where it cannot be lowered."""
    program = Program(
        seed,
        length,
        kernels,
        has_hosts=has_hosts,
        may_fail=True,
        calls_in_loops=False,
    )
    plan = program.plan
    is_one = isinstance(outline(plan, program.scalars), Outline)
    if is_one or isinstance(part_plan(plan, program.scalars), Parting):
        return None if program.has_external else program
    return None


async def random_outcome(session: Session, program: Program, lowering: str) -> Outcome:
    """What becomes of a run of one, which leaves its arrays as they were before it."""
    before = {name: array.copy() for name, array in program.hosts.items()}
    run = start_program(session, program, LaunchOptions(lowering=lowering))
    await run.wait_over()
    run.cancel()  # its errors are looked at here
    assert run.statistics().is_lowered == (lowering == "always")
    arrays = {name: array.tolist() for name, array in program.hosts.items()}
    for name, array in before.items():
        program.hosts[name][:] = array
    return _told(run, program.plan, arrays)


def _told(run: Run, plan: LaunchGraphPlan, arrays: dict[str, list[int]]) -> Outcome:
    names = [node.name for node in plan.nodes] + [loop.name for loop in plan.loops]
    return Outcome(
        {name: str(error) for name, error in run.errors.items()},
        {name: run[name].state.value for name in names},
        arrays,
    )
