"""The workers of a fleet at work: each opened in a task of its own, and fed there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio
import attrs

from accy_async.backends.cleanup import leaves
from accy_async.errors import WorkerLost, WorkerRefused
from accy_async.fleet.jobs import JobReply, JobRequest
from accy_async.fleet.wire import from_wire, to_wire

if TYPE_CHECKING:
    from accy_async.fleet.board import Board, Job
    from accy_async.fleet.found import FleetDevice
    from accy_async.fleet.places import FleetWorker, WorkerPlace

__all__ = ["Crew", "Errand", "Seat"]


@attrs.define(eq=False)
class Seat:
    """A place, and the worker that is or was there.

    Attributes:
        place: where workers are opened.
        restarts: how often one may still be opened in the place of a lost one.
        device: the worker's; None before the first was opened.
        is_gone: True where no worker will be there any more.
        error: why the first one could not be opened.
    """

    place: WorkerPlace
    restarts: int
    device: FleetDevice | None = None
    is_gone: bool = False
    error: Exception | None = None

    @property
    def name(self) -> str:
        """The place's."""
        return self.place.name


@attrs.define(eq=False)
class Errand:
    """A list that is being measured.

    Attributes:
        data: the list as bytes.
        board: what is known of it.
        scopes: of the jobs that workers have.
        error: why it cannot go on.
        is_stopped: True where no more of it is to be handed out.
    """

    data: bytes
    board: Board
    scopes: dict[Job, anyio.CancelScope] = attrs.field(factory=dict)
    error: Exception | None = None
    is_stopped: bool = False

    def stop(self, error: Exception | None = None) -> None:
        """Hand out no more of it, and cancel what workers have of it."""
        self.error = self.error or error
        self.is_stopped = True
        for scope in self.scopes.values():
            scope.cancel()


class Crew:
    """All seats, the errands in the order they came, and the news of them.

    Args:
        places: a worker is opened in each.
        restarts: how often in each, after losses.
    """

    def __init__(self, places: Sequence[WorkerPlace], restarts: int) -> None:
        self.seats = [Seat(place, restarts) for place in places]
        self.errands: list[Errand] = []
        self.lost: list[tuple[str, str]] = []
        self.errors: list[Exception] = []
        self.is_leaving = False
        self._news = anyio.Event()

    async def changed(self) -> None:
        """Return when something has happened since."""
        await self._news.wait()

    async def wait_ended(self, errand: Errand) -> None:
        """Return when no worker is at an errand any more that was stopped."""
        while errand.scopes:
            await self.changed()

    def tell(self) -> None:
        """Something has happened."""
        news, self._news = self._news, anyio.Event()
        news.set()

    async def serve(self, seat: Seat) -> None:
        """Open a worker, feed it, and open others for those that are lost.

        Returns when there will be none any more. Raises nothing but cancellations.
        """
        while True:
            reason = await self._open_and_feed(seat)
            if seat.error is not None or self.is_leaving:
                break
            self.lost.append((seat.name, reason))
            if not seat.restarts:
                break
            seat.restarts -= 1
            self.tell()
        seat.is_gone = True
        for errand in self.errands:
            errand.board.leave(seat.name)
        self.tell()

    async def _open_and_feed(self, seat: Seat) -> str:
        """How the worker was lost."""
        reason = ""
        try:
            async with seat.place.open() as worker:
                seat.device = worker.device
                for errand in self.errands:
                    errand.board.join(seat.name, worker.device.kind)
                self.tell()
                reason = await self._feed(seat, worker)
        except Exception as error:  # noqa: BLE001 - told below, or when all is left
            if self.is_leaving:
                self.errors.extend(leaves(error))
            elif seat.device is None:
                seat.error = error
            elif not reason:
                seat.restarts = 0  # none can be opened any more
                return str(error)
            else:
                return f"{reason}; leaving it: {error}"
        return reason

    async def _feed(self, seat: Seat, worker: FleetWorker) -> str:
        """Hand out jobs until the worker is lost; how it was."""
        held: Errand | None = None
        while True:
            errand, job = self._next(seat, worker.device)
            if errand is None or job is None:
                await self.changed()
                continue
            scope = errand.scopes[job] = anyio.CancelScope()
            has_list, held = held is errand, None
            lost = ""
            try:
                with scope:
                    lost = await self._do(errand, job, worker, has_list=has_list)
                    held = errand
            finally:
                del errand.scopes[job]
                self.tell()
            if lost:
                return lost

    async def _do(
        self, errand: Errand, job: Job, worker: FleetWorker, *, has_list: bool
    ) -> str:
        """Have one job done; how the worker was lost with it, or nothing."""
        try:
            reply = JobReply()
            if not has_list:
                reply = from_wire(await worker.take(errand.data), JobReply)
            if not reply.lost and not reply.refused:
                request = to_wire(JobRequest(names=job.names))
                reply = from_wire(await worker.measure(request), JobReply)
        except WorkerLost as error:
            reply = JobReply(lost=str(error), culprit=error.culprit)
        except Exception as error:  # noqa: BLE001 - who measures is told
            errand.stop(error)
            return ""
        if reply.found is not None and reply.found.names == job.names:
            errand.board.done(job, reply.found)
        elif reply.lost:
            errand.board.lost(job, reply.lost, reply.culprit)
        else:
            why = reply.refused or "it answered nothing"
            if reply.found is not None:
                answered, asked = reply.found.names, job.names
                why = f"it answered of {answered}, asked about {asked}"
            errand.stop(WorkerRefused(why, worker=job.worker))
        return reply.lost

    def _next(
        self, seat: Seat, device: FleetDevice
    ) -> tuple[Errand, Job] | tuple[None, None]:
        for errand in self.errands:
            if not errand.is_stopped:
                job = errand.board.next(seat.name, device)
                if job is not None:
                    return errand, job
        return None, None
