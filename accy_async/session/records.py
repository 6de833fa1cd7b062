"""The tuning records that a session knows: opened once, learnt since, told to loads.

There may be very many, so that those of launches are looked up when a kernel is loaded,
and those of schedules and families when such a problem is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from accy_async.backends.completion import run_abandonable
from accy_async.errors import InvalidType
from accy_async.session.core import SessionCore
from accy_async.session.stores import OpenedStores
from accy_async.tuning.launches import LaunchTuningCache, is_tunable
from accy_async.tuning.records.known import KnownRecords
from accy_async.tuning.records.measured import KeptRecord, TuningRecord
from accy_async.tuning.store import TuningStore, default_tuning_store

if TYPE_CHECKING:
    from pathlib import Path

    from accy_async.fragment.compiled import CompiledFragment
    from accy_async.tuning.launches import LaunchTuningCacheKey, LaunchTuningCacheRecord
    from accy_async.tuning.measuring import KeptRounds
    from accy_async.tuning.records.stored import StoredRecords

__all__ = ["LAUNCH_KIND", "SessionRecords", "chosen_store"]

LAUNCH_KIND = "launch_tuning"
"""What stores call launch records."""


class SessionRecords(SessionCore):
    """What fragments and their tuning share in a session."""

    _launch_records: LaunchTuningCache | None = None
    _choice_records: dict[str, KnownRecords[Any]] | None = None
    _stores_read: frozenset[Path] = frozenset()
    _rounds: dict[LaunchTuningCacheKey, KeptRounds] | None = None
    _opened_stores: OpenedStores | None = None

    @property
    def _stores(self) -> OpenedStores:
        """The stores that were opened; those of the whole, in a seat of several."""
        if self._opened_stores is None:
            self._opened_stores = OpenedStores()
        return self._opened_stores

    def _share_stores(self, stores: OpenedStores) -> None:
        """Look in what others open, too: before anything was opened here."""
        self._opened_stores = stores

    @property
    def _kept_rounds(self) -> dict[LaunchTuningCacheKey, KeptRounds]:
        """Samples of kernels whose measurement was cut short, to go on from."""
        if self._rounds is None:
            self._rounds = {}
        return self._rounds

    async def _launch_tuning_for(
        self, compiled: CompiledFragment, store: bool | TuningStore | None
    ) -> list[LaunchTuningCacheRecord]:
        """The records that a fragment begins with; awaits, once, opening the store."""
        kernels = [kernel for kernel in compiled.plan.kernels if is_tunable(kernel)]
        chosen = chosen_store("load_fragment.tuning", store)
        if not kernels or chosen is None:
            return []
        if chosen.folder not in self._stores_read:
            await self._read_store(chosen)
        known = self._learn(())
        found = [known.record_of(kernel) for kernel in kernels]
        return [one for one in found if one is not None]

    async def _choices_for(
        self, store: bool | TuningStore | None
    ) -> dict[str, KnownRecords[Any]]:
        """What is known of schedules and families, by the store's kind.

        Kinds of which there is nothing are left out.

        Awaits, once, reading the store.
        """
        chosen = chosen_store("compile_fragment.tuning", store)
        if chosen is None:
            return {}
        if chosen.folder not in self._stores_read:
            await self._read_store(chosen)
        return {
            kind: known for kind, known in (self._choice_records or {}).items() if known
        }

    async def _read_store(
        self, store: TuningStore, *, anew: bool = False
    ) -> StoredRecords[LaunchTuningCacheRecord]:
        """Learn all that a store knows, read on a thread; what it knows of launches.

        Args:
            store: the store.
            anew: whether it is read where it was before; see `OpenedStores.open`.

        Cancellation: returns at once; what is read is dropped.
        """
        opened = await self._stores.open(store, anew=anew)
        launches = opened[LAUNCH_KIND]
        self._learn(()).look_in(launches)
        for kind, stored in opened.items():
            if kind != LAUNCH_KIND:
                self._choices_of(kind).look_in(stored)
        self._stores_read |= {store.folder}
        return launches

    async def _keep_record(
        self, store: TuningStore, kind: str, record: KeptRecord
    ) -> None:
        """Have other processes know a record, and seats that have not looked yet.

        Awaits a thread that writes.
        """
        try:
            await run_abandonable(
                lambda: store.keep(kind, [record]),
                lambda _: None,
                name="keep tuning records",
            )
        finally:  # it may be kept all the same
            self._stores.forget(store)

    def _learn_choices(self, kind: str, records: Iterable[TuningRecord]) -> None:
        """Remember which schedules and family kernels won, for later compilations."""
        self._choices_of(kind).import_records(records)

    def _choices_of(self, kind: str) -> KnownRecords[Any]:
        if self._choice_records is None:
            self._choice_records = {}
        return self._choice_records.setdefault(kind, KnownRecords())

    def _learn(self, records: Iterable[LaunchTuningCacheRecord]) -> LaunchTuningCache:
        """Remember records, for what is loaded from now on; all that is known."""
        if self._launch_records is None:
            self._launch_records = LaunchTuningCache(self.capabilities)
        self._launch_records.import_records(records)
        return self._launch_records


def chosen_store(name: str, store: bool | TuningStore | None) -> TuningStore | None:
    """The store that an argument chooses; None for none.

    Raises:
        InvalidType: the argument, of that name, chooses nothing.
    """
    if store is True:
        return default_tuning_store()
    if store is None or store is False:
        return None
    if not isinstance(store, TuningStore):
        raise InvalidType(name, store, "a TuningStore, True, False or None")
    return store
