"""What nodes of device graphs refuse when they are made."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import pytest

from accy_async.artifact import BackendKind
from accy_async.backends import BufferHandle
from accy_async.backends.devicegraph import (
    GraphBranch,
    GraphCopy,
    GraphDownload,
    GraphExchange,
    GraphFill,
    GraphJoin,
    GraphLoop,
    GraphNode,
    GraphRecord,
    GraphUpload,
)
from accy_async.errors import InvalidType, InvalidValue

ONE, OTHER = (
    BufferHandle(id=number, backend=BackendKind.CUDA, byte_size=64) for number in (1, 2)
)
LENT = attrs.evolve(OTHER, is_read_only=True)
SHORT = attrs.evolve(OTHER, byte_size=3)
BYTES = np.zeros(64, np.uint8)
SEALED = np.frombuffer(bytes(64), np.uint8)
TURN = (GraphNode(GraphJoin()),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GraphCopy(ONE, OTHER, 65), r"Copy.byte_size: got 65, .* most the 64"),
        (
            lambda: GraphCopy(ONE, SHORT, 4),
            r"Copy.byte_size: got 4, .* 3 bytes of buff",
        ),
        (lambda: GraphCopy(ONE, OTHER, -1), r"GraphCopy.byte_size: got -1, expected"),
        (lambda: GraphCopy(ONE, OTHER, 1.5), r"GraphCopy.byte_size: got 1.5, expected"),  # type: ignore[arg-type]
        (lambda: GraphCopy(ONE, ONE, 4), r"Copy.target: got 'buffer 1', .* another"),
        (lambda: GraphCopy(ONE, LENT, 4), r"Copy.target: got 'buffer 2', .* read-only"),
        (
            lambda: GraphCopy(b"1", ONE, 4),  # type: ignore[arg-type]
            r"Copy.source: got b'1', expected Buff",
        ),
        (lambda: GraphFill(ONE, b"123", 6), r"Fill.pattern: got b'123', .* 1, 2, 4 or"),
        (lambda: GraphFill(ONE, b"", 6), r"GraphFill.pattern: got b'', expected 1, 2"),
        (lambda: GraphFill(ONE, "1", 6), r"GraphFill.pattern: .* bytes"),  # type: ignore[arg-type]
        (lambda: GraphFill(ONE, b"12", 7), r"Fill.byte_size: got 7, .* multiple of th"),
        (lambda: GraphFill(ONE, b"1", 65), r"Fill.byte_size: got 65, expected at most"),
        (
            lambda: GraphFill(LENT, b"1", 8),
            r"Fill.target: got 'buffer 2', .* read-only",
        ),
        (lambda: GraphUpload(BYTES, SHORT), r"Upload.array.nbytes: got 64, .* the 3 b"),
        (lambda: GraphUpload(BYTES, LENT), r"Upload.target: got 'buffer 2', .* read-o"),
        (
            lambda: GraphUpload(BYTES[::2], ONE),
            r"Upload.array: .* a C-contiguous array",
        ),
        (lambda: GraphUpload([1], ONE), r"GraphUpload.array: .* ndarray"),  # type: ignore[arg-type]
        (
            lambda: GraphUpload(np.array([None]), ONE),
            r"GraphUpload.array: .* not of objects",
        ),
        (
            lambda: GraphUpload(np.ma.masked_array([1], [True]), ONE),
            r"GraphUpload.array: got 'a masked array'",
        ),
        (lambda: GraphDownload(SHORT, BYTES), r"Download.array.nbytes: got 64, .* 3 b"),
        (lambda: GraphDownload(ONE, SEALED), r"Download.array: .* a writable array"),
        (lambda: GraphDownload(ONE, BYTES[::2]), r"Download.array: .* C-contiguous"),
        (lambda: GraphRecord(ONE), r"GraphRecord.event: .* EventHandle"),  # type: ignore[arg-type]
        (lambda: GraphExchange(ONE, ONE, 4), r"Exchange.other: got 'buffer 1'"),
        (lambda: GraphExchange(ONE, LENT, 4), r"Exchange.other: .* read-only"),
        (lambda: GraphExchange(ONE, OTHER, 65), r"Exchange.byte_size: got 65, expec"),
        (lambda: GraphLoop(()), r"Loop.turns: got \(\), expected at least one body"),
        (lambda: GraphLoop((TURN,)), r"Loop.conditions: .* one for each of 1 turns"),
        (lambda: GraphLoop((TURN,), -1), r"GraphLoop.count: got -1, expected"),
        (
            lambda: GraphLoop((TURN,), conditions=(SHORT,)),
            r"Loop.conditions: got 3, expected 4 bytes at least, in buffer 2",
        ),
        (
            lambda: GraphLoop((TURN,), 1, exchanges=((), ())),
            r"Loop.exchanges: .* at most one for each of 1 turns",
        ),
        (
            lambda: GraphLoop((TURN,), 1, limit=3),
            r"Loop.verdict: got None, .* a buffer",
        ),
        (
            lambda: GraphLoop((TURN,), 1, unless=(SHORT,)),
            r"GraphLoop.unless: got 3, exp",
        ),
        (lambda: GraphBranch(TURN, (SHORT,)), r"GraphBranch.unless: got 3, expected 4"),
    ],
)
def test_what_no_device_could_do_is_refused_when_it_is_made(
    make: Callable[[], object], message: str
) -> None:
    """By the field, with the value and what was expected."""
    with pytest.raises((InvalidValue, InvalidType), match=message):
        make()


def test_all_of_a_buffer_and_nothing_of_it_are_taken() -> None:
    assert GraphCopy(ONE, OTHER, 64) != GraphCopy(ONE, OTHER, 0)
    assert GraphFill(ONE, bytes(8), 64).handles() == (ONE,)
    assert GraphUpload(SEALED, ONE).handles() == (ONE,)
    assert GraphDownload(LENT, BYTES[:0]).handles() == (LENT,)
