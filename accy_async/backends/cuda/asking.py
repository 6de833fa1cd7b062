"""Asking the driver whether a stream is done, in place of a flag in the stream.

What is asked about is the stream, not a position on it: who submits more to it
meanwhile puts the answer off. And each question takes the driver's lock, and longer
than to read a word. So it is done for a moment only, behind work that is over at once:
there it costs less than to submit a flag.
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
from accy_async.backends.loops import current_bell, due_turn
from accy_async.backends.pace import QUICK_NS

if TYPE_CHECKING:
    from accy_async.backends.cuda.context import CudaContext
    from accy_async.backends.cuda.hub import Hub
    from accy_async.backends.cuda.objects import CudaStream
    from accy_async.backends.cuda.timeline import CudaTimeline
    from accy_async.backends.handles import StreamHandle

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

    async def ends_soon(self, stream: StreamHandle) -> bool:
        """As the contract says; see `Waits.ends_soon`."""
        state: CudaStream = self._stream(stream)  # type: ignore[assignment]
        line = state.flags
        if not line.is_quick or line.has_failed or state.is_lent or state.is_borrowed:
            return False
        return await self._ends_at_once(line, line.submitted)

    async def _ends_at_once(self, line: CudaTimeline, position: int) -> bool:
        """Whether a stream's end is there within a turn of the loop, or soon after."""
        turn = due_turn()
        if turn is not None:
            await turn
        if self._has_ended(line, position):
            return True
        return await self._ends_next(line, position)

    async def _ends_next(self, line: CudaTimeline, position: int) -> bool:
        """Whether it is there after a second turn, if it has no flag.

        What a busy host had to do with an outlier is less than what a flag takes then.
        """
        took = QUICK_NS  # or so, and a turn: the clock is not asked before each wait
        if line.flagged < position:
            await current_bell().turn()
            if self._has_ended(line, position):
                return True
            took += QUICK_NS
        line.is_quick = False
        line.begun = monotonic_ns() - took - (took >> 1)
        return False

    def _has_ended(self, line: CudaTimeline, position: int) -> bool:
        """Ask the driver for a moment whether a stream has come to its end there.

        Where a flag was submitted, the word says so.
        """
        if line.flagged >= position:
            if not line.comes_soon(position):
                return False
        else:
            if line.submitted != position or not self._has_given_all():
                return False
            ask = line.ask or self._asking(line)
            if ask() != 0 or not line.complete_unwatched(position):
                return False
        if line.has_failed:  # meanwhile: whoever waits is told
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
        try:
            if not self._lock.acquire(blocking=False):
                return False
        except BaseException:  # an interrupt right behind it
            try:
                self._lock.release()
            except RuntimeError:  # another thread has it
                pass
            raise
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
