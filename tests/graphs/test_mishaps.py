"""Whatever fails, is cancelled or lost, and whenever: what a run says agrees."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends import RecordingBackend
from accy_async.backends.replay import Replay
from accy_async.errors import DeviceLost
from accy_async.graph.options import LaunchOptions, OnError
from accy_async.graph.outcome import NodeSkipped, NodeState, RunCancelled
from accy_async.graph.relations import Relations
from accy_async.graph.run import Run
from accy_async.session import open_session
from tests.graphs.parts import check_empty
from tests.graphs.programs import Program, named_kernels
from tests.graphs.starting import start_program

SEEDS = st.integers(0, 2**32 - 1)
pytestmark = pytest.mark.slow

LOOP = st.sampled_from(["asyncio", "trio"])
BAD = (NodeState.FAILED, NodeState.SKIPPED, NodeState.CANCELLED)


def check_states(program: Program, run: Run, *, may_cancel: bool) -> None:
    """What each node came to follows from what the nodes before it came to."""
    relations = Relations(program.plan)
    states = [run[relations.name(i)].state for i in range(relations.count)]
    assert all(state.is_final for state in states)
    for index, state in enumerate(states):
        name = relations.name(index)
        before = [states[i] for i in relations.blockers(index)]
        if state is NodeState.FINISHED:
            around = set(relations.loops_around(index))
            outside = [states[i] for i in relations.blockers(index) if i not in around]
            assert around or not set(BAD).intersection(outside), name
        if state is NodeState.SKIPPED:
            assert set(BAD).intersection(before) or index >= relations.node_count
        if state is NodeState.CANCELLED:
            assert may_cancel, name
        if state is NodeState.FAILED and index < relations.node_count:
            assert run.errors[name] is run[name].error
    assert {name for name in run.errors if run[name].state is not NodeState.FAILED} == (
        set()
    )


async def caught(awaited: Awaitable[object]) -> Exception | None:
    try:
        await awaited
    except Exception as error:  # noqa: BLE001 - the caller looks at it
        return error
    return None


async def check_awaits(program: Program, run: Run) -> None:
    """Awaiting says the same as the state, for every node."""
    for node in program.plan.nodes:
        handle = run[node.name]
        error = await caught(handle)
        if handle.state is NodeState.FINISHED:
            assert error is None
        elif handle.state is NodeState.SKIPPED:
            assert isinstance(error, NodeSkipped)
            assert error.__cause__ in run.errors.values()
        elif handle.state is NodeState.CANCELLED:
            assert isinstance(error, RunCancelled)
        else:
            assert error is not None
            assert error is handle.error


def check_outcome(run: Run, error: Exception | None, *, is_healthy: bool) -> None:
    """What awaiting the run raised is what failed in it, and nothing else."""
    if error is None:
        assert run.state == "finished"
    elif isinstance(error, RunCancelled):
        assert run.state == "cancelled"
    else:
        assert run.state == "failed"
        assert isinstance(error, ExceptionGroup)
        told = error.exceptions
        follow = (NodeSkipped, RunCancelled, ExceptionGroup)
        assert not any(isinstance(one, follow) for one in told)
        assert not is_healthy or set(told) == set(run.errors.values())


async def replay_mishaps(
    drawn: Sequence[tuple[int, int]], seed: int, on_error: OnError, losses: float
) -> None:
    device = RecordingBackend()
    replay = Replay(
        device,
        seed,
        failures=0.15,
        cancels=0.05,
        host_failures=0.5,
        losses=losses,
        burst=3,
    )
    programs = [
        Program(each, length, named_kernels(), host_call=replay.call)
        for each, length in drawn
    ]

    ended: list[tuple[Program, Run]] = []

    async def program() -> None:
        async with open_session(device) as session:
            runs = [
                start_program(
                    session, one, LaunchOptions(on_error=on_error, name=f"run{number}")
                )
                for number, one in enumerate(programs)
            ]
            for run in runs:
                replay.cancellable(run.name, run)
            for one, run in zip(programs, runs, strict=True):
                error = await caught(run)
                check_outcome(run, error, is_healthy=device.is_healthy)
                ended.append((one, run))

    try:
        await replay.drive(program)
    except* DeviceLost:
        assert not device.is_healthy
    check_empty(device)
    for one, run in ended if device.is_healthy else ():
        was_cancelled = f"cancel {run.name}" in replay.log
        may_cancel = was_cancelled or on_error is OnError.CANCEL
        check_states(one, run, may_cancel=may_cancel)
        await check_awaits(one, run)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    loop=LOOP,
    drawn=st.lists(st.tuples(SEEDS, st.integers(1, 30)), min_size=1, max_size=3),
    seed=SEEDS,
    on_error=st.sampled_from(OnError),
)
def test_states_and_errors_agree(
    loop: str, drawn: list[tuple[int, int]], seed: int, on_error: OnError
) -> None:
    """A node finished only after all before it did, failed only with its own error,
    was skipped only behind a failure and cancelled only in a cancelled run; awaiting
    says the same; nothing is left of any of it.
    """  # noqa: D205 - one promise, in one sentence
    anyio.run(replay_mishaps, drawn, seed, on_error, 0.0, backend=loop)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    loop=LOOP,
    drawn=st.lists(st.tuples(SEEDS, st.integers(1, 30)), min_size=1, max_size=3),
    seed=SEEDS,
)
def test_a_lost_device_leaves_nothing(
    loop: str, drawn: list[tuple[int, int]], seed: int
) -> None:
    """However the device is lost, every run ends, and so does every object."""
    anyio.run(replay_mishaps, drawn, seed, OnError.FINISH, 0.1, backend=loop)
