"""Leaving: everything is destroyed, and no error hides another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
from anyio import get_cancelled_exc_class, wait_all_tasks_blocked

from accy_async.backends import BufferHandle
from accy_async.backends.cleanup import Cleanup, destroy_all, raise_together
from accy_async.backends.closing import ClosedOnExit
from accy_async.backends.recording import RecordingBackend
from accy_async.errors import AccyError, DeviceError, GraceExpired, OutOfMemory
from tests.backends.loops import PATIENCE_S

pytestmark = pytest.mark.anyio
NOTHING_LEFT = {"buffers": 0, "artifacts": 0, "streams": 0, "events": 0, "graphs": 0}


@pytest.fixture
def backend() -> RecordingBackend:
    """A device whose cleanup does not wait for a clock: it has no grace at all."""
    return RecordingBackend(grace_s=0.0)


def buffers(backend: RecordingBackend, count: int = 3) -> list[BufferHandle]:
    return [backend.allocate_buffer(16) for _ in range(count)]


def busy_buffer(backend: RecordingBackend) -> BufferHandle:
    backend.hold()
    buffer = backend.allocate_buffer(16)
    backend.write_buffer(buffer, bytes(16))
    return buffer


# What is raised: rules 2 to 4


def test_nothing_went_wrong() -> None:
    """Where nothing went wrong nothing is raised."""
    raise_together("closing", None, [])


@pytest.mark.parametrize(
    "primary", [ValueError("body"), KeyboardInterrupt(), SystemExit(1), GeneratorExit()]
)
def test_what_ended_the_body_leaves_as_it_is(primary: BaseException) -> None:
    """After a cleanup that went well the body's exception is raised, and no other."""
    with pytest.raises(type(primary)) as caught:
        raise_together("closing", primary, [])
    assert caught.value is primary


def test_one_error_of_the_cleanup_leaves_as_it_is() -> None:
    """A single error is wrapped in nothing."""
    error = DeviceError("refused")
    with pytest.raises(DeviceError) as caught:
        raise_together("closing", None, [error])
    assert caught.value is error


def test_several_errors_leave_together() -> None:
    """Several errors of a cleanup are one group, in their order."""
    errors: list[Exception] = [DeviceError("first"), ValueError("second")]
    with pytest.raises(ExceptionGroup, match="closing: cleanup failed") as caught:
        raise_together("closing", None, errors)
    assert list(caught.value.exceptions) == errors


def test_neither_body_nor_cleanup_hides_the_other() -> None:
    """The body's error comes first in the group, the cleanup's after it."""
    primary, error = ValueError("body"), DeviceError("refused")
    with pytest.raises(ExceptionGroup) as caught:
        raise_together("loading", primary, [error])
    assert caught.value.message == "loading failed, and so did its cleanup"
    assert caught.value.exceptions == (primary, error)


@pytest.mark.parametrize("primary", [KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("is_handled", [True, False])
def test_interrupt_leaves_as_itself(primary: BaseException, is_handled: bool) -> None:
    """An interrupt is raised bare; the cleanup's errors are its context."""
    before, error = LookupError("before"), DeviceError("refused")
    primary.__context__ = before
    with pytest.raises(type(primary)) as caught:
        if is_handled:
            try:
                raise primary
            except BaseException:  # noqa: BLE001 - the state an exit is called in
                raise_together("closing", primary, [error])
        raise_together("closing", primary, [error])
    assert caught.value is primary
    group = primary.__context__
    assert isinstance(group, ExceptionGroup)
    assert group.exceptions == (error,)
    assert group.__context__ is before


async def cancelled() -> BaseException:
    """A real cancellation of this loop, as a task gets it."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except get_cancelled_exc_class() as error:
            return error
    raise AssertionError


async def test_cancellation_goes_on_by_itself(backend: RecordingBackend) -> None:
    """After a cleanup that went well the cancellation ends its scope as ever."""
    handles = buffers(backend)
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except BaseException as error:  # noqa: BLE001 - leave raises it
            await Cleanup(backend, "test", None).leave(
                error, wait=None, handles=handles
            )
    assert scope.cancelled_caught
    assert backend.live_objects() == NOTHING_LEFT


async def test_cancellation_is_the_cause_of_the_cleanups_errors() -> None:
    """It is never among the group's errors, which asyncio would take it for."""
    primary, error = await cancelled(), DeviceError("refused")
    with pytest.raises(ExceptionGroup) as caught:
        raise_together("closing", primary, [error])
    assert type(caught.value) is ExceptionGroup
    assert caught.value.exceptions == (error,)
    assert caught.value.__cause__ is primary


# What is destroyed: rule 1


def test_handles_are_destroyed_in_order(backend: RecordingBackend) -> None:
    """Handles are destroyed in the order given, but for those destroyed already."""
    first, second, third = buffers(backend)
    backend.destroy(second)
    errors: list[Exception] = []
    assert destroy_all(backend, [third, second, first], errors) == []
    assert backend.destroyed_ids == [second.id, third.id, first.id]
    assert errors == []


@pytest.mark.parametrize("error", [DeviceError("no"), OutOfMemory("no"), ValueError()])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_refusal_keeps_no_other_from_being_destroyed(
    backend: RecordingBackend, error: Exception, nth: int
) -> None:
    """Whichever destruction fails, with whatever error, the others are made."""
    handles = buffers(backend)
    backend.fail("destroy", nth, error)
    errors: list[Exception] = []
    destroy_all(backend, handles, errors)
    assert errors == [error]
    assert backend.live_objects() == NOTHING_LEFT


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_interrupt_keeps_no_other_from_being_destroyed(
    backend: RecordingBackend, nth: int
) -> None:
    """An interrupt in the midst is raised when all are destroyed."""
    handles = buffers(backend)
    backend.fail("destroy", nth, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        destroy_all(backend, handles, [])
    assert backend.live_objects() == NOTHING_LEFT


def test_what_is_in_use_is_named(backend: RecordingBackend) -> None:
    """The names of what the reaper holds now come back."""
    busy, idle = busy_buffer(backend), backend.allocate_buffer(8)
    assert destroy_all(backend, [busy, idle], []) == ["buffer 1 (16 bytes)"]
    assert backend.reaper.held() == ("buffer 1 (16 bytes)",)


# One exit, with its wait


async def test_leave_waits_then_destroys(backend: RecordingBackend) -> None:
    """The wait ends before the first object is destroyed."""
    handles = buffers(backend)
    lived: list[bool] = []

    async def wait() -> None:
        await anyio.lowlevel.checkpoint()
        lived.append(all(backend.is_alive(handle) for handle in handles))

    await Cleanup(backend, "test", 60.0).leave(None, wait=wait, handles=handles)
    assert lived == [True]
    assert backend.live_objects() == NOTHING_LEFT


async def test_grace_that_runs_out_names_what_is_kept(
    backend: RecordingBackend,
) -> None:
    """What is still in use goes to the reaper, unfreed, and stands in the error."""
    busy, idle = busy_buffer(backend), backend.allocate_buffer(8)
    with pytest.raises(GraceExpired) as caught:
        await Cleanup(backend, "closing", None).leave(
            None, wait=backend.wait_default_stream, handles=[busy, idle]
        )
    assert str(caught.value) == (
        "closing: the device did not finish within the grace of 0 s; handed to the "
        "reaper, not freed: buffer 1 (16 bytes)"
    )
    assert (caught.value.objects, caught.value.grace_s) == (("buffer 1 (16 bytes)",), 0)
    assert isinstance(caught.value, TimeoutError)
    assert backend.destroyed_ids == [idle.id]
    backend.release()
    assert backend.live_objects() == NOTHING_LEFT


async def test_grace_that_runs_out_for_nothing_is_no_error(
    backend: RecordingBackend,
) -> None:
    """Where nothing of ours is in use, a device that goes on is not our business."""
    busy_buffer(backend)
    idle = backend.allocate_buffer(8)
    await Cleanup(backend, "closing", None).leave(
        None, wait=backend.wait_default_stream, handles=[idle]
    )
    assert backend.destroyed_ids == [idle.id]


async def test_failed_wait_destroys_all_the_same(backend: RecordingBackend) -> None:
    """What the wait raises joins the body's error; what is in use is noted."""
    busy, primary = busy_buffer(backend), ValueError("body")
    backend.fail("wait_default_stream")
    with pytest.raises(ExceptionGroup) as caught:
        await Cleanup(backend, "test", None).leave(
            primary, wait=backend.wait_default_stream, handles=[busy]
        )
    first, second = caught.value.exceptions
    assert first is primary
    assert isinstance(second, DeviceError)
    assert second.__notes__ == ["held by the reaper until idle: buffer 1 (16 bytes)"]
    assert backend.reaper.held() == ("buffer 1 (16 bytes)",)


async def test_failure_told_again_is_not_reported_twice(
    backend: RecordingBackend,
) -> None:
    """The wait of the cleanup often meets what ended the body: that is one error."""
    with pytest.raises(DeviceError) as caught:
        await Cleanup(backend, "test", None).leave(
            DeviceError("boom", code=700),
            wait=raises(DeviceError("boom", code=700)),
            handles=buffers(backend),
        )
    assert caught.value.message == "boom"


async def test_leave_is_shielded(backend: RecordingBackend) -> None:
    """A cancelled scope around does not cut the wait short: it ends with the device."""
    busy = busy_buffer(backend)
    has_left: list[bool] = []

    async def leave() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await Cleanup(backend, "test", PATIENCE_S).leave(
                None, wait=backend.wait_default_stream, handles=[busy]
            )
            has_left.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
        await wait_all_tasks_blocked()
        assert has_left == []
        assert backend.is_alive(busy)
        backend.release()
    assert has_left == [True]
    assert backend.live_objects() == NOTHING_LEFT


def raises(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        await anyio.lowlevel.checkpoint()
        raise error

    return wait


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(1)])
async def test_interrupted_wait_destroys_all_the_same(
    backend: RecordingBackend, interrupt: BaseException
) -> None:
    """An interrupt of the wait leaves as itself, body and cleanup in its context."""
    handles, primary = buffers(backend), ValueError("body")
    error = DeviceError("refused")
    backend.fail("destroy", 2, error)
    with pytest.raises(type(interrupt)) as caught:
        await Cleanup(backend, "test", 60.0).leave(
            primary, wait=raises(interrupt), handles=handles
        )
    assert caught.value is interrupt
    assert isinstance(interrupt.__context__, ExceptionGroup)
    assert interrupt.__context__.exceptions == (primary, error)
    assert backend.live_objects() == NOTHING_LEFT


# Closing on the way out


class Closing(ClosedOnExit):
    """Something whose closing raises an error, or nothing."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def __repr__(self) -> str:
        return "it"

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error


async def leave(closing: Closing, primary: BaseException | None) -> None:
    await closing.__aexit__(None if primary is None else type(primary), primary, None)


async def test_exit_lets_the_body_go_on() -> None:
    """Where closing went well the exit raises nothing, whatever the body ended with."""
    async with Closing() as closing:
        pass
    for primary in (None, ValueError("body"), KeyboardInterrupt(), await cancelled()):
        await leave(closing, primary)


async def test_exit_joins_body_and_closing() -> None:
    """What closing raises joins what the body ended with, by the same rules."""
    error, body, stop = AccyError("close"), ValueError("body"), await cancelled()
    closing = Closing(error)
    with pytest.raises(AccyError) as alone:
        await leave(closing, None)
    assert alone.value is error
    with pytest.raises(ExceptionGroup, match="closing it") as both:
        await leave(closing, body)
    assert both.value.exceptions == (body, error)
    with pytest.raises(ExceptionGroup) as late:
        await leave(closing, stop)
    assert late.value.exceptions == (error,)
    assert late.value.__cause__ is stop
