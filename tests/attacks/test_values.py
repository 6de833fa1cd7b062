"""Errors that travel between processes, and shapes that are none."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import accy_async
from accy_async import DType
from accy_async.backends import RecordingBackend
from accy_async.errors import GraceExpired, InvalidType
from accy_async.graph import BufferSlot


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_expired_grace_is_the_same_elsewhere(protocol: int) -> None:
    error = GraceExpired("the session", 0.5, ("buffer 1", "stream 2"))
    error.add_note("seen")
    group = ExceptionGroup("several", [error])
    (other,) = pickle.loads(pickle.dumps(group, protocol)).exceptions
    for one in (other, copy.copy(error), copy.deepcopy(error)):
        assert isinstance(one, GraceExpired)
        assert str(one) == str(error)
        assert (one.grace_s, one.objects) == (0.5, ("buffer 1", "stream 2"))
        assert one.__notes__ == ["seen"]


@pytest.mark.anyio
@pytest.mark.parametrize("shape", [None, 3.5, np.float32(3), True, "3", b"3", {3}])
async def test_a_shape_that_is_none_is_refused_as_such(shape: object) -> None:
    async with accy_async.open_session(RecordingBackend()) as session:
        with pytest.raises(InvalidType, match="shape"):
            session.allocate(shape, DType.F32)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_extents_that_numpy_has_computed_are_integers_too() -> None:
    """As ``np.prod(shape)`` is one; they are kept as Python's own."""
    extent = np.prod((3, 4))
    async with accy_async.open_session(RecordingBackend()) as session:
        for shape in (extent, (extent,), [extent]):
            array = session.allocate(shape, DType.F32)  # type: ignore[arg-type]
            assert array.shape == (12,)
            assert type(array.shape[0]) is int
    assert BufferSlot("x", DType.F32, extent) == BufferSlot("x", DType.F32, 12)  # type: ignore[arg-type]
