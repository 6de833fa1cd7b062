"""Kernel summaries: what a planned kernel is, without its code."""

from __future__ import annotations

import attrs

from accy_async.artifact.entry import ElementCountArgument
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch, KernelCallLaunch
from accy_async.artifact.planned import CompileLaunch, KernelSource, PlannedKernel
from accy_async.artifact.resources import LaunchResourceClass
from accy_async.artifact.tiles import LaunchTile
from accy_async.dtypes import DType
from accy_async.errors import InvalidArtifact

__all__ = ["KernelSummaries", "KernelSummary", "summarize_kernel"]


@attrs.frozen(kw_only=True)
class KernelSummary:
    """A planned kernel as a value to show, compare and keep; made by a fragment.

    Attributes:
        kernel_id: its number in the plan.
        work_item_id: the number of the work item that it carries out.
        source: where its code comes from.
        artifact_format: the format of its code.
        entry_name: its entry point.
        payload_size: characters or bytes of its code.
        compile_launch: what kind of kernel it is.
        compile_argument_count: buffers and scalars that it takes.
        scalar_argument_count: how many of these are scalars.
        runtime_scalar_argument_count: scalars that each launch brings.
        static_argument_count: scalars that are always the same.
        op_count: operations of the program that it computes.
        element_count: elements that it produces, or takes in where it reduces.
        element_count_argument: how it learns that count.
        output_slot_ids: the slots that it writes.
        input_slot_ids: the slots that it reads.
        launch: its geometry, fixed or derived from the runtime scalars.
        launch_geometry: the geometry of its first candidate.
        fixed_threadgroup: True where its code was made for one threadgroup.
        candidate_count: geometries to choose from.
        launch_resource_class: what limits it.
        launch_resource_fingerprint: names its candidates; never 0.
        tile: what a block works on.
        required_dtypes: element types that the device must handle.
        output_layout_fingerprint: names the layouts of what it writes; never 0.
        input_layout_fingerprint: names the layouts of what it reads; never 0.
        diagnostic_id: a name of the caller's for error messages.
    """

    kernel_id: int
    work_item_id: int
    source: KernelSource
    artifact_format: ArtifactFormat
    entry_name: str
    payload_size: int
    compile_launch: CompileLaunch
    compile_argument_count: int
    scalar_argument_count: int
    runtime_scalar_argument_count: int
    static_argument_count: int
    op_count: int
    element_count: int
    element_count_argument: ElementCountArgument
    output_slot_ids: tuple[int, ...]
    input_slot_ids: tuple[int, ...]
    launch: KernelCallLaunch
    launch_geometry: FixedLaunch
    fixed_threadgroup: bool
    candidate_count: int
    launch_resource_class: LaunchResourceClass
    launch_resource_fingerprint: int
    tile: LaunchTile
    required_dtypes: frozenset[DType]
    output_layout_fingerprint: int
    input_layout_fingerprint: int
    diagnostic_id: str | None


class KernelSummaries(tuple[KernelSummary, ...]):
    """The summaries of a plan's kernels, in the plan's order; outlives it."""

    __slots__ = ()

    def summary(self, index: int) -> KernelSummary:
        """The summary at ``index``.

        Raises:
            InvalidArtifact: there is none.
        """
        if not 0 <= index < len(self):
            raise InvalidArtifact(f"kernel summary {index}, there are {len(self)}")
        return self[index]

    def summary_for_work(self, work_item_id: int) -> KernelSummary:
        """The summary of the kernel that carries out a work item.

        Raises:
            InvalidArtifact: there is none.
        """
        for summary in self:
            if summary.work_item_id == work_item_id:
                return summary
        raise InvalidArtifact(f"no kernel summary of work {work_item_id}")


def summarize_kernel(kernel: PlannedKernel) -> KernelSummary:
    """What a planned kernel is, without its code."""
    artifact, resources = kernel.artifact, kernel.launch_resources
    return KernelSummary(
        kernel_id=kernel.kernel_id,
        work_item_id=kernel.work_item_id,
        source=kernel.source,
        artifact_format=artifact.format,
        entry_name=kernel.entry_name,
        payload_size=len(artifact.payload),
        compile_launch=kernel.compile_launch,
        compile_argument_count=artifact.argument_count,
        scalar_argument_count=kernel.scalar_argument_count,
        runtime_scalar_argument_count=kernel.runtime_scalar_argument_count,
        static_argument_count=len(kernel.static_arguments),
        op_count=kernel.op_count,
        element_count=kernel.element_count,
        element_count_argument=kernel.element_count_argument,
        output_slot_ids=kernel.output_slot_ids,
        input_slot_ids=kernel.input_slot_ids,
        launch=kernel.launch,
        launch_geometry=resources.geometry,
        fixed_threadgroup=resources.fixed_threadgroup,
        candidate_count=resources.candidate_count,
        launch_resource_class=resources.resource_class,
        launch_resource_fingerprint=resources.fingerprint,
        tile=kernel.tile,
        required_dtypes=kernel.required_dtypes,
        output_layout_fingerprint=kernel.output_layout_fingerprint,
        input_layout_fingerprint=kernel.input_layout_fingerprint,
        diagnostic_id=kernel.diagnostic_id,
    )
