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
        """Sleep until the position is reached; always a checkpoint.

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
    is_long, has_come, is_new = pace.is_long, False, not begun
    begun = turned = begun or monotonic_ns()
    if not is_long:  # else the sleep is checkpoint enough
        await bell.turn()  # short work ends meanwhile
        has_come = line.has_come(position)
        if has_come and is_new:
            line.is_quick = True
            return
        turned = monotonic_ns()
    patience = 0 if is_long else pace.patience
    if has_come or (
        patience
        and await poll(line, position, bell, begun + patience, begun + pace.near)
    ):
        now = monotonic_ns()
        line.is_quick = now - turned <= SOON_NS
        pace.note(now - begun)
        return
    unseen, seen = await line.sleep(position, bell, begun, pace)
    if seen:
        pace.note(seen - begun, seen - max(unseen, begun))


async def poll(
    line: Awaited, position: int, bell: Bell, until: int, near: int = 0
) -> bool:
    """Look between turns; True if the position is reached.

    Args:
        line: the stream's.
        position: what to wait for.
        bell: of the loop that this runs on.
        until: when to give up, on the monotonic clock.
        near: when the end is near: then no turn is to be under way. 0 if nobody knows.
    """
    if not line.can_poll or bell.pollers >= MOST_POLLERS:
        return line.has_come(position)
    bell.pollers += 1
    try:
        now = monotonic_ns()
        while True:
            if bell.pollers == 1:  # nobody else of the loop is at it
                line.spin(position, _stretch(near - bell.turn_ns - now))
            if line.has_come(position):
                return True
            now = monotonic_ns()
            if now >= until:
                return False
            await bell.turn()
            begun, now = now, monotonic_ns()
            took = min(now - begun, SPIN_NS)  # others' turns can be of any length
            bell.turn_ns += (took - bell.turn_ns) >> 2
    finally:
        bell.pollers -= 1


def _stretch(left: int) -> int:
    """How long to look, if the last turn before the end has to begin in so long."""
    return left if 0 < left < SPIN_NS else SPIN_NS
