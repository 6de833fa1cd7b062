"""Tuning schedules: choices that each take code of their own, measured and recorded.

The problems of a program are found by preparing it. For each of them every choice is
compiled on a worker thread, loaded, and measured against the one used untuned, on
inputs of its own. What wins is recorded with the next best, and is for the next
compilation of such a problem on such a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import numpy as np

from accy_async.backends.cleanup import Cleanup
from accy_async.backends.completion import run_abandonable
from accy_async.backends.handles import BufferBinding
from accy_async.backends.launch import LaunchRequest
from accy_async.compiler.kernelization import BufferOrigin, KernelStep
from accy_async.compiler.preparation import (
    FragmentCompilerOptions,
    PreparedJob,
    prepare,
)
from accy_async.compiler.preparation.candidates import (
    BuiltChoice,
    ScheduleTask,
    build_choice,
    schedule_tasks,
)
from accy_async.compiler.preparation.code import CodeMaker
from accy_async.compiler.semantic import Module, TensorType
from accy_async.compiler.tracing import TracedProgram
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import AccyError, DeviceLost
from accy_async.fragment.arguments import host_dtype
from accy_async.fragment.compiling import Program, target_profile, traced_program
from accy_async.fragment.schedules import ScheduleTuning, ScheduleTuningOutcome
from accy_async.fragment.tuning import result_bound
from accy_async.tuning.measuring import (
    Candidate,
    CandidateStatus,
    MeasureOptions,
    MeasureOutcome,
    Pace,
    ResultCheck,
    measure,
)
from accy_async.tuning.pacing import BudgetSpent, SampleTooLong
from accy_async.tuning.records import (
    FamilyTuningRecord,
    ScheduleTuningKey,
    ScheduleTuningRecord,
)
from accy_async.tuning.records.schedule import Choice

if TYPE_CHECKING:
    from accy_async.artifact.store import ArtifactStore
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferHandle, Handle

__all__ = ["tune_schedules"]

_SEED = 20


async def tune_schedules(
    backend: Backend,
    program: Program,
    *specs: object,
    compiler_options: FragmentCompilerOptions | None = None,
    options: MeasureOptions | None = None,
    cache: bool | ArtifactStore = True,
    pace: Pace | None = None,
    judge: Callable[[MeasureOutcome], MeasureOutcome] | None = None,
    is_known: Callable[[ScheduleTuningKey], bool] | None = None,
) -> ScheduleTuningOutcome:
    """Measure every choice of schedule that a program has, problem by problem.

    Choices that take several kernels one after another are passed over.

    Args:
        backend: the device.
        program: as `compile_fragment` takes it.
        specs: of a function, the type of each argument, likewise.
        compiler_options: how it is compiled otherwise.
        options: how candidates are measured.
        cache: where code is kept, as for `compile_fragment`.
        pace: awaited before each sample; what it raises ends the tuning.
        judge: has the last word on what was measured before it is recorded.
        is_known: whether a problem is not to be measured again.

    Raises:
        As `compile_fragment`; nothing was measured then.
        TuningStopped: a candidate took the device with it.

    Cancellation: an ordinary exit: nothing is left, what was measured is lost.
    """
    made_with = compiler_options or FragmentCompilerOptions()
    traced = traced_program(program, specs, made_with)
    job, tasks = await run_abandonable(
        lambda: _prepared(backend, traced, made_with),
        lambda _: None,
        name="find schedules",
    )
    maker = CodeMaker(job.profile, _store(cache))
    device = backend.capabilities.fingerprint
    results = []
    for task in tasks:
        key = ScheduleTuningKey.of(device, task.problem)
        if is_known is not None and is_known(key):
            continue
        one = _Problem(backend, task, job, maker)
        try:
            results.append(await one.tune(options or MeasureOptions(), pace, judge))
        except BudgetSpent:
            return ScheduleTuningOutcome(results=tuple(results), is_complete=False)
    return ScheduleTuningOutcome(results=tuple(results))


def _prepared(
    backend: Backend,
    traced: Callable[[], TracedProgram | Module | PreparedJob],
    options: FragmentCompilerOptions,
) -> tuple[PreparedJob, tuple[ScheduleTask, ...]]:
    program = traced()
    if isinstance(program, TracedProgram):
        program = program.module
    if isinstance(program, Module):
        program = prepare(program, target_profile(backend, options), options)
    return program, schedule_tasks(program)


def _store(cache: bool | ArtifactStore) -> ArtifactStore | None:
    from accy_async.artifact.store import default_store

    return default_store() if cache is True else cache or None


class _Problem:
    """One problem: its choices built, loaded and measured."""

    def __init__(
        self, backend: Backend, task: ScheduleTask, job: PreparedJob, maker: CodeMaker
    ) -> None:
        self._backend = backend
        self._task = task
        self._job = job
        self._maker = maker
        self._owned: list[Handle] = []
        self._not_built: dict[Choice, str] = {}

    async def tune(
        self,
        options: MeasureOptions,
        pace: Pace | None,
        judge: Callable[[MeasureOutcome], MeasureOutcome] | None,
    ) -> ScheduleTuning:
        """Measure, and record; everything is destroyed afterwards."""
        problem = self._task.problem
        what = ScheduleTuning(
            family=problem.family,
            extents=problem.extents,
            not_built=self._not_built,
        )
        built = await run_abandonable(self._build, lambda _: None, name="compile")
        if len(built) < 2 or problem.candidates[0] not in built:
            return attrs.evolve(what, why_not="there are no two kernels to choose from")
        primary: BaseException | None = None
        outcome: MeasureOutcome | None = None
        try:
            candidates = self._candidates(built)
            await self._backend.wait_default_stream()
            outcome = await measure(
                self._backend, candidates, self._options(options), pace=pace
            )
        except SampleTooLong as error:
            what = attrs.evolve(what, why_not=str(error))
        except BaseException as error:  # noqa: BLE001 - raised by the cleanup
            primary = error
        await self._leave(primary)
        if outcome is None:
            return what
        return self._recorded(what, outcome if judge is None else judge(outcome))

    def _build(self) -> dict[Choice, BuiltChoice]:
        """The kernel of each choice; on a worker thread.

        Of choices that come to the same code, as some do on a CPU, the first.
        """
        built: dict[Choice, BuiltChoice] = {}
        by_code: dict[object, Choice] = {}
        for choice in self._task.problem.candidates:
            try:
                made = build_choice(
                    self._task,
                    choice,
                    self._job.profile,
                    self._maker,
                    self._backend.create_artifact,
                )
            except DeviceLost:
                raise
            except AccyError as error:
                self._not_built[choice] = str(error)
                continue
            code = (made.artifact.payload, made.step.launch)
            same = by_code.setdefault(code, choice)
            if same != choice:
                self._not_built[choice] = f"the same kernel as {_name(same)}"
            else:
                built[choice] = made
        return built

    def _candidates(self, built: dict[Choice, BuiltChoice]) -> list[Candidate]:
        backend, task = self._backend, self._task
        results = [self._allocate(type) for type in task.results]
        operands = [self._filled(number) for number in range(len(task.operands))]
        counts: dict[int, BufferHandle] = {}
        candidates = []
        for choice, made in built.items():
            loaded = backend.load_artifact(made.artifact)
            self._owned.append(loaded)
            buffers = []
            step = made.step
            for place, buffer in enumerate(step.kernel.buffers):
                if place >= len(step.arguments):
                    handle = counts.get(step.element_count)
                    if handle is None:
                        handle = counts[step.element_count] = self._count(step)
                else:
                    argument = step.arguments[place]
                    is_result = argument.origin is BufferOrigin.RESULT
                    handle = (results if is_result else operands)[argument.index]
                buffers.append(BufferBinding(handle=handle, access=buffer.access))
            request = LaunchRequest(
                artifact=made.artifact,
                loaded=loaded,
                geometry=step.launch,
                buffers=tuple(buffers),
                diagnostic_id=f"{task.problem.family} {_name(choice)}",
            )
            candidates.append(Candidate(name=_name(choice), request=request))
        return candidates

    def _allocate(self, type: TensorType) -> BufferHandle:
        handle = self._backend.allocate_buffer(type.byte_size)
        self._owned.append(handle)
        return handle

    def _filled(self, number: int) -> BufferHandle:
        """An operand: numbers around 1, so that sums and products stay in range."""
        type = self._task.operands[number]
        handle = self._allocate(type)
        random = np.random.default_rng((_SEED, number))
        if type.dtype is DType.BF16:
            values = random.uniform(0.5, 1.5, type.shape).astype(np.float32)
            data = (values.view(np.uint32) >> 16).astype(np.uint16)
        elif type.dtype.is_float:
            data = random.uniform(0.5, 1.5, type.shape).astype(host_dtype(type.dtype))
        else:
            data = random.integers(0, 2, type.shape).astype(host_dtype(type.dtype))
        if data.nbytes:
            self._backend.write_buffer(handle, np.ascontiguousarray(data))
        return handle

    def _count(self, step: KernelStep) -> BufferHandle:
        word = ScalarArgument.u32(step.element_count).to_bytes()
        handle = self._backend.allocate_buffer(len(word))
        self._owned.append(handle)
        self._backend.write_buffer(handle, word)
        return handle

    def _options(self, options: MeasureOptions) -> MeasureOptions:
        if options.check is None or options.check.dtypes:
            return options
        task = self._task
        bound = result_bound(type.dtype for type in task.results)
        dtypes = [type.dtype for type in (*task.results, *task.operands)]
        check = ResultCheck(dtypes=tuple(dtypes), relative=bound, of_largest=bound / 10)
        return attrs.evolve(options, check=check)

    def _recorded(
        self, what: ScheduleTuning, outcome: MeasureOutcome
    ) -> ScheduleTuning:
        what = attrs.evolve(what, outcome=outcome)
        if not outcome.is_storable or outcome.winner is None:
            return attrs.evolve(what, why_not=outcome.why_not or "nothing works")
        winner = outcome.candidate(outcome.winner)
        others = [
            round(one.median_ns)
            for one in outcome.candidates
            if one.status is CandidateStatus.MEASURED
            and one.median_ns is not None
            and one is not winner
        ]
        if winner.median_ns is None or not others:
            return attrs.evolve(what, why_not="only one choice works")
        choice = tuple(int(number) for number in outcome.winner.split("x"))
        problem = self._task.problem
        median_ns = round(winner.median_ns)
        figures: dict[str, int] = {
            "winner_median_ns": median_ns,
            # Where they do not differ, the next best may have the smaller median.
            "runner_up_median_ns": max(median_ns, min(others)),
            "sample_count": winner.sample_count,
        }
        device = self._backend.capabilities.fingerprint
        family_record = None
        if self._task.family is not None:
            target = self._task.targets[problem.candidates.index(choice)]
            family_record = FamilyTuningRecord(
                key=self._task.family, target=target, **figures
            )
        return attrs.evolve(
            what,
            choice=choice,
            record=ScheduleTuningRecord(
                key=ScheduleTuningKey.of(device, problem), choice=choice, **figures
            ),
            family_record=family_record,
        )

    async def _leave(self, primary: BaseException | None) -> None:
        backend = self._backend
        owned, self._owned = self._owned[::-1], []
        wait = backend.wait_default_stream if backend.is_healthy else None
        await Cleanup(backend, "tuning a schedule", None).leave(
            primary, wait=wait, handles=owned
        )


def _name(choice: Choice) -> str:
    return "x".join(map(str, choice))
