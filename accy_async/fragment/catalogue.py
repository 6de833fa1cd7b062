"""What can be asked of a fragment without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accy_async.artifact.summary import (
    KernelSummaries,
    KernelSummary,
    summarize_kernel,
)
from accy_async.values import is_index

if TYPE_CHECKING:
    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.artifact.planned import ArtifactPlan, PlannedKernel
    from accy_async.artifact.resources import LaunchResourceCandidate
    from accy_async.artifact.slots import PlannedSlot
    from accy_async.fragment.compiled import CompiledFragment

__all__ = ["FragmentCatalogue"]


class FragmentCatalogue:
    """A fragment's kernels, slots and outputs, by their numbers.

    Attributes:
        compiled: what was compiled.
    """

    def __init__(self, compiled: CompiledFragment) -> None:
        self.compiled = compiled

    @property
    def plan(self) -> ArtifactPlan:
        """The kernels and slots."""
        return self.compiled.plan

    @property
    def name(self) -> str:
        """The program's entry function."""
        return self.compiled.name

    @property
    def compiled_fingerprint(self) -> int:
        """A 64-bit fingerprint of slots, kernels and code; never 0."""
        return self.compiled.fingerprint

    @property
    def kernel_count(self) -> int:
        """How many launches there are."""
        return self.plan.kernel_count

    @property
    def output_count(self) -> int:
        """How many results the program has."""
        return len(self.plan.output_slot_ids)

    def output_slot(self, index: int) -> PlannedSlot | None:
        """The slot of the result at ``index``; None if there is none."""
        if not is_index(index, self.output_count):
            return None
        return self.plan.slot(self.plan.output_slot_ids[index])

    def planned_kernel(self, index: int) -> PlannedKernel:
        """The kernel at ``index``.

        Raises:
            InvalidArtifact: there is none.
        """
        return self.plan.kernel(index)

    def launch_resource_candidate(
        self, kernel_index: int, candidate_index: int
    ) -> LaunchResourceCandidate:
        """One way to launch a kernel.

        Raises:
            InvalidArtifact: there is no such kernel.
            LaunchArgumentMismatch: it has no such candidate.
        """
        return self.plan.kernel(kernel_index).launch_resources.candidate(
            candidate_index
        )

    def kernel_summary(self, index: int) -> KernelSummary:
        """What the kernel at ``index`` is.

        Raises:
            InvalidArtifact: there is none.
        """
        return summarize_kernel(self.plan.kernel(index))

    def kernel_summary_for_work(self, work_item_id: int) -> KernelSummary:
        """What the kernel that carries out a work item is.

        Raises:
            InvalidArtifact: there is none.
        """
        return summarize_kernel(self.plan.kernel_for_work(work_item_id))

    def copy_kernel_summaries(self) -> KernelSummaries:
        """What each kernel is, in the plan's order; outlives the fragment."""
        return self.compiled.copy_kernel_summaries()

    def copy_kernel_artifact(self, index: int) -> KernelArtifact:
        """The code of the kernel at ``index``; outlives the fragment.

        Raises:
            InvalidArtifact: there is none.
        """
        return self.plan.kernel(index).artifact
