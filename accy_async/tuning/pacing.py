"""Letting real work go first: how long a sample waits before it is taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import anyio
import anyio.lowlevel
import attrs

from accy_async.values import number, optional

__all__ = ["BudgetSpent", "Pauses", "SampleTooLong", "SharedPace", "TuningBudget"]

_FIRST_LOOK_S, _LAST_LOOK_S = 0.0005, 0.004
"""How soon, and how often at last, it is looked whether real work is in flight, where
nothing tells of its end: each look costs the event loop some 20 to 50 us, and on a CPU
a worker the processor meanwhile."""

_LONGEST_LOOK_S = 0.05
"""How often at last it is looked although something would tell."""

_FRESH_S = 0.01
"""How long the beginning of a pause is waited for: one that lasts longer is as good."""

_MOST_WORK_S, _MOST_CHECK_S = 0.05, 0.005
"""What is counted at most of the time since the last sample, as tuning may have waited
for something else; and since a check, whose results are compared on a thread."""


class BudgetSpent(Exception):
    """The device time of a budget is used up: no error, but an end."""


class SampleTooLong(Exception):
    """A launch holds the device for longer than the budget lets a sample."""


@attrs.frozen(kw_only=True)
class TuningBudget:
    """What tuning may take from a device that serves at the same time.

    Attributes:
        share: the part of the time that samples may take, with what the host does for
            them; above 0, at most 1.
        calls_met: the part of a service's calls that may meet a sample: that are in
            flight or come while one is on the device, or while the host works for it.
            The launches that check a candidate's results, one each, are no samples.
            What comes of it is told by no quantile of latency below 1 less that part.
            Samples are put off for it, each by ``most_wait_s`` at most; 1.0 for no
            bound.
        most_wait_s: how long a sample waits at most for real work to pause, in
            seconds; then it is taken beside it.
        most_delay_s: how long a sample may hold the device, in seconds: what real
            work that comes meanwhile may be delayed by. Kernels that take longer are
            not tuned. None for no bound of its own: some 100 us, or one launch where
            that takes longer.
        total_s: seconds of device time in all, after which tuning ends; None for as
            many as it takes.
    """

    share: float = attrs.field(default=0.05, validator=number(1e-6, 1.0))
    calls_met: float = attrs.field(default=0.01, validator=number(1e-6, 1.0))
    most_wait_s: float = attrs.field(default=1.0, validator=number(0.0, 1e9))
    most_delay_s: float | None = attrs.field(
        default=None, validator=optional(number(1e-9, 1e6))
    )
    total_s: float | None = attrs.field(
        default=None, validator=optional(number(1e-9, 1e9))
    )


class Pauses(Protocol):
    """Tells of a service's calls, and when they pause."""

    @property
    def calls(self) -> int:
        """How many calls have come so far."""

    @property
    def begun(self) -> int:
        """How many pauses have begun so far."""

    async def wait_next(self, longest_s: float, look_s: float) -> None:
        """Return as the next pause begins.

        Args:
            longest_s: after which it returns without one.
            look_s: after which it does where work is in flight that tells nobody when
                it ends.

        Cancellation: only the wait stops.
        """


class SharedPace:
    """Waits before each sample until real work leaves room for it.

    A sample waits while real work is in flight, and so long that samples take at most
    the budget's share of the time. Where work comes and goes it waits for a pause to
    begin, as more of that is left than of one that is found. Work that never pauses
    is not waited for longer than ``most_wait_s``, so that tuning comes to an end beside
    it; its samples then are of a device that is shared, which shows in the conditions.

    Args:
        budget: what samples may take.
        is_busy: whether real work is in flight now.
        pauses: tells when it is no more; None to look again and again.

    Attributes:
        waited_s: seconds waited so far.
        spent_s: seconds that samples have taken so far.
        samples: how many there were.
        samples_beside_work: those of them that were taken while real work was in
            flight.
        calls_met: calls that met one of them.
    """

    def __init__(
        self,
        budget: TuningBudget,
        is_busy: Callable[[], bool],
        pauses: Pauses | None = None,
    ) -> None:
        self.budget = budget
        self.waited_s = 0.0
        self.spent_s = 0.0
        self.samples = 0
        self.samples_beside_work = 0
        self.calls_met = 0
        self._is_busy = is_busy
        self._pauses = pauses
        self._returned_at = math.inf
        self._begun_at = math.inf
        self._calls_before = 0
        self._calls_at_sample: int | None = None

    async def __call__(self, last_ns: float) -> None:
        """Return when the next sample may be taken.

        Args:
            last_ns: what the sample before took; 0 where it was a check.

        Raises:
            BudgetSpent: no further sample is to be taken.
            SampleTooLong: samples of this kernel hold the device for too long.

        Cancellation: only the wait stops.
        """
        budget = self.budget
        begun = anyio.current_time()
        self.spent_s += last_ns * 1e-9
        if budget.total_s is not None and self.spent_s >= budget.total_s:
            raise BudgetSpent(f"{budget.total_s:g} s of device time are used up")
        if budget.most_delay_s is not None and last_ns > budget.most_delay_s * 1e9:
            raise SampleTooLong(
                f"a sample holds the device for {last_ns / 1e3:.0f} us, more than "
                f"the budget's most_delay_s of {budget.most_delay_s * 1e6:.0f} us"
            )
        # What the host did for the sample takes from real work, too.
        most_s = _MOST_WORK_S if last_ns > 0.0 else _MOST_CHECK_S
        worked_s = min(max(begun - self._returned_at, 0.0), most_s)
        rest_s = max(last_ns * 1e-9, worked_s) * (1.0 / budget.share - 1.0)
        pauses = self._pauses
        if pauses is not None:
            if last_ns > 0.0 and self._calls_at_sample is not None:
                self.calls_met += pauses.calls - self._calls_at_sample
            rest_s = max(rest_s, self._put_off_s(pauses.calls, begun))
        seen = 0 if pauses is None else pauses.begun
        if rest_s > 0.0:
            await anyio.sleep(rest_s)
        else:
            await anyio.lowlevel.checkpoint()
        gives_up_at = anyio.current_time() + budget.most_wait_s
        if pauses is not None and pauses.begun > seen:
            await pauses.wait_next(min(_FRESH_S, budget.most_wait_s), _FRESH_S)
        look_s = _FIRST_LOOK_S
        while self._is_busy():
            left_s = gives_up_at - anyio.current_time()
            if left_s <= 0.0:
                break
            if pauses is None:
                await anyio.sleep(look_s)
            else:
                await pauses.wait_next(min(left_s, _LONGEST_LOOK_S), look_s)
            look_s = min(2.0 * look_s, _LAST_LOOK_S)
        is_beside = self._is_busy()
        self.samples += 1
        self.samples_beside_work += is_beside
        self.calls_met += is_beside
        if pauses is not None:
            self._calls_at_sample = pauses.calls
        self._returned_at = anyio.current_time()
        self.waited_s += self._returned_at - begun

    def _put_off_s(self, calls: int, now_s: float) -> float:
        """How long until few enough calls have met a sample, as they come now."""
        if self._calls_at_sample is None:
            self._begun_at, self._calls_before = now_s, calls
            return 0.0
        came = calls - self._calls_before
        missing = self.calls_met / self.budget.calls_met - came
        if came == 0 or missing <= 0.0:
            return 0.0
        wait_s = missing * (now_s - self._begun_at) / came
        return min(wait_s, self.budget.most_wait_s)
