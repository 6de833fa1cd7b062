"""Plans as recorded command buffers: results, new buffers, failures, lifetimes.

The validation layer looks on wherever it is installed, and must say nothing.
"""

from __future__ import annotations

import anyio
import attrs
import numpy as np
import pytest

from accy_async.backends.vulkan import VulkanBackend
from accy_async.backends.vulkan.barriers import Synchronization
from accy_async.dtypes import DType, ScalarArgument
from accy_async.graph import LaunchGraphBuilder, LaunchOptions
from accy_async.graph.lowering.parts import part_plan
from accy_async.session import Session, open_session
from tests.graphs.programs import Program
from tests.graphs.starting import start_program
from tests.vulkan import harness
from tests.vulkan.harness import join_threads
from tests.vulkan.sessions import kernels, on_vulkan

pytestmark = pytest.mark.vulkan

U32 = DType.U32
LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
ALWAYS = LaunchOptions(lowering="always")
ONE = ScalarArgument.u32(1)


@LOOPS
@pytest.mark.parametrize("seed", range(3))
def test_results_are_the_models(loop: str, seed: int) -> None:
    """Random graphs with loops and carries, twice each, three at a time."""
    programs = [
        Program(100 * seed + n, n, kernels(), has_hosts=False, has_while=False)
        for n in (5, 20, 60)
    ]

    async def work(session: Session, backend: VulkanBackend) -> None:
        for _ in range(2):
            expected = [program.expected() for program in programs]
            runs = [start_program(session, program, ALWAYS) for program in programs]
            for run in runs:
                assert (await run).is_lowered
            for program, values in zip(programs, expected, strict=True):
                program.check(values)

    on_vulkan(work, loop)


@LOOPS
def test_results_are_the_models_around_calls(loop: str) -> None:
    """Random graphs with calls on the host, as several graphs where they can be."""
    programs = [
        Program(seed, 10 + 3 * seed, kernels(), has_loops=seed % 2 == 0)
        for seed in range(10)
    ]

    async def work(session: Session, backend: VulkanBackend) -> None:
        lowered = 0
        for program in programs:
            found = part_plan(program.plan, program.scalars, has_loops=False)
            if isinstance(found, tuple) or not found.calls:
                continue
            for _ in range(2):
                expected = program.expected()
                assert (await start_program(session, program, ALWAYS)).is_lowered
                lowered += 1
                program.check(expected)
        assert lowered >= 4

    on_vulkan(work, loop)


def test_calls_see_what_was_copied_before_and_change_what_comes() -> None:
    """Beside a node of the same part that they do not depend on."""
    b = LaunchGraphBuilder()
    x, one, aside = (b.scratch(name, U32, 1) for name in ("x", "one", "aside"))
    seen, given = b.host("seen", U32, 1), b.host("given", U32, 1)
    scalars = (ONE, ScalarArgument.u32(3))
    arrays = {name: np.zeros(1, np.uint32) for name in ("seen", "given")}

    def call() -> None:
        arrays["given"][0] = arrays["seen"][0] + 5

    for slot, value in ((x, 2), (one, 1), (aside, 1)):
        b.fill(slot, value)
    b.kernel(kernels().axpy, [x.write, x.read, one.read], scalars)
    b.copy_out(x, seen)
    b.kernel(kernels().axpy, [aside.write, aside.read, one.read], scalars)
    b.host_call(call, reads=[seen], writes=[given], name="call")
    b.copy_in(given, x)
    b.kernel(kernels().axpy, [x.write, x.read, one.read], scalars)
    b.copy_out(x, seen)
    plan = b.build()

    async def work(session: Session, backend: VulkanBackend) -> None:
        for _ in range(3):
            statistics = await session.run(plan, arrays, ALWAYS)
            assert statistics.is_lowered
            assert statistics.submissions == 2
            assert (arrays["given"][0], arrays["seen"][0]) == (12, 37)

    on_vulkan(work)


def model(count: int) -> int:
    x = 1
    for _ in range(count):
        x = (3 * x + 1) % 2**32
    return x


def test_c60_loops_with_carried_values() -> None:
    """C60: ``x = 3 x + 1`` so often in two buffers that take turns, unrolled."""
    b = LaunchGraphBuilder()
    x, y, one = (b.scratch(name, U32, 1) for name in ("x", "y", "one"))
    b.fill(x, 1)
    b.fill(one, 1)
    scalars = (ONE, ScalarArgument.u32(3))
    with b.loop(count=b.runtime_scalar(), carries=[(x, y)], name="loop"):
        b.kernel(kernels().axpy, [y.write, x.read, one.read], scalars, name="step")
    b.copy_out(x, b.host("answer", U32, 1), name="save")
    plan = b.build()
    answer = np.zeros(1, np.uint32)
    assert model(1000) == 3180628145

    async def work(session: Session, backend: VulkanBackend) -> None:
        for count in (1000, 0, 1, 2, 129, 1000):
            options = attrs.evolve(ALWAYS, runtime_scalars=(ScalarArgument.u32(count),))
            await session.run(plan, {"answer": answer}, options)
            assert answer[0] == model(count), count

    on_vulkan(work)


def test_loops_that_a_value_ends_are_told_and_run_node_by_node() -> None:
    b = LaunchGraphBuilder()
    n, minus = b.scratch("n", U32, 1), b.scratch("minus", U32, 1)
    b.fill(n, 7)
    b.fill(minus, 2**32 - 1)
    with b.loop(while_=n, name="down"):
        b.kernel(kernels().add, [n.read_write, n.read_write, minus.read], (ONE,))
    b.copy_out(n, b.host("out", U32, 1))
    plan, out = b.build(), np.full(1, 9, np.uint32)

    async def work(session: Session, backend: VulkanBackend) -> None:
        async with await session.prepare(plan, {"out": out}) as prepared:
            await prepared.run()
            assert not prepared.is_lowered
            (told,) = map(str, prepared.obstacles)
            assert told.startswith("down: a value decides on its end")
        assert out[0] == 0

    on_vulkan(work)


@LOOPS
def test_calls_on_the_host_between_graphs(loop: str) -> None:
    """What lies between them is recorded; each waits for what it depends on."""
    b = LaunchGraphBuilder()
    x, out = b.scratch("x", U32, 1), b.host("out", U32, 1)
    given = b.host("given", U32, 1)
    one = b.scratch("one", U32, 1)
    b.fill(one, 1)
    b.copy_in(given, x, name="load")
    seen: list[int] = []
    for part in range(3):
        for number in range(6):
            name = f"add {part} {number}"
            b.kernel(kernels().add, [x.read_write, x.read, one.read], (ONE,), name=name)
        b.copy_out(x, out, name=f"save {part}")
        b.host_call(
            lambda: seen.append(int(values[1][0])),
            name=f"tell {part}",
            after=f"save {part}",
        )
        b.fill(one, part + 2, name=f"step {part}", after=f"tell {part}")
    plan = b.build()
    values = [np.array([5], np.uint32), np.zeros(1, np.uint32)]

    async def work(session: Session, backend: VulkanBackend) -> None:
        bindings = {"given": values[0], "out": values[1]}
        for _ in range(3):
            seen.clear()
            assert (await session.run(plan, bindings, ALWAYS)).is_lowered
            assert seen == [11, 23, 41]

    on_vulkan(work, loop)


def test_validation_reports_a_barrier_that_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which shows that its silence about all others means something."""
    if not harness.has_validation():
        pytest.skip("the validation layer is not installed")
    backend = VulkanBackend(validation=True)
    monkeypatch.setattr(Synchronization, "hold_apart", lambda self, commands: None)
    b = LaunchGraphBuilder()
    x, y = b.scratch("x", U32, 64), b.scratch("y", U32, 64)
    b.fill(x, 1)
    b.copy(x, y)

    async def main() -> None:
        async with open_session(backend) as session:
            await session.run(b.build(), options=ALWAYS)

    anyio.run(main, backend="asyncio")
    backend.close()
    join_threads()
    assert any("SYNC-HAZARD" in message for message in backend.validation_messages)


def test_fills_and_copies_of_every_width() -> None:
    """Patterns of 1, 2, 4 and 8 bytes; empty buffers; copies on the device."""
    b = LaunchGraphBuilder()
    arrays = {}
    for dtype in (DType.U8, DType.U16, DType.U32, DType.U64, DType.F64):
        for size in (0, 1, 77):
            name = f"{dtype}_{size}"
            x = b.scratch(f"x{name}", dtype, size)
            y = b.scratch(f"y{name}", dtype, size)
            b.fill(x, 201)
            b.copy(x, y)
            b.copy_out(y, b.host(name, dtype, size))
            arrays[name] = np.zeros(size, dtype.numpy)
    plan = b.build()

    async def work(session: Session, backend: VulkanBackend) -> None:
        for _ in range(2):
            await session.run(plan, arrays, ALWAYS)
            for array in arrays.values():
                assert (array == 201).all()
                array.fill(0)

    on_vulkan(work)
