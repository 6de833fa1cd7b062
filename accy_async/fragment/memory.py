"""Device memory of fragments: buffers allocated together and destroyed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from accy_async.artifact.planned import ArtifactPlan
from accy_async.artifact.slots import SlotRole
from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.dtypes import ScalarArgument
from accy_async.fragment.graphs import count_slot_name, element_counts, slot_name

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferHandle, StreamHandle

__all__ = ["Buffers", "write_constants"]


class Buffers:
    """Buffers by the name of their slot; this owns them.

    Args:
        backend: whose they are.
        what: names them in messages.
    """

    def __init__(self, backend: Backend, what: str) -> None:
        self._backend = backend
        self._what = what
        self._by_name: dict[str, BufferHandle] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> BufferHandle:
        return self._by_name[name]

    def items(self) -> Iterable[tuple[str, BufferHandle]]:
        """Names and buffers, in the order in which they were made."""
        return self._by_name.items()

    def handles(self) -> Iterator[BufferHandle]:
        """The buffers, newest first, as they are to be destroyed."""
        yield from reversed(list(self._by_name.values()))

    def allocate(self, name: str, byte_size: int) -> BufferHandle:
        """The buffer of that name; made if there is none.

        Raises:
            OutOfMemory: no room; those that were made before stay.
        """
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = self._backend.allocate_buffer(byte_size)
        return found

    def detach(self) -> list[BufferHandle]:
        """The buffers, newest first, for others to destroy; it has none then."""
        handles = list(self.handles())
        self._by_name.clear()
        return handles

    def close(self) -> None:
        """Destroy them; what is in use goes to the reaper. Idempotent."""
        errors: list[Exception] = []
        destroy_all(self._backend, self.detach(), errors)
        raise_together(f"freeing {self._what}", None, errors)


def write_constants(
    backend: Backend,
    plan: ArtifactPlan,
    buffers: Buffers,
    stream: StreamHandle | None = None,
) -> None:
    """Allocate and fill a plan's constants, then its element counts, each once.

    Raises:
        OutOfMemory: no room.
        DeviceError: the device refused.
    """
    for slot in plan.slots:
        if slot.role is SlotRole.CONSTANT and slot.is_bound:
            handle = buffers.allocate(slot_name(slot), slot.byte_size)
            backend.write_buffer(handle, slot.data, stream=stream)
    for count in dict.fromkeys(element_counts(plan).values()):
        word = ScalarArgument.u32(count).to_bytes()
        handle = buffers.allocate(count_slot_name(count), len(word))
        backend.write_buffer(handle, word, stream=stream)
