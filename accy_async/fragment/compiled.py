"""Compiled fragments: what a program became, kept apart from any device."""

from __future__ import annotations

import attrs

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.planned import ArtifactPlan
from accy_async.artifact.summary import KernelSummaries, summarize_kernel
from accy_async.compiler.tracing import TracedProgram
from accy_async.fragment.codec import decode_plan, encode_plan
from accy_async.values import instances, optional

__all__ = ["CompiledFragment"]


@attrs.frozen
class CompiledFragment:
    """A compiled program: an artifact plan, and how a call's arguments are nested.

    A value: it holds no device resource, outlives what it was made from, and can be
    loaded into any number of sessions, one after the other or at once.

    Attributes:
        plan: its kernels and slots.
        program: the program that it was traced as, for calls with nested arguments;
            None where arguments and results are lists. Equality leaves it out.
    """

    plan: ArtifactPlan = attrs.field(validator=instances(ArtifactPlan))
    program: TracedProgram | None = attrs.field(
        default=None,
        eq=False,
        repr=False,
        validator=optional(instances(TracedProgram)),
    )

    @property
    def name(self) -> str:
        """The program's entry function."""
        return self.plan.name

    @property
    def format(self) -> ArtifactFormat:
        """The format of every kernel's code."""
        return self.plan.format

    @property
    def fingerprint(self) -> int:
        """A 64-bit fingerprint of slots, kernels and code; never 0."""
        return self.plan.fingerprint

    @property
    def kernel_count(self) -> int:
        """How many launches there are."""
        return self.plan.kernel_count

    def copy_kernel_summaries(self) -> KernelSummaries:
        """What each kernel is, in the plan's order."""
        return KernelSummaries(summarize_kernel(k) for k in self.plan.kernels)

    def to_bytes(self) -> bytes:
        """Itself as bytes, for `from_bytes`; without how arguments are nested."""
        return encode_plan(self.plan)

    @classmethod
    def from_bytes(cls, data: bytes) -> CompiledFragment:
        """What `to_bytes` gave. Nothing in it is run, or believed unchecked.

        Raises:
            InvalidArtifact: it is damaged, of another version, or no fragment; with
                the offset where that shows.
        """
        return cls(decode_plan(data))
