"""Opening a measurement, and leaving it whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from accy_async.errors import InvalidType, InvalidValue
from accy_async.tuning.measuring.candidate import (
    Candidate,
    KeptRounds,
    MeasureOptions,
    MeasureOutcome,
)
from accy_async.tuning.measuring.core import Pace
from accy_async.tuning.measuring.measuring import Measuring
from accy_async.values import listed

if TYPE_CHECKING:
    from accy_async.backends.base import Backend

__all__ = ["measure", "open_measurement"]


@asynccontextmanager
async def open_measurement(
    backend: Backend,
    candidates: Sequence[Candidate],
    options: MeasureOptions | None = None,
    *,
    kept: KeptRounds | None = None,
    pace: Pace | None = None,
) -> AsyncIterator[Measuring]:
    """Begin to measure candidates; iterate over what comes, and ask for its outcome.

    Nothing of the caller's is written. What candidates read must be there when it
    begins, as they run on a stream of their own, and stay as it is meanwhile.

    Args:
        backend: the device.
        candidates: the first one that works is the baseline.
        options: how.
        kept: go on from there; see `Measuring.kept`.
        pace: awaited before each check and each sample, to let other work go first.

    Raises:
        InvalidValue: there is no candidate, or two have one name.
        LaunchArgumentMismatch: they do not take the same buffers.
        OutOfMemory: there is no room for private buffers.

    Cancellation: an ordinary exit. What is on the stream is awaited for the grace at
        most, and everything that was opened is destroyed.
    """
    given = listed("measure.candidates", candidates, "a list of candidates")
    _check_candidates(given)
    measuring = Measuring(backend, given, options or MeasureOptions(), kept, pace)
    primary: BaseException | None = None
    try:
        measuring.open()
        yield measuring
    except BaseException as error:  # noqa: BLE001 - raised by the cleanup
        primary = error
    measuring.close_hung()
    await measuring.leave(primary)


async def measure(
    backend: Backend,
    candidates: Sequence[Candidate],
    options: MeasureOptions | None = None,
    *,
    kept: KeptRounds | None = None,
    pace: Pace | None = None,
) -> MeasureOutcome:
    """Measure candidates to the end; see `open_measurement`.

    Raises:
        TuningStopped: a candidate took the device with it.
        InvalidValue, LaunchArgumentMismatch, OutOfMemory: as `open_measurement`.
    """
    async with open_measurement(
        backend, candidates, options, kept=kept, pace=pace
    ) as measuring:
        async for _ in measuring:
            pass
        return measuring.outcome()


def _check_candidates(candidates: tuple[Candidate, ...]) -> None:
    if not candidates:
        raise InvalidValue("measure.candidates", candidates, "at least one")
    names = set()
    for index, candidate in enumerate(candidates):
        if not isinstance(candidate, Candidate):
            raise InvalidType(f"measure.candidates[{index}]", candidate, "a Candidate")
        if candidate.name in names:
            raise InvalidValue(
                f"measure.candidates[{index}]", candidate.name, "names of their own"
            )
        names.add(candidate.name)
