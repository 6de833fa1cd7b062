"""Turns that quick waits owe to the loop's other tasks, and when they are due."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from typing import Any

import anyio
import pytest
import trio
import uvloop

from accy_async.backends import loops
from accy_async.backends.loops import current_bell, due_turn


class Clock:
    """Nanoseconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 10**12

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(loops, "monotonic_ns", clock)
    return clock


async def wait() -> bool:
    """What a quick wait does before it looks; whether the loop had a turn."""
    turn = due_turn()
    if turn is not None:
        await turn
    return turn is not None


def test_asyncio_has_a_turn_now_and_then_while_nobody_is_ready(clock: Clock) -> None:
    async def main() -> list[bool]:
        current_bell()
        taken = []
        for _ in range(12):
            taken.append(await wait())
            clock.now += loops._LOOK_NS // 4
        return taken

    assert asyncio.run(main()) == [True, False, False, False] * 3


def test_asyncio_has_a_turn_whenever_somebody_is_ready(clock: Clock) -> None:
    """Two tasks that wait again and again come in turns, and so does a callback."""
    order: list[str] = []

    async def work(name: str) -> None:
        for _ in range(3):
            order.append(name)
            await wait()

    async def main() -> None:
        current_bell()
        await wait()
        await asyncio.gather(work("one"), work("two"))
        asyncio.get_running_loop().call_soon(order.append, "callback")
        assert await wait()
        order.append("waited")
        assert not await wait()

    asyncio.run(main())
    assert order == ["one", "two"] * 3 + ["callback", "waited"]


def test_asyncio_serves_what_is_to_be_read_in_time(clock: Clock) -> None:
    """While a task waits again and again and nobody else is ready."""
    reading, writing = os.pipe()
    came: list[int] = []

    async def main() -> None:
        current_bell()
        asyncio.get_running_loop().add_reader(reading, came.append, 1)
        await wait()
        os.write(writing, b"x")
        begun = clock.now
        while not came:
            clock.now += 1000
            await wait()
        assert clock.now - begun <= loops._LOOK_NS + 1000

    asyncio.run(main())
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("how", ["scope", "task"])
def test_asyncio_cancels_a_task_at_the_wait_behind(clock: Clock, how: str) -> None:
    async def waits() -> None:
        while True:
            await wait()

    async def main() -> None:
        current_bell()
        await wait()
        if how == "scope":
            with anyio.CancelScope() as scope:
                scope.cancel()
                await wait()
                pytest.fail("it was to be cancelled")
            assert scope.cancelled_caught
            return
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_asyncio_cancels_a_task_that_cancels_itself_in_time(clock: Clock) -> None:
    """Nobody is ready by that."""

    async def main() -> None:
        current_bell()
        await wait()
        begun = clock.now
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            while True:
                clock.now += 1000
                await wait()
        finally:
            assert clock.now - begun <= loops._LOOK_NS

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


def test_the_next_loop_of_a_thread_is_not_taken_for_the_one_before(
    clock: Clock,
) -> None:
    async def main() -> list[bool]:
        taken = [await wait()]
        clock.now += loops._LOOK_NS
        taken.append(await wait())
        asyncio.get_running_loop().call_soon(lambda: None)
        return [*taken, await wait(), await wait()]

    for _ in range(3):
        clock.now += loops._LOOK_NS
        assert asyncio.run(main())[1:] == [True, True, False]


def test_other_loops_have_a_turn_at_every_wait(clock: Clock) -> None:
    async def main() -> bool:
        current_bell()
        return all([await wait() for _ in range(5)])

    assert uvloop.run(main())

    async def checked() -> None:
        current_bell()
        for _ in range(5):
            with trio.testing.assert_checkpoints():
                await wait()

    trio.run(checked)


def test_a_thread_that_has_met_no_loop_has_a_turn(clock: Clock) -> None:
    taken: list[bool] = []

    async def main() -> None:
        loops._HERE.bell = None
        taken.append(await wait())
        taken.append(await wait())
        taken.append(await wait())

    asyncio.run(main())
    assert taken == [True, True, False]


def test_a_loop_that_keeps_what_is_ready_elsewhere_has_a_turn_at_every_wait(
    clock: Clock,
) -> None:
    """As loops do that run in another's: what theirs inherits stays empty."""

    class Elsewhere(asyncio.SelectorEventLoop):
        def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
            return self.call_later(0, callback, *args, context=context)

    async def main() -> bool:
        current_bell()
        return all([await wait() for _ in range(5)])

    loop = Elsewhere()
    assert loop.run_until_complete(main())
    loop.close()


@pytest.mark.filterwarnings("ignore:unclosed event loop")
def test_a_loop_that_is_dropped_with_something_to_run_is_collected() -> None:
    """Its bell holds it no more by that than otherwise."""
    loop = asyncio.new_event_loop()

    async def main() -> None:
        await wait()

    loop.run_until_complete(main())
    loop.call_soon(lambda: None)
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None
