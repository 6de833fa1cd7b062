"""Sharing: memory and streams of other libraries taken, our own lent out."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from accy_async.backends.contract.core import advance
from accy_async.backends.contract.memory import Memory
from accy_async.backends.contract.streams import Streams
from accy_async.backends.exchange import Arrival, Loan, end_loans, watch_loans
from accy_async.backends.handles import (
    BufferHandle,
    BufferOwnership,
    ObjectKind,
    StreamHandle,
)
from accy_async.backends.timeline import Timeline
from accy_async.errors import ExchangeRefused, InvalidBuffer
from accy_async.interop.streams import (
    THREAD_DEFAULT,
    NativeStream,
    stream_number,
)

if TYPE_CHECKING:
    from accy_async.backends.hooks import EventState, StreamState
    from accy_async.backends.resources import Resource

__all__ = ["Sharing"]

_EXCHANGES = 4
"""Exchange streams at most: a slow producer holds up every n-th arrival."""


class Sharing(Streams, Memory):
    """What one device exchanges with other libraries in the process."""

    # Taking

    def adopt_buffer(
        self,
        address: int,
        byte_size: int,
        *,
        keeper: object = None,
        is_read_only: bool = False,
        stream: object = None,
        exchange: StreamState | None = None,
        is_checked: bool = False,
    ) -> BufferHandle:
        """Use memory that somebody else owns; it is never freed here.

        Args:
            address: where it begins, on this device.
            byte_size: its size; of 0 the address is not looked at.
            keeper: keeps the memory alive: let go of when the buffer was destroyed
                and its last use is done.
            is_read_only: True to refuse what would write to it.
            stream: the owner's stream that its last writes are on; every use here
                waits for what it has come to now. None if they are done.
            exchange: the exchange stream that waits for them already.
            is_checked: True where the memory is known to be this device's.

        Raises:
            InvalidBuffer: a size below 0.
            ExchangeRefused: the address is none of this device.
            UnsupportedOperation: the device takes no other's memory.
        """
        self._check("adopt_buffer")
        if byte_size < 0:
            raise InvalidBuffer(f"byte_size: got {byte_size}, expected 0 or more")
        self._discard_abandoned()
        with self._makers:
            self._check("adopt_buffer")
            if byte_size and not is_checked:
                self._check_address(address)
            payload = self._borrow(address if byte_size else 0, byte_size, keeper)
            if exchange is None and stream is not None:
                exchange = self._follow_number(stream_number(stream))
            with self._lock:
                resource = self._keep(
                    ObjectKind.BUFFER,
                    lambda object_id: BufferHandle(
                        id=object_id,
                        backend=self.kind,
                        byte_size=byte_size,
                        ownership=BufferOwnership.EXTERNAL,
                        is_read_only=is_read_only,
                        origin=self._origin,
                    ),
                    payload,
                    f" ({byte_size} bytes, borrowed)",
                )
                if exchange is not None:
                    self._arrive(resource, exchange)
        return cast("BufferHandle", resource.handle)

    def exchange_stream(self) -> tuple[StreamState | None, int]:
        """A stream for a producer to have waiting for its writes, and its number.

        None and -1 where the device hands memory over when it is idle.
        """
        self._check("exchange_stream")
        if not self.exchanges_streams:
            return None, -1
        with self._makers, self._lock:
            self._check("exchange_stream")
            state = self._open_exchange()
        return state, self._stream_number(state)

    def adopt_stream(self, stream: object, *, keeper: object = None) -> StreamHandle:
        """Use a stream that somebody else owns: never destroyed here.

        Work may be submitted to it and events recorded on it as on any other. It is
        waited for only where a wait names it, and then as a whole, the owner's own
        work included.

        Args:
            stream: an object with ``__cuda_stream__``, a stream of CuPy, PyTorch or
                Numba, or the driver's handle.
            keeper: keeps the stream open; ``stream`` itself if left out.

        Raises:
            InvalidType: it is no stream.
            ExchangeRefused: it is of another device, or the default stream of each
                thread, which is not one stream.
            UnsupportedOperation: the device has no streams of a driver.
        """
        self._check("adopt_stream")
        number = stream_number(stream)
        if number == THREAD_DEFAULT:
            raise ExchangeRefused(
                "adopt_stream: the per-thread default stream is another one on each "
                "thread; expected a stream that is one"
            )

        def make_handle(object_id: int) -> StreamHandle:
            state.id = object_id
            state.timeline.name = f"stream {object_id}"
            return StreamHandle(
                id=object_id,
                backend=self.kind,
                priority=state.priority,
                origin=self._origin,
            )

        with self._makers:
            self._check("adopt_stream")
            state = self._borrow_stream(number, stream if keeper is None else keeper)
            state.is_borrowed = True
            resource = self._keep(
                ObjectKind.STREAM,
                make_handle,
                state,
                " (borrowed)",
                timeline=state.timeline,
            )
        return cast("StreamHandle", resource.handle)

    def _let_go(self, resource: Resource) -> bool:
        """See `Ownership._let_go`; what is borrowed is let go of unasked."""
        is_freed = super()._let_go(resource)
        handle = resource.handle
        if (
            not is_freed
            and isinstance(handle, BufferHandle)
            and handle.ownership is BufferOwnership.EXTERNAL
        ):
            for state in self._users(resource):
                self._notice(state, state.timeline.submitted)
        return is_freed

    # Lending

    def native_stream(self, stream: StreamHandle | None = None) -> NativeStream:
        """A stream as other libraries take it, for them to submit to.

        From then on, waits for the stream wait for their work too. It is theirs to use
        while the stream is open.

        Raises:
            InvalidStream: it is not alive.
            UnsupportedOperation: the device has no streams of a driver.
        """
        self._check("native_stream")
        state = self._stream(stream)
        number = self._stream_number(state)
        state.is_lent = not state.is_borrowed
        return NativeStream(number)

    def buffer_address(self, buffer: BufferHandle) -> int:
        """Where a buffer's memory lies; 0 for one of no bytes."""
        self._check("buffer_address")
        return self._address(self._table.get(buffer))

    def lend_buffer(self, buffer: BufferHandle, stream: int | None) -> Loan:
        """Let another library have a buffer until the loan ends.

        Args:
            buffer: whose memory.
            stream: the number of its stream, which is to wait for every use submitted
                here; None where it sees to that, or nothing is to be waited for.

        Raises:
            InvalidBuffer: it is not alive.
            UnsupportedOperation: the device could not take it back safely.
        """
        self._check("lend_buffer")
        self._check_lending()
        watch_loans()
        with self._lock:
            resource = self._table.get(buffer)
            if stream is not None:
                for state in self._users(resource):
                    position = state.timeline.advance()
                    resource.touch(state.timeline, position)
                    self._lead(state, position, stream)
            if resource.exports is None:
                resource.exports = Timeline(f"loans of {resource.name}")
            resource.exports.advance()
        return Loan(resource, self._take_back)

    def gather_uses(self, buffer: BufferHandle) -> int | None:
        """The number of a stream that waits for every use of a buffer.

        None where all are done.
        """
        self._check("gather_uses")
        with self._lock:
            resource = self._table.get(buffer)
            users = self._users(resource)
            if not users:
                return None
            exchange = self._open_exchange()
            for state in users:
                if state is not exchange:
                    self._follow_stream(exchange, state)
            resource.touch(exchange.timeline, exchange.timeline.submitted)
        return self._stream_number(exchange)

    def copy_for_loan(self, buffer: BufferHandle) -> BufferHandle:
        """A copy of a buffer, under way on an exchange stream behind every use.

        Raises:
            OutOfMemory: no room.
        """
        copy = self.allocate_buffer(buffer.byte_size)
        with self._lock:
            source, target = self._table.get(buffer), self._table.get(copy)
            users = self._users(source)
            exchange = self._open_exchange()
            for state in users:
                if state is not exchange:
                    self._follow_stream(exchange, state)
            position = advance(exchange, source, target)
            self._copy(exchange, position, source, target, buffer.byte_size, None)
        return copy

    def is_buffer_idle(self, buffer: BufferHandle) -> bool:
        """True where every use of a buffer that was submitted is done, and none failed.

        Who asks again and again finds out, though nobody waits.
        """
        self._check("is_buffer_idle")
        resource = self._table.get(buffer)
        resource.request_end()
        return not resource.last_uses()

    # Within

    def _users(self, buffer: Resource) -> list[StreamState]:
        """The streams that have not come past their last use of a buffer."""
        states = [self._default, *self._exchange, *self._streams_by_id.values()]
        busy = {mark.timeline for mark in buffer.last_uses()}
        return [state for state in states if state.timeline in busy]

    def _arrive(self, buffer: Resource, exchange: StreamState) -> None:
        """Order all later uses of a buffer behind the exchange stream's work."""
        position = exchange.timeline.advance()
        self._pass(exchange, position)
        buffer.touch(exchange.timeline, position)
        buffer.arrive(Arrival(exchange, position, self._follow_stream))
        self._table.renew_epoch()  # launches bound to a stream have to wait as well

    def _open_exchange(self) -> StreamState:
        """An exchange stream: one that stands still, or the one used longest ago."""
        for state in self._exchange:
            if state.timeline.is_idle:
                return state
        if len(self._exchange) < _EXCHANGES:
            name = f"exchange stream {len(self._exchange) + 1}"
            self._exchange.append(self._open_stream(0, name))
            return self._exchange[-1]
        self._exchange.append(self._exchange.pop(0))
        return self._exchange[-1]

    def _follow_number(self, number: int) -> StreamState:
        """An exchange stream that waits for another library's stream."""
        with self._lock:
            exchange = self._open_exchange()
            self._follow(exchange, exchange.timeline.advance(), number)
        return exchange

    def _follow_stream(self, stream: StreamState, leader: StreamState) -> None:
        """Have a stream wait for all that another was given; under the lock.

        That this much is done is told, too: of what other libraries wait for, we may
        wait for nothing, and would take the memory to be in use for good.
        """
        event = self._meet(leader)
        leader.timeline.request(leader.timeline.submitted)
        self._stream_wait(stream, stream.timeline.advance(), event)

    def _meet(self, leader: StreamState) -> EventState:
        """An event at what a stream was given, to be waited for at once."""
        if self._meeting is None:
            self._meeting = self._open_event(has_timing=False)
        # Whoever waits for it waits for the point of this moment: one event will do.
        event, line = self._meeting, leader.timeline
        event.mark = (line, line.advance())
        self._record(leader, event.mark[1], event)
        return event

    def _take_back(self, buffer: Resource) -> bool:
        """A loan is over: free the buffer, or have later uses wait, once all are.

        Returns:
            False where the device refuses just now, to be tried again.
        """
        if self._is_forked:
            return True
        with self._lock:
            line = buffer.exports
            assert line is not None
            is_last = buffer.loans_ended + 1 == line.submitted
            if is_last and self.exchanges_streams and self._lost is None:
                exchange = self._open_exchange()
                if not self._follow(exchange, exchange.timeline.advance(), None):
                    return False
                self._arrive(buffer, exchange)
                self._table.renew_epoch()  # launches look for what has to arrive
                self._notice(exchange, exchange.timeline.submitted)
            buffer.loans_ended += 1
            if is_last:
                line.complete(line.submitted)
        if is_last:
            self._after_loan()
        return True

    def _after_loan(self) -> None:
        """Free what became idle when a loan ended; backends add what else is due."""
        self._table.sweep()

    def _discard_abandoned(self) -> None:
        end_loans()
        super()._discard_abandoned()
