"""Plans as CUDA graphs: results, loops, new buffers, lifetimes, cancellation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import numpy as np
import pytest

from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import GraphError
from accy_async.graph import LaunchGraphBuilder, LaunchOptions
from accy_async.graph.lowering.parts import part_plan
from accy_async.session import Session
from tests.gpu import native
from tests.gpu.sessions import on_gpu
from tests.gpu.test_graphs import cuda_kernels
from tests.graphs.limits import LIMIT, limited, outcome
from tests.graphs.programs import Program
from tests.graphs.starting import start_program

pytestmark = pytest.mark.gpu

U32 = DType.U32
LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
ALWAYS = LaunchOptions(lowering="always")


@LOOPS
@pytest.mark.parametrize("seed", range(12))
def test_results_are_the_models(loop: str, seed: int) -> None:
    """Random graphs with loops of both kinds, that carry; twice each, four at once."""
    lengths = [5, 20, 60, 150]
    programs = [
        Program(
            100 * seed + length,
            length,
            cuda_kernels(),
            has_hosts=False,
            has_limits=False,
        )
        for length in lengths
    ]

    async def work(session: Session) -> None:
        for _ in range(2):
            expected = [program.expected() for program in programs]
            runs = [start_program(session, program, ALWAYS) for program in programs]
            for run in runs:
                assert (await run).is_lowered
            for program, values in zip(programs, expected, strict=True):
                program.check(values)

    on_gpu(loop, work)


@LOOPS
@pytest.mark.parametrize("seed", range(6))
def test_results_are_the_models_around_calls(loop: str, seed: int) -> None:
    """Random graphs with calls on the host, as several graphs where they can be."""
    programs = [
        Program(100 * seed + length, length, cuda_kernels(), has_limits=False)
        for length in (20, 60, 150)
    ]

    async def work(session: Session) -> None:
        lowered = 0
        for _ in range(2):
            for program in programs:
                can_be = not isinstance(part_plan(program.plan), tuple)
                how = "always" if can_be else "never"
                expected = program.expected()
                run = start_program(session, program, LaunchOptions(lowering=how))
                assert (await run).is_lowered == can_be
                lowered += can_be
                program.check(expected)
        print(f"{lowered} runs were lowered")

    on_gpu(loop, work)


@LOOPS
def test_calls_see_what_was_copied_before_them_and_change_what_comes(loop: str) -> None:
    """While a kernel that they do not depend on goes on."""
    b = LaunchGraphBuilder()
    x, one, aside = (b.scratch(name, U32, 1) for name in ("x", "one", "aside"))
    seen, given = b.host("seen", U32, 1), b.host("given", U32, 1)
    scalars = (ScalarArgument.u32(1), ScalarArgument.u32(3))
    axpy = cuda_kernels().axpy
    arrays = {name: np.zeros(1, np.uint32) for name in ("seen", "given")}

    def call() -> None:
        arrays["given"][0] = arrays["seen"][0] + 5

    for slot, value in ((x, 2), (one, 1), (aside, 1)):
        b.fill(slot, value)
    b.kernel(axpy, [x.write, x.read, one.read], scalars)
    b.copy_out(x, seen)
    b.kernel(axpy, [aside.write, aside.read, one.read], scalars)
    b.host_call(call, reads=[seen], writes=[given], name="call")
    b.copy_in(given, x)
    b.kernel(axpy, [x.write, x.read, one.read], scalars)
    b.copy_out(x, seen)
    plan = b.build()

    async def work(session: Session) -> None:
        for _ in range(5):
            statistics = await session.run(plan, arrays, ALWAYS)
            assert statistics.is_lowered
            assert (arrays["given"][0], arrays["seen"][0]) == (12, 37)
        async with await session.prepare(plan, arrays, ALWAYS) as prepared:
            assert prepared.is_lowered
            for _ in range(3):
                arrays["seen"][0] = 0
                await prepared.run()
                assert arrays["seen"][0] == 37

    on_gpu(loop, work)


MOST = 4096


@LOOPS
@pytest.mark.parametrize("carries", [False, True])
@pytest.mark.parametrize("second", [None, LIMIT, LIMIT + 1])
def test_loops_with_limits_are_as_node_by_node(
    loop: str, carries: bool, second: int | None
) -> None:
    """Errors, what is skipped, and what is in the host's arrays; run after run."""

    async def work(session: Session) -> None:
        for turns in (0, 2, LIMIT, LIMIT + 1, 2 * LIMIT):
            plan = limited(cuda_kernels(), turns, carries=carries, second=second)
            plain = LaunchOptions(lowering="never")
            expected, _ = await outcome(session, plan, plain)
            assert ("bounded" in expected.errors) == (turns > LIMIT)
            for _ in range(3):
                found, run = await outcome(session, plan, ALWAYS)
                assert run.statistics().is_lowered
                assert found == expected

    on_gpu(loop, work)


@LOOPS
def test_a_limit_that_is_reached_now_and_then(loop: str) -> None:
    """The same graph again and again, through each of the ways to run it."""
    b = LaunchGraphBuilder()
    given, minus = b.buffer("given", U32, 1), b.scratch("minus", U32, 1)
    left = b.scratch("left", U32, 1)
    b.fill(minus, 2**32 - 1)
    b.copy(given, left)
    with b.loop(while_=left, max_iterations=1000, name="bounded"):
        uses = [left.read_write, left.read_write, minus.read]
        b.kernel(cuda_kernels().add, uses, [ScalarArgument.u32(1)])
    b.copy_out(left, b.host("out", U32, 1))
    plan, out = b.build(), np.zeros(1, np.uint32)

    async def work(session: Session) -> None:
        turns = session.allocate(1, U32)
        bindings = {"given": turns, "out": out}
        prepared = await session.prepare(plan, bindings, ALWAYS)
        ways: list[Callable[[], Awaitable[object]]] = [
            lambda: session.run(plan, bindings, ALWAYS),
            prepared.run,
            lambda: prepared.submit().wait(),
        ]
        for count in (2, 1000, 1001, 5, 5000, 1, 1001):
            await session.write(turns, np.array([count], np.uint32))
            for way in ways:
                out[0] = 9
                if count <= 1000:
                    await way()
                    assert out[0] == 0
                    continue
                with pytest.raises(ExceptionGroup) as caught:
                    await way()
                assert caught.group_contains(GraphError, match="max_iterations=1000")
                assert out[0] == 9

    on_gpu(loop, work)


def test_c63_new_buffers_each_time() -> None:
    """C63: 5000 replays with buffers of five sizes in turn; one graph, memory flat."""
    kernels = cuda_kernels()
    b = LaunchGraphBuilder()
    x, y, z = (b.buffer(name, U32, MOST) for name in "xyz")
    count = b.runtime_scalar()
    factor = b.runtime_scalar()
    b.kernel(kernels.axpy, [y.write, x.read, x.read], (count, factor), name="scale")
    b.kernel(kernels.add, [z.write, y.read, x.read], (count,), name="add")
    plan = b.build()
    sizes = (MOST, 1, 63, 1000, 4095)

    async def work(session: Session) -> None:
        values = np.arange(MOST, dtype=np.uint32)
        source = await session.upload(values)
        out = session.allocate(MOST, U32)
        backend = session.backend
        prepared = None
        used: list[int] = []
        for number in range(5000):
            size = sizes[number % 5]
            y, z = session.allocate(MOST, U32), session.allocate(MOST, U32)
            scalars = (ScalarArgument.u32(size), ScalarArgument.u32(number))
            bindings = {"x": source, "y": y, "z": z}
            if prepared is None:
                options = LaunchOptions(runtime_scalars=scalars, lowering="always")
                prepared = await session.prepare(plan, bindings, options)
            else:
                await prepared.rebind({"y": y, "z": z}, scalars)
            await prepared.run()
            if number % 50 < 5:
                found = await session.download(z)
                wanted = values[:size] * np.uint32(number) + 2 * values[:size]
                np.testing.assert_array_equal(found[:size], wanted)
                used.append(backend.memory_statistics()["used_bytes"])
            y.free()
            z.free()
        assert prepared is not None
        assert prepared.made == 1
        assert max(used) <= used[4] + 8 * MOST * 4
        out.free()
        await prepared.aclose()

    on_gpu("asyncio", work)


@LOOPS
def test_new_buffers_through_the_session(loop: str) -> None:
    """The same through `Session.run`: plain, lowered, taken over, all exact."""
    kernels = cuda_kernels()
    b = LaunchGraphBuilder()
    x, z = b.buffer("x", U32, 64), b.buffer("z", U32, 64)
    y = b.scratch("y", U32, 64)
    size = ScalarArgument.u32(64)
    b.kernel(kernels.axpy, [y.write, x.read, x.read], (size, b.runtime_scalar()))
    b.kernel(kernels.add, [z.write, y.read, x.read], (size,))
    plan = b.build()

    async def work(session: Session) -> None:
        values = np.arange(64, dtype=np.uint32)
        lowered = 0
        for number in range(60):
            arrays = {"x": await session.upload(values + np.uint32(number))}
            arrays["z"] = session.allocate(64, U32)
            options = LaunchOptions(runtime_scalars=(ScalarArgument.u32(number),))
            for _ in range(1 + number % 3):
                statistics = await session.run(plan, arrays, options)
                lowered += statistics.is_lowered
            found = await session.download(arrays["z"])
            wanted = (values + np.uint32(number)) * np.uint32(number + 2)
            np.testing.assert_array_equal(found, wanted)
            for array in arrays.values():
                array.free()
        assert lowered > 60

    on_gpu(loop, work)


@LOOPS
def test_awaited_nodes_and_their_arrays(loop: str) -> None:
    """A node awaited before is told of while the graph goes on, its array filled."""
    b = LaunchGraphBuilder()
    x = b.scratch("x", U32, 1000)
    first, second = b.host("first", U32, 1000), b.host("second", U32, 1000)
    b.fill(x, 1, name="ones")
    b.copy_out(x, first, name="read ones")
    b.kernel(native.entry("spin"), [], [ScalarArgument.u64(300_000_000)], name="spin")
    b.fill(x, 2, name="twos")
    b.copy_out(x, second, name="read twos", after="spin")
    plan = b.build()

    async def work(session: Session) -> None:
        one, two = np.zeros(1000, np.uint32), np.zeros(1000, np.uint32)
        bindings = {"first": one, "second": two}
        for number in range(3):
            one.fill(0)
            two.fill(0)
            run = session.start(plan, bindings, ALWAYS)
            await run["read ones"]
            assert one.sum() == 1000
            if number:
                assert not run["spin"].state.is_final
                assert two.sum() == 0
                one.fill(7)  # it is the caller's again
            await run
            assert two.sum() == 2000
            assert not number or one.sum() == 7000

    on_gpu(loop, work)


@LOOPS
def test_cancelling_a_replay(loop: str) -> None:
    """It ends within what the kernel takes, and the plan runs again."""
    b = LaunchGraphBuilder()
    for number in range(3):
        b.kernel(
            native.entry("spin"),
            [],
            [ScalarArgument.u64(100_000_000)],
            name=f"n{number}",
            after=(f"n{number - 1}",) if number else (),
        )
    plan = b.build()

    async def work(session: Session) -> None:
        prepared = await session.prepare(plan, options=ALWAYS)
        for _ in range(2):
            with anyio.move_on_after(0.02) as scope:
                await session.run(plan, options=ALWAYS)
            assert scope.cancelled_caught
            with anyio.move_on_after(0.02) as scope:
                await prepared.run()
            assert scope.cancelled_caught
        await prepared.run()
        assert (await session.run(plan, options=ALWAYS)).is_lowered
        # Left in flight: the session's exit waits for it.
        session.start(plan, options=ALWAYS)
        prepared.submit()

    on_gpu(loop, work)


def test_fills_and_copies_of_every_width() -> None:
    """Patterns of 1, 2, 4 and 8 bytes; empty buffers; copies on the device."""
    dtypes = (DType.U8, DType.U16, DType.U32, DType.U64, DType.F64)
    b = LaunchGraphBuilder()
    for dtype in dtypes:
        for size in (0, 1, 77):
            name = f"{dtype}_{size}"
            x = b.scratch(f"x{name}", dtype, size)
            y = b.scratch(f"y{name}", dtype, size)
            b.fill(x, 201)
            b.copy(x, y)
            b.copy_out(y, b.host(name, dtype, size))
    plan = b.build()
    arrays = {
        f"{dtype}_{size}": np.zeros(size, dtype.numpy)
        for dtype in dtypes
        for size in (0, 1, 77)
    }

    async def work(session: Session) -> None:
        await session.run(plan, arrays, ALWAYS)
        for array in arrays.values():
            assert (array == 201).all()

    on_gpu("asyncio", work)


def test_buffers_freed_in_flight_outlive_the_graph() -> None:
    """So does the graph itself; nothing is left when it is through."""
    kernels = cuda_kernels()
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", U32, 1000), b.buffer("y", U32, 1000)
    b.kernel(native.entry("spin"), [], [ScalarArgument.u64(50_000_000)], name="spin")
    size = (ScalarArgument.u32(1000),)
    b.kernel(kernels.add, [y.write, x.read, x.read], size, after="spin")
    plan = b.build()

    async def work(session: Session) -> None:
        x, y = session.allocate(1000, U32), session.allocate(1000, U32)
        prepared = await session.prepare(plan, {"x": x, "y": y}, ALWAYS)
        await prepared.run()
        mark = prepared.submit()
        x.free()
        y.free()
        assert session.live_objects()["buffers"] == 2
        assert not mark.is_reached
        await prepared.aclose()
        assert mark.is_reached
        await anyio.sleep(0.01)
        session.backend.reaper.sweep()
        assert session.live_objects()["buffers"] == 0
        assert session.live_objects()["graphs"] == 0

    on_gpu("asyncio", work)
