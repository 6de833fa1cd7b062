"""What is known of one kind: records learnt here, and those of stores, looked up.

Of a hundred thousand records a compilation uses those of its own problems. So nothing
here takes time that grows with how many there are, but listing them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from accy_async.tuning.records.cache import RecordCache
from accy_async.tuning.records.measured import KeptRecord
from accy_async.tuning.records.stored import StoredRecords

__all__ = ["KnownRecords", "LookedUpRecords"]

_R = TypeVar("_R", bound=KeptRecord)


class KnownRecords(Generic[_R]):
    """Records of one kind, from several places; of two of one thing the better one.

    Iterating gives them all, in an order that follows from what they are of; those of
    stores are decoded for it.
    """

    def __init__(self) -> None:
        self._learnt: RecordCache[_R] = RecordCache()
        self._stores: dict[str, StoredRecords[_R]] = {}

    def __bool__(self) -> bool:
        """Whether there are any, be they of use or not."""
        return len(self._learnt) > 0 or any(map(bool, self._stores.values()))

    def __contains__(self, identity: object) -> bool:
        return self.find(identity) is not None

    def __iter__(self) -> Iterator[_R]:
        return iter(self.look_up().export_records())

    def find(self, identity: object) -> _R | None:
        """The best record of that identity, or None."""
        return self.look_up().find(identity)

    def import_records(self, records: Iterable[_R]) -> None:
        """Take records in: all of them, or none where one is refused.

        Raises:
            InvalidType: one is no record.
        """
        self._learnt.import_records(records)

    def look_in(self, stored: StoredRecords[_R]) -> None:
        """Look in a store, too, instead of what was opened of it before."""
        self._stores[stored.source] = stored

    def look_up(self) -> LookedUpRecords[_R]:
        """What finds them for one use, on any thread."""
        return LookedUpRecords(self._learnt, tuple(self._stores.values()))


class LookedUpRecords(Generic[_R]):
    """Finds records, each once: asked again it says the same, whatever is learnt since.

    Args:
        learnt: records in memory; it may take in more meanwhile.
        stores: where else to look.
    """

    def __init__(
        self, learnt: RecordCache[_R], stores: tuple[StoredRecords[_R], ...]
    ) -> None:
        self._learnt = learnt
        self._stores = stores
        self._found: dict[object, _R | None] = {}

    def find(self, identity: object) -> _R | None:
        """The best record of that identity, or None."""
        if identity not in self._found:
            best = self._learnt.find(identity)
            for stored in self._stores:
                record = stored.find(identity)
                if best is None or (record is not None and record.is_better_than(best)):
                    best = record
            self._found[identity] = best
        return self._found[identity]

    def export_records(self) -> tuple[_R, ...]:
        """All records, in an order that follows from what they are of; decodes them."""
        best = RecordCache(self._learnt)
        for stored in self._stores:
            best.import_records(stored)
        return best.export_records()
