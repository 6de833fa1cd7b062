"""Loading, binding, invoking and reading, cut short at every call and every await."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accy_async import open_session
from accy_async.backends import RecordingBackend
from accy_async.errors import DeviceError, OutOfMemory, RuntimeUnavailable
from accy_async.fragment import load_fragment
from accy_async.tuning import LaunchCandidateBenchmarkOptions
from tests.fragment.plans import ADD, CHAIN, UPDATE
from tests.harness.enumeration import (
    Operation,
    act,
    cancel_each_await,
    cancel_each_await_by_asyncio,
    interrupt_each_await,
    interrupt_each_call,
    without_grace,
)

pytestmark = pytest.mark.anyio

USUAL: dict[str, type[Exception]] = {
    "load_artifact": RuntimeUnavailable,
    "allocate_buffer": OutOfMemory,
}
ONES = np.ones(8, np.float32)


async def load_and_leave(backend: RecordingBackend) -> None:
    async with await load_fragment(backend, CHAIN):
        pass


async def bind_and_run(backend: RecordingBackend) -> None:
    async with (
        await load_fragment(backend, CHAIN) as fragment,
        await fragment.prepare_invocation_bindings([ONES]) as bindings,
    ):
        fragment.submit_invocation(bindings)
        await fragment.complete_invocation()
        await fragment.read_invocation_output(bindings, 0)
        fragment.submit_invocation_with_graph(bindings, fragment.graph)
        await fragment.complete_invocation_graph(fragment.graph)


async def measure_candidates(backend: RecordingBackend) -> None:
    async with (
        await load_fragment(backend, UPDATE) as fragment,
        await fragment.prepare_invocation_bindings([ONES]) as bindings,
    ):
        await fragment.measure_and_record_invocation_launch_candidates(
            bindings, LaunchCandidateBenchmarkOptions(warmup=0, samples=1)
        )
        assert fragment.tuning_record_count == 1


async def call_with_host_arrays(backend: RecordingBackend) -> None:
    async with await load_fragment(backend, CHAIN) as fragment:
        for _ in range(4):  # the last ones as a graph of the device
            await fragment(ONES)


async def call_with_device_arrays(backend: RecordingBackend) -> None:
    async with (
        open_session(backend, grace=4.0) as session,
        await session.load_fragment(UPDATE) as update,
        await session.load_fragment(ADD) as add,
    ):
        # Kept, so that none is freed by the collector, whose failures nobody hears.
        arrays = [await session.upload(ONES)]
        for _ in range(2):
            arrays.append(await update(arrays[-1]))
            arrays.append(await add(*arrays[-2:]))
        await session.download(arrays[-1])


async def drop_results_in_a_loop(backend: RecordingBackend) -> None:
    async with (
        open_session(backend, grace=4.0) as session,
        await session.load_fragment(ADD) as add,
    ):
        x = await session.upload(ONES)
        y = await add(x, x)
        for _ in range(3):  # from the second on in buffers that were dropped
            y = await add(x, y)
        await session.download(y)


async def leave_it_to_the_session(backend: RecordingBackend) -> None:
    async with open_session(backend, grace=4.0) as session:
        fragment = await session.load_fragment(CHAIN)
        bindings = await fragment.prepare_invocation_bindings([ONES])
        fragment.submit_invocation(bindings)
        await fragment(ONES)


async def compile_for_a_function(backend: RecordingBackend) -> None:
    def double(x: Any) -> Any:
        return x + x

    async with (
        open_session(backend, grace=4.0) as session,
        await session.load_fragment(double) as function,
    ):
        await function(ONES)
        await function(ONES[:4])


each_operation = pytest.mark.parametrize(
    "operation",
    [
        load_and_leave,
        bind_and_run,
        measure_candidates,
        call_with_host_arrays,
        call_with_device_arrays,
        drop_results_in_a_loop,
        leave_it_to_the_session,
        compile_for_a_function,
    ],
)
each_pace = pytest.mark.parametrize("is_held", [False, True])


async def check_nothing_left(backend: RecordingBackend, operation: Operation) -> None:
    """Nothing is alive, nothing was freed twice, and the operation works again."""
    backend.release_all()
    assert not any(backend.live_objects().values()), backend.live_objects()
    assert len(backend.destroyed_ids) == len(set(backend.destroyed_ids))
    assert backend.is_healthy
    await operation(backend)
    assert not any(backend.live_objects().values())


@each_operation
@each_pace
async def test_each_backend_call_failing_once(
    operation: Operation, is_held: bool
) -> None:
    """The call's own error comes out, alone; nothing is left."""
    whole, outcome = await act(operation, is_held)
    assert outcome.is_success
    for nth, call in enumerate(whole.calls, 1):
        backend, outcome = await act(operation, is_held, failures={nth: None})
        if call.kind in ("create_graph", "update_graph"):  # runs node by node instead
            assert outcome.is_success
        else:
            (error,) = without_grace(outcome.error)
            assert type(error) is USUAL.get(call.kind, DeviceError), call
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
    """An interrupt at any await leaves as itself."""
    await interrupt_each_await(operation, is_held, check_nothing_left)


@each_operation
@each_pace
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})])
async def test_each_await_cancelled_by_asyncio_itself(
    operation: Operation, is_held: bool
) -> None:
    """``Task.cancel`` at any await, and again at any of the exit's, leaks nothing."""
    await cancel_each_await_by_asyncio(operation, is_held, check_nothing_left)
