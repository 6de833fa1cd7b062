"""Tuning a loaded fragment's kernels, one after the other, in the order they run.

Each kernel is measured on what the kernels before it have left: real intermediate
values, not zeros. Its candidates write to private buffers, so that a fragment that
serves at the same time is not disturbed; its winner is recorded, and so used, as soon
as it is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING

import attrs

from accy_async.artifact.entry import ElementCountArgument
from accy_async.backends.cleanup import Cleanup
from accy_async.dtypes import DType
from accy_async.errors import OutOfMemory
from accy_async.graph.options import LaunchOptions
from accy_async.tuning.launches import (
    LaunchTuningCacheKey,
    LaunchTuningCacheRecord,
    is_tunable,
    launch_candidates,
    winning_records,
)
from accy_async.tuning.measuring import (
    KeptRounds,
    MeasureOptions,
    MeasureOutcome,
    MeasureProgress,
    ResultCheck,
    open_measurement,
)
from accy_async.tuning.pacing import SampleTooLong
from accy_async.tuning.race import Standing

if TYPE_CHECKING:
    from accy_async.artifact.planned import ArtifactPlan, PlannedKernel
    from accy_async.fragment.bindings import InvocationBindings
    from accy_async.fragment.loaded import LoadedFragment
    from accy_async.tuning.measuring import Pace

__all__ = ["FragmentTuning", "KernelTuning", "result_check", "tune_fragment"]

_RELATIVE = {DType.F64: 1e-10, DType.F32: 1e-4, DType.F16: 4e-3, DType.BF16: 3e-2}
"""Differences that another order of the same sums may make, by dtype."""


@attrs.frozen(kw_only=True)
class KernelTuning:
    """What tuning one kernel came to.

    Attributes:
        fragment: the fragment's name.
        kernel_index: the kernel's place in its plan.
        kernel: its entry point.
        before: the launch candidate that it was launched with.
        now: the one that it is launched with from now on.
        record: what was recorded; None where nothing was. A winner that is surely
            faster is used all the same, in this process.
        outcome: everything that was measured; None where nothing could be.
        why_not: why nothing was recorded; empty where something was.
    """

    fragment: str
    kernel_index: int
    kernel: str
    before: int
    now: int
    record: LaunchTuningCacheRecord | None = None
    outcome: MeasureOutcome | None = None
    why_not: str = ""

    @property
    def is_swapped(self) -> bool:
        """Whether it is launched otherwise from now on."""
        return self.before != self.now

    @property
    def speedup(self) -> float:
        """The first candidate's time over the winner's, as estimated; 1.0 for none."""
        outcome = self.outcome
        if outcome is None or outcome.winner is None:
            return 1.0
        if outcome.standing is not Standing.FASTER:
            return 1.0
        comparison = outcome.candidate(outcome.winner).comparison
        return 1.0 if comparison is None else comparison.speedup


@attrs.frozen(kw_only=True)
class FragmentTuning:
    """How a fragment's kernels are tuned, and who is told.

    Attributes:
        options: how candidates are measured; how results are compared is decided for
            each kernel where its ``check`` has no dtypes.
        kept: what was measured of kernels so far, by their keys: it is gone on from,
            and what a cancellation interrupts is put there.
        pace: awaited before each sample; what it raises ends the tuning.
        judge: has the last word on what was measured before it is recorded.
        found: told of each kernel that is done, and awaited.
        progress: told of each step of a kernel's measurement, with its index.
    """

    options: MeasureOptions = attrs.field(factory=MeasureOptions)
    kept: MutableMapping[LaunchTuningCacheKey, KeptRounds] = attrs.field(factory=dict)
    pace: Pace | None = None
    judge: Callable[[MeasureOutcome], MeasureOutcome] | None = None
    found: Callable[[KernelTuning], Awaitable[None]] | None = None
    progress: Callable[[int, MeasureProgress], object] | None = None


async def tune_fragment(
    fragment: LoadedFragment,
    bindings: InvocationBindings,
    how: FragmentTuning | None = None,
) -> tuple[KernelTuning, ...]:
    """Tune each kernel of a fragment that has candidates and no record yet.

    Records go to the fragment, which uses them at once. Awaits every sample.

    Args:
        fragment: whose kernels. It may be invoked at the same time.
        bindings: to run its kernels on, with what they are to be measured with; of
            nobody else's use meanwhile.
        how: options, and who is told.

    Returns:
        What became of each kernel that was measured.

    Raises:
        TuningStopped: a candidate took the device with it.
        DeviceError: a kernel failed where it is launched as usual.
        SessionClosed: the fragment was closed meanwhile.

    Cancellation: an ordinary exit; what was measured of the kernel at hand is in
        ``how.kept``, what was recorded before stays.
    """
    how = how or FragmentTuning()
    wanted = untuned_kernels(fragment)
    results: list[KernelTuning] = []
    if not wanted:
        return ()
    steps = _Steps(fragment, bindings, how)
    primary: BaseException | None = None
    try:
        for index in range(wanted[-1] + 1):
            if index in wanted and fragment.launch_tuning_record(index) is None:
                result = await steps.tune(index)
                results.append(result)
                if how.found is not None:
                    await how.found(result)
            if index < wanted[-1]:
                await steps.run(index)
    except BaseException as error:  # noqa: BLE001 - raised by the cleanup
        primary = error
    await steps.leave(primary)
    return tuple(results)


def untuned_kernels(fragment: LoadedFragment) -> list[int]:
    """The kernels that there is a choice for, and no record yet."""
    return [
        index
        for index in fragment.tunable_kernels
        if fragment.launch_tuning_record(index) is None
    ]


def result_check(plan: ArtifactPlan, kernel: PlannedKernel) -> ResultCheck:
    """How results of a kernel's candidates are compared: by the slots' dtypes."""
    dtypes = [plan.slot(argument.slot_id).dtype for argument in kernel.arguments]
    written = [plan.slot(slot_id).dtype for slot_id in kernel.output_slot_ids]
    if kernel.element_count_argument is ElementCountArgument.BUFFER_U32:
        dtypes.append(DType.U32)
    bound = result_bound(written)
    return ResultCheck(dtypes=tuple(dtypes), relative=bound, of_largest=bound / 10)


def result_bound(written: Iterable[DType]) -> float:
    """How much results of these dtypes may differ between candidates, relatively."""
    return max((_RELATIVE.get(dtype, 0.0) for dtype in written), default=0.0)


class _Steps:
    """The kernels of one tuning, run and tuned on a stream of its own."""

    def __init__(
        self,
        fragment: LoadedFragment,
        bindings: InvocationBindings,
        how: FragmentTuning,
    ) -> None:
        self._fragment = fragment
        self._bindings = bindings
        self._how = how
        self._backend = fragment.backend
        priority = self._backend.capabilities.priorities[0]
        self._stream = self._backend.create_stream(priority=priority)

    async def tune(self, index: int) -> KernelTuning:
        """Measure a kernel's candidates, and record the winner."""
        fragment, how = self._fragment, self._how
        kernel, loaded = fragment.loaded_kernel(index)
        before = self._used(index)
        what = KernelTuning(
            fragment=fragment.name,
            kernel_index=index,
            kernel=kernel.entry_name,
            before=before,
            now=before,
        )
        if not is_tunable(kernel):
            return attrs.evolve(what, why_not="there is nothing to choose")
        candidates = launch_candidates(
            kernel,
            loaded,
            self._bindings.buffers_for_kernel(index),
            fragment.scalars_for_kernel(index, self._bindings.runtime_scalars),
        )
        key = fragment.launch_tuning_key(index)
        try:
            async with open_measurement(
                self._backend,
                candidates,
                self._options(kernel),
                kept=how.kept.get(key),
                pace=how.pace,
            ) as measuring:
                try:
                    async for progress in measuring:
                        if how.progress is not None:
                            how.progress(index, progress)
                except BaseException:
                    how.kept[key] = measuring.kept
                    raise
                outcome = measuring.outcome()
        except OutOfMemory as error:
            return attrs.evolve(what, why_not=f"no room to measure it: {error}")
        except SampleTooLong as error:
            how.kept.pop(key, None)
            return attrs.evolve(what, why_not=str(error))
        how.kept.pop(key, None)
        if how.judge is not None:
            outcome = how.judge(outcome)
        records = winning_records(kernel, outcome) if outcome.is_storable else ()
        found = fragment.record_launch_candidate_records(records)
        if not found and outcome.standing is Standing.FASTER:
            # Comparisons within rounds bear a machine that does not hold still.
            fragment.prefer_launch_candidate(index, int(str(outcome.winner)))
        return attrs.evolve(
            what,
            now=self._used(index),
            record=found[0] if found else None,
            outcome=outcome,
            why_not="" if found else outcome.why_not,
        )

    async def run(self, index: int) -> None:
        """Run a kernel as the fragment does, so that the next ones have its results."""
        fragment, stream = self._fragment, self._stream
        if self._how.pace is not None:
            await self._how.pace(0.0)
        chosen = fragment.graph.nodes[index].tuning_candidate
        fragment.launch_kernel_with_arguments(
            index,
            self._bindings.buffers_for_kernel(index),
            fragment.scalars_for_kernel(index, self._bindings.runtime_scalars),
            LaunchOptions(stream=stream),
            candidate_index=chosen,
        )
        await self._backend.wait_stream(stream)

    async def leave(self, primary: BaseException | None) -> None:
        """Wait for the stream, for the grace, and destroy it."""
        backend, stream = self._backend, self._stream
        is_idle = (
            not backend.is_healthy
            or not backend.is_alive(stream)
            or backend.is_stream_idle(stream)
        )
        await Cleanup(backend, f"tuning {self._fragment.name!r}", None).leave(
            primary,
            wait=None if is_idle else partial(backend.wait_stream, stream),
            handles=[stream],
        )

    def _used(self, index: int) -> int:
        return self._fragment.graph.nodes[index].tuning_candidate or 0

    def _options(self, kernel: PlannedKernel) -> MeasureOptions:
        options = self._how.options
        if options.check is None or options.check.dtypes:
            return options
        return attrs.evolve(options, check=result_check(self._fragment.plan, kernel))
