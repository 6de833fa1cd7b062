"""Ownership: destroying, counting, closing."""

from __future__ import annotations

import logging

from accy_async.backends.contract.core import BackendCore
from accy_async.backends.handles import Handle, StreamHandle
from accy_async.backends.lifetimes import Reaper
from accy_async.errors import DeviceLost

__all__ = ["Ownership"]

_log = logging.getLogger("accy_async.backends")


class Ownership(BackendCore):
    """What is alive on one device, and its end."""

    def destroy(self, handle: Handle) -> bool:
        """Destroy an object: unusable at once, freed when the device is done with it.

        Returns:
            True if it was freed at once, False if the reaper holds it.

        Raises:
            InvalidBuffer, InvalidArtifact, InvalidStream, InvalidEvent: it is
                not alive.
        """
        if self._is_forked:
            return True
        # Between a call's look-up of the object and its use, which are under the
        # same lock, it must not go.
        with self._lock:
            is_freed = self._table.destroy(handle)
            if isinstance(handle, StreamHandle):
                self._streams_by_id.pop(handle.id, None)
        return is_freed

    def discard(self, handle: Handle) -> bool:
        """`destroy`, unless somebody else has done so already, on whatever thread.

        Returns:
            True unless the reaper holds it now.
        """
        if self._is_forked:
            return True
        with self._lock:
            return not self.is_alive(handle) or self.destroy(handle)

    def abandon(self, handle: Handle) -> None:
        """`discard` for the garbage collector: takes no lock, and leaves it for later.

        Calls that allocate, count or wait see to it.
        """
        self._abandoned.append(handle)

    def _discard_abandoned(self) -> None:
        """Destroy what the garbage collector left for a moment that suits."""
        while self._abandoned:
            try:
                self.discard(self._abandoned.popleft())
            except IndexError:
                return  # another thread was faster
            except Exception:  # noqa: BLE001 - logged
                # As in any finalizer: it is nobody's call that failed.
                _log.exception("an array that nobody held could not be freed")

    def is_alive(self, handle: Handle) -> bool:
        """True where the handle can be used and destroyed."""
        return self._table.find(handle) is not None

    def object_name(self, handle: Handle) -> str:
        """How messages name the object of a living handle."""
        return self._table.get(handle).name

    def live_objects(self, since_id: int = 1) -> dict[str, int]:
        """Objects not freed yet, by kind, those that the reaper holds included.

        Args:
            since_id: count only those with ids from this one.
        """
        self._discard_abandoned()
        return self._table.counts(since_id)

    @property
    def reaper(self) -> Reaper:
        """What was destroyed while the device might still use it."""
        return self._reaper

    @property
    def is_healthy(self) -> bool:
        """True while the backend is open and its device answers."""
        return not (self._is_closed or self._is_forked) and self._lost is None

    def untold_loss(self) -> DeviceLost | None:
        """The loss of the device, if no call or wait has raised it yet."""
        if self._lost is None or self._is_loss_told:
            return None
        self._is_loss_told = True
        lost = self._lost.copy()
        lost.__cause__ = self._lost.__cause__
        return lost

    def close(self) -> None:
        """Destroy every object left, newest first, and refuse further calls.

        Idempotent, and waits for nothing: busy objects go to the reaper.

        Raises:
            ExceptionGroup: the device refused to destroy some; all the others
                were destroyed nevertheless.
        """
        if self._is_forked or self._is_closed:
            return
        self._is_closed = True
        self.destroy_since(1)

    def destroy_since(self, first_id: int) -> int:
        """Destroy every living object with an id from ``first_id``, newest first.

        Returns:
            How many there were.

        Raises:
            ExceptionGroup: the device refused to destroy some; all the others
                were destroyed nevertheless.
        """
        leftovers = self._table.living(first_id)
        errors: list[Exception] = []
        interrupt: BaseException | None = None
        for resource in leftovers:
            try:
                self.discard(resource.handle)
            except Exception as error:  # noqa: BLE001 - raised below, all together
                errors.append(error)
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = interrupt or error
        if interrupt is not None:
            raise interrupt
        if errors:
            raise ExceptionGroup("some objects could not be destroyed", errors)
        return len(leftovers)

    @property
    def next_id(self) -> int:
        """The id that the next object will get; ids count up."""
        return self._table.next_id
