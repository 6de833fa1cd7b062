"""Completions wake tasks of every loop, from every thread, exactly when they should."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
import trio.testing
from anyio import wait_all_tasks_blocked

from accy_async.backends import loops as module
from accy_async.backends.bell import Bell, Waiter
from accy_async.backends.completion import Completion
from tests.backends.loops import LOOPS, PATIENCE_S, Options, run, run_in_thread

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

pytestmark = pytest.mark.anyio


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Options:
    """The loops of every test here, uvloop's among them."""
    options: Options = request.param
    return options


Setter = Callable[[Callable[[], None]], None]
SETTERS = pytest.mark.parametrize(
    "call", [lambda set_: set_(), run_in_thread], ids=["same thread", "other thread"]
)


@SETTERS
async def test_set_before_the_wait(call: Setter) -> None:
    """What is set already does not make anybody wait, however often it is awaited."""
    signal = Completion()
    assert not signal.is_set
    call(signal.set)
    assert signal.is_set
    with anyio.fail_after(PATIENCE_S):
        for _ in range(3):
            await signal.wait()


async def start_waiter(tasks: TaskGroup, signal: Completion) -> None:
    """Start a task that waits for the signal, and see it parked."""
    tasks.start_soon(signal.wait)
    await wait_all_tasks_blocked()


@SETTERS
async def test_set_after_the_wait_began(call: Setter) -> None:
    """A parked task is woken, whichever thread sets the signal."""
    signal = Completion()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            await start_waiter(tasks, signal)
            call(signal.set)


@SETTERS
async def test_set_twice(call: Setter) -> None:
    """Setting again changes nothing."""
    signal = Completion()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            await start_waiter(tasks, signal)
            call(signal.set)
            call(signal.set)
        await signal.wait()


async def test_many_completions_ring_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 completions before the loop looks make one ring, and wake 2,000 tasks."""
    rings = []
    ring = module._Signal.raise_

    def count(signal: module._Signal) -> None:
        rings.append(signal)
        ring(signal)

    monkeypatch.setattr(module._Signal, "raise_", count)
    signals = [Completion() for _ in range(2000)]
    woken = []

    async def wait(signal: Completion) -> None:
        await signal.wait()
        woken.append(signal)

    def set_all() -> None:
        for signal in signals:
            signal.set()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for signal in signals:
                tasks.start_soon(wait, signal)
            await wait_all_tasks_blocked()
            run_in_thread(set_all)
    assert len(rings) == 1
    assert set(woken) == set(signals)
    assert len(woken) == 2000


async def test_threads_racing_to_set(anyio_backend: Options) -> None:
    """Signals set by four threads at once, while the loop runs, wake every task."""
    signals = [Completion() for _ in range(400)]
    barrier = threading.Barrier(4)

    def set_some(first: int) -> None:
        barrier.wait(PATIENCE_S)
        for signal in signals[first::4]:
            signal.set()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for first in range(4):
                threading.Thread(target=set_some, args=(first,), daemon=True).start()
            for signal in signals:
                tasks.start_soon(signal.wait)


async def test_cancelled_wait_can_begin_again() -> None:
    """Cancelling stops the wait only: the signal is waited for anew, and wakes."""
    signal = Completion()
    with anyio.fail_after(PATIENCE_S):
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                await start_waiter(tasks, signal)
                tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            await start_waiter(tasks, signal)
            run_in_thread(signal.set)


@SETTERS
async def test_set_after_the_wait_was_cancelled(call: Setter) -> None:
    """A signal that nobody waits for any more is set in peace."""
    signal = Completion()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            await start_waiter(tasks, signal)
            tasks.cancel_scope.cancel()
        call(signal.set)
        await signal.wait()


@SETTERS
async def test_set_and_cancelled_before_the_task_runs(call: Setter) -> None:
    """When both come in one turn of the loop the signal is set, and nothing breaks."""
    signal = Completion()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            await start_waiter(tasks, signal)
            call(signal.set)
            tasks.cancel_scope.cancel()
        await signal.wait()
        await anyio.lowlevel.checkpoint()


async def test_second_waiter_is_refused() -> None:
    """One task waits at a time; the first is not disturbed by a second."""
    signal = Completion()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            await start_waiter(tasks, signal)
            with pytest.raises(RuntimeError, match="another task is waiting"):
                await signal.wait()
            run_in_thread(signal.set)


async def test_wait_can_be_cancelled_when_set() -> None:
    """A wait for what is set already still lets a cancellation in."""
    signal = Completion()
    signal.set()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await signal.wait()
    assert scope.cancelled_caught


async def test_wait_lets_the_loop_turn(anyio_backend: Options) -> None:
    """Every wait is a checkpoint, set or not."""
    signal = Completion()
    signal.set()
    if anyio_backend[0] == "trio":
        with trio.testing.assert_checkpoints():
            await signal.wait()
        return
    turned: list[bool] = []
    asyncio.get_running_loop().call_soon(turned.append, True)
    await signal.wait()
    assert turned == [True]


@pytest.mark.parametrize("second", LOOPS)
def test_two_loops_at_once(anyio_backend: Options, second: Options) -> None:
    """Loops of two threads, of any kinds, wake each other 200 times over."""
    here = [Completion() for _ in range(200)]
    there = [Completion() for _ in range(200)]

    async def lead() -> None:
        for mine, theirs in zip(here, there, strict=True):
            theirs.set()
            await mine.wait()

    async def follow() -> None:
        for mine, theirs in zip(here, there, strict=True):
            await theirs.wait()
            mine.set()

    thread = threading.Thread(target=run, args=(second, follow), daemon=True)
    thread.start()
    run(anyio_backend, lead)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def park(loop: asyncio.AbstractEventLoop, signal: Completion) -> asyncio.Task[None]:
    """A task of the loop that waits for the signal when this returns."""
    task = loop.create_task(signal.wait())
    for _ in range(2):
        loop.run_until_complete(asyncio.sleep(0))
    return task


@SETTERS
def test_set_after_an_asyncio_loop_was_closed(call: Setter) -> None:
    """There is nobody left to wake, and nothing to complain of, on any thread."""
    loop = asyncio.new_event_loop()
    signal = Completion()
    task = park(loop, signal)
    loop.close()
    call(signal.set)
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task, loop
    gc.collect()


def test_set_after_an_asyncio_loop_was_collected() -> None:
    """A bell outlives its loop: ringing it writes to no descriptor of anyone's."""
    loop = asyncio.new_event_loop()
    signal = Completion()
    task = park(loop, signal)
    signal.set()
    loop.run_until_complete(task)
    bell = module._ASYNCIO_BELLS[loop]
    loop.close()
    gone = weakref.ref(loop)
    del loop, task
    gc.collect()
    assert gone() is None
    woken: list[int] = []
    run_in_thread(lambda: bell.post(Waiter(bell, lambda: woken.append(1))))
    assert not woken


def test_set_after_a_trio_run_ended() -> None:
    """A completion that races with the end of a run is dropped without a word."""
    bells: list[Bell] = []
    woken: list[int] = []

    async def main() -> None:
        signal = Completion()
        async with anyio.create_task_group() as tasks:
            await start_waiter(tasks, signal)
            bells.append(module._trio_bell())
            signal.set()

    run(("trio", {}), main)
    late = Waiter(bells[0], lambda: woken.append(1))
    run_in_thread(lambda: bells[0].post(late))
    bells[0].post(late)
    assert not woken


def test_asyncio_loop_moved_to_another_thread() -> None:
    """A loop run again on another thread is woken from the one it ran on before."""
    loop = asyncio.new_event_loop()
    first = Completion()
    task = park(loop, first)
    first.set()
    loop.run_until_complete(task)
    second = Completion()
    is_parked = threading.Event()

    async def wait() -> None:
        waiting = asyncio.ensure_future(second.wait())
        await asyncio.sleep(0)
        loop.call_soon(is_parked.set)
        await asyncio.wait_for(waiting, PATIENCE_S)

    thread = threading.Thread(
        target=loop.run_until_complete, args=(wait(),), daemon=True
    )
    thread.start()
    assert is_parked.wait(PATIENCE_S)
    second.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    loop.close()


DESCRIPTORS = Path("/proc/self/fd")


@pytest.mark.skipif(
    not DESCRIPTORS.exists(), reason="this system does not list open descriptors"
)
def test_loops_leave_no_descriptors(anyio_backend: Options) -> None:
    """However many loops come and go, no descriptor of theirs stays open."""

    async def main() -> None:
        signal = Completion()
        async with anyio.create_task_group() as tasks:
            await start_waiter(tasks, signal)
            run_in_thread(signal.set)

    def count() -> int:
        gc.collect()
        return len(os.listdir(DESCRIPTORS))

    run(anyio_backend, main)
    before = count()
    for _ in range(20):
        run(anyio_backend, main)
    assert count() <= before
