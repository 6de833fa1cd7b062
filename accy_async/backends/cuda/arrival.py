"""How a task sleeps until a stream's word says what it waits for."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from accy_async.backends.arrival import poll
from accy_async.backends.completion import Completion
from accy_async.backends.loops import Bell
from accy_async.backends.pace import Pace

if TYPE_CHECKING:
    from accy_async.backends.cuda.timeline import CudaTimeline

__all__ = ["Arrival", "sleep"]


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


async def sleep(
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
        await poll(line, position, bell, begun + pace.latest)
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
            await poll(line, position, bell, begun + pace.latest)
        elif begun < hub.scanner.reached_ns(line.slot) < now:
            return hub.scanner.reached_ns(line.slot)
        early, near, late = 0, 0, monotonic_ns()
    return monotonic_ns()
