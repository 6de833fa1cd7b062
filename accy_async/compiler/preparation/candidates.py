"""What there is a choice for in a program, and a kernel for each choice.

A schedule decides what code is made, so that each choice takes a compilation of its
own. A *task* is one problem of a program with its choices; `build_choice` makes the
kernel of one, for a measurement to compare.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from accy_async.artifact.kernel import ArtifactRequest, KernelArtifact
from accy_async.artifact.planned import CompileLaunch
from accy_async.compiler.kernelization import KernelStep, TargetProfile, WorkItem
from accy_async.compiler.kernelization.dot_units import unit_tiles
from accy_async.compiler.kernelization.kernelize import kernelize
from accy_async.compiler.kernelization.schedules import Threads2D
from accy_async.compiler.kernels.linalg import (
    MATRIX_PRODUCT_FAMILY,
    MatrixProduct,
    matrix_product_family_target,
)
from accy_async.compiler.preparation.code import CodeMaker
from accy_async.compiler.preparation.dispatch import DispatchItem
from accy_async.compiler.preparation.families import (
    is_plain_product,
    matrix_product_tuning_key,
)
from accy_async.compiler.preparation.job import PreparedJob
from accy_async.compiler.preparation.schedules import (
    MatrixExtents,
    matrix_product_problem,
    row_pipeline_problem,
    scan_problem,
    schedule_of,
)
from accy_async.compiler.semantic import DotGeneral, Function, Scan, TensorType
from accy_async.errors import UnsupportedOperation
from accy_async.tuning.records import FamilyTuningKey, ScheduleTuningProblem
from accy_async.tuning.records.schedule import Choice

__all__ = ["BuiltChoice", "ScheduleTask", "build_choice", "schedule_tasks"]


@attrs.frozen(kw_only=True)
class ScheduleTask:
    """One problem of a program that there is more than one layout for.

    Attributes:
        problem: what the choice is kept under, and the choices.
        item: what is computed.
        family: what a ready-made kernel for it is kept under; None for none.
        targets: the names of the family's kernels, one for each choice.
    """

    problem: ScheduleTuningProblem
    item: WorkItem
    family: FamilyTuningKey | None = None
    targets: tuple[str, ...] = ()

    @property
    def operands(self) -> tuple[TensorType, ...]:
        """The types of what is read."""
        return tuple(value.type for value in self.item.function.parameters)

    @property
    def results(self) -> tuple[TensorType, ...]:
        """The types of what is written."""
        return tuple(value.type for value in self.item.function.results)


@attrs.frozen(kw_only=True)
class BuiltChoice:
    """The kernel of one choice.

    Attributes:
        step: the kernel, with its launch.
        artifact: its code.
    """

    step: KernelStep
    artifact: KernelArtifact


def schedule_tasks(job: PreparedJob) -> tuple[ScheduleTask, ...]:
    """The problems of a prepared program, each once, in the order of its launches.

    Products that a family's ready-made kernels compute are among them.
    """
    found: dict[ScheduleTuningProblem, ScheduleTask] = {}
    for item in job.dispatch.items:
        task = _task(job.profile, item)
        if task is not None and len(task.problem.candidates) > 1:
            found.setdefault(task.problem, task)
    return tuple(found.values())


def build_choice(
    task: ScheduleTask,
    choice: Choice,
    profile: TargetProfile,
    maker: CodeMaker,
    create_artifact: Callable[[ArtifactRequest], KernelArtifact],
) -> BuiltChoice:
    """Make the kernel of a choice.

    Raises:
        UnsupportedOperation: it takes several kernels.
        CapabilityMismatch, RuntimeUnavailable, CompilationError: there is no code of
            it for the target.

    Blocks for 10 to 100 ms where the code is not in the store: call it in a worker
    thread.
    """
    family = task.problem.family
    work = kernelize(task.item, profile, schedule_of(family, choice))
    if len(work.steps) > 1:
        raise UnsupportedOperation(
            f"{family} {choice}: it takes {len(work.steps)} kernels, one after another"
        )
    step = work.step
    request = ArtifactRequest(
        kernel_name=step.kernel.name,
        requested_format=profile.format,
        argument_count=len(step.kernel.buffers),
        payload=maker.code(step.kernel),
        required_dtypes=step.required_dtypes,
    )
    return BuiltChoice(step=step, artifact=create_artifact(request))


def _task(profile: TargetProfile, item: DispatchItem) -> ScheduleTask | None:
    if item.call is not None:
        if not item.call.target.startswith(f"{MATRIX_PRODUCT_FAMILY}."):
            return None
        lhs, rhs = (value.type for value in item.operands)
        return _product(profile, _product_of(lhs, rhs))
    assert item.function is not None
    work = item.work_item(0)
    match item.kind:
        case CompileLaunch.DOT_GENERAL:
            return _product(profile, work)
        case CompileLaunch.SCAN:
            for entry in item.function.operations:
                if isinstance(entry.op, Scan):
                    problem = scan_problem(profile, entry.op, entry.operands[0].type)
                    return ScheduleTask(problem=problem, item=work)
            return None
        case CompileLaunch.ROW_PIPELINE:
            problem = row_pipeline_problem(profile, item.function)
            return ScheduleTask(problem=problem, item=work)
        case _:
            return None


def _product_of(lhs: TensorType, rhs: TensorType) -> WorkItem:
    """A family's product of these operands, as work to make kernels for."""
    product = MatrixProduct(
        m=lhs.shape[0], n=rhs.shape[1], k=lhs.shape[1], dtype=lhs.dtype
    )
    return WorkItem(
        work_item_id=0, kind=CompileLaunch.DOT_GENERAL, function=product.function()
    )


def _product(profile: TargetProfile, item: WorkItem) -> ScheduleTask | None:
    op, lhs, rhs = _dot_of(item.function)
    tiles = unit_tiles(item.function, profile)
    problem = matrix_product_problem(profile, op, lhs, rhs, tiles)
    alone = len(item.function.operations) == 1
    if tiles or not alone or not is_plain_product(op, lhs, rhs):
        return ScheduleTask(problem=problem, item=item)
    extents = MatrixExtents.of(op, lhs, rhs)
    product = MatrixProduct(
        m=extents.m,
        n=extents.n,
        k=extents.k,
        dtype=lhs.dtype,
        accumulation_dtype=op.accumulate,
    )
    return ScheduleTask(
        problem=problem,
        item=item,
        family=matrix_product_tuning_key(profile, product),
        targets=tuple(
            matrix_product_family_target(
                attrs.evolve(product, threads=Threads2D(x, y)), profile.backend
            )
            for x, y in problem.candidates
        ),
    )


def _dot_of(function: Function) -> tuple[DotGeneral, TensorType, TensorType]:
    for entry in function.operations:
        if isinstance(entry.op, DotGeneral):
            lhs, rhs = (value.type for value in entry.operands)
            return entry.op, lhs, rhs
    raise AssertionError("work of a product has one")
