"""Who measures what: the deciding part of a fleet, pure and sync.

The list is gone through once for each kind of device that can run it. Each job is one
candidate against the baseline on one worker, so that what differs from device to device
is in both; a worker that is free takes the next. The rules:

* The baseline is the first candidate that works. Where a worker finds that it does not,
  the next one takes its place, and what was to be compared with it is handed out again.
* What was under way on a worker that is lost is handed to another. Whoever was under
  way `most_losses` times when that happened is out: it is taken for the cause. As long
  as the baseline itself is not known to work it is tried alone first, so that nobody
  pays for it.
* Where the best are too near each other to choose between by comparisons from different
  devices, they are measured once more beside each other, in a *final* on one of them.

A `Board` is told what happened and answers what to do; it waits for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accy_async.fleet.found import (
    DeviceKind,
    FleetDevice,
    FleetMeasurement,
    JobFound,
    KindOutcome,
)
from accy_async.fleet.kindlist import Job, KindList

__all__ = ["Board", "Job"]


class Board:
    """One list of candidates, and what is known of it.

    Args:
        names: the candidates', in the order of the list.
        refused: by kind of device, who cannot run there, and why.
        most_losses: how many workers may be lost with a candidate under way.
    """

    def __init__(
        self,
        names: Sequence[str],
        refused: Mapping[DeviceKind, Mapping[str, str]],
        most_losses: int = 2,
    ) -> None:
        self._names = tuple(names)
        self.news: list[FleetMeasurement] = []
        self._lists = {
            kind: KindList(self._names, cannot, most_losses, self.news)
            for kind, cannot in refused.items()
            if len(cannot) < len(self._names)
        }
        self._present: dict[str, DeviceKind] = {}

    @property
    def is_over(self) -> bool:
        """True where nothing is under way, and nobody is there for what is left."""
        there = set(self._present.values())
        return all(
            one.is_over or (kind not in there and not one.under_way)
            for kind, one in self._lists.items()
        )

    @property
    def under_way(self) -> tuple[Job, ...]:
        """The jobs that workers have."""
        return tuple(job for one in self._lists.values() for job in one.under_way)

    def join(self, worker: str, kind: DeviceKind) -> None:
        """A worker is there, or may come back."""
        self._present[worker] = kind

    def leave(self, worker: str) -> None:
        """A worker is gone for good. Its job must have been lost before."""
        self._present.pop(worker, None)

    def next(self, worker: str, device: FleetDevice) -> Job | None:
        """What a free worker is to do now; None for nothing."""
        found = self._lists.get(device.kind)
        return None if found is None else found.next(worker, device)

    def done(self, job: Job, found: JobFound) -> None:
        """A worker has done its job."""
        self._lists[job.device.kind].done(job, found)

    def lost(self, job: Job, reason: str, culprit: str = "") -> None:
        """A worker was lost with its job.

        Args:
            job: the job.
            reason: how it was lost.
            culprit: who took it along, where that is known.
        """
        self._lists[job.device.kind].lost(job, reason, culprit)

    def outcomes(self) -> tuple[KindOutcome, ...]:
        """What is known, for each kind of device; final when all is over."""
        return tuple(one.outcome(kind) for kind, one in self._lists.items())
