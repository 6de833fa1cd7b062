"""Graphs launched again and again: by one call, with a flag where they are awaited."""

from __future__ import annotations

import ctypes
import signal
from contextlib import closing
from typing import cast

import numpy as np
import pytest
import trio

from accy_async.backends import BufferHandle, StreamHandle
from accy_async.backends.cuda import CudaBackend, waiting
from accy_async.backends.cuda.timeline import CudaTimeline
from accy_async.backends.devicegraph import (
    GraphFill,
    GraphNode,
    GraphRequest,
    GraphUpload,
)
from accy_async.backends.exchange import Arrival
from accy_async.backends.recording import RecordingBackend
from accy_async.errors import (
    AccyError,
    DeviceError,
    DeviceLost,
    InvalidGraph,
    InvalidStream,
    SessionClosed,
)
from tests.cuda.fake import FakeDriver
from tests.cuda.test_graphs import Parts


@pytest.fixture(params=["bindings", "machine code"])
def driver(driver: FakeDriver, request: pytest.FixtureRequest) -> FakeDriver:
    """One whose functions are called each way."""
    driver.tells_addresses = request.param == "machine code"
    return driver


@pytest.fixture
def parts(backend: CudaBackend) -> Parts:
    return Parts(backend)


@pytest.fixture
def stream(backend: CudaBackend) -> StreamHandle:
    return backend.create_stream()


def request_for(parts: Parts, value: int = 1) -> GraphRequest:
    launch = GraphNode(parts.launch(parts.one))
    return GraphRequest(
        (launch, GraphNode(GraphFill(parts.one, bytes([value]), 64), (0,)))
    )


def line_of(backend: CudaBackend, stream: StreamHandle) -> CudaTimeline:
    return cast("CudaTimeline", backend._stream(stream).timeline)


def test_a_launch_is_one_call_of_the_driver_s_and_two_where_it_is_awaited(
    backend: CudaBackend, driver: FakeDriver, parts: Parts, stream: StreamHandle
) -> None:
    line = line_of(backend, stream)
    launch = backend.bind_graph(backend.create_graph(request_for(parts)), stream)
    before = driver.calls.copy()
    assert launch(False) == line.submitted == 1
    assert driver.calls - before == {"cuGraphLaunch": 1}
    assert launch(True) == line.submitted == 2
    calls = driver.calls - before
    if driver.tells_addresses:
        assert calls == {"cuGraphLaunch": 2, "cuStreamWriteValue64": 1}
        assert line.flagged == 2
        word = ctypes.c_uint64.from_address(line.word_address)
        assert word.value == 2
    else:  # the wait sees to it
        assert calls == {"cuGraphLaunch": 2}
        assert line.flagged == 0
    assert line.has_reached(2)


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_refused_launch_is_told_and_has_no_flag(
    backend: CudaBackend,
    driver: FakeDriver,
    parts: Parts,
    stream: StreamHandle,
    is_awaited: bool,
) -> None:
    launch = backend.bind_graph(backend.create_graph(request_for(parts)), stream)
    driver.answers["cuGraphLaunch"] = [801, 1]
    for kind in (AccyError, DeviceError):
        with pytest.raises(kind, match="cuGraphLaunch"):
            launch(is_awaited)
    assert driver.calls["cuStreamWriteValue64"] == 0
    launch(is_awaited)
    assert backend._lock.acquire(blocking=False)
    backend._lock.release()


@pytest.mark.parametrize("is_bound", [False, True])
def test_nothing_is_at_the_position_of_a_refused_launch(
    backend: CudaBackend,
    driver: FakeDriver,
    parts: Parts,
    stream: StreamHandle,
    is_bound: bool,
) -> None:
    """What was there before it is not taken for new."""
    graph = backend.create_graph(request_for(parts))
    launch = backend.bind_graph(graph, stream)
    work = line_of(backend, stream).journal.work
    driver.answers["cuGraphLaunch"] = [1]
    work[1] = ()
    with pytest.raises(DeviceError, match="cuGraphLaunch"):
        if is_bound:
            launch(False)
        else:
            backend.launch_graph(graph, stream)
    assert work[1] is None
    launch(False)
    assert work[2] is not None


def test_a_flag_takes_no_word_back(
    backend: CudaBackend, driver: FakeDriver, parts: Parts, stream: StreamHandle
) -> None:
    """Another thread may have submitted a later one since somebody asked for it."""
    line = line_of(backend, stream)
    word = ctypes.c_uint64.from_address(line.word_address)
    launch = backend.bind_graph(backend.create_graph(request_for(parts)), stream)
    for _ in range(3):
        launch(False)
    backend._flag(line, 2)
    assert word.value == line.flagged == 3, "all there is"
    launch(True)
    line.request(4)
    backend._flag(line, 3)
    assert word.value == line.flagged == 4
    assert driver.calls["cuStreamWriteValue64"] == 2


@pytest.mark.anyio
async def test_a_refused_flag_is_submitted_again_by_the_wait(
    backend: CudaBackend, driver: FakeDriver, parts: Parts, stream: StreamHandle
) -> None:
    launch = backend.bind_graph(backend.create_graph(request_for(parts)), stream)
    driver.answers["cuStreamWriteValue64"] = [1, 1]
    position = launch(True)
    if not driver.tells_addresses:
        assert driver.answers["cuStreamWriteValue64"].pop()
    assert line_of(backend, stream).flagged == 0
    with pytest.raises(DeviceError, match="cuStreamWriteValue64"):
        await backend.wait_stream(stream, position)
    launch(True)
    await backend.wait_stream(stream)


@pytest.mark.anyio
async def test_a_quick_wait_reads_the_word_of_what_has_a_flag(
    backend: CudaBackend, driver: FakeDriver, parts: Parts, stream: StreamHandle
) -> None:
    line = line_of(backend, stream)
    launch = backend.bind_graph(backend.create_graph(request_for(parts)), stream)
    line.is_quick = True
    for _ in range(3):
        await backend.wait_stream(stream, launch(True))
    assert line.is_quick
    asked = 0 if driver.tells_addresses else 3
    assert driver.calls["cuStreamQuery"] == asked
    assert driver.calls["cuStreamWriteValue64"] == 3 - asked


@pytest.mark.anyio
async def test_a_flagged_end_that_is_not_quick_is_polled_for(
    backend: CudaBackend,
    driver: FakeDriver,
    parts: Parts,
    stream: StreamHandle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no question to the driver, and no second flag."""
    driver.tells_addresses = True
    line = line_of(backend, stream)
    launch = backend.bind_graph(backend.create_graph(request_for(parts)), stream)
    line.is_quick = True
    spins: list[int] = []

    def spin(address: int, awaited: int, limit_ns: int) -> int:
        spins.append(limit_ns)
        if len(spins) == 2:
            word.value = awaited
        return word.value >= awaited

    monkeypatch.setattr(line, "_spin", spin)
    word = ctypes.c_uint64.from_address(line.word_address)
    position = launch(True)
    word.value = 0  # the device is not that far
    await backend.wait_stream(stream, position)
    assert len(spins) == 2
    assert not line.is_quick
    assert driver.calls["cuStreamQuery"] == 0
    assert driver.calls["cuStreamWriteValue64"] == 1


@pytest.mark.anyio
async def test_a_device_that_is_lost_during_the_turn_is_told(
    backend: CudaBackend,
    parts: Parts,
    stream: StreamHandle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = backend.bind_graph(backend.create_graph(request_for(parts)), stream)
    line_of(backend, stream).is_quick = True

    async def turn() -> None:
        backend._lose(DeviceError("gone", code=700, call="cuStreamSynchronize"))

    position = launch(True)
    monkeypatch.setattr(waiting, "due_turn", turn)
    with pytest.raises(DeviceLost):
        await backend.wait_stream(stream, position)
    with pytest.raises(DeviceLost):
        launch(True)


def test_what_was_destroyed_is_not_launched(
    backend: CudaBackend, driver: FakeDriver, parts: Parts
) -> None:
    streams = [backend.create_stream() for _ in range(3)]
    graphs = [backend.create_graph(request_for(parts)) for _ in range(2)]
    first = backend.bind_graph(graphs[0], streams[0])
    other = backend.bind_graph(graphs[0], streams[1])
    gone = backend.bind_graph(graphs[1], streams[2])
    for launch in (first, other, gone):
        launch(True)
    backend.destroy(streams[1])
    backend.destroy(graphs[1])
    with pytest.raises(InvalidStream):
        other(True)
    with pytest.raises(InvalidGraph):
        gone(False)
    launched = driver.calls["cuGraphLaunch"]
    first(True)
    backend.destroy(parts.one)
    with pytest.raises(InvalidGraph, match="which it uses, was destroyed"):
        first(True)
    with pytest.raises(InvalidGraph):
        backend.bind_graph(graphs[1], streams[0])
    with pytest.raises(InvalidStream):
        backend.bind_graph(graphs[0], streams[1])
    backend.close()
    with pytest.raises(SessionClosed):
        first(True)
    assert driver.calls["cuGraphLaunch"] == launched + 1


def test_a_changed_graph_is_launched_as_it_is_now(
    backend: CudaBackend, parts: Parts, stream: StreamHandle
) -> None:
    """And what it uses now is in use by it, what it used before no further."""
    graph = backend.create_graph(request_for(parts))
    launch = backend.bind_graph(graph, stream)
    launch(False)
    changed = GraphRequest(
        (
            GraphNode(parts.launch(parts.other)),
            GraphNode(GraphFill(parts.other, b"\2", 64), (0,)),
        )
    )
    assert backend.update_graph(graph, changed)
    launch(False)
    assert uses_of(backend, parts.one) == [1]
    assert uses_of(backend, parts.other) == [2]
    backend.destroy(parts.other)
    with pytest.raises(InvalidGraph):
        launch(False)


def test_what_arrives_anew_is_waited_for_once_on_each_stream(
    backend: CudaBackend,
    driver: FakeDriver,
    parts: Parts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As what another library had between two launches does."""
    graph = backend.create_graph(request_for(parts))
    launches = [backend.bind_graph(graph, backend.create_stream()) for _ in range(2)]
    for launch in launches:
        launch(True)
    waits = driver.calls["cuStreamWaitEvent"]
    with monkeypatch.context() as patch:
        patch.setattr(Arrival, "is_past", False)  # the device takes its time
        backend._arrive(backend._table.get(parts.one), backend._open_exchange())
        for launch in launches * 2:
            launch(True)
    assert driver.calls["cuStreamWaitEvent"] == waits + 2


def test_no_interrupt_comes_within_a_launch_on_trio(
    backend: CudaBackend,
    parts: Parts,
    stream: StreamHandle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for all operations of a device: it comes where the task awaits next."""
    launch = backend.bind_graph(backend.create_graph(request_for(parts)), stream)
    make_current = backend._context.make_current

    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        make_current()

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(backend._context, "make_current", interrupted)
            other = backend.bind_graph(backend.create_graph(request_for(parts)), stream)
        position = other(True)
        with pytest.raises(KeyboardInterrupt):
            await trio.lowlevel.checkpoint()
        assert launch(True) == position + 1

    # A process that was begun in the background may ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        trio.run(main)
    finally:
        signal.signal(signal.SIGINT, before)


def uses_of(backend: CudaBackend, buffer: BufferHandle) -> list[int]:
    """Up to where streams that are not past it use a buffer."""
    return [mark.position for mark in backend._table.get(buffer).last_uses()]


def test_what_a_bound_graph_uses_is_freed_behind_its_launch(
    backend: CudaBackend,
    driver: FakeDriver,
    parts: Parts,
    stream: StreamHandle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = backend.create_graph(request_for(parts))
    launch = backend.bind_graph(graph, stream)
    monkeypatch.setitem(driver._made, "cuStreamWriteValue64", lambda *_: (0,))
    position = launch(True)
    driver.answers["cuStreamQuery"] = 100 * [600]
    backend.destroy(graph)
    assert driver.calls["cuGraphExecDestroy"] == 0
    word = ctypes.c_uint64.from_address(line_of(backend, stream).word_address)
    word.value = position
    assert backend._table.sweep() == 1
    assert driver.calls["cuGraphExecDestroy"] == 1


def test_a_graph_that_copies_from_an_array_reads_it_each_time(
    backend: CudaBackend, driver: FakeDriver, parts: Parts, stream: StreamHandle
) -> None:
    """It has more to do for a launch, and is launched as ever."""
    array = np.zeros(64, np.uint8)
    graph = backend.create_graph(
        GraphRequest((GraphNode(GraphUpload(array, parts.one)),))
    )
    launch = backend.bind_graph(graph, stream)
    assert [launch(True), launch(False)] == [1, 2]
    assert driver.calls["cuGraphLaunch"] == 2
    assert line_of(backend, stream).flagged == 2


def test_other_backends_launch_as_ever() -> None:
    with closing(RecordingBackend()) as backend:
        buffer, stream = backend.allocate_buffer(64), backend.create_stream()
        fill = GraphNode(GraphFill(buffer, b"\3", 64))
        graph = backend.create_graph(GraphRequest((fill,)))
        launch = backend.bind_graph(graph, stream)
        assert launch(True) < launch(False) == backend.mark(stream).position
        backend.destroy(graph)
        with pytest.raises(InvalidGraph):
            launch(True)
