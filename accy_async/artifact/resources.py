"""Launch resources: the geometries a kernel can be launched with."""

from __future__ import annotations

from enum import Enum

import attrs

from accy_async.artifact.fingerprint import fingerprint
from accy_async.artifact.geometry import FixedLaunch
from accy_async.errors import InvalidValue, LaunchArgumentMismatch
from accy_async.values import (
    enum,
    instances,
    integer,
    is_index,
    member_of,
    optional,
    text,
    to_tuple,
    tuple_of,
)

__all__ = [
    "LaunchResourceCandidate",
    "LaunchResourceClass",
    "LaunchResourcePlan",
]


class LaunchResourceClass(str, Enum):
    """What limits a kernel, and so how its candidates are chosen."""

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    SCAN = "scan"
    MATRIX_PRODUCT = "matrix_product"
    GATHER_SCATTER = "gather_scatter"
    AUTHORED = "authored"

    def __str__(self) -> str:
        return self.value


def launch_resource_class(value: LaunchResourceClass | str) -> LaunchResourceClass:
    """Converter: a member, or its value as text."""
    return member_of(LaunchResourceClass, value)


@attrs.frozen(kw_only=True)
class LaunchResourceCandidate:
    """One way to launch a kernel: its geometry and the resources it takes.

    Attributes:
        geometry: blocks, threads, dynamic shared memory.
        registers_per_thread: as the compiler reported, or None if unknown.
        elements_per_thread: how many elements each thread handles.
        label: a name for reports.
    """

    geometry: FixedLaunch = attrs.field(validator=instances(FixedLaunch))
    registers_per_thread: int | None = attrs.field(
        default=None, validator=optional(integer(0, 1024))
    )
    elements_per_thread: int = attrs.field(default=1, validator=integer(1))
    label: str = attrs.field(default="", validator=text(empty=True))


@attrs.frozen(kw_only=True)
class LaunchResourcePlan:
    """The candidates of a kernel; the first is the one used untuned.

    ``fixed_threadgroup`` says that the code was made for one threadgroup, so
    that all candidates share it.
    """

    candidates: tuple[LaunchResourceCandidate, ...] = attrs.field(
        converter=to_tuple,
        validator=tuple_of(
            LaunchResourceCandidate, expected="LaunchResourceCandidate values"
        ),
    )
    resource_class: LaunchResourceClass = attrs.field(
        default=LaunchResourceClass.AUTHORED,
        converter=launch_resource_class,
        validator=enum(LaunchResourceClass),
    )
    fixed_threadgroup: bool = attrs.field(default=True, validator=instances(bool))

    def __attrs_post_init__(self) -> None:
        if not self.candidates:
            raise InvalidValue(
                "LaunchResourcePlan.candidates", self.candidates, "at least one"
            )
        threadgroups = {c.geometry.threadgroup for c in self.candidates}
        if self.fixed_threadgroup and len(threadgroups) > 1:
            raise InvalidValue(
                "LaunchResourcePlan.candidates",
                sorted(threadgroups),
                "one threadgroup, as fixed_threadgroup is True",
            )

    @property
    def geometry(self) -> FixedLaunch:
        """The geometry used untuned: the first candidate's."""
        return self.candidates[0].geometry

    @property
    def candidate_count(self) -> int:
        """How many candidates there are; at least 1."""
        return len(self.candidates)

    def candidate(self, index: int) -> LaunchResourceCandidate:
        """The candidate at ``index``.

        Raises:
            LaunchArgumentMismatch: there is none.
        """
        if not is_index(index, len(self.candidates)):
            raise LaunchArgumentMismatch(
                f"launch candidate {index!r}, expected 0 to {len(self.candidates) - 1}"
            )
        return self.candidates[index]

    @property
    def fingerprint(self) -> int:
        """A 64-bit fingerprint of every candidate and the class; never 0."""
        return fingerprint(self) or 1
