"""A point in the work of several devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.lowlevel
import attrs

if TYPE_CHECKING:
    from accy_async.backends.timeline import Mark

__all__ = ["SpanningMark"]


@attrs.frozen
class SpanningMark:
    """A run of a plan on several devices, to be waited for; `SpanningPlan.submit`.

    Attributes:
        ends: the ends of what nothing else of the run comes after, or behind which the
            host has something to do.
        marks: the ends of all streams that it is on, in the order of their parts.
    """

    ends: tuple[Mark, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def is_past(self) -> bool:
        """True where the run is known to be done, which asks no device."""
        return all(mark.timeline.completed >= mark.position for mark in self.ends)

    @property
    def is_reached(self) -> bool:
        """True where all of the run is done, whether it failed or not."""
        reached = [mark.is_reached for mark in self.ends]  # each is asked
        return all(reached)

    async def wait_reached(self) -> None:
        """Return when all of the run is done, without raising what failed.

        Cancellation: only the wait stops.
        """
        if not self.ends:
            await anyio.lowlevel.checkpoint()
        for mark in self.ends:  # all devices are asked before one is awaited
            mark.timeline.request(mark.position)
        for mark in self.ends:
            await mark.wait_reached()

    async def wait(self) -> None:
        """Return when all of the run is done.

        Raises:
            DeviceError: a part failed; the first, where others failed by that.

        Cancellation: only the wait stops; the work goes on.
        """
        await self.wait_reached()
        for mark in self.marks:
            if mark.timeline.has_failed:
                await mark.wait()
