"""A list of candidates as it stands on one kind of device; see the board."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

import attrs

from accy_async.fleet.found import (
    DeviceKind,
    FleetDevice,
    FleetMeasurement,
    JobFound,
    KindOutcome,
)
from accy_async.fleet.verdict import finalists, verdict
from accy_async.tuning.measuring import CandidateOutcome, CandidateStatus
from accy_async.tuning.race import Standing

__all__ = ["Job", "KindList"]

_OWN_FAULT = (CandidateStatus.FAILED, CandidateStatus.TIMED_OUT)
"""What is said of a candidate whatever the baseline does."""


@attrs.frozen(eq=False)
class Job:
    """Candidates to measure on one worker, the baseline first.

    Attributes:
        worker: whose it is.
        device: the worker's.
        names: of the candidates.
        is_final: True for the final between the best.
    """

    worker: str
    device: FleetDevice
    names: tuple[str, ...]
    is_final: bool = False


class KindList:
    """The list on one kind of device.

    Args:
        names: of all candidates, in order; one at least is not refused.
        refused: who cannot run on such devices, and why.
        most_losses: how many workers may be lost with a candidate under way.
        news: where each measurement is put when it is known.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        refused: Mapping[str, str],
        most_losses: int,
        news: list[FleetMeasurement],
    ) -> None:
        self.under_way: list[Job] = []
        self._names = names
        self._most_losses = most_losses
        self._news = news
        self._found: dict[str, FleetMeasurement] = {}
        self._todo = deque(name for name in names if name not in refused)
        self._baseline: str | None = self._todo.popleft()
        self._is_proven = False  # the baseline works
        self._is_suspect = False  # a worker was lost; it may have been the baseline
        self._losses: Counter[str] = Counter()
        self._final: JobFound | None = None
        self._final_lost = ""
        self._devices: dict[FleetDevice, None] = {}
        for name, reason in refused.items():
            self._reject(name, CandidateStatus.NOT_TRIED, reason, None)

    @property
    def is_over(self) -> bool:
        """True where nothing is under way, and nothing is left to do."""
        return not (self.under_way or self._is_due or self._finalists())

    @property
    def _is_due(self) -> bool:
        """Whether something is left to do before a final."""
        baseline = self._baseline
        return baseline is not None and (
            bool(self._todo) or baseline not in self._found
        )

    def next(self, worker: str, device: FleetDevice) -> Job | None:
        """What a free worker is to do now; None for nothing."""
        names = self._next_names()
        if not names:
            return None
        self._devices[device] = None
        job = Job(worker, device, names, is_final=len(names) > 2)
        self.under_way.append(job)
        return job

    def _next_names(self) -> tuple[str, ...]:
        baseline = self._baseline
        if baseline is None:
            return ()
        if self._is_suspect and not self._is_proven:
            is_tried = any(job.names == (baseline,) for job in self.under_way)
            return () if is_tried else (baseline,)
        if self._todo:
            return (baseline, self._todo.popleft())
        if self.under_way:
            return ()
        if baseline not in self._found:
            return (baseline,)
        return (baseline, *self._finalists()) if self._finalists() else ()

    def done(self, job: Job, found: JobFound) -> None:
        """A worker has done its job."""
        self.under_way.remove(job)
        baseline = found.candidate(job.names[0])
        works = baseline.status is CandidateStatus.MEASURED
        if job.is_final:
            self._final = found if works else None
            if not works:
                self._final_lost = f"{baseline.name!r} did not work in the final"
            return
        is_current = baseline.name == self._baseline
        if works and is_current:
            self._is_proven = True
            is_alone = len(job.names) == 1
            if baseline.name not in self._found and (
                is_alone or baseline.median_ns is not None
            ):
                self._keep(job, found, baseline)
        for name in job.names[1:]:
            outcome = found.candidate(name)
            if outcome.status in _OWN_FAULT or (works and is_current):
                self._keep(job, found, outcome)
            elif is_current and self._is_proven:
                self._charge(job, name, f"{baseline.name!r} failed beside it")
            else:
                self._hand_back(name)
        if not works and is_current and not self._is_proven:
            self._reject(baseline.name, baseline.status, baseline.reason, job)

    def lost(self, job: Job, reason: str, culprit: str) -> None:
        """A worker was lost with its job."""
        self.under_way.remove(job)
        baseline, others = job.names[0], job.names[1:]
        what = f"worker {job.worker} was lost with it: {reason}"
        is_known = self._is_proven and baseline == self._baseline
        if job.is_final:
            self._losses["the final"] += 1
            if culprit or self._losses["the final"] >= self._most_losses:
                self._final_lost = f"the final: {what}"
            return
        if culprit in others:
            self._reject(culprit, CandidateStatus.FAILED, what, job)
            return
        for name in others:
            if is_known:
                self._charge(job, name, what)
            else:
                self._hand_back(name)
        if baseline != self._baseline or is_known:
            return
        self._is_suspect = True
        if culprit == baseline:
            self._reject(baseline, CandidateStatus.FAILED, what, job)
        elif not others:
            self._charge(job, baseline, what)

    def _charge(self, job: Job, name: str, what: str) -> None:
        """A candidate was under way when something else failed: once may be chance."""
        self._losses[name] += 1
        if self._losses[name] < self._most_losses:
            self._hand_back(name)
        else:
            self._reject(name, CandidateStatus.FAILED, what, job)

    def _hand_back(self, name: str) -> None:
        if name != self._baseline and name not in self._found:
            self._todo.appendleft(name)

    def _reject(
        self, name: str, status: CandidateStatus, reason: str, job: Job | None
    ) -> None:
        self._add(
            FleetMeasurement(
                name=name,
                worker="" if job is None else job.worker,
                device=None if job is None else job.device,
                outcome=CandidateOutcome(name=name, status=status, reason=reason),
                why_not=reason,
            )
        )

    def _keep(self, job: Job, found: JobFound, outcome: CandidateOutcome) -> None:
        self._add(self._measurement(job, found, outcome))

    def _add(self, measurement: FleetMeasurement) -> None:
        name = measurement.name
        self._found[name] = measurement
        self._news.append(measurement)
        is_out = measurement.status is not CandidateStatus.MEASURED
        if is_out and name == self._baseline:
            self._choose_baseline()

    def _choose_baseline(self) -> None:
        """The first that is not out; one under way comes back, as nothing beat it."""
        self._is_proven = False
        left = [name for name in self._names if name not in self._found]
        waiting = [name for name in left if name in self._todo]
        self._baseline = next(iter(waiting or left), None)
        if waiting:
            self._todo.remove(waiting[0])

    def _measurement(
        self, job: Job, found: JobFound, outcome: CandidateOutcome
    ) -> FleetMeasurement:
        comparison = outcome.comparison
        if comparison is not None:
            place = self._names.index(outcome.name)
            comparison = attrs.evolve(comparison, candidate=place)
        baseline = job.names[0]
        is_baseline = outcome.name == baseline
        return FleetMeasurement(
            name=outcome.name,
            worker=job.worker,
            device=job.device,
            outcome=attrs.evolve(outcome, comparison=comparison),
            baseline_median_ns=None
            if is_baseline
            else found.candidate(baseline).median_ns,
            source=found.source,
            is_storable=found.is_storable,
            why_not=found.why_not,
        )

    # What it comes to

    def outcome(self, kind: DeviceKind) -> KindOutcome:
        """What is known; final when it is over."""
        measurements = tuple(
            self._found.get(name) or self._missing(name) for name in self._names
        )
        baseline = self._baseline if self._is_proven else None
        winner: str | None = None
        standing, why_not = Standing.UNDECIDED, "no candidate works"
        if baseline is not None:
            winner, standing, why_not = verdict(baseline, measurements, self._final)
            missing = [name for name in self._names if name not in self._found]
            if missing:
                why_not = why_not or f"not measured: {', '.join(missing)}"
            why_not = why_not or self._final_lost
        return KindOutcome(
            kind=kind,
            devices=tuple(self._devices),
            winner=winner,
            baseline=baseline,
            standing=standing,
            measurements=measurements,
            final=self._final,
            is_storable=not why_not,
            why_not=why_not,
        )

    def _finalists(self) -> tuple[str, ...]:
        """Those between which a final is still to decide."""
        if self._final is not None or self._final_lost:
            return ()
        found = [self._found[name] for name in self._names if name in self._found]
        return finalists(found)

    def _missing(self, name: str) -> FleetMeasurement:
        under_way = any(name in job.names for job in self.under_way)
        reason = "not measured to the end" if under_way else "no worker was left for it"
        outcome = CandidateOutcome(
            name=name, status=CandidateStatus.NOT_TRIED, reason=reason
        )
        return FleetMeasurement(name=name, outcome=outcome, why_not=reason)
