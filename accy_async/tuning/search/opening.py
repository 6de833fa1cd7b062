"""Opening a search, and leaving it whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from accy_async.errors import InvalidType, InvalidValue
from accy_async.tuning.search.options import SearchOptions, SearchOutcome
from accy_async.tuning.search.searching import Searching
from accy_async.tuning.search.space import Schedule, SearchSpace
from accy_async.tuning.search.strategies import Strategy, SuccessiveHalving
from accy_async.tuning.search.trial import KeptSearch
from accy_async.tuning.search.workshop import Build

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferBinding
    from accy_async.tuning.measuring import Pace

__all__ = ["open_search", "search"]


@asynccontextmanager
async def open_search(
    backend: Backend,
    space: SearchSpace,
    build: Build,
    buffers: Sequence[BufferBinding],
    *,
    baseline: Schedule | None = None,
    strategy: Strategy | None = None,
    options: SearchOptions | None = None,
    kept: KeptSearch | None = None,
    pace: Pace | None = None,
) -> AsyncIterator[Searching]:
    """Begin to search a space; iterate over what comes, and ask for its outcome.

    Nothing of the caller's is written. What candidates read must stay as it is
    meanwhile.

    Args:
        backend: the device.
        space: the schedules.
        build: makes a schedule's kernel, as a `Variant`; called on worker threads,
            several at a time. What it raises rejects the schedule.
        buffers: the kernel's buffer arguments, the same for all schedules.
        baseline: what everything is compared with; the space's first schedule if left
            out. Results are checked against its results.
        strategy: `SuccessiveHalving` if left out.
        options: how.
        kept: go on from there; see `Searching.kept`. The budget is a new one.
        pace: awaited before each sample, to let other work go first.

    Raises:
        InvalidType: an argument is of another type.
        InvalidValue: the space has no such baseline, or ``kept`` is of another one.
        RuntimeUnavailable: the strategy needs a library that is not installed.

    Cancellation: an ordinary exit. What is on the stream is awaited for the grace at
        most, everything that was loaded is unloaded, and what still compiles is left
        to its end, on its thread.
    """
    if not isinstance(space, SearchSpace):
        raise InvalidType("search.space", space, "a SearchSpace")
    if not callable(build):
        raise InvalidType("search.build", build, "a function of a schedule")
    begins = callable(getattr(strategy, "begin", None))
    if strategy is not None and (isinstance(strategy, type) or not begins):
        expected = "a strategy, such as SuccessiveHalving()"
        raise InvalidType("search.strategy", strategy, expected)
    if baseline is None:
        baseline = next(space.schedules())
    elif baseline not in space:
        raise InvalidValue(
            "search.baseline",
            baseline,
            "a schedule of the space, as space.schedule(...) gives",
        )
    if kept is not None and kept.baseline != baseline:
        raise InvalidValue(
            "search.kept", kept.baseline, f"what was compared with {baseline}"
        )
    searching = Searching(
        backend,
        space,
        build,
        buffers,
        baseline=baseline,
        strategy=SuccessiveHalving() if strategy is None else strategy,
        options=options or SearchOptions(),
        kept=kept,
        pace=pace,
    )
    primary: BaseException | None = None
    try:
        yield searching
    except BaseException as error:  # noqa: BLE001 - raised by the cleanup
        primary = error
    await searching.leave(primary)


async def search(
    backend: Backend,
    space: SearchSpace,
    build: Build,
    buffers: Sequence[BufferBinding],
    *,
    baseline: Schedule | None = None,
    strategy: Strategy | None = None,
    options: SearchOptions | None = None,
    kept: KeptSearch | None = None,
    pace: Pace | None = None,
) -> SearchOutcome:
    """Search a space until the budget is spent; see `open_search`.

    Raises:
        UnsupportedOperation: the baseline cannot be built or measured.
        TuningStopped: a schedule took the device with it.
        InvalidType, InvalidValue, RuntimeUnavailable: as `open_search`.
    """
    async with open_search(
        backend,
        space,
        build,
        buffers,
        baseline=baseline,
        strategy=strategy,
        options=options,
        kept=kept,
        pace=pace,
    ) as searching:
        async for _ in searching:
            pass
        return searching.outcome()
