"""How often each way of measuring finds the truth, on simulated clocks.

A simulated machine runs four candidates, of which one is 3 % faster than the rest, or
none is. Its clock may drift, ramp up from idle or be throttled in steps, neighbours
may slow it down in bursts, and single samples may be arbitrarily late. Since the truth
is known, each way of measuring can be marked right or wrong, again and again:

* *rounds*: this package's `Race`.
* *best of n*: each candidate's fastest sample, one candidate after the other.
* *mean of n*: each candidate's mean, one candidate after the other.
* *do_bench*: the rule of ``triton.testing.do_bench`` as its documentation has it
  (https://triton-lang.org/main/python-api/generated/triton.testing.do_bench.html):
  warm up for 25 ms, repeat for 100 ms, take the mean; here, too, one candidate after
  the other, and with as many repetitions as the race took rounds instead of 100 ms.

All are given as many samples of each candidate as the race took rounds. The last
three have no notion of "no difference": they are taken to say it where their best is
less than 1 % better than the baseline, which is the race's own tolerance.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from accy_async.tuning.race import Race, RaceRules, RaceVerdict, Standing

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "MACHINES",
    "PEERS",
    "SimulatedMachine",
    "best_of",
    "do_bench",
    "machine",
    "mean_of",
    "run_race",
]

_BASE_NS = 100_000.0
_COUNT = 4
_WARMUP_NS = 25e6


@attrs.define(kw_only=True)
class SimulatedMachine:
    """A device whose times are made up, and a clock that runs with them.

    Attributes:
        true_ns: what each candidate takes at full speed and alone.
        seed: of everything that is random.
        noise: the relative standard deviation of every sample.
        drift: relative loss of speed as it warms up; two thirds of it in the period.
        ramp: how much slower it is when it begins; gone within a quarter of the
            period.
        steps: relative size of the steps in which it is throttled, eight a period.
        burst_share: part of the time in which a neighbour is busy.
        burst_slowdown: what a neighbour makes of a time, at most.
        late_share: part of the samples that are late on their own.
        period_ns: the time in which all of this happens.
    """

    true_ns: tuple[float, ...]
    seed: int
    noise: float = 0.01
    drift: float = 0.0
    ramp: float = 0.0
    steps: float = 0.0
    burst_share: float = 0.0
    burst_slowdown: float = 3.0
    late_share: float = 0.0
    period_ns: float = 2e7
    now_ns: float = 0.0
    _generator: np.random.Generator = attrs.field(init=False)
    _levels: NDArray[np.float64] = attrs.field(init=False)
    _burst_ends_ns: float = attrs.field(init=False, default=0.0)
    _calm_ends_ns: float = attrs.field(init=False, default=0.0)
    _slowdown: float = attrs.field(init=False, default=1.0)

    def __attrs_post_init__(self) -> None:
        self._generator = np.random.default_rng(self.seed)
        self._levels = 1.0 + self.steps * self._generator.random(4096)
        self._calm_ends_ns = self._next_calm()

    def sample(self, candidate: int) -> float:
        """What a run of a candidate takes now, in nanoseconds; the clock goes on."""
        random = self._generator
        time = self.true_ns[candidate] * float(np.exp(random.normal(0.0, self.noise)))
        time *= self._clock()
        if self.burst_share:
            time *= self._neighbour()
        if random.random() < self.late_share:
            time *= 1.0 + 0.3 * float(random.pareto(1.2))
        self.now_ns += time + 5_000.0  # what lies between two samples
        return time

    def _clock(self) -> float:
        part = self.now_ns / self.period_ns
        ramp = self.ramp * float(np.exp(-8.0 * part))
        step = float(self._levels[int(8 * part) % len(self._levels)])
        drift = self.drift * (1.0 - float(np.exp(-part)))
        return (1.0 + drift) * (1.0 + ramp) * step

    def _neighbour(self) -> float:
        if self.now_ns >= self._burst_ends_ns and self.now_ns >= self._calm_ends_ns:
            if self._slowdown == 1.0:
                self._slowdown = 1.0 + (self.burst_slowdown - 1.0) * float(
                    self._generator.random()
                )
                length = self._generator.exponential(4.0 * _BASE_NS)
                self._burst_ends_ns = self.now_ns + float(length)
            else:
                self._slowdown = 1.0
                self._calm_ends_ns = self._next_calm()
        return self._slowdown

    def _next_calm(self) -> float:
        if not self.burst_share:
            return 0.0
        calm = 4.0 * _BASE_NS * (1.0 - self.burst_share) / self.burst_share
        return self.now_ns + float(self._generator.exponential(calm))


MACHINES: dict[str, dict[str, float]] = {
    "steady": {},
    "noisy": {"noise": 0.03},
    "drift": {"drift": 0.3},
    "ramp": {"ramp": 0.4},
    "steps": {"steps": 0.15},
    "bursts": {"burst_share": 0.2},
    "heavy tails": {"late_share": 0.15},
    "everything": {
        "drift": 0.15,
        "ramp": 0.2,
        "steps": 0.05,
        "burst_share": 0.12,
        "late_share": 0.08,
        "noise": 0.015,
    },
}
"""The machines, by what is wrong with them."""


def machine(name: str, better: int | None, seed: int) -> SimulatedMachine:
    """One of `MACHINES`.

    Args:
        name: which.
        better: the candidate that is 3 % faster, or None for none.
        seed: of this trial.
    """
    times = tuple(
        _BASE_NS * (0.97 if number == better else 1.0) for number in range(_COUNT)
    )
    return SimulatedMachine(true_ns=times, seed=seed, **MACHINES[name])


def run_race(
    device: SimulatedMachine, seed: int = 0
) -> tuple[int | None, RaceVerdict, int]:
    """This package's way.

    Returns:
        The winner, None where nothing is better than the baseline or nothing can be
        said; the verdict; and how many samples of each candidate it took.
    """
    race = Race(len(device.true_ns), RaceRules(seed=seed))
    while not race.is_over:
        race.tell({number: device.sample(number) for number in race.next_order()})
    verdict = race.verdict()
    winner = verdict.winner if verdict.standing is Standing.FASTER else None
    return winner, verdict, verdict.rounds


def best_of(device: SimulatedMachine, count: int) -> int | None:
    """The smallest of ``count`` samples of each candidate."""
    return _pick(
        [min(_series(device, number, count)) for number in range(len(device.true_ns))]
    )


def mean_of(device: SimulatedMachine, count: int) -> int | None:
    """The mean of ``count`` samples of each candidate."""
    return _pick(
        [
            float(np.mean(_series(device, number, count)))
            for number in range(len(device.true_ns))
        ]
    )


def do_bench(device: SimulatedMachine, count: int) -> int | None:
    """The mean of ``count`` samples of each candidate, after 25 ms of warming up."""
    means = []
    for number in range(len(device.true_ns)):
        begun = device.now_ns
        while device.now_ns - begun < _WARMUP_NS:
            device.sample(number)
        means.append(float(np.mean(_series(device, number, count))))
    return _pick(means)


PEERS: dict[str, Callable[[SimulatedMachine, int], int | None]] = {
    "best of n": best_of,
    "mean of n": mean_of,
    "do_bench": do_bench,
}


def _series(device: SimulatedMachine, number: int, count: int) -> list[float]:
    return [device.sample(number) for _ in range(count)]


def _pick(figures: Sequence[float]) -> int | None:
    best = min(range(len(figures)), key=figures.__getitem__)
    return best if figures[best] < 0.99 * figures[0] else None


@attrs.define
class _Row:
    right: dict[str, int] = attrs.field(factory=dict)
    rounds: int = 0
    flagged: int = 0

    def count(self, way: str, *, is_right: bool) -> None:
        self.right[way] = self.right.get(way, 0) + is_right


def trials(name: str, *, is_better: bool, count: int) -> _Row:
    """Run ``count`` trials on a machine of that name."""
    row = _Row()
    for seed in range(count):
        better = 1 + seed % (_COUNT - 1) if is_better else None
        winner, verdict, rounds = run_race(machine(name, better, seed), seed)
        is_right = winner == better and (
            is_better or verdict.standing is Standing.NO_DIFFERENCE
        )
        row.count("rounds", is_right=is_right)
        row.rounds += rounds
        row.flagged += not verdict.conditions.are_steady
        for way, measure in PEERS.items():
            found = measure(machine(name, better, seed), rounds)
            row.count(way, is_right=found == better)
    return row


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=100)
    count: int = parser.parse_args(arguments).trials
    ways = ("rounds", *PEERS)
    head = " | ".join(f"{way:>10}" for way in ways)
    print(f"right answers of {count} | {head} | rounds | flagged")
    for is_better in (True, False):
        print("one candidate is 3 % faster" if is_better else "none is faster")
        for name in MACHINES:
            row = trials(name, is_better=is_better, count=count)
            cells = " | ".join(f"{row.right[way]:10}" for way in ways)
            print(
                f"  {name:<20} | {cells} | {row.rounds / count:6.0f} | {row.flagged:7}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
