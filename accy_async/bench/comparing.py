"""A report against an earlier one of the same device."""

from __future__ import annotations

import math

import attrs
import numpy as np

from accy_async.bench.report import DeviceReport, Report
from accy_async.tuning.race import Standing
from accy_async.tuning.statistics import ratio_interval

__all__ = ["Change", "compare_reports", "difference_of_devices"]

_RESAMPLES = 500
_TOLERANCE = math.log(1.01)


@attrs.frozen(kw_only=True)
class Change:
    """How a candidate's time changed.

    Attributes:
        benchmark: whose.
        candidate: which.
        ratio: the new time over the old one; below 1 where it became faster.
        low: the ratio's bounds.
        high: the same.
        standing: faster or slower, by more than 1 % and not by chance; no difference;
            or undecided.
    """

    benchmark: str
    candidate: str
    ratio: float
    low: float
    high: float
    standing: Standing


def difference_of_devices(new: DeviceReport, old: DeviceReport) -> str | None:
    """In what two devices differ so that times do not compare; None for nothing.

    Equal chips are equal under any product's name; the driver may be another one, that
    being what one may want to know of.
    """
    if new.fingerprint == old.fingerprint and new.backend == old.backend:
        return None
    return (
        f"{old.backend} {old.name} ({old.architecture}, {old.compute_units} units), "
        f"this is {new.backend} {new.name} ({new.architecture}, {new.compute_units} "
        "units)"
    )


def compare_reports(
    new: Report, old: Report, *, confidence: float = 0.99
) -> tuple[Change, ...]:
    """Every candidate that both have measured, in the new report's order.

    The two were not measured in the same rounds: what the machine did meanwhile is in
    the ratios, so that only differences beyond that mean something. The ceilings, which
    both have measured, tell.
    """
    changes = []
    for benchmark in new.benchmarks:
        before = old.benchmark(benchmark.name)
        for candidate in benchmark.candidates:
            earlier = None if before is None else before.candidate(candidate.name)
            if earlier is None or not (earlier.times_ns and candidate.times_ns):
                continue
            found = ratio_interval(
                np.array(candidate.times_ns),
                np.array(earlier.times_ns),
                confidence=confidence,
                resamples=_RESAMPLES,
                generator=np.random.default_rng(0),
            )
            if found.high < 0.0 and found.estimate < -_TOLERANCE:
                standing = Standing.FASTER
            elif found.low > 0.0 and found.estimate > _TOLERANCE:
                standing = Standing.SLOWER
            elif found.half_width <= _TOLERANCE:
                standing = Standing.NO_DIFFERENCE
            else:
                standing = Standing.UNDECIDED
            changes.append(
                Change(
                    benchmark=benchmark.name,
                    candidate=candidate.name,
                    ratio=math.exp(found.estimate),
                    low=math.exp(found.low),
                    high=math.exp(found.high),
                    standing=standing,
                )
            )
    return tuple(changes)
