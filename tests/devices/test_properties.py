"""Random graphs over several devices: the model's result, every dependency kept."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends.cpu import CpuBackend
from accy_async.backends.replay import Replay
from accy_async.dtypes import DType
from accy_async.graph.options import LaunchOptions
from accy_async.graph.run import Run
from accy_async.session import MultiSession, open_session
from tests.devices.parts import check_all_empty, gpus, opened
from tests.graphs.orders import OrderRecorder, check_order
from tests.graphs.programs import LENGTH, Program, cpu_kernels, named_kernels
from tests.graphs.test_properties import loop_counts

SEEDS = st.integers(0, 2**32 - 1)
DRAWN = st.tuples(SEEDS, st.integers(1, 40))
LOOP = st.sampled_from(["asyncio", "trio"])
pytestmark = pytest.mark.slow


def start(
    session: MultiSession, program: Program, recorder: OrderRecorder | None
) -> Run:
    """Start a program, with its buffers where it has them."""
    bindings: dict[str, object] = dict(program.hosts)
    for slot in program.plan.slots:
        if slot.name.startswith("b") and not getattr(slot, "is_scratch", False):
            device = program.device_of(int(slot.name[1:]))
            bindings[slot.name] = session.allocate(LENGTH, DType.U32, device=device)
    if program.has_external:
        backend = session.on(len(session.devices) - 1).backend
        bindings["start"] = event = backend.create_event()
        backend.record_event(event)
    options = LaunchOptions(runtime_scalars=program.scalars)
    return session.start(program.plan, bindings, options, observer=recorder)


async def run_on_cpus(
    drawn: Sequence[tuple[int, int]], count: int, max_streams: int
) -> None:
    devices = [
        CpuBackend(workers=1, max_streams=max_streams, index=index)
        for index in range(count)
    ]
    names = [device.device for device in devices]
    programs = [
        Program(seed, length, cpu_kernels(), devices=names) for seed, length in drawn
    ]
    expected = [program.expected() for program in programs]
    async with open_session(devices=devices) as session:
        runs = [start(session, program, None) for program in programs]
        for run in runs:
            await run
    for device in devices:
        assert not any(device.live_objects().values())
        device.close()
    for program, values in zip(programs, expected, strict=True):
        program.check(values)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    loop=LOOP,
    drawn=st.lists(DRAWN, min_size=1, max_size=3),
    count=st.integers(2, 4),
    max_streams=st.sampled_from([1, 2, 4]),
)
def test_results_are_the_models_on_several_processors(
    loop: str, drawn: list[tuple[int, int]], count: int, max_streams: int
) -> None:
    """Runs over two to four devices leave what the steps in order would."""
    anyio.run(run_on_cpus, drawn, count, max_streams, backend=loop)


async def replay_order(
    drawn: Sequence[tuple[int, int]],
    seed: int,
    count: int,
    has_peer_access: bool,
    can_wait_for_peers: bool,
) -> None:
    devices = gpus(
        count, has_peer_access=has_peer_access, can_wait_for_peers=can_wait_for_peers
    )
    names = [device.device for device in devices]
    replay = Replay(devices, seed, burst=3)
    recorders = [OrderRecorder() for _ in drawn]
    programs = [
        Program(
            each,
            length,
            named_kernels(),
            host_call=replay.call,
            devices=names,
        )
        for each, length in drawn
    ]
    if not can_wait_for_peers:  # external events are the devices' own to wait for
        programs = [one for one in programs if not one.has_external]
        recorders = recorders[: len(programs)]

    async def program() -> None:
        async with opened(devices) as session:
            runs = [
                start(session, one, recorder)
                for one, recorder in zip(programs, recorders, strict=True)
            ]
            for run in runs:
                await run

    await replay.drive(program)
    check_all_empty(devices)
    for one, recorder in zip(programs, recorders, strict=True):
        check_order(one.plan, recorder, loop_counts(one, reads_zeros=True))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    loop=LOOP,
    drawn=st.lists(DRAWN, min_size=1, max_size=2),
    seed=SEEDS,
    count=st.integers(2, 4),
    ways=st.sampled_from([(True, True), (False, True), (True, False)]),
)
def test_order_respects_every_dependency_across_devices(
    loop: str,
    drawn: list[tuple[int, int]],
    seed: int,
    count: int,
    ways: tuple[bool, bool],
) -> None:
    """However completions of the devices interleave, nothing begins too early.

    Straight and staged copies, and edges that the host resolves.
    """
    anyio.run(replay_order, drawn, seed, count, *ways, backend=loop)
