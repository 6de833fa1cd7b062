"""Memory that changes hands: what arrives, what is lent out, and who gives it back.

**Arriving.** Another library's memory may be being written when we get it, on a
stream of that library. An *exchange stream* of ours waits for that; a stream of ours
that uses the memory first waits for the exchange stream, once (`Arrival`). So any
stream may use it at once, without the host having waited, and no other work is held
up.

**Lent out.** While another library has memory of ours, the memory stays, whatever
becomes of the array, the session or the backend. Being lent out is a use like one of
the device: it has a timeline (`Resource.exports`) of its own, on which each loan is
a position; it is complete when all loans are given back.

**Given back.** A loan ends wherever its last reference goes: on any thread, within the
garbage collector, under whatever locks that library holds. So `Loan.end` takes no lock
and does nothing but put the loan into a queue. A thread of ours takes it from there:
it has an exchange stream wait for *all* that the device was given until then, as
nobody can know on which streams the memory was used, and orders the memory's freeing,
and every later use of ours, behind that.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accy_async.backends.hooks import StreamState
    from accy_async.backends.resources import Resource
    from accy_async.backends.timeline import Timeline

__all__ = ["Arrival", "Loan", "end_loans", "watch_loans"]

_log = logging.getLogger("accy_async.backends")

_RETRY_S = 0.02
"""How long after a device refused to take something back it is asked again."""


class Arrival:
    """A point that every stream has to wait for before it uses some memory.

    Args:
        exchange: the exchange stream.
        position: the point on it.
        follow: submits to a stream a wait for another; under the submission lock.
    """

    __slots__ = ("_exchange", "_follow", "_followers", "_position")

    def __init__(
        self,
        exchange: StreamState,
        position: int,
        follow: Callable[[StreamState, StreamState], None],
    ) -> None:
        self._exchange = exchange
        self._position = position
        self._follow = follow
        self._followers: set[Timeline] = set()

    @property
    def exchange(self) -> StreamState:
        """The exchange stream."""
        return self._exchange

    @property
    def is_past(self) -> bool:
        """True where nobody has to wait any more."""
        return self._exchange.timeline.completed >= self._position

    def admit(self, stream: StreamState) -> None:
        """Have a stream wait, unless it did already; under the submission lock."""
        line = stream.timeline
        if line not in self._followers:
            self._follow(stream, self._exchange)
            self._followers.add(line)


class Loan:
    """One other library's hold on a buffer, until `end`.

    Args:
        buffer: what it has.
        take_back: what is done once it has it no longer; False to be tried again.
    """

    __slots__ = ("_is_over", "_take_back", "buffer")

    def __init__(self, buffer: Resource, take_back: Callable[[Resource], bool]) -> None:
        self.buffer = buffer
        self._take_back = take_back
        self._is_over = False

    def end(self) -> None:
        """Say that it has the buffer no longer: any thread, no lock, once or again."""
        if not self._is_over:
            self._is_over = True
            _ENDED.put(self)

    def __del__(self) -> None:
        self.end()

    def settle(self) -> bool:
        """Do what is to be done then; False where it is to be tried again."""
        try:
            return self._take_back(self.buffer)
        except Exception:  # noqa: BLE001 - logged
            # As in any finalizer: it is nobody's call that failed.
            _log.exception("%s could not be taken back", self.buffer.name)
            return True


_ENDED: SimpleQueue[Loan] = SimpleQueue()
_THREAD: list[threading.Thread] = []
_STARTING = threading.Lock()


def watch_loans() -> None:
    """See to it that somebody takes back what is given back."""
    if _THREAD:
        return
    with _STARTING:
        if not _THREAD:
            thread = threading.Thread(
                target=_take_back_all, name="accy_async loans", daemon=True
            )
            thread.start()
            _THREAD.append(thread)


def end_loans() -> None:
    """Take back what was given back and nobody has come to yet."""
    refused = []
    while not _ENDED.empty():
        try:
            loan = _ENDED.get_nowait()
        except Empty:
            break  # the thread was faster
        if not loan.settle():
            refused.append(loan)
    for loan in refused:
        _ENDED.put(loan)


def _take_back_all() -> None:
    while True:
        loan = _ENDED.get()
        if not loan.settle():
            time.sleep(_RETRY_S)
            _ENDED.put(loan)
        del loan  # while the thread waits it keeps nothing alive


def _begin_anew() -> None:
    """In a forked child: the thread is not there, and loans are the parent's."""
    global _ENDED, _STARTING
    _ENDED = SimpleQueue()
    _STARTING = threading.Lock()
    _THREAD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
