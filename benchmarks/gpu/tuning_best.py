"""Is what tuning chooses beside a service the best, as measured alone afterwards?

Each of 25 programs is tuned in the background of a session in which two clients call
another fragment all the while. Then nobody calls, and all candidates of each kernel are
measured, in as many rounds each. The target: what was chosen takes at most 3 % longer
than the best.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio
import attrs

import accy_async
from accy_async import Session
from accy_async.tuning import MeasureOptions, RaceRules, TuningBudget
from accy_async.tuning.launches import launch_candidates
from accy_async.tuning.measuring import measure
from benchmarks.gpu.tunables import PROGRAMS, Tunable

if TYPE_CHECKING:
    from accy_async.fragment import LoadedFragment

__all__ = ["main"]

BUDGET = TuningBudget(share=0.25, total_s=1.0)
BESIDE = MeasureOptions(rules=RaceRules(max_rounds=100, repeats=0))
ALONE = MeasureOptions(rules=RaceRules(max_rounds=40, fixed=True), check=None)
LIMIT_S = 4.0
THINK_S = 0.001
WITHIN = 1.03


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


async def choose(session: Session, name: str, program: Tunable) -> list[Choice]:
    """Tune a program beside what else the session does, then measure it alone."""
    arguments = program.arguments()
    fragment = await session.load_fragment(program.function, *arguments, tuning=None)
    async with fragment:
        async with (
            _service(session),
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


class _service:  # noqa: N801 - used as a function is
    """Two clients that call a fragment, think, and call again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> None:
        program = PROGRAMS["chain"]
        arguments = program.arguments(16)
        self._fragment = await self._session.load_fragment(
            program.function, *arguments, tuning=None
        )
        arrays = [await self._session.upload(one) for one in arguments]
        await self._tasks.__aenter__()

        async def client() -> None:
            while True:
                await self._fragment(*arrays)
                await anyio.sleep(THINK_S)

        for _ in range(2):
            self._tasks.start_soon(client)

    async def __aexit__(self, *what: object) -> bool | None:
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(*what)


async def compare(device: str) -> None:
    """Print the table."""
    begun = time.perf_counter()
    choices: list[Choice] = []
    async with accy_async.open_session(device) as session:
        for name, program in PROGRAMS.items():
            choices += await choose(session, name, program)
    print(f"{'kernel, tuned beside a service':34} {'chosen':>6} {'us':>8}", end=" ")
    print(f"{'/ best':>7} {'default / best':>14}")
    for one in choices:
        print(
            f"{one.kernel:34} {one.chosen:6} {one.medians[one.chosen] / 1e3:8.1f} "
            f"{one.ratio:7.3f} {one.default_ratio:14.3f}  {one.why_not[:50]}"
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
