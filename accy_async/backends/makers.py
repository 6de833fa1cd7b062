"""Those who make an object at this moment: a device is not given back under them."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Makers"]


class Makers:
    """A count of the calls that are making something; ``with makers:`` around each.

    A call that began before its backend was closed may ask the driver for a stream,
    memory or a module afterwards. The backend then gives its device back when the last
    of them is through, and not before.

    Args:
        lock: the backend's submission lock.
        is_awaited: True where the backend waits for the last one; asked under the lock.
        after: called by the last one where it does, without the lock.
    """

    __slots__ = ("_after", "_count", "_is_awaited", "_lock")

    def __init__(
        self,
        lock: threading.RLock,
        is_awaited: Callable[[], bool],
        after: Callable[[], object],
    ) -> None:
        self._lock = lock
        self._is_awaited = is_awaited
        self._after = after
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            is_last = not self._count and self._is_awaited()
        if is_last:
            self._after()
