"""Of several records of one thing, the best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from accy_async.artifact.fingerprint import canonical_bytes
from accy_async.errors import InvalidType
from accy_async.tuning.records.measured import KeptRecord

__all__ = ["RecordCache"]

_R = TypeVar("_R", bound=KeptRecord)


class RecordCache(Generic[_R]):
    """Keeps the better of two records of one identity.

    What it holds, and the order in which it gives it back, depends on which records
    it was given and not on their order; given twice, a record counts once.
    """

    def __init__(self, records: Iterable[_R] = ()) -> None:
        self._best: dict[object, _R] = {}
        self._exported: tuple[_R, ...] | None = ()
        self.import_records(records)

    def __len__(self) -> int:
        return len(self._best)

    def __iter__(self) -> Iterator[_R]:
        """The records, as they came: for whoever looks for one of them."""
        return iter(self._best.values())

    def find(self, identity: object) -> _R | None:
        """The record of that identity, or None."""
        return self._best.get(identity)

    def import_records(self, records: Iterable[_R]) -> None:
        """Take records in: all of them, or none where one is refused.

        Raises:
            InvalidType: one is no record.
        """
        given = tuple(records)
        for index, record in enumerate(given):
            if not isinstance(record, KeptRecord):
                raise InvalidType(f"records[{index}]", record, "a record")
        for record in given:
            kept = self._best.get(record.identity)
            if kept == record:
                continue
            if kept is None or record.is_better_than(kept):
                self._best[record.identity] = record
                self._exported = None

    def forget(self, identity: object) -> bool:
        """Drop the record of an identity; True if there was one."""
        self._exported = None
        return self._best.pop(identity, None) is not None

    def replace_records(self, records: Iterable[_R]) -> None:
        """Forget everything, and take these in; nothing changes where one is refused.

        Raises:
            InvalidType: one is no record.
        """
        fresh = RecordCache(records)
        self._best, self._exported = fresh._best, None

    def export_records(self) -> tuple[_R, ...]:
        """All records, in an order that follows from what they are of.

        It is worked out where they changed since it last was.
        """
        if self._exported is None:
            records = self._best.values()
            self._exported = tuple(
                sorted(records, key=lambda r: canonical_bytes(r.identity))
            )
        return self._exported
