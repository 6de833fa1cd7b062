"""Launches that get a flag at once, as the one before was waited for by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from accy_async.artifact import FixedLaunch
from accy_async.backends import LaunchRequest, StreamHandle
from accy_async.backends.cuda import CudaBackend, launching
from accy_async.backends.cuda.board import NativeLaunch
from accy_async.backends.cuda.objects import CudaStream, MachineLaunch
from accy_async.backends.cuda.timeline import CudaTimeline
from accy_async.errors import DeviceError, DeviceLost, InvalidStream
from tests.cuda.fake import FakeDriver
from tests.gpu import native

pytestmark = pytest.mark.anyio

ONE = FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1))
Launch = Callable[[], object]


@pytest.fixture
def driver(driver: FakeDriver) -> FakeDriver:
    driver.tells_addresses = True
    return driver


@pytest.fixture
def stream(backend: CudaBackend) -> StreamHandle:
    return backend.create_stream()


@pytest.fixture
def line(backend: CudaBackend, stream: StreamHandle) -> CudaTimeline:
    return cast("CudaTimeline", backend._stream(stream).timeline)


def request_for(backend: CudaBackend, stream: StreamHandle) -> LaunchRequest:
    artifact = native.artifact("empty")
    return LaunchRequest(
        artifact=artifact,
        loaded=backend.load_artifact(artifact),
        buffers=(),
        geometry=ONE,
        stream=stream,
    )


@pytest.fixture(params=["bound", "prepared"])
async def launch(
    backend: CudaBackend, stream: StreamHandle, request: pytest.FixtureRequest
) -> Launch:
    """Of each kind that machine code makes."""
    wanted = request_for(backend, stream)
    if request.param == "bound":
        return backend.bind_launch(wanted).submit
    prepared = backend.prepare_launch(wanted)
    for _ in range(16):
        backend.submit_launch(prepared, stream)
    await backend.wait_stream(stream)
    return lambda: backend.submit_launch(prepared, stream)


def asked(driver: FakeDriver) -> tuple[int, int]:
    """Flags, and questions about streams."""
    return driver.calls["cuStreamWriteValue64"], driver.calls["cuStreamQuery"]


@pytest.mark.parametrize("is_quick", [True, False])
async def test_what_is_awaited_one_by_one_is_flagged_as_it_is_launched(
    backend: CudaBackend,
    driver: FakeDriver,
    stream: StreamHandle,
    line: CudaTimeline,
    launch: Launch,
    is_quick: bool,
) -> None:
    """From the second on: nothing is asked of the driver by the wait."""
    line.is_quick = is_quick
    launch()
    await backend.wait_stream(stream)
    flags, questions = asked(driver)
    for _ in range(3):
        line.is_quick = is_quick
        launch()
        flags += 1
        assert asked(driver) == (flags, questions)
        assert line.flagged == line.submitted == line.reached
        await backend.wait_stream(stream)
    assert asked(driver) == (flags, questions)


async def test_what_is_launched_in_a_row_is_not_flagged(
    backend: CudaBackend, driver: FakeDriver, stream: StreamHandle, launch: Launch
) -> None:
    """But for the first, if the last wait was for one."""
    launch()
    await backend.wait_stream(stream)
    flags, _ = asked(driver)
    for _ in range(5):
        launch()
    assert asked(driver)[0] == flags + 1
    await backend.wait_stream(stream)
    assert asked(driver)[0] == flags + 2
    for _ in range(5):
        launch()
    assert asked(driver)[0] == flags + 2


async def test_what_is_timed_has_no_flag_within(
    backend: CudaBackend, driver: FakeDriver, stream: StreamHandle, launch: Launch
) -> None:
    """Between two events it would count."""
    begun, ended = (backend.create_event(timing=True) for _ in range(2))
    launch()
    await backend.wait_stream(stream)
    flags, _ = asked(driver)
    backend.record_event(begun, stream)
    launch()
    backend.record_event(ended, stream)
    assert asked(driver)[0] == flags
    await backend.wait_event(ended)
    assert asked(driver)[0] == flags + 1


async def test_a_flag_that_is_refused_is_the_wait_s_to_submit(
    backend: CudaBackend,
    driver: FakeDriver,
    stream: StreamHandle,
    line: CudaTimeline,
    launch: Launch,
) -> None:
    launch()
    await backend.wait_stream(stream)
    line.is_quick = False
    driver.answers["cuStreamWriteValue64"] = [1, 1]
    launch()
    assert line.flagged < line.submitted
    with pytest.raises(DeviceError, match="cuStreamWriteValue64"):
        await backend.wait_stream(stream)
    await backend.wait_stream(stream)
    assert line.flagged == line.completed == line.submitted


@pytest.mark.parametrize("code", [201, 1])
async def test_a_refused_launch_has_no_flag(
    backend: CudaBackend,
    driver: FakeDriver,
    stream: StreamHandle,
    line: CudaTimeline,
    launch: Launch,
    code: int,
) -> None:
    """Nor has the one that is made in its place, where the context was another."""
    launch()
    await backend.wait_stream(stream)
    flags, _ = asked(driver)
    driver.answers["cuLaunchKernelEx"] = [code]
    if code == 201:
        launch()
    else:
        with pytest.raises(DeviceError, match="cuLaunchKernelEx"):
            launch()
    launch()
    assert asked(driver)[0] == flags
    assert line.flagged < line.submitted
    await backend.wait_stream(stream)
    assert line.completed == line.submitted


@pytest.mark.parametrize("kind", ["bound", "prepared"])
async def test_the_flag_of_an_interrupted_launch_is_not_the_next_one_s(
    backend: CudaBackend,
    stream: StreamHandle,
    line: CudaTimeline,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """It would take the word back to where it was."""
    records: list[NativeLaunch] = []
    interrupts: list[int] = []

    def launching(record: NativeLaunch, keep: object) -> Callable[[], int]:
        records.append(record)

        def call() -> int:
            if interrupts:
                assert record.position == interrupts.pop()
                raise KeyboardInterrupt
            return 0

        return call

    wanted = request_for(backend, stream)
    with monkeypatch.context() as patch:
        patch.setattr(backend._hub.scanner, "launching", launching)
        if kind == "bound":
            submit: Launch = backend.bind_launch(wanted).submit
        else:
            prepared = backend.prepare_launch(wanted)
            for _ in range(16):
                backend.submit_launch(prepared, stream)

            def submit() -> object:
                return backend.submit_launch(prepared, stream)

    line.expected = line.submitted + 1
    interrupts.append(line.expected)
    with pytest.raises(KeyboardInterrupt):
        submit()
    assert not interrupts
    assert [record.position for record in records] == [0]
    assert backend._lock.acquire(blocking=False)
    backend._lock.release()


async def test_an_interrupt_on_the_way_to_another_stream_leaves_none_half_meant(
    backend: CudaBackend,
    driver: FakeDriver,
    stream: StreamHandle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next launch goes where it is to go, and so does its flag."""
    prepared = backend.prepare_launch(request_for(backend, stream))
    for _ in range(16):
        backend.submit_launch(prepared, stream)

    def aim(self: MachineLaunch, on: CudaStream) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MachineLaunch, "aim", aim)
        with pytest.raises(KeyboardInterrupt):
            backend.submit_launch(prepared, backend.create_stream())
    backend.submit_launch(prepared, stream)
    assert len({launched.stream for launched in driver.launches}) == 1


async def test_a_run_is_flagged_from_the_first_on(
    backend: CudaBackend, driver: FakeDriver, stream: StreamHandle, line: CudaTimeline
) -> None:
    """Somebody waits for it; what is asked of the driver is the launch and the flag."""
    launcher = backend.bind_launch(request_for(backend, stream))
    for is_quick in (False, True, False, True):
        line.is_quick = is_quick
        launcher.submit()  # no flag
        flags, questions = asked(driver)
        await launcher.run()
        assert asked(driver) == (flags + 1, questions)
        assert line.completed == line.submitted


async def test_a_run_through_the_bindings_asks_or_flags_as_a_wait_does(
    backend: CudaBackend, driver: FakeDriver, stream: StreamHandle, line: CudaTimeline
) -> None:
    driver.tells_addresses = False
    launcher = backend.bind_launch(request_for(backend, stream))
    line.is_quick = True
    await launcher.run()
    assert asked(driver) == (0, 1)
    line.is_quick = False
    await launcher.run()
    assert asked(driver) == (1, 1)


async def test_a_run_on_a_stream_that_is_lent_waits_for_its_own_launch(
    backend: CudaBackend, driver: FakeDriver, stream: StreamHandle, line: CudaTimeline
) -> None:
    launcher = backend.bind_launch(request_for(backend, stream))
    line.is_quick = True
    backend.native_stream(stream)
    await launcher.run()
    assert asked(driver) == (1, 0)
    assert line.completed == line.submitted


@pytest.mark.parametrize("is_quick", [True, False])
async def test_what_a_run_raises(
    backend: CudaBackend,
    driver: FakeDriver,
    stream: StreamHandle,
    line: CudaTimeline,
    monkeypatch: pytest.MonkeyPatch,
    is_quick: bool,
) -> None:
    """What the driver refuses, a loss during its turn, and what it uses being gone."""
    launcher = backend.bind_launch(request_for(backend, stream))
    driver.answers["cuLaunchKernelEx"] = [1]
    line.is_quick = is_quick
    with pytest.raises(DeviceError, match="cuLaunchKernelEx"):
        await launcher.run()
    await launcher.run()

    async def turn() -> None:
        backend._lose(DeviceError("gone", code=700, call="cuStreamSynchronize"))

    line.is_quick = True
    with monkeypatch.context() as patch:
        patch.setattr(launching, "due_turn", turn)
        with pytest.raises(DeviceLost):
            await launcher.run()
    with pytest.raises(DeviceLost):
        await launcher.run()


async def test_a_run_of_what_is_destroyed_is_refused(
    backend: CudaBackend, stream: StreamHandle
) -> None:
    launcher = backend.bind_launch(request_for(backend, stream))
    await launcher.run()
    backend.destroy(stream)
    with pytest.raises(InvalidStream):
        await launcher.run()
