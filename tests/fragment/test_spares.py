"""Buffers of results that nobody holds: used again, but never while somebody does."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from accy_async import DeviceArray, DType, open_session
from accy_async.backends import RecordingBackend
from accy_async.compiler import trace
from accy_async.errors import InvalidBuffer, InvalidGraph
from accy_async.fragment.spares import MOST_KEPT_BYTES
from accy_async.graph import LaunchGraphBuilder
from tests.fragment.plans import ADD
from tests.graph.graphs import kernel_entry

pytestmark = pytest.mark.anyio

ONES = np.ones(8, np.float32)


async def test_calls_in_a_loop_allocate_and_pack_nothing() -> None:
    backend = RecordingBackend()
    async with open_session(backend) as session:
        x = await session.upload(ONES)
        add = await session.load_fragment(ADD)
        y = None
        for _ in range(3):
            y = await add(x, x)
        allocated, destroyed = backend.buffer_allocate_count, backend.destroy_count
        written = []
        for _ in range(4):
            y = await add(x, x)
            written.append(y.handle.id)
        assert backend.buffer_allocate_count == allocated
        assert backend.destroy_count == destroyed
        assert len(set(written)) == 2  # the last result was held until the next came
    assert y is not None
    assert not any(backend.live_objects().values())


async def test_results_that_are_held_stay_whose_they_are() -> None:
    backend = RecordingBackend()
    async with open_session(backend) as session:
        x = await session.upload(ONES)
        add = await session.load_fragment(ADD)
        results = [await add(x, x) for _ in range(5)]
        assert len({array.handle.id for array in results}) == 5
        handle = results[2].handle
        del results[2]
        again = await add(x, x)
        assert again.handle is handle


async def test_a_result_that_is_freed_is_gone() -> None:
    backend = RecordingBackend()
    async with open_session(backend) as session:
        x = await session.upload(ONES)
        add = await session.load_fragment(ADD)
        y = await add(x, x)
        y.free()
        assert y.is_freed
        assert not backend.is_alive(y.handle)
        assert (await add(x, x)).handle is not y.handle


async def test_a_freed_buffer_is_refused_to_whom_it_was_bound() -> None:
    """Given to the next result instead, it would be written by a plan of before."""
    b = LaunchGraphBuilder()
    b.kernel(kernel_entry(1), [b.buffer("t", DType.F32, 8).read_write])
    plan = b.build()
    async with open_session(RecordingBackend()) as session:
        x = await session.upload(ONES)
        add = await session.load_fragment(ADD)
        result = await add(x, x)
        prepared = await session.prepare(plan, {"t": result})
        await prepared.run()
        result.free()
        again = await add(x, x)
        assert again.handle is not result.handle
        with pytest.raises(InvalidGraph, match="destroyed"):
            await prepared.run()
        with pytest.raises(InvalidBuffer, match="destroyed"):
            await session.download(result)


async def test_a_buffer_that_work_or_another_library_uses_is_left_alone() -> None:
    async with open_session("cpu") as session:
        x = await session.upload(ONES)
        double = await session.load_fragment(trace(lambda x: x + x, "f32[8]"))
        first = await double(x)
        seen = np.from_dlpack(first)
        handle = first.handle
        del first
        gc.collect()
        second = await double(await session.upload(2 * ONES))
        assert second.handle is not handle
        assert (seen == 2).all()
        del seen
        gc.collect()
        third = await double(x)
        assert third.handle is handle


async def test_large_results_are_freed_when_they_are() -> None:
    backend = RecordingBackend()
    count = MOST_KEPT_BYTES // 4 + 1
    async with open_session(backend) as session:
        x = session.allocate(count, DType.F32)
        double = await session.load_fragment(trace(lambda x: x + x, f"f32[{count}]"))
        y = await double(x)
        assert isinstance(y, DeviceArray)
        live = backend.live_objects()["buffers"]
        y.free()
        assert backend.live_objects()["buffers"] == live - 1


async def test_a_closed_fragment_keeps_none() -> None:
    backend = RecordingBackend()
    async with open_session(backend) as session:
        x = await session.upload(ONES)
        add = await session.load_fragment(ADD)
        kept = await add(x, x)
        await add(x, x)  # dropped at once
        await add.aclose()
        del kept
        x.free()
        assert backend.live_objects()["buffers"] == 0
