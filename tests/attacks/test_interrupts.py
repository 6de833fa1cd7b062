"""Ctrl-C that meets a run's task, and not the one that opened the session."""

from __future__ import annotations

import anyio
import pytest

import accy_async
from accy_async.backends import RecordingBackend
from accy_async.graph import LaunchGraphBuilder


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
