"""From what a measurement knows to what it says."""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.tuning.measuring.candidate import (
    CandidateOutcome,
    CandidateStatus,
    KeptRounds,
    MeasureOutcome,
)
from accy_async.tuning.race import Race, Standing
from accy_async.tuning.statistics import mad, median

__all__ = ["outcome_of"]


def outcome_of(
    entries: Sequence[tuple[str, CandidateStatus, str]],
    *,
    baseline: int | None,
    race: Race | None,
    racers: Sequence[int],
    kept: KeptRounds,
    is_over: bool,
    doubts: str,
) -> MeasureOutcome:
    """What a measurement found.

    Args:
        entries: name, status and reason of each candidate.
        baseline: the baseline's place among them.
        race: how they did.
        racers: the candidates' places, by their numbers in the race.
        kept: what to go on from.
        is_over: whether all is done.
        doubts: what else speaks against keeping the times.
    """
    verdict = None if race is None else race.verdict()
    numbers = {index: number for number, index in enumerate(racers)}
    compared = {}
    if verdict is not None:
        compared = {one.candidate: one for one in verdict.comparisons}
    outcomes = []
    for index, (name, status, reason) in enumerate(entries):
        number = numbers.get(index)
        times = None
        if race is not None and number is not None:
            times = race.samples(number)
        has_times = times is not None and len(times) > 0
        outcomes.append(
            CandidateOutcome(
                name=name,
                status=status,
                reason=reason,
                median_ns=median(times) if has_times and times is not None else None,
                mad_ns=mad(times) if has_times and times is not None else None,
                sample_count=0 if times is None else len(times),
                comparison=None if number is None else compared.get(number),
            )
        )
    why_not = doubts
    standing = Standing.UNDECIDED if verdict is None else verdict.standing
    if not is_over:
        why_not = why_not or "not measured to the end"
    elif verdict is None:
        why_not = why_not or "no candidate works"
    elif not verdict.conditions.are_steady:
        why_not = why_not or str(verdict.conditions)
    elif standing is Standing.UNDECIDED:
        why_not = why_not or "undecided"
    winner = None
    if verdict is not None:
        winner = entries[racers[verdict.winner]][0]
    elif baseline is not None:
        winner = entries[baseline][0]
    return MeasureOutcome(
        winner=winner,
        baseline=None if baseline is None else entries[baseline][0],
        standing=standing,
        candidates=tuple(outcomes),
        verdict=verdict,
        source=kept.source,
        launches=kept.launches,
        kept=kept,
        is_storable=not why_not,
        why_not=why_not,
    )
