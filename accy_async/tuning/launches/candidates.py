"""Launch candidates of a planned kernel, as they are measured and recorded."""

from __future__ import annotations

from enum import Enum

import attrs

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.planned import CompileLaunch, KernelSource, PlannedKernel
from accy_async.artifact.requirements import DeviceFeatures, SubgroupFeatures
from accy_async.artifact.resources import LaunchResourceCandidate
from accy_async.dtypes import DType
from accy_async.errors import LaunchArgumentMismatch
from accy_async.graph.options import LaunchOptions
from accy_async.tuning.choice import LaunchCandidateMeasurement
from accy_async.values import U32_MAX, enum, instances, integer, member_of

__all__ = [
    "LaunchCandidateBenchmarkOptions",
    "LaunchCandidateRecord",
    "LaunchCandidateSynchronization",
    "MeasuredKernel",
    "check_record",
    "launch_candidate_record",
]

_U64 = integer(0, 2**64 - 1)


class LaunchCandidateSynchronization(str, Enum):
    """What is waited for after each launch."""

    STREAM = "stream"
    """The stream that it is on."""

    DEVICE = "device"
    """Every stream of the device."""

    def __str__(self) -> str:
        return self.value


def _synchronization(
    value: LaunchCandidateSynchronization | str,
) -> LaunchCandidateSynchronization:
    return member_of(LaunchCandidateSynchronization, value)


@attrs.frozen(kw_only=True)
class LaunchCandidateBenchmarkOptions:
    """How launch candidates are measured one launch at a time.

    Attributes:
        warmup: launches of each candidate before its samples.
        samples: samples of each candidate, one launch each.
        synchronize: what is waited for after each launch.
        base_options: the stream that they run on, and the runtime scalars; those that
            have no meaning for one kernel are refused.
    """

    warmup: int = attrs.field(default=1, validator=integer(0, 1_000_000))
    samples: int = attrs.field(default=8, validator=integer(1, 1_000_000))
    synchronize: LaunchCandidateSynchronization = attrs.field(
        default=LaunchCandidateSynchronization.STREAM,
        converter=_synchronization,
        validator=enum(LaunchCandidateSynchronization),
    )
    base_options: LaunchOptions = attrs.field(
        factory=LaunchOptions, validator=instances(LaunchOptions)
    )

    def __attrs_post_init__(self) -> None:
        options = self.base_options
        if options.wait_events or options.signal_event is not None or options.tuning:
            raise LaunchArgumentMismatch(
                "LaunchCandidateBenchmarkOptions.base_options: events and tuning are "
                "for runs of graphs"
            )


@attrs.frozen(kw_only=True)
class MeasuredKernel:
    """The part of a planned kernel that a measurement of its candidates is good for.

    Attributes:
        kernel_id: its number in the plan.
        work_item_id: that of its work item.
        source: where its code comes from.
        compile_launch: what kind of kernel it is.
        entry_name: the entry point's name.
        format: of its code.
        element_count: elements that it works on.
        op_count: operations that it computes.
        compile_required_dtypes: element types that it needs.
        compile_required_features: features that it needs.
        compile_required_subgroup: subgroup features that it needs.
        output_layout_fingerprint: names the layouts of what it writes.
        input_layout_fingerprint: names the layouts of what it reads.
        launch_resource_fingerprint: names its candidates.
    """

    kernel_id: int = attrs.field(validator=integer())
    work_item_id: int = attrs.field(validator=integer())
    source: KernelSource = attrs.field(validator=enum(KernelSource))
    compile_launch: CompileLaunch = attrs.field(validator=enum(CompileLaunch))
    entry_name: str = attrs.field(validator=instances(str))
    format: ArtifactFormat = attrs.field(validator=enum(ArtifactFormat))
    element_count: int = attrs.field(validator=_U64)
    op_count: int = attrs.field(validator=integer())
    compile_required_dtypes: frozenset[DType] = attrs.field(
        validator=instances(frozenset)
    )
    compile_required_features: DeviceFeatures = attrs.field(
        validator=instances(DeviceFeatures)
    )
    compile_required_subgroup: SubgroupFeatures = attrs.field(
        validator=instances(SubgroupFeatures)
    )
    output_layout_fingerprint: int = attrs.field(validator=_U64)
    input_layout_fingerprint: int = attrs.field(validator=_U64)
    launch_resource_fingerprint: int = attrs.field(validator=_U64)

    @classmethod
    def of(cls, kernel: PlannedKernel) -> MeasuredKernel:
        """That part of a kernel."""
        return cls(
            kernel_id=kernel.kernel_id,
            work_item_id=kernel.work_item_id,
            source=kernel.source,
            compile_launch=kernel.compile_launch,
            entry_name=kernel.entry_name,
            format=kernel.artifact.format,
            element_count=kernel.element_count,
            op_count=kernel.op_count,
            compile_required_dtypes=kernel.required_dtypes,
            compile_required_features=kernel.required_features,
            compile_required_subgroup=kernel.required_subgroup,
            output_layout_fingerprint=kernel.output_layout_fingerprint,
            input_layout_fingerprint=kernel.input_layout_fingerprint,
            launch_resource_fingerprint=kernel.launch_resources.fingerprint,
        )


@attrs.frozen(kw_only=True)
class LaunchCandidateRecord:
    """A measurement of one candidate, with what it was measured on.

    Attributes:
        kernel: the kernel.
        candidate_index: the candidate's number among the kernel's.
        geometry: the candidate's.
        median_ns: the median of its samples, in nanoseconds.
        sample_count: of how many.
    """

    kernel: MeasuredKernel = attrs.field(validator=instances(MeasuredKernel))
    candidate_index: int = attrs.field(validator=integer())
    geometry: FixedLaunch = attrs.field(validator=instances(FixedLaunch))
    median_ns: int = attrs.field(validator=_U64)
    sample_count: int = attrs.field(validator=integer(1, U32_MAX))

    @property
    def measurement(self) -> LaunchCandidateMeasurement:
        """Its figures alone."""
        return LaunchCandidateMeasurement(
            kernel_id=self.kernel.kernel_id,
            candidate_index=self.candidate_index,
            median_ns=self.median_ns,
            sample_count=self.sample_count,
        )


def launch_candidate_record(
    kernel: PlannedKernel,
    candidate: LaunchResourceCandidate,
    measurement: LaunchCandidateMeasurement,
) -> LaunchCandidateRecord:
    """A measurement of a kernel's candidate as a record.

    Raises:
        LaunchArgumentMismatch: the measurement is of another kernel, or of another
            candidate.
    """
    if measurement.kernel_id != kernel.kernel_id:
        raise LaunchArgumentMismatch(
            f"a measurement of kernel {measurement.kernel_id} for kernel "
            f"{kernel.kernel_id}"
        )
    if kernel.launch_resources.candidate(measurement.candidate_index) != candidate:
        raise LaunchArgumentMismatch(
            f"kernel {kernel.kernel_id}: candidate {measurement.candidate_index} is "
            "not the one given"
        )
    return LaunchCandidateRecord(
        kernel=MeasuredKernel.of(kernel),
        candidate_index=measurement.candidate_index,
        geometry=candidate.geometry,
        median_ns=measurement.median_ns,
        sample_count=measurement.sample_count,
    )


def check_record(kernel: PlannedKernel, record: LaunchCandidateRecord) -> None:
    """Refuse a record that is not of this kernel as it is now.

    Raises:
        LaunchArgumentMismatch: naming what differs.
    """
    where = f"launch candidate record of kernel {record.kernel.kernel_id}"
    now = MeasuredKernel.of(kernel)
    if record.kernel != now:
        differing = ", ".join(
            field.name
            for field in attrs.fields(MeasuredKernel)
            if getattr(record.kernel, field.name) != getattr(now, field.name)
        )
        raise LaunchArgumentMismatch(
            f"{where}: not of kernel {kernel.kernel_id} as it is now, in {differing}"
        )
    candidate = kernel.launch_resources.candidate(record.candidate_index)
    if record.geometry != candidate.geometry:
        raise LaunchArgumentMismatch(
            f"{where}: candidate {record.candidate_index} has {candidate.geometry}, "
            f"the record {record.geometry}"
        )
