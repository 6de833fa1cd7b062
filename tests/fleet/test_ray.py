"""Workers on a real Ray cluster on this machine, and what it could never give."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from accy_async.errors import CapabilityMismatch, InvalidValue, RuntimeUnavailable
from accy_async.fleet import open_fleet, ray_workers
from accy_async.fleet.rayworkers import check_satisfiable
from accy_async.tuning import CandidateStatus
from tests.fleet.scaling import work_of


def actors() -> list[int]:
    """The processes of our actors."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            title = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:  # it ended meanwhile
            continue
        if title.startswith(b"ray::RayActor"):
            found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Ray on this machine; started once."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    ray.init(
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )
    try:
        yield ray
    finally:
        ray.shutdown()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [("trio", {})], ids=["trio"])
@pytest.mark.filterwarnings("default")  # what Ray itself warns of is not ours
async def test_one_of_two_workers_is_killed_halfway(cluster: Any) -> None:
    """Every candidate is measured once; and a cancelled fleet leaves no process.

    On the loop that Ray's own awaiting does not know; both are in test_rayworkers.py.
    """
    async with open_fleet(ray_workers(2, device="cpu"), restarts=0) as fleet:
        before = set(actors())
        assert len(before) == 2
        async with fleet.measuring(work_of(8, rounds=24)) as measuring:
            seen = []
            async for one in measuring:
                seen.append(one.name)
                if len(seen) == 4:
                    os.kill(min(before), signal.SIGKILL)
            outcome = measuring.outcome()
        assert sorted(seen) == sorted(map(str, range(8)))
        (kind,) = outcome.kinds
        assert [one.name for one in kind.measurements] == sorted(seen)
        assert {one.status for one in kind.measurements} == {CandidateStatus.MEASURED}
        ((lost, why),) = outcome.lost
        assert why.startswith(f"worker {lost}: ActorDiedError")
        assert len(fleet.workers) == 1
        with anyio.CancelScope() as scope:
            async with fleet.measuring(work_of(2, rounds=4000)) as measuring:
                scope.cancel()
                await anyio.sleep_forever()
        assert len((await fleet.measure(work_of(2, rounds=4))).measurements) == 2
        assert len(actors()) == 1
    assert not actors()
    assert cluster.is_initialized()  # it was there before, and stays


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [("trio", {})], ids=["trio"])
async def test_what_the_cluster_has_not_got_is_refused(cluster: Any) -> None:
    with pytest.raises(CapabilityMismatch, match="2 workers of 1 GPU each"):
        async with open_fleet(ray_workers(2, device="cuda")):
            pytest.fail("it is not open")


@pytest.mark.parametrize(
    ("nodes", "count", "wants", "room"),
    [
        ([{"GPU": 4, "CPU": 8}], 5, {"GPU": 1}, 4),
        ([{"GPU": 1}, {"GPU": 1}], 2, {"GPU": 2}, 0),
        ([{"CPU": 3}, {"CPU": 1, "tpu": 2}], 2, {"CPU": 2}, 1),
        ([{"CPU": 3}], 1, {"fast": 0.5}, 0),
        ([], 1, {}, 0),
    ],
)
def test_requests_beyond_the_cluster_are_refused(
    nodes: list[dict[str, float]], count: int, wants: dict[str, float], room: int
) -> None:
    there = [{"Alive": True, "Resources": resources} for resources in nodes]
    there.append({"Alive": False, "Resources": {"GPU": 64, "CPU": 64, "fast": 64}})
    with pytest.raises(CapabilityMismatch, match=f"have room for {room}"):
        check_satisfiable(there, count, wants)
    if room:
        check_satisfiable(there, room, wants)


def test_workers_of_a_gpu_take_no_core() -> None:
    assert ray_workers(3, device="cuda:0").wants == {"GPU": 1.0}
    assert ray_workers(1, device="cpu", resources={"fast": 1}).wants == {
        "CPU": 1.0,
        "fast": 1,
    }
    with pytest.raises(InvalidValue):
        ray_workers(0)


@pytest.mark.anyio
async def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(RuntimeUnavailable, match=r"accy-async\[ray\]"):
        async with open_fleet(ray_workers(1, device="cpu")):
            pytest.fail("it is not open")
