"""Fragments over several devices: loaded where they are called, placed, refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from accy_async.backends import RecordingBackend
from accy_async.backends.array import DeviceArray
from accy_async.dtypes import DType
from accy_async.errors import (
    DeviceError,
    DeviceLost,
    InvalidBuffer,
    InvalidType,
    InvalidValue,
    LaunchArgumentMismatch,
    RuntimeUnavailable,
    SessionClosed,
    UnsupportedOperation,
)
from accy_async.session import DeviceLoad, Work, open_session
from tests.devices.parts import check_all_empty, gpus, opened
from tests.fragment.plans import ADD, CHAIN

pytestmark = pytest.mark.anyio

X = np.arange(8, dtype=np.float32)


def launches(devices: Sequence[RecordingBackend]) -> list[int]:
    return [device.launch_count for device in devices]


async def test_it_is_loaded_on_each_device_at_its_first_call() -> None:
    """Once each, where its arguments lie; nothing is loaded where nothing is called."""
    devices = gpus(3)
    async with opened(devices) as session:
        fragment = await session.load_fragment(ADD)
        assert [device.load_count for device in devices] == [0, 0, 0]
        for name in ("cuda:1", "cuda:0", "cuda:1"):
            x = await session.upload(X, device=name)
            y = await fragment(x, x)
            assert isinstance(y, DeviceArray)
            assert y.handle.origin == x.handle.origin
        assert [device.load_count for device in devices] == [1, 1, 0]
        assert launches(devices) == [1, 2, 0]
        assert set(fragment.loaded) == {"cuda:0", "cuda:1"}
        assert await fragment.on("cuda:1") is await fragment.on(1)
        assert "on cuda:1, cuda:0" in repr(fragment)
        await fragment.aclose()
        await fragment.aclose()
        assert session.live_objects()["artifacts"] == 0
        with pytest.raises(SessionClosed, match="fragment 'add' was closed"):
            await fragment(X, X)
        with pytest.raises(SessionClosed, match="was closed"):
            await fragment.on(0)
    check_all_empty(devices)


async def test_an_array_of_the_host_goes_where_the_others_are() -> None:
    devices = gpus(2)
    async with opened(devices) as session, await session.load_fragment(ADD) as add:
        y = await add(X, await session.upload(X, device="cuda:1"))
        assert isinstance(y, DeviceArray)
        assert launches(devices) == [0, 1]
    check_all_empty(devices)


async def test_calls_without_a_place_go_to_the_least_loaded_device() -> None:
    """And of equally loaded ones to where it is loaded already."""
    devices = gpus(2, is_holding=True)
    async with opened(devices) as session, await session.load_fragment(CHAIN) as chain:
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(chain, X)
                await anyio.wait_all_tasks_blocked()
            for device in devices:
                device.release_all()
                await anyio.wait_all_tasks_blocked()
                device.release_all()
        counts = launches(devices)
        assert counts[0] == counts[1] > 0
        seen = set(session.statistics())
        assert seen == {"cuda:0", "cuda:1"}
    check_all_empty(devices)


async def test_the_policy_is_told_of_calls() -> None:
    seen: list[tuple[Work, list[bool]]] = []

    def last(work: Work, candidates: Sequence[DeviceLoad]) -> str:
        seen.append((work, [one.has_run for one in candidates]))
        return candidates[-1].device

    devices = gpus(2)
    async with open_session(devices=devices, policy=last) as session:
        fragment = await session.load_fragment(ADD)
        await fragment(X, X)
        await fragment(X, X)
    assert launches(devices) == [0, 2]
    work = Work(kind="call", name="add")
    assert seen == [(work, [False, False]), (work, [False, True])]
    check_all_empty(devices)


async def test_wrong_calls_are_refused_before_anything_happens() -> None:
    devices = gpus(2)
    stranger = RecordingBackend(index=7)
    foreign = DeviceArray.allocate(stranger, (8,), DType.F32)
    async with opened(devices) as session:
        fragment = await session.load_fragment(ADD)
        here, there = [session.allocate(8, DType.F32, device=i) for i in range(2)]
        with pytest.raises(
            LaunchArgumentMismatch,
            match=r"fragment 'add': argument 0 is on cuda:0 and argument 1 on cuda:1",
        ):
            await fragment(here, there)
        with pytest.raises(
            LaunchArgumentMismatch, match=r"argument x\.0 on cuda:1.*copy_to"
        ):
            await fragment(here, x=[there])
        with pytest.raises(
            InvalidBuffer, match=r"argument 1: .*cuda:7.*cuda:0, cuda:1"
        ):
            await fragment(here, foreign)
        with pytest.raises(InvalidValue, match="one of cuda:0, cuda:1"):
            await fragment.on("cuda:2")
        with pytest.raises(InvalidType, match="a program, or a compiled fragment"):
            await session.load_fragment(3)  # type: ignore[arg-type]
        with pytest.raises(LaunchArgumentMismatch, match="it has its types"):
            await session.load_fragment(ADD, "f32[8]")
        assert launches(devices) == [0, 0]
        assert [device.load_count for device in devices] == [0, 0]
    with pytest.raises(SessionClosed, match="the session is closed"):
        await fragment(X, X)
    with pytest.raises(SessionClosed, match="load_fragment"):
        await session.load_fragment(ADD)
    foreign.free()
    check_all_empty([*devices, stranger])


async def test_a_compiled_fragment_is_placed_where_its_format_is_loaded() -> None:
    gpu = gpus(1)[0]
    async with (
        open_session(devices=["cpu", gpu]) as session,
        await session.load_fragment(ADD) as fragment,
    ):
        await fragment(X, X)
        assert gpu.launch_count == 1
    check_all_empty([gpu])
    async with open_session(devices=["cpu:0", "cpu:1"]) as session:
        with pytest.raises(
            UnsupportedOperation, match=r"'add' is cuda_ptx: cpu:0 loads"
        ):
            await session.load_fragment(ADD)


async def test_a_load_that_fails_can_be_tried_again() -> None:
    """It leaves nothing, and the other device is not concerned."""
    devices = gpus(2)
    devices[1].fail("load_artifact", 1)
    async with opened(devices) as session:
        fragment = await session.load_fragment(CHAIN)
        x = await session.upload(X, device=1)
        with pytest.raises(RuntimeUnavailable):
            await fragment(x)
        assert session.live_objects()["artifacts"] == 0
        await fragment(await session.upload(X, device=0))
        await fragment(x)
    check_all_empty(devices)


async def test_a_device_that_is_lost_gets_no_calls_and_fails_its_own_alone() -> None:
    devices = gpus(2)
    async with opened(devices) as session:
        fragment = await session.load_fragment(ADD)
        there = await session.upload(X, device=1)
        await fragment(there, there)
        devices[1].lose_device("gone")
        with pytest.raises(DeviceLost):
            await fragment(there, there)
        for _ in range(2):
            assert isinstance(await fragment(X, X), np.ndarray)
        assert launches(devices) == [2, 1]
        health = session.health()
        assert (health["cuda:0"].is_healthy, health["cuda:1"].is_healthy) == (
            True,
            False,
        )
    check_all_empty(devices)


async def test_each_call_of_each_device_failing_once_leaves_nothing() -> None:
    """Loading and calling on both; the error comes out, and both can be used again."""

    async def act(devices: Sequence[RecordingBackend]) -> list[BaseException]:
        raised: list[BaseException] = []
        async with opened(devices) as session:
            fragment = await session.load_fragment(ADD)
            for number in range(2):
                try:
                    with await session.upload(X, device=number) as x:
                        (await fragment(x, X)).free()
                except (DeviceError, RuntimeUnavailable, MemoryError) as error:
                    raised.append(error)
            try:
                await fragment.aclose()
            except (DeviceError, ExceptionGroup) as error:
                raised.append(error)
        check_all_empty(devices)
        return raised

    plain = gpus(2)
    assert not await act(plain)
    for number in range(2):
        for nth in range(1, len(plain[number].calls) + 1):
            devices = gpus(2)
            devices[number].fail("*", nth)
            try:
                raised = await act(devices)
            except DeviceError as error:  # while the session was left
                raised = [error]
            assert len(raised) == 1, (number, nth)
            check_all_empty(devices)


async def test_calls_that_are_cancelled_are_counted_no_more() -> None:
    devices = gpus(2, is_holding=True, grace_s=0.05)
    async with opened(devices) as session:
        fragment = await session.load_fragment(ADD)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(fragment, X, X)
                await anyio.lowlevel.checkpoint()
                scope.cancel()
        for device in devices:
            device.release_all()
        assert session.place() == "cuda:0"  # no call is left to count
        await fragment.aclose()
    check_all_empty(devices)


def doubled(x: Any) -> Any:
    return x + x


async def test_functions_are_compiled_for_the_device_that_they_are_called_on() -> None:
    """On two backends of the processor, whose results are real."""
    async with (
        open_session(devices=["cpu:0", "cpu:1"]) as session,
        await session.load_fragment(doubled) as fragment,
        await session.load_fragment(doubled, "f32[8]") as typed,
    ):
        assert np.array_equal(await fragment(X), X + X)
        x = await session.upload(X, device="cpu:1")
        for one in (fragment, typed):
            y = await one(x)
            assert np.array_equal(await session.download(y), X + X)
        assert "cpu:1" in fragment.loaded
        assert set(typed.loaded) == {"cpu:1"}
    assert not any(session.live_objects().values())
