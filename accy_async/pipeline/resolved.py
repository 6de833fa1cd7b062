"""A pipeline together with the kernels it was checked against.

Checking a chain against its registry costs more than launching it, and both are
immutable, so it is done once: an artifact pool keeps what it was loaded from,
and a launch of that same chain from that pool checks only its own arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.entry import KernelCallArtifact, KernelCallRegistry
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import DerivedLaunch, FixedLaunch
from accy_async.backends.base import Backend
from accy_async.dtypes import ScalarArgument
from accy_async.errors import InvalidType
from accy_async.pipeline.model import KernelCallPipeline, PipelineStage

__all__ = [
    "ResolvedPipeline",
    "StageLaunch",
    "check_chain",
    "check_device",
    "check_format",
    "resolve_pipeline",
]


@attrs.frozen
class StageLaunch:
    """A stage's scalars and geometry for one launch's runtime scalars.

    ``scalars`` are all that the kernel takes: those derived, then its static
    ones. The geometry is derived from the former.
    """

    scalars: tuple[ScalarArgument, ...]
    geometry: FixedLaunch


@attrs.frozen(eq=False)
class _Stage:
    stage: PipelineStage
    entry: KernelCallArtifact
    node: str


@attrs.frozen(eq=False)
class ResolvedPipeline:
    """A chain, its registry and format, and each stage's entry and node name."""

    pipeline: KernelCallPipeline
    registry: KernelCallRegistry
    format: ArtifactFormat
    stages: tuple[_Stage, ...]

    def is_for(
        self,
        pipeline: KernelCallPipeline,
        registry: KernelCallRegistry,
        format: ArtifactFormat,
    ) -> bool:
        """True where these very objects were checked."""
        return (
            self.pipeline is pipeline
            and self.registry is registry
            and self.format is format
        )

    def launches(self, scalars: Sequence[ScalarArgument]) -> list[StageLaunch]:
        """Every stage's launch for these runtime scalars.

        Raises:
            LaunchArgumentMismatch: a scalar is missing, of the wrong dtype, or
                outside a kernel's shape profile.
        """
        launches = []
        for resolved in self.stages:
            derived = tuple(
                derivation.resolve_scalar(scalars)
                for derivation in resolved.stage.scalars
            )
            entry = resolved.entry
            if entry.shape_profile is not None:
                entry.shape_profile.check(derived)
            launches.append(
                StageLaunch(
                    derived + entry.static_arguments, entry.launch.geometry(derived)
                )
            )
        return launches

    def is_empty(
        self, scalars: Sequence[ScalarArgument], launches: Sequence[StageLaunch]
    ) -> bool:
        """True where these runtime scalars leave no work at all.

        That is when there are no stages; or when some grid is derived, every
        derived grid has no blocks, and no intermediate has elements: then the
        stages of fixed geometry have nothing to work on either.
        """
        derived = [
            launch.geometry.block_count
            for stage, launch in zip(self.stages, launches, strict=True)
            if isinstance(stage.entry.launch, DerivedLaunch)
            and stage.entry.launch.argument_indices
        ]
        if not self.stages:
            return True
        if not derived or any(derived):
            return False
        return not any(s.element_count(scalars) for s in self.pipeline.intermediates)


def check_device(call: str, backend: object) -> None:
    """Refuse what is no device to do it on.

    Raises:
        InvalidType: it is none.
    """
    if not isinstance(backend, Backend):
        raise InvalidType(f"{call}.backend", backend, "an open backend")


def check_format(call: str, format: object) -> None:
    """Refuse what is no format, nor the name of one.

    Raises:
        InvalidType: it is none.
    """
    if not isinstance(format, str):
        expected = "an artifact format, or its name"
        raise InvalidType(f"{call}.format", format, expected)


def check_chain(pipeline: object, registry: object) -> None:
    """Refuse what is no pipeline, or no registry.

    Raises:
        InvalidType: one is none.
    """
    if not isinstance(pipeline, KernelCallPipeline):
        raise InvalidType("load_pipeline.pipeline", pipeline, "a KernelCallPipeline")
    if not isinstance(registry, KernelCallRegistry):
        raise InvalidType("load_pipeline.registry", registry, "a KernelCallRegistry")


def resolve_pipeline(
    pipeline: KernelCallPipeline, registry: KernelCallRegistry, format: ArtifactFormat
) -> ResolvedPipeline:
    """Check a chain against a registry, once for all its launches.

    Raises:
        KernelEntryMissing: a stage has no entry in that format.
        InvalidArtifact: an entry takes other arguments than its stage gives.
    """
    entries = pipeline.resolve(registry, format)
    return ResolvedPipeline(
        pipeline,
        registry,
        format,
        tuple(
            _Stage(stage, entry, f"{pipeline.target}[{number}] {stage.target}")
            for number, (stage, entry) in enumerate(
                zip(pipeline.stages, entries, strict=True)
            )
        ),
    )
