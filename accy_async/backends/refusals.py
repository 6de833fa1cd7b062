"""What a device refused to destroy when nobody was there to be told.

An object that was destroyed while in use is freed later, by whichever thread finds it
idle: one that waits for something else, or a device's own. What goes wrong then is kept
here, with whose object it was, until the owner leaves or the backend is closed.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from accy_async.errors import DeviceError, DeviceLost

if TYPE_CHECKING:
    from accy_async.backends.owners import Owner

__all__ = ["Refusals", "is_interrupt"]

_MOST_KEPT = 1000

_log = logging.getLogger("accy_async.backends")


def is_interrupt(error: BaseException) -> bool:
    """True for what interrupts the program, as that comes to its main thread alone.

    What is no `Exception` on a device's own thread was raised there, and is an error of
    what raised it: it must not end the thread.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and not isinstance(error, Exception)


class Refusals:
    """Errors of late destructions, until somebody takes them; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[tuple[Owner | None, Exception]] = []
        self._is_closed = False

    def note(self, owner: Owner | None, error: BaseException, what: str) -> None:
        """Keep what an owner's object could not be destroyed with.

        The loss of the device is told by itself, and is not kept. Once the backend was
        closed nobody is left to be told, and the log ``accy_async.backends`` has it; as
        it has what comes when a great many are kept, of which nobody would read more.

        Args:
            owner: whose object it was; None for nobody's.
            error: what the device said. What is no Exception becomes the cause of one:
                it would pass by whoever handles the errors of a cleanup.
            what: what was being done, for a note of the error.
        """
        if isinstance(error, DeviceLost):
            return
        if not isinstance(error, Exception):
            stray, error = error, DeviceError(f"{type(error).__name__}: {error}")
            error.__cause__ = stray
        error.add_note(what)
        with self._lock:
            if not self._is_closed and len(self._kept) < _MOST_KEPT:
                self._kept.append((owner, error))
                return
        _log.error("%s: %s", what, error, exc_info=error)

    def take(self, owner: Owner) -> list[Exception]:
        """What was kept of an owner's, and is not from now on.

        And of owners that have left before, whom nobody else would be told for.
        """
        with self._lock:
            kept, self._kept = self._kept, []
            mine = []
            for of, error in kept:
                if of is not None and (owner.has(of) or of.is_ended):
                    mine.append(error)
                else:
                    self._kept.append((of, error))
        return mine

    def close(self) -> list[Exception]:
        """All that was kept; from now on nothing is."""
        with self._lock:
            self._is_closed = True
            kept, self._kept = self._kept, []
        return [error for _, error in kept]
