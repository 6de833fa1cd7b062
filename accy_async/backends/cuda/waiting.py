"""What the backend's streams are noticed by: a word for each, flags, and the hub."""

from __future__ import annotations

import ctypes
import threading
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, ClassVar

from accy_async.backends.base import Backend
from accy_async.backends.cuda.board import BUSY
from accy_async.backends.cuda.driver import STICKY_CODES
from accy_async.backends.cuda.hub import Hub
from accy_async.backends.cuda.objects import CudaStream
from accy_async.backends.cuda.thunks import address_of
from accy_async.backends.cuda.timeline import CudaTimeline
from accy_async.backends.loops import current_bell
from accy_async.backends.pace import QUICK_NS
from accy_async.errors import AccyError, DeviceError, DeviceLost

if TYPE_CHECKING:
    from accy_async.backends.cuda.context import CudaContext
    from accy_async.backends.cuda.memory import PinnedPool
    from accy_async.backends.cuda.modules import LateUnloads
    from accy_async.backends.handles import StreamHandle

__all__ = ["CudaWaiting"]

_CAPTURING = range(900, 908)
"""What is asked of a stream whose work another library is recording."""


class CudaWaiting(Backend):
    """The part of the backend that says how far its streams have come."""

    words: ClassVar[int] = 4096
    """Streams that can be open at once: a word of pinned memory for each."""

    _context: CudaContext
    _driver: Any
    _unloads: LateUnloads

    @abstractmethod
    def _give_back(self) -> None:
        """Give the context back, if nothing is in use any more."""

    @abstractmethod
    def _unload_if_idle(self) -> None:
        """Unload what was to be unloaded, if nothing is at work on the device."""

    def _open_words(self, pinned: PinnedPool) -> None:
        """Make the streams' words; before the first stream."""
        address, words = pinned.take(8 * self.words)
        words.fill(0)
        self._free_slots = list(reversed(range(self.words)))
        self._natives: dict[CudaTimeline, Any] = {}
        # Held while the bindings ask about one of these: it is not destroyed meanwhile.
        self._questions = threading.RLock()
        self._write_value = self._driver.cuStreamWriteValue64
        self._ask = self._driver.cuStreamQuery
        self._hub = Hub(address, self.words, self._after_completion, self._has_chores)

    def _make_stream(self, name: str, priority: int, native: Any) -> CudaStream:  # noqa: ANN401
        """Keep a stream of the driver's."""
        slot = self._free_slots.pop()
        line = CudaTimeline(name, slot, self._flag, self._query, self._hub)
        ctypes.c_uint64.from_address(line.word_address).value = 0
        self._natives[line] = native
        self._hub.scanner.admit(slot, int(native))
        return CudaStream(line, priority, native)

    def _close_stream(self, stream: CudaStream) -> None:
        """Forget a stream that is idle, and destroy it if it is ours."""
        line = stream.flags
        line.ask = None
        line.detach()
        self._hub.scanner.bar(line.slot)
        with self._questions:
            self._natives.pop(line, None)
        stream.keeper = None
        self._free_slots.append(line.slot)
        if not stream.is_borrowed:
            answer = self._driver.cuStreamDestroy(stream.native)
            self._context.check(answer, "cuStreamDestroy")

    async def wait_stream(self, stream: StreamHandle) -> None:
        """As the contract says; see `Waits.wait_stream`.

        Behind work that ends within a turn of the loop, or soon after, no flag is
        submitted: to ask the driver then costs less than a flag before it.
        """
        if self._is_closed or self._is_forked or self._lost is not None:
            self._check("wait_stream")  # says which
        state: CudaStream = self._stream(stream)  # type: ignore[assignment]
        line = state.flags
        position = line.submitted
        if state.is_lent or state.is_borrowed:  # what others submit has no position yet
            await super().wait_stream(stream)
            return
        if not line.is_quick or line.has_failed:
            await self._wait_line(line, position)
            return
        await current_bell().turn()
        if not self._has_ended(line, position):
            await self._wait_line(line, position)
            line.is_quick = False  # whatever this wait took, which began late

    async def _wait_line(self, line: CudaTimeline, position: int) -> None:
        """`_wait_mark` in one piece: what is waited for often goes this way."""
        try:
            await line.wait_reached(position)
            if line.has_failed:
                line.raise_at(position)
        except DeviceLost:
            self._is_loss_told = True
            raise
        finally:
            if self._abandoned:
                self._discard_abandoned()
            self._table.sweep()

    async def ends_soon(self, stream: StreamHandle) -> bool:
        """As the contract says; see `Waits.ends_soon`."""
        state: CudaStream = self._stream(stream)  # type: ignore[assignment]
        line = state.flags
        if not line.is_quick or line.has_failed or state.is_lent or state.is_borrowed:
            return False
        position = line.submitted
        await current_bell().turn()
        return self._has_ended(line, position)

    def _has_ended(self, line: CudaTimeline, position: int) -> bool:
        """Ask the driver for a moment whether a stream has come to its end there."""
        if line.submitted != position:
            return False
        ask = line.ask or self._asking(line)
        if ask() != 0 or not line.complete_unwatched(position):
            return False
        if self._abandoned:
            self._discard_abandoned()
        self._table.sweep()
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

    def _flag(self, line: CudaTimeline, position: int) -> None:
        """Have the stream write its position into its word."""
        with self._lock:
            native = self._natives.get(line)
            if native is None or self._lost is not None:
                return
            self._context.make_current()
            answer = self._write_value(native, line.word_address, position, 0)
            if answer[0]:
                raise self._context.error(answer[0], "cuStreamWriteValue64")

    def _query(self, line: CudaTimeline) -> bool:
        """True where the driver says that the stream is idle.

        Where it says what it never should of a stream, whoever waits is told.
        """
        if line not in self._natives or self._lost is not None:
            return True
        self._context.make_current()
        with self._questions, self._context.relaxed():
            native = self._natives.get(line)
            if native is None:  # destroyed by another thread meanwhile
                return True
            (result,) = self._ask(native)
        code = int(result)
        if code == 0:
            return True
        if code != BUSY and code not in _CAPTURING:
            error = self._context.error(result, "cuStreamQuery")
            if code not in STICKY_CODES:
                if not isinstance(error, DeviceError):
                    error = DeviceError(str(error), code=code, call="cuStreamQuery")
                line.fail(line.completed + 1, error)
                return True
        return False

    # After a completion

    def _has_chores(self) -> bool:
        """Whether `_after_completion` would look at anything."""
        return bool(
            self._unloads
            or self._reaper
            or self._table.sweeps_others
            or self._is_closed
        )

    def _after_completion(self) -> None:
        """Free what became idle; the hub calls this."""
        self._table.sweep()
        try:
            self._unload_if_idle()
            if self._is_closed:
                self._give_back()
        except (AccyError, ExceptionGroup) as error:
            # Nobody asked; a device that is lost tells everybody who does.
            self._table.refusals.note(None, error, "giving the device back")

    def _after_loan(self) -> None:
        self._after_completion()
