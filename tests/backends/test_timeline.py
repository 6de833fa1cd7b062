"""How far a stream has come, who waits for it, and where it failed."""

from __future__ import annotations

import threading

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from hypothesis import given
from hypothesis import strategies as st

from accy_async.backends.timeline import Timeline
from accy_async.errors import DeviceError, DeviceLost
from tests.backends.loops import PATIENCE_S, run_in_thread

pytestmark = pytest.mark.anyio


def timeline(submitted: int = 0) -> Timeline:
    line = Timeline("stream 1")
    for _ in range(submitted):
        line.advance()
    return line


def told(line: Timeline, position: int) -> str | None:
    """The message that a wait for the position raises, None where it raises nothing."""
    try:
        line.raise_at(position)
    except DeviceError as error:
        return error.message
    return None


def test_positions_count_from_one() -> None:
    """Each operation has the next position, and the line is idle when all are done."""
    line = timeline()
    assert line.is_idle
    assert [line.advance() for _ in range(3)] == [1, 2, 3]
    assert not line.is_idle
    line.complete(2)
    assert not line.is_idle
    assert repr(line) == "<Timeline stream 1: 2 of 3>"
    line.complete(3)
    assert line.is_idle


@given(st.lists(st.integers(1, 20), max_size=20))
def test_completion_out_of_order_takes_nothing_back(order: list[int]) -> None:
    """A position completed after a later one changes nothing."""
    line = timeline(20)
    for position in order:
        before = line.completed
        line.complete(position)
        assert line.completed == max(before, position)


async def test_waits_end_with_their_positions() -> None:
    """A wait ends when its own position is done: not earlier, and with no other's."""
    line = timeline(3)
    ended = [anyio.Event() for _ in range(4)]

    async def wait(number: int, position: int) -> None:
        await line.wait(position)
        ended[number].set()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for number, position in enumerate((1, 2, 2, 3)):
                tasks.start_soon(wait, number, position)
            await wait_all_tasks_blocked()
            line.complete(1)
            await ended[0].wait()
            assert not ended[1].is_set()
            run_in_thread(lambda: line.complete(2))
            await ended[1].wait()
            await ended[2].wait()
            assert not ended[3].is_set()
            line.complete(3)
        await line.wait(0)
        await line.wait(3)
    assert all(event.is_set() for event in ended)


async def test_cancelled_wait_leaves_nothing_behind() -> None:
    """A cancelled wait is forgotten: nobody is woken for it."""
    line = timeline(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(line.wait, 1)
        await wait_all_tasks_blocked()
        assert len(line._waiters) == 1
        tasks.cancel_scope.cancel()
    assert not line._waiters
    line.complete(1)
    await line.wait(1)


def test_failure_covers_what_was_submitted_until_told() -> None:
    """A failed range goes from the failure to what was submitted when it was told."""
    line = timeline(3)
    line.fail(2, DeviceError("boom"))
    line.complete(3)
    assert told(line, 1) is None
    assert line.advance() == 4
    assert line.error_at(4) is not None
    assert told(line, 3) == "boom"
    assert line.advance() == 5
    line.complete(5)
    assert [told(line, p) for p in range(1, 6)] == [None, "boom", "boom", "boom", None]


def test_error_at_does_not_tell() -> None:
    """Looking whether an operation is to be skipped ends no range."""
    line = timeline(2)
    line.fail(1, DeviceError("boom"))
    for _ in range(3):
        error = line.error_at(2)
        assert error is not None
        assert error.message == "boom"
    line.advance()
    assert line.error_at(3) is not None


def test_first_failure_of_a_range_is_the_one_told() -> None:
    """What fails because of the first failure does not replace it."""
    line = timeline(3)
    line.fail(1, DeviceError("first"))
    line.fail(2, DeviceError("second"))
    line.complete(3)
    assert [told(line, p) for p in (3, 2, 1)] == ["first"] * 3


def test_failure_within_a_told_range_is_ignored() -> None:
    """Work of a range that was told already, failing late, fails nothing new."""
    line = timeline(3)
    line.fail(1, DeviceError("first"))
    assert told(line, 1) == "first"
    line.fail(3, DeviceError("late"))
    line.advance()
    assert [told(line, p) for p in (1, 3, 4)] == ["first", "first", None]


def test_failures_one_after_another_keep_their_ranges() -> None:
    """Each range raises its own error, whenever it is asked for."""
    line = timeline()
    for number in range(5):
        position = line.advance()
        line.fail(position, DeviceError(f"error {number}"))
        line.advance()
        line.complete(line.submitted)
        assert told(line, position) == f"error {number}"
    assert [told(line, p) for p in range(1, 11)] == [
        f"error {number // 2}" for number in range(10)
    ]


def test_each_wait_raises_a_copy_of_its_own() -> None:
    """No two tasks share an exception, nor its traceback; the cause is the first's."""
    line = timeline(1)
    first = DeviceError(
        "boom", code=700, kernel="scan", node="n", stream=4, call="launch"
    )
    first.__cause__ = ValueError("why")
    line.fail(1, first)
    caught = []
    for _ in range(2):
        with pytest.raises(DeviceError) as info:
            line.raise_at(1)
        caught.append(info.value)
    assert len({id(error) for error in (*caught, first)}) == 3
    for error in caught:
        assert str(error) == str(first)
        assert (error.code, error.kernel, error.node, error.stream) == (
            700,
            "scan",
            "n",
            4,
        )
        assert error.__cause__ is first.__cause__
    assert first.__traceback__ is None


async def test_wait_raises_what_failed() -> None:
    """A wait that covers a failure raises it, however many wait for it."""
    line = timeline(2)
    raised: list[str] = []

    async def wait() -> None:
        with pytest.raises(DeviceError) as caught:
            await line.wait(2)
        raised.append(caught.value.message)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait)
            await wait_all_tasks_blocked()
            line.fail(1, DeviceError("boom"))
            line.complete(2)
    assert raised == ["boom"] * 3


async def test_lost_device_ends_every_wait() -> None:
    """Losing the device ends the waits of now and of later, for any position."""
    line = timeline(2)
    raised: list[str] = []

    async def wait(position: int) -> None:
        with pytest.raises(DeviceLost) as caught:
            await line.wait(position)
        raised.append(caught.value.message)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, 1)
            tasks.start_soon(wait, 2)
            await wait_all_tasks_blocked()
            line.lose(DeviceLost("gone"))
        assert line.is_idle
        late = line.advance()
        for position in (0, 1, 2, late):
            await wait(position)
    assert raised == ["gone"] * 6
    assert line.error_at(late) is not None


def test_device_is_lost_once() -> None:
    """The first loss is the one that every wait tells of."""
    line = timeline(1)
    line.lose(DeviceLost("first"))
    line.lose(DeviceLost("second"))
    assert told(line, 1) == "first"


async def test_completed_by_four_threads_at_once() -> None:
    """Threads that complete positions in any order wake every wait exactly once."""
    line = timeline(400)
    barrier = threading.Barrier(4)
    ended: list[int] = []

    def complete(first: int) -> None:
        barrier.wait(PATIENCE_S)
        for position in range(first, 401, 4):
            line.complete(position)

    async def wait(position: int) -> None:
        await line.wait(position)
        ended.append(position)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for position in range(1, 401):
                tasks.start_soon(wait, position)
            await wait_all_tasks_blocked()
            for first in range(1, 5):
                threading.Thread(target=complete, args=(first,), daemon=True).start()
    assert sorted(ended) == list(range(1, 401))
