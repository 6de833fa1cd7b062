"""What the backend's streams are noticed by: a word for each, flags, and the hub."""

from __future__ import annotations

import ctypes
import threading
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from accy_async.backends.cuda.asking import CudaAsking
from accy_async.backends.cuda.board import BUSY, NativeLaunch
from accy_async.backends.cuda.driver import STICKY_CODES
from accy_async.backends.cuda.hub import Hub
from accy_async.backends.cuda.objects import CudaStream, MachineLaunch
from accy_async.backends.cuda.thunks import address_of, make_thunk
from accy_async.backends.cuda.timeline import CudaTimeline
from accy_async.backends.loops import due_turn
from accy_async.errors import DeviceError, DeviceLost

if TYPE_CHECKING:
    from accy_async.backends.cuda.memory import PinnedPool
    from accy_async.backends.cuda.modules import LateUnloads
    from accy_async.backends.handles import StreamHandle

__all__ = ["CudaWaiting"]

_CAPTURING = range(900, 908)
"""What is asked of a stream whose work another library is recording."""


class CudaWaiting(CudaAsking):
    """The part of the backend that says how far its streams have come."""

    words: ClassVar[int] = 4096
    """Streams that can be open at once: a word of pinned memory for each."""

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
        self._natives = {}
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
        line.ask = line.write = None
        line.detach()
        self._hub.scanner.bar(line.slot)
        with self._questions:
            self._natives.pop(line, None)
        stream.keeper = None
        self._free_slots.append(line.slot)
        if not stream.is_borrowed:
            answer = self._driver.cuStreamDestroy(stream.native)
            self._context.check(answer, "cuStreamDestroy")

    async def wait_stream(
        self, stream: StreamHandle | None, position: int | None = None
    ) -> None:
        """As the contract says; see `Waits.wait_stream`.

        Behind work that ends within a turn of the loop, or soon after, no flag is
        submitted; see `CudaAsking`.
        """
        if self._is_closed or self._is_forked or self._lost is not None:
            self._check("wait_stream")  # says which
        state: CudaStream = self._stream(stream)  # type: ignore[assignment]
        line = state.flags
        if state.is_lent or state.is_borrowed:  # what others submit has no position yet
            await super().wait_stream(stream, position)
            return
        if position is None:
            position = line.submitted
        # Not where several were: a flag between them would take the device time.
        is_single = position == line._completed + 1  # noqa: SLF001 - it's on every wait
        line.expected = position + 1 if is_single else 0
        if line.is_quick and not line.has_failed:  # as `_ends_at_once`, in one piece
            turn = due_turn()
            if turn is not None:
                await turn
            if self._has_ended(line, position):
                return
            if await self._ends_next(line, position):
                return
        await self._wait_line(line, position)

    async def _wait_line(self, line: CudaTimeline, position: int) -> None:
        """`_wait_mark` in one piece: what is waited for often goes this way."""
        is_dropped = False  # as in `_reach`
        try:
            await line.wait_reached(position)
            if line.has_failed:
                line.raise_at(position)
        except DeviceLost:
            self._is_loss_told = True
            raise
        except GeneratorExit:
            is_dropped = True
            raise
        finally:
            if not is_dropped:
                if self._abandoned:
                    self._discard_abandoned()
                self._table.sweep()

    def _flag(self, line: CudaTimeline, position: int) -> None:
        """Have the stream write its end into its word, unless it is flagged that far.

        Which that is is asked under the lock: else a flag that another thread submits
        meanwhile could come first, and the word would go back.
        """
        with self._lock:
            native = self._natives.get(line)
            if native is None or self._lost is not None or line.flagged >= position:
                return
            self._context.make_current()
            end = line.submitted
            code = (line.write or self._writing(line, native))(end)
            if code:
                result = self._driver.CUresult(code)
                raise self._context.error(result, "cuStreamWriteValue64")
            line.flagged = end

    def _writing(self, line: CudaTimeline, native: Any) -> Callable[[int], int]:  # noqa: ANN401
        """What has a stream write a position into its word; returns the code."""
        word, write = line.word_address, self._write_value
        call: Any = None
        if self._write_address is not None:
            call = make_thunk(self._write_address, int(native), word, 0, None)
        if call is None:
            return lambda position: int(write(native, word, position, 0)[0])
        record = call.record

        def write_natively(position: int) -> int:
            record.third = position
            code: int = call()
            return code

        line.write = write_natively
        return write_natively

    def _launching_natively(
        self, address: int | None, arguments: tuple[int, int, int], keep: object
    ) -> MachineLaunch | None:
        """What makes a launch, and a flag right behind it where its end is waited for.

        That spares whoever waits a call of the driver's.

        Args:
            address: of the driver's function that launches.
            arguments: what it is called with.
            keep: whose memory they are the addresses of, if they are any.

        Returns:
            None where the bindings are to be called.
        """
        write = self._write_address
        if address is None or write is None:
            return None
        first, second, third = arguments
        record = NativeLaunch(
            launch=address, first=first, second=second, third=third, write_value=write
        )
        call = self._hub.scanner.launching(record, keep)
        return None if call is None else MachineLaunch(record, call)

    @cached_property
    def _write_address(self) -> int | None:
        """Where the driver's function is; None where the bindings' is to be called."""
        if self.is_debugging:
            return None
        return address_of(self._driver, "cuStreamWriteValue64")

    def _query(self, line: CudaTimeline) -> bool:
        """True where the driver says that the stream is idle.

        Where it says what it never should of a stream, whoever waits is told.
        """
        if line not in self._natives or self._lost is not None:
            return True
        if not self._has_given_all():
            return False
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
            if code in STICKY_CODES:
                self._is_loss_told = False  # nobody's call raises it here
            else:
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
        for step in (self._table.sweep, self._unload_if_idle, self._give_back_closed):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - told to who closes the backend
                # Nobody asked; a device that is lost tells everybody who does.
                self._table.refusals.note(None, error, "giving the device back")

    def _give_back_closed(self) -> None:
        if self._is_closed:
            self._give_back()

    def _after_loan(self) -> None:
        self._after_completion()
