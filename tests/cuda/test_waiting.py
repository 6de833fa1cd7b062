"""Waits on the CUDA backend: what the driver is asked for them."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from accy_async.backends import StreamHandle
from accy_async.backends.cuda import CudaBackend, asking, waiting
from accy_async.backends.cuda.nativescanner import NativeScanner
from accy_async.backends.cuda.timeline import CudaTimeline
from accy_async.errors import DeviceError
from tests.cuda.fake import FakeDriver
from tests.cuda.test_launching import prepare


@pytest.fixture(params=["bindings", "machine code"])
def driver(driver: FakeDriver, request: pytest.FixtureRequest) -> FakeDriver:
    """One whose functions are called each way."""
    driver.tells_addresses = request.param == "machine code"
    return driver


def ask_for(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, nanoseconds: int
) -> None:
    """Have it ask again for so long."""
    monkeypatch.setattr(asking, "QUICK_NS", nanoseconds)
    scanner = backend._hub.scanner
    assert isinstance(scanner, NativeScanner)
    scanner._board.quick = nanoseconds


def quick_stream(backend: CudaBackend) -> StreamHandle:
    """A stream with a launch, whose waits have been ending within a turn."""
    stream = backend.create_stream()
    backend.submit_launch(prepare(backend, []), stream)
    line = backend._stream(stream).timeline
    assert isinstance(line, CudaTimeline)
    line.is_quick = True
    return stream


@pytest.mark.anyio
async def test_a_quick_wait_asks_the_driver_and_submits_no_flag(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    await backend.wait_stream(quick_stream(backend))
    assert driver.calls["cuStreamQuery"] == 1
    assert driver.calls["cuStreamWriteValue64"] == 0


@pytest.mark.anyio
@pytest.mark.parametrize("times", [1, 3])
async def test_a_quick_wait_asks_again_for_a_moment(
    backend: CudaBackend,
    driver: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
) -> None:
    """A loop may take its turn in less time than the device its kernel."""
    ask_for(backend, monkeypatch, 10**12)
    stream = quick_stream(backend)
    driver.answers["cuStreamQuery"] = [600] * times
    await backend.wait_stream(stream)
    assert driver.calls["cuStreamQuery"] == times + 1
    assert driver.calls["cuStreamWriteValue64"] == 0
    assert cast("CudaTimeline", backend._stream(stream).timeline).is_quick


@pytest.mark.anyio
@pytest.mark.parametrize("code", [600, 700])
async def test_a_quick_wait_that_was_none_is_told_by_a_flag(
    backend: CudaBackend,
    driver: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    """And so is the next one."""
    ask_for(backend, monkeypatch, 0)
    stream = quick_stream(backend)
    driver.answers["cuStreamQuery"] = [600, *(8 * [code])]
    await backend.wait_stream(stream)
    driver.answers.clear()
    line = cast("CudaTimeline", backend._stream(stream).timeline)
    assert driver.calls["cuStreamWriteValue64"] == 1
    assert not line.is_quick
    backend.submit_launch(prepare(backend, []), stream)
    await backend.wait_stream(stream)
    assert driver.calls["cuStreamWriteValue64"] == 2


@pytest.mark.anyio
async def test_a_flag_that_is_refused_is_told(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    stream = quick_stream(backend)
    line = cast("CudaTimeline", backend._stream(stream).timeline)
    line.is_quick = False
    driver.answers["cuStreamWriteValue64"] = [1]
    with pytest.raises(DeviceError, match="cuStreamWriteValue64"):
        await backend.wait_stream(stream)
    backend.submit_launch(prepare(backend, []), stream)
    await backend.wait_stream(stream)
    assert line.reached == line.submitted == 2
    assert driver.calls["cuStreamWriteValue64"] == 2


@pytest.mark.anyio
async def test_a_flag_that_was_refused_is_submitted_by_the_next_wait(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    """For the same point, too."""
    stream = quick_stream(backend)
    line = cast("CudaTimeline", backend._stream(stream).timeline)
    line.is_quick = False
    driver.answers["cuStreamWriteValue64"] = [1]
    with pytest.raises(DeviceError, match="cuStreamWriteValue64"):
        await backend.wait_stream(stream)
    assert line.flagged == 0
    await backend.wait_stream(stream)
    assert line.flagged == line.completed == 1
    assert driver.calls["cuStreamWriteValue64"] == 2


@pytest.mark.anyio
async def test_a_wait_for_a_lent_stream_covers_what_others_submitted(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    """Their work has no position: a flag behind it is what can be waited for."""
    stream = quick_stream(backend)
    backend.native_stream(stream)
    await backend.wait_stream(stream)
    assert driver.calls["cuStreamWriteValue64"] == 1


@pytest.mark.anyio
@pytest.mark.parametrize("was_asked", [False, True])
async def test_a_quick_wait_goes_on_without_its_stream(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, was_asked: bool
) -> None:
    """It was destroyed during the turn: so it was idle then."""
    stream = quick_stream(backend)
    if was_asked:
        await backend.wait_stream(stream)

    async def turn() -> None:
        if backend.is_alive(stream):
            backend.destroy(stream)

    monkeypatch.setattr(waiting, "due_turn", turn)
    await backend.wait_stream(stream)
    assert not backend.is_alive(stream)


def test_a_stream_that_is_being_asked_about_is_not_destroyed(
    backend: CudaBackend, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread, which would find it idle by now, has to wait for the answer."""
    line = cast("CudaTimeline", backend._stream(quick_stream(backend)).timeline)
    scanner = backend._hub.scanner
    assert isinstance(scanner, NativeScanner)
    ask_again = backend._ask
    held: list[bool] = []

    def try_lock() -> None:
        is_free = backend._questions.acquire(blocking=False)
        if is_free:
            backend._questions.release()
        held.append(not is_free)

    def ask(native: object) -> object:
        other = threading.Thread(target=try_lock)
        other.start()
        other.join()
        held.append(scanner._slots[line.slot].askers == 1)
        return ask_again(native)

    monkeypatch.setattr(backend, "_ask", ask)
    monkeypatch.setitem(driver._made, "cuStreamQuery", ask)
    assert backend._has_ended(line, line.submitted)
    assert held == [not driver.tells_addresses, driver.tells_addresses]
    held.clear()
    line.advance()
    assert line.is_idle
    assert held[0]


def test_a_destroyed_stream_is_asked_about_no_more(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    stream = quick_stream(backend)
    line = cast("CudaTimeline", backend._stream(stream).timeline)
    ask = backend._asking(line)
    assert ask() == 0
    backend.destroy(stream)
    driver.calls.clear()
    assert ask() == 600
    assert backend._query(line)
    assert driver.calls["cuStreamQuery"] == 0


def test_the_driver_is_not_asked_about_what_it_was_not_given_yet(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    """A thread in the midst of a submission: its position is there, its work is not."""
    stream = backend.create_stream()
    line = cast("CudaTimeline", backend._stream(stream).timeline)
    begun, go_on = threading.Event(), threading.Event()

    def submit() -> None:
        with backend._lock:
            line.advance()
            begun.set()
            go_on.wait(10.0)

    thread = threading.Thread(target=submit)
    thread.start()
    begun.wait(10.0)
    try:
        assert not backend.is_stream_idle(stream)
        assert not backend._has_ended(line, line.submitted)
        assert line.completed == 0
        assert driver.calls["cuStreamQuery"] == 0
    finally:
        go_on.set()
        thread.join()
    assert backend.is_stream_idle(stream)


@pytest.mark.anyio
async def test_a_wait_that_the_collector_drops_takes_no_lock(
    backend: CudaBackend, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread may have it already: the collector runs wherever it likes to."""
    stream = quick_stream(backend)
    monkeypatch.setattr(driver, "_cuStreamWriteValue64", lambda *_: ())
    line = backend._stream(stream).timeline
    assert isinstance(line, CudaTimeline)
    line.is_quick = False
    wait = backend.wait_stream(stream)
    wait.send(None)
    swept: list[bool] = []
    with monkeypatch.context() as patch:
        patch.setattr(backend._table, "sweep", lambda: swept.append(True))
        wait.close()
    assert not swept
    line.complete(line.submitted)


def test_an_interrupt_at_a_question_leaves_the_lock_as_it_was(
    backend: CudaBackend,
) -> None:
    """Where it is had by nobody, by this thread, and by another one."""
    real = backend._lock

    class Lock:
        release = real.release

        def acquire(self, *, blocking: bool) -> None:
            real.acquire(blocking=blocking)
            raise KeyboardInterrupt

    def ask() -> None:
        with pytest.raises(KeyboardInterrupt):
            backend._has_given_all()

    backend._lock = Lock()  # type: ignore[assignment]
    ask()
    assert not real._is_owned()  # type: ignore[attr-defined]
    with real:
        ask()
        assert real._is_owned()  # type: ignore[attr-defined]
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    backend._lock = real
    assert backend._has_given_all()


def test_an_interrupt_before_what_the_host_has_to_do_leaves_it_to_the_next(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend._hub, "expect", lambda line: None)  # nobody else does
    line = backend._stream(quick_stream(backend)).timeline
    assert isinstance(line, CudaTimeline)
    real = line._finishing

    class Lock:
        locked, __exit__ = real.locked, real.__exit__

        def acquire(self, *, blocking: bool) -> None:  # it would be had for good
            pytest.fail(f"an interrupt could come right behind it, {blocking=}")

        def __enter__(self) -> None:
            raise KeyboardInterrupt

    done: list[int] = []
    line._finishing = Lock()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        line.finish_with(line.submitted, lambda: done.append(1))
        line.completed  # noqa: B018
    line._finishing = real
    assert line.completed == line.submitted
    assert done == [1]
