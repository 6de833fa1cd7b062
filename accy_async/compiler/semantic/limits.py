"""How large a program may become while it is built."""

from __future__ import annotations

from typing import ClassVar

import attrs

from accy_async.compiler.semantic.op import Op
from accy_async.compiler.semantic.types import MAX_TENSOR_BYTES, TensorType
from accy_async.errors import OutOfMemory
from accy_async.values import integer

__all__ = ["ContextLimits"]

_COUNT = integer(1, 2**31 - 1)
_BYTES = integer(1, MAX_TENSOR_BYTES)


@attrs.frozen
class ContextLimits:
    """Bounds on one builder's context: its module, and every function of it.

    What exceeds one is refused with `OutOfMemory` where it is added, and is not
    added. They bound the compiler's own memory, and keep a program that no device
    holds from being prepared for one.
    """

    STANDARD: ClassVar[ContextLimits]

    operations: int = attrs.field(default=100_000, validator=_COUNT)
    """Operations in all functions together, loop bodies included."""

    functions: int = attrs.field(default=256, validator=_COUNT)
    """Functions of the module."""

    parameters: int = attrs.field(default=4096, validator=_COUNT)
    """Parameters of one function."""

    operands: int = attrs.field(default=4096, validator=_COUNT)
    """Operands of one operation."""

    rank: int = attrs.field(default=16, validator=_COUNT)
    """Axes of one tensor."""

    tensor_bytes: int = attrs.field(default=2**40, validator=_BYTES)
    """Bytes of one tensor."""

    constant_bytes: int = attrs.field(default=2**30, validator=_BYTES)
    """Bytes of all constants together, splats counted as one element."""

    loop_depth: int = attrs.field(default=8, validator=_COUNT)
    """Loops within one another."""

    def check_type(self, type: TensorType, op: Op | None = None) -> None:
        """Refuse a tensor of too many axes or bytes."""
        of = "a tensor" if op is None else op.opcode
        if type.rank > self.rank:
            raise OutOfMemory(
                f"{of}: {type} has {type.rank} axes, the limit is {self.rank} "
                "(ContextLimits.rank)"
            )
        if type.byte_size > self.tensor_bytes:
            raise OutOfMemory(
                f"{of}: {type} takes {type.byte_size} bytes, the limit is "
                f"{self.tensor_bytes} (ContextLimits.tensor_bytes)",
                requested_bytes=type.byte_size,
            )

    def check_count(self, field: str, count: int, what: str) -> None:
        """Refuse more of something than the field of that name allows."""
        limit = getattr(self, field)
        if count > limit:
            raise OutOfMemory(
                f"{what}: {count}, the limit is {limit} (ContextLimits.{field})"
            )


ContextLimits.STANDARD = ContextLimits()
