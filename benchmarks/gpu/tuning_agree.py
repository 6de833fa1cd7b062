"""Do two independent tunings of the same kernel come to the same?

Fifty and more kernels, each loaded and tuned twice from nothing, with the device to
itself. What counts as agreeing is said in the table. A finding that is not sure of
itself (``undecided``, or measured while the machine did not hold still) is not kept,
and claims nothing: it is counted apart, and so is whether what is used in the end is
the same all the same.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import accy_async
from accy_async import Session
from accy_async.fragment.tuning import KernelTuning
from accy_async.tuning import MeasureOptions
from benchmarks.agreement import DIFFERENT, UNDECIDED, Tally
from benchmarks.gpu.tunables import PROGRAMS, Tunable

if TYPE_CHECKING:
    from accy_async.backends.base import Backend

__all__ = ["main"]

OPTIONS = MeasureOptions()
SHRINKS = (1, 8)
LIMIT_S = 35.0


async def tuned(
    session: Session, program: Tunable, shrink: int
) -> tuple[KernelTuning, ...]:
    """What becomes of each kernel of a program, with nothing known before."""
    arguments = program.arguments(shrink)
    async with (
        await session.load_fragment(
            program.function, *arguments, tuning=None
        ) as fragment,
        session.tuning(
            fragment, exclusive=True, store=None, inputs=arguments, options=OPTIONS
        ) as tuner,
    ):
        await tuner.wait()
        return tuner.results


async def compare(device: str | Backend) -> None:
    """Print the table."""
    tally = Tally()
    used, why_not = 0, Counter[str]()
    begun = time.perf_counter()
    async with accy_async.open_session(device) as session:
        for shrink in SHRINKS:
            for name, program in PROGRAMS.items():
                if time.perf_counter() - begun > LIMIT_S:
                    print(f"  stopped after {LIMIT_S:g} s, before {name} / {shrink}")
                    break
                first, second = [
                    await tuned(session, program, shrink) for _ in range(2)
                ]
                for one, other in zip(first, second, strict=True):
                    verdict = tally.add(one, other)
                    used += one.now == other.now
                    why_not.update(r.why_not for r in (one, other) if r.why_not)
                    if verdict in (UNDECIDED, DIFFERENT):
                        print(
                            f"  {name} / {shrink}, {one.kernel}: {verdict}: "
                            f"{_told(one)}; {_told(other)}"
                        )
    tally.show()
    agreed, total = tally.agreed, tally.total
    print(f"  agreed, of all: {agreed} of {total}, {_met(agreed, total)}")
    print(f"  the same candidate is used in the end: {used} of {total}")
    for reason, count in why_not.most_common(8):
        print(f"  {count:3} findings not kept: {reason}")
    print(f"  {time.perf_counter() - begun:.0f} s\n")


def _met(count: int, total: int) -> str:
    return f"{100 * count / max(1, total):.0f} % (target 99 %)"


def _told(one: KernelTuning) -> str:
    outcome = one.outcome
    standing = "not measured" if outcome is None else str(outcome.standing)
    return f"{standing}, uses {one.now}{', ' if one.why_not else ''}{one.why_not}"


def main(device: str = "cuda") -> None:
    accy_async.run(compare, device)


if __name__ == "__main__":
    main()
