"""Random graphs: the model's result, every dependency kept, no wait too many."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends import RecordingBackend
from accy_async.backends.cpu import CpuBackend
from accy_async.backends.replay import Replay
from accy_async.graph.nodes import RuntimeScalar
from accy_async.session import open_session
from tests.graphs.orders import OrderRecorder, check_order
from tests.graphs.programs import Program, cpu_kernels, named_kernels
from tests.graphs.starting import start_program

SEEDS = st.integers(0, 2**32 - 1)
DRAWN = st.tuples(SEEDS, st.integers(1, 40))
BATCHES = st.lists(DRAWN, min_size=1, max_size=6)
pytestmark = pytest.mark.slow

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
LOOP = st.sampled_from(["asyncio", "trio"])


def loop_counts(program: Program, *, reads_zeros: bool) -> list[int]:
    """The iterations of each loop; a while-loop has none where reads give zeros."""
    counts = []
    for loop in program.plan.loops:
        count = loop.count
        if isinstance(count, RuntimeScalar):
            count = int(program.scalars[count.index].value)
        assert count is not None or reads_zeros
        counts.append(count or 0)
    return counts


async def run_on_cpu(drawn: Sequence[tuple[int, int]], max_streams: int | None) -> None:
    programs = [Program(seed, length, cpu_kernels()) for seed, length in drawn]
    expected = [program.expected() for program in programs]
    device = CpuBackend(max_streams=max_streams)
    async with open_session(device) as session:
        runs = [start_program(session, program) for program in programs]
        for run in runs:
            await run
    device.close()
    for program, values in zip(programs, expected, strict=True):
        program.check(values)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(loop=LOOP, drawn=BATCHES, max_streams=st.sampled_from([1, 2, 4, 8]))
def test_results_are_the_models_on_the_cpu(
    loop: str, drawn: list[tuple[int, int]], max_streams: int
) -> None:
    """Up to six runs at once leave in host memory what the steps in order would."""
    anyio.run(run_on_cpu, drawn, max_streams, backend=loop)


@LOOPS
@pytest.mark.parametrize("length", [1000, 3000])
def test_results_of_large_graphs_are_the_models(loop: str, length: int) -> None:
    """So do graphs of thousands of nodes."""
    anyio.run(run_on_cpu, [(length, length), (length + 1, 300)], None, backend=loop)


async def replay_order(drawn: Sequence[tuple[int, int]], seed: int) -> None:
    device = RecordingBackend()
    replay = Replay(device, seed, burst=3)
    recorders = [OrderRecorder() for _ in drawn]
    programs = [
        Program(each, length, named_kernels(), host_call=replay.call)
        for each, length in drawn
    ]

    async def program() -> None:
        async with open_session(device) as session:
            runs = [
                start_program(session, one, observer=recorder)
                for one, recorder in zip(programs, recorders, strict=True)
            ]
            for run in runs:
                await run

    await replay.drive(program)
    assert not any(device.live_objects().values())
    for one, recorder in zip(programs, recorders, strict=True):
        check_order(one.plan, recorder, loop_counts(one, reads_zeros=True))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(loop=LOOP, drawn=st.lists(DRAWN, min_size=1, max_size=3), seed=SEEDS)
def test_order_respects_every_dependency(
    loop: str, drawn: list[tuple[int, int]], seed: int
) -> None:
    """However completions and host calls interleave, nothing begins too early."""
    anyio.run(replay_order, drawn, seed, backend=loop)


@LOOPS
def test_order_of_a_large_graph(loop: str) -> None:
    """So it is in a graph of 2000 nodes, beyond what may be in flight at once."""
    anyio.run(replay_order, [(5, 2000)], 17, backend=loop)
