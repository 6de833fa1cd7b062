"""The winners that are known, found again by all that they were measured on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from accy_async.artifact.geometry import DerivedLaunch
from accy_async.errors import InvalidType, LaunchArgumentMismatch
from accy_async.tuning.choice import LaunchCandidateMeasurement
from accy_async.tuning.launches.candidates import (
    LaunchCandidateRecord,
    check_record,
)
from accy_async.tuning.launches.key import LaunchTuningCacheKey
from accy_async.tuning.launches.records import (
    LaunchTuningCacheRecord,
    decode_launch_tuning_artifact,
    encode_launch_tuning_artifact,
)
from accy_async.tuning.records.cache import RecordCache
from accy_async.tuning.records.stored import StoredRecords

if TYPE_CHECKING:
    from accy_async.artifact.planned import PlannedKernel
    from accy_async.backends.capabilities import Capabilities

__all__ = ["LaunchTuningCache", "best_measurement", "is_tunable"]

_log = logging.getLogger("accy_async.tuning")


def is_tunable(kernel: PlannedKernel) -> bool:
    """Whether there is anything to choose: more than one candidate, and some work.

    A geometry that follows from scalars of the launch is none of the candidates.
    """
    resources = kernel.launch_resources
    return (
        resources.candidate_count > 1
        and resources.geometry.block_count > 0
        and not isinstance(kernel.launch, DerivedLaunch)
    )


def best_measurement(
    measurements: Sequence[LaunchCandidateMeasurement],
) -> LaunchCandidateMeasurement | None:
    """The fastest; of equally fast ones that with more samples, then the first."""
    return min(
        measurements,
        key=lambda one: (one.median_ns, -one.sample_count, one.candidate_index),
        default=None,
    )


@attrs.define
class _Source:
    """A store's records, and the keys that they were asked for."""

    stored: StoredRecords[LaunchTuningCacheRecord]
    asked: set[LaunchTuningCacheKey] = attrs.field(factory=set)


class LaunchTuningCache:
    """Winners for kernels of one device; those of others are carried along unused.

    Args:
        capabilities: the device's.
        records: to begin with.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        records: Iterable[LaunchTuningCacheRecord] = (),
    ) -> None:
        self.capabilities = capabilities
        self._records: RecordCache[LaunchTuningCacheRecord] = RecordCache(records)
        self._sources: dict[str, _Source] = {}
        self._told: set[LaunchTuningCacheKey] = set()
        self._keys: dict[int, tuple[PlannedKernel, LaunchTuningCacheKey]] = {}

    def __len__(self) -> int:
        self._take_all()
        return len(self._records)

    @property
    def records(self) -> tuple[LaunchTuningCacheRecord, ...]:
        """All of them, in an order that follows from their keys."""
        self._take_all()
        return self._records.export_records()

    def import_records(self, records: Iterable[LaunchTuningCacheRecord]) -> None:
        """Take records in; of two for one key the better one stays.

        Raises:
            InvalidType: one is no record; nothing changed.
        """
        self._records.import_records(records)

    def look_in(self, stored: StoredRecords[LaunchTuningCacheRecord]) -> None:
        """Look kernels up in a store's records, too: each at the first time.

        They take the place of what was opened of the same store before.

        Raises:
            InvalidType: it is no `StoredRecords`.
        """
        if not isinstance(stored, StoredRecords):
            raise InvalidType("look_in.stored", stored, "StoredRecords")
        self._sources[stored.source] = _Source(stored)

    def record_candidates(
        self, kernel: PlannedKernel, records: Sequence[LaunchCandidateRecord]
    ) -> LaunchTuningCacheRecord | None:
        """Keep the best of a kernel's measured candidates.

        Returns:
            What it comes to; None where there is nothing to choose, or no record.

        Raises:
            LaunchArgumentMismatch: a record is not of this kernel as it is now;
                nothing changed.
        """
        for record in records:
            check_record(kernel, record)
        best = best_measurement([record.measurement for record in records])
        if best is None or not is_tunable(kernel):
            return None
        found = LaunchTuningCacheRecord(key=self.key(kernel), selection=best)
        self._records.import_records([found])
        return found

    def record_all(
        self, kernels: Sequence[PlannedKernel], records: Sequence[LaunchCandidateRecord]
    ) -> tuple[LaunchTuningCacheRecord, ...]:
        """`record_candidates` for records of several kernels: all, or none.

        Raises:
            LaunchArgumentMismatch: a record is of no kernel given, or not as it is
                now; nothing changed.
        """
        by_id = {kernel.kernel_id: kernel for kernel in kernels}
        grouped: dict[int, list[LaunchCandidateRecord]] = {}
        for record in records:
            number = record.kernel.kernel_id
            if number not in by_id:
                raise LaunchArgumentMismatch(
                    f"launch candidate record of kernel {number}: there is none"
                )
            check_record(by_id[number], record)
            grouped.setdefault(number, []).append(record)
        found = [
            self.record_candidates(by_id[number], group)
            for number, group in grouped.items()
        ]
        return tuple(one for one in found if one is not None)

    def key(self, kernel: PlannedKernel) -> LaunchTuningCacheKey:
        """What a kernel's winner is kept under here; worked out once."""
        found = self._keys.get(id(kernel))
        if found is None or found[0] is not kernel:
            key = LaunchTuningCacheKey.of(self.capabilities, kernel)
            found = self._keys[id(kernel)] = kernel, key
        return found[1]

    def record_of(self, kernel: PlannedKernel) -> LaunchTuningCacheRecord | None:
        """The record that says a kernel's winner, None where there is none.

        A record that differs only in the driver's version is not used; that is logged,
        once.
        """
        is_empty = not len(self._records) and not self._sources
        if is_empty or not is_tunable(kernel):
            return None
        key = self.key(kernel)
        self._look_up(key)
        record = self._records.find(key)
        if record is None:
            self._tell_of_near(kernel, key)
        return record

    def selection(self, kernel: PlannedKernel) -> LaunchCandidateMeasurement | None:
        """The winner for a kernel, as `record_of` has it."""
        record = self.record_of(kernel)
        if record is None:
            return None
        return attrs.evolve(record.selection, kernel_id=kernel.kernel_id)

    def forget(self, kernel: PlannedKernel) -> bool:
        """Drop the winner of a kernel, as one that failed to launch; True if known."""
        key = self.key(kernel)
        self._look_up(key)  # so that it is not found there afterwards
        return self._records.forget(key)

    def import_artifact(self, artifact: bytes) -> int:
        """Take in all records of an artifact.

        Returns:
            How many it has.

        Raises:
            InvalidArtifact: it cannot be read; nothing changed.
        """
        records = decode_launch_tuning_artifact(artifact)
        self._records.import_records(records)
        self._tell_of_foreign(records)
        return len(records)

    def replace_artifact(self, artifact: bytes) -> int:
        """Forget everything, and take in an artifact; an empty one is none.

        Raises:
            InvalidArtifact: it cannot be read; nothing changed.
        """
        records = decode_launch_tuning_artifact(artifact) if artifact else ()
        self._sources.clear()
        self._records.replace_records(records)
        self._tell_of_foreign(records)
        return len(records)

    def export_artifact(self) -> bytes:
        """All records as an artifact; those of other devices are among them."""
        return encode_launch_tuning_artifact(self.records)

    def _look_up(self, key: LaunchTuningCacheKey) -> None:
        """Take in what the stores know of a key, on any driver."""
        for source in self._sources.values():
            if key not in source.asked:
                source.asked.add(key)
                self._records.import_records(source.stored.related(key))

    def _take_all(self) -> None:
        """Take in all that the stores know; what was asked for was taken in then."""
        for source in self._sources.values():
            self._records.import_records(
                record for record in source.stored if record.key not in source.asked
            )
        self._sources.clear()

    def _tell_of_foreign(self, records: Sequence[LaunchTuningCacheRecord]) -> None:
        mine = (self.capabilities.identity.backend, self.capabilities.fingerprint)
        foreign = sum((one.key.backend, one.key.device) != mine for one in records)
        if foreign:
            _log.info(
                "%d of %d launch records are of other devices than %s: kept, not used",
                foreign,
                len(records),
                self.capabilities.identity.device,
            )

    def _tell_of_near(self, kernel: PlannedKernel, key: LaunchTuningCacheKey) -> None:
        if key in self._told:
            return
        self._told.add(key)
        others = [
            other.driver
            for other in (record.key for record in self._records)
            if other.kernel_fingerprint == key.kernel_fingerprint
            and other.on_driver(key.driver) == key
        ]
        if others:
            _log.info(
                "kernel %s was tuned on driver %r, this is %r: measure again",
                kernel.entry_name,
                max(others),
                key.driver,
            )
