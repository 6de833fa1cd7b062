"""Which schedule a work item gets: the caller's, else the measured one, else none.

None leaves the choice to the heuristic of kernelization.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from accy_async.artifact.planned import CompileLaunch
from accy_async.compiler.form import ProductTile
from accy_async.compiler.kernelization import TargetProfile, WorkItem
from accy_async.compiler.kernelization.assembly import KERNEL_VERSION
from accy_async.compiler.kernelization.dot_units import unit_tiles
from accy_async.compiler.kernelization.products import find_product
from accy_async.compiler.kernelization.rowplan import plan_rows
from accy_async.compiler.kernelization.schedules import (
    GeneratedRowPipelineSchedule,
    GeneratedScanSchedule,
    MatrixProductSchedule,
    Schedule,
    Threads2D,
    matrix_product_thread_candidates_for_extents,
    row_pipeline_schedule_candidates,
    scan_schedule_candidates,
)
from accy_async.compiler.preparation.options import FragmentCompilerOptions
from accy_async.compiler.semantic import (
    DotGeneral,
    Function,
    Op,
    Reduce,
    Scan,
    Scatter,
    ScatterKind,
    TensorType,
    expand,
)
from accy_async.tuning.records import (
    FamilyTuningReader,
    ScheduleFamily,
    ScheduleReader,
    ScheduleTuningProblem,
    decode_family_tuning_artifact,
    decode_schedule_tuning_artifact,
)
from accy_async.tuning.records.schedule import Choice

__all__ = [
    "MatrixExtents",
    "Schedules",
    "matrix_product_problem",
    "row_pipeline_problem",
    "scan_problem",
    "schedule_of",
]


@attrs.frozen
class MatrixExtents:
    """A product's sizes: ``batch`` times ``[m, k]`` by ``[k, n]``."""

    m: int
    n: int
    k: int
    batch: int = 1

    @classmethod
    def of(cls, op: DotGeneral, lhs: TensorType, rhs: TensorType) -> MatrixExtents:
        """The sizes of a contraction of these operands."""
        lhs_free, rhs_free = op.free_axes(lhs, rhs)
        return cls(
            m=math.prod(lhs.shape[axis] for axis in lhs_free),
            n=math.prod(rhs.shape[axis] for axis in rhs_free),
            k=math.prod(lhs.shape[axis] for axis in op.lhs_contracting),
            batch=math.prod(lhs.shape[axis] for axis in op.lhs_batch),
        )


def matrix_product_problem(
    profile: TargetProfile,
    op: DotGeneral,
    lhs: TensorType,
    rhs: TensorType,
    tiles: Sequence[ProductTile] = (),
) -> ScheduleTuningProblem:
    """What there is a choice for in a product of operands of these types.

    Tiles for tensor cores where there are any (see `unit_tiles`), else threads of a
    block along x and y.
    """
    extents = MatrixExtents.of(op, lhs, rhs)
    candidates: Sequence[ProductTile | Threads2D] = tiles
    if not candidates:
        candidates = matrix_product_thread_candidates_for_extents(
            extents.m, extents.n, backend=profile.backend
        )
    return ScheduleTuningProblem(
        family=ScheduleFamily.MATRIX_PRODUCT,
        format=profile.format,
        extents=attrs.astuple(extents),
        dtypes=(lhs.dtype, op.result, op.accumulate),
        version=KERNEL_VERSION,
        candidates=tuple(attrs.astuple(candidate) for candidate in candidates),
    )


def scan_problem(
    profile: TargetProfile, op: Scan, operand: TensorType
) -> ScheduleTuningProblem:
    """What there is a choice for in a scan: threads, and 1 for a line a thread."""
    extent = operand.shape[op.axis]
    lines = operand.element_count // extent if extent else 0
    candidates = scan_schedule_candidates(lines, extent, backend=profile.backend)
    return ScheduleTuningProblem(
        family=ScheduleFamily.SCAN,
        format=profile.format,
        extents=(lines, extent),
        dtypes=(operand.dtype, op.accumulate),
        version=KERNEL_VERSION,
        candidates=tuple((c.threads, int(c.lines_per_block)) for c in candidates),
    )


def row_pipeline_problem(
    profile: TargetProfile, function: Function
) -> ScheduleTuningProblem:
    """What there is a choice for in a pipeline over rows: threads of a row."""
    written_out = expand(function)
    rows = plan_rows(written_out)
    reduced = next(
        entry for entry in written_out.operations if isinstance(entry.op, Reduce)
    )
    candidates = row_pipeline_schedule_candidates(rows.extent, backend=profile.backend)
    return ScheduleTuningProblem(
        family=ScheduleFamily.ROW_PIPELINE,
        format=profile.format,
        extents=(rows.rows, rows.extent),
        dtypes=(reduced.operands[0].dtype,),
        version=KERNEL_VERSION,
        candidates=tuple((c.threads,) for c in candidates),
    )


def schedule_of(family: ScheduleFamily, choice: Choice) -> Schedule:
    """A choice of `ScheduleTuningProblem.candidates` as the schedule that it means."""
    match family:
        case ScheduleFamily.MATRIX_PRODUCT:
            return MatrixProductSchedule.of(choice)
        case ScheduleFamily.SCAN:
            threads, alone = choice
            return GeneratedScanSchedule(threads=threads, lines_per_block=bool(alone))
        case ScheduleFamily.ROW_PIPELINE:
            (threads,) = choice
            return GeneratedRowPipelineSchedule(threads=threads)


class Schedules:
    """The schedules that options and their artifacts ask for.

    Args:
        profile: the target.
        options: with the artifacts, which are read at once.

    Attributes:
        readers: of the measured schedules that count, by family.
        family_tuning: measured kernels of families, or None.

    Raises:
        InvalidArtifact: an artifact is damaged; with the offset.
    """

    def __init__(
        self, profile: TargetProfile, options: FragmentCompilerOptions
    ) -> None:
        self.profile = profile
        self._options = options
        device = profile.capabilities.fingerprint
        given = {
            ScheduleFamily.MATRIX_PRODUCT: (
                options.matrix_product_schedule,
                options.matrix_product_schedule_tuning,
                options.matrix_product_schedule_tuning_artifact,
            ),
            ScheduleFamily.SCAN: (
                options.generated_scan_schedule,
                options.generated_scan_schedule_tuning,
                options.generated_scan_schedule_tuning_artifact,
            ),
            ScheduleFamily.ROW_PIPELINE: (
                options.generated_row_pipeline_schedule,
                options.generated_row_pipeline_schedule_tuning,
                options.generated_row_pipeline_schedule_tuning_artifact,
            ),
        }
        self.readers = {
            family: reader
            or ScheduleReader(device, decode_schedule_tuning_artifact(family, artifact))
            for family, (explicit, reader, artifact) in given.items()
            if explicit is None and (reader is not None or artifact)
        }
        self.family_tuning = options.family_tuning
        if self.family_tuning is None and options.family_tuning_artifact:
            self.family_tuning = FamilyTuningReader(
                device, decode_family_tuning_artifact(options.family_tuning_artifact)
            )

    def for_work(self, item: WorkItem) -> Schedule | None:
        """The schedule of a work item; None for the heuristic's.

        Raises:
            InvalidArtifact: what was measured as the fastest is no choice there is.
        """
        options = self._options
        op = item.function.operations[-1].op if item.function.operations else None
        match item.kind:
            case CompileLaunch.DOT_GENERAL:
                return self.matrix_product(item.function)
            case CompileLaunch.SCAN:
                return options.generated_scan_schedule or self._scan(item.function)
            case CompileLaunch.ROW_PIPELINE:
                return options.generated_row_pipeline_schedule or self._rows(
                    item.function
                )
            case CompileLaunch.CROSS_ENTROPY:
                return options.row_sparse_cross_entropy_schedule
            case CompileLaunch.GATHER:
                return options.gather_schedule
            case CompileLaunch.SCATTER:
                return self._scatter(op)
            case _:
                return None

    def matrix_product(self, function: Function) -> MatrixProductSchedule | None:
        """The schedule of a function's product, likewise.

        A tile for tensor cores is asked for those products that they compute.
        """
        explicit = self._options.matrix_product_schedule
        reader = self.readers.get(ScheduleFamily.MATRIX_PRODUCT)
        if explicit is not None and explicit.tile is None:
            return explicit
        if explicit is None and reader is None:
            return None
        tiles = unit_tiles(function, self.profile)
        if explicit is not None or reader is None:
            return explicit if tiles else None
        entry, op = find_product(function)
        lhs, rhs = (value.type for value in entry.operands)
        choice = reader.resolve(
            matrix_product_problem(self.profile, op, lhs, rhs, tiles)
        )
        return None if choice is None else MatrixProductSchedule.of(choice)

    def _scan(self, function: Function) -> GeneratedScanSchedule | None:
        reader = self.readers.get(ScheduleFamily.SCAN)
        for entry in function.operations:
            if reader is not None and isinstance(entry.op, Scan):
                problem = scan_problem(self.profile, entry.op, entry.operands[0].type)
                choice = reader.resolve(problem)
                if choice is not None:
                    threads, alone = choice
                    return GeneratedScanSchedule(
                        threads=threads, lines_per_block=bool(alone)
                    )
        return None

    def _rows(self, function: Function) -> GeneratedRowPipelineSchedule | None:
        reader = self.readers.get(ScheduleFamily.ROW_PIPELINE)
        if reader is None:
            return None
        choice = reader.resolve(row_pipeline_problem(self.profile, function))
        return (
            None if choice is None else GeneratedRowPipelineSchedule(threads=choice[0])
        )

    def _scatter(self, op: Op | None) -> Schedule | None:
        if isinstance(op, Scatter) and op.kind is ScatterKind.ADD:
            return self._options.scatter_add_schedule
        return self._options.scatter_schedule
