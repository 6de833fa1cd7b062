"""Waits for words end when they should, on every loop, and leave nothing armed."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio import wait_all_tasks_blocked

from accy_async.backends.arrival import MOST_POLLERS
from accy_async.backends.completion import Completion
from accy_async.backends.cuda.nativescanner import NativeScanner
from accy_async.backends.cuda.scanner import Scanner
from accy_async.backends.cuda.timeline import CudaTimeline
from accy_async.errors import DeviceError
from tests.backends.loops import LOOPS, PATIENCE_S, Options, run
from tests.backends.words import SCANNERS, WordsDevice, open_device

pytestmark = pytest.mark.anyio


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Options:
    """The loops of every test here, uvloop's among them."""
    options: Options = request.param
    return options


@pytest.fixture(params=SCANNERS)
def device(request: pytest.FixtureRequest) -> Iterator[WordsDevice]:
    with open_device(request.param) as opened:
        yield opened


def submit(line: CudaTimeline, count: int = 1) -> int:
    for _ in range(count):
        line.advance()
    return line.submitted


async def park(count: int = 1) -> None:
    """Let tasks go to sleep, past the time that they poll for."""
    await anyio.sleep(0.002 * count)
    await wait_all_tasks_blocked()


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE_S * 1000)):
        if condition():
            return
        await anyio.sleep(0.001)
    raise AssertionError("it never came true")


async def test_a_parked_wait_is_woken(device: WordsDevice) -> None:
    line = device.line(0)
    with anyio.fail_after(PATIENCE_S):
        for _ in range(5):
            position = submit(line)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(line.wait_reached, position)
                await park()
                device.do(line)
            assert line.completed == position
    assert line.armed is None


async def test_a_short_wait_sleeps_at_no_time(device: WordsDevice) -> None:
    """What ends while the task takes its turn needs neither the hub nor a thread."""
    line = device.line(0)
    position = submit(line)
    line.request(position)
    device.do(line)
    await line.wait_reached(position)
    assert not device.threads()


async def test_every_wait_lets_the_loop_turn(device: WordsDevice) -> None:
    line = device.line(0)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await line.wait_reached(0)
    assert scope.cancelled_caught


async def test_what_is_submitted_while_the_device_is_lost_is_not_waited_for(
    device: WordsDevice,
) -> None:
    """A thread may be about to, when another finds that it is lost."""
    line = device.line(0)
    line.lose(DeviceError("gone"))
    position = submit(line)
    with anyio.fail_after(PATIENCE_S):
        await line.wait_reached(position)
        with pytest.raises(DeviceError, match="gone"):
            await line.wait(position)


async def test_thousand_waits_on_few_streams(device: WordsDevice) -> None:
    lines = [device.line(slot) for slot in range(8)]
    ended: list[tuple[int, int]] = []

    async def wait(number: int, position: int) -> None:
        await lines[number].wait_reached(position)
        ended.append((number, position))

    marks = []
    for number in range(1000):
        line = lines[number % 8]
        position = submit(line)
        line.request(position)
        marks.append((number % 8, position))
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for number, position in marks:
                tasks.start_soon(wait, number, position)
            await park()
            assert len(device.threads()) <= 2
            assert not ended
            for position in range(1, 126):
                for line in lines:
                    device.do(line, position)
                if position % 25 == 0:
                    await anyio.sleep(0.001)
    assert sorted(ended) == sorted(marks)
    assert all(line.armed is None for line in lines)


async def test_earlier_position_is_watched_for_first(device: WordsDevice) -> None:
    line = device.line(0)
    first, last = submit(line), submit(line)
    line.request(first)
    flags = device.flagged[line]
    flags[:] = [first, last]
    ended: list[int] = []

    async def wait(position: int) -> None:
        await line.wait_reached(position)
        ended.append(position)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, last)
            await park()
            tasks.start_soon(wait, first)
            await park()
            device.do(line, first)
            await eventually(lambda: ended == [first])
            device.do(line, last)
    assert ended == [first, last]


@pytest.mark.parametrize("turns", range(6))
async def test_cancelled_at_each_await(device: WordsDevice, turns: int) -> None:
    """Wherever a wait is cancelled nothing stays armed, and it can begin again."""
    line = device.line(0)
    position = submit(line)
    bell = None
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.wait_reached, position)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            if turns == 5:
                await park()
                assert line.armed == position
                bell = line.bell
            tasks.cancel_scope.cancel()
        assert line.armed is None
        assert not line._waiters
        assert bell is None or bell.pollers == 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.wait_reached, position)
            await park()
            device.do(line)


async def test_one_cancelled_of_two(device: WordsDevice) -> None:
    line = device.line(0)
    position = submit(line)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.wait_reached, position)
            async with anyio.create_task_group() as others:
                others.start_soon(line.wait_reached, position)
                await park()
                others.cancel_scope.cancel()
            device.do(line)


@pytest.mark.parametrize("second", LOOPS)
@pytest.mark.parametrize("make", SCANNERS)
def test_two_loops_wait_for_one_stream(
    anyio_backend: Options, second: Options, make: type[Scanner]
) -> None:
    """Each time both sleep for the same position, of which one thread then tells."""
    with open_device(make) as device:
        line = device.line(0)
        barrier = threading.Barrier(3)

        async def main() -> None:
            for position in range(1, 31):
                await anyio.to_thread.run_sync(barrier.wait, PATIENCE_S)
                await line.wait_reached(position)

        threads = [
            threading.Thread(target=run, args=(loop, main), daemon=True)
            for loop in (anyio_backend, second)
        ]
        for thread in threads:
            thread.start()
        for position in range(1, 31):
            submit(line)
            line.request(position)
            barrier.wait(PATIENCE_S)
            time.sleep(0.0005 * (position % 3))
            device.do(line)
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


async def test_a_signal_of_an_unknown_loop_is_set(device: WordsDevice) -> None:
    """Set by the hub's own thread, while a task of ours waits for the same."""
    line = device.line(0)
    position = submit(line)
    signal = Completion()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            line.watch(position, signal)
            tasks.start_soon(line.wait_reached, position)
            await park()
            device.do(line)
            await signal.wait()


@pytest.mark.parametrize("byte_size", [8, 1 << 20])
async def test_what_is_to_be_finished_comes_first(
    device: WordsDevice, byte_size: int
) -> None:
    line = device.line(0)
    done: list[int] = []
    with anyio.fail_after(PATIENCE_S):
        for number in range(3):
            position = submit(line)
            line.finish_with(position, partial(done.append, number), byte_size)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(line.wait_reached, position)
                await park()
                device.do(line)
            assert done == list(range(number + 1))


async def test_finished_though_nobody_waits(device: WordsDevice) -> None:
    line = device.line(0)
    done = threading.Event()
    line.finish_with(submit(line), done.set)
    device.do(line)
    with anyio.fail_after(PATIENCE_S):
        await eventually(done.is_set)
        await eventually(lambda: device.afters > 0)


async def test_a_finisher_that_raises_fails_its_position(device: WordsDevice) -> None:
    line = device.line(0)

    def finish() -> None:
        raise ValueError("read-only")

    line.finish_with(submit(line), finish)
    device.do(line)
    with anyio.fail_after(PATIENCE_S), pytest.raises(DeviceError, match="read-only"):
        await line.wait(line.submitted)


async def test_a_lost_signal_is_found_by_the_sweep(device: WordsDevice) -> None:
    """The word is never written; the driver says that the stream is idle."""
    line = device.line(0)
    position = submit(line)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.wait_reached, position)
            await park()
            device.idle.add(line)
    assert line.completed == position
    assert line.armed is None


async def test_a_lost_device_ends_every_wait(device: WordsDevice) -> None:
    lines = [device.line(slot) for slot in range(4)]
    lost = DeviceError("gone")
    raised: list[DeviceError] = []

    async def wait(line: CudaTimeline) -> None:
        try:
            await line.wait(line.submitted)
        except DeviceError as error:
            raised.append(error)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for line in lines:
                submit(line)
                line.finish_with(line.submitted, lambda: None, 1 << 20)
                tasks.start_soon(wait, line)
            await park()
            for line in lines:
                line.lose(lost)
    assert len(raised) == 4
    assert all(line.armed is None for line in lines)


async def test_stream_closed_while_somebody_sleeps(device: WordsDevice) -> None:
    """Who sleeps is woken, and the word may be another stream's at once."""
    line = device.line(0)
    position = submit(line)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.wait_reached, position)
            await park()
            line.detach()
            device.words.values[0] = 0
            next_line = device.line(0)
        tasks_position = submit(next_line)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(next_line.wait_reached, tasks_position)
            await park()
            device.do(next_line)


async def test_hub_closed_during_a_wait(device: WordsDevice) -> None:
    """Its threads end; who still waits can be cancelled, and asks the word no more."""
    line = device.line(0)
    position = submit(line)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.wait_reached, position)
            await park()
            device.hub.close()
            device.hub.close()
            device.do(line)
            await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    for thread in device.threads():
        thread.join(PATIENCE_S)
    assert not device.threads()


DESCRIPTORS = Path("/proc/self/fd")


@pytest.mark.skipif(
    not DESCRIPTORS.exists(), reason="this system does not list open descriptors"
)
@pytest.mark.parametrize("make", SCANNERS)
def test_loops_that_end_are_unregistered(
    anyio_backend: Options, make: type[Scanner]
) -> None:
    """However many loops come and go, the hub knows only those that are left."""
    with open_device(make) as device:
        line = device.line(0)

        async def main() -> None:
            position = submit(line)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(line.wait_reached, position)
                await park()
                device.do(line)

        def count(most: int) -> int:
            """How many are open, once they are no more than that."""
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until:
                gc.collect()
                found = len(os.listdir(DESCRIPTORS))
                if found <= most and not device.hub._doors:
                    return found
                time.sleep(0.001)
            raise AssertionError(f"{found} descriptors, expected {most} at most")

        before = len(os.listdir(DESCRIPTORS))
        for _ in range(5):
            run(anyio_backend, main)
        assert count(before + 1) <= before + 1  # the loops' policy may keep one
        assert not device.hub._doors


@pytest.mark.parametrize("make", SCANNERS)
def test_a_loop_ends_with_a_wait_abandoned(
    anyio_backend: Options, make: type[Scanner]
) -> None:
    """Nobody is rung for a loop that is gone, and the next one is."""
    with open_device(make) as device:
        line = device.line(0)

        async def leave() -> None:
            with anyio.move_on_after(0.005):
                await line.wait_reached(submit(line))

        async def stay() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(line.wait_reached, submit(line))
                await park()
                device.do(line)

        run(anyio_backend, leave)
        run(anyio_backend, stay)


async def test_no_more_than_some_tasks_poll(device: WordsDevice) -> None:
    """Others of the loop get on with it, however many tasks wait."""
    line = device.line(0)
    position = submit(line)
    most = 0

    async def watch() -> None:
        nonlocal most
        while line.completed < position:
            bells = list(device.hub._doors)
            most = max([most, *(bell.pollers for bell in bells)])
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(line.wait_reached, position)
            tasks.start_soon(watch)
            await anyio.sleep(0.01)
            device.do(line)
    assert most <= MOST_POLLERS


def test_fork_leaves_the_parent_s_hub_alone() -> None:
    with open_device(NativeScanner) as device:
        line = device.line(0)
        line.finish_with(submit(line), lambda: None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads are the point
            child = os.fork()
        if child == 0:
            os._exit(0 if not list(_hubs()) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        device.do(line)
        until = time.monotonic() + PATIENCE_S
        while not device.afters and time.monotonic() < until:
            time.sleep(0.001)
        assert device.afters


def _hubs() -> Iterator[object]:
    from accy_async.backends.cuda.hub import _HUBS

    yield from _HUBS
