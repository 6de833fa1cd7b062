"""Loads that block run on threads: the loop goes on, and a late load is undone."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from accy_async.backends import RecordingBackend
from accy_async.errors import DeviceError, OutOfMemory, RuntimeUnavailable
from accy_async.pipeline import launch_pipeline, load_pipeline_artifacts
from tests.harness.blocking import BlockingBackend, join_loads
from tests.harness.scan_chain import LAUNCH, PIPELINE, PTX, REGISTRY
from tests.harness.steps import Injection, Outcome, cancel_scope, interrupt, perform

pytestmark = pytest.mark.anyio

Operation = Callable[[RecordingBackend], Coroutine[Any, Any, object]]


async def load_and_close(backend: RecordingBackend) -> None:
    async with await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX):
        await anyio.lowlevel.checkpoint()


async def launch(backend: RecordingBackend) -> None:
    await launch_pipeline(backend, LAUNCH)


each_operation = pytest.mark.parametrize("operation", [load_and_close, launch])


async def act(
    operation: Operation,
    injections: dict[int, Injection] | None = None,
    failing_call: int | None = None,
) -> tuple[BlockingBackend, Outcome]:
    """One run, in which each load ends only while the operation waits for it."""
    backend = BlockingBackend()
    if failing_call is not None:
        backend.fail("*", failing_call)
    outcome = await perform(
        backend,
        functools.partial(operation, backend),
        injections,
        on_suspend=backend.let_one_through,
    )
    join_loads(backend)
    return backend, outcome


def check_nothing_left(backend: BlockingBackend) -> None:
    assert not any(backend.live_objects().values())
    assert len(backend.destroyed_ids) == len(set(backend.destroyed_ids))


@each_operation
async def test_loads_run_off_the_loops_thread(operation: Operation) -> None:
    """No load runs on the thread of the event loop."""
    backend, outcome = await act(operation)
    assert outcome.is_success
    assert len(backend.threads) == 3
    assert threading.current_thread() not in backend.threads
    check_nothing_left(backend)


@each_operation
async def test_each_await_cancelled_once(operation: Operation) -> None:
    """A load that was cancelled is undone when it ends; nothing is left."""
    _, whole = await act(operation)
    for step in range(1, whole.steps + 1):
        backend, outcome = await act(operation, {step: cancel_scope})
        assert outcome.error is None
        check_nothing_left(backend)
        await operation(backend)
        check_nothing_left(backend)


@each_operation
async def test_each_await_interrupted(operation: Operation) -> None:
    """An interrupt while a load is under way leaves as itself; nothing is left."""
    _, whole = await act(operation)
    for step in range(1, whole.steps + 1):
        backend, outcome = await act(operation, {step: interrupt})
        assert isinstance(outcome.error, KeyboardInterrupt)
        check_nothing_left(backend)


@each_operation
async def test_each_backend_call_failing_once(operation: Operation) -> None:
    """What a load raises on its thread comes out of the await, whatever it is."""
    whole, _ = await act(operation)
    kinds = [call.kind for call in whole.calls]
    usual = {"load_artifact": RuntimeUnavailable, "allocate_buffer": OutOfMemory}
    for nth, kind in enumerate(kinds, 1):
        backend, outcome = await act(operation, failing_call=nth)
        assert type(outcome.error) is usual.get(kind, DeviceError)
        check_nothing_left(backend)


async def test_the_loop_goes_on_while_a_load_blocks() -> None:
    """Other tasks take turns while a load is held up."""
    backend = BlockingBackend()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load_and_close, backend)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        assert backend.load_count == 0
        backend.open()
    assert backend.load_count == 3
    check_nothing_left(backend)


async def test_no_stage_is_launched_after_a_cancellation() -> None:
    """A launch cancelled while stage 3 loads has submitted the stages before only."""
    _, whole = await act(launch)
    launched = []
    for step in range(1, whole.steps + 1):
        backend, _ = await act(launch, {step: cancel_scope})
        launched.append(backend.launch_count)
    # The first checkpoint, one load for each stage, and the wait for the device.
    assert launched == [0, 0, 1, 2, 3]


class NoArguments(Exception):
    def __init__(self) -> None:
        super().__init__()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for this error")


@each_operation
@pytest.mark.parametrize("backend_type", [RecordingBackend, BlockingBackend])
@pytest.mark.parametrize(
    "error",
    [
        StopIteration("value"),
        StopAsyncIteration(),
        GeneratorExit(),
        SystemExit(3),
        KeyboardInterrupt(),
        NoArguments(),
        Unprintable(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_c71_any_exception_ends_the_await(
    operation: Operation, backend_type: type[RecordingBackend], error: BaseException
) -> None:
    """C71: whatever class a load raises, the await ends with it, and all is freed.

    A StopIteration, which no coroutine can raise, is the cause of a RuntimeError.
    """
    if backend_type is BlockingBackend:
        backend: RecordingBackend = BlockingBackend(is_open=True)
    else:
        backend = RecordingBackend()
    backend.fail("load_artifact", 2, error)

    raised: BaseException | None = None
    try:
        with anyio.fail_after(20):
            await operation(backend)
    except BaseException as caught:  # noqa: BLE001 - compared below
        raised = caught

    if isinstance(error, StopIteration):
        assert type(raised) is RuntimeError
        assert raised.__cause__ is error
    else:
        assert raised is error
    assert not any(backend.live_objects().values())
    await operation(backend)


async def test_a_pool_can_be_loaded_many_times_at_once() -> None:
    """Loads of several pools run side by side, and each pool has its own kernels."""
    backend = BlockingBackend()
    pools = []

    async def load() -> None:
        pools.append(await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(load)
        backend.open()
    ids = [entry.loaded.id for pool in pools for entry in pool.entries]
    assert len(set(ids)) == 12
    for pool in pools:
        await pool.aclose()
    check_nothing_left(backend)


async def test_c44_a_timeout_around_one_load_ends_only_that_one() -> None:
    """C44: cancelling one load leaves its siblings' launches to finish.

    Two launches are under way; a third operation, loading a pool, never gets
    ready and its own scope is cancelled. The group around them is not.
    """
    backend = BlockingBackend()
    other = RecordingBackend()
    other.hold_all()
    finished = []

    async def sibling(number: int) -> None:
        request = attrs.evolve(LAUNCH, diagnostic_id=f"sibling {number}")
        await launch_pipeline(other, request)
        finished.append(number)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sibling, 1)
        tasks.start_soon(sibling, 2)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                inner.start_soon(load_and_close, backend)
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        assert scope.cancelled_caught
        assert not tasks.cancel_scope.cancel_called
        assert finished == []
        other.release_all()
    assert sorted(finished) == [1, 2]
    assert other.launch_count == 6
    join_loads(backend)
    check_nothing_left(backend)
    assert not any(other.live_objects().values())
