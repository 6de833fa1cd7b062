"""Waiting for the threads of devices to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

__all__ = ["join_threads"]

_NAMES = ("accy_async cpu", "accy_async cuda", "accy_async vulkan")
_PATIENCE_S = 30


def join_threads(
    others: Collection[threading.Thread] = (), *, named: tuple[str, ...] = _NAMES
) -> None:
    """Wait for the backends' threads to end, as they must once closed.

    The threads in `others` may go on: they are those of backends still open.
    """
    left = [
        thread
        for thread in threading.enumerate()
        if thread not in others and thread.name.startswith(named)
    ]
    deadline = time.monotonic() + _PATIENCE_S
    for thread in left:
        thread.join(timeout=max(0.0, deadline - time.monotonic()))
    names = sorted(thread.name for thread in left if thread.is_alive())
    assert not names, f"threads that did not end: {', '.join(names)}"
