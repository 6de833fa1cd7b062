"""A session's tasks are its own loop's: another loop's, and threads, are sent there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import numpy as np
import pytest

import accy_async
from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType
from accy_async.errors import WrongEventLoop
from accy_async.graph import LaunchGraphBuilder
from accy_async.session import Session
from tests.harness.scan_chain import LAUNCH

pytestmark = pytest.mark.anyio

g = LaunchGraphBuilder()
g.fill(g.scratch("x", DType.F32, 4), 1.0)
PLAN = g.build()
ROW = np.zeros(4, np.float32)


async def leases(session: Session) -> None:
    async with session.stream():
        pass


async def tunes(session: Session) -> None:
    async with session.tuning():
        pass


WAYS: dict[str, Callable[[Session], Awaitable[object]]] = {
    "run": lambda session: session.run(PLAN),
    "prepare": lambda session: session.prepare(PLAN),
    "launch_pipeline": lambda session: session.launch_pipeline(LAUNCH),
    "stream": leases,
    "tuning": tunes,
}


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("way", WAYS)
async def test_another_loop_is_refused(way: str, loop: str) -> None:
    """Before anything begins: the session goes on, and ends, as if nothing had been."""
    device = RecordingBackend()
    async with accy_async.open_session(device) as session:

        async def elsewhere() -> None:
            with pytest.raises(WrongEventLoop, match=f"{way}: the session was opened"):
                await WAYS[way](session)

        await anyio.to_thread.run_sync(lambda: accy_async.run(elsewhere, loop=loop))
        await session.run(PLAN)
    assert not any(device.live_objects().values())


async def test_a_thread_without_a_loop_is_refused() -> None:
    async with accy_async.open_session(RecordingBackend()) as session:

        def start() -> None:
            with pytest.raises(WrongEventLoop, match=r"from_thread\.run"):
                session.start(PLAN)

        await anyio.to_thread.run_sync(start)


async def test_fragments_are_called_on_their_sessions_loop() -> None:
    """Uploads may come from anywhere, calls may not: they wait for each other."""
    async with (
        accy_async.open_session("cpu") as session,
        await session.load_fragment(lambda x: x + 1, "f32[4]") as fragment,
    ):

        async def elsewhere() -> None:
            (await session.upload(ROW)).free()
            with pytest.raises(WrongEventLoop, match="calling a fragment"):
                await fragment(ROW)

        await anyio.to_thread.run_sync(lambda: accy_async.run(elsewhere))
        assert np.array_equal(await fragment(ROW), ROW + 1)


async def test_several_devices_belong_to_one_loop_too() -> None:
    async with accy_async.open_session(devices=["cpu", "cpu:1"]) as session:

        async def elsewhere() -> None:
            with pytest.raises(WrongEventLoop, match="start"):
                await session.run(PLAN)

        await anyio.to_thread.run_sync(lambda: accy_async.run(elsewhere))
