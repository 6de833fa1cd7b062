"""Waits: cancelled alone, from many loops and threads, and after their loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import threading
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from accy_async.errors import ForkedProcess
from tests.conformance.devices import Device

WAITS = ("stream", "event", "default", "device", "buffer")
LOOPS = ("asyncio", "trio")


def prepare(device: Device, kind: str) -> tuple[Callable[[], Awaitable[None]], object]:
    """A wait that does not end by itself, and what lets it end."""
    backend = device.backend
    stream = None if kind == "default" else backend.create_stream()
    release = device.hold(stream)
    if kind == "stream":
        assert stream is not None
        return functools.partial(backend.wait_stream, stream), release
    if kind == "event":
        event = backend.create_event()
        backend.record_event(event, stream)
        return functools.partial(backend.wait_event, event), release
    if kind == "buffer":
        buffer = device.write([1], stream)
        return functools.partial(backend.wait_buffer, buffer), release
    waits = {"default": backend.wait_default_stream, "device": backend.wait_device}
    return waits[kind], release


@pytest.mark.anyio
@pytest.mark.parametrize("kind", WAITS)
async def test_cancelling_a_wait_stops_only_the_wait(device: Device, kind: str) -> None:
    wait, release = prepare(device, kind)
    ended: list[str] = []

    async def run(name: str) -> None:
        try:
            await wait()
        finally:
            ended.append(name)

    async with anyio.create_task_group() as group:
        other = anyio.CancelScope()

        async def run_other() -> None:
            with other:
                await run("cancelled")

        group.start_soon(run_other)
        group.start_soon(run, "kept")
        await anyio.wait_all_tasks_blocked()
        other.cancel()
        await anyio.wait_all_tasks_blocked()
        assert ended == ["cancelled"]
        assert callable(release)
        release()
    assert ended == ["cancelled", "kept"]
    await wait()


@pytest.mark.anyio
@pytest.mark.parametrize("kind", WAITS)
async def test_wait_lets_the_loop_run(device: Device, kind: str) -> None:
    """C17: a stream that stands still holds up nobody but who waits for it."""
    wait, release = prepare(device, kind)
    is_done = False

    async def run() -> None:
        nonlocal is_done
        await wait()
        is_done = True

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        for _ in range(1000):
            await anyio.lowlevel.checkpoint()
        assert not is_done
        assert callable(release)
        release()
    assert is_done


@pytest.mark.anyio
async def test_wait_covers_what_was_submitted_before_it_only(device: Device) -> None:
    backend = device.backend
    stream = backend.create_stream()
    first = device.hold(stream)
    is_done = anyio.Event()

    async def run() -> None:
        await backend.wait_stream(stream)
        is_done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        second = device.hold(stream)
        first()
        await is_done.wait()
        assert not backend.is_stream_idle(stream)
        second()
    await backend.wait_stream(stream)


@pytest.mark.anyio
async def test_waits_are_checkpoints(device: Device) -> None:
    """Even of work long done: a cancelled task must not go on past one."""
    backend = device.backend
    stream, event = backend.create_stream(), backend.create_event()
    backend.record_event(event, stream)
    buffer = backend.allocate_buffer(4)
    await backend.wait_stream(stream)
    waits = (
        functools.partial(backend.wait_stream, stream),
        functools.partial(backend.wait_event, event),
        functools.partial(backend.wait_buffer, buffer),
        backend.wait_default_stream,
        backend.wait_device,
    )
    for wait in waits:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await wait()
            pytest.fail("the wait was no checkpoint")


@pytest.mark.anyio
async def test_many_waits_end_with_one_completion(device: Device) -> None:
    backend = device.backend
    stream, event = backend.create_stream(), backend.create_event()
    release = device.hold(stream)
    backend.record_event(event, stream)
    ended: list[int] = []

    async def run(index: int) -> None:
        await backend.wait_event(event)
        ended.append(index)

    async with anyio.create_task_group() as group:
        for index in range(300):
            group.start_soon(run, index)
        await anyio.wait_all_tasks_blocked()
        assert not ended
        release()
    assert sorted(ended) == list(range(300))


@pytest.mark.parametrize("second", LOOPS)
@pytest.mark.parametrize("first", LOOPS)
def test_two_loops_in_two_threads_wait_on_one_backend(
    device: Device, first: str, second: str
) -> None:
    backend = device.backend
    shared = backend.create_stream()
    release = device.hold(shared)
    barrier = threading.Barrier(3, timeout=30)
    errors: list[BaseException] = []
    rounds: list[str] = []

    async def main(loop: str) -> None:
        own = backend.create_stream()
        event = backend.create_event()
        for value in range(50):
            buffer = device.write([value], own)
            backend.record_event(event, own)
            await backend.wait_event(event)
            assert await device.read(buffer, own) == [value if device.executes else 0]
            backend.destroy(buffer)
        barrier.wait()
        await backend.wait_stream(shared)
        rounds.append(loop)

    def run(loop: str) -> None:
        try:
            anyio.run(main, loop, backend=loop)
        except BaseException as error:  # noqa: BLE001 - the test's own thread tells
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(loop,)) for loop in (first, second)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):  # then there are errors
        barrier.wait()
    release()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert errors == []
    assert sorted(rounds) == sorted((first, second))


@pytest.mark.parametrize("loop", LOOPS)
def test_completion_after_the_loop_has_closed_is_dropped(
    device: Device, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C40: no thread raises, what was used is freed, another loop can go on."""
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    backend = device.backend
    stream = backend.create_stream()
    release = device.hold(stream)
    buffer = device.write([1], stream)

    async def abandon() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(backend.wait_stream, stream)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()

    anyio.run(abandon, backend=loop)
    assert backend.destroy(buffer) is False
    release()
    anyio.run(backend.wait_stream, stream, backend=loop)
    backend.destroy(stream)
    assert device.new_objects() == {}
    assert raised == []


def test_completion_for_a_task_whose_loop_was_closed_under_it_is_dropped(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    backend = device.backend
    stream = backend.create_stream()
    release = device.hold(stream)
    loop = asyncio.new_event_loop()

    async def start() -> asyncio.Task[None]:
        task = loop.create_task(backend.wait_stream(stream))
        for _ in range(3):
            await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(start())
    loop.close()
    release()
    anyio.run(backend.wait_stream, stream)
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    assert raised == []


@pytest.mark.parametrize("with_device", [True, False])
def test_submitting_from_fresh_threads(device: Device, with_device: bool) -> None:
    """C48: a worker thread needs nothing made current before its first call."""
    backend = device.backend
    device.mix(device.write([0]), 1)
    results: dict[int, list[int]] = {}

    def work(index: int) -> None:
        stream = backend.create_stream() if with_device else None

        async def main() -> None:
            buffer = device.write([index], stream)
            device.mix(buffer, 1, stream)
            results[index] = await device.read(buffer, stream)

        anyio.run(main, backend=LOOPS[index % 2])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    expected = {i: [i * 31 + 1 if device.executes else 0] for i in range(8)}
    assert results == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_child_is_refused_and_the_parent_unharmed(device: Device) -> None:
    """C52: an error that names fork, at once; the child's exit frees nothing."""
    backend = device.backend
    buffer = device.write([1])
    device.mix(buffer, 2)
    child = os.fork()
    if child == 0:
        signal.alarm(5)  # a child that hangs dies of it
        os._exit(_count_refusals(device))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9

    async def main() -> None:
        device.mix(buffer, 3)
        expected = (31 + 2) * 31 + 3 if device.executes else 0
        assert await device.read(buffer) == [expected]

    anyio.run(main)
    assert backend.is_healthy


def _count_refusals(device: Device) -> int:
    backend = device.backend
    calls: list[Callable[[], object]] = [
        backend.create_stream,
        backend.create_event,
        backend.is_stream_idle,
        lambda: backend.allocate_buffer(4),
        lambda: anyio.run(backend.wait_device),
        lambda: anyio.run(backend.wait_default_stream, backend="trio"),
    ]
    refused = 0
    for call in calls:
        try:
            call()
        except ForkedProcess as error:
            refused += "fork" in str(error) and "spawn" in str(error)
    refused += not backend.is_healthy
    backend.close()
    backend.close_owner(backend.open_owner("the child"))
    refused += not backend._is_closed
    if device.opens_after_fork:
        fresh = type(device)()
        fresh.mix(fresh.write([1]), 2)
        fresh.close()
    return refused + 1
