"""What the measurements on one kind of device come to."""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.fleet.found import FleetMeasurement, JobFound
from accy_async.tuning.race import Standing

__all__ = ["finalists", "verdict"]


def finalists(found: Sequence[FleetMeasurement]) -> tuple[str, ...]:
    """Those too near the best to choose between by what was measured apart.

    Fewer than two are none: there is nothing to choose.
    """
    faster = _faster(found)
    if not faster or faster[0].comparison is None:
        return ()
    most = faster[0].comparison.interval.high
    near = [
        one.name
        for one in faster
        if one.comparison is not None and one.comparison.interval.low < most
    ]
    return tuple(near) if len(near) > 1 else ()


def verdict(
    baseline: str, found: Sequence[FleetMeasurement], final: JobFound | None
) -> tuple[str, Standing, str]:
    """Who is to be used, how it stands, and what speaks against keeping its time."""
    if final is not None and final.winner is not None:
        return final.winner, final.standing, final.why_not
    faster = _faster(found)
    if faster:
        return faster[0].name, Standing.FASTER, faster[0].why_not
    why_not = ""
    for one in found:
        if one.comparison is None:
            continue
        if one.comparison.standing is Standing.UNDECIDED:
            return baseline, Standing.UNDECIDED, one.why_not or "undecided"
        why_not = why_not or one.why_not
    return baseline, Standing.NO_DIFFERENCE, why_not


def _faster(found: Sequence[FleetMeasurement]) -> list[FleetMeasurement]:
    """Those that beat the baseline, the fastest first."""
    known = [
        (one.comparison.interval.estimate, place, one)
        for place, one in enumerate(found)
        if one.comparison is not None and one.comparison.standing is Standing.FASTER
    ]
    return [one for _, _, one in sorted(known)]
