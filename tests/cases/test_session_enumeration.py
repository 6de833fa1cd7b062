"""Opening, using and leaving a session, cut short at every call and every await."""

from __future__ import annotations

import anyio
import attrs
import numpy as np
import pytest

from accy_async import open_session
from accy_async.backends import RecordingBackend
from accy_async.errors import DeviceError, OutOfMemory, RuntimeUnavailable
from tests.harness.enumeration import (
    Operation,
    act,
    cancel_each_await,
    cancel_each_await_by_asyncio,
    interrupt_each_await,
    interrupt_each_call,
    without_grace,
)
from tests.harness.scan_chain import LAUNCH, PIPELINE, PTX, REGISTRY

pytestmark = pytest.mark.anyio

GRACE_S = 0.1
"""Waited out where what is left behind can be neither waited for nor destroyed."""

USUAL: dict[str, type[Exception]] = {
    "load_artifact": RuntimeUnavailable,
    "allocate_buffer": OutOfMemory,
}


async def open_and_leave(backend: RecordingBackend) -> None:
    async with open_session(backend, grace=GRACE_S):
        pass


async def load_and_launch(backend: RecordingBackend) -> None:
    async with (
        open_session(backend, grace=GRACE_S) as session,
        await session.load_pipeline(PIPELINE, REGISTRY, PTX) as pool,
    ):
        await session.launch_pipeline(attrs.evolve(LAUNCH, artifacts=pool))


async def copy_both_ways(backend: RecordingBackend) -> None:
    async with open_session(backend, grace=GRACE_S) as session:
        array = await session.upload(np.arange(64, dtype=np.float32))
        await session.download(array)


async def launch_on_streams(backend: RecordingBackend) -> None:
    async with open_session(backend, grace=GRACE_S) as session:
        for _ in range(2):
            async with session.stream() as stream:
                await session.launch_pipeline(attrs.evolve(LAUNCH, stream=stream))


async def leave_work_behind(backend: RecordingBackend) -> None:
    async with open_session(backend, grace=GRACE_S) as session:
        await session.load_pipeline(PIPELINE, REGISTRY, PTX)
        buffer = backend.allocate_buffer(64)
        backend.write_buffer(buffer, bytes(64), stream=backend.create_stream())


each_operation = pytest.mark.parametrize(
    "operation",
    [
        open_and_leave,
        load_and_launch,
        copy_both_ways,
        launch_on_streams,
        leave_work_behind,
    ],
)
each_pace = pytest.mark.parametrize("is_held", [False, True])


async def check_nothing_left(backend: RecordingBackend, operation: Operation) -> None:
    """Nothing is alive, the grace is the caller's again, a new session works."""
    backend.release_all()
    assert not any(backend.live_objects().values())
    assert len(backend.destroyed_ids) == len(set(backend.destroyed_ids))
    assert backend.grace_s == 5.0
    assert backend.is_healthy
    await operation(backend)
    assert not any(backend.live_objects().values())


@each_operation
@each_pace
async def test_each_backend_call_failing_once(
    operation: Operation, is_held: bool
) -> None:
    """The call's own error ends the session, alone; nothing is left."""
    whole, outcome = await act(operation, is_held)
    assert outcome.is_success
    for nth, call in enumerate(whole.calls, 1):
        backend, outcome = await act(operation, is_held, failures={nth: None})
        (error,) = without_grace(outcome.error)
        assert type(error) is USUAL.get(call.kind, DeviceError)
        await check_nothing_left(backend, operation)


@each_operation
@each_pace
async def test_each_pair_of_backend_calls_failing(
    operation: Operation, is_held: bool
) -> None:
    """Both errors come out, the first first, whatever the second was for."""
    first, second = DeviceError("the first"), DeviceError("the second")
    whole, _ = await act(operation, is_held)
    for nth in range(1, len(whole.calls) + 1):
        backend, _ = await act(operation, is_held, failures={nth: first})
        for later in range(nth + 1, len(backend.calls) + 1):
            backend, outcome = await act(
                operation, is_held, failures={nth: first, later: second}
            )
            assert without_grace(outcome.error) == [first, second]
            await check_nothing_left(backend, operation)


@each_operation
@each_pace
async def test_interrupt_at_each_backend_call(
    operation: Operation, is_held: bool
) -> None:
    """A KeyboardInterrupt inside any call leaves as itself; nothing is left."""
    await interrupt_each_call(operation, is_held, check_nothing_left)


@each_operation
@each_pace
async def test_each_await_cancelled_once(operation: Operation, is_held: bool) -> None:
    """A cancellation at any await goes on as one; nothing is left."""
    await cancel_each_await(operation, is_held, check_nothing_left)


@each_operation
@each_pace
async def test_each_await_interrupted(operation: Operation, is_held: bool) -> None:
    """An interrupt at any await, the exit's too, leaves as itself."""
    await interrupt_each_await(operation, is_held, check_nothing_left)


@each_operation
@each_pace
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})])
async def test_each_await_cancelled_by_asyncio_itself(
    operation: Operation, is_held: bool
) -> None:
    """``Task.cancel`` at any await, and again at any of the exit's, leaks nothing."""
    await cancel_each_await_by_asyncio(operation, is_held, check_nothing_left)


async def test_a_session_owns_what_is_made_in_it_and_no_more() -> None:
    """A caller's own backend keeps what it had before the session."""
    backend = RecordingBackend()
    kept = backend.allocate_buffer(16)
    async with open_session(backend, grace=GRACE_S) as session:
        backend.allocate_buffer(32)
        assert session.live_objects()["buffers"] == 1
    assert backend.is_alive(kept)
    assert backend.live_objects()["buffers"] == 1
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with open_session(backend):
            pytest.fail("a cancelled scope opens no session")
    assert backend.is_alive(kept)
