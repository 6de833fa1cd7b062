"""A fragment to be tuned beside calls, on a device whose times are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from accy_async.backends import LaunchRequest
from accy_async.fragment import LoadedFragment
from accy_async.tuning import MeasureOptions, RaceRules, TuningBudget
from tests.tuning.devices import ScriptedDevice

__all__ = [
    "ALL",
    "FIRST",
    "ONES",
    "QUICK",
    "SECOND",
    "by_threads",
    "candidate_of",
    "scripted",
]

ONES = np.ones(8, np.float32)
ALL = TuningBudget(share=1.0)
QUICK = MeasureOptions(rules=RaceRules(min_rounds=8, max_rounds=16, repeats=0))
FIRST, SECOND = 32, 4
"""Threads of a block in the two candidates of each kernel."""


def scripted(**times: float) -> ScriptedDevice:
    """A device on which the second candidate is the faster one, unless told so."""
    of = {FIRST: times.pop("first", 5e5), SECOND: times.pop("second", 3e5)}
    return ScriptedDevice(by_threads(of))


def by_threads(times: dict[int, float]) -> Callable[[LaunchRequest], float]:
    return lambda request: times[request.geometry.threadgroup[0]]


def candidate_of(fragment: LoadedFragment, index: int = 0) -> int | None:
    return fragment.graph.nodes[index].tuning_candidate
