"""How a task waits for a stream: a turn, then polling, then sleep.

Each for as long as it is the cheapest way to learn of the end; `Pace` knows how long
such waits take. Nothing here keeps a loop for more than `SPIN_NS` at a stretch, and no
more than `MOST_POLLERS` of its tasks poll at once. How a device is asked, and who
wakes a task that sleeps, are the device's own.
"""

from __future__ import annotations

from collections.abc import Hashable
from time import monotonic_ns
from typing import Protocol

from accy_async.backends.bell import Bell
from accy_async.backends.pace import SOON_NS, SPIN_NS, Pace, Paces

__all__ = ["MOST_POLLERS", "Awaited", "arrive", "poll"]

MOST_POLLERS = 4
"""So many tasks of one loop poll at once; the next ones sleep."""


class Awaited(Protocol):
    """A stream's timeline, as one who waits knows it. Times are in nanoseconds.

    Attributes:
        is_quick: whether the last wait ended within a turn of its loop, or soon after.
    """

    is_quick: bool

    @property
    def paces(self) -> Paces:
        """How long waits for the device take."""

    @property
    def can_poll(self) -> bool:
        """Whether looking is enough to know: not where the host has much to do."""

    def kind_at(self, position: int) -> Hashable:
        """What waits for such work as there is at a position have in common."""

    def has_come(self, position: int) -> bool:
        """Look whether the position is reached, which is cheap."""

    def spin(self, position: int, limit_ns: int) -> None:
        """Look again and again until the position is reached, no longer than that."""

    async def sleep(
        self, position: int, bell: Bell, begun: int, pace: Pace
    ) -> tuple[int, int]:
        """Sleep until the position is reached, or the device lost; a checkpoint.

        Returns:
            When it was seen not to be reached for the last time, and when to be, on the
            monotonic clock; zeros if nobody saw it.
        """


async def arrive(
    line: Awaited, position: int, bell: Bell, before: int, begun: int = 0
) -> None:
    """Return once a stream has come to a position; a checkpoint.

    Args:
        line: the stream's.
        position: what to wait for; the device says when it is reached.
        bell: of the loop that this runs on.
        before: how far it was known to have come.
        begun: when the wait began, on the monotonic clock, if it has had its turn
            already; 0 if it begins now.
    """
    pace = line.paces.of(line.kind_at(position), position - before)
    is_long, is_new = pace.is_long, not begun
    now = monotonic_ns()
    if is_new:
        begun = now
        if not is_long:  # else the sleep is checkpoint enough
            await bell.turn()
            if line.has_come(position):  # short work has ended meanwhile
                line.is_quick = True
                return
            now = monotonic_ns()
    patience = 0 if is_long else pace.patience
    if patience:
        blur = await poll(line, position, bell, begun + patience, begun + pace.near)
        if blur >= 0:
            seen = monotonic_ns()
            line.is_quick = is_new and seen - now <= SOON_NS
            pace.note(seen - begun, blur)
            return
    unseen, seen = await line.sleep(position, bell, begun, pace)
    if seen:
        pace.note(seen - begun, seen - max(unseen, begun))


async def poll(
    line: Awaited, position: int, bell: Bell, until: int, near: int = 0
) -> int:
    """Look between turns.

    Args:
        line: the stream's.
        position: what to wait for.
        bell: of the loop that this runs on.
        until: when to give up, on the monotonic clock.
        near: when the end is near: then no turn is to be under way. 0 if nobody knows.

    Returns:
        How long nobody had looked when the position was seen to be reached; -1 if it is
        not.
    """
    if not line.can_poll or bell.pollers >= MOST_POLLERS:
        return 0 if line.has_come(position) else -1
    bell.pollers += 1
    try:
        blur, now = 0, monotonic_ns()
        while True:
            if line.has_come(position):
                return blur
            if bell.pollers == 1:  # nobody else of the loop is at it
                line.spin(position, _stretch(near - bell.turn_ns - now))
                if line.has_come(position):
                    return 0
            seen = monotonic_ns()
            if seen >= until:
                return -1
            await bell.turn()
            now = monotonic_ns()
            blur = now - seen
            bell.turn_ns += (min(blur, SPIN_NS) - bell.turn_ns) >> 2  # others' are long
    finally:
        bell.pollers -= 1


def _stretch(left: int) -> int:
    """How long to look, if the last turn before the end has to begin in so long."""
    return left if 0 < left < SPIN_NS else SPIN_NS
