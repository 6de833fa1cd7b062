"""A replay draws one interleaving from a seed, and the same one on both loops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from accy_async.backends import RecordingBackend
from accy_async.backends.replay import Replay, ReplayStuck
from accy_async.dtypes import DType
from accy_async.errors import DeviceError, InvalidValue
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.outcome import NodeState, RunCancelled
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session import open_session
from tests.graphs.parts import KERNEL

SEEDS = range(12)


def plan_with(call: Callable[[str], Callable[[], Awaitable[None]]]) -> LaunchGraphPlan:
    """Three chains and two host calls that join in a node."""
    b = LaunchGraphBuilder(edges="explicit")
    ends = []
    for chain in range(3):
        last = b.kernel(KERNEL, name=f"head{chain}")
        if chain < 2:
            last = b.host_call(call(f"call{chain}"), name=f"call{chain}", after=last)
        ends.append(b.kernel(KERNEL, name=f"tail{chain}", after=last))
    b.kernel(KERNEL, name="join", after=ends)
    return b.build()


async def replayed(seed: int, **weights: float) -> list[str]:
    """The log of one replay of two runs, and how each run ended."""
    device = RecordingBackend()
    replay = Replay(device, seed, **weights)  # type: ignore[arg-type]
    ends: list[str] = []

    async def program() -> None:
        plan = plan_with(replay.call)
        async with open_session(device) as session:
            runs = []
            for number in range(2):
                run = session.start(plan)
                replay.cancellable(f"run{number}", run)
                runs.append(run)
                await replay.until_blocked()
            for run in runs:
                try:
                    await run
                except (ExceptionGroup, RunCancelled):
                    ends.append(run.state)
                else:
                    ends.append("finished")

    await replay.drive(program)
    assert not any(device.live_objects().values())
    return [*replay.log, *ends]


async def replayed_with_weights(seed: int) -> list[str]:
    return await replayed(seed, **WEIGHTS)


WEIGHTS = {"failures": 0.3, "cancels": 0.2, "host_failures": 0.3, "burst": 2}


def test_the_same_seed_gives_the_same_log_on_both_loops() -> None:
    """Every decision, and what became of the runs, is the same again and elsewhere."""
    logs = []
    for seed in SEEDS:
        first = anyio.run(replayed_with_weights, seed, backend="asyncio")
        again = anyio.run(replayed_with_weights, seed, backend="asyncio")
        other = anyio.run(replayed_with_weights, seed, backend="trio")
        assert first == again == other
        logs.append(tuple(first))
    assert len(set(logs)) == len(SEEDS)
    words = {entry.split()[0] for log in logs for entry in log}
    assert words >= {"step", "return", "raise", "cancel", "fail"}
    assert words >= {"finished", "failed", "cancelled"}


@pytest.mark.anyio
async def test_without_mishaps_everything_finishes() -> None:
    """Left to steps and returns, operations complete and calls return."""
    log = await replayed(3)
    assert log[-2:] == ["finished", "finished"]
    assert {entry.split()[0] for entry in log[:-2]} == {"step", "return"}
    returned = sorted(e.split()[1] for e in log if e.startswith("return"))
    assert returned == ["call0", "call0", "call1", "call1"]


@pytest.mark.anyio
async def test_what_waits_for_what_never_happens_is_told_of() -> None:
    """Instead of hanging, a replay raises with the log, and leaves nothing behind."""
    device = RecordingBackend()
    replay = Replay(device, 1)

    async def program() -> None:
        async with open_session(device) as session:
            session.allocate(4, DType.F32)
            await anyio.Event().wait()

    with pytest.raises(ReplayStuck, match="still waits"):
        await replay.drive(program)
    assert not any(device.live_objects().values())


@pytest.mark.anyio
async def test_what_the_program_raises_comes_out_alone() -> None:
    """The program's own error leaves `drive`, in no group, and streams are let go."""
    device = RecordingBackend()
    replay = Replay(device, 1)

    async def program() -> None:
        async with open_session(device) as session:
            run = session.start(plan_with(replay.call))
            await replay.until_blocked()
            assert run["head0"].state is NodeState.SUBMITTED
            raise LookupError("the program's own")

    with pytest.raises(LookupError, match="the program's own"):
        await replay.drive(program)
    stream = device.create_stream()
    device.record_event(device.create_event(), stream)
    assert device.is_stream_idle(stream)
    device.close()


@pytest.mark.anyio
async def test_a_lost_device_ends_the_replay() -> None:
    """A launch that takes the device with it ends every run with the loss."""
    found = set()
    for seed in SEEDS:
        device = RecordingBackend()
        replay = Replay(device, seed, losses=0.5)

        async def program(replay: Replay = replay) -> None:
            async with open_session(replay.backend) as session:
                await session.run(plan_with(replay.call))

        try:
            await replay.drive(program)
        except* DeviceError as group:
            found.add(type(group.exceptions[0]).__name__)
        assert not any(device.live_objects().values())
    assert found


@pytest.mark.parametrize(
    "wrong", [{"failures": -0.1}, {"cancels": float("nan")}, {"burst": 0}]
)
def test_weights_are_checked(wrong: dict[str, float]) -> None:
    """A weight below 0 or a burst below 1 is refused, and named."""
    with pytest.raises(InvalidValue, match=rf"Replay\.{next(iter(wrong))}"):
        Replay(RecordingBackend(), 1, **wrong)  # type: ignore[arg-type]
