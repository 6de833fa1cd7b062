"""However often asyncio cancels a task that leaves something, the grace is kept.

Every wait here is one for a device that stands still: only its grace, which is longer
than any test, or the device may end it, and then there is one cancellation to raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest

import accy_async
from accy_async import DType
from accy_async.backends import RecordingBackend
from accy_async.backends.cleanup import Cleanup
from accy_async.backends.nativecancel import outlast
from accy_async.errors import DeviceError, GraceExpired
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.session import Session

pytestmark = pytest.mark.anyio

GIVE_UP_S = 20.0
GRACE_S = 1000.0
Way = Callable[[Session, RecordingBackend, asyncio.Event], Awaitable[None]]


@pytest.fixture
def anyio_backend() -> str:
    """The only loop that cancels tasks by itself."""
    return "asyncio"


@pytest.fixture(autouse=True)
async def limit() -> AsyncIterator[None]:
    """A wait that goes on for its whole grace has failed."""
    with anyio.fail_after(GIVE_UP_S):
        yield


def plan() -> LaunchGraphPlan:
    g = LaunchGraphBuilder()
    g.fill(g.scratch("x", DType.F32, 4), 1.0)
    return g.build()


def keep_busy(session: Session, device: RecordingBackend) -> None:
    """Work that does not end before `RecordingBackend.release_all`."""
    device.hold_all()
    session.backend.fill_buffer(session.backend.allocate_buffer(8), b"\1")


async def leave_the_block(
    session: Session, device: RecordingBackend, ready: asyncio.Event
) -> None:
    """The block ends by itself, and is being left already."""
    keep_busy(session, device)
    ready.set()


async def be_cancelled_within(
    session: Session, device: RecordingBackend, ready: asyncio.Event
) -> None:
    """The first cancellation ends the block."""
    keep_busy(session, device)
    ready.set()
    await anyio.sleep_forever()


async def destroy_in_use(
    session: Session, device: RecordingBackend, ready: asyncio.Event
) -> None:
    """What is waited for was destroyed before."""
    device.hold_all()
    buffer = session.backend.allocate_buffer(8)
    session.backend.fill_buffer(buffer, b"\1")
    session.backend.destroy(buffer)
    ready.set()


async def lease_a_stream(
    session: Session, device: RecordingBackend, ready: asyncio.Event
) -> None:
    """A stream's block is left first."""
    async with session.stream() as stream:
        device.hold_all()
        buffer = session.backend.allocate_buffer(8)
        session.backend.fill_buffer(buffer, b"\1", stream=stream)
        ready.set()


async def run_a_plan(
    session: Session, device: RecordingBackend, ready: asyncio.Event
) -> None:
    """A run ends first."""
    device.hold_all()
    ready.set()
    await session.run(plan())


async def run_a_prepared_plan(
    session: Session, device: RecordingBackend, ready: asyncio.Event
) -> None:
    """A device graph ends first."""
    prepared = await session.prepare(plan())
    assert prepared.is_lowered
    device.hold_all()
    ready.set()
    await prepared.run()


async def close_a_prepared_plan(
    session: Session, device: RecordingBackend, ready: asyncio.Event
) -> None:
    """Whose run goes on."""
    prepared = await session.prepare(plan())
    device.hold_all()
    prepared.submit()
    ready.set()
    await prepared.aclose()


async def clean_up_after_an_operation(
    session: Session, device: RecordingBackend, ready: asyncio.Event
) -> None:
    """As a launch of a pipeline does, or a call of a fragment."""
    keep_busy(session, device)
    ready.set()
    await Cleanup(session.backend, "an operation", None).leave(
        None, wait=session.backend.wait_device, handles=()
    )


WAYS: list[Way] = [
    leave_the_block,
    be_cancelled_within,
    destroy_in_use,
    lease_a_stream,
    run_a_plan,
    run_a_prepared_plan,
    close_a_prepared_plan,
    clean_up_after_an_operation,
]


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("way", WAYS)
async def test_leaving_waits_for_the_device_whoever_cancels_it(
    way: Way, times: int
) -> None:
    device, ready = RecordingBackend(), asyncio.Event()
    sessions: list[Session] = []

    async def main() -> None:
        async with accy_async.open_session(device, grace=GRACE_S) as session:
            sessions.append(session)
            await way(session, device, ready)

    task = asyncio.create_task(main())
    await ready.wait()
    for _ in range(times):
        await anyio.wait_all_tasks_blocked()
        task.cancel()
    await anyio.wait_all_tasks_blocked()
    assert not task.done()
    device.release_all()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == times  # for who cancelled to take back
    assert not any(sessions[0].live_objects().values())


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_several_at_once_are_one(times: int) -> None:
    """As when a timeout and a group end in one turn of the loop."""
    device, ready = RecordingBackend(), asyncio.Event()

    async def main() -> None:
        async with accy_async.open_session(device, grace=GRACE_S) as session:
            await leave_the_block(session, device, ready)

    task = asyncio.create_task(main())
    await ready.wait()
    await anyio.wait_all_tasks_blocked()
    for _ in range(times):
        task.cancel()
    await anyio.wait_all_tasks_blocked()
    device.release_all()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_that_cancels_itself_on_the_way_out_waits_too() -> None:
    """Before the exit's first await: it comes there, and the count says nothing."""
    device = RecordingBackend()

    async def main() -> None:
        async with accy_async.open_session(device, grace=GRACE_S) as session:
            keep_busy(session, device)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    task = asyncio.create_task(main())
    await anyio.wait_all_tasks_blocked()
    assert not task.done()
    device.release_all()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("times", [1, 5])
async def test_several_devices_are_waited_for(times: int) -> None:
    devices = [RecordingBackend(index=index) for index in range(2)]
    ready = asyncio.Event()

    async def main() -> None:
        async with accy_async.open_session(devices=devices, grace=GRACE_S) as session:
            for number, device in enumerate(devices):
                keep_busy(session.on(number), device)
            ready.set()

    task = asyncio.create_task(main())
    await ready.wait()
    for _ in range(times):
        await anyio.wait_all_tasks_blocked()
        task.cancel()
    for device in devices:
        await anyio.wait_all_tasks_blocked()
        assert not task.done()
        device.release_all()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(any(device.live_objects().values()) for device in devices)


async def test_what_failed_before_a_cancellation_is_told_nevertheless() -> None:
    """One stream failed, and the wait for the other is cut short and begun anew."""
    device, ready = RecordingBackend(), asyncio.Event()

    async def main() -> None:
        async with accy_async.open_session(device, grace=GRACE_S) as session:
            held = session.backend.create_stream()
            device.hold(held)
            buffer = session.backend.allocate_buffer(8)
            session.backend.fill_buffer(buffer, b"\1", stream=held)
            failed = session.backend.mark(None).timeline
            failed.fail(failed.advance(), DeviceError("the other stream's"))
            failed.complete(failed.submitted)
            ready.set()

    task = asyncio.create_task(main())
    await ready.wait()
    for _ in range(2):
        await anyio.wait_all_tasks_blocked()
        task.cancel()
    await anyio.wait_all_tasks_blocked()
    device.release_all()
    with pytest.RaisesGroup(pytest.RaisesExc(DeviceError, match="other")) as caught:
        await task
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_a_grace_that_runs_out_is_told_as_such(times: int) -> None:
    """Not as cut short by an interrupt."""
    device, ready = RecordingBackend(), asyncio.Event()
    clock = asyncio.get_running_loop().time

    async def main() -> None:
        async with accy_async.open_session(device, grace=0.02) as session:
            await be_cancelled_within(session, device, ready)

    task = asyncio.create_task(main())
    await ready.wait()
    began = clock()
    for _ in range(times):
        await anyio.wait_all_tasks_blocked()
        task.cancel()
    with pytest.RaisesGroup(GraceExpired) as caught:
        await task
    assert clock() - began >= 0.02
    (expired,) = caught.value.exceptions
    assert isinstance(expired, GraceExpired)
    assert not expired.is_interrupted
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    device.release_all()


@pytest.mark.parametrize("outer_first", [True, False])
async def test_a_timeout_around_a_session_is_one_still(outer_first: bool) -> None:
    """Two that end one after the other: each takes its own cancellation back."""
    device = RecordingBackend()
    timeouts: list[asyncio.Timeout] = []
    ready = asyncio.Event()

    async def main() -> None:
        async with asyncio.timeout(None) as outer, asyncio.timeout(None) as inner:
            timeouts.extend((outer, inner) if outer_first else (inner, outer))
            async with accy_async.open_session(device, grace=GRACE_S) as session:
                await be_cancelled_within(session, device, ready)

    task = asyncio.create_task(main())
    await ready.wait()
    for one in timeouts:
        await anyio.wait_all_tasks_blocked()
        one.reschedule(asyncio.get_running_loop().time())
    await anyio.wait_all_tasks_blocked()
    assert all(one.expired() for one in timeouts)
    assert not task.done()
    device.release_all()
    with pytest.raises(TimeoutError):
        await task
    assert task.cancelling() == 0


async def test_a_cancellation_that_is_none_of_the_tasks_is_no_reason_to_go_on() -> None:
    """What a wait raises by itself ends it: else it would go on for ever."""
    waits = 0

    async def wait() -> None:
        nonlocal waits
        waits += 1
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await outlast(wait)
    assert waits == 2
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
