"""Buffers of small results that nobody holds any more, kept for the next invocation.

A call in a loop drops the result before the last. To free that, allocate another and
pack the launches for it would cost more than launching a small kernel does. A result
that is freed, not dropped, is gone: whatever still names its buffer is told so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferHandle

__all__ = ["MOST_KEPT_BYTES", "Spares"]

MOST_KEPT_BYTES = 1 << 20
"""Larger results are freed when they are: what they take is not to be missed."""

_MOST_KEPT = 3
"""Of each result: that of the last call, the one before it, and one on its way."""

Reclaim = Callable[["BufferHandle"], bool]


class Spares:
    """The spare buffers of one lane's results; it owns them.

    Args:
        backend: whose they are.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kept: dict[str, deque[BufferHandle]] = {}
        self._reclaims: dict[str, Reclaim] = {}
        self._is_closed = False

    def take(self, name: str) -> BufferHandle | None:
        """A buffer for a result, whose uses are all done; None if there is none."""
        kept = self._kept.get(name)
        if not kept:
            return None
        handle = kept.popleft()
        if self._backend.is_idle(handle):
            return handle
        kept.append(handle)
        return None

    def reclaim(self, name: str) -> Reclaim:
        """What takes back that result's buffers, see `DeviceArray`; one for all."""
        found = self._reclaims.get(name)
        if found is None:
            kept = self._kept[name] = deque()
            found = self._reclaims[name] = partial(self._give, kept)
        return found

    def detach(self) -> list[BufferHandle]:
        """The buffers, for others to destroy; none is kept from here on."""
        self._is_closed = True
        handles: list[BufferHandle] = []
        for kept in self._kept.values():
            while kept:
                handles.append(kept.popleft())
        return handles

    def _give(self, kept: deque[BufferHandle], handle: BufferHandle) -> bool:
        """Keep a buffer; False where it is to be freed. Any thread, takes no lock."""
        if len(kept) >= _MOST_KEPT:
            return False
        kept.append(handle)
        if not self._is_closed:
            return True
        try:
            kept.remove(handle)
        except ValueError:
            return True  # `detach` was quicker
        return False
