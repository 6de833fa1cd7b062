"""What is no size, no handle, no request: refused by a backend before it is used.

A copy of -1 bytes is one of all memory to the processor that carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from accy_async.backends import Backend, RecordingBackend
from accy_async.backends.cpu import CpuBackend
from accy_async.errors import InvalidBuffer, InvalidType, InvalidValue

NO_INTEGERS = (True, 1.0, float("nan"), "4", b"4", (4,), np.float32(4), object())
NO_HANDLES: tuple[Any, ...] = (None, 1, 1.5, "buffer", b"1", (), [1], {}, object())

SIZES: dict[str, Callable[[Backend, Any, Any, Any], object]] = {
    "read_buffer.byte_size": lambda b, one, other, size: b.read_buffer(
        one, bytearray(16), byte_size=size
    ),
    "read_buffer.offset_bytes": lambda b, one, other, size: b.read_buffer(
        one, bytearray(4), offset_bytes=size
    ),
    "write_buffer.offset_bytes": lambda b, one, other, size: b.write_buffer(
        one, b"1234", offset_bytes=size
    ),
    "copy_buffer.byte_size": lambda b, one, other, size: b.copy_buffer(
        one, other, byte_size=size
    ),
    "fill_buffer.byte_size": lambda b, one, other, size: b.fill_buffer(
        one, b"\1", byte_size=size
    ),
}

HANDLES: dict[str, Callable[[Backend, Any, Any], object]] = {
    "write": lambda b, one, given: b.write_buffer(given, b"1"),
    "read": lambda b, one, given: b.read_buffer(given, bytearray(1)),
    "copy from": lambda b, one, given: b.copy_buffer(given, one),
    "copy to": lambda b, one, given: b.copy_buffer(one, given),
    "fill": lambda b, one, given: b.fill_buffer(given, b"\1"),
    "record": lambda b, one, given: b.record_event(given),
    "wait": lambda b, one, given: b.stream_wait_event(None, given),
    "elapsed": lambda b, one, given: b.elapsed_ns(given, given),
    "destroy": lambda b, one, given: b.destroy(given),
    "launch": lambda b, one, given: b.launch(given),
    "prepare": lambda b, one, given: b.prepare_launch(given),
    "load": lambda b, one, given: b.load_artifact(given),
    "create": lambda b, one, given: b.create_artifact(given),
}


@pytest.fixture(params=[RecordingBackend, CpuBackend])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made: Backend = request.param()
    yield made
    made.close()


@pytest.mark.parametrize("call", SIZES)
def test_what_is_no_number_of_bytes_is_submitted_nowhere(
    backend: Backend, call: str
) -> None:
    one, other = backend.allocate_buffer(16), backend.allocate_buffer(16)
    before = backend.mark().position
    for wrong in NO_INTEGERS:
        with pytest.raises(InvalidType, match=call):
            SIZES[call](backend, one, other, wrong)
    for wrong in (-1, -(2**63), np.int64(-1)):
        with pytest.raises(InvalidBuffer, match=call):
            SIZES[call](backend, one, other, wrong)
    assert backend.mark().position == before
    for right in (0, 3, np.int64(4), np.uint8(5)):
        SIZES[call](backend, one, other, right)
    assert backend.mark().position == before + 4


@pytest.mark.parametrize("call", HANDLES)
def test_what_is_no_handle_is_refused_as_such(backend: Backend, call: str) -> None:
    buffer = backend.allocate_buffer(16)
    before = backend.mark().position
    for wrong in NO_HANDLES:
        with pytest.raises(InvalidType):
            HANDLES[call](backend, buffer, wrong)
    assert backend.mark().position == before


def test_what_is_no_pattern_is_refused_as_such(backend: Backend) -> None:
    buffer = backend.allocate_buffer(16)
    for wrong in (None, 1, "1", [1], bytearray(1), np.zeros(1, np.uint8)):
        with pytest.raises(InvalidType, match=r"fill_buffer\.pattern"):
            backend.fill_buffer(buffer, wrong)  # type: ignore[arg-type]


def test_what_is_no_graph_is_refused_as_such() -> None:
    backend = RecordingBackend()
    for wrong in NO_HANDLES:
        with pytest.raises(InvalidType, match="create_graph"):
            backend.create_graph(wrong)


OPTIONS: dict[str, tuple[Callable[..., Backend], tuple[object, ...]]] = {
    "CpuBackend.workers": (CpuBackend, (0, -1)),
    "CpuBackend.grace_s": (CpuBackend, (-1, float("nan"))),
    "RecordingBackend.grace_s": (RecordingBackend, (-0.5, float("nan"))),
    "RecordingBackend.operation_ns": (RecordingBackend, (-1, float("nan"))),
    "RecordingBackend.fail_load_after_count": (RecordingBackend, (-1,)),
    "RecordingBackend.fail_buffer_allocate_after_count": (RecordingBackend, (-1,)),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_backend_is_not_made_with_what_it_would_break_by_later(option: str) -> None:
    make, wrong = OPTIONS[option]
    field = option.partition(".")[2]
    for value in (True, "2", b"2", (1,), [], object()):
        with pytest.raises(InvalidType, match=option):
            make(**{field: value})
    for value in wrong:
        with pytest.raises(InvalidValue, match=option):
            make(**{field: value})
