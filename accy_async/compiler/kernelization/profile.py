"""What code is made for: a device's abilities, a format, and how it may round."""

from __future__ import annotations

from enum import Enum

import attrs

from accy_async.artifact.formats import ArtifactFormat, BackendKind, artifact_format
from accy_async.backends.capabilities import Capabilities
from accy_async.errors import UnsupportedOperation
from accy_async.values import enum, instances, member_of

__all__ = ["MathTier", "TargetProfile", "math_tier"]


class MathTier(str, Enum):
    """How freely floats may be computed."""

    EXACT = "exact"
    """Every elementwise operation rounds by itself, as the program says."""

    FUSED = "fused"
    """A product that is only added to something may keep its full width."""

    FAST = "fast"
    """As fused; sums may be reordered, and exp, log, tanh, quotients and roots of f32
    approximated, within the bounds that ``docs/generated.md`` states."""

    def __str__(self) -> str:
        return self.value


def math_tier(value: MathTier | str) -> MathTier:
    """Converter: a tier, or its value as text."""
    return member_of(MathTier, value)


@attrs.frozen(kw_only=True)
class TargetProfile:
    """The target of a program's kernels.

    Sums within a matrix product may keep their products' full width in every tier:
    their order is not specified in the first place.

    Attributes:
        capabilities: what the device can do.
        format: the format its kernels are made in, one that it loads.
        math_tier: how freely floats may be computed.

    Raises:
        UnsupportedOperation: the device does not load the format.
    """

    capabilities: Capabilities = attrs.field(validator=instances(Capabilities))
    format: ArtifactFormat = attrs.field(
        converter=artifact_format, validator=enum(ArtifactFormat)
    )
    math_tier: MathTier = attrs.field(
        default=MathTier.EXACT, converter=math_tier, validator=enum(MathTier)
    )

    def __attrs_post_init__(self) -> None:
        if self.format not in self.capabilities.formats:
            raise UnsupportedOperation(
                f"{self.capabilities.identity.name} does not load {self.format}"
            )

    @classmethod
    def of(
        cls,
        capabilities: Capabilities,
        format: ArtifactFormat | str | None = None,
        math_tier: MathTier | str = MathTier.EXACT,
    ) -> TargetProfile:
        """The target of a device; its backend's default format if none is named.

        A device that does not load that one, such as a recording backend of another
        format, gets the one that it loads.

        Raises:
            UnsupportedOperation: the device does not load the format.
        """
        if format is None:
            default = capabilities.identity.backend.default_format
            loaded = capabilities.formats
            format = next(iter(loaded)) if len(loaded) == 1 else default
        return cls(capabilities=capabilities, format=format, math_tier=math_tier)

    @property
    def backend(self) -> BackendKind:
        """The kind of backend that loads the format."""
        return self.format.backend
