"""A backend as one owner uses it: what is made through it is that owner's.

The view stands for its backend everywhere: it is an instance of its class, equals it,
and has all that it has. It adds the owner where objects are made, and has a
grace of its own. Methods are the backend's, looked up once: a call through the view
costs what one on the backend does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, cast

from accy_async.backends.base import Backend, Settled
from accy_async.errors import SessionClosed

if TYPE_CHECKING:
    from accy_async.backends.handles import Handle
    from accy_async.backends.owners import Owner

__all__ = ["owned_backend"]

_MAKERS = (
    "adopt_buffer",
    "adopt_stream",
    "allocate_buffer",
    "create_event",
    "create_graph",
    "create_stream",
    "load_artifact",
)
"""What makes objects."""


def owned_backend(backend: Backend, owner: Owner, grace_s: float) -> Backend:
    """A view of a backend, whose objects are the owner's.

    Args:
        backend: the backend, or a view of it.
        owner: from its `Backend.open_owner`.
        grace_s: how long cleanup through the view waits for the device, in seconds.
    """
    return cast("Backend", _OwnedBackend(backend.base, owner, grace_s))


class _OwnedBackend:
    """The view; see the module."""

    base: Backend
    grace_s: float

    def __init__(self, base: Backend, owner: Owner, grace_s: float) -> None:
        # Set past `__setattr__`, which is for the backend's own attributes.
        self.__dict__.update(
            {name: _made_for(base, name, owner) for name in _MAKERS},
            base=base,
            grace_s=grace_s,
        )

    @property  # type: ignore[misc]
    def __class__(self) -> type[Backend]:  # type: ignore[override]
        """The backend's, for `isinstance`."""
        return type(self.base)

    async def settle(
        self, wait: Callable[[], Awaitable[object]], grace_s: float | None = None
    ) -> Exception | None:
        """See `Backend.settle`; the grace is the view's if left out."""
        return await self.base.settle(
            wait, self.grace_s if grace_s is None else grace_s
        )

    async def settle_whole(
        self, wait: Callable[[], Awaitable[object]], grace_s: float | None = None
    ) -> Settled:
        """See `Backend.settle_whole`; the grace is the view's if left out."""
        return await self.base.settle_whole(
            wait, self.grace_s if grace_s is None else grace_s
        )

    def __getattr__(self, name: str) -> object:
        base = self.__dict__["base"]
        found = getattr(base, name)
        if isinstance(found, MethodType) and found.__self__ is base:
            self.__dict__[name] = found
        return found

    def __setattr__(self, name: str, value: object) -> None:
        if name == "grace_s":
            self.__dict__[name] = value
        else:
            self.__dict__.pop(name, None)
            setattr(self.base, name, value)

    def __eq__(self, other: object) -> bool:
        return self.base is getattr(other, "base", None)

    def __hash__(self) -> int:
        return hash(self.base)

    def __repr__(self) -> str:
        return repr(self.base)


def _made_for(base: Backend, name: str, owner: Owner) -> Callable[..., Handle]:
    """A method that makes objects, and hands them to the owner."""
    make = getattr(base, name)

    @wraps(make)
    def make_for_owner(*args: object, **options: object) -> Handle:
        if owner.is_ended:
            raise SessionClosed(f"{name}: {owner.name} was left")
        handle: Handle = make(*args, **options)
        base.give_to(handle, owner)
        return handle

    return make_for_owner
