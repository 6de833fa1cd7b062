"""What a kernel requires of a device, and what a device offers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from accy_async.errors import InvalidValue
from accy_async.values import instances, integer

if TYPE_CHECKING:
    from attrs import AttrsInstance

__all__ = ["DeviceFeatures", "PushConstants", "SubgroupFeatures"]

_FLAG = instances(bool)


@attrs.frozen(kw_only=True)
class DeviceFeatures:
    """Optional abilities of a device, or those that a kernel needs."""

    tensor_cores: bool = attrs.field(default=False, validator=_FLAG)
    async_copy: bool = attrs.field(default=False, validator=_FLAG)
    clusters: bool = attrs.field(default=False, validator=_FLAG)
    cooperative_launch: bool = attrs.field(default=False, validator=_FLAG)
    float_atomics: bool = attrs.field(default=False, validator=_FLAG)
    int64_atomics: bool = attrs.field(default=False, validator=_FLAG)

    def missing(self, available: DeviceFeatures) -> tuple[str, ...]:
        """Names of what this asks for and ``available`` has not got."""
        return _missing(self, available)


@attrs.frozen(kw_only=True)
class SubgroupFeatures:
    """Abilities of subgroups (warps, waves), or those that a kernel needs.

    ``size`` is the subgroup's width in threads, or None for any.
    """

    supported: bool = attrs.field(default=False, validator=_FLAG)
    shuffle: bool = attrs.field(default=False, validator=_FLAG)
    vote: bool = attrs.field(default=False, validator=_FLAG)
    arithmetic: bool = attrs.field(default=False, validator=_FLAG)
    size: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(integer(1, 1024))
    )

    def __attrs_post_init__(self) -> None:
        if not self.supported and (self.shuffle or self.vote or self.arithmetic):
            raise InvalidValue(
                "SubgroupFeatures.supported",
                self.supported,
                "True where a subgroup feature is asked for",
            )

    def missing(self, available: SubgroupFeatures) -> tuple[str, ...]:
        """Names of what this asks for and ``available`` has not got."""
        lacking = _missing(self, available)
        if self.size is not None and self.size != available.size:
            lacking += (f"size {self.size}",)
        return lacking


@attrs.frozen(kw_only=True)
class PushConstants:
    """Scalars passed beside the buffers rather than as launch parameters.

    ``byte_size`` counts the whole range; Vulkan guarantees 128 bytes
    (VkPhysicalDeviceLimits.maxPushConstantsSize).
    """

    byte_size: int = attrs.field(default=0, validator=integer(0, 1 << 16))
    offset_bytes: int = attrs.field(default=0, validator=integer(0, 1 << 16))

    def __attrs_post_init__(self) -> None:
        for name in ("byte_size", "offset_bytes"):
            if getattr(self, name) % 4:
                raise InvalidValue(
                    f"PushConstants.{name}", getattr(self, name), "a multiple of 4"
                )


def _missing(wanted: AttrsInstance, available: AttrsInstance) -> tuple[str, ...]:
    return tuple(
        field.name
        for field in attrs.fields(type(wanted))
        if getattr(wanted, field.name) is True and not getattr(available, field.name)
    )
