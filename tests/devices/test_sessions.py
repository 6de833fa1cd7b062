"""One session over several devices: seats, placing, health, leaving."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import numpy as np
import pytest

from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType
from accy_async.errors import (
    BackendUnavailable,
    DeviceLost,
    GraceExpired,
    InvalidBuffer,
    InvalidType,
    InvalidValue,
    SessionClosed,
)
from accy_async.graph.options import LaunchOptions
from accy_async.session import DeviceLoad, Work, open_session
from tests.conftest import cuda_missing
from tests.devices.parts import alone, bound, check_all_empty, gpus, opened, ring

pytestmark = pytest.mark.anyio


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]


async def test_devices_are_named_and_have_seats() -> None:
    """By name and by place; a seat makes what is its device's, and ends with all."""
    devices = gpus(3)
    async with opened(devices) as session:
        assert session.devices == ("cuda:0", "cuda:1", "cuda:2")
        assert session.on("cuda:2") is session.on(2)
        array = session.on("cuda:1").allocate(4, DType.U32)
        other = session.allocate(4, DType.U32, device=2)
        assert array.is_of(devices[1])
        assert other.is_of(devices[2])
        assert session.live_objects()["buffers"] == 2
        assert session.statistics()["cuda:1"].live_objects["buffers"] == 1
        with pytest.raises(InvalidValue, match="one of cuda:0, cuda:1, cuda:2"):
            session.on("cuda:7")
        with pytest.raises(InvalidValue, match="one of cuda:0"):
            session.on(3)
    check_all_empty(devices)
    with pytest.raises(SessionClosed):
        session.allocate(4, DType.U32)
    assert all(device.is_healthy for device in devices)  # the caller's own


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        ([], InvalidValue, "at least one"),
        ("cpu", InvalidType, "a list of names"),
        ([1.5], InvalidType, "indices of GPUs"),
        (["cpu:0", "cpu"], InvalidValue, "each device once"),
        (["nonsense"], InvalidValue, "or a device's name"),
        (["cpu:x"], InvalidValue, "or a device's name"),
    ],
)
async def test_devices_that_cannot_be(
    devices: Sequence[str], error: type[Exception], message: str
) -> None:
    """They are refused before anything is open."""
    with pytest.raises(error, match=message):
        async with open_session(devices=devices):
            pass


async def test_all_gpus_where_there_are_none() -> None:
    """``all`` says why there is none."""
    if cuda_missing() is None:
        pytest.skip("there are GPUs here")
    with pytest.raises(BackendUnavailable, match="cuda"):
        async with open_session(devices="all"):
            pass


async def test_two_processors_by_name() -> None:
    """They are two devices, whose backends are the session's own."""
    async with open_session(devices=["cpu:0", "cpu:1"]) as session:
        values = np.arange(1000, dtype=np.float32)
        here = await session.upload(values, device="cpu:0")
        there = await session.copy_to(here, "cpu:1")
        assert here.is_of(session.on(0).backend)
        assert there.is_of(session.on(1).backend)
        np.testing.assert_array_equal(await session.download(there), values)
        again = await there.copy_to(session.on("cpu:0"))
        here.free()
        np.testing.assert_array_equal(await session.download(again), values)
        backends = [session.on(i).backend for i in range(2)]
    assert not any(backend.is_healthy for backend in backends)


async def test_arrays_are_used_where_they_are() -> None:
    """Writes, reads and waits go to the array's device; another's array is refused."""
    devices = gpus(2)
    stranger = RecordingBackend(index=5)
    async with opened(devices) as session, open_session(stranger) as elsewhere:
        array = session.allocate(4, DType.U32, device="cuda:1")
        await session.write(array, np.zeros(4, np.uint32))
        await session.download(array)
        await session.wait_array(array)
        assert (devices[0].write_count, devices[1].write_count) == (0, 1)
        async with session.stream(device="cuda:1") as stream:
            await session.download(array, stream=stream)
            up = await session.upload(np.zeros(4, np.uint32), stream=stream)
        assert up.is_of(devices[1])
        assert devices[1].read_count == 2
        foreign = elsewhere.allocate(4, DType.U32)
        with pytest.raises(InvalidBuffer, match=r"cuda:5 .*devices are cuda:0, cuda:1"):
            await session.download(foreign)


async def test_runs_go_where_their_data_are() -> None:
    """Each plan runs on the device of its arrays, and loads its kernel there once."""
    devices = gpus(2)
    plan = bound()
    async with opened(devices) as session:
        for number in (1, 1, 0):
            array = session.allocate(4, DType.U32, device=number)
            await session.run(plan, {"x0": array})
        assert [device.launch_count for device in devices] == [1, 2]
        assert [device.load_count for device in devices] == [1, 1]
    check_all_empty(devices)


async def test_runs_without_data_go_to_the_least_loaded() -> None:
    """While one device is held up, the next run goes to the other."""
    devices = gpus(2)
    devices[0].hold_all()
    async with opened(devices) as session:
        first = session.start(alone())
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            await session.run(alone())
        assert devices[1].launch_count == 3
        devices[0].release_all()
        await first
    check_all_empty(devices)


async def test_runs_of_one_plan_stay_where_its_kernels_are() -> None:
    """With nothing else to choose by, a plan goes where it ran before."""
    devices = gpus(2)
    plan = alone()
    async with opened(devices) as session:
        await session.on(1).run(plan)
        devices[0].hold_all()
        held = session.start(alone())
        await anyio.wait_all_tasks_blocked()
        await session.run(plan)
        devices[0].release_all()
        await held
        await session.run(plan)
    assert (devices[1].load_count, devices[1].launch_count) == (1, 3)


async def test_a_policy_of_the_callers() -> None:
    """It is told what there is, and its answer is taken, or refused by name."""
    seen: list[tuple[Work, tuple[DeviceLoad, ...]]] = []
    answers: list[object] = ["cuda:1", "cuda:9", 3]

    def policy(work: Work, candidates: Sequence[DeviceLoad]) -> str:
        seen.append((work, tuple(candidates)))
        return answers.pop(0)  # type: ignore[return-value]

    devices = gpus(2)
    async with open_session(devices=devices, policy=policy) as session:
        await session.run(alone(), options=LaunchOptions(name="mine"))
        with pytest.raises(InvalidValue, match="one of cuda:0, cuda:1"):
            session.start(alone())
        with pytest.raises(InvalidType, match="name of a device"):
            session.place()
    assert devices[1].launch_count == 1
    work, candidates = seen[0]
    assert work == Work(kind="run", name="mine")
    assert [one.device for one in candidates] == ["cuda:0", "cuda:1"]
    assert seen[2][0].kind == "data"


async def test_one_device_lost_leaves_the_others_alone() -> None:
    """Its runs fail; those of another go on, and the session says which it is."""
    devices = gpus(3)
    for device in devices:
        device.hold_all()
    plan = ring(["cuda:0", "cuda:1"])
    with pytest.raises(ExceptionGroup) as caught:
        async with opened(devices) as session:
            across = session.start(plan, {"out": np.ones(4, np.uint32)})
            spared = session.on(2).start(alone())
            lone = session.on(0).start(alone())
            await anyio.wait_all_tasks_blocked()
            devices[1].lose_device("fell off the bus")
            for device in devices:
                device.release_all()
            await spared
            await lone
            assert not session.is_healthy
            health = session.health()
            assert [one.is_healthy for one in health.values()] == [True, False, True]
            assert isinstance(health["cuda:1"].loss, DeviceLost)
            for _ in range(3):
                await session.run(alone())  # placed elsewhere
            await across
    assert caught.group_contains(DeviceLost, match="fell off the bus")
    assert [device.is_healthy for device in devices] == [True, False, True]
    check_all_empty(devices)


async def test_all_devices_lost() -> None:
    """Nothing can be placed any more, and that says why."""
    devices = gpus(2)
    with pytest.raises((DeviceLost, ExceptionGroup)):
        async with opened(devices) as session:
            for device in devices:
                device.lose_device("gone")
            with pytest.raises(DeviceLost, match="gone"):
                session.start(alone())
            with pytest.raises(DeviceLost, match="gone"):
                session.place()
    check_all_empty(devices)


async def test_the_grace_is_one_for_all_devices() -> None:
    """Two devices that hang are waited for at the same time, and each is named."""
    devices = gpus(2, grace_s=0.2)
    with pytest.raises(ExceptionGroup) as caught:
        async with opened(devices) as session:
            for number, device in enumerate(devices):
                device.hold_all()
                session.on(number).start(alone())
            await anyio.wait_all_tasks_blocked()
    names = [error for error in _leaves(caught.value) if type(error) is GraceExpired]
    assert len(names) >= 2
    for device in devices:
        device.release_all()
    check_all_empty(devices)
