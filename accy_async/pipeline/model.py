"""Kernel-call pipelines as values: stages, scratch between them, scalars.

A pipeline is a chain of kernels that is launched as one. Each stage names a
kernel by target and version and says where its arguments come from: buffers are
the launch's operands and results or the pipeline's own intermediates; scalars
are derived from the launch's runtime scalars. Nothing here knows a device.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.entry import (
    ElementCountArgument,
    KernelCallArtifact,
    KernelCallRegistry,
)
from accy_async.artifact.fingerprint import fingerprint
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import Fixed, ceil_div, u32_argument
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    InvalidArtifact,
    InvalidPipeline,
    KernelEntryMissing,
    LaunchArgumentMismatch,
)
from accy_async.values import (
    enum,
    instances,
    integer,
    text,
    to_tuple,
    tuple_of,
)

__all__ = [
    "BufferRef",
    "CeilDiv",
    "Derivation",
    "Forward",
    "Intermediate",
    "KernelCallPipeline",
    "Operand",
    "PipelineIntermediate",
    "PipelineStage",
    "Result",
    "RuntimeScalarBound",
]


@attrs.frozen
class Operand:
    """The launch's operand of that index."""

    index: int = attrs.field(validator=integer())


@attrs.frozen
class Result:
    """The launch's result of that index."""

    index: int = attrs.field(validator=integer())


@attrs.frozen
class Intermediate:
    """The pipeline's intermediate of that index."""

    index: int = attrs.field(validator=integer())


BufferRef = Operand | Result | Intermediate


@attrs.frozen
class Forward:
    """The launch's runtime scalar of that index, as it is."""

    argument_index: int = attrs.field(validator=integer())

    def resolve_scalar(self, scalars: Sequence[ScalarArgument]) -> ScalarArgument:
        """The scalar, of whatever dtype.

        Raises:
            LaunchArgumentMismatch: it is missing.
        """
        if self.argument_index >= len(scalars):
            raise LaunchArgumentMismatch(
                f"pipeline scalar: runtime scalar {self.argument_index} is missing, "
                f"{len(scalars)} were given"
            )
        return scalars[self.argument_index]

    def resolve_extent(self, scalars: Sequence[ScalarArgument]) -> int:
        """The scalar as a count of elements.

        Raises:
            LaunchArgumentMismatch: it is missing or no u32.
        """
        return u32_argument(scalars, self.argument_index, "pipeline extent")


@attrs.frozen
class CeilDiv:
    """``ceil(scalar / divisor)`` of a u32 runtime scalar, as a u32."""

    argument_index: int = attrs.field(kw_only=True, validator=integer())
    divisor: int = attrs.field(kw_only=True, validator=integer(1))

    def resolve_scalar(self, scalars: Sequence[ScalarArgument]) -> ScalarArgument:
        """The quotient as a u32.

        Raises:
            LaunchArgumentMismatch: the scalar is missing or no u32.
        """
        return ScalarArgument.u32(self.resolve_extent(scalars))

    def resolve_extent(self, scalars: Sequence[ScalarArgument]) -> int:
        """The quotient as a count of elements.

        Raises:
            LaunchArgumentMismatch: the scalar is missing or no u32.
        """
        value = u32_argument(scalars, self.argument_index, "pipeline derivation")
        return ceil_div(value, self.divisor)


Derivation = Forward | CeilDiv
_DERIVATIONS = tuple_of(Forward, CeilDiv, expected="Forward or CeilDiv values")


@attrs.frozen(kw_only=True)
class PipelineIntermediate:
    """A scratch buffer between stages: its element type and how many elements."""

    dtype: DType = attrs.field(validator=enum(DType))
    extent: Derivation | Fixed = attrs.field(
        validator=instances(
            Forward, CeilDiv, Fixed, expected="a Forward, CeilDiv or Fixed"
        )
    )

    def element_count(self, scalars: Sequence[ScalarArgument]) -> int:
        """How many elements it has for these runtime scalars; may be 0.

        Raises:
            LaunchArgumentMismatch: a scalar that it needs is missing or no u32.
        """
        if isinstance(self.extent, Fixed):
            return self.extent.value
        return self.extent.resolve_extent(scalars)


@attrs.frozen(kw_only=True)
class PipelineStage:
    """One kernel of the chain, and where its arguments come from."""

    target: str = attrs.field(validator=text())
    version: int = attrs.field(validator=integer())
    buffers: tuple[BufferRef, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(
            Operand, Result, Intermediate, expected="Operand, Result or Intermediate"
        ),
    )
    scalars: tuple[Derivation, ...] = attrs.field(
        default=(), converter=to_tuple, validator=_DERIVATIONS
    )


@attrs.frozen(kw_only=True)
class RuntimeScalarBound:
    """The greatest value that a u32 runtime scalar may have."""

    argument_index: int = attrs.field(validator=integer())
    max_u32: int = attrs.field(validator=integer())


@attrs.frozen(kw_only=True)
class KernelCallPipeline:
    """A chain of kernels launched as one.

    Attributes:
        target: the chain's name.
        version: the version of that name's contract.
        operand_count: buffers that a launch reads.
        result_count: buffers that a launch writes.
        stages: the kernels, in launch order; none makes a launch a no-op.
        intermediates: scratch buffers between the stages.
        runtime_scalar_argument_count: scalars that a launch brings.
        runtime_scalar_bounds: limits of some of them.

    Raises:
        InvalidValue: a field does not hold what it says.
        InvalidPipeline: an index points at nothing, or two bounds at one scalar.
    """

    target: str = attrs.field(validator=text())
    version: int = attrs.field(validator=integer())
    operand_count: int = attrs.field(validator=integer(0, 4096))
    result_count: int = attrs.field(validator=integer(0, 4096))
    stages: tuple[PipelineStage, ...] = attrs.field(
        converter=to_tuple,
        validator=tuple_of(PipelineStage, expected="PipelineStage values"),
    )
    intermediates: tuple[PipelineIntermediate, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(
            PipelineIntermediate, expected="PipelineIntermediate values"
        ),
    )
    runtime_scalar_argument_count: int = attrs.field(
        default=0, validator=integer(0, 4096)
    )
    runtime_scalar_bounds: tuple[RuntimeScalarBound, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(RuntimeScalarBound, expected="RuntimeScalarBound values"),
    )

    def __attrs_post_init__(self) -> None:
        counts = {
            Operand: ("operand_count", self.operand_count),
            Result: ("result_count", self.result_count),
            Intermediate: ("intermediates", len(self.intermediates)),
        }
        for number, stage in enumerate(self.stages):
            field = f"KernelCallPipeline.stages[{number}]"
            for ref in stage.buffers:
                name, count = counts[type(ref)]
                if ref.index >= count:
                    raise InvalidPipeline(
                        f"{field}.buffers", ref, f"an index below {name}={count}"
                    )
            for derivation in stage.scalars:
                self._check_scalar(f"{field}.scalars", derivation)
        for number, spec in enumerate(self.intermediates):
            if not isinstance(spec.extent, Fixed):
                self._check_scalar(
                    f"KernelCallPipeline.intermediates[{number}].extent", spec.extent
                )
        seen = set()
        for bound in self.runtime_scalar_bounds:
            self._check_scalar("KernelCallPipeline.runtime_scalar_bounds", bound)
            if bound.argument_index in seen:
                raise InvalidPipeline(
                    "KernelCallPipeline.runtime_scalar_bounds",
                    bound,
                    "one bound for each scalar",
                )
            seen.add(bound.argument_index)

    def _check_scalar(
        self, field: str, value: Forward | CeilDiv | RuntimeScalarBound
    ) -> None:
        count = self.runtime_scalar_argument_count
        if value.argument_index >= count:
            raise InvalidPipeline(
                field,
                value,
                f"an argument index below runtime_scalar_argument_count={count}",
            )

    @property
    def fingerprint(self) -> int:
        """A 64-bit fingerprint of the whole chain."""
        return fingerprint(self)

    def resolve(
        self, registry: KernelCallRegistry, format: ArtifactFormat
    ) -> tuple[KernelCallArtifact, ...]:
        """The registry's entry for each stage, checked against the stage.

        Raises:
            KernelEntryMissing: a stage has no entry in that format; it is both
                an InvalidArtifact and an UnsupportedOperation.
            InvalidArtifact: an entry takes other arguments than its stage gives.
        """
        entries = []
        for number, stage in enumerate(self.stages):
            where = f"pipeline {self.target!r}, stage {number} ({stage.target!r})"
            try:
                entry = registry.get(stage.target, stage.version, format)
            except KernelEntryMissing as error:
                raise KernelEntryMissing(f"{where}: {error}") from None
            _check_stage(where, stage, entry)
            entries.append(entry)
        return tuple(entries)

    def validate(self, registry: KernelCallRegistry, format: ArtifactFormat) -> None:
        """Check the whole chain against a registry; see `resolve`."""
        self.resolve(registry, format)

    def validate_runtime_scalar_arguments(
        self, scalars: Sequence[ScalarArgument]
    ) -> None:
        """Check a launch's runtime scalars: their number, dtypes and bounds.

        Raises:
            LaunchArgumentMismatch: there are more or fewer, one that sizes are
                derived from is no u32, or one is above its bound.
        """
        count = self.runtime_scalar_argument_count
        if len(scalars) != count:
            raise LaunchArgumentMismatch(
                f"pipeline {self.target!r} takes {count} runtime scalars, "
                f"{len(scalars)} were given"
            )
        for number, scalar in enumerate(scalars):
            if not isinstance(scalar, ScalarArgument):
                raise LaunchArgumentMismatch(
                    f"pipeline {self.target!r}: runtime scalar {number} is "
                    f"{scalar!r}, expected a ScalarArgument"
                )
        for spec in self.intermediates:
            spec.element_count(scalars)
        for bound in self.runtime_scalar_bounds:
            where = f"pipeline {self.target!r}, bound"
            value = u32_argument(scalars, bound.argument_index, where)
            if value > bound.max_u32:
                raise LaunchArgumentMismatch(
                    f"pipeline {self.target!r}: runtime scalar "
                    f"{bound.argument_index} is {value}, expected at most "
                    f"{bound.max_u32}"
                )


def _check_stage(where: str, stage: PipelineStage, entry: KernelCallArtifact) -> None:
    if entry.element_count_argument is not ElementCountArgument.NONE:
        raise InvalidArtifact(
            f"{where}: its kernel takes an element count "
            f"({entry.element_count_argument}), which a pipeline does not pass"
        )
    for what, given, taken in (
        ("buffers", len(stage.buffers), entry.buffer_argument_count),
        ("scalars", len(stage.scalars), entry.runtime_scalar_argument_count),
    ):
        if given != taken:
            raise InvalidArtifact(
                f"{where}: the stage gives {given} {what}, its kernel takes {taken}"
            )
