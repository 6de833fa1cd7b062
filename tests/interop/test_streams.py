"""Streams of other libraries taken, and ours given to them."""

from __future__ import annotations

import ctypes
import weakref

import anyio
import pytest

import accy_async
from accy_async.backends import StreamHandle
from accy_async.backends.recording import RecordingBackend
from accy_async.errors import (
    ExchangeRefused,
    InvalidStream,
    InvalidType,
    UnsupportedOperation,
)
from accy_async.interop.streams import NativeStream, stream_number

pytestmark = pytest.mark.anyio


class Speaks:
    """A stream with ``__cuda_stream__``."""

    def __init__(self, *answer: object) -> None:
        self.answer = answer

    def __cuda_stream__(self) -> object:
        return self.answer


class Has:
    """A stream as some library keeps it."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


@pytest.mark.parametrize(
    ("given", "number"),
    [
        (0x55, 0x55),
        (0, 1),
        (1, 1),
        (Speaks(0, 0x55), 0x55),
        (Speaks(0, 0), 1),
        (Has(cuda_stream=0x55), 0x55),
        (Has(cuda_stream=0), 1),
        (Has(ptr=0x55), 0x55),
        (Has(handle=ctypes.c_void_p(0x55)), 0x55),
        (Has(handle=ctypes.c_void_p(0)), 1),
        (NativeStream(0x55), 0x55),
    ],
)
def test_numbers_of_streams(given: object, number: int) -> None:
    assert stream_number(given) == number


@pytest.mark.parametrize("given", [None, True, -1, 1.5, "s", object(), Has(ptr="x")])
def test_what_is_no_stream_is_refused(given: object) -> None:
    with pytest.raises(InvalidType, match="an object with __cuda_stream__"):
        stream_number(given)


def test_later_versions_are_refused() -> None:
    with pytest.raises(ExchangeRefused, match="version 1 of __cuda_stream__"):
        stream_number(Speaks(1, 0x55))


def test_ours_speaks_the_protocol() -> None:
    native = NativeStream(0x1234)
    assert native.__cuda_stream__() == (0, 0x1234)
    assert "0x1234" in repr(native)


async def test_anothers_stream_is_used_and_kept() -> None:
    backend = RecordingBackend()
    theirs = Speaks(0, 0x55)
    gone = weakref.ref(theirs)
    async with accy_async.open_session(backend) as session:
        stream = session.adopt_stream(theirs)
        del theirs
        assert gone() is not None
        buffer = session.backend.allocate_buffer(4)
        session.backend.fill_buffer(buffer, b"\0", stream=stream)
        event = session.backend.create_event()
        session.backend.record_event(event, stream)
        await session.backend.wait_event(event)
        await session.backend.wait_stream(stream)
        assert session.native_stream(stream).handle == 0x55
        assert session.live_objects()["streams"] == 1
    assert gone() is None
    assert not any(session.live_objects().values())


def test_handles_of_ours_speak_the_protocol() -> None:
    backend = RecordingBackend()
    stream = backend.create_stream()
    number = backend.native_stream(stream).handle
    assert stream.__cuda_stream__() == (0, number)
    assert stream_number(stream) == number
    backend.destroy(stream)
    with pytest.raises(InvalidStream, match="was destroyed"):
        stream.__cuda_stream__()
    with pytest.raises(InvalidStream, match="its backend is not there"):
        StreamHandle(id=1, backend="cuda").__cuda_stream__()
    backend.close()


async def test_each_threads_default_stream_is_refused() -> None:
    async with accy_async.open_session(RecordingBackend()) as session:
        with pytest.raises(ExchangeRefused, match="per-thread default stream"):
            session.adopt_stream(2)


async def test_devices_without_a_driver_have_none() -> None:
    async with accy_async.open_session("cpu") as session:
        with pytest.raises(UnsupportedOperation, match="takes no streams"):
            session.adopt_stream(5)
        with pytest.raises(UnsupportedOperation, match="has no streams"):
            session.native_stream()


async def test_waits_for_a_lent_stream_cover_what_others_submit() -> None:
    backend = RecordingBackend()
    async with accy_async.open_session(backend) as session:
        async with session.stream() as stream:
            first = backend.mark(stream)
            assert backend.mark(stream).position == first.position
            session.native_stream(stream)
            assert backend.mark(stream).position == first.position + 1
            backend.hold(stream)  # as another library's kernel would
            with anyio.move_on_after(0.01) as scope:
                await backend.wait_stream(stream)
            assert scope.cancelled_caught
            backend.release(stream)
            await backend.wait_stream(stream)
        await backend.wait_device()


async def test_a_borrowed_stream_is_waited_for_only_where_it_is_named() -> None:
    backend = RecordingBackend()
    async with accy_async.open_session(backend) as session:
        stream = session.adopt_stream(0x55)
        backend.hold(stream)
        await session.backend.wait_device()
        with anyio.move_on_after(0.01) as scope:
            await session.backend.wait_stream(stream)
        assert scope.cancelled_caught
        backend.release(stream)
