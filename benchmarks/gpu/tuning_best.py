"""Is what tuning chooses beside a service the best, as measured alone afterwards?

Each of 25 programs is tuned in the background of a session in which two clients call
another fragment all the while. Then nobody calls, and all candidates of each kernel are
measured, in as many rounds each. The target: what was chosen takes at most 3 % longer
than the best.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import attrs

import accy_async
from accy_async import Session
from accy_async.tuning import MeasureOptions, RaceRules, TuningBudget
from accy_async.tuning.launches import launch_candidates
from accy_async.tuning.measuring import measure
from benchmarks.gpu.tunables import PROGRAMS, Tunable

if TYPE_CHECKING:
    from accy_async import DeviceArray
    from accy_async.backends.base import Backend
    from accy_async.fragment import LoadedFragment

__all__ = ["main"]

BUDGET = TuningBudget(share=0.5, calls_met=0.5)
"""Of a service that may be disturbed: what is to be shown is the choice."""
BESIDE = MeasureOptions(rules=RaceRules(max_rounds=100, repeats=0))
ALONE = MeasureOptions(rules=RaceRules(max_rounds=40, fixed=True), check=None)
LIMIT_S, MOST_S = 1.5, 35.0
THINK_S = 0.001
WITHIN = 1.03


Service: TypeAlias = "tuple[LoadedFragment, Sequence[DeviceArray]]"
"""What is served, and what it is called with."""


@attrs.frozen
class Choice:
    """What was chosen for a kernel, and how it compares.

    Attributes:
        kernel: program and kernel.
        chosen: the candidate; None where there was no time to choose one.
        medians: nanoseconds of each candidate, alone.
        why_not: why the finding was not to be kept.
    """

    kernel: str
    chosen: int
    medians: tuple[float, ...]
    why_not: str

    @property
    def ratio(self) -> float:
        """The chosen one's time over the best one's."""
        return self.medians[self.chosen] / min(self.medians)

    @property
    def default_ratio(self) -> float:
        """The same of the default."""
        return self.medians[0] / min(self.medians)


async def choose(
    session: Session, service: Service, name: str, program: Tunable
) -> list[Choice]:
    """Tune a program beside what else the session does, then measure it alone."""
    arguments = program.arguments()
    fragment = await session.load_fragment(program.function, *arguments, tuning=None)
    async with fragment:
        async with (
            served(*service),
            session.tuning(
                fragment, budget=BUDGET, store=None, inputs=arguments, options=BESIDE
            ) as tuner,
        ):
            with anyio.move_on_after(LIMIT_S):
                await tuner.wait()
        found = {one.kernel_index: one for one in tuner.results}
        choices = []
        for index in fragment.tunable_kernels:
            kernel = (
                f"{name}, {index + 1}" if fragment.loaded_kernel_count > 1 else name
            )
            medians = await alone(session, fragment, arguments, index)
            one = found.get(index)
            why_not = "not done in time" if one is None else one.why_not
            chosen = 0 if one is None else one.now
            choices.append(Choice(kernel, chosen, medians, why_not))
    return choices


async def alone(
    session: Session, fragment: LoadedFragment, arguments: Sequence[Any], index: int
) -> tuple[float, ...]:
    """Nanoseconds of each candidate of a kernel, with nothing beside."""
    kernel, loaded = fragment.loaded_kernel(index)
    async with await fragment.prepare_invocation_bindings(arguments) as bindings:
        outcome = await measure(
            session.backend,
            launch_candidates(
                kernel,
                loaded,
                bindings.buffers_for_kernel(index),
                fragment.scalars_for_kernel(index),
            ),
            ALONE,
        )
    return tuple(one.median_ns or float("inf") for one in outcome.candidates)


@asynccontextmanager
async def served(
    fragment: LoadedFragment, arrays: Sequence[DeviceArray]
) -> AsyncIterator[None]:
    """Two clients call a fragment, think, and call again, while the block lasts."""

    async def client(number: int) -> None:
        thought = random.Random(number)
        while True:
            await fragment(*arrays)
            await anyio.sleep(thought.expovariate(1.0 / THINK_S))

    async with anyio.create_task_group() as tasks:
        for number in range(2):
            tasks.start_soon(client, number)
        yield
        tasks.cancel_scope.cancel()


async def compare(device: str | Backend) -> None:
    """Print the table."""
    begun = time.perf_counter()
    choices: list[Choice] = []
    print(f"{'kernel, tuned beside a service':34} {'chosen':>6} {'us':>8}", end=" ")
    print(f"{'/ best':>7} {'default / best':>14}")
    async with accy_async.open_session(device) as session:
        chain = PROGRAMS["chain"]
        arguments = chain.arguments(16)
        serving = await session.load_fragment(chain.function, *arguments, tuning=None)
        service = serving, [await session.upload(one) for one in arguments]
        for name, program in PROGRAMS.items():
            if time.perf_counter() - begun > MOST_S:
                print(f"stopped after {MOST_S:g} s, before {name}")
                break
            found = await choose(session, service, name, program)
            choices += found
            for one in found:
                print(
                    f"{one.kernel:34} {one.chosen:6} "
                    f"{one.medians[one.chosen] / 1e3:8.1f} {one.ratio:7.3f} "
                    f"{one.default_ratio:14.3f}  {one.why_not[:50]}",
                    flush=True,
                )
    near = sum(one.ratio <= WITHIN for one in choices)
    verdict = "met" if near == len(choices) else "MISSED"
    print(
        f"within 3 % of the best: {near} of {len(choices)}, {verdict}; by default "
        f"{sum(one.default_ratio <= WITHIN for one in choices)}; median ratio "
        f"{statistics.median(one.ratio for one in choices):.3f}; "
        f"{time.perf_counter() - begun:.0f} s\n"
    )


def main(device: str = "cuda") -> None:
    accy_async.run(compare, device)


if __name__ == "__main__":
    main()
