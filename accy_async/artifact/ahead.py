"""Reading ahead: pieces of work on a few threads, for whoever takes what comes of them.

A disk that is asked for one small file after the other mostly waits for the next
question; asked by several threads it is a few times as fast. What is in memory already
is not: there they take the interpreter from each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, Queue
from typing import Generic, TypeVar

__all__ = ["ahead"]

_T = TypeVar("_T")
_R = TypeVar("_R")

_NAME = "accy_async reads ahead"


def ahead(
    work: Callable[[_T], _R], pieces: Sequence[_T], *, slow_s: float, threads: int
) -> Iterator[_R]:
    """What the work gives for each piece, in no order.

    Here, one piece after the other, until one is slow; ahead on threads from then on,
    and no more than a few pieces for each. The threads end with the work, or when the
    iterator is closed; the interpreter does not wait for them.

    Args:
        work: what to do.
        pieces: with what.
        slow_s: seconds that a piece takes at most while none is done ahead.
        threads: how many there are then.

    Raises:
        Exception: what the work raised; no more of it is begun then.
    """
    for number, piece in enumerate(pieces, 1):
        started = time.perf_counter()
        result = work(piece)
        is_slow = time.perf_counter() - started > slow_s
        yield result
        if is_slow:
            yield from _on_threads(work, pieces[number:], threads)
            return


def _on_threads(
    work: Callable[[_T], _R], pieces: Sequence[_T], threads: int
) -> Iterator[_R]:
    job = _Job(work, pieces, room=2 * threads)
    try:
        for _ in range(min(threads, len(pieces))):
            threading.Thread(target=job.serve, name=_NAME, daemon=True).start()
        for _ in pieces:
            yield job.take()
    finally:
        job.end()


class _Job(Generic[_T, _R]):
    """The pieces that are left, and the results that nobody has taken yet."""

    def __init__(
        self, work: Callable[[_T], _R], pieces: Sequence[_T], *, room: int
    ) -> None:
        self._work = work
        self._left = iter(pieces)
        self._lock = threading.Lock()
        self._results: Queue[_R | _Failed] = Queue(room)
        self._is_over = False

    def serve(self) -> None:
        """A thread: piece after piece."""
        while True:
            with self._lock:
                if self._is_over:
                    return
                try:
                    piece = next(self._left)
                except StopIteration:
                    return
            try:
                result: _R | _Failed = self._work(piece)
            except BaseException as error:  # noqa: BLE001 - raised where it is taken
                result = _Failed(error)
            self._results.put(result)

    def take(self) -> _R:
        """The next result; waits for it."""
        result = self._results.get()
        if isinstance(result, _Failed):
            raise result.error
        return result

    def end(self) -> None:
        """Begin no more; there is room for what is under way."""
        with self._lock:
            self._is_over = True
        try:
            while True:
                self._results.get_nowait()
        except Empty:
            pass


class _Failed:
    """Work that raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
