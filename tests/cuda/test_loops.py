"""Loops within CUDA graphs, carried out on the host: which turns, on which buffers."""

from __future__ import annotations

import threading

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.backends.cuda import CudaBackend, context
from accy_async.backends.cuda.conditions import BEGIN, SWAP
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import AccyError
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.session import open_session
from tests.cuda.playing import Kernel, PlayingDriver, words
from tests.graph.graphs import kernel_entry
from tests.graphs.limits import countdown
from tests.graphs.programs import Kernels, Program

PTX = """.version 7.0
.target sm_80
.visible .entry step(.param .u64 x) { ret; }
"""
U32 = DType.U32
ALWAYS = LaunchOptions(lowering="always")


def _add(out: int, a: int, b: int, count: int) -> None:
    words(out, count)[:] = words(a, count) + words(b, count)


def _axpy(out: int, a: int, b: int, count: int, factor: int) -> None:
    words(out, count)[:] = np.uint32(factor) * words(a, count) + words(b, count)


def _fill(out: int, count: int, value: int) -> None:
    words(out, count)[:] = value


def _copy(out: int, a: int, count: int) -> None:
    words(out, count)[:] = words(a, count)


BODIES: dict[str, tuple[int, Kernel]] = {
    "add": (4, _add),
    "axpy": (5, _axpy),
    "fill": (3, _fill),
    "copy": (3, _copy),
}


def entry(name: str, buffers: int) -> KernelCallArtifact:
    arguments = BODIES[name][0]
    return kernel_entry(
        buffers,
        f"t.{name}",
        entry_name=name,
        payload=PTX.replace("step", name),
        runtime_scalar_argument_count=arguments - buffers,
    )


KERNELS = Kernels(entry("add", 3), entry("axpy", 3), entry("fill", 1), entry("copy", 2))
ONE = ScalarArgument.u32(1)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> PlayingDriver:
    made = PlayingDriver(BODIES)
    monkeypatch.setattr(context, "load_driver", lambda: made)
    return made


def run(plan: LaunchGraphPlan, arrays: dict[str, np.ndarray], times: int = 1) -> None:
    """Run a plan as one device graph."""

    async def main() -> None:
        async with open_session("cuda") as session:
            for _ in range(times):
                assert (await session.run(plan, arrays, ALWAYS)).is_lowered

    anyio.run(main)


@pytest.mark.parametrize("turns", range(5))
def test_a_value_ends_a_loop_that_carries(driver: PlayingDriver, turns: int) -> None:
    """However often it runs, the value is where it belongs; exchanged once at most."""
    b = LaunchGraphBuilder()
    left, minus = countdown(b, turns)
    x, y = b.buffer("x", U32, 3), b.buffer("y", U32, 3)
    b.fill(x, 1)
    b.fill(y, 100)
    with b.loop(while_=left, carries=[(x, y)]):
        b.kernel(KERNELS.add, [left.read_write, left.read_write, minus.read], [ONE])
        three = ScalarArgument.u32(3)
        b.kernel(KERNELS.add, [y.write, x.read, x.read], [three])
    b.copy_out(x, b.host("last", U32, 3))
    b.copy_out(y, b.host("other", U32, 3))
    plan = b.build()
    arrays = {name: np.zeros(3, np.uint32) for name in ("last", "other")}

    async def main() -> None:
        async with open_session("cuda") as session:
            given = {name: session.allocate(3, U32) for name in "xy"}
            for _ in range(3):
                going = session.start(plan, {**arrays, **given}, ALWAYS)
                assert (await going).is_lowered
                assert going.binding("x") is given["x"]
                assert list(arrays["last"]) == [2**turns] * 3
                before = 2 ** (turns - 1) if turns else 100
                assert list(arrays["other"]) == [before] * 3

    anyio.run(main)
    assert driver.played.count("accy_swap") == (3 if turns % 2 else 0)


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 5, 6, 13])
def test_carries_that_come_round_in_three(driver: PlayingDriver, turns: int) -> None:
    """And around a loop that runs again, with another number of turns each time."""
    b = LaunchGraphBuilder()
    left, minus = countdown(b, 0)
    names = "abc"
    a, c, d = (b.scratch(name, U32, 1) for name in names)
    outer = b.scratch("outer", U32, 1)
    b.fill(outer, turns)
    for number, buffer in enumerate((a, c, d)):
        b.fill(buffer, 10 * number)
    with b.loop(count=200):
        b.kernel(KERNELS.copy, [left.write, outer.read], [ONE])
        b.kernel(KERNELS.fill, [outer.write], [ONE, ScalarArgument.u32(0)])
        inner = b.loop(while_=left, carries=[(c, d)])
        with inner, b.loop(count=1, carries=[(a, c)]):
            b.kernel(KERNELS.add, [left.read_write, left.read_write, minus.read], [ONE])
    hosts = {name: np.zeros(1, np.uint32) for name in names}
    for name, buffer in zip(names, (a, c, d), strict=True):
        b.copy_out(buffer, b.host(f"out_{name}", U32, 1))
    run(b.build(), {f"out_{name}": array for name, array in hosts.items()}, times=2)
    model = [0, 10, 20]
    for _ in range(turns):
        model[0], model[1] = model[1], model[0]
        model[1], model[2] = model[2], model[1]
    assert [int(array[0]) for array in hosts.values()] == model


@pytest.mark.parametrize("turns", range(4))
def test_the_condition_may_be_carried(driver: PlayingDriver, turns: int) -> None:
    """It is looked at where it is before each turn."""
    del driver
    b = LaunchGraphBuilder()
    left, minus = countdown(b, turns)
    following = b.scratch("following", U32, 1)
    total = b.scratch("total", U32, 1)
    b.fill(total, 0)
    with b.loop(while_=left, carries=[(left, following)]):
        b.kernel(KERNELS.add, [following.write, left.read, minus.read], [ONE])
        b.kernel(KERNELS.add, [total.read_write, total.read_write, left.read], [ONE])
    b.copy_out(total, b.host("total out", U32, 1))
    out = np.zeros(1, np.uint32)
    run(b.build(), {"total out": out}, times=2)
    assert out[0] == turns * (turns + 1) // 2


def run_twice(program: Program) -> None:
    """As one graph on the same buffers; the host's arrays are the model's each time."""

    async def main() -> None:
        async with open_session("cuda") as session:
            given = {
                slot.name: session.allocate(slot.shape, U32)
                for slot in program.plan.slots
                if slot.name not in program.hosts
                and not getattr(slot, "is_scratch", False)
            }
            options = LaunchOptions(runtime_scalars=program.scalars, lowering="always")
            for _ in range(2):
                expected = program.expected()
                await session.run(program.plan, {**program.hosts, **given}, options)
                program.check(expected)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "load_driver", lambda: PlayingDriver(BODIES))
        anyio.run(main)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, 40))
def test_random_graphs_leave_what_their_models_leave(seed: int, length: int) -> None:
    """Loops of both kinds within each other, with carries; twice, as one graph."""
    program = Program(seed, length, KERNELS, has_hosts=False, has_limits=False)
    if program.has_external:
        return

    run_twice(program)


def test_threads_that_make_loops_at_once_load_their_kernels_once(
    driver: PlayingDriver,
) -> None:
    """None finds them half loaded; what could not be loaded is loaded by the next."""
    begun, go_on = threading.Event(), threading.Event()
    load = driver.cuModuleGetFunction

    def slowly(module: object, name: bytes) -> object:
        if not begun.is_set():
            begun.set()
            go_on.wait(10)
        return load(module, name)

    backend = CudaBackend()
    conditions = backend._conditions
    driver.answers["cuModuleGetFunction"] = [0, 1]
    with pytest.raises(AccyError, match="cuModuleGetFunction"):
        conditions.parameters(BEGIN, 1, 2, 3)
    assert conditions.module is None
    assert driver.calls["cuModuleUnload"] == 1
    driver._made["cuModuleGetFunction"] = slowly  # type: ignore[assignment]
    errors: list[Exception] = []

    def use(kernel: str) -> None:
        try:
            conditions.parameters(kernel, 1, 2, 3)
        except Exception as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    threads = [threading.Thread(target=use, args=(kernel,)) for kernel in (BEGIN, SWAP)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert driver.calls["cuModuleLoadDataEx"] == 2
    backend.close()
