"""Loops of lowered plans on a GPU: counted, by a value, and with carries."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.dtypes import DType, ScalarArgument
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.session import Session
from tests.gpu.sessions import on_gpu
from tests.gpu.test_graphs import cuda_kernels
from tests.graphs.limits import (
    LIMIT,
    around_calls,
    nested,
    outcome,
    random_outcome,
    random_program,
    side_by_side,
)

pytestmark = pytest.mark.gpu

U32 = DType.U32


LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
ALWAYS = LaunchOptions(lowering="always")
PLAIN = LaunchOptions(lowering="never")


def recurrence(
    count: int | None, value: KernelCallArtifact
) -> tuple[LaunchGraphPlan, str]:
    """``x = 3 x + 1`` so often, in two buffers that take turns."""
    b = LaunchGraphBuilder()
    x, y, one = (b.scratch(name, U32, 1) for name in ("x", "y", "one"))
    b.fill(x, 1)
    b.fill(one, 1)
    scalars = (ScalarArgument.u32(1), ScalarArgument.u32(3))
    times = b.runtime_scalar() if count is None else count
    with b.loop(count=times, carries=[(x, y)], name="loop"):
        b.kernel(value, [y.write, x.read, one.read], scalars, name="step")
    b.copy_out(x, b.host("answer", U32, 1), name="save")
    return b.build(), "answer"


def model(count: int) -> int:
    x = 1
    for _ in range(count):
        x = (3 * x + 1) % 2**32
    return x


@LOOPS
def test_c60_loops_with_carried_values(loop: str) -> None:
    """C60: a thousand iterations, none, and every number around the unrolling."""
    plan, name = recurrence(None, cuda_kernels().axpy)
    answer = np.zeros(1, np.uint32)
    assert model(1000) == 3180628145

    async def work(session: Session) -> None:
        for count in (1000, 0, 1, 2, 3, 127, 128, 129, 130, 1001, 0, 1000):
            options = LaunchOptions(
                runtime_scalars=(ScalarArgument.u32(count),), lowering="always"
            )
            await session.run(plan, {name: answer}, options)
            assert answer[0] == model(count), count

    on_gpu(loop, work)


@LOOPS
def test_c60_two_values_swapped_and_nested_loops(loop: str) -> None:
    """C60: two carries at once; thirty times thirty turns, all on the device."""
    kernels = cuda_kernels()
    b = LaunchGraphBuilder()
    x, y, u, v, one = (b.scratch(name, U32, 1) for name in ("x", "y", "u", "v", "one"))
    for buffer, value in ((x, 1), (u, 2), (one, 1)):
        b.fill(buffer, value)
    three, five = ((ScalarArgument.u32(1), ScalarArgument.u32(n)) for n in (3, 5))
    with b.loop(count=201, carries=[(x, y), (u, v)], name="pairs"):
        b.kernel(kernels.axpy, [y.write, x.read, u.read], three)
        b.kernel(kernels.axpy, [v.write, u.read, one.read], five)
    with b.loop(count=30, name="outer"):
        with b.loop(count=31, carries=[(x, y)], name="inner"):
            b.kernel(kernels.axpy, [y.write, x.read, one.read], three)
        b.kernel(kernels.add, [u.read_write, u.read_write, x.read], three[:1])
    out = [b.host(f"out{i}", U32, 1) for i in range(2)]
    b.copy_out(x, out[0])
    b.copy_out(u, out[1])
    plan = b.build()
    arrays = {f"out{i}": np.zeros(1, np.uint32) for i in range(2)}
    p, q = 1, 2
    for _ in range(201):
        p, q = (3 * p + q) % 2**32, (5 * q + 1) % 2**32
    for _ in range(30):
        for _ in range(31):
            p = (3 * p + 1) % 2**32
        q = (q + p) % 2**32

    async def work(session: Session) -> None:
        for _ in range(3):
            await session.run(plan, arrays, ALWAYS)
            assert (arrays["out0"][0], arrays["out1"][0]) == (p, q)

    on_gpu(loop, work)


@LOOPS
def test_loops_that_a_value_ends(loop: str) -> None:
    """While a counter is not zero that the body counts down, in a counted loop."""
    kernels = cuda_kernels()
    b = LaunchGraphBuilder()
    n, minus, total, one = (
        b.scratch(x, U32, 1) for x in ("n", "minus", "total", "one")
    )
    b.fill(minus, 2**32 - 1)
    b.fill(total, 0)
    b.fill(one, 1)
    size = (ScalarArgument.u32(1),)
    with b.loop(count=200, name="outer"):
        b.fill(n, 7)
        with b.loop(while_=n, name="inner"):
            b.kernel(kernels.add, [n.read_write, n.read_write, minus.read], size)
            b.kernel(kernels.add, [total.read_write, total.read_write, one.read], size)
    b.copy_out(total, b.host("out", U32, 1))
    plan, out = b.build(), np.zeros(1, np.uint32)

    async def work(session: Session) -> None:
        for _ in range(2):
            await session.run(plan, {"out": out}, ALWAYS)
            assert out[0] == 1400

    on_gpu(loop, work)


@LOOPS
@pytest.mark.parametrize("size", [1, 5, 1000, 3 * 2**20])
def test_loops_that_a_value_ends_and_that_carry(loop: str, size: int) -> None:
    """However many turns there were, the values are where they belong afterwards."""
    kernels = cuda_kernels()
    b = LaunchGraphBuilder()
    n, minus = b.scratch("n", U32, 1), b.scratch("minus", U32, 1)
    x, y = b.scratch("x", U32, size), b.buffer("y", U32, size)
    b.fill(minus, 2**32 - 1)
    b.fill(x, 1)
    b.fill(y, 7)
    b.copy_in(b.host("turns", U32, 1), n)
    one, all_ = ScalarArgument.u32(1), ScalarArgument.u32(size)
    with b.loop(while_=n, carries=[(x, y)], name="loop"):
        b.kernel(kernels.add, [n.read_write, n.read_write, minus.read], [one])
        b.kernel(kernels.add, [y.write, x.read, x.read], [all_])
    b.copy_out(x, b.host("last", U32, size))
    b.copy_out(y, b.host("before", U32, size))
    plan = b.build()
    arrays = {name: np.zeros(size, np.uint32) for name in ("last", "before")}
    arrays["turns"] = np.zeros(1, np.uint32)

    async def work(session: Session) -> None:
        arrays["y"] = session.allocate(size, U32)  # type: ignore[assignment]
        for turns in (0, 1, 2, 3, 8, 9, 0, 1):
            arrays["turns"][0] = turns
            run = session.start(plan, arrays, ALWAYS)
            assert (await run).is_lowered
            assert run.binding("y") is arrays["y"]
            assert (arrays["last"] == 2**turns).all()
            assert (arrays["before"] == (2 ** (turns - 1) if turns else 7)).all()

    on_gpu(loop, work)


@LOOPS
def test_loops_that_a_value_ends_within_one_that_counts(loop: str) -> None:
    """Each time with another number of turns, by which the carries come out odd or not.

    The condition is carried itself in the inner one.
    """
    kernels = cuda_kernels()
    b = LaunchGraphBuilder()
    names = ("left", "next", "minus", "one", "total", "x", "y", "turns")
    left, following, minus, one, total, x, y, turns = (
        b.scratch(name, U32, 1) for name in names
    )
    for buffer, value in ((minus, 2**32 - 1), (one, 1), (total, 0), (turns, 0)):
        b.fill(buffer, value)
    b.fill(x, 1)
    b.fill(y, 5)
    size = (ScalarArgument.u32(1),)
    with b.loop(count=130, name="outer"):
        b.copy(turns, left)
        b.kernel(kernels.add, [turns.read_write, turns.read_write, one.read], size)
        with b.loop(while_=left, carries=[(left, following), (x, y)], name="inner"):
            b.kernel(kernels.add, [following.write, left.read, minus.read], size)
            b.kernel(kernels.add, [y.write, x.read, one.read], size)
            b.kernel(kernels.add, [total.read_write, total.read_write, y.read], size)
    for number, buffer in enumerate((total, x, y)):
        b.copy_out(buffer, b.host(f"out{number}", U32, 1))
    plan = b.build()
    arrays = {f"out{i}": np.zeros(1, np.uint32) for i in range(3)}
    wanted, p, q = 0, 1, 5
    for outer in range(130):
        for _ in range(outer):
            p, q = p + 1, p
            wanted += p

    async def work(session: Session) -> None:
        for _ in range(2):
            await session.run(plan, arrays, ALWAYS)
            found = [int(array[0]) for array in arrays.values()]
            assert found == [wanted % 2**32, p, q]

    on_gpu(loop, work)


@LOOPS
@pytest.mark.parametrize("outer", ["counted", "while", 3])
def test_loops_with_limits_within_others(loop: str, outer: str | int) -> None:
    """Errors, what is skipped, and arrays; as node by node, failing or not."""
    kernels = cuda_kernels()

    async def work(session: Session) -> None:
        for turns, first in ((3, 2), (2, 2), (5, LIMIT), (1, 9), (0, 0), (200, 0)):
            for deep in (False, True):
                plan = nested(kernels, outer, turns, first, deep=deep)
                expected, _ = await outcome(session, plan, PLAIN)
                for _ in range(3):
                    found, run = await outcome(session, plan, ALWAYS)
                    assert run.statistics().is_lowered
                    assert found == expected, (turns, first, deep)

    on_gpu(loop, work)


@LOOPS
def test_loops_with_limits_around_calls(loop: str) -> None:
    """What follows a failure in another part is skipped, and calls are not made."""
    kernels = cuda_kernels()

    async def work(session: Session) -> None:
        made: list[str] = []
        for first in (LIMIT, LIMIT + 1):
            for second in (LIMIT, LIMIT + 1):
                plan = around_calls(
                    kernels, (first, second), lambda name: lambda: made.append(name)
                )
                expected, _ = await outcome(session, plan, PLAIN)
                called = sorted(made)
                for _ in range(3):
                    made.clear()
                    found, run = await outcome(session, plan, ALWAYS)
                    assert run.statistics().is_lowered
                    assert found == expected, (first, second)
                    assert sorted(made) == called
                made.clear()

    on_gpu(loop, work)


@LOOPS
def test_of_loops_with_limits_side_by_side_one_fails(loop: str) -> None:
    """That with the fewest turns; a graph that failed goes well with other values."""
    kernels = cuda_kernels()

    async def work(session: Session) -> None:
        for turns, name in (((9, 9), "other"), ((9, 1), "one"), ((1, 9), "other")):
            plan = side_by_side(kernels, turns, (3, 2))
            for _ in range(3):
                found, run = await outcome(session, plan, ALWAYS)
                assert run.statistics().is_lowered
                assert set(found.errors) == {name}
        plan = side_by_side(kernels, (1, 2), (3, 2))
        found, _ = await outcome(session, plan, ALWAYS)
        assert not found.errors

    on_gpu(loop, work)


@LOOPS
@pytest.mark.parametrize("has_hosts", [False, True])
def test_random_graphs_beyond_their_limits(loop: str, has_hosts: bool) -> None:
    """As they are node by node; a quarter of them reach some limit."""
    kernels = cuda_kernels()

    async def work(session: Session) -> None:
        failed = 0
        for seed in range(60):
            program = random_program(seed, 40, kernels, has_hosts=has_hosts)
            if program is None:
                continue
            expected = await random_outcome(session, program, "never")
            failed += bool(expected.errors)
            for _ in range(2):
                found = await random_outcome(session, program, "always")
                assert found == expected, seed
        assert failed > 5

    on_gpu(loop, work)
