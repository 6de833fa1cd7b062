"""Requests that come again: worked out once, as long as nothing was destroyed."""

from __future__ import annotations

import attrs
import pytest

from accy_async.backends import BufferBinding, LaunchRequest, RecordingBackend
from accy_async.backends.contract import launches
from accy_async.errors import InvalidBuffer, LaunchArgumentMismatch, SessionClosed
from tests.backends.test_launchers import request_of


class Counting(RecordingBackend):
    """One that counts how often a launch is packed."""

    packed = 0

    def _prepare(self, *arguments: object) -> object:
        self.packed += 1
        return super()._prepare(*arguments)  # type: ignore[arg-type]


@pytest.fixture
def backend() -> Counting:
    return Counting()


@pytest.fixture
def request_(backend: Counting) -> LaunchRequest:
    buffers = [backend.allocate_buffer(8) for _ in range(2)]
    return request_of(backend, buffers, backend.create_stream())


def test_a_request_that_comes_again_is_packed_once(
    backend: Counting, request_: LaunchRequest
) -> None:
    assert [backend.launch(request_) for _ in range(3)] == [1, 2, 3]
    assert backend.packed == 1
    assert len(backend.launches) == 3
    backend.launch(attrs.evolve(request_))  # equal, but another
    backend.launch(attrs.evolve(request_, stream=None))
    assert backend.packed == 3


def test_a_request_is_checked_anew_once_something_was_destroyed(
    backend: Counting, request_: LaunchRequest
) -> None:
    backend.launch(request_)
    other = backend.allocate_buffer(8)
    backend.destroy(other)
    assert not backend._table.kept, "what it holds is not kept alive by that"
    backend.launch(request_)
    assert backend.packed == 2
    backend.destroy(request_.buffers[1].handle)
    with pytest.raises(InvalidBuffer, match="was destroyed"):
        backend.launch(request_)
    backend.close()
    with pytest.raises(SessionClosed):
        backend.launch(request_)


def test_no_more_than_some_requests_are_kept(
    backend: Counting, request_: LaunchRequest
) -> None:
    for _ in range(3 * launches._REQUESTS_KEPT):
        backend.launch(attrs.evolve(request_))
        assert len(backend._table.kept) <= launches._REQUESTS_KEPT


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
