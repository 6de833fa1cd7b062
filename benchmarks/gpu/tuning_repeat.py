"""Does the same comparison come to the same, ten times over, also beside a neighbour?

Two comparisons: a kernel that does 3 % less than the default, where the right answer
is *faster*, and one that does the same, where it is *the same*. With the device alone,
and with another process that is busy on it in bursts, a third of the time. Each way as
it is by default, `triton.testing.do_bench` and Kernel Tuner beside ours; those know no
"the same", and are taken to say it below 1 %.
"""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext

import accy_async
from accy_async.backends.cuda import CudaBackend
from benchmarks.gpu.busywork import neighbour
from benchmarks.gpu.tuning_ways import WAYS, Answer, Way

__all__ = ["main"]

RUNS = 10
MORE, LESS = 3090, 3000
CASES = {"3 % less to do": (MORE, LESS, "faster"), "the same": (LESS, LESS, "the same")}


async def compare() -> None:
    """Print the table."""
    backend = CudaBackend()
    ways: list[Way] = []
    for kind in WAYS:
        try:
            ways.append(kind(backend, (MORE, LESS)))
        except Exception as error:  # noqa: BLE001 - not installed, or too old
            print(f"{kind.name}: not here: {type(error).__name__}: {error}"[:118])
    print(f"{RUNS} times the same comparison: right answers, and the ratio found")
    print(
        f"{'way':26} {'right':>5} {'wrong':>5} {'median':>7} {'least':>7} "
        f"{'most':>7} {'spread':>7} {'ms each':>8}"
    )
    for place, beside in (("alone", nullcontext), ("beside a neighbour", neighbour)):
        with beside():
            for case, (default, other, right) in CASES.items():
                print(f"{case}, {place}")
                for way in ways:
                    try:
                        answers, took_s = await _ten(way, default, other)
                    except Exception as error:  # noqa: BLE001 - of a peer's
                        print(f"  {way.name}: {type(error).__name__}: {error}"[:200])
                        continue
                    print(_line(way.name, answers, right, took_s), flush=True)
    backend.close()
    print()


async def _ten(way: Way, default: int, other: int) -> tuple[list[Answer], float]:
    await way.compare(default, other)  # what is made once
    begun = time.perf_counter()
    answers = [await way.compare(default, other) for _ in range(RUNS)]
    return answers, (time.perf_counter() - begun) / RUNS


def _line(name: str, answers: list[Answer], right: str, took_s: float) -> str:
    ratios = [one.ratio for one in answers]
    is_right = sum(one.says == right for one in answers)
    is_wrong = sum(one.says not in (right, "unsure") for one in answers)
    flagged = sum(one.is_flagged for one in answers)
    spread = 100 * (max(ratios) / min(ratios) - 1)
    figures = (statistics.median(ratios), min(ratios), max(ratios))
    columns = " ".join(f"{one:7.3f}" for one in figures)
    return (
        f"  {name:24} {is_right:5} {is_wrong:5} {columns} {spread:6.1f}% "
        f"{1e3 * took_s:8.0f}{f'  {flagged} not to be kept' if flagged else ''}"
    )


def main() -> None:
    accy_async.run(compare)


if __name__ == "__main__":
    main()
