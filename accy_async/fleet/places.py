"""Where workers are opened: in this process, or wherever a `WorkerPlace` says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from accy_async.backends.base import Backend
from accy_async.fleet.worker import SessionWorker
from accy_async.session import open_session

if TYPE_CHECKING:
    from accy_async.fleet.found import FleetDevice

__all__ = ["FleetWorker", "LocalPlace", "WorkerPlace", "WorkerSource"]


class FleetWorker(ABC):
    """An open worker, as a fleet asks it. One call at a time.

    What it is given and what it answers are bytes of `accy_async.fleet.wire`: a
    `SessionWorker` at the other end takes and makes them.
    """

    @property
    @abstractmethod
    def device(self) -> FleetDevice:
        """The device that it measures on."""

    @abstractmethod
    async def take(self, work: bytes) -> bytes:
        """Hand it a list; see `SessionWorker.take`.

        Raises:
            WorkerLost: it is gone.

        Cancellation: it goes on with nothing.
        """

    @abstractmethod
    async def measure(self, request: bytes) -> bytes:
        """Have it measure; see `SessionWorker.measure`.

        Raises:
            WorkerLost: it is gone.

        Cancellation: returns when it measures no more.
        """


class WorkerPlace(ABC):
    """Somewhere that a worker can be opened, one at a time, again and again.

    Attributes:
        name: the worker's, in outcomes and messages.
    """

    name: str

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[FleetWorker]:
        """Open a worker; leaving the block ends it, whatever it is doing.

        Raises:
            WorkerLost: it cannot be opened any more.
            AccyError: it cannot be opened.
        """


class WorkerSource(ABC):
    """Gives a number of places, with what they all need: a cluster for example."""

    @abstractmethod
    def connect(self) -> AbstractAsyncContextManager[Sequence[WorkerPlace]]:
        """The places, while the block lasts.

        Raises:
            AccyError: what they need is not there.
        """


class LocalPlace(WorkerPlace):
    """A session on a device of this process.

    Args:
        device: a name, as ``cuda:1``, or an open backend, which stays open.
        grace: as for `open_session`, in seconds.
    """

    def __init__(self, device: str | Backend, *, grace: float | None = None) -> None:
        self.name = device.device if isinstance(device, Backend) else str(device)
        self._device = device
        self._grace = grace

    def __repr__(self) -> str:
        return f"<LocalPlace {self.name}>"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[FleetWorker]:
        """A worker on a session of its own."""
        async with open_session(self._device, grace=self._grace) as session:
            worker = SessionWorker(session)
            try:
                yield _LocalWorker(worker)
            finally:
                worker.drop()


class _LocalWorker(FleetWorker):
    """A worker of this process."""

    def __init__(self, worker: SessionWorker) -> None:
        self._worker = worker

    @property
    def device(self) -> FleetDevice:
        return self._worker.device

    async def take(self, work: bytes) -> bytes:
        return await self._worker.take(work)

    async def measure(self, request: bytes) -> bytes:
        return await self._worker.measure(request)
