"""What each supported relocation computes, and how it is written.

S is the symbol, A the addend, P the place, G the symbol's slot in the global
offset table, all as offsets from the image's base: the base cancels out of
everything relative, and pages keep their distances because the base is a
multiple of 4096. Only the absolute 64-bit kinds need the base itself; they
become base relocations, which the loader applies.

Source: x86-64 psABI, 4.4.1 Relocation Types; ELF for the Arm 64-bit
Architecture (AAELF64), 5.7 Relocation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import attrs

from accy_async.artifact.native.elf_model import EM_AARCH64, EM_X86_64

__all__ = ["NONE_KINDS", "RULES", "Rule", "RuleError", "write_stub"]


class RuleError(Exception):
    """A relocation's value does not fit its place; the linker says where."""


Apply = Callable[[bytearray, int, int], None]
"""Writes the value given last for the place given second."""


@attrs.frozen
class Rule:
    """One relocation type.

    ``target`` says what S is: the ``symbol`` (for an import: its stub) or its
    ``slot`` in the global offset table. ``is_absolute`` asks for a base
    relocation. ``apply`` gets S + A.
    """

    name: str
    width: int
    target: str
    apply: Apply
    is_absolute: bool = False
    takes_addend: bool = True


def _absolute_64(image: bytearray, place: int, value: int) -> None:
    struct.pack_into("<Q", image, place, value & 0xFFFF_FFFF_FFFF_FFFF)


def _relative_64(image: bytearray, place: int, value: int) -> None:
    distance = _signed(value - place, 64)
    struct.pack_into("<q", image, place, distance)


def _relative_32(image: bytearray, place: int, value: int) -> None:
    distance = _signed(value - place, 32)
    struct.pack_into("<i", image, place, distance)


def _signed(value: int, bits: int) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise RuleError(f"the distance {value} does not fit {bits} signed bits")
    return value


def _instruction(
    image: bytearray, place: int, mask: int, pattern: int, what: str
) -> int:
    """The instruction at a place, which must be of the kind being relocated."""
    if place % 4:
        raise RuleError("the instruction is not aligned to 4 bytes")
    word = int.from_bytes(image[place : place + 4], "little")
    if word & mask != pattern:
        raise RuleError(f"the instruction {word:#010x} is no {what}")
    return word


def _put(image: bytearray, place: int, word: int) -> None:
    struct.pack_into("<I", image, place, word)


def _branch_26(image: bytearray, place: int, value: int) -> None:
    word = _instruction(image, place, 0x7C000000, 0x14000000, "B or BL")
    distance = _signed(value - place, 28)
    if distance % 4:
        raise RuleError(f"the distance {distance} is no multiple of 4")
    _put(image, place, (word & 0xFC000000) | ((distance >> 2) & 0x03FFFFFF))


def _adrp(image: bytearray, place: int, value: int) -> None:
    word = _instruction(image, place, 0x9F000000, 0x90000000, "ADRP")
    pages = _signed((value & ~0xFFF) - (place & ~0xFFF), 33) >> 12
    low, high = pages & 3, (pages >> 2) & 0x7FFFF
    _put(image, place, (word & 0x9F00001F) | (low << 29) | (high << 5))


def _add_low_12(image: bytearray, place: int, value: int) -> None:
    word = _instruction(image, place, 0x7F800000, 0x11000000, "ADD of an immediate")
    _put(image, place, (word & 0xFFC003FF) | ((value & 0xFFF) << 10))


def _load_store_low_12(access_bytes: int) -> Apply:
    def apply(image: bytearray, place: int, value: int) -> None:
        what = "load or store with an unsigned offset"
        word = _instruction(image, place, 0x3B000000, 0x39000000, what)
        low = value & 0xFFF
        if low % access_bytes:
            raise RuleError(f"the offset {low} is no multiple of {access_bytes}")
        _put(image, place, (word & 0xFFC003FF) | ((low // access_bytes) << 10))

    return apply


_X86_64 = {
    1: Rule("R_X86_64_64", 8, "symbol", _absolute_64, is_absolute=True),
    2: Rule("R_X86_64_PC32", 4, "symbol", _relative_32),
    4: Rule("R_X86_64_PLT32", 4, "symbol", _relative_32),
    9: Rule("R_X86_64_GOTPCREL", 4, "slot", _relative_32),
    24: Rule("R_X86_64_PC64", 8, "symbol", _relative_64),
    41: Rule("R_X86_64_GOTPCRELX", 4, "slot", _relative_32),
    42: Rule("R_X86_64_REX_GOTPCRELX", 4, "slot", _relative_32),
}

_AARCH64 = {
    257: Rule("R_AARCH64_ABS64", 8, "symbol", _absolute_64, is_absolute=True),
    260: Rule("R_AARCH64_PREL64", 8, "symbol", _relative_64),
    261: Rule("R_AARCH64_PREL32", 4, "symbol", _relative_32),
    275: Rule("R_AARCH64_ADR_PREL_PG_HI21", 4, "symbol", _adrp),
    277: Rule("R_AARCH64_ADD_ABS_LO12_NC", 4, "symbol", _add_low_12),
    278: Rule("R_AARCH64_LDST8_ABS_LO12_NC", 4, "symbol", _load_store_low_12(1)),
    282: Rule("R_AARCH64_JUMP26", 4, "symbol", _branch_26),
    283: Rule("R_AARCH64_CALL26", 4, "symbol", _branch_26),
    284: Rule("R_AARCH64_LDST16_ABS_LO12_NC", 4, "symbol", _load_store_low_12(2)),
    285: Rule("R_AARCH64_LDST32_ABS_LO12_NC", 4, "symbol", _load_store_low_12(4)),
    286: Rule("R_AARCH64_LDST64_ABS_LO12_NC", 4, "symbol", _load_store_low_12(8)),
    299: Rule("R_AARCH64_LDST128_ABS_LO12_NC", 4, "symbol", _load_store_low_12(16)),
    311: Rule("R_AARCH64_ADR_GOT_PAGE", 4, "slot", _adrp, takes_addend=False),
    312: Rule(
        "R_AARCH64_LD64_GOT_LO12_NC",
        4,
        "slot",
        _load_store_low_12(8),
        takes_addend=False,
    ),
    314: Rule("R_AARCH64_PLT32", 4, "symbol", _relative_32),
}

RULES = {EM_X86_64: _X86_64, EM_AARCH64: _AARCH64}
NONE_KINDS = {EM_X86_64: frozenset([0]), EM_AARCH64: frozenset([0, 256])}

STUB_BYTES = 16


def write_stub(machine: int, image: bytearray, place: int, slot: int) -> None:
    """Write 16 bytes of code that jump to the address in a slot.

    The stubs begin with the landing pad that control-flow protection asks for
    (ENDBR64, BTI), a no-op elsewhere. On AArch64 they use only x16 and x17, which
    calls may corrupt.

    Source: x86-64 psABI, 5.2 Procedure Linkage Table; AAPCS64, 6.1.1
    General-purpose Registers.
    """
    if machine == EM_X86_64:
        # endbr64; jmp *slot(%rip); int3 up to the end
        image[place : place + STUB_BYTES] = (
            b"\xf3\x0f\x1e\xfa\xff\x25\0\0\0\0" + b"\xcc" * 6
        )
        _relative_32(image, place + 6, slot - 4)
        return
    # bti c; adrp x16, slot; ldr x17, [x16, slot]; br x17
    struct.pack_into(
        "<4I", image, place, 0xD503245F, 0x90000010, 0xF9400211, 0xD61F0220
    )
    _adrp(image, place + 4, slot)
    _load_store_low_12(8)(image, place + 8, slot)
