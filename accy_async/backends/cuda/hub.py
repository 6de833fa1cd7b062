"""One thread for a device, which wakes everybody who waits for it.

A wait first reads its stream's word between turns of its own event loop, for a
while that it learns (`CudaTimeline` knows how long its waits took lately); most
waits end there, with no other thread involved. A wait that takes longer is left
to the hub: its thread reads the words of all streams that somebody waits for,
often while a wake is near and seldom while none is, without the interpreter lock
in between.

Now and then it asks the driver about each stream. That turns a lost context into
an error for everybody, instead of a word that is never written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from accy_async.backends.cuda.timeline import CudaTimeline

__all__ = ["Hub"]

_NEAR_S = 0.0005
"""How long after a wait began the hub looks without sleeping in between."""

_LEAST_SLEEP_S = 0.00002
_MOST_SLEEP_S = 0.0005
_SWEEP_S = 0.05
"""How often the driver is asked about the streams that somebody waits for."""


class Hub:
    """The thread; started by the first wait that needs it.

    Args:
        query: asks the driver about a stream; reports a lost device by itself.
        after: called after something got done.
    """

    def __init__(
        self, query: Callable[[CudaTimeline], bool], after: Callable[[], object]
    ) -> None:
        self._query = query
        self._after = after
        self._condition = threading.Condition()
        self._lines: set[CudaTimeline] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def notice(self, line: CudaTimeline) -> None:
        """Somebody waits for this stream; any thread, never blocks long."""
        with self._condition:
            if self._is_closed:
                return
            self._lines.add(line)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="accy_async cuda hub", daemon=True
                )
                self._thread.start()
            self._condition.notify()

    def close(self) -> None:
        """End the thread; those who still wait are the caller's to wake."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()

    def _serve(self) -> None:
        sleep_s = _LEAST_SLEEP_S
        near_until = swept = time.monotonic()
        while True:
            with self._condition:
                if not self._lines and not self._is_closed:
                    self._condition.wait()
                    near_until = time.monotonic() + _NEAR_S
                    sleep_s = _LEAST_SLEEP_S
                if self._is_closed:
                    return
                lines = list(self._lines)
            finished = [line for line in lines if line.poll()]
            now = time.monotonic()
            if finished:
                with self._condition:
                    self._lines.difference_update(
                        line for line in finished if line.next_target() is None
                    )
                self._after()
                near_until = now + _NEAR_S
                sleep_s = _LEAST_SLEEP_S
            if now - swept > _SWEEP_S:
                swept = now
                for line in lines:
                    self._query(line)
            if now > near_until:
                time.sleep(sleep_s)
                sleep_s = min(sleep_s * 1.5, _MOST_SLEEP_S)
            else:
                time.sleep(0)
