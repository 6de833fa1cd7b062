"""How fast a run submits: in slices of time, and within the room that there is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio.lowlevel

from accy_async.graph.slices import SLICE_NS

if TYPE_CHECKING:
    from accy_async.graph.governor import Governor
    from accy_async.graph.progress import RunProgress

__all__ = ["TOGETHER", "Pace"]

TOGETHER = 8
"""Nodes submitted between two looks at the clock."""


class Pace:
    """When one run gives way, and when it waits; counts the time in between.

    Used in a ``with`` block around all of the run's submitting.

    Args:
        progress: the run.
        governor: shares the session's room among its runs.

    Attributes:
        together: nodes that may be submitted in one go.
    """

    __slots__ = ("_began_ns", "_governor", "_progress", "_until_check", "together")

    def __init__(self, progress: RunProgress, governor: Governor) -> None:
        self._progress = progress
        self._governor = governor
        self._until_check = TOGETHER
        self._began_ns = 0
        # A small room is filled better by small portions.
        self.together = max(1, min(TOGETHER, governor.limit // TOGETHER))

    def __enter__(self) -> None:
        self._began_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self._count_time()

    def has_room(self, operations: int) -> bool:
        """True where so many may be submitted at once; else `wait_for_room` first."""
        return self._governor.may_submit(self._progress, operations)

    async def wait_for_room(self, operations: int) -> None:
        """Return when there is room for so many operations.

        Cancellation: only the wait stops.
        """
        self._count_time()
        self._progress.waits_for_room += 1
        await self._governor.wait_for_room(self._progress, operations)
        self._began_ns = time.perf_counter_ns()

    def is_due(self, submitted: int) -> bool:
        """Count nodes submitted; True where it is time to `breathe`."""
        self._until_check -= submitted
        return self._until_check <= 0

    async def breathe(self) -> None:
        """Give way to the loop if the slice is used up."""
        progress = self._progress
        self._until_check = TOGETHER
        slice_ns = SLICE_NS * self._governor.slice_part(progress)
        if time.perf_counter_ns() - self._began_ns >= slice_ns:
            self._count_time()
            progress.yields += 1
            await anyio.lowlevel.checkpoint()
            self._began_ns = time.perf_counter_ns()

    def _count_time(self) -> None:
        now = time.perf_counter_ns()
        self._progress.submit_ns += now - self._began_ns
        self._began_ns = now
