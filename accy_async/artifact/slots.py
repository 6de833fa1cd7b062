"""Slots of an artifact plan: the buffers of a program, and what kernels do to them."""

from __future__ import annotations

from enum import Enum

import attrs

from accy_async.artifact.fingerprint import fingerprint
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue
from accy_async.values import (
    enum,
    instances,
    integer,
    integers,
    member_of,
    one_of,
    optional,
    packed_bytes,
    to_tuple,
)

__all__ = ["PlannedArgument", "PlannedSlot", "SlotRole"]

_ID = integer()


class SlotRole(str, Enum):
    """What a slot is to the program."""

    INPUT = "input"
    CONSTANT = "constant"
    OUTPUT = "output"
    SCRATCH = "scratch"

    def __str__(self) -> str:
        return self.value


def _role(value: SlotRole | str) -> SlotRole:
    return member_of(SlotRole, value)


@attrs.frozen(kw_only=True)
class PlannedSlot:
    """One buffer of the program: dense, row-major.

    Attributes:
        slot_id: its number in the plan, from 0.
        role: input, constant, output or scratch.
        dtype: its element type.
        shape: its extents.
        data: a constant's bytes, None for other roles.
        is_bound: False for a constant that every kernel has folded into its code,
            such as the start of a reduction: no buffer is made for it.
    """

    slot_id: int = attrs.field(validator=_ID)
    role: SlotRole = attrs.field(converter=_role, validator=enum(SlotRole))
    dtype: DType = attrs.field(validator=enum(DType))
    shape: tuple[int, ...] = attrs.field(
        converter=to_tuple, validator=integers(0, 2**63 - 1)
    )
    data: bytes | None = attrs.field(
        default=None, validator=optional(instances(bytes)), repr=False
    )
    is_bound: bool = attrs.field(default=True, validator=instances(bool))

    def __attrs_post_init__(self) -> None:
        packed_bytes("PlannedSlot.shape", self.shape, self.dtype.size_bytes)
        is_constant = self.role is SlotRole.CONSTANT
        if is_constant and (self.data is None or len(self.data) != self.byte_size):
            size = None if self.data is None else len(self.data)
            raise InvalidValue(
                "PlannedSlot.data",
                f"{size} bytes",
                f"a constant's {self.byte_size} bytes",
            )
        if not is_constant and self.data is not None:
            raise InvalidValue("PlannedSlot.data", "bytes", "None but for a constant")
        if not is_constant and not self.is_bound:
            raise InvalidValue(
                "PlannedSlot.is_bound", self.is_bound, "True but for a constant"
            )

    @property
    def element_count(self) -> int:
        """Elements in all; 1 for rank 0."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def byte_size(self) -> int:
        """Bytes in all."""
        return self.element_count * self.dtype.size_bytes

    @property
    def layout_fingerprint(self) -> int:
        """A 64-bit fingerprint of dtype and shape; never 0."""
        return fingerprint(("layout", self.dtype, self.shape)) or 1


@attrs.frozen(kw_only=True)
class PlannedArgument:
    """A buffer argument of a planned kernel: a slot, and what is done to it."""

    slot_id: int = attrs.field(validator=_ID)
    access: str = attrs.field(
        validator=one_of(("read_only", "write_only", "read_write"))
    )

    @property
    def is_written(self) -> bool:
        """True where the kernel writes it."""
        return self.access != "read_only"
