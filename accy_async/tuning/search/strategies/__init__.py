"""Which schedules to measure next.

Pure: told what is known, each answers what it wants to know.
"""

from accy_async.tuning.search.strategies.base import (
    History,
    Proposal,
    Proposer,
    Strategy,
)
from accy_async.tuning.search.strategies.halving import SuccessiveHalving
from accy_async.tuning.search.strategies.model import ModelSearch
from accy_async.tuning.search.strategies.plain import Exhaustive, RandomSearch

__all__ = [
    "Exhaustive",
    "History",
    "ModelSearch",
    "Proposal",
    "Proposer",
    "RandomSearch",
    "Strategy",
    "SuccessiveHalving",
]
