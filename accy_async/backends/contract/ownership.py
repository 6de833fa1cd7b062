"""Ownership: destroying, counting, closing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from accy_async.backends.contract.core import BackendCore
from accy_async.backends.handles import Handle, ObjectKind
from accy_async.backends.lifetimes import Reaper, destroy_each
from accy_async.backends.owners import Owner
from accy_async.backends.resources import INVALID, Resource, kind_of
from accy_async.errors import DeviceLost, SessionClosed

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.origins import Origin

__all__ = ["Ownership"]


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
        resource = self._table.get(handle)
        # Between a call's look-up of the object and its use, which are under the
        # same lock, it must not go.
        with self._lock:
            is_freed = self._let_go(resource)
        if not is_freed:
            resource.request_end()  # also of other devices' streams, under their locks
        return is_freed

    def discard(self, handle: Handle) -> bool:
        """`destroy`, unless somebody else has done so already, on whatever thread.

        Returns:
            True unless the reaper holds it now.
        """
        if self._is_forked or not self.is_alive(handle):
            return True
        try:
            return self.destroy(handle)
        except INVALID[kind_of(handle)]:  # another thread was faster
            return True

    def discard_late(self, handle: Handle, what: str) -> None:
        """`discard` where it is nobody's call that fails: its owner is told in the end.

        Args:
            handle: what is destroyed.
            what: why, as the end of a sentence.
        """
        resource = self._table.find(handle)
        if resource is None:
            return
        name, owner = resource.name, resource.owner
        try:
            self.discard(handle)
        except Exception as error:  # noqa: BLE001 - told to its owner
            self._table.refusals.note(owner, error, f"destroying {name}, {what}")

    def _let_go(self, resource: Resource) -> bool:
        """Free an object, or have the reaper hold it; under the submission lock."""
        is_freed = self._table.destroy(resource.handle)
        if resource.kind is ObjectKind.STREAM:
            self._streams_by_id.pop(resource.handle.id, None)
        return is_freed

    def abandon(self, handle: Handle) -> None:
        """`discard` for the garbage collector: takes no lock, and leaves it for later.

        Calls that allocate, count or wait see to it.
        """
        self._abandoned.append(handle)

    def _discard_abandoned(self) -> None:
        """Destroy what the garbage collector left for a moment that suits."""
        while self._abandoned:
            try:
                handle = self._abandoned.popleft()
            except IndexError:
                return  # another thread was faster
            self.discard_late(handle, "which nobody held any more")

    def is_alive(self, handle: Handle) -> bool:
        """True where the handle can be used and destroyed."""
        return self._table.find(handle) is not None

    @property
    def epoch(self) -> object:
        """Another object after anything was destroyed, lost or closed, and only then.

        What was found alive is so as long as this is the same.
        """
        return self._table.epoch

    def is_idle(self, handle: Handle) -> bool:
        """True where it is alive, and no stream and no other library uses it now."""
        resource = self._table.find(handle)
        return resource is not None and not resource.is_busy

    def foreign(self, handle: Handle) -> str:
        """Why a handle is of another backend, naming both; empty if it is not.

        A handle that was made by hand is of every backend of its kind.
        """
        return self._table.foreign(handle)

    @property
    def device(self) -> str:
        """Names the device among those of this machine, e.g. ``cuda:1``."""
        return self._origin.device

    def object_name(self, handle: Handle) -> str:
        """How messages name the object of a living handle."""
        return self._table.get(handle).name

    def live_objects(self, owner: Owner | None = None) -> dict[str, int]:
        """Objects not freed yet, by kind, those that the reaper holds included.

        Args:
            owner: count only this one's.
        """
        self._discard_abandoned()
        return self._table.counts(owner)

    @property
    def reaper(self) -> Reaper:
        """What was destroyed while the device might still use it."""
        return self._reaper

    @property
    def origin(self) -> Origin:
        """What the handles that it gives out say that they are of."""
        return self._origin

    @property
    def is_healthy(self) -> bool:
        """True while the backend is open and its device answers."""
        return not (self._is_closed or self._is_forked) and self._lost is None

    @property
    def is_answering(self) -> bool:
        """True where waiting for it makes sense: for one device, the same."""
        return self.is_healthy

    @property
    def loss(self) -> DeviceLost | None:
        """How the device was lost, if it was; to look at, which tells nobody."""
        return self._lost

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

        Idempotent, and waits for nothing: busy objects go to the reaper, and a call of
        another thread that is making one right now ends with `SessionClosed`. The
        device itself is given back once nothing is in use any more.

        Raises:
            ExceptionGroup: the device refused to destroy some, now or earlier, when
                nobody was told; all the others were destroyed nevertheless.
        """
        if self._is_forked:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._table.renew_epoch()
            self._table.kept.clear()
        errors: list[Exception] = []
        interrupt: BaseException | None = None
        for step in (self._destroy_rest, self._end):
            try:
                step()
            except ExceptionGroup as group:
                errors += group.exceptions
            except Exception as error:  # noqa: BLE001 - raised below, all together
                errors.append(error)
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = interrupt or error
        if interrupt is not None:
            raise interrupt
        errors += self._table.refusals.close()
        if errors:
            raise ExceptionGroup("some objects could not be destroyed", errors)

    def _destroy_rest(self) -> None:
        self._destroy_all(self._table.living())

    def _end(self) -> None:
        """Give back what the backend has besides its objects, as far as that can be.

        What is still in use is seen to later.
        """

    def untold_refusals(self, owner: Owner) -> list[Exception]:
        """What an owner's objects could not be freed with, which nobody was told yet.

        These were destroyed while in use. Of owners that have left before, too.
        """
        return self._table.refusals.take(owner)

    @property
    def base(self) -> Backend:
        """The backend itself, where this is a view of it; see `owned`."""
        return cast("Backend", self)

    def open_owner(self, name: str) -> Owner:
        """Somebody to own objects, until `close_owner`.

        Args:
            name: how messages name it.
        """
        if self._is_forked:
            return Owner(name)
        with self._lock:
            if self._shared_owner is None:
                self._shared_owner = Owner("the last session")
            owner = Owner(name, self._shared_owner)
            self._owners.add(owner)
        return owner

    def give_to(self, handle: Handle, owner: Owner) -> None:
        """Say whose an object is from now on.

        Raises:
            SessionClosed: the owner has left, or the backend was closed; the object
                was destroyed.
            InvalidBuffer, InvalidArtifact, InvalidStream, InvalidEvent: it is not
                alive.
        """
        with self._lock:  # leaving and closing come before or after it
            if not (owner.is_ended or self._is_closed):
                self._table.get(handle).owner = owner
                return
            self.discard(handle)
        name = f"{kind_of(handle).singular} {handle.id}"
        what = f"{owner.name} was left" if owner.is_ended else "the backend was closed"
        raise SessionClosed(f"{what}; {name} was destroyed")

    def close_owner(self, owner: Owner) -> None:
        """Destroy every living object of an owner, newest first; it gets no more.

        Idempotent, and waits for nothing: busy objects go to the reaper. With the
        last owner go the objects that no owner was named for.

        Raises:
            ExceptionGroup: the device refused to destroy some; all the others
                were destroyed nevertheless.
        """
        if self._is_forked:
            return
        with self._lock:
            owner.is_ended = True
            self._owners.discard(owner)
            if not self._owners and self._shared_owner is not None:
                self._shared_owner.is_ended = True
                self._shared_owner = None
        self._destroy_all(self._table.living(owner))

    def _destroy_all(self, leftovers: Iterable[Resource]) -> None:
        handles = (resource.handle for resource in leftovers)
        destroy_each(self.discard, handles, "destroyed")
