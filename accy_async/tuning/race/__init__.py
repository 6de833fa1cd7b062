"""The deciding part of a measurement: pure, without device, clock or loop.

A `Race` is told what each candidate took in each round, and answers which to measure
next and when enough is known. `judge_conditions` says whether what was measured can
be trusted as times.
"""

from accy_async.tuning.race.conditions import Conditions, judge_conditions
from accy_async.tuning.race.race import Race
from accy_async.tuning.race.rules import RaceRules
from accy_async.tuning.race.verdict import Comparison, RaceVerdict, Standing

__all__ = [
    "Comparison",
    "Conditions",
    "Race",
    "RaceRules",
    "RaceVerdict",
    "Standing",
    "judge_conditions",
]
