"""Ctrl-C: in a run's task, and in the middle of what is given to a device."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import numpy as np
import pytest

import accy_async
from accy_async.backends import RecordingBackend
from accy_async.graph import LaunchGraphBuilder
from accy_async.session import Session
from tests.graphs.parts import KERNEL
from tests.harness.scan_chain import LAUNCH


@pytest.mark.parametrize("waits_for", ["the run", "another run", "something else"])
def test_it_leaves_as_itself(waits_for: str) -> None:
    # On trio, where it is raised in the task that it meets; asyncio ends its loop.
    sessions: list[accy_async.Session] = []

    async def interrupted() -> None:
        raise KeyboardInterrupt

    interrupting, endless = LaunchGraphBuilder(), LaunchGraphBuilder()
    interrupting.host_call(interrupted)
    endless.host_call(anyio.sleep_forever)

    async def main() -> None:
        async with accy_async.open_session(RecordingBackend()) as session:
            sessions.append(session)
            other = session.start(endless.build())
            run = session.start(interrupting.build())
            if waits_for == "the run":
                await run
            elif waits_for == "another run":
                await other
            else:
                await anyio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        accy_async.run(main, loop="trio")
    assert not any(sessions[0].live_objects().values())


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C is heard, also where the tests run in a shell's background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Pressed(RecordingBackend):
    """A device on which somebody presses Ctrl-C in the middle of each launch."""

    def _launch(self, *given: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        super()._launch(*given)


async def launches(session: Session) -> None:
    await session.launch_pipeline(LAUNCH)


async def runs(session: Session) -> None:
    g = LaunchGraphBuilder()
    g.kernel(KERNEL)
    await session.run(g.build())


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("work", [launches, runs])
def test_on_trio_it_comes_between_operations_and_not_within(
    work: Callable[[Session], Awaitable[None]],
) -> None:
    """A launch cut in the middle would be waited for until the grace is over."""
    device = Pressed()

    async def main() -> None:
        async with accy_async.open_session(device, grace=0.1) as session:
            await work(session)

    with pytest.raises(KeyboardInterrupt) as caught:
        accy_async.run(main, loop="trio")
    assert not isinstance(caught.value.__context__, ExceptionGroup)
    assert not any(device.live_objects().values())


@pytest.mark.usefixtures("heard")
def test_on_trio_it_comes_within_a_host_call() -> None:
    """Which is the user's, and may go on for ever."""
    g = LaunchGraphBuilder()

    async def endless() -> None:
        signal.raise_signal(signal.SIGINT)
        pytest.fail("nobody was interrupted")

    g.host_call(endless)
    plan = g.build()

    async def main() -> None:
        async with accy_async.open_session(RecordingBackend()) as session:
            await session.run(plan)

    with pytest.raises(KeyboardInterrupt):
        accy_async.run(main, loop="trio")


class Pressing:
    """A constant of a program during whose n-th hashing somebody presses Ctrl-C."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __hash__(self) -> int:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


@pytest.mark.usefixtures("heard")
def test_on_trio_no_table_makes_an_error_of_it() -> None:
    """An ordered dict that is gone through takes it for a missing key."""
    row = np.zeros(4, np.float32)

    async def main() -> None:
        async with (
            accy_async.open_session(RecordingBackend()) as session,
            await session.load_fragment(lambda x, _: x) as function,
        ):
            await function(row, constant)

    for left in range(1, 12):
        constant = Pressing(left)
        with pytest.raises(KeyboardInterrupt):
            accy_async.run(main, loop="trio")
        assert constant.left <= 0
