"""Which opened backend a handle is of.

Ids count from 1 on every backend, so that an id says nothing of where it is good.
Two backends of one process may be of one kind, and of one device even.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Self, cast

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.capabilities import DeviceIdentity

__all__ = ["Origin"]


class Origin:
    """One opened backend, as its handles know it; keeps nothing of it alive.

    Attributes:
        device: which device it drives, e.g. ``cuda:1``.
        title: the same with the device's name, for messages.
        backend: gives the backend, while somebody has it.
    """

    __slots__ = ("backend", "device", "title")

    def __init__(self, identity: DeviceIdentity, backend: object = None) -> None:
        self.backend: weakref.ref[Backend] | None = None
        if backend is not None:
            self.backend = weakref.ref(cast("Backend", backend))
        self.device = identity.device
        self.title = f"{identity.device} ({identity.name})"

    def __repr__(self) -> str:
        return f"<Origin {self.title}>"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _nowhere, ()


def _nowhere() -> None:
    """What an origin is in another process, or after a while on disk."""
