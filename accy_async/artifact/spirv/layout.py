"""The types and constants of a SPIR-V module, as far as interfaces need them.

A type's size is computed when it is defined: types are defined before they are used,
so nothing recurses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

__all__ = ["Types"]

_BUFFER_BLOCK, _ARRAY_STRIDE, _OFFSET = 3, 6, 35
_MAX_BYTES = 2**40


class Types:
    """Sizes of types, constants, and what decorates them.

    Args:
        fail: raises for a message.
    """

    def __init__(self, fail: Callable[..., NoReturn]) -> None:
        self._fail = fail
        self._sizes: dict[int, int | None] = {}
        self._pointed: dict[int, int] = {}
        self._constants: dict[int, int] = {}
        self._composites: dict[int, tuple[int, ...]] = {}
        self._strides: dict[int, int] = {}
        self._offsets: dict[int, dict[int, int]] = {}
        self._member_decorations: dict[int, dict[int, set[int]]] = {}
        self._members: dict[int, int] = {}
        self._buffer_blocks: set[int] = set()

    def decorate(self, target: int, decoration: int, literals: tuple[int, ...]) -> None:
        """Note a decoration."""
        if decoration == _ARRAY_STRIDE and literals:
            self._strides[target] = literals[0]
        elif decoration == _BUFFER_BLOCK:
            self._buffer_blocks.add(target)

    def decorate_member(
        self, struct: int, member: int, decoration: int, literals: tuple[int, ...]
    ) -> None:
        """Note a decoration of a struct's member."""
        if decoration == _OFFSET and literals:
            self._offsets.setdefault(struct, {})[member] = literals[0]
        else:
            members = self._member_decorations.setdefault(struct, {})
            members.setdefault(member, set()).add(decoration)

    def read(
        self, opcode: int, operands: tuple[int, ...], id: Callable[[int], int]
    ) -> None:
        """Note a type or constant; other instructions are passed over."""
        match opcode, operands:
            case (20, (result,)):  # OpTypeBool
                self._sizes[id(result)] = None
            case (21 | 22, (result, bits, *_)):  # OpTypeInt, OpTypeFloat
                self._sizes[id(result)] = min(bits, 64) // 8
            case (23 | 24, (result, part, count)):  # OpTypeVector, OpTypeMatrix
                self._sizes[id(result)] = self._times(self._sizes.get(part), count)
            case (28, (result, part, length)):  # OpTypeArray
                count = self._constants.get(length, 0)
                stride = self._strides.get(result, self._sizes.get(part))
                self._sizes[id(result)] = self._times(stride, count)
            case (30, (result, *members)):  # OpTypeStruct
                self._sizes[id(result)] = self._struct(result, members)
                self._members[result] = len(members)
            case (32, (result, _, pointed)):  # OpTypePointer
                self._pointed[id(result)] = id(pointed)
            case (43 | 50, (_, result, value, *_)):  # OpConstant, OpSpecConstant
                self._constants[id(result)] = value
            case (44 | 51, (_, result, *parts)):  # their composites
                known = [self._constants.get(part, 0) for part in parts]
                self._composites[id(result)] = tuple(known)
            case (20 | 21 | 22 | 23 | 24 | 28 | 30 | 32 | 43 | 44 | 50 | 51, _):
                self._fail(f"instruction {opcode} with {len(operands)} operands")
            case _:
                pass

    def constant(self, which: int) -> int:
        """An integer constant's value, or its default; 0 if it is none."""
        return self._constants.get(which, 0)

    def composite(self, which: int) -> tuple[int, ...] | None:
        """The values of a constant vector."""
        return self._composites.get(which)

    def pointed_size(self, pointer: int, offset: int) -> int:
        """Bytes of what a pointer type points to."""
        size = self._sizes.get(self._pointed.get(pointer, 0))
        if size is None:
            self._fail("a block of push constants without a size", offset)
        return size

    def shared_size(self, pointer: int) -> int:
        """Bytes of what a pointer type points to; 0 where they are left open."""
        return self._sizes.get(self._pointed.get(pointer, 0)) or 0

    def pointed_decorations(self, pointer: int) -> set[int]:
        """The decorations that all members of the struct pointed to have."""
        struct = self._pointed.get(pointer, 0)
        members = self._member_decorations.get(struct, {})
        count = self._members.get(struct, 0)
        decorated = [members.get(member, set()) for member in range(min(count, 1024))]
        return set.intersection(*decorated) if decorated else set()

    def is_buffer_block(self, pointer: int) -> bool:
        """Whether the struct pointed to is a storage buffer of old modules."""
        return self._pointed.get(pointer, 0) in self._buffer_blocks

    def _struct(self, struct: int, members: list[int]) -> int | None:
        offsets, end = self._offsets.get(struct, {}), 0
        for member, part in enumerate(members):
            size = self._sizes.get(part)
            if size is None or member not in offsets:
                return None
            end = max(end, offsets[member] + size)
        return self._bounded(end)

    def _times(self, size: int | None, count: int) -> int | None:
        return None if size is None else self._bounded(size * count)

    def _bounded(self, size: int) -> int:
        if size > _MAX_BYTES:
            self._fail(f"a type of {size} bytes, at most {_MAX_BYTES}")
        return size
