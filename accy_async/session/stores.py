"""The stores of tuning records that a session has opened: one opening for all seats.

What was opened is a picture of the store, which nothing changes, and its records are
found by the device that they are of. So the seats of a session look in the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from accy_async.backends.completion import run_abandonable
from accy_async.tuning.store import CODECS

if TYPE_CHECKING:
    from pathlib import Path

    from accy_async.tuning.records.stored import StoredRecords
    from accy_async.tuning.store import TuningStore

__all__ = ["Opened", "OpenedStores"]

Opened = Mapping[str, "StoredRecords[Any]"]
"""The records of a store as they were when it was opened, by kind."""


class OpenedStores:
    """What was opened last of each store, for the tasks of one event loop."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._opened: dict[Path, Opened] = {}
        self._changes = 0
        self._blocks = 0
        self._anew: set[Path] = set()

    async def open(self, store: TuningStore, *, anew: bool = False) -> Opened:
        """A store's records; read on a thread where nobody has done so.

        Args:
            store: the store.
            anew: whether they are read again, for what others have kept since; within
                `together` only once.

        Cancellation: returns at once; what is read is dropped, and whoever waits for
        it reads.
        """
        folder = store.folder
        async with self._lock:
            found = self._opened.get(folder)
            if found is not None and (not anew or folder in self._anew):
                return found
            changes = self._changes
            found = await run_abandonable(
                lambda: {kind: store.open(kind) for kind in CODECS},
                lambda _: None,
                name="read tuning records",
            )
            if changes == self._changes:
                self._opened[folder] = found
                if self._blocks:
                    self._anew.add(folder)
            return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block in which who asks for a store anew gets what another was given."""
        self._blocks += 1
        try:
            yield
        finally:
            self._blocks -= 1
            if not self._blocks:
                self._anew.clear()

    def forget(self, store: TuningStore) -> None:
        """A record was kept there: whoever asks from now on finds it."""
        self._changes += 1
        self._opened.pop(store.folder, None)
        self._anew.discard(store.folder)
