"""Two threads end the same object."""

from __future__ import annotations

import pytest

from accy_async.backends import RecordingBackend
from accy_async.backends.cleanup import destroy_all
from accy_async.backends.handles import Handle


class Racing(RecordingBackend):
    """A backend where another thread destroys each object just before it is."""

    def discard(self, handle: Handle) -> bool:
        """Come second."""
        if self.is_alive(handle):
            self.destroy(handle)
        return super().discard(handle)


def test_closing_does_not_mind_that_others_destroy_too() -> None:
    device = Racing()
    for _ in range(3):
        device.allocate_buffer(64)
        device.create_event()
        device.create_stream()
    device.close()
    assert not any(device.live_objects().values())


def test_cleaning_up_does_not_mind_either() -> None:
    device = Racing()
    errors: list[Exception] = []
    assert destroy_all(device, [device.allocate_buffer(64)], errors) == []
    assert errors == []


@pytest.mark.parametrize("times", [1, 2])
def test_discarding_is_idempotent(times: int) -> None:
    device = RecordingBackend()
    buffer = device.allocate_buffer(64)
    for _ in range(times):
        assert device.discard(buffer)
    assert device.destroyed_ids == [buffer.id]
