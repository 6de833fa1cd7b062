"""How a benchmark file is run, and who watches."""

from __future__ import annotations

from typing import Protocol

import attrs

from accy_async.tuning.measuring import CacheState, MeasureOptions, ResultCheck
from accy_async.tuning.race import RaceRules
from accy_async.values import enum, instances, integer, member_of, number, optional

__all__ = ["LEAST_SAMPLES", "BenchOptions", "Unwatched", "Watcher"]

LEAST_SAMPLES = 4
"""Of each candidate, whatever the time allows."""


def _cache(value: CacheState | str) -> CacheState:
    return member_of(CacheState, value)


@attrs.frozen(kw_only=True)
class BenchOptions:
    """How a benchmark file is run.

    Attributes:
        samples: of each candidate.
        seconds: after which a benchmark ends, whatever samples it has, but for the
            first four of each candidate; None for no such limit.
        exclusive: wait for the device to be idle first, and measure anew, once, where
            the machine did not hold still.
        cache: what the device's caches hold when a kernel begins; fragments find what
            the call before left.
        time_limit_s: after which a candidate is given up.
        build_limit_s: after which making a candidate is given up, and compiling it.
        confidence: of all intervals.
        seed: of the order within the rounds.
    """

    samples: int = attrs.field(default=64, validator=integer(LEAST_SAMPLES, 1 << 20))
    seconds: float | None = attrs.field(
        default=None, validator=optional(number(0.0, 1e6))
    )
    exclusive: bool = attrs.field(default=False, validator=instances(bool))
    cache: CacheState = attrs.field(
        default=CacheState.WARM, converter=_cache, validator=enum(CacheState)
    )
    time_limit_s: float = attrs.field(default=10.0, validator=number(0.001, 1e6))
    build_limit_s: float = attrs.field(default=120.0, validator=number(0.001, 1e6))
    confidence: float = attrs.field(default=0.95, validator=number(0.5, 1.0 - 1e-6))
    seed: int = attrs.field(default=0, validator=integer(0, 2**63 - 1))

    @property
    def rules(self) -> RaceRules:
        """Everyone to the end."""
        return RaceRules(
            min_rounds=min(self.samples, 8),
            max_rounds=self.samples,
            repeats=1 if self.exclusive else 0,
            confidence=self.confidence,
            fixed=True,
            seed=self.seed,
        )

    def measure_options(self, check: ResultCheck | None) -> MeasureOptions:
        """The same for measuring kernels."""
        return MeasureOptions(
            rules=self.rules,
            cache=self.cache,
            check=check,
            time_limit_s=self.time_limit_s,
        )


class Watcher(Protocol):
    """Who is told how far a run has come."""

    def begin(self, what: str, steps: int) -> None:
        """Something begins that takes so many steps, about."""
        ...

    def step(self) -> None:
        """One of them is done."""
        ...


class Unwatched:
    """Nobody is told."""

    def begin(self, what: str, steps: int) -> None:
        """Something begins."""

    def step(self) -> None:
        """A step is done."""
