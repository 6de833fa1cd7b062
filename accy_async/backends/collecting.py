"""Whether the garbage collector is what is running.

It starts at any allocation, on any thread, also on one that holds a lock: what it
calls, finalizers among it, must take none.
"""

from __future__ import annotations

import gc
from threading import get_ident

__all__ = ["is_collecting"]

_COLLECTING: set[int] = set()


def is_collecting() -> bool:
    """True within a finalizer that the collector calls on this thread."""
    return get_ident() in _COLLECTING


def _note(phase: str, info: dict[str, int]) -> None:
    del info
    if phase == "start":
        _COLLECTING.add(get_ident())
    else:
        _COLLECTING.discard(get_ident())


gc.callbacks.append(_note)
