"""How a task sleeps until a stream's word says what it waits for.

By the loop's alarm, shortly before an end that is known well; or until the hub wakes
it.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from accy_async.backends.arrival import poll
from accy_async.backends.bell import Bell
from accy_async.backends.completion import Completion

if TYPE_CHECKING:
    from accy_async.backends.alarm import Alarm
    from accy_async.backends.cuda.timeline import CudaTimeline
    from accy_async.backends.pace import Pace

__all__ = ["Arrival", "sleep"]

_MOST_ALARMS = 64
"""So many tasks of one loop sleep by its alarm; the next ones are left to the hub."""

_FAR_NS = 20_000_000
"""What is to come so late is looked for by the scanner meanwhile: it might come sooner,
and the driver is to be asked now and then whether all is well."""

_LEAST_SLEEP_NS = 50_000
"""To sleep for less is not worth it."""

_UNSEEN = (0, 0)


class Arrival(Completion):
    """A sleeping wait. Times are monotonic, in nanoseconds.

    Attributes:
        near_ns: when the scanner should begin to look hard,
        late_ns: and when to end that.
        looks_itself: an alarm wakes its task shortly before the end, and the scanner
            has nothing to do.
    """

    __slots__ = ("late_ns", "looks_itself", "near_ns")

    def __init__(
        self, bell: Bell, near_ns: int, late_ns: int, *, looks_itself: bool = False
    ) -> None:
        super().__init__(bell)
        self.near_ns = near_ns
        self.late_ns = late_ns
        self.looks_itself = looks_itself

    def rouse(self) -> None:
        """Wake the task though the signal is not set; it can sleep again.

        On its loop's thread.
        """
        with self._lock:
            waiter, self._waiter = self._waiter, None
        if waiter is not None and waiter.is_waiting:
            waiter.is_waiting = False
            waiter.wake()


async def sleep(
    line: CudaTimeline, position: int, bell: Bell, begun: int, pace: Pace
) -> tuple[int, int]:
    """Sleep until the end; as `Awaited.sleep`.

    Where it is known well enough beforehand the task sees to it itself; if not, or if
    it did not come then, the hub wakes the task.
    """
    if pace.is_steady and line.can_poll:
        alarm = bell.alarm
        if alarm is not None and len(alarm) < _MOST_ALARMS:
            sighting = await _doze(line, position, alarm, bell, begun, pace)
            if line.completed >= position:
                return sighting
    near, late = (begun + offset for offset in pace.window)
    await line.wait_signal(position, Arrival(bell, near, late))
    return _sighting(line, begun)


async def _doze(
    line: CudaTimeline,
    position: int,
    alarm: Alarm,
    bell: Bell,
    begun: int,
    pace: Pace,
) -> tuple[int, int]:
    """Sleep until shortly before the end, then poll until it should have come.

    Returns:
        When it was seen not to be there last, and when to be, if it came.
    """
    now, lag = monotonic_ns(), alarm.lag
    earliest, latest = pace.limits
    target, until = begun + earliest, begun + latest
    at = target - lag.allowance
    if at - now < _LEAST_SLEEP_NS:
        await bell.turn()
        await poll(line, position, bell, until, begun + pace.near)
        now = monotonic_ns()
        return now, now
    arrival = Arrival(bell, until, until, looks_itself=target - now <= _FAR_NS)
    line.watch(position, arrival)
    entry = alarm.call_at(at, arrival.rouse)
    try:
        await arrival.wait()
    except GeneratorExit:  # see `Timeline.unwatch`
        entry.call = None  # the alarm may be at it on this very thread, too
        raise
    except BaseException:
        alarm.cancel(entry)
        line.unwatch(arrival)
        raise
    if arrival.is_set:
        alarm.cancel(entry)
        line.unwatch(arrival)
        return _sighting(line, begun)
    now = monotonic_ns()
    # A thread that has slept has left the caches, and is some 20 us late by what it
    # does after the end. So what can be done before is.
    is_watched = line.has_finishers  # which are seen to as long as somebody watches
    if not is_watched:
        line.unwatch(arrival)
    sighting = _UNSEEN
    is_late = line.completed >= position
    if is_late and now < target:
        pace.overlook()
    else:
        lag.learn(now - at, is_late=is_late)
    if not is_late:
        try:
            await poll(line, position, bell, until, begun + pace.near)
        except GeneratorExit:
            raise
        except BaseException:
            line.unwatch(arrival)
            raise
        seen = monotonic_ns()
        sighting = seen, seen
    if is_watched:
        line.unwatch(arrival)
    return sighting


def _sighting(line: CudaTimeline, begun: int) -> tuple[int, int]:
    """When the scanner looked in vain last, and when not, if that was since then."""
    unseen, seen = line.hub.scanner.sighting(line.slot)
    return (unseen, seen) if begun < seen < monotonic_ns() else _UNSEEN
