"""C05, C08, C37, C46: a cancel reaches everything, and leaves nothing behind."""

from __future__ import annotations

import functools
import gc
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import attrs
import pytest

from accy_async.backends import RecordingBackend, StreamHandle
from accy_async.errors import DeviceError
from accy_async.pipeline import (
    PipelineLaunch,
    allocate_pipeline_intermediates,
    launch_pipeline,
    load_pipeline_artifacts,
)
from tests.harness.scan_chain import ARGS, LAUNCH, PIPELINE, PTX, REGISTRY
from tests.harness.scenarios import SCENARIOS
from tests.harness.steps import cancel_scope, perform

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

pytestmark = pytest.mark.anyio

RANDOM_CANCELS = 2000


def our_objects() -> Counter[str]:
    """How many objects of this package the interpreter keeps, by type."""
    while gc.collect():
        pass  # what had finalizers, other tests' too, goes with the next collection
    return Counter(
        type(one).__qualname__
        for one in gc.get_objects()
        if str(type(one).__module__).startswith("accy_async")
    )


async def test_c05_random_cancels_leave_a_flat_object_count() -> None:
    """C05: 2,000 cancels at random awaits of random operations grow nothing.

    After each, only the caller's objects are alive and the backend's books are as
    they were; Python counts no more of our objects after 2,000 than after 500.
    """
    choose = random.Random(5)
    worlds = [(scenario, await scenario.start()) for scenario in SCENARIOS]
    counts = {}
    for turn in range(RANDOM_CANCELS + 1):
        if turn in (500, RANDOM_CANCELS):
            counts[turn] = our_objects()
        scenario, world = choose.choice(worlds)
        if scenario.is_held:
            world.backend.hold_all()
        outcome = await perform(
            world.backend,
            functools.partial(scenario.act, world),
            {choose.randint(1, 8): cancel_scope},
        )
        assert outcome.error is None
        world.backend.release_all()
        world.check_untouched()
        world.backend.calls.clear()
        world.backend.launches.clear()
    # What other tests left may still be on its way out: nothing has become more.
    assert not counts[RANDOM_CANCELS] - counts[500]
    for scenario, world in worlds:
        await scenario.check_works(world)


class ThreeAwaits(RecordingBackend):
    """A backend whose wait for the device awaits three times."""

    awaited = 0

    async def wait_device(self) -> None:
        """Wait in three parts, as a driver with several queues would."""
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
            self.awaited += 1
        await super().wait_device()


WAYS = ["outside", "sibling", "timeout"]


async def leave(backend: ThreeAwaits, way: str, body_ready: anyio.Event) -> None:
    """A block with three pools and a launch in flight, ended in one of the ways."""
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(
                await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX)
            )
        scope = stack.enter_context(anyio.CancelScope()) if way == "timeout" else None
        if scope is not None:
            backend.on_call = lambda call: (
                setattr(scope, "deadline", anyio.current_time())
                if call.kind == "wait_device"
                else None
            )
        else:
            backend.on_call = lambda call: (
                body_ready.set() if call.kind == "wait_device" else None
            )
        await launch_pipeline(backend, LAUNCH)
        await anyio.lowlevel.checkpoint()


async def run_and_end(backend: ThreeAwaits, way: str) -> BaseException | None:
    """Run that block to its end; returns what it raised."""
    ready = anyio.Event()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave, backend, way, ready)
            if way == "timeout":
                return None
            await ready.wait()
            if way == "sibling":
                raise LookupError("the sibling's")
            tasks.cancel_scope.cancel()
    except ExceptionGroup as error:
        return error
    return None


@pytest.mark.parametrize("way", WAYS)
async def test_c08_every_step_of_the_cleanup_runs(way: str) -> None:
    """C08: the wait awaits three times under the cancellation; all pools then go."""
    backend = ThreeAwaits()
    error = await run_and_end(backend, way)
    if way == "sibling":
        assert isinstance(error, ExceptionGroup)
        assert [type(one) for one in error.exceptions] == [LookupError]
    else:
        assert error is None
    assert backend.awaited >= 3
    assert sum(call == "destroy" for call in kinds(backend)) == 14
    assert not any(backend.live_objects().values())


def kinds(backend: RecordingBackend) -> list[str]:
    return [call.kind for call in backend.calls]


@pytest.mark.parametrize("way", WAYS)
async def test_c08_one_pool_that_refuses_keeps_no_other(way: str) -> None:
    """C08: pool 2's destroy raises; pools 1 and 3 are destroyed, and it is told."""
    backend = ThreeAwaits()
    # Scratch and the launch's own kernels make five; then pool 3, then pool 2.
    backend.fail("destroy", 5 + 3 + 2)
    error = await run_and_end(backend, way)
    assert isinstance(error, ExceptionGroup)
    refused = flat(error)
    assert [type(one) for one in refused if not isinstance(one, LookupError)] == [
        DeviceError
    ]
    assert any(isinstance(one, LookupError) for one in refused) is (way == "sibling")
    assert not any(backend.live_objects().values())
    assert len(set(backend.destroyed_ids)) == 14


def flat(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in flat(one)]
    return [error]


async def fan_out(
    backend: RecordingBackend, streams: list[StreamHandle], tasks: TaskGroup
) -> None:
    """Two launches after each other on each of four streams; returns in the first."""

    async def chain(stream: StreamHandle) -> None:
        for _ in range(2):
            await launch_pipeline(backend, attrs.evolve(LAUNCH, stream=stream))

    for number, stream in enumerate(streams, 1):
        tasks.start_soon(chain, stream)
        while backend.sync_count < number:
            await anyio.lowlevel.checkpoint()


async def test_c37_a_failure_in_one_launch_reaches_all_the_others() -> None:
    """C37: 8 launches on 4 streams, the third fails: one error, all idle, none new."""
    backend = RecordingBackend()
    streams = [backend.create_stream() for _ in range(4)]
    backend.hold_all()
    backend.fail_execution(7, code=719)
    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as tasks:
            await fan_out(backend, streams, tasks)
            # The other three are cancelled, and each waits for its stream again.
            backend.on_call = lambda call: (
                backend.release_all() if backend.sync_count == 7 else None
            )
            backend.release(streams[2])
    (error,) = caught.value.exceptions
    assert type(error) is DeviceError
    assert error.stream == streams[2].id
    check_fan_out(backend, streams)


async def test_c37_a_cancel_from_outside_reaches_all_launches() -> None:
    """C37: the same with an outside cancel: no error at all."""
    backend = RecordingBackend()
    streams = [backend.create_stream() for _ in range(4)]
    backend.hold_all()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            await fan_out(backend, streams, tasks)
            backend.on_call = lambda call: (
                backend.release_all() if backend.sync_count == 8 else None
            )
            scope.cancel()
    assert scope.cancelled_caught
    check_fan_out(backend, streams)


def check_fan_out(backend: RecordingBackend, streams: list[StreamHandle]) -> None:
    waited = {call.object_id for call in backend.calls if call.kind == "wait_stream"}
    assert waited == {stream.id for stream in streams}
    assert backend.launch_count == 12
    assert all(backend.is_stream_idle(stream) for stream in streams)
    assert backend.live_objects() == {
        "buffers": 0,
        "artifacts": 0,
        "streams": 4,
        "events": 0,
        "graphs": 0,
    }


async def test_c46_a_stream_belongs_to_who_names_it_not_to_the_task() -> None:
    """C46: two tasks with streams of their own launch 100 times each, interleaved."""
    backend = RecordingBackend()
    choose = random.Random(46)
    pool = await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX)

    async def work(name: str, stream: StreamHandle | None) -> None:
        async with await allocate_pipeline_intermediates(
            backend, PIPELINE, ARGS
        ) as scratch:
            request = PipelineLaunch(
                pipeline=PIPELINE,
                registry=REGISTRY,
                format=PTX,
                operands=LAUNCH.operands,
                results=LAUNCH.results,
                runtime_scalar_arguments=ARGS,
                intermediates=scratch,
                artifacts=pool,
                stream=stream,
                diagnostic_id=name,
            )
            for _ in range(100):
                for _ in range(choose.randrange(3)):
                    await anyio.lowlevel.checkpoint()
                await launch_pipeline(backend, request)

    streams: dict[str, StreamHandle | None] = {
        "T1": backend.create_stream(),
        "T2": backend.create_stream(),
        "outside": None,
    }
    async with anyio.create_task_group() as tasks:
        for name, stream in streams.items():
            tasks.start_soon(work, name, stream)
    assert backend.launch_count == 900
    assert {
        (launch.diagnostic_id, launch.stream) for launch in backend.launches
    } == set(streams.items())
    switches = sum(
        one.diagnostic_id != next_one.diagnostic_id
        for one, next_one in zip(backend.launches, backend.launches[1:], strict=False)
    )
    assert switches > 100
