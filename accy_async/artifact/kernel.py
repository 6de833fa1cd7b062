"""Kernel artifacts: a compiled kernel in one format, and the asking for one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import attrs

from accy_async.artifact.formats import ArtifactFormat, artifact_format
from accy_async.artifact.requirements import (
    DeviceFeatures,
    PushConstants,
    SubgroupFeatures,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue
from accy_async.values import (
    enum,
    field_name,
    instances,
    integer,
    optional,
    text,
)

if TYPE_CHECKING:
    from typing import Any

    from attrs import Attribute

__all__ = [
    "ArtifactRequest",
    "KernelArtifact",
    "Payload",
    "dtype_set_validator",
    "payload_validator",
    "show_payload",
]

Payload = str | bytes
"""A kernel's code: source text, or a binary."""


def payload_validator(
    instance: object, attribute: Attribute[Any], value: object
) -> None:
    """An attrs validator: non-empty text or bytes."""
    name = field_name(instance, attribute)
    if not isinstance(value, (str, bytes)):
        raise InvalidType(name, value, "text (str) or a binary (bytes)")
    if not value:
        raise InvalidValue(name, value, "a payload that is not empty")


def dtype_set_validator(
    instance: object, attribute: Attribute[Any], value: object
) -> None:
    """An attrs validator: a frozenset of DType."""
    name = field_name(instance, attribute)
    if not isinstance(value, frozenset):
        raise InvalidType(name, value, "a set of DType")
    for member in value:
        if not isinstance(member, DType):
            raise InvalidType(name, member, "a set of DType")


def to_frozenset(value: Iterable[DType]) -> frozenset[DType]:
    """Converter: sets, lists and tuples as a frozenset; anything else unchanged."""
    if isinstance(value, (set, list, tuple)):
        try:
            return frozenset(value)
        except TypeError:  # a member that no set can hold
            return cast("frozenset[DType]", value)
    return cast("frozenset[DType]", value)


def show_payload(payload: object) -> str:
    """A payload's kind and size, for reprs that stay readable."""
    if isinstance(payload, (str, bytes)):
        unit = "characters" if isinstance(payload, str) else "bytes"
        return f"<{len(payload)} {unit}>"
    return repr(payload)


@attrs.frozen(kw_only=True)
class ArtifactRequest:
    """What a backend needs to make a kernel artifact.

    Attributes:
        kernel_name: the kernel's entry point in the payload.
        requested_format: the format to make; the payload's own.
        argument_count: buffers and scalars together.
        scalar_argument_count: how many of the arguments are scalars.
        payload: the code.
        required_dtypes: element types the device must handle.
        required_features: device features the kernel needs.
        required_subgroup: subgroup features the kernel needs.
        push_constants: the range for scalars passed beside buffers, or None.
        diagnostic_id: a name of the caller's for error messages.
    """

    kernel_name: str = attrs.field(validator=text())
    requested_format: ArtifactFormat = attrs.field(
        converter=artifact_format, validator=enum(ArtifactFormat)
    )
    argument_count: int = attrs.field(validator=integer(0, 4096))
    payload: Payload = attrs.field(validator=payload_validator, repr=show_payload)
    scalar_argument_count: int = attrs.field(default=0, validator=integer(0, 4096))
    required_dtypes: frozenset[DType] = attrs.field(
        default=frozenset(), converter=to_frozenset, validator=dtype_set_validator
    )
    required_features: DeviceFeatures = attrs.field(
        factory=DeviceFeatures, validator=instances(DeviceFeatures)
    )
    required_subgroup: SubgroupFeatures = attrs.field(
        factory=SubgroupFeatures, validator=instances(SubgroupFeatures)
    )
    push_constants: PushConstants | None = attrs.field(
        default=None, validator=optional(instances(PushConstants))
    )
    diagnostic_id: str | None = attrs.field(default=None, validator=optional(text()))

    def __attrs_post_init__(self) -> None:
        _check_counts(self)


@attrs.frozen(kw_only=True)
class KernelArtifact:
    """A kernel in a format that its backend can load.

    It holds no device resource: loading it gives a `LoadedArtifact`, which does.
    """

    kernel_name: str = attrs.field(validator=text())
    format: ArtifactFormat = attrs.field(
        converter=artifact_format, validator=enum(ArtifactFormat)
    )
    argument_count: int = attrs.field(validator=integer(0, 4096))
    scalar_argument_count: int = attrs.field(validator=integer(0, 4096))
    payload: Payload = attrs.field(validator=payload_validator, repr=show_payload)
    push_constants: PushConstants | None = attrs.field(
        default=None, validator=optional(instances(PushConstants))
    )
    diagnostic_id: str | None = attrs.field(default=None, validator=optional(text()))

    def __attrs_post_init__(self) -> None:
        _check_counts(self)

    @classmethod
    def from_request(
        cls, request: ArtifactRequest, payload: Payload | None = None
    ) -> KernelArtifact:
        """The artifact that answers a request, with its own payload or another."""
        return cls(
            kernel_name=request.kernel_name,
            format=request.requested_format,
            argument_count=request.argument_count,
            scalar_argument_count=request.scalar_argument_count,
            payload=request.payload if payload is None else payload,
            push_constants=request.push_constants,
            diagnostic_id=request.diagnostic_id,
        )

    @property
    def buffer_argument_count(self) -> int:
        """How many of the arguments are buffers."""
        return self.argument_count - self.scalar_argument_count


def _check_counts(described: ArtifactRequest | KernelArtifact) -> None:
    """Refuse more scalar arguments than arguments."""
    if described.scalar_argument_count > described.argument_count:
        raise InvalidValue(
            f"{type(described).__name__}.scalar_argument_count",
            described.scalar_argument_count,
            f"at most argument_count={described.argument_count}",
        )
