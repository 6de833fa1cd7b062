"""C14, C19, C38: errors arrive where they belong, and interrupts win."""

from __future__ import annotations

import functools
import random

import anyio
import attrs
import pytest

from accy_async.backends import RecordingBackend
from accy_async.errors import DeviceError, DeviceLost, InvalidEvent
from accy_async.pipeline import (
    allocate_pipeline_intermediates,
    launch_pipeline,
    load_pipeline_artifacts,
)
from tests.harness.scan_chain import ARGS, LAUNCH, PIPELINE, PTX, REGISTRY
from tests.harness.steps import perform

pytestmark = pytest.mark.anyio


async def test_c14_a_sticky_error_names_the_launch_that_caused_it() -> None:
    """C14: A faults, B and C follow on its stream, D runs beside; A is named.

    Later submissions raise the same at once, without reaching the driver; the
    backend says that it is ill; leaving frees everything and raises no more.
    """
    backend = RecordingBackend()
    pool = await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX)
    scratch = await allocate_pipeline_intermediates(backend, PIPELINE, ARGS)
    one, other = backend.create_stream(), backend.create_stream()
    target = backend.allocate_buffer(64)
    backend.hold_all()
    request = attrs.evolve(
        LAUNCH, artifacts=pool, intermediates=scratch, stream=one, diagnostic_id="A"
    )
    backend.fail_execution(1, code=700, message="illegal address", sticky=True)
    await launch_pipeline(backend, request)
    await launch_pipeline(backend, attrs.evolve(request, diagnostic_id="B"))
    backend.read_buffer(target, bytearray(64), stream=one)
    backend.write_buffer(target, bytes(64), stream=other)
    assert backend.is_healthy

    backend.release_all()
    launched = backend.launch_count
    assert not backend.is_healthy

    first = (await perform(backend, functools.partial(backend.wait_stream, one))).error
    assert type(first) is DeviceLost
    assert (first.node, first.kernel, first.code, first.stream) == (
        "A",
        "accy.kernel.test.block_scan",
        700,
        one.id,
    )
    assert "illegal address" in str(first)
    cause = first.__cause__
    assert isinstance(cause, DeviceError)

    for later in (
        functools.partial(launch_pipeline, backend, request),
        functools.partial(launch_pipeline, backend, LAUNCH),
        functools.partial(backend.wait_stream, other),
        backend.wait_device,
    ):
        error = (await perform(backend, later)).error
        assert type(error) is DeviceLost
        assert error.__cause__ is cause
    assert backend.launch_count == launched

    await pool.aclose()
    await scratch.aclose()
    backend.close()
    assert not any(backend.live_objects().values())


async def test_c14_an_ordinary_error_ends_with_those_it_is_told_to() -> None:
    """C14: one failed launch ends its own wait; the next on the stream is fine."""
    backend = RecordingBackend()
    stream = backend.create_stream()
    request = attrs.evolve(LAUNCH, stream=stream)
    backend.fail_execution(1)
    error = (
        await perform(backend, functools.partial(launch_pipeline, backend, request))
    ).error
    assert type(error) is DeviceError
    assert not error.is_consequence
    assert backend.is_healthy
    await launch_pipeline(backend, request)


async def test_c19_waiting_for_an_event_before_its_record_raises() -> None:
    """C19: an unrecorded event would wait for nothing, so it is refused."""
    backend = RecordingBackend()
    event = backend.create_event()
    with pytest.raises(InvalidEvent, match=r"stream_wait_event: .* never recorded"):
        backend.stream_wait_event(None, event)
    with pytest.raises(InvalidEvent, match=r"is_event_complete: .* never recorded"):
        backend.is_event_complete(event)
    outcome = await perform(backend, functools.partial(backend.wait_event, event))
    assert isinstance(outcome.error, InvalidEvent)
    assert backend.is_stream_idle()


async def test_c19_every_wait_in_the_log_has_an_earlier_record() -> None:
    """C19: 1000 random orders of producer and consumer; no wait goes before it."""
    choose = random.Random(19)
    for _ in range(1000):
        backend = RecordingBackend(is_holding=True)
        producer, consumer = backend.create_stream(), backend.create_stream()
        event = backend.create_event()
        steps = ["record", "wait"]
        choose.shuffle(steps)
        accepted = []
        for step in steps:
            try:
                if step == "record":
                    backend.record_event(event, producer)
                else:
                    backend.stream_wait_event(consumer, event)
            except InvalidEvent:
                continue
            accepted.append(step)
        assert accepted in (["record"], ["record", "wait"])
        backend.release(consumer)
        assert backend.is_stream_idle(consumer) is (accepted == ["record"])
        backend.release_all()
        assert backend.is_stream_idle(consumer)


def attached(error: BaseException) -> list[BaseException]:
    """What an error carries: its context, and the members of that if a group."""
    context = error.__context__
    if isinstance(context, BaseExceptionGroup):
        return [context, *context.exceptions]
    return [] if context is None else [context]


async def test_c38_an_interrupt_in_the_cleanup_wins_over_the_blocks_error() -> None:
    """C38 (a): the KeyboardInterrupt gets to the top, the ValueError is attached."""
    backend = RecordingBackend()
    own, pressed = ValueError("the block's"), KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as caught:
        async with await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX):
            backend.fail("destroy", 2, pressed)
            raise own
    assert caught.value is pressed
    assert own in attached(pressed)
    assert backend.destroyed_ids == [1, 2, 3]


async def test_c38_an_interrupt_in_the_block_wins_over_the_cleanups_error() -> None:
    """C38 (b): the KeyboardInterrupt gets to the top, the ValueError is attached."""
    backend = RecordingBackend()
    refused, pressed = ValueError("the cleanup's"), KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as caught:
        async with await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX):
            backend.fail("destroy", 2, refused)
            raise pressed
    assert caught.value is pressed
    assert refused in attached(pressed)
    assert backend.destroyed_ids == [1, 2, 3]


async def test_c38_what_the_caller_handles_does_not_displace_the_attached_error() -> (
    None
):
    """C38: in an ``except`` block of the caller's, the error stays attached too."""
    backend = RecordingBackend()
    refused, pressed = ValueError("the cleanup's"), KeyboardInterrupt()
    backend.fail("wait_device", 1, pressed)
    backend.fail("destroy", 1, refused)
    with pytest.raises(KeyboardInterrupt) as caught:
        try:
            raise LookupError("what the caller handles")
        except LookupError:
            await launch_pipeline(backend, LAUNCH)
    assert caught.value is pressed
    assert refused in attached(pressed)
    assert not any(backend.live_objects().values())


async def test_c38_three_failures_come_as_a_group_of_three() -> None:
    """C38 (c): errors of one group leave together, flat, on both loops alike."""
    backend = RecordingBackend(is_holding=True)
    streams = [backend.create_stream() for _ in range(3)]
    for nth in (1, 4, 7):
        backend.fail_execution(nth)
    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as tasks:
            for number, stream in enumerate(streams):
                request = attrs.evolve(
                    LAUNCH, stream=stream, diagnostic_id=f"node {number}"
                )
                tasks.start_soon(launch_pipeline, backend, request)
            while backend.sync_count < 3:
                await anyio.lowlevel.checkpoint()
            backend.release_all()
    errors = caught.value.exceptions
    assert [type(error) for error in errors] == [DeviceError] * 3
    assert sorted(str(getattr(error, "node", None)) for error in errors) == [
        "node 0",
        "node 1",
        "node 2",
    ]
    assert backend.live_objects()["buffers"] == 0
    assert backend.live_objects()["artifacts"] == 0
