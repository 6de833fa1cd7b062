"""How scalars lie side by side where a kernel takes them as one block of bytes.

Vulkan kernels take them as push constants, Metal kernels as one small buffer. Each
scalar takes at least 4 bytes, so that no device needs narrow types for them: integers
of 8 and 16 bits, bools, f16 and bf16 lie in the low bytes of a word whose high bytes
are zero. Each begins at a multiple of its size, in the order of the arguments, as
GLSL's std430 and C++ lay out a struct of such members. Everything is little-endian.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import attrs

from accy_async.artifact.requirements import PushConstants
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import LaunchArgumentMismatch
from accy_async.values import to_tuple, tuple_of

__all__ = ["ScalarBlock"]


@attrs.frozen
class ScalarBlock:
    """The layout of a kernel's scalars, which follows from their dtypes."""

    dtypes: tuple[DType, ...] = attrs.field(
        converter=to_tuple, validator=tuple_of(DType, expected="DType members")
    )

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each scalar begins, in bytes."""
        return _layout(self.dtypes)[0]

    @property
    def byte_size(self) -> int:
        """Bytes of the whole block, a multiple of 4; 0 without scalars."""
        return _layout(self.dtypes)[1]

    @property
    def push_constants(self) -> PushConstants | None:
        """The range that the block takes; None without scalars."""
        return PushConstants(byte_size=self.byte_size) if self.byte_size else None

    def pack(self, scalars: Sequence[ScalarArgument]) -> bytes:
        """The block's bytes for the scalars of one launch.

        Raises:
            LaunchArgumentMismatch: they are not of the block's dtypes.
        """
        given = tuple(scalar.dtype for scalar in scalars)
        if given != self.dtypes:
            raise LaunchArgumentMismatch(
                f"scalars of {_listed(given)}, the kernel takes {_listed(self.dtypes)}"
            )
        block = bytearray(self.byte_size)
        for offset, scalar in zip(self.offsets, scalars, strict=True):
            size = _size(scalar.dtype)
            block[offset : offset + size] = scalar.slot.to_bytes(8, "little")[:size]
        return bytes(block)


@functools.lru_cache(maxsize=1024)
def _layout(dtypes: tuple[DType, ...]) -> tuple[tuple[int, ...], int]:
    """Where scalars of the dtypes begin, and where the last one ends."""
    offsets, end = [], 0
    for dtype in dtypes:
        size = _size(dtype)
        start = -(-end // size) * size
        offsets.append(start)
        end = start + size
    return tuple(offsets), end


def _size(dtype: DType) -> int:
    return max(4, dtype.size_bytes)


def _listed(dtypes: Sequence[DType]) -> str:
    return ", ".join(dtype.value for dtype in dtypes) or "none"
