"""Workers on Ray, where Ray is a fake: connecting, losing, cancelling, ending."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from accy_async.errors import RuntimeUnavailable, WorkerLost
from accy_async.fleet import open_fleet, ray_workers
from accy_async.fleet import rayworkers as module
from accy_async.fleet.rayactor import RayActor
from accy_async.tuning import CandidateStatus
from tests.fleet.fakeray import FakeRay
from tests.fleet.scaling import work_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    """The fake in place of the package; its actors' processes are never ours."""
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(module, "machine", lambda: "another machine")
    yield fake
    fake.close()


async def asked(ray: FakeRay, call: str) -> None:
    """Return when the first actor was asked for something."""
    with anyio.fail_after(10):
        while call not in ray.actors[0].calls:  # noqa: ASYNC110 - it is another thread's
            await anyio.sleep(0.001)


async def test_workers_are_opened_used_and_ended(ray: FakeRay) -> None:
    """A cluster that was started for them ends with them."""
    async with open_fleet(ray_workers(2, device="cpu")) as fleet:
        assert set(fleet.workers) == {"ray:0", "ray:1"}
        outcome = await fleet.measure(work_of(4, rounds=4))
        assert ray.told == ["init"]
    assert ray.told == ["init", "shutdown"]
    assert all(actor.is_dead for actor in ray.actors)
    assert {one.status for one in outcome.measurements} == {CandidateStatus.MEASURED}


async def test_a_connection_that_was_there_stays(ray: FakeRay) -> None:
    ray._is_initialized = True
    async with open_fleet(ray_workers(1, device="cpu")):
        pass
    assert ray.told == []


async def test_a_killed_worker_is_replaced(ray: FakeRay) -> None:
    async with (
        open_fleet(ray_workers(1, device="cpu")) as fleet,
        fleet.measuring(work_of(4, rounds=4)) as measuring,
    ):
        async for _ in measuring:
            if len(ray.actors) == 1:
                ray.kill(ray.actors[0], no_restart=True)
        outcome = measuring.outcome()
    assert {one.status for one in outcome.measurements} == {CandidateStatus.MEASURED}
    assert "ActorDiedError" in outcome.lost[0][1]
    assert len(ray.actors) == 2


async def test_cancelling_reaches_the_worker_which_stays(ray: FakeRay) -> None:
    async with open_fleet(ray_workers(1, device="cpu")) as fleet:
        with anyio.CancelScope() as scope:
            async with fleet.measuring(work_of(2, rounds=4000)) as measuring:
                await asked(ray, "measure")
                scope.cancel()
                await anyio.sleep_forever()
        assert not measuring.outcome().kinds[0].is_storable
        assert (await fleet.measure(work_of(2, rounds=4))).kinds[0].baseline == "0"
    assert len(ray.actors) == 1


async def test_a_worker_that_does_not_listen_is_killed(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_END_S", 0.05)
    monkeypatch.setattr(ray, "cancel", lambda _: None)
    async with open_fleet(ray_workers(1, device="cpu", grace=0.0)) as fleet:
        with anyio.CancelScope() as scope:
            async with fleet.measuring(work_of(2, rounds=100_000)):
                await asked(ray, "measure")
                scope.cancel()
                await anyio.sleep_forever()
        assert ray.actors[0].is_dead


async def test_a_worker_that_never_opens_is_told_of_in_time(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: RayActor) -> Any:
        await anyio.sleep_forever()

    monkeypatch.setattr(RayActor, "process", never)
    workers = ray_workers(1, device="cpu", resources={}, open_timeout_s=0.1)
    with pytest.raises(RuntimeUnavailable, match=r"ray:0: not open after 0.1 s.*1 CPU"):
        async with open_fleet(workers):
            pytest.fail("it is not open")
    assert ray.actors[0].is_dead
    assert ray.told == ["init", "shutdown"]


async def test_a_device_that_cannot_be_opened_says_why(ray: FakeRay) -> None:
    workers = ray_workers(1, device="nonsense", num_cpus=1)
    with pytest.raises(WorkerLost, match="nonsense"):
        async with open_fleet(workers):
            pytest.fail("it is not open")
    assert ray.actors[0].is_dead


async def test_what_a_session_is_left_with_is_raised(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = RayActor.run

    async def fails(self: RayActor, device: str, grace: float) -> None:
        await ends(self, device, grace)
        raise RuntimeError("objects were left")

    monkeypatch.setattr(RayActor, "run", fails)
    with pytest.raises(WorkerLost, match="objects were left"):
        async with open_fleet(ray_workers(1, device="cpu")):
            pass


async def test_a_cluster_that_does_not_start_is_said_so(ray: FakeRay) -> None:
    ray.fails_to_start = ConnectionError("no such host")
    with pytest.raises(RuntimeUnavailable, match="Ray does not start: no such host"):
        async with open_fleet(ray_workers(1, address="10.0.0.1:6379")):
            pytest.fail("it is not open")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # which cancels tasks by itself
async def test_the_cluster_is_left_however_often_the_fleet_is_cancelled(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, begun = threading.Event(), anyio.Event()
    shutdown, loop = ray.shutdown, asyncio.get_running_loop()

    def shutdown_slowly() -> None:
        loop.call_soon_threadsafe(begun.set)
        may_end.wait()
        shutdown()

    monkeypatch.setattr(ray, "shutdown", shutdown_slowly)

    async def main() -> None:
        async with open_fleet(ray_workers(1, device="cpu")):
            pass

    task = asyncio.create_task(main())
    with anyio.fail_after(10):
        await begun.wait()
        for _ in range(3):
            task.cancel()
            await anyio.wait_all_tasks_blocked()
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ray.told == ["init", "shutdown"]
    assert ray.actors[0].is_dead
