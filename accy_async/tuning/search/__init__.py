"""Searching a space of schedules that is too large to measure.

* `SearchSpace`: named parameters with their values, and constraints;
  `resource_limits` are a device's own.
* `Exhaustive`, `RandomSearch`, `SuccessiveHalving`, `ModelSearch`: which to measure.
* `search`, or `open_search` to watch it: within a budget, and raced at the end.
"""

from accy_async.tuning.search.explorer import Explorer, Heat
from accy_async.tuning.search.limits import resource_limits
from accy_async.tuning.search.opening import open_search, search
from accy_async.tuning.search.options import (
    SearchOptions,
    SearchOutcome,
    SearchProgress,
    Variant,
)
from accy_async.tuning.search.searching import Searching
from accy_async.tuning.search.space import (
    Constraint,
    Schedule,
    SearchParameter,
    SearchSpace,
)
from accy_async.tuning.search.strategies import (
    Exhaustive,
    ModelSearch,
    Proposal,
    Proposer,
    RandomSearch,
    Strategy,
    SuccessiveHalving,
)
from accy_async.tuning.search.trial import KeptSearch, Trial

__all__ = [
    "Constraint",
    "Exhaustive",
    "Explorer",
    "Heat",
    "KeptSearch",
    "ModelSearch",
    "Proposal",
    "Proposer",
    "RandomSearch",
    "Schedule",
    "SearchOptions",
    "SearchOutcome",
    "SearchParameter",
    "SearchProgress",
    "SearchSpace",
    "Searching",
    "Strategy",
    "SuccessiveHalving",
    "Trial",
    "Variant",
    "open_search",
    "resource_limits",
    "search",
]
