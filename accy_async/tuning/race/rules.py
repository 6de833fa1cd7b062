"""When enough was measured, and what counts as a difference."""

from __future__ import annotations

import attrs

from accy_async.errors import InvalidValue
from accy_async.values import instances, integer, number

__all__ = ["RaceRules"]


@attrs.frozen(kw_only=True)
class RaceRules:
    """What a race goes by.

    Attributes:
        tolerance: relative differences below this count as none: 0.01 is 1 %.
        confidence: that no candidate is called different by chance, over all
            candidates of a race together.
        min_rounds: rounds before anything is decided.
        max_rounds: rounds after which what is not decided stays undecided; of one
            attempt, see ``repeats``.
        repeats: how often a race is run again, from its beginning, because the
            conditions were bad.
        fixed: measure everyone in ``max_rounds`` rounds, also who is known to be
            slower, and also one that is alone: for reports, which are to have as many
            samples of each.
        resamples: of the bootstrap.
        seed: of the order within the rounds, and of the bootstrap.
    """

    tolerance: float = attrs.field(default=0.01, validator=number(1e-6, 1.0))
    confidence: float = attrs.field(default=0.99, validator=number(0.5, 1.0 - 1e-6))
    min_rounds: int = attrs.field(default=16, validator=integer(4))
    max_rounds: int = attrs.field(default=400, validator=integer(4))
    repeats: int = attrs.field(default=1, validator=integer(0, 16))
    fixed: bool = attrs.field(default=False, validator=instances(bool))
    resamples: int = attrs.field(default=250, validator=integer(100, 100_000))
    seed: int = attrs.field(default=0, validator=integer(0, 2**63 - 1))

    def __attrs_post_init__(self) -> None:
        if self.max_rounds < self.min_rounds:
            raise InvalidValue(
                "RaceRules.max_rounds",
                self.max_rounds,
                f"at least min_rounds={self.min_rounds}",
            )

    def is_look(self, rounds: int) -> bool:
        """Whether to decide after so many rounds: seldom, as each look may err."""
        if rounds >= self.max_rounds or self.fixed:
            return rounds >= self.max_rounds
        look = self.min_rounds
        while look < rounds:
            look += max(4, look // 2)
        return look == rounds
