"""How near to the optimum each strategy comes, on simulated landscapes.

A landscape gives every schedule of a space its true time; the optimum is known. Each
strategy is given so many measurements (samples, those of the baseline included) on a
simulated machine of `benchmarks.tuning_truth`: a steady one; one with everything that
is wrong with machines (a clock that drifts and ramps, neighbours, late samples); and
one whose samples vary by 20 %. Then it says which schedule it takes for the best.
Printed is how much slower that is in truth than the optimum: the median of the trials,
and the worst of ten.

* *smooth*: tile, stages, width and threads, each with its best value, and a penalty
  that grows with the distance from it.
* *rugged*: the same, but parameters act on each other, and every schedule has a factor
  of its own.
* *cliffs*: two parameters decide nearly everything, the other five nothing; half of all
  schedules are ruled out by constraints, and some of the rest fail.
* *flat*: few schedules, none more than a third slower than the best; here a noisy
  machine makes it hard to tell them apart.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from accy_async.tuning.measuring import CandidateStatus
from accy_async.tuning.search import (
    Exhaustive,
    Explorer,
    ModelSearch,
    RandomSearch,
    Schedule,
    SearchSpace,
    Strategy,
    SuccessiveHalving,
)
from benchmarks.tuning_truth import MACHINES, SimulatedMachine

__all__ = ["LANDSCAPES", "STRATEGIES", "Landscape", "found_by", "regret"]

MEASUREMENTS = (100, 300, 1000)
CONDITIONS: dict[str, dict[str, float]] = {
    "steady": MACHINES["steady"],
    "everything": MACHINES["everything"],
    "very noisy": {"noise": 0.2},
}
"""The machines, by what is wrong with them."""


@attrs.frozen
class Landscape:
    """A space, and what each schedule takes in truth.

    Attributes:
        space: the schedules.
        true_ns: what one takes; infinite where it fails.
    """

    space: SearchSpace
    true_ns: Callable[[Schedule], float]

    def optimum_ns(self) -> float:
        """What the best schedule takes."""
        return min(self.true_ns(one) for one in self.space.schedules())


def _distance(schedule: Schedule, space: SearchSpace, best: dict[str, int]) -> float:
    places = space.places(schedule)
    return sum(
        ((places[name] - place) / len(space.parameters[index].values)) ** 2
        for index, (name, place) in enumerate(best.items())
    )


def _own_factor(schedule: Schedule, size: float) -> float:
    """The same for the same schedule, in every process."""
    digest = hashlib.sha256(str(schedule).encode()).digest()
    return 1.0 + size * int.from_bytes(digest[:4], "little") / 2**32


_TILED = SearchSpace(
    {
        "tile": (8, 16, 24, 32, 48, 64, 96, 128),
        "stages": (1, 2, 3, 4, 5),
        "width": (1, 2, 4, 8),
        "threads": (32, 64, 128, 256, 512, 1024),
    },
    constraints=[lambda tile, stages: tile * tile * stages * 2 <= 48 << 10],
)
_BEST = {"tile": 4, "stages": 2, "width": 2, "threads": 2}


def _smooth(schedule: Schedule) -> float:
    return 1e5 * (1.0 + 4.0 * _distance(schedule, _TILED, _BEST))


def _rugged(schedule: Schedule) -> float:
    places = _TILED.places(schedule)
    clash = abs(places["tile"] / 8 - places["threads"] / 6)
    return _smooth(schedule) * (1.0 + clash) * _own_factor(schedule, 0.3)


_WIDE = SearchSpace(
    {
        "tile": (16, 32, 48, 64, 80, 96, 112, 128),
        "split": (1, 2, 4, 8, 16, 32),
        "order": ("row", "column", "swizzled"),
        "unroll": (1, 2, 4),
        "prefetch": (False, True),
        "hint": ("none", "stream", "keep"),
        "pad": (0, 4),
    },
    constraints=[
        lambda tile, split: tile % (4 * split) == 0,
        lambda order, pad: order != "swizzled" or pad == 0,
    ],
)


def _cliffs(schedule: Schedule) -> float:
    places = _WIDE.places(schedule)
    if places["tile"] >= 6 and places["unroll"] == 2:
        return math.inf
    slow = 1.0 + 0.5 * abs(places["tile"] - 3) + 0.7 * abs(places["split"] - 2)
    return 1e5 * slow * _own_factor(schedule, 0.02)


_FEW = SearchSpace({"width": (1, 2, 4, 8), "threads": (64, 128, 256), "unroll": (1, 2)})


def _flat(schedule: Schedule) -> float:
    best = {"width": 2, "threads": 1, "unroll": 0}
    return 1e5 * (1.0 + 0.5 * _distance(schedule, _FEW, best))


LANDSCAPES: dict[str, Landscape] = {
    "smooth": Landscape(_TILED, _smooth),
    "rugged": Landscape(_TILED, _rugged),
    "cliffs": Landscape(_WIDE, _cliffs),
    "flat": Landscape(_FEW, _flat),
}

STRATEGIES: dict[str, Callable[[int], Strategy]] = {
    "exhaustive": lambda _: Exhaustive(),
    "random": lambda seed: RandomSearch(seed=seed),
    "halving": lambda seed: SuccessiveHalving(seed=seed),
    "model": lambda seed: ModelSearch(seed=seed),
}
"""Each by the seed of a trial."""


def found_by(
    strategy: Strategy,
    landscape: Landscape,
    measurements: int,
    *,
    seed: int,
    conditions: str = "steady",
) -> Explorer:
    """Have a strategy search with so many measurements; what it knows then."""
    space = landscape.space
    numbers = {one: number for number, one in enumerate(space.schedules())}
    machine = SimulatedMachine(
        true_ns=tuple(map(landscape.true_ns, numbers)),
        seed=seed,
        **CONDITIONS[conditions],
    )
    explorer = Explorer(space, strategy, next(iter(numbers)))
    race = np.random.default_rng(seed)
    left = measurements
    while left > 0:
        explorer.fill(2)
        heat = explorer.next_heat()
        if heat is None:
            break
        racers = [explorer.baseline]
        for schedule in heat.schedules:
            if math.isinf(landscape.true_ns(schedule)):
                explorer.reject(schedule, CandidateStatus.FAILED, "it fails")
                left -= 1
            else:
                racers.append(schedule)
        rounds = min(heat.rounds, left // len(racers))
        if rounds < 1:
            break
        differences: dict[Schedule, list[float]] = {one: [] for one in racers}
        for _ in range(rounds if len(racers) > 1 else 0):
            order = [racers[int(place)] for place in race.permutation(len(racers))]
            times = {one: math.log(machine.sample(numbers[one])) for one in order}
            for one, time in times.items():
                differences[one].append(time - times[explorer.baseline])
            left -= len(racers)
        for one in racers[1:]:
            explorer.tell(one, differences[one])
    return explorer


def regret(explorer: Explorer, landscape: Landscape, optimum_ns: float) -> float:
    """How much slower its best is in truth than the optimum: 0.1 is 10 %."""
    return landscape.true_ns(explorer.best().schedule) / optimum_ns - 1.0


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=3)
    trials: int = parser.parse_args(arguments).trials
    for conditions in CONDITIONS:
        print(f"slower than the optimum: median, 9th of 10; {conditions}")
        head = " | ".join(f"{count:>15}" for count in MEASUREMENTS)
        print(f"{'measurements':<14} | {head}")
        for name, landscape in LANDSCAPES.items():
            count = sum(1 for _ in landscape.space.schedules())
            print(f"{name}: {count} schedules")
            for way in STRATEGIES:
                cells = " | ".join(
                    _cell(way, landscape, measurements, conditions, trials)
                    for measurements in MEASUREMENTS
                )
                print(f"  {way:<12} | {cells}", flush=True)


def _cell(
    way: str, landscape: Landscape, measurements: int, conditions: str, trials: int
) -> str:
    optimum = landscape.optimum_ns()
    found = []
    for seed in range(trials):
        explorer = found_by(
            STRATEGIES[way](seed),
            landscape,
            measurements,
            seed=seed,
            conditions=conditions,
        )
        found.append(regret(explorer, landscape, optimum))
    found.sort()
    return f"{found[len(found) // 2]:7.1%} {found[int(0.9 * len(found))]:7.1%}"


if __name__ == "__main__":
    main(sys.argv[1:])
