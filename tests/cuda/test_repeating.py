"""Plans that repeat on a GPU: what the driver is asked, and what a wait gives up to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from accy_async.backends.cuda import CudaBackend
from accy_async.backends.cuda.timeline import CudaTimeline
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.graph.repeating import Repeated
from accy_async.session import Session, open_session
from tests.cuda.fake import FakeDriver
from tests.cuda.test_graphs import KERNEL
from tests.graph.graphs import kernel_entry

NOT_READY = 600


def plan_of_two() -> LaunchGraphPlan:
    entry = kernel_entry(0, payload=KERNEL.payload, entry_name="step")
    b = LaunchGraphBuilder()
    b.kernel(entry, name="one")
    b.kernel(entry, name="two", after="one")
    return b.build()


@asynccontextmanager
async def repeating() -> AsyncIterator[tuple[Session, LaunchGraphPlan, CudaTimeline]]:
    """A plan that is a graph by now, and the stream that its next run has."""
    plan, backend = plan_of_two(), CudaBackend()
    async with open_session(backend) as session:
        for _ in range(2):
            await session.run(plan)
        line = backend._stream(session._streams._idle[-1]).timeline
        assert isinstance(line, CudaTimeline)
        yield session, plan, line
        assert session.statistics().runs == 0
    assert not any(session.live_objects().values())


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_what_ends_soon_is_asked_for_without_a_flag(
    driver: FakeDriver, loop: str
) -> None:
    """One launch and one question each, on one stream; else a flag, and the wait."""

    async def main() -> None:
        async with repeating() as (session, plan, line):
            line.is_quick = True
            before = driver.calls.copy()
            for _ in range(5):
                assert (await session.run(plan)).is_lowered
            calls = driver.calls - before
            assert calls["cuGraphLaunch"] == calls["cuStreamQuery"] == 5
            assert calls["cuStreamWriteValue64"] == calls["cuStreamCreate"] == 0
            driver.answers["cuStreamQuery"] = 10_000 * [NOT_READY]
            assert (await session.run(plan)).is_lowered
            driver.answers.clear()
            calls = driver.calls - before
            assert calls["cuStreamWriteValue64"] == 1
            assert not line.is_quick
            assert (await session.run(plan)).is_lowered

    anyio.run(main, backend=loop)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_repeated_run_has_its_flag_with_its_launch(
    driver: FakeDriver, loop: str
) -> None:
    """Where machine code calls the driver: nobody has to be asked then."""
    driver.tells_addresses = True

    async def main() -> None:
        async with repeating() as (session, plan, line):
            before = driver.calls.copy()
            for is_quick in (True, False, True):
                line.is_quick = is_quick
                assert (await session.run(plan)).is_lowered
                assert line.flagged == line.submitted
            calls = driver.calls - before
            assert calls["cuGraphLaunch"] == calls["cuStreamWriteValue64"] == 3
            assert calls["cuStreamQuery"] == calls["cuStreamCreate"] == 0

    anyio.run(main, backend=loop)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_cancelling_what_ends_soon(driver: FakeDriver, loop: str) -> None:
    """The run is given up whole, and the next one is as ever."""
    del driver

    async def main() -> None:
        async with repeating() as (session, plan, line):
            line.is_quick = True
            with anyio.CancelScope() as scope:
                scope.cancel()
                await session.run(plan)
            assert scope.cancelled_caught
            assert (await session.run(plan)).is_lowered

    anyio.run(main, backend=loop)


@pytest.mark.anyio
async def test_a_run_cancelled_before_its_longer_wait_gives_that_up() -> None:
    going = Repeated()
    going.cancel()
    with going.open_scope() as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert going.is_cancelled
