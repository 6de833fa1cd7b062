"""A fleet: workers that measure one list together, and how they are left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio

from accy_async.backends.base import Backend
from accy_async.backends.catalogue import gpu_names
from accy_async.backends.cleanup import leaves, overtake, raise_together
from accy_async.backends.completion import run_abandonable
from accy_async.backends.nativecancel import outlast
from accy_async.errors import (
    InvalidType,
    InvalidValue,
    SessionClosed,
    UnsupportedOperation,
    WorkerLost,
)
from accy_async.fleet.board import Board
from accy_async.fleet.crew import Crew, Errand
from accy_async.fleet.found import FleetOutcome
from accy_async.fleet.places import LocalPlace, WorkerPlace, WorkerSource
from accy_async.fleet.wire import to_wire
from accy_async.fleet.work import FleetWork

if TYPE_CHECKING:
    from accy_async.fleet.found import DeviceKind, FleetDevice, FleetMeasurement

__all__ = ["Fleet", "FleetMeasuring", "Workers", "open_fleet"]

Workers = (
    str
    | WorkerPlace
    | WorkerSource
    | Iterable[str | int | Backend | WorkerPlace | WorkerSource]
)
"""What a fleet is opened with; see `open_fleet`."""


class FleetMeasuring:
    """A list that is being measured; from `Fleet.measuring`.

    An async iterator of `FleetMeasurement`, one for each candidate and kind of device
    as it is known.
    """

    def __init__(self, crew: Crew, errand: Errand) -> None:
        self._crew = crew
        self._errand = errand
        self._told = 0
        self._lost_before = len(crew.lost)

    def __aiter__(self) -> FleetMeasuring:
        return self

    async def __anext__(self) -> FleetMeasurement:
        """The next that is known.

        Raises:
            StopAsyncIteration: all is known, or no worker is left for the rest.
            WorkerRefused, AccyError: a worker cannot do what it was asked.
            SessionClosed: the fleet or the block was left.

        Cancellation: the measuring goes on until its block is left.
        """
        await anyio.lowlevel.checkpoint()
        errand = self._errand
        while True:
            if errand.error is not None:
                raise errand.error
            if self._told < len(errand.board.news):
                self._told += 1
                return errand.board.news[self._told - 1]
            if errand.board.is_over:
                raise StopAsyncIteration
            if errand.is_stopped or self._crew.is_leaving:
                raise SessionClosed("measuring: the fleet was left")
            await self._crew.changed()

    @property
    def is_over(self) -> bool:
        """True where nothing more will be measured."""
        return self._errand.is_stopped or self._errand.board.is_over

    def outcome(self) -> FleetOutcome:
        """What is known now; final when `is_over`."""
        return FleetOutcome(
            kinds=self._errand.board.outcomes(),
            lost=tuple(self._crew.lost[self._lost_before :]),
        )


class Fleet:
    """Workers on many devices; `open_fleet` opens one."""

    def __init__(self, crew: Crew, most_losses: int) -> None:
        self._crew = crew
        self._most_losses = most_losses

    def __repr__(self) -> str:
        state = "left" if self._crew.is_leaving else f"on {', '.join(self.workers)}"
        return f"<Fleet {state}>"

    @property
    def workers(self) -> Mapping[str, FleetDevice]:
        """The device of each worker that is there, by the worker's name."""
        return {
            seat.name: seat.device
            for seat in self._crew.seats
            if seat.device is not None and not seat.is_gone
        }

    @property
    def lost(self) -> tuple[tuple[str, str], ...]:
        """The workers that were lost, and how, in order."""
        return tuple(self._crew.lost)

    async def measure(self, work: FleetWork) -> FleetOutcome:
        """Measure a list to the end, on all workers.

        Each kind of device goes through it once, each candidate beside the baseline on
        one device; see docs/fleets.md.

        Raises:
            As `measuring` and its iteration.

        Cancellation: what workers measure of it is cancelled, and awaited for their
            grace at most; they stay, for the next list.
        """
        async with self.measuring(work) as measuring:
            async for _ in measuring:
                pass
            return measuring.outcome()

    @asynccontextmanager
    async def measuring(self, work: FleetWork) -> AsyncIterator[FleetMeasuring]:
        """Measure a list, and be told of each candidate.

        Lists that are measured at the same time are gone through in the order they
        came. Leaving the block cancels what workers still have of it.

        Raises:
            InvalidType: it is no list.
            UnsupportedOperation: no worker can run any of it.
            WorkerLost: no worker is left.
            SessionClosed: the fleet was left.

        Cancellation: as leaving the block.
        """
        crew = self._crew
        refused = self._refusals(work)
        data = await run_abandonable(
            lambda: to_wire(work), lambda _: None, name="write a list of candidates"
        )
        board = Board(work.names, refused, self._most_losses)
        for name, device in self.workers.items():
            board.join(name, device.kind)
        errand = Errand(data, board)
        measuring = FleetMeasuring(crew, errand)
        crew.errands.append(errand)
        crew.tell()
        try:
            yield measuring
        finally:
            crew.errands.remove(errand)
            errand.stop()
            _, cancelled = await outlast(partial(crew.wait_ended, errand))
            if cancelled is not None:
                raise cancelled

    def _refusals(self, work: FleetWork) -> dict[DeviceKind, dict[str, str]]:
        """By kind of device, who cannot run there, and why."""
        if self._crew.is_leaving:
            raise SessionClosed("measuring: the fleet was left")
        if not isinstance(work, FleetWork):
            raise InvalidType("measuring.work", work, "a FleetWork")
        if not self.workers:
            how = "; ".join(f"{name}: {reason}" for name, reason in self.lost)
            raise WorkerLost(f"no worker is left: {how}")
        refused: dict[DeviceKind, dict[str, str]] = {}
        for device in self.workers.values():
            loads = ", ".join(device.formats)
            refused[device.kind] = {
                one.name: f"{one.artifact.format} is none of {loads}"
                for one in work.candidates
                if one.artifact.format not in device.formats
            }
        if all(len(cannot) == len(work.candidates) for cannot in refused.values()):
            formats = sorted({str(one.artifact.format) for one in work.candidates})
            raise UnsupportedOperation(
                f"no worker loads {', '.join(formats)}: "
                + "; ".join(
                    f"{name} loads {', '.join(device.formats)}"
                    for name, device in self.workers.items()
                )
            )
        return refused


@asynccontextmanager
async def open_fleet(
    workers: Workers = "all",
    *,
    restarts: int = 1,
    most_losses: int = 2,
    grace: float | None = None,
) -> AsyncIterator[Fleet]:
    """Open workers on many devices, and end them all on the way out.

    Args:
        workers: ``"all"`` for every GPU of this machine; or a list of devices of this
            machine (``"cuda:1"``, the index ``1``, ``"cpu"``, open backends), of
            `WorkerPlace` and of `WorkerSource`; or one of the latter, as `ray_workers`
            gives.
        restarts: how often a worker may be opened in the place of a lost one, each.
        most_losses: how many workers may be lost with one candidate under way until it
            is taken for the cause, and rejected.
        grace: of the sessions of this process, in seconds.

    Raises:
        InvalidType, InvalidValue: these are no workers, two have one name, or there
            are none; or a number is out of range.
        BackendUnavailable, AccyError: a worker cannot be opened; the others are ended.
        ExceptionGroup: several cannot; or the block, or the way out, failed in
            several ways.

    Cancellation: an ordinary exit: measuring stops, every worker is ended.
    """
    _check_count("restarts", restarts, 0)
    _check_count("most_losses", most_losses, 1)
    async with AsyncExitStack() as stack:
        places: list[WorkerPlace] = []
        for one in await _listed(workers, grace):
            if isinstance(one, WorkerSource):
                places += await stack.enter_async_context(one.connect())
            else:
                places.append(one)
        _check_places(places)
        crew = Crew(places, restarts)
        async with _at_work(crew):
            yield Fleet(crew, most_losses)


@asynccontextmanager
async def _at_work(crew: Crew) -> AsyncIterator[None]:
    """A block in which the workers are open."""
    primary: BaseException | None = None
    interrupt: BaseException | None = None
    try:
        async with anyio.create_task_group() as group:
            for seat in crew.seats:
                group.start_soon(crew.serve, seat, name=f"worker {seat.name}")
            try:
                await _all_open(crew)
                yield
            except BaseException as error:  # noqa: BLE001 - raised below
                primary = error
            crew.is_leaving = True
            crew.tell()
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        # Nothing but an interrupt ends a worker's task in another way.
        interrupt = next(leaves(failed))
    except BaseException as error:  # noqa: BLE001 - as above
        primary = primary or error
    if interrupt is not None:
        primary = overtake(primary, interrupt, crew.errors)
    raise_together("the fleet", primary, crew.errors)


async def _all_open(crew: Crew) -> None:
    """Return when every worker is open.

    Raises:
        Exception: why one is not; of several, a group.
    """
    while any(seat.device is None and seat.error is None for seat in crew.seats):
        await crew.changed()
    failed = [seat.error for seat in crew.seats if seat.error is not None]
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise ExceptionGroup("opening a fleet: workers cannot be opened", failed)


async def _listed(
    workers: Workers, grace: float | None
) -> Sequence[WorkerPlace | WorkerSource]:
    if isinstance(workers, str) and workers == "all":
        names = await run_abandonable(gpu_names, lambda _: None, name="count GPUs")
        return [LocalPlace(name, grace=grace) for name in names]
    expected = "'all', or a list of devices, open backends, places and sources"
    if isinstance(workers, (WorkerPlace, WorkerSource)):
        return [workers]
    if isinstance(workers, (str, Backend)) or not isinstance(workers, Iterable):
        raise InvalidType("open_fleet.workers", workers, expected)
    listed: list[WorkerPlace | WorkerSource] = []
    for one in workers:
        if isinstance(one, (WorkerPlace, WorkerSource)):
            listed.append(one)
        elif isinstance(one, int) and not isinstance(one, bool):
            listed.append(LocalPlace(f"cuda:{one}", grace=grace))
        elif isinstance(one, (str, Backend)):
            listed.append(LocalPlace(one, grace=grace))
        else:
            raise InvalidType("open_fleet.workers", one, expected)
    return listed


def _check_places(places: Sequence[WorkerPlace]) -> None:
    if not places:
        raise InvalidValue("open_fleet.workers", places, "at least one worker")
    names = [place.name for place in places]
    for name in names:
        if names.count(name) > 1:
            raise InvalidValue("open_fleet.workers", name, "each worker once")


def _check_count(name: str, value: object, least: int) -> None:
    field, expected = f"open_fleet.{name}", f"an integer of at least {least}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType(field, value, expected)
    if value < least:
        raise InvalidValue(field, value, expected)
