"""Bindings that do not fit: refused by `Session.start`, before anything is done."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import accy_async
from accy_async import DType
from accy_async.backends import BufferBinding, RecordingBackend
from accy_async.errors import LaunchArgumentMismatch
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan


def copy_plan() -> LaunchGraphPlan:
    g = LaunchGraphBuilder()
    x, out = g.buffer("x", DType.F32, 4), g.host("out", DType.F32, 4)
    g.fill(x, 1.0)
    g.copy_out(x, out)
    return g.build()


def read_only() -> np.ndarray:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("out", "says"),
    [
        (np.zeros(4, np.int32), "int32 and .* expected float32"),
        (np.zeros(4, ">f4"), ">f4 and .* expected float32"),
        (np.zeros(16, np.uint8), "uint8 and .* expected float32"),
        (np.rec.array(np.zeros(4, [("id", "f4")])), "expected float32"),
        (read_only(), "read-only"),
    ],
    ids=["other", "swapped", "bytes", "record", "read-only"],
)
async def test_a_host_array_of_another_kind(out: np.ndarray, says: str) -> None:
    async with accy_async.open_session(RecordingBackend()) as session:
        array = session.allocate(4, DType.F32)
        with pytest.raises(LaunchArgumentMismatch, match=says):
            session.start(copy_plan(), {"x": array, "out": out})


@pytest.mark.anyio
async def test_a_host_array_that_is_only_read_may_be_read_only() -> None:
    g = LaunchGraphBuilder()
    g.copy_in(g.host("in", DType.BF16, 4), g.scratch("x", DType.BF16, 4))
    array = np.zeros(4, np.uint16)
    array.flags.writeable = False
    async with accy_async.open_session(RecordingBackend()) as session:
        await session.run(g.build(), {"in": array})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("access", "byte_size", "says"),
    [("read_only", 16, "read_only"), ("read_write", 12, "12 bytes")],
)
async def test_a_binding_that_allows_less(
    access: str, byte_size: int, says: str
) -> None:
    async with accy_async.open_session(RecordingBackend()) as session:
        array = session.allocate(4, DType.F32)
        binding = BufferBinding(handle=array.handle, access=access, byte_size=byte_size)
        out = np.zeros(4, np.float32)
        with pytest.raises(LaunchArgumentMismatch, match=says):
            session.start(copy_plan(), {"x": binding, "out": out})


def two_slots(after: bool) -> LaunchGraphPlan:
    """One slot is written, the other one read; perhaps in that order."""
    g = LaunchGraphBuilder()
    a, b = g.buffer("a", DType.F32, 4), g.buffer("b", DType.F32, 4)
    out = g.host("out", DType.F32, 4)
    g.fill(a, 1.0, name="write")
    g.copy_out(b, out, name="read", after="write" if after else ())
    return g.build()


@pytest.mark.anyio
async def test_one_array_for_two_slots_without_an_order() -> None:
    async with accy_async.open_session(RecordingBackend()) as session:
        array = session.allocate(4, DType.F32)
        bindings = {"a": array, "b": array, "out": np.zeros(4, np.float32)}
        with pytest.raises(LaunchArgumentMismatch, match=r"'a' and 'b'.*'write'"):
            session.start(two_slots(after=False), bindings)
        await session.run(two_slots(after=True), bindings)


def outputs_plan() -> LaunchGraphPlan:
    g = LaunchGraphBuilder()
    x = g.scratch("x", DType.F32, 4)
    g.fill(x, 1.0)
    for name in ("one", "two"):
        g.copy_out(x, g.host(name, DType.F32, 4))
    return g.build()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [((0, 4), (3, 7), True), ((0, 4), (0, 4), True), ((0, 4), (4, 8), False)],
)
async def test_host_arrays_that_overlap(
    first: Sequence[int], second: Sequence[int], overlap: bool
) -> None:
    memory = np.zeros(8, np.float32)
    bindings = {"one": memory[slice(*first)], "two": memory[slice(*second)]}
    async with accy_async.open_session(RecordingBackend()) as session:
        if overlap:
            with pytest.raises(LaunchArgumentMismatch, match="the same memory"):
                session.start(outputs_plan(), bindings)
        else:
            await session.run(outputs_plan(), bindings)


@pytest.mark.anyio
async def test_a_loop_cannot_swap_a_buffer_with_itself() -> None:
    g = LaunchGraphBuilder()
    old, new = g.buffer("old", DType.F32, 4), g.buffer("new", DType.F32, 4)
    with g.loop(count=3, carries=[(old, new)]):
        g.copy(old, new)
    async with accy_async.open_session(RecordingBackend()) as session:
        array = session.allocate(4, DType.F32)
        with pytest.raises(LaunchArgumentMismatch, match="swaps"):
            session.start(g.build(), {"old": array, "new": array})


@pytest.mark.anyio
async def test_what_a_loop_swaps_with_an_aliased_slot_counts_as_aliased() -> None:
    g = LaunchGraphBuilder()
    old, new = g.buffer("old", DType.F32, 4), g.buffer("new", DType.F32, 4)
    other, out = g.buffer("other", DType.F32, 4), g.host("out", DType.F32, 4)
    with g.loop(count=3, carries=[(old, new)]):
        g.fill(new, 1.0)
    g.copy_out(other, out)
    async with accy_async.open_session(RecordingBackend()) as session:
        one, two = session.allocate(4, DType.F32), session.allocate(4, DType.F32)
        answer = np.zeros(4, np.float32)
        bindings = {"old": one, "new": two, "other": one, "out": answer}
        with pytest.raises(LaunchArgumentMismatch, match="the same memory"):
            session.start(g.build(), bindings)
