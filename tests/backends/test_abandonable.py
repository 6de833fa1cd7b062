"""Blocking work on a thread: awaited, or abandoned with its result put away."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest
from anyio import wait_all_tasks_blocked

from accy_async.backends.completion import run_abandonable
from tests.backends.loops import LOOPS, PATIENCE_S, Options

pytestmark = pytest.mark.anyio
NAME = "accy_async test work"


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Options:
    """The loops of every test here, uvloop's among them."""
    options: Options = request.param
    return options


@pytest.fixture(autouse=True)
def failures(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What threads ended with, of which nothing may come."""
    ended: list[object] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    return ended


class Work:
    """Work that waits for a gate, and a record of what was put away on which thread."""

    def __init__(self, outcome: BaseException | object = "result") -> None:
        self.outcome = outcome
        self.gate = threading.Event()
        self.has_begun = threading.Event()
        self.has_discarded = threading.Event()
        self.thread: threading.Thread | None = None
        self.discarded: list[object] = []
        self.discarded_on: list[threading.Thread] = []

    def run(self) -> object:
        self.thread = threading.current_thread()
        self.has_begun.set()
        assert self.gate.wait(PATIENCE_S)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def discard(self, result: object) -> None:
        self.discarded.append(result)
        self.discarded_on.append(threading.current_thread())
        self.has_discarded.set()

    def finish(self) -> None:
        """Open the gate, and block until the work's thread has ended."""
        assert self.has_begun.wait(PATIENCE_S)
        self.gate.set()
        assert self.thread is not None
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()

    async def start(self) -> object:
        return await run_abandonable(self.run, self.discard, name=NAME)


async def test_result_is_returned(failures: list[object]) -> None:
    """The result comes back to the awaiting task, and nothing is put away."""
    work = Work()
    work.gate.set()
    with anyio.fail_after(PATIENCE_S):
        assert await work.start() == "result"
    assert work.discarded == failures == []


async def test_work_runs_on_a_daemon_thread_of_its_name() -> None:
    """The thread is named, is not the loop's, and keeps no interpreter alive."""
    work = Work()
    work.gate.set()
    await work.start()
    assert work.thread is not None
    assert work.thread.name == NAME
    assert work.thread.daemon
    assert work.thread is not threading.current_thread()


@pytest.mark.parametrize(
    "error", [ValueError("no"), MemoryError(), KeyboardInterrupt(), SystemExit(3)]
)
async def test_error_is_raised_where_it_is_awaited(
    error: BaseException, failures: list[object]
) -> None:
    """Whatever the work raises leaves the await, and no thread dies of it."""
    work = Work(error)
    work.gate.set()
    with pytest.raises(type(error)) as caught:
        await work.start()
    assert caught.value is error
    assert work.discarded == failures == []


async def test_stop_iteration_does_not_end_the_coroutine() -> None:
    """StopIteration arrives as the cause of a RuntimeError."""
    work = Work(StopIteration(5))
    work.gate.set()
    with pytest.raises(RuntimeError, match="the work raised StopIteration") as caught:
        await work.start()
    assert caught.value.__cause__ is work.outcome


async def test_cancelled_while_the_work_runs(failures: list[object]) -> None:
    """Cancelling returns at once; the late result is put away once, on its thread."""
    work = Work()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.start)
        await wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert not work.gate.is_set()
    assert work.discarded == []
    work.finish()
    assert work.discarded == ["result"]
    assert work.discarded_on == [work.thread]
    assert failures == []


async def test_cancelled_after_the_work_ended(failures: list[object]) -> None:
    """A result that nobody has taken when the cancellation comes is put away once."""
    work = Work()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.start)
        await wait_all_tasks_blocked()
        work.finish()
        tasks.cancel_scope.cancel()
    assert work.discarded == ["result"]
    assert failures == []


async def test_cancelled_before_it_began() -> None:
    """Cancelled from the start, the work is begun and put away all the same."""
    work = Work()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await work.start()
    assert scope.cancelled_caught
    work.finish()
    assert work.discarded == ["result"]


@pytest.mark.parametrize("error", [ValueError("late"), SystemExit(1)])
async def test_late_error_is_dropped(
    error: BaseException, failures: list[object]
) -> None:
    """What abandoned work raises is dropped: there is nobody to tell."""
    work = Work(error)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.start)
        await wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    work.finish()
    assert work.discarded == failures == []


async def test_result_is_returned_or_put_away() -> None:
    """However completion and cancellation race, a result goes to exactly one place."""
    for number in range(200):
        work = Work(number)
        begun: list[Work] = []
        returned: list[object] = []

        async def keep(
            work: Work = work,
            begun: list[Work] = begun,
            returned: list[object] = returned,
        ) -> None:
            begun.append(work)
            returned.append(await work.start())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep)
            await anyio.lowlevel.checkpoint()
            work.gate.set()
            if number % 2:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        if begun:
            work.finish()
            assert returned + work.discarded == [number]


async def test_none_is_a_result_too() -> None:
    """A result of None is put away like any other."""
    work = Work(None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.start)
        await wait_all_tasks_blocked()
        work.finish()
        tasks.cancel_scope.cancel()
    assert work.discarded == [None]


async def test_many_at_once() -> None:
    """Each of a hundred concurrent works gives its own task its own result."""
    results: dict[int, int] = {}
    barrier = threading.Barrier(100)

    def work(number: int) -> Callable[[], int]:
        def run() -> int:
            barrier.wait(PATIENCE_S)
            return number

        return run

    async def keep(number: int) -> None:
        results[number] = await run_abandonable(work(number), print, name=NAME)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(keep, number)
    assert results == {number: number for number in range(100)}


@pytest.mark.parametrize("is_late", [True, False])
async def test_what_cannot_be_put_away_is_logged_and_the_cancellation_goes_on(
    failures: list[object], caplog: pytest.LogCaptureFixture, is_late: bool
) -> None:
    work = Work()

    def refuse(result: object) -> None:
        raise OSError("cannot be closed")

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                functools.partial(run_abandonable, work.run, refuse, name=NAME)
            )
            await wait_all_tasks_blocked()
            if not is_late:
                work.finish()
            scope.cancel()
    assert scope.cancelled_caught
    if is_late:
        work.finish()
    assert failures == []
    assert "cannot be closed" in caplog.text
