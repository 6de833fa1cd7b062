"""What a search has spent of its budget: device time, and waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import attrs

from accy_async.tuning.measuring import MeasureOptions, TimeSource

if TYPE_CHECKING:
    from accy_async.tuning.measuring import Measuring
    from accy_async.tuning.search.options import SearchOptions

__all__ = ["Ledger"]

_LEAST_LIMIT_S = 1.0
"""How long a sample is waited for at least, whatever is left of the budget: on a busy
host the wait takes longer than the device does."""

_MOST_RESERVED = 0.6
"""Of the budget, for the final race, whatever that takes."""


class Ledger:
    """Adds up measurements and turns, and tells what is left.

    Args:
        options: the budget.
        has_clock: whether the device has a clock of its own.

    Attributes:
        reserve_s: what the final race takes at least, as far as is known.
        source: whose clock measurements are read from; where it is the host's, what
            is spent is the time of the turns.
    """

    def __init__(self, options: SearchOptions, *, has_clock: bool) -> None:
        self.source = TimeSource.DEVICE if has_clock else TimeSource.HOST
        self.reserve_s = 0.0
        self._options = options
        self._spent_ns = 0.0
        self._waited_s = 0.0
        self._turn_began: float | None = None
        self._running: Measuring | None = None

    @property
    def explore_share(self) -> float:
        """The part of the budget that is for finding finalists.

        The rest is for the final race: what the options say, or what it takes, where
        that is more, but not nearly all.
        """
        options = self._options
        needed = min(_MOST_RESERVED, self.reserve_s / options.budget_s)
        return 1.0 - max(options.final_share, needed)

    @property
    def spent_s(self) -> float:
        """Seconds of the budget that are spent."""
        if self.source is TimeSource.HOST:
            return self._waiting_s()
        running = 0.0 if self._running is None else self._running.spent_ns
        return (self._spent_ns + running) * 1e-9

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Count the time of a turn."""
        self._turn_began = anyio.current_time()
        try:
            yield
        finally:
            self._waited_s = self._waiting_s()
            self._turn_began = None

    @contextmanager
    def measurement(self, measuring: Measuring) -> Iterator[None]:
        """Count what a measurement takes."""
        self._running = measuring
        try:
            yield
        finally:
            self._running = None
            self._spent_ns += measuring.spent_ns
            if measuring.kept.rounds:
                self.source = measuring.kept.source

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self._left_s(1.0)

    def is_spent(self, share: float, next_s: float = 0.0) -> bool:
        """Whether that part of the budget has no room for ``next_s`` more."""
        return self._left_s(share) <= next_s

    def limited(self, options: MeasureOptions, share: float) -> MeasureOptions:
        """The options, so that none is waited for much longer than that part lasts."""
        left = max(_LEAST_LIMIT_S, self._left_s(share))
        return attrs.evolve(options, time_limit_s=min(options.time_limit_s, left))

    def _left_s(self, share: float) -> float:
        options = self._options
        left = share * options.budget_s - self.spent_s
        if options.wall_s is not None:
            left = min(left, share * options.wall_s - self._waiting_s())
        return left

    def _waiting_s(self) -> float:
        if self._turn_began is None:
            return self._waited_s
        return self._waited_s + (anyio.current_time() - self._turn_began)
