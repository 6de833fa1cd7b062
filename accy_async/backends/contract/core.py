"""The core of a backend: its state, and the refusal of calls that cannot be served."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from accy_async.artifact.formats import BackendKind
from accy_async.backends.handles import Handle, ObjectKind, StreamHandle
from accy_async.backends.hooks import BackendHooks, EventState, StreamState
from accy_async.backends.lifetimes import Reaper, ResourceTable
from accy_async.backends.makers import Makers
from accy_async.backends.origins import Origin
from accy_async.backends.resources import Resource
from accy_async.backends.suspects import accuse
from accy_async.backends.timeline import Timeline
from accy_async.errors import (
    DeviceError,
    DeviceLost,
    ForkedProcess,
    InvalidType,
    SessionClosed,
)

if TYPE_CHECKING:
    from accy_async.backends.owners import Owner
    from accy_async.backends.routes import CopyRoute

__all__ = [
    "DEFAULT_GRACE_S",
    "BackendCore",
    "SettleTimeout",
    "Settled",
    "admit",
    "advance",
]

DEFAULT_GRACE_S = 5.0
"""How long cleanup waits for the device before it hands objects to the reaper."""


class SettleTimeout(TimeoutError):
    """A cleanup's wait was given up: its grace ran out."""


class Settled(NamedTuple):
    """What a cleanup's wait came to.

    Attributes:
        error: what it raised; a `SettleTimeout` where its grace ran out; or None.
        cancelled: the first of asyncio's own cancellations that came meanwhile, to be
            raised when the cleanup is done; or None.
    """

    error: Exception | None
    cancelled: BaseException | None


_BACKENDS: weakref.WeakSet[BackendCore] = weakref.WeakSet()
_serials = itertools.count()


class BackendCore(BackendHooks):
    """What every part of a backend stands on: its tables, its lock, its refusals.

    Args:
        kind: the kind of device.
        grace_s: how long cleanup waits for the device, in seconds.
    """

    loads_block: ClassVar[bool] = False
    """True where creating or loading an artifact may take longer than microseconds."""

    writes_block: ClassVar[bool] = False
    """True where submitting a copy from host memory copies it first."""

    asks_guards: ClassVar[bool] = True
    """True where the device asks an operation's guard when its turn comes."""

    is_debugging = False
    """True where each operation is waited for where it is submitted."""

    def __init__(self, kind: BackendKind, *, grace_s: float = DEFAULT_GRACE_S) -> None:
        self.kind = kind
        self.grace_s = grace_s
        self.serial = next(_serials)  # in which order locks of several are taken
        self._renew_lock()
        self._origin = Origin(self.capabilities.identity, self)
        self._table = ResourceTable(kind, self._free, self._origin)
        self._reaper = Reaper(self._table)
        # Living streams once more, as every submission looks one up.
        self._streams_by_id: dict[int, StreamState] = {}
        # Who is open on it, and who has what is made on it without naming anybody.
        self._owners: set[Owner] = set()
        self._shared_owner: Owner | None = None
        # Objects that the garbage collector found nobody to hold.
        self._abandoned: deque[Handle] = deque()
        # Where other libraries' streams and ours meet; opened when first needed.
        self._exchange: list[StreamState] = []
        self._meeting: EventState | None = None
        # Which way copies to other devices go, as far as that was asked.
        self._routes: weakref.WeakKeyDictionary[BackendCore, CopyRoute] = (
            weakref.WeakKeyDictionary()
        )
        self._default = self._open_stream(0, "the default stream")
        self._lost: DeviceLost | None = None
        self._is_loss_told = False
        self._is_closed = False
        self._is_forked = False
        _BACKENDS.add(self)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()
        self._makers = Makers(self._lock, lambda: self._is_closed, self._after_makers)

    def _find_for_launch(self, handle: Handle) -> Resource | None:
        """The object of a handle in a launch; None for one to be taken on trust."""
        return self._table.get(handle)

    def _check(self, call: str) -> None:
        """Refuse a call on a backend closed, forked, or whose device is lost."""
        if self._is_forked:
            raise ForkedProcess(
                f"{call}: this backend was opened before fork() and cannot be used in "
                "the child; open one in the child, or start workers with spawn"
            )
        if self._is_closed:
            raise SessionClosed(f"{call}: the backend is closed")
        if self._lost is not None:
            self._is_loss_told = True
            raise self._lost.consequence()

    def _lose(self, found: DeviceError) -> DeviceLost:
        """The device is gone: end every wait, free everything, refuse all calls.

        Args:
            found: how that showed; where it names nobody, those who may have caused
                it are looked for.

        Returns:
            What every later call raises; that of the first loss, where there are two.
        """
        with self._lock:
            if self._lost is not None:
                return self._lost
            streams = self._every_stream()
            cause = accuse(found, streams)
            lost = self._lost = DeviceLost(
                f"{self._origin.device} is lost: {cause.message}",
                code=cause.code,
                call=cause.call,
                node=cause.node,
                kernel=cause.kernel,
                stream=cause.stream,
                suspects=cause.suspects,
            )
            lost.__cause__ = cause
        for state in streams:
            if state.journal is not None:
                state.journal.clear()
            state.timeline.lose(lost)
        self._table.lose()
        return lost

    def _keep(
        self,
        kind: ObjectKind,
        make_handle: Callable[[int], Handle],
        payload: object,
        detail: str = "",
        *,
        timeline: Timeline | None = None,
    ) -> Resource:
        """Register what was just made, unless the backend was closed meanwhile.

        Closing comes before or after it: so it destroys all that anybody was given.

        Raises:
            SessionClosed: it was closed before; the object is destroyed.
        """
        with self._lock:
            resource = self._table.add(
                kind, make_handle, payload, detail, timeline=timeline
            )
            if self._is_closed:
                self._table.destroy(resource.handle)
                raise SessionClosed(
                    f"the backend was closed while {resource.name} was made"
                )
            resource.owner = self._shared_owner
            if kind is ObjectKind.STREAM:
                self._streams_by_id[resource.handle.id] = cast("StreamState", payload)
        return resource

    def _after_makers(self) -> None:
        """The last call is through that was making something when the backend closed.

        Backends that give their device back do it here, where `close` could not.
        """

    def _stream(self, stream: StreamHandle | None) -> StreamState:
        if stream is None:
            return self._default
        try:
            state = self._streams_by_id.get(stream.id)
            is_ours = stream.origin is self._origin
        except AttributeError:
            raise InvalidType("stream", stream, "a StreamHandle, or None") from None
        if state is None or not is_ours:  # or made by hand
            self._table.get(stream)  # says what is wrong with it
            if state is None:
                raise InvalidType("stream", stream, "a StreamHandle, or None")
        return state

    def _cover(self, state: StreamState) -> None:
        """Take a position behind what another library submitted to the stream."""
        with self._lock:
            self._pass(state, state.timeline.advance())

    def _every_stream(self) -> list[StreamState]:
        """The default stream, those for exchange, and all others not freed yet."""
        return [
            self._default,
            *self._exchange,
            *(
                cast("StreamState", resource.payload)
                for resource in (
                    *self._table.retired(),
                    *reversed(self._table.living()),
                )
                if resource.kind is ObjectKind.STREAM
            ),
        ]

    def _timelines(self) -> list[Timeline]:
        for state in (self._default, *self._streams_by_id.values()):
            if state.is_lent:
                self._cover(state)
        return [state.timeline for state in self._every_stream()]


def admit(state: StreamState, resources: Iterable[Resource | None]) -> None:
    """Have a stream wait for what of these has not arrived yet; see `exchange`."""
    for resource in resources:
        if resource is not None and (arrival := resource.arrival) is not None:
            if arrival.is_past:
                resource.arrival = None
            else:
                arrival.admit(state)


def advance(state: StreamState, *touched: Resource | None) -> int:
    """Take the next position of a stream for an operation that uses these."""
    admit(state, touched)
    position = state.timeline.advance()
    for resource in touched:
        if resource is not None:
            resource.touch(state.timeline, position)
    return position


def _refuse_in_child() -> None:
    for backend in _BACKENDS:
        backend._is_forked = True  # noqa: SLF001 - this module's own class
        backend._table.renew_epoch()  # noqa: SLF001
        backend._renew_lock()  # noqa: SLF001 - a thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_in_child)
