"""Very many objects in the reaper's hands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accy_async.artifact.formats import BackendKind
from accy_async.backends.handles import BufferHandle, ObjectKind
from accy_async.backends.lifetimes import ResourceTable
from accy_async.backends.resources import Resource
from accy_async.backends.timeline import Timeline

if TYPE_CHECKING:
    import pytest

COUNT = 500


def test_a_sweep_looks_at_what_a_stream_came_past_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    blocker = Resource.blocker

    def count(resource: Resource) -> tuple[Timeline, int] | None:
        nonlocal looks
        looks += 1
        return blocker(resource)

    monkeypatch.setattr(Resource, "blocker", count)
    freed: list[Resource] = []
    table = ResourceTable(BackendKind.CPU, freed.append)
    streams = [Timeline("one"), Timeline("two")]
    for _ in range(COUNT):
        resource = table.add(
            ObjectKind.BUFFER,
            lambda object_id: BufferHandle(
                id=object_id, backend=BackendKind.CPU, byte_size=0
            ),
            None,
        )
        for stream in streams:
            resource.touch(stream, stream.advance())
        assert not table.destroy(resource.handle)
    for stream in streams:
        for position in range(1, COUNT + 1):
            assert len(freed) == (0 if stream is streams[0] else position - 1)
            stream.complete(position)
            table.sweep()
    assert len(freed) == COUNT
    assert not any(table.counts().values())
    assert looks <= 4 * COUNT
