"""Requests that come again: packed once, and kept as long as somebody holds them."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from types import FrameType

import attrs
import pytest

from accy_async.backends import BufferBinding, LaunchRequest, RecordingBackend
from accy_async.backends.contract import launches
from accy_async.errors import (
    InvalidBuffer,
    InvalidStream,
    LaunchArgumentMismatch,
    SessionClosed,
)
from tests.backends.test_launchers import request_of


class Counting(RecordingBackend):
    """One that counts how often a launch is packed."""

    packed = 0

    def _prepare(self, *arguments: object) -> object:
        self.packed += 1
        return super()._prepare(*arguments)  # type: ignore[arg-type]


def python_calls(function: Callable[[], object]) -> int:
    """How many functions of Python a call of this one calls."""
    count = 0

    def look(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    gc.disable()  # it calls functions of others
    sys.setprofile(look)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.fixture
def backend() -> Counting:
    return Counting()


@pytest.fixture
def request_(backend: Counting) -> LaunchRequest:
    buffers = [backend.allocate_buffer(8) for _ in range(2)]
    return request_of(backend, buffers, backend.create_stream())


def test_a_request_that_comes_again_is_packed_when_it_does_and_not_again(
    backend: Counting, request_: LaunchRequest
) -> None:
    assert [backend.launch(request_) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert backend.packed == 2
    assert len(backend.launches) == 5
    backend.launch(attrs.evolve(request_))  # equal, but another
    backend.launch(attrs.evolve(request_, stream=None))
    assert backend.packed == 4


def test_a_request_that_comes_again_costs_one_call_more_than_a_prepared_launch(
    backend: Counting, request_: LaunchRequest
) -> None:
    prepared, stream = backend.prepare_launch(request_), request_.stream
    ways: list[Callable[[], object]] = [
        lambda: backend.submit_launch(prepared, stream),
        lambda: backend.launch(request_),
    ]
    counts = []
    for way in ways:
        for _ in range(3):
            way()
        counts.append(python_calls(way))
    assert counts[1] == counts[0] + 1


def test_a_request_is_checked_but_not_packed_once_something_was_destroyed(
    backend: Counting, request_: LaunchRequest
) -> None:
    for _ in range(3):
        backend.launch(request_)
    backend.destroy(backend.allocate_buffer(8))
    backend.launch(request_)
    assert backend.packed == 2
    alive = (request_.buffers[0], request_.buffers[0])
    backend.destroy(request_.buffers[1].handle)
    for _ in range(2):
        with pytest.raises(InvalidBuffer, match="was destroyed"):
            backend.launch(request_)
        assert not backend._table.kept
    assert len(backend.launches) == 4
    assert backend.launch(attrs.evolve(request_, buffers=alive)) == 5


def test_what_a_kept_request_uses_is_in_use(
    backend: Counting, request_: LaunchRequest
) -> None:
    backend.hold(request_.stream)
    for _ in range(4):
        backend.launch(request_)
    backend.destroy(request_.buffers[0].handle)
    assert backend.live_objects()["buffers"] == 2, "retired, not freed"
    backend.release(request_.stream)
    assert backend.live_objects()["buffers"] == 1


def test_a_request_that_nobody_holds_is_not_kept_nor_what_owns_its_buffers(
    backend: Counting, request_: LaunchRequest
) -> None:
    class Owner:
        pass

    for times in (1, 3):
        owner = Owner()
        buffers = tuple(attrs.evolve(one, owner=owner) for one in request_.buffers)
        request = attrs.evolve(request_, buffers=buffers)
        for _ in range(times):
            backend.launch(request)
        assert len(backend._table.kept) == 1
        gone = weakref.ref(owner)
        del owner, buffers, request
        assert gone() is None
        assert not backend._table.kept


def test_a_closed_backend_keeps_no_requests(
    backend: Counting, request_: LaunchRequest
) -> None:
    backend.launch(request_)
    backend.launch(request_)
    backend.close()
    assert not backend._table.kept
    with pytest.raises(SessionClosed):
        backend.launch(request_)


def test_a_request_may_be_launched_on_a_stream_that_is_destroyed_once(
    backend: Counting, request_: LaunchRequest
) -> None:
    for _ in range(3):
        backend.launch(request_)
    assert request_.stream is not None
    backend.destroy(request_.stream)
    with pytest.raises(InvalidStream):
        backend.launch(request_)
    assert backend.launch(attrs.evolve(request_, stream=None)) == 1


def test_no_more_than_some_requests_are_kept(
    backend: Counting, request_: LaunchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "_REQUESTS_KEPT", 4)
    held = [attrs.evolve(request_) for _ in range(9)]
    for _ in range(2):
        for one in held:
            backend.launch(one)
            assert len(backend._table.kept) <= 4


def test_a_refused_request_is_not_kept(
    backend: Counting, request_: LaunchRequest
) -> None:
    missing = attrs.evolve(request_, buffers=request_.buffers[:1])
    for _ in range(2):
        with pytest.raises(LaunchArgumentMismatch):
            backend.launch(missing)
    gone = backend.allocate_buffer(8)
    backend.destroy(gone)
    binding = BufferBinding(handle=gone)
    dead = attrs.evolve(request_, buffers=(request_.buffers[0], binding))
    with pytest.raises(InvalidBuffer):
        backend.launch(dead)
    assert not backend._table.kept
