"""From rounds and a verdict to what a report says of a benchmark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from accy_async.bench.report import BenchmarkReport, CandidateReport
from accy_async.tuning.race import Comparison, RaceVerdict
from accy_async.tuning.statistics import mad, median_interval

__all__ = ["Standings", "summarize"]


@attrs.frozen(kw_only=True)
class Standings:
    """How a race went.

    Attributes:
        entrants: name, status and reason of each candidate, in order.
        racers: the names of those that raced, by their numbers.
        rounds: what each took in nanoseconds, by name.
        verdict: the race's; None where none was run.
        source: whose clock was read.
        launches: launches that a sample was of.
    """

    entrants: Sequence[tuple[str, str, str]]
    racers: Sequence[str]
    rounds: Sequence[Mapping[str, float]]
    verdict: RaceVerdict | None
    source: str
    launches: int


def summarize(
    blank: BenchmarkReport, standings: Standings, confidence: float
) -> BenchmarkReport:
    """A benchmark's report, filled in.

    Args:
        blank: what is known of it before: name, bytes, operations.
        standings: how the race went.
        confidence: of the medians' bounds.
    """
    verdict = standings.verdict
    compared: dict[str, Comparison] = {}
    if verdict is not None:
        compared = {standings.racers[one.candidate]: one for one in verdict.comparisons}
    candidates = tuple(
        _candidate(blank, standings, entrant, compared.get(entrant[0]), confidence)
        for entrant in standings.entrants
    )
    if verdict is None:
        return attrs.evolve(
            blank,
            candidates=candidates,
            source=standings.source,
            launches=standings.launches,
        )
    return attrs.evolve(
        blank,
        candidates=candidates,
        winner=standings.racers[verdict.winner],
        standing=str(verdict.standing),
        source=standings.source,
        launches=standings.launches,
        conditions=str(verdict.conditions),
        is_steady=verdict.conditions.are_steady,
    )


def _candidate(
    blank: BenchmarkReport,
    standings: Standings,
    entrant: tuple[str, str, str],
    comparison: Comparison | None,
    confidence: float,
) -> CandidateReport:
    name, status, reason = entrant
    times = [row[name] for row in standings.rounds if name in row]
    if status != "measured" or not times:
        if status == "measured":
            status, reason = "not tried", reason or "not reached"
        return CandidateReport(name=name, status=status, reason=reason)
    samples = np.array(times)
    bounds = median_interval(samples, confidence)
    speedup = None
    if comparison is not None:
        found = comparison.interval
        low, high = math.exp(-found.high), math.exp(-found.low)
        if math.isfinite(low) and math.isfinite(high):
            speedup = low, comparison.speedup, high
    return CandidateReport(
        name=name,
        status=status,
        reason=reason,
        times_ns=tuple(times),
        median_ns=bounds.estimate,
        low_ns=bounds.low,
        high_ns=bounds.high,
        mad_ns=mad(samples),
        speedup=speedup,
        standing=None if comparison is None else str(comparison.standing),
        bytes_per_s=_rate(blank.bytes_moved, bounds.estimate),
        flops_per_s=_rate(blank.flops, bounds.estimate),
    )


def _rate(amount: float | None, ns: float) -> float | None:
    return None if amount is None or not ns > 0.0 else amount / ns * 1e9
