"""Streams that are asked about in place of a flag: when, for how long, and by whom."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest

from accy_async.backends import StreamHandle
from accy_async.backends import arrival as polling
from accy_async.backends.cuda import CudaBackend, asking
from accy_async.backends.cuda.timeline import CudaTimeline
from accy_async.backends.loops import current_bell
from accy_async.backends.pace import SPIN_NS, Pace
from accy_async.backends.streampool import StreamPool
from accy_async.session import open_session
from tests.backends.words import Clock
from tests.cuda.fake import FakeDriver
from tests.cuda.test_launching import prepare
from tests.cuda.test_repeating import plan_of_two

pytestmark = pytest.mark.anyio

WORK_NS = 100_000
BUSY = 600


class Scene:
    """A stream whose work took 0.1 ms each time so far, and time that is told.

    Attributes:
        done_ns: when its work is done; never if it is 0.
        asked: at which times it was asked about.
    """

    def __init__(
        self, backend: CudaBackend, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.backend, self.driver = backend, driver
        self.clock = clock = Clock()
        self.asked: list[int] = []
        for module in (asking, polling):
            monkeypatch.setattr(module, "monotonic_ns", clock)
        monkeypatch.setattr(backend, "_ask", self._answer)

        def spin(line: CudaTimeline, position: int, limit_ns: int) -> None:
            clock.now += limit_ns

        monkeypatch.setattr(CudaTimeline, "spin", spin)
        self.stream = backend.create_stream()
        self.line = cast("CudaTimeline", backend._stream(self.stream).timeline)
        self.launch = prepare(backend, [])
        self.backend.submit_launch(self.launch, self.stream)
        self.pace = self.learned()
        self.begun = clock.now
        self.done_ns = clock.now + WORK_NS

    def _answer(self, native: Any) -> tuple[int]:
        del native
        self.asked.append(self.clock.now - self.begun)
        is_done = 0 < self.done_ns <= self.clock.now
        self.clock.now += 5_000
        return (0 if is_done else BUSY,)

    def learned(self) -> Pace:
        pace = self.line.pace_at(self.line.submitted)
        for _ in range(8):
            pace.learn(WORK_NS)
        pace.spread = WORK_NS >> 6
        return pace

    @property
    def flags(self) -> int:
        return self.driver.calls["cuStreamWriteValue64"]

    async def ends_soon(self, *, is_alone: bool = True) -> bool:
        return await self.backend.ends_soon(self.stream, is_alone=is_alone)


@pytest.fixture
def scene(
    backend: CudaBackend, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> Scene:
    return Scene(backend, driver, monkeypatch)


async def test_work_of_a_known_length_has_no_flag_and_is_asked_about_near_its_end(
    scene: Scene,
) -> None:
    spread = scene.pace.spread
    assert await scene.ends_soon()
    assert scene.flags == 0
    assert scene.asked[0] == WORK_NS - SPIN_NS // 2 - 2 * spread
    assert 0 <= scene.asked[-1] - WORK_NS < 5_000
    assert scene.line.completed == scene.line.submitted
    assert scene.pace.noted == scene.clock.now - scene.begun
    scene.pace.recall()
    assert (scene.pace.count, scene.pace.noted) == (9, 0)
    assert not scene.line.is_quick
    assert current_bell().pollers == 0


async def test_work_of_no_known_length_is_asked_about_at_once(scene: Scene) -> None:
    scene.pace.spread = WORK_NS
    scene.done_ns = scene.begun + 20_000
    assert await scene.ends_soon()
    assert scene.flags == 0
    assert scene.asked[0] == 0
    assert scene.asked[-1] == 20_000


@pytest.mark.parametrize("why", ["shared", "flagged", "long", "polling"])
async def test_other_work_is_not_asked_about(scene: Scene, why: str) -> None:
    line, bell = scene.line, current_bell()
    if why == "flagged":
        line.request(line.submitted)
    elif why == "long":
        scene.pace.mean = 100 * WORK_NS
    bell.pollers = int(why == "polling")
    assert not await scene.ends_soon(is_alone=why != "shared")
    assert scene.asked == []
    assert bell.pollers == (why == "polling")
    bell.pollers = 0


async def test_work_that_takes_longer_than_ever_is_flagged_and_learned_whole(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.done_ns = 0
    assert not await scene.ends_soon()
    assert scene.flags == 0
    assert scene.clock.now - scene.begun >= scene.pace.patience
    took: list[int] = []
    monkeypatch.setattr(Pace, "learn", lambda _, ns: took.append(ns))
    line = scene.line

    def spin(line: CudaTimeline, position: int, limit_ns: int) -> None:
        scene.clock.now += limit_ns
        line._word.value = position

    def flag(line: CudaTimeline, position: int) -> None:
        scene.backend._flag(line, position)
        line._word.value = 0  # not yet

    monkeypatch.setattr(CudaTimeline, "spin", spin)
    monkeypatch.setattr(line, "_flag", flag)
    await scene.backend.wait_stream(scene.stream, line.submitted)
    assert scene.flags == 1
    assert took == [scene.clock.now - scene.begun]
    assert scene.line.begun == 0
    assert not scene.line.is_quick


async def test_work_that_is_flagged_meanwhile_ends_when_its_word_says_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spin(line: CudaTimeline, position: int, limit_ns: int) -> None:
        del limit_ns
        line.request(position)  # as another thread may

    monkeypatch.setattr(CudaTimeline, "spin", spin)
    assert await scene.ends_soon()
    assert scene.asked == []


async def test_what_somebody_else_submits_is_not_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is seen, the wait is for what was submitted before."""

    def spin(line: CudaTimeline, position: int, limit_ns: int) -> None:
        line.request(position)
        scene.clock.now += limit_ns
        scene.backend.submit_launch(scene.launch, scene.stream)
        line._word.value = 0

    monkeypatch.setattr(CudaTimeline, "spin", spin)
    first = scene.line.submitted
    assert not await scene.ends_soon()
    assert scene.asked == []
    scene.line._word.value = first
    await scene.backend.wait_stream(scene.stream, first)
    assert scene.flags == 1, "none behind what was submitted since"


async def test_asking_can_be_cancelled(scene: Scene) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await scene.ends_soon()
    assert scope.cancelled_caught
    assert current_bell().pollers == 0
    assert scene.asked == []


async def test_a_stream_is_flagged_before_it_is_shared(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    """Who waits for it, with no flag, is not to wait for what comes now, too."""
    pool = StreamPool(backend, 1)
    stream = pool.lease_or_share()
    assert not pool.is_shared(stream)
    backend.submit_launch(prepare(backend, []), stream)
    assert driver.calls["cuStreamWriteValue64"] == 0
    assert pool.lease_or_share() is stream
    assert pool.is_shared(stream)
    assert driver.calls["cuStreamWriteValue64"] == 1
    pool.give_back(stream)
    assert not pool.is_shared(stream)


async def test_a_run_that_is_awaited_is_flagged_before_the_next_is_submitted(
    driver: FakeDriver,
) -> None:
    """Of one prepared plan: who awaits the first is not to await the second, too."""
    backend = CudaBackend()
    alone: list[bool] = []
    asked: list[StreamHandle] = []

    async def ends_soon(stream: StreamHandle, *, is_alone: bool = False) -> bool:
        asked.append(stream)
        alone.append(is_alone)
        if len(asked) == 1:
            assert driver.calls["cuStreamWriteValue64"] == flags
            prepared.submit()
            assert driver.calls["cuStreamWriteValue64"] == flags + 1
        return False

    async with open_session(backend) as session:
        prepared = await session.prepare(plan_of_two())
        flags = driver.calls["cuStreamWriteValue64"]
        backend.ends_soon = ends_soon  # type: ignore[method-assign]
        await prepared.run()
        flags = driver.calls["cuStreamWriteValue64"]
        prepared.submit()
        assert driver.calls["cuStreamWriteValue64"] == flags, "nobody waits"
        assert asked == [prepared.stream]
        await prepared.run()
        assert alone == [True, False], "others may use the stream by now"
