"""What a fragment is compiled with, besides the program and the device."""

from __future__ import annotations

import attrs

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.artifact.formats import ArtifactFormat, artifact_format
from accy_async.compiler.kernelization import MathTier, math_tier
from accy_async.compiler.kernelization.schedules import (
    GatherSchedule,
    GeneratedRowPipelineSchedule,
    GeneratedScanSchedule,
    MatrixProductSchedule,
    RowSparseCrossEntropySchedule,
    ScatterAddSchedule,
    ScatterSchedule,
)
from accy_async.compiler.preparation.instrumentation import FragmentInstrumentation
from accy_async.compiler.semantic import ContextLimits
from accy_async.tuning.records import FamilyTuningReader, ScheduleReader
from accy_async.values import enum, instances, optional, text

__all__ = ["FragmentCompilerOptions"]

_BYTES = instances(bytes)


@attrs.frozen(kw_only=True)
class FragmentCompilerOptions:
    """How a program is prepared and compiled; each option has a sound default.

    How a kernel is laid out is decided by the schedule given here; where none is, by
    the tuning artifact given here, if it holds a record of just this problem and
    device; else by a heuristic.

    Attributes:
        semantic_context_limits: how large the program may become; also while it is
            traced, where it is.
        artifact_format: the format of the kernels; the backend's default if None.
        math_tier: how freely floats may be computed.
        kernel_call_registry: the kernels that the program calls, and ready-made ones
            to use where they do what an operation does.
        matrix_product_schedule: for every matrix product.
        gather_schedule: for every gather.
        scatter_schedule: for every scatter that sets.
        scatter_add_schedule: for every scatter that adds.
        row_sparse_cross_entropy_schedule: for every cross entropy of rows.
        generated_scan_schedule: for every scan.
        matrix_product_schedule_tuning: finds measured schedules of products.
        generated_scan_schedule_tuning: the same of scans.
        generated_row_pipeline_schedule_tuning: the same of pipelines over rows.
        generated_scan_schedule_tuning_artifact: measured schedules of scans.
        generated_row_pipeline_schedule: for every pipeline over rows.
        generated_row_pipeline_schedule_tuning_artifact: measured schedules of these.
        family_tuning: measured kernels of families in the registry.
        family_tuning_artifact: the same as bytes; ``family_tuning`` goes before it.
        matrix_product_schedule_tuning_artifact: measured schedules of products.
        authored_kernel_diagnostic_id: what messages call kernels of the library.
        launch_tuning_artifact: measured launch candidates, for when the fragment is
            loaded.
        instrumentation: who is told of each phase.

    An artifact of no bytes is none. What finds measured schedules goes before the
    artifact of the same.
    """

    semantic_context_limits: ContextLimits = attrs.field(
        default=ContextLimits.STANDARD, validator=instances(ContextLimits)
    )
    artifact_format: ArtifactFormat | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(artifact_format),
        validator=optional(enum(ArtifactFormat)),
    )
    math_tier: MathTier = attrs.field(
        default=MathTier.EXACT, converter=math_tier, validator=enum(MathTier)
    )
    kernel_call_registry: KernelCallRegistry | None = attrs.field(
        default=None, validator=optional(instances(KernelCallRegistry))
    )
    matrix_product_schedule: MatrixProductSchedule | None = attrs.field(
        default=None, validator=optional(instances(MatrixProductSchedule))
    )
    gather_schedule: GatherSchedule | None = attrs.field(
        default=None, validator=optional(instances(GatherSchedule))
    )
    scatter_schedule: ScatterSchedule | None = attrs.field(
        default=None, validator=optional(instances(ScatterSchedule))
    )
    scatter_add_schedule: ScatterAddSchedule | None = attrs.field(
        default=None, validator=optional(instances(ScatterAddSchedule))
    )
    row_sparse_cross_entropy_schedule: RowSparseCrossEntropySchedule | None = (
        attrs.field(
            default=None, validator=optional(instances(RowSparseCrossEntropySchedule))
        )
    )
    generated_scan_schedule: GeneratedScanSchedule | None = attrs.field(
        default=None, validator=optional(instances(GeneratedScanSchedule))
    )
    matrix_product_schedule_tuning: ScheduleReader | None = attrs.field(
        default=None, validator=optional(instances(ScheduleReader))
    )
    generated_scan_schedule_tuning: ScheduleReader | None = attrs.field(
        default=None, validator=optional(instances(ScheduleReader))
    )
    generated_row_pipeline_schedule_tuning: ScheduleReader | None = attrs.field(
        default=None, validator=optional(instances(ScheduleReader))
    )
    generated_scan_schedule_tuning_artifact: bytes = attrs.field(
        default=b"", validator=_BYTES, repr=False
    )
    generated_row_pipeline_schedule: GeneratedRowPipelineSchedule | None = attrs.field(
        default=None, validator=optional(instances(GeneratedRowPipelineSchedule))
    )
    generated_row_pipeline_schedule_tuning_artifact: bytes = attrs.field(
        default=b"", validator=_BYTES, repr=False
    )
    family_tuning: FamilyTuningReader | None = attrs.field(
        default=None, validator=optional(instances(FamilyTuningReader))
    )
    family_tuning_artifact: bytes = attrs.field(
        default=b"", validator=_BYTES, repr=False
    )
    matrix_product_schedule_tuning_artifact: bytes = attrs.field(
        default=b"", validator=_BYTES, repr=False
    )
    authored_kernel_diagnostic_id: str | None = attrs.field(
        default=None, validator=optional(text())
    )
    launch_tuning_artifact: bytes = attrs.field(
        default=b"", validator=_BYTES, repr=False
    )
    instrumentation: FragmentInstrumentation = attrs.field(
        factory=FragmentInstrumentation, validator=instances(FragmentInstrumentation)
    )
