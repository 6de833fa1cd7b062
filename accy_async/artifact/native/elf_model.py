"""What an ELF64 relocatable object consists of: its numbers and its tables.

Source: System V gABI, chapter 4, Object Files; for the processors' own numbers
the x86-64 psABI, 4.1 and 4.2, and AAELF64, 5.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

__all__ = [
    "EM_AARCH64",
    "EM_X86_64",
    "MACHINES",
    "SHF_ALLOC",
    "SHF_COMPRESSED",
    "SHF_EXECINSTR",
    "SHF_TLS",
    "SHF_WRITE",
    "SHN_ABS",
    "SHN_COMMON",
    "SHN_LORESERVE",
    "SHN_UNDEF",
    "SHT_NOBITS",
    "SHT_NOTE",
    "SHT_PROGBITS",
    "SHT_REL",
    "SHT_RELA",
    "SHT_STRTAB",
    "SHT_SYMTAB",
    "SHT_X86_64_UNWIND",
    "STB_GLOBAL",
    "STB_LOCAL",
    "STB_WEAK",
    "STT_FUNC",
    "STT_GNU_IFUNC",
    "STT_TLS",
    "STV_DEFAULT",
    "STV_PROTECTED",
    "ObjectFile",
    "Relocation",
    "Section",
    "Symbol",
]

EM_X86_64 = 62
EM_AARCH64 = 183
MACHINES = {EM_X86_64: "x86_64", EM_AARCH64: "aarch64"}

SHT_PROGBITS = 1
SHT_SYMTAB = 2
SHT_STRTAB = 3
SHT_RELA = 4
SHT_NOTE = 7
SHT_NOBITS = 8
SHT_REL = 9
SHT_X86_64_UNWIND = 0x70000001

SHF_WRITE = 0x1
SHF_ALLOC = 0x2
SHF_EXECINSTR = 0x4
SHF_TLS = 0x400
SHF_COMPRESSED = 0x800

SHN_UNDEF = 0
SHN_LORESERVE = 0xFF00
SHN_ABS = 0xFFF1
SHN_COMMON = 0xFFF2

STB_LOCAL = 0
STB_GLOBAL = 1
STB_WEAK = 2
STT_FUNC = 2
STT_TLS = 6
STT_GNU_IFUNC = 10
STV_DEFAULT = 0
STV_PROTECTED = 3


@attrs.frozen
class Section:
    """One section header; ``data`` is empty for sections without file bytes."""

    index: int
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_bytes: int
    header_offset: int
    data: memoryview

    @property
    def is_allocated(self) -> bool:
        """Whether the section occupies memory at run time."""
        return bool(self.flags & SHF_ALLOC)


class Symbol(NamedTuple):
    """One symbol; ``section`` is a section index, or SHN_ABS or SHN_COMMON.

    Where ``section`` is an index, ``value`` is an offset within that section and
    at most its size. A named tuple, because an object has many.
    """

    name: str
    value: int
    size: int
    section: int
    binding: int
    kind: int
    visibility: int
    file_offset: int


class Relocation(NamedTuple):
    """One RELA entry; ``offset`` is below the target section's size."""

    offset: int
    kind: int
    symbol: int
    addend: int
    file_offset: int


@attrs.frozen
class ObjectFile:
    """A relocatable object whose tables are consistent.

    ``relocations`` holds those of the allocated sections, by section index.
    """

    machine: int
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: dict[int, tuple[Relocation, ...]]

    @property
    def architecture(self) -> str:
        """``x86_64`` or ``aarch64``."""
        return MACHINES[self.machine]
