"""Asking the driver whether a stream is done, in place of a flag in the stream.

A flag takes the device 1 to 3 us, at the end of the very work that is waited for. To
ask takes the host as long, but while it would wait anyway. What is asked about is the
stream, not a position on it: who submits more to it meanwhile puts the answer off. So
it is done for a moment only, or where nobody else submits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property, partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from accy_async.backends.base import Backend
from accy_async.backends.cuda.board import BUSY
from accy_async.backends.cuda.thunks import address_of
from accy_async.backends.loops import current_bell
from accy_async.backends.pace import QUICK_NS, SPIN_NS

if TYPE_CHECKING:
    from accy_async.backends.cuda.context import CudaContext
    from accy_async.backends.cuda.hub import Hub
    from accy_async.backends.cuda.objects import CudaStream
    from accy_async.backends.cuda.timeline import CudaTimeline
    from accy_async.backends.handles import StreamHandle
    from accy_async.backends.loops import Bell
    from accy_async.backends.pace import Pace

__all__ = ["CudaAsking"]


class CudaAsking(Backend):
    """The part of the backend that asks about its streams."""

    _context: CudaContext
    _driver: Any
    _hub: Hub
    _ask: Callable[[Any], tuple[Any]]
    _natives: dict[CudaTimeline, Any]
    _questions: threading.RLock
    """Held while the bindings ask about a stream: it is not destroyed meanwhile."""

    async def ends_soon(self, stream: StreamHandle, *, is_alone: bool = False) -> bool:
        """As the contract says; see `Waits.ends_soon`.

        Where nobody else submits to the stream, for as long as its waits are polled.
        """
        state: CudaStream = self._stream(stream)  # type: ignore[assignment]
        line = state.flags
        if line.has_failed or state.is_lent or state.is_borrowed:
            return False
        position = line.submitted
        if line.is_quick:
            return await self._ends_at_once(line, position)
        if not is_alone or line.is_flagged(position):
            return False
        bell, pace = current_bell(), line.pace_at(position)
        line.is_quick = 0 < pace.noted <= QUICK_NS
        pace.recall()
        if bell.pollers or not pace.patience:
            return False
        bell.pollers += 1
        try:
            return await self._ends_in_time(line, position, bell, pace)
        finally:
            bell.pollers -= 1

    async def _ends_at_once(self, line: CudaTimeline, position: int) -> bool:
        """Whether a stream's end is there within a turn of the loop, or soon after.

        After a second turn it is asked about once more: what a busy host had to do with
        an outlier is less than what a flag takes then.
        """
        turn = current_bell().turn
        await turn()
        if self._has_ended(line, position):
            return True
        await turn()
        if self._has_ended(line, position):
            return True
        line.is_quick = False
        line.begun = monotonic_ns() - 2 * QUICK_NS  # about when the first turn was over
        return False

    async def _ends_in_time(
        self, line: CudaTimeline, position: int, bell: Bell, pace: Pace
    ) -> bool:
        """Whether a stream's end is there about when it should be.

        Until shortly before the end may well be there it is not asked about: it is the
        driver's lock that each question takes. Then such that an end at its usual time
        does not fall into a turn. One that came sooner is seen late, and the pace finds
        out.
        """
        await bell.turn()
        now = begun = monotonic_ns()
        soon = begun + pace.mean - 2 * pace.spread - SPIN_NS // 2
        until = begun + pace.patience
        while line.submitted == position:
            if now < soon:
                if bell.pollers == 1:  # nobody else of the loop is at it
                    line.spin(position, min(SPIN_NS, soon - now))
                has_ended = line.has_come(position)  # if anybody had it flagged
            else:
                has_ended = self._has_ended(line, position)
            if has_ended:
                pace.noted = monotonic_ns() - begun
                return True
            if now >= until:
                break
            await bell.turn()
            now = monotonic_ns()
        line.is_quick = False
        line.begun = begun
        return False

    def _has_ended(self, line: CudaTimeline, position: int) -> bool:
        """Ask the driver for a moment whether a stream has come to its end there."""
        if line.submitted != position or not self._has_given_all():
            return False
        ask = line.ask or self._asking(line)
        if ask() != 0 or not line.complete_unwatched(position):
            return False
        if self._abandoned:
            self._discard_abandoned()
        self._table.sweep()
        return True

    def _has_given_all(self) -> bool:
        """Whether the driver has all that has a position by now.

        Between the two, which are under the submission lock, it knows of less: its
        answer would be about what came before.
        """
        if not self._lock.acquire(blocking=False):
            return False
        self._lock.release()
        return True

    def _asking(self, line: CudaTimeline) -> Callable[[], int]:
        """What asks the driver for a moment whether a stream is done: 0 if it is."""
        if self._query_address is not None and line in self._natives:
            asking = self._hub.scanner.asking(line.slot, self._query_address)
            if asking is not None:
                line.ask = asking
                return asking
        return partial(self._ask_again, line)

    def _ask_again(self, line: CudaTimeline) -> int:
        """The same without machine code."""
        until = 0
        while True:
            with self._questions:
                native = self._natives.get(line)
                if native is None:
                    return BUSY
                (result,) = self._ask(native)
            if result != BUSY:
                return int(result)
            now = monotonic_ns()
            until = until or now + QUICK_NS
            if now >= until:
                return BUSY

    @cached_property
    def _query_address(self) -> int | None:
        """Where the driver's function is; None where the bindings' is to be called."""
        return None if self.is_debugging else address_of(self._driver, "cuStreamQuery")
