"""Pipelines over several devices: kernels loaded where they are first launched."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from accy_async.dtypes import DType
from accy_async.errors import LaunchArgumentMismatch, RuntimeUnavailable
from accy_async.pipeline import PipelineLaunch
from accy_async.session import DeviceLoad, MultiSession, Work, open_session
from tests.devices.parts import check_all_empty, gpus, opened
from tests.harness.scan_chain import LAUNCH, PIPELINE, REGISTRY

pytestmark = pytest.mark.anyio


def launch_on(session: MultiSession, operand: str, result: str) -> PipelineLaunch:
    """A launch whose buffers are on these devices."""
    arrays = [
        session.allocate(5000, DType.F32, device=device) for device in (operand, result)
    ]
    return attrs.evolve(LAUNCH, operands=arrays[:1], results=arrays[1:])


async def test_kernels_are_loaded_on_each_device_at_its_first_launch() -> None:
    """Once each, whatever the order; nothing is loaded where nothing is launched."""
    devices = gpus(3)
    async with opened(devices) as session:
        pools = await session.load_pipeline(PIPELINE, REGISTRY)
        assert [device.load_count for device in devices] == [0, 0, 0]
        for name in ("cuda:1", "cuda:0", "cuda:1"):
            await session.launch_pipeline(launch_on(session, name, name), pools)
        assert [device.load_count for device in devices] == [3, 3, 0]
        assert [device.launch_count for device in devices] == [3, 6, 0]
        assert await pools.on("cuda:1") is await pools.on(1)
        await pools.aclose()
        await pools.aclose()
        assert session.live_objects()["artifacts"] == 0
        with pytest.raises(LaunchArgumentMismatch, match="closed"):
            await pools.on("cuda:1")
    check_all_empty(devices)


async def test_a_kept_launch_is_packed_once() -> None:
    """The same request gets the same pool each time."""
    devices = gpus(2)
    async with (
        opened(devices) as session,
        await session.load_pipeline(PIPELINE, REGISTRY) as pools,
    ):
        request = launch_on(session, "cuda:1", "cuda:1")
        bound = await pools.bound(request, "cuda:1")
        assert await pools.bound(request, 1) is bound
        await session.launch_pipeline(request, pools)
        await session.launch_pipeline(request)  # loads for itself alone
    check_all_empty(devices)


async def test_a_load_that_fails_can_be_tried_again() -> None:
    """It leaves nothing, and the other device is not concerned."""
    devices = gpus(2)
    devices[1].fail("load_artifact", 2)
    async with opened(devices) as session:
        pools = await session.load_pipeline(PIPELINE, REGISTRY)
        with pytest.raises(RuntimeUnavailable):
            await pools.on("cuda:1")
        assert session.live_objects()["artifacts"] == 0
        await pools.on("cuda:1")
        await pools.on("cuda:0")
    check_all_empty(devices)


async def test_launches_on_two_devices_are_refused() -> None:
    """Both are named; so are a pool of another device, and two pools."""
    devices = gpus(2)
    async with opened(devices) as session:
        with pytest.raises(
            LaunchArgumentMismatch, match=r"operands\[0\].*cuda:0.*results\[0\].*cuda:1"
        ):
            await session.launch_pipeline(launch_on(session, "cuda:0", "cuda:1"))
        pools = await session.load_pipeline(PIPELINE, REGISTRY)
        request = launch_on(session, "cuda:0", "cuda:0")
        foreign = attrs.evolve(request, artifacts=await pools.on("cuda:1"))
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:0.*pool.*cuda:1"):
            await session.launch_pipeline(foreign)
        with pytest.raises(LaunchArgumentMismatch, match="both pools and"):
            await session.launch_pipeline(foreign, pools)
        with pytest.raises(LaunchArgumentMismatch, match=r"on another backend.*cuda:1"):
            await session.on("cuda:0").launch_pipeline(foreign)
    assert not any(device.launch_count for device in devices)
    check_all_empty(devices)


async def test_launches_without_data_are_placed() -> None:
    """The policy is told the pipeline's name."""
    seen: list[Work] = []

    def policy(work: Work, candidates: Sequence[DeviceLoad]) -> str:
        seen.append(work)
        return candidates[-1].device

    devices = gpus(2)
    async with open_session(devices=devices, policy=policy) as session:
        await session.launch_pipeline(LAUNCH)  # its buffers are made by hand
    assert [device.launch_count for device in devices] == [0, 3]
    assert seen == [Work(kind="launch", name=PIPELINE.target)]
