"""What a session over several devices has on each of them, made where first needed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
import anyio.lowlevel

from accy_async.backends.closing import ClosedOnExit, Closes, close_each
from accy_async.errors import AccyError

if TYPE_CHECKING:
    from accy_async.session.single import Session

__all__ = ["PerDevice"]


_T = TypeVar("_T", bound=Closes)


class PerDevice(ClosedOnExit, Generic[_T]):
    """One thing for each device, loaded when it is first asked for.

    An async context manager; the session destroys what it has at the latest.

    Args:
        name: for messages.
        seat_of: the session's seat on a device, by its name or place.
    """

    def __init__(self, name: str, seat_of: Callable[[str | int], Session]) -> None:
        self.name = name
        self._seat_of = seat_of
        self._loaded: dict[str, _T] = {}
        self._loading: dict[str, anyio.Lock] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        loaded = ", ".join(self._loaded) or "no device yet"
        state = "closed" if self._is_closed else f"on {loaded}"
        return f"<{type(self).__name__} {self.name}: {state}>"

    @property
    def is_closed(self) -> bool:
        """True once `aclose` has been called."""
        return self._is_closed

    @property
    def loaded(self) -> Mapping[str, _T]:
        """What is loaded now, by the device's name."""
        return dict(self._loaded)

    def is_of(self, seat_of: Callable[[str | int], Session]) -> bool:
        """Whether it is of the session with these seats."""
        return self._seat_of == seat_of

    async def on(self, device: str | int) -> _T:
        """That of a device, loaded if it is not yet; once, whoever asks.

        Raises:
            InvalidValue: the session has no such device.
            AccyError: it was closed, or it cannot be loaded there; it may be asked for
                again.

        Cancellation: what is loaded already of it is unloaded.
        """
        seat = self._seat_of(device)
        name = seat.backend.device
        found = self._loaded.get(name)
        if found is not None and not self._is_closed:
            await anyio.lowlevel.checkpoint()
            return found
        async with self._loading.setdefault(name, anyio.Lock()):
            self._check()
            if name not in self._loaded:
                made = await self._load(seat)
                if self._is_closed:
                    await made.aclose()
                self._check()
                self._loaded[name] = made
            return self._loaded[name]

    async def aclose(self) -> None:
        """Destroy what is there, on all devices. Idempotent.

        Raises:
            AccyError: a device refused; the others' were destroyed all the same.
                Several errors come as an ExceptionGroup.

        Cancellation: shielded from it.
        """
        self._is_closed = True
        loaded, self._loaded = list(self._loaded.values()), {}
        await close_each(f"closing {self!r}", loaded)
        await anyio.lowlevel.cancel_shielded_checkpoint()

    @abstractmethod
    async def _load(self, seat: Session) -> _T:
        """Load it onto a seat's device."""

    @abstractmethod
    def _closed(self) -> AccyError:
        """What is raised where it is used after it was closed."""

    def _check(self) -> None:
        if self._is_closed:
            raise self._closed()
