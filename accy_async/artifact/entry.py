"""Kernel-call entries, and the registry that finds them.

An entry is a ready-made kernel in one format: its code, how it is called and
how it is launched. Arguments come buffers first, then scalars; the scalars are
the element count (where the entry asks for it as a scalar), the launch's
runtime scalars, and the entry's static arguments, in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

import attrs

from accy_async.artifact.fingerprint import fingerprint
from accy_async.artifact.formats import ArtifactFormat, artifact_format
from accy_async.artifact.geometry import (
    DerivedLaunch,
    KernelCallLaunch,
    RuntimeCeilDiv,
    launch_validator,
)
from accy_async.artifact.kernel import (
    ArtifactRequest,
    Payload,
    dtype_set_validator,
    payload_validator,
    show_payload,
    to_frozenset,
)
from accy_async.artifact.parameters import KernelBuffer
from accy_async.artifact.requirements import (
    DeviceFeatures,
    PushConstants,
    SubgroupFeatures,
)
from accy_async.artifact.resources import LaunchResourcePlan
from accy_async.artifact.shapes import ShapeProfile
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import InvalidType, InvalidValue, KernelEntryMissing
from accy_async.values import (
    enum,
    instances,
    integer,
    member_of,
    optional,
    text,
    to_tuple,
    tuple_of,
)

__all__ = ["ElementCountArgument", "KernelCallArtifact", "KernelCallRegistry"]

_SCALARS = tuple_of(ScalarArgument, expected="ScalarArgument values")
_U64 = integer(0, 2**64 - 1)


class ElementCountArgument(str, Enum):
    """How a kernel learns the number of elements it works on."""

    NONE = "none"
    """Not at all."""

    SCALAR_U32 = "scalar_u32"
    """As a u32 before its other scalars."""

    BUFFER_U32 = "buffer_u32"
    """As a buffer holding one u32, after its other buffers."""

    def __str__(self) -> str:
        return self.value


def element_count_argument(
    value: ElementCountArgument | str,
) -> ElementCountArgument:
    """Converter: a member, or its value as text."""
    return member_of(ElementCountArgument, value)


@attrs.frozen(kw_only=True)
class KernelCallArtifact:
    """A registered kernel: code in one format, calling convention, launch.

    Attributes:
        target: the name callers ask for, e.g. ``accy.kernel.add``.
        version: the version of that name's contract.
        format: what the payload is.
        entry_name: the kernel's entry point in the payload.
        argument_count: buffers and scalars together, counts and statics too.
        payload: source text or a binary.
        launch: fixed geometry, or one derived from runtime scalars.
        runtime_scalar_argument_count: scalars that each launch brings.
        required_dtypes: element types the device must handle.
        static_arguments: scalars that are the same at every launch.
        element_count_argument: how the kernel learns its element count.
        runtime_scalar_defaults: values for runtime scalars a launch leaves out;
            none, or one for each.
        shape_profile: the shapes the kernel serves, with their bounds.
        shape_family_fingerprint: names the family of shapes; 0 for none.
        launch_resources: candidates for tuning, or None for the launch alone.
        required_features: device features the kernel needs.
        required_subgroup: subgroup features the kernel needs.
        push_constants: the range for scalars passed beside buffers, or None.
        buffers: what the kernel takes for each of its buffers, so that graphs and
            pipelines refuse others; none where that is not known.

    Raises:
        InvalidValue: a field does not hold what it says, or contradicts another.
    """

    target: str = attrs.field(validator=text())
    version: int = attrs.field(validator=integer())
    format: ArtifactFormat = attrs.field(
        converter=artifact_format, validator=enum(ArtifactFormat)
    )
    entry_name: str = attrs.field(validator=text())
    argument_count: int = attrs.field(validator=integer(0, 4096))
    payload: Payload = attrs.field(validator=payload_validator, repr=show_payload)
    launch: KernelCallLaunch = attrs.field(validator=launch_validator)
    runtime_scalar_argument_count: int = attrs.field(
        default=0, validator=integer(0, 4096)
    )
    required_dtypes: frozenset[DType] = attrs.field(
        default=frozenset(), converter=to_frozenset, validator=dtype_set_validator
    )
    static_arguments: tuple[ScalarArgument, ...] = attrs.field(
        default=(), converter=to_tuple, validator=_SCALARS
    )
    element_count_argument: ElementCountArgument = attrs.field(
        default=ElementCountArgument.NONE,
        converter=element_count_argument,
        validator=enum(ElementCountArgument),
    )
    runtime_scalar_defaults: tuple[ScalarArgument, ...] = attrs.field(
        default=(), converter=to_tuple, validator=_SCALARS
    )
    shape_profile: ShapeProfile | None = attrs.field(
        default=None, validator=optional(instances(ShapeProfile))
    )
    shape_family_fingerprint: int = attrs.field(default=0, validator=_U64)
    launch_resources: LaunchResourcePlan | None = attrs.field(
        default=None, validator=optional(instances(LaunchResourcePlan))
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

    buffers: tuple[KernelBuffer, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(KernelBuffer, expected="KernelBuffer values"),
    )

    def __attrs_post_init__(self) -> None:
        if self.scalar_argument_count > self.argument_count:
            raise InvalidValue(
                "KernelCallArtifact.argument_count",
                self.argument_count,
                f"at least its {self.scalar_argument_count} scalar arguments",
            )
        runtime = self.runtime_scalar_argument_count
        if isinstance(self.launch, DerivedLaunch):
            for index in self.launch.argument_indices:
                if index >= runtime:
                    raise InvalidValue(
                        "KernelCallArtifact.launch",
                        self.launch,
                        "argument indices below runtime_scalar_argument_count="
                        f"{runtime}",
                    )
        if len(self.runtime_scalar_defaults) not in (0, runtime):
            raise InvalidValue(
                "KernelCallArtifact.runtime_scalar_defaults",
                self.runtime_scalar_defaults,
                f"none, or one for each of {runtime} runtime scalars",
            )
        self._check_shape_profile()
        self._check_buffers()

    def _check_buffers(self) -> None:
        if len(self.buffers) not in (0, self.buffer_argument_count):
            raise InvalidValue(
                "KernelCallArtifact.buffers",
                self.buffers,
                f"none, or one for each of {self.buffer_argument_count} buffers",
            )
        runtime = self.runtime_scalar_argument_count
        for buffer in self.buffers:
            elements = buffer.elements
            if isinstance(elements, RuntimeCeilDiv) and (
                elements.argument_index >= runtime
            ):
                raise InvalidValue(
                    "KernelCallArtifact.buffers",
                    buffer,
                    f"argument indices below runtime_scalar_argument_count={runtime}",
                )

    def _check_shape_profile(self) -> None:
        if self.shape_profile is None:
            return
        for dimension in self.shape_profile.dimensions:
            index = dimension.runtime_scalar_argument_index
            if index is not None and index >= self.runtime_scalar_argument_count:
                raise InvalidValue(
                    "KernelCallArtifact.shape_profile",
                    dimension,
                    "scalar indices below runtime_scalar_argument_count="
                    f"{self.runtime_scalar_argument_count}",
                )

    @property
    def scalar_argument_count(self) -> int:
        """Scalars the kernel takes: element count, runtime and static ones."""
        counted = self.element_count_argument is ElementCountArgument.SCALAR_U32
        return (
            int(counted)
            + self.runtime_scalar_argument_count
            + len(self.static_arguments)
        )

    @property
    def buffer_argument_count(self) -> int:
        """Buffers the kernel takes, an element-count buffer among them."""
        return self.argument_count - self.scalar_argument_count

    @property
    def fingerprint(self) -> int:
        """A 64-bit fingerprint of the whole entry, its payload too."""
        return fingerprint(self)

    def artifact_request(self, diagnostic_id: str | None = None) -> ArtifactRequest:
        """What a backend is asked for to make this entry's artifact."""
        return ArtifactRequest(
            kernel_name=self.entry_name,
            requested_format=self.format,
            argument_count=self.argument_count,
            scalar_argument_count=self.scalar_argument_count,
            payload=self.payload,
            required_dtypes=self.required_dtypes,
            required_features=self.required_features,
            required_subgroup=self.required_subgroup,
            push_constants=self.push_constants,
            diagnostic_id=diagnostic_id,
        )


class KernelCallRegistry:
    """Kernel-call entries, found by target, version and format. Immutable.

    Raises:
        InvalidType: something in ``entries`` is no `KernelCallArtifact`.
        InvalidValue: two entries share target, version and format.
    """

    __slots__ = ("_by_key", "_entries")

    def __init__(self, entries: Iterable[KernelCallArtifact] = ()) -> None:
        self._entries: tuple[KernelCallArtifact, ...] = to_tuple(entries)
        if not isinstance(self._entries, tuple):
            raise InvalidType(
                "KernelCallRegistry.entries", entries, "KernelCallArtifact values"
            )
        self._by_key: dict[tuple[str, int, ArtifactFormat], KernelCallArtifact] = {}
        for index, entry in enumerate(self._entries):
            if not isinstance(entry, KernelCallArtifact):
                raise InvalidType(
                    f"KernelCallRegistry.entries[{index}]",
                    entry,
                    "a KernelCallArtifact",
                )
            key = (entry.target, entry.version, entry.format)
            if key in self._by_key:
                raise InvalidValue(
                    f"KernelCallRegistry.entries[{index}]",
                    f"{entry.target} version {entry.version} ({entry.format})",
                    "target, version and format that no other entry has",
                )
            self._by_key[key] = entry

    @property
    def entries(self) -> tuple[KernelCallArtifact, ...]:
        """The entries, as given."""
        return self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[KernelCallArtifact]:
        return iter(self._entries)

    def __repr__(self) -> str:
        names = ", ".join(f"{e.target} v{e.version} {e.format}" for e in self._entries)
        return f"KernelCallRegistry({names})"

    def find(
        self, target: str, version: int, format: ArtifactFormat
    ) -> KernelCallArtifact | None:
        """The entry of that name, version and format, or None."""
        try:
            return self._by_key.get((target, version, format))
        except TypeError:  # what names no format, as a list of them
            return None

    def get(
        self, target: str, version: int, format: ArtifactFormat
    ) -> KernelCallArtifact:
        """The entry of that name, version and format.

        Raises:
            KernelEntryMissing: there is none; the message says what there is.
        """
        entry = self.find(target, version, format)
        if entry is not None:
            return entry
        near = [
            f"version {e.version} ({e.format})"
            for e in self._entries
            if e.target == target
        ]
        known = ", ".join(near) if near else "nothing of that name"
        raise KernelEntryMissing(
            f"no kernel {target!r} version {version} in format {format}; "
            f"the registry has {known}"
        )

    def merged(self, others: Sequence[KernelCallArtifact]) -> KernelCallRegistry:
        """A registry with these entries besides its own."""
        return KernelCallRegistry((*self._entries, *others))
