"""How a task waits for a stream: a turn, then polling, then sleep.

Each for as long as it is the cheapest way to learn of the end; `Pace` knows how long
such waits take. Nothing here keeps a loop for more than `SPIN_NS` at a stretch, and no
more than `MOST_POLLERS` of its tasks poll at once.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from accy_async.backends.completion import Completion
from accy_async.backends.cuda.pace import QUICK_NS, SPIN_NS, Pace
from accy_async.backends.loops import Bell

if TYPE_CHECKING:
    from accy_async.backends.cuda.timeline import CudaTimeline

__all__ = ["MOST_POLLERS", "Arrival", "arrive"]

MOST_POLLERS = 4
"""So many tasks of one loop poll at once; the next ones sleep."""


class Arrival(Completion):
    """A sleeping wait. Times are monotonic, in nanoseconds.

    Attributes:
        early_ns: when to wake it though it has not ended, to poll for the rest; 0 for
            never.
        near_ns: when the scanner should begin to look hard,
        late_ns: and when to end that.
        is_early: whether it was woken early.
    """

    __slots__ = ("early_ns", "is_early", "late_ns", "near_ns")

    def __init__(self, bell: Bell, early_ns: int, near_ns: int, late_ns: int) -> None:
        super().__init__(bell)
        self.early_ns = early_ns
        self.near_ns = near_ns
        self.late_ns = late_ns
        self.is_early = False


async def arrive(line: CudaTimeline, position: int, bell: Bell, before: int) -> None:
    """Return once a stream has come to a position that is flagged; a checkpoint.

    Args:
        line: the stream's.
        position: what to wait for.
        bell: of the loop that this runs on.
        before: how far it was known to have come.
    """
    await bell.turn()  # short work ends meanwhile; the clock is not asked for it
    if line.completed >= position:
        line.is_quick = True
        return
    begun = monotonic_ns()
    pace = line.hub.paces.of(line.kind_at(position), position - before)
    patience = pace.patience
    if patience:
        await _poll(line, position, bell, begun + patience)
        if line.completed >= position:
            took = monotonic_ns() - begun
            line.is_quick = took <= QUICK_NS
            pace.learn(took)
            return
    ended = await _sleep(line, position, bell, begun, pace)
    if ended:
        pace.learn(ended - begun)


async def _poll(line: CudaTimeline, position: int, bell: Bell, until: int) -> None:
    """Read the word between turns until then."""
    if line.has_long_finishers or bell.pollers >= MOST_POLLERS:
        return
    spin = line.hub.scanner.spin
    bell.pollers += 1
    try:
        while True:
            if bell.pollers == 1:  # nobody else of the loop is at it
                spin(line.word_address, position, SPIN_NS)
            if line.completed >= position or monotonic_ns() >= until:
                return
            await bell.turn()
    finally:
        bell.pollers -= 1


async def _sleep(
    line: CudaTimeline, position: int, bell: Bell, begun: int, pace: Pace
) -> int:
    """Sleep until the hub wakes the task; when the end came, or 0 if nobody saw it.

    Where it is known well enough beforehand, the loop is rung so much earlier as it
    takes to be up, and the task polls for the rest.
    """
    hub, early = line.hub, 0
    near, late = (begun + offset for offset in pace.window)
    if pace.is_steady:
        early = begun + pace.earliest - hub.lag_of(bell).allowance
    if 0 < early <= monotonic_ns():  # it is not worth going to sleep
        early = 0
        await _poll(line, position, bell, begun + pace.latest)
    while line.completed < position:
        arrival = Arrival(bell, early, near, late)
        line.watch(position, arrival)
        try:
            await arrival.wait()
        except BaseException:
            line.unwatch(arrival)
            raise
        now = monotonic_ns()
        if arrival.is_early:
            hub.lag_of(bell).learn(now - early)
            if line.completed >= position:
                pace.shorten(hub.lag_of(bell).allowance >> 4)  # up too late to see it
                return 0
            await _poll(line, position, bell, begun + pace.latest)
        elif begun < hub.scanner.reached_ns(line.slot) < now:
            return hub.scanner.reached_ns(line.slot)
        early, near, late = 0, 0, monotonic_ns()
    return monotonic_ns()
