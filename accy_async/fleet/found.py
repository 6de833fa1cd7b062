"""What a fleet finds: each candidate's measurement, with the device it was made on."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from accy_async.artifact.formats import (
    ArtifactFormat,
    BackendKind,
    artifact_format,
    backend_kind,
)
from accy_async.artifact.planned import PlannedKernel
from accy_async.errors import LaunchArgumentMismatch
from accy_async.tuning.choice import LaunchCandidateMeasurement
from accy_async.tuning.launches import (
    LaunchTuningCacheKey,
    LaunchTuningCacheRecord,
)
from accy_async.tuning.measuring import (
    CandidateOutcome,
    CandidateStatus,
    MeasureOutcome,
    TimeSource,
)
from accy_async.tuning.race import Comparison, Standing
from accy_async.values import enum, instances, integer, text, to_tuple, tuple_of

__all__ = [
    "DeviceKind",
    "FleetDevice",
    "FleetMeasurement",
    "FleetOutcome",
    "JobFound",
    "KindOutcome",
    "launch_records",
]

_U64 = integer(0, 2**64 - 1)


@attrs.frozen(kw_only=True)
class DeviceKind:
    """What devices share between which measurements carry over.

    Attributes:
        backend: the kind of backend.
        fingerprint: the device's, see `Capabilities.fingerprint`.
        driver: its driver's version.
    """

    backend: BackendKind = attrs.field(
        converter=backend_kind, validator=enum(BackendKind)
    )
    fingerprint: int = attrs.field(validator=_U64)
    driver: str = attrs.field(default="", validator=text(empty=True))

    def __str__(self) -> str:
        driver = f", driver {self.driver}" if self.driver else ""
        return f"{self.backend} {self.fingerprint:016x}{driver}"


def _formats(values: Iterable[ArtifactFormat | str]) -> tuple[ArtifactFormat, ...]:
    return tuple(sorted(artifact_format(value) for value in values))


@attrs.frozen(kw_only=True)
class FleetDevice:
    """A worker's device, as the worker says.

    Attributes:
        host: the name of its machine.
        device: its name there, as ``cuda:1``.
        name: the product's name.
        kind: what it shares with devices on which the same holds.
        formats: artifact formats that it loads.
    """

    host: str = attrs.field(validator=text())
    device: str = attrs.field(validator=text())
    name: str = attrs.field(validator=text())
    kind: DeviceKind = attrs.field(validator=instances(DeviceKind))
    formats: tuple[ArtifactFormat, ...] = attrs.field(converter=_formats)

    def __str__(self) -> str:
        return f"{self.device} of {self.host}"


@attrs.frozen(kw_only=True)
class JobFound:
    """What a worker found when it measured some candidates against the baseline.

    Attributes:
        baseline: the first of them that works.
        winner: who is to be used.
        standing: the winner's against the baseline.
        candidates: each of the job's, in its order.
        source: whose clock was read.
        is_storable, why_not: as of `MeasureOutcome`.
    """

    baseline: str | None
    winner: str | None
    standing: Standing = attrs.field(validator=enum(Standing))
    candidates: tuple[CandidateOutcome, ...] = attrs.field(
        converter=to_tuple,
        validator=tuple_of(CandidateOutcome, expected="CandidateOutcome values"),
    )
    source: TimeSource = attrs.field(validator=enum(TimeSource))
    is_storable: bool = attrs.field(validator=instances(bool))
    why_not: str = attrs.field(default="", validator=text(empty=True))

    @classmethod
    def of(
        cls, names: Iterable[str], found: MeasureOutcome | None, failed: dict[str, str]
    ) -> JobFound:
        """From a measurement, and from those that did not come so far."""
        measured = {} if found is None else {c.name: c for c in found.candidates}
        return cls(
            baseline=None if found is None else found.baseline,
            winner=None if found is None else found.winner,
            standing=Standing.UNDECIDED if found is None else found.standing,
            candidates=tuple(
                measured[name]
                if name in measured
                else CandidateOutcome(
                    name=name, status=CandidateStatus.FAILED, reason=failed[name]
                )
                for name in names
            ),
            source=TimeSource.HOST if found is None else found.source,
            is_storable=found is not None and found.is_storable,
            why_not="no candidate works" if found is None else found.why_not,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates'."""
        return tuple(one.name for one in self.candidates)

    def candidate(self, name: str) -> CandidateOutcome:
        """What became of the candidate of that name; KeyError for none."""
        for one in self.candidates:
            if one.name == name:
                return one
        raise KeyError(name)


@attrs.frozen(kw_only=True)
class FleetMeasurement:
    """A candidate, measured once for a kind of device.

    Attributes:
        name: the candidate's.
        worker: who measured it; empty where nobody did.
        device: on what; None where on nothing.
        outcome: status and reason, median, samples, and how it compares with the
            baseline as it was on that device at that time.
        baseline_median_ns: what the baseline took there; None where it was not
            measured beside it.
        source: whose clock was read.
        is_storable, why_not: as of `MeasureOutcome`.
    """

    name: str
    worker: str = ""
    device: FleetDevice | None = None
    outcome: CandidateOutcome
    baseline_median_ns: float | None = None
    source: TimeSource = TimeSource.HOST
    is_storable: bool = False
    why_not: str = ""

    @property
    def status(self) -> CandidateStatus:
        """Whether it was measured, or why not."""
        return self.outcome.status

    @property
    def comparison(self) -> Comparison | None:
        """Against the baseline; None for the baseline and for what has no times."""
        return self.outcome.comparison

    @property
    def speedup(self) -> float | None:
        """The baseline's time over its own, beside each other on one device."""
        return None if self.comparison is None else self.comparison.speedup


@attrs.frozen(kw_only=True)
class KindOutcome:
    """What came of the list on one kind of device.

    Attributes:
        kind: the kind of device.
        devices: those that measured.
        winner: the candidate to use: the baseline unless one is faster; None where
            nothing works.
        baseline: what the others were compared with.
        standing: the winner's against the baseline.
        measurements: each candidate once, in the list's order.
        final: those of nearly equal speed, measured once more beside each other on one
            device, and what came of it; None where there was no need.
        is_storable: whether the winner's time may be kept for others.
        why_not: what speaks against that; empty where nothing does.
    """

    kind: DeviceKind
    devices: tuple[FleetDevice, ...]
    winner: str | None
    baseline: str | None
    standing: Standing
    measurements: tuple[FleetMeasurement, ...]
    final: JobFound | None = None
    is_storable: bool
    why_not: str = ""

    def measurement(self, name: str) -> FleetMeasurement:
        """That of a candidate; KeyError for none."""
        for one in self.measurements:
            if one.name == name:
                return one
        raise KeyError(name)


@attrs.frozen(kw_only=True)
class FleetOutcome:
    """What a fleet found.

    Attributes:
        kinds: what came of the list, for each kind of device that measured.
        lost: workers that were lost meanwhile, and how, in order.
    """

    kinds: tuple[KindOutcome, ...]
    lost: tuple[tuple[str, str], ...] = ()

    @property
    def measurements(self) -> tuple[FleetMeasurement, ...]:
        """All of them, kind by kind."""
        return tuple(one for kind in self.kinds for one in kind.measurements)


def launch_records(
    kernel: PlannedKernel, outcome: FleetOutcome
) -> tuple[LaunchTuningCacheRecord, ...]:
    """A planned kernel's winners as records: one for each kind of device.

    Each is found again on devices of that kind alone: hand them to
    `LaunchTuningCache.import_records`, or to a `TuningStore`.

    Args:
        kernel: the kernel that `kernel_work` made the list of.
        outcome: what was found. Kinds whose times may not be kept have no record.

    Raises:
        LaunchArgumentMismatch: the list was of something else.
    """
    count = kernel.launch_resources.candidate_count
    expected = [str(index) for index in range(count)]
    records = []
    for found in outcome.kinds:
        if [one.name for one in found.measurements] != expected:
            raise LaunchArgumentMismatch(
                f"launch_records: kernel {kernel.entry_name!r} has {count} candidates, "
                f"measured were {[one.name for one in found.measurements]}"
            )
        if not found.is_storable or found.winner is None:
            continue
        winner = found.measurement(found.winner).outcome
        if found.final is not None and found.winner == found.final.winner:
            winner = found.final.candidate(found.winner)
        if winner.median_ns is None:
            continue
        records.append(
            LaunchTuningCacheRecord(
                key=LaunchTuningCacheKey.on(
                    found.kind.backend,
                    found.kind.fingerprint,
                    found.kind.driver,
                    kernel,
                ),
                selection=LaunchCandidateMeasurement(
                    kernel_id=kernel.kernel_id,
                    candidate_index=int(winner.name),
                    median_ns=round(winner.median_ns),
                    sample_count=winner.sample_count,
                ),
            )
        )
    return tuple(records)
