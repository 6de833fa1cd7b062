"""A SPIR-V module as its header and its instructions.

Source: SPIR-V specification 1.6, 2.3 (physical layout of a module and instruction)
and 2.16.1 and 2.17 (universal limits).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import attrs

from accy_async.errors import InvalidArtifact

__all__ = ["MAX_MODULE_BYTES", "Header", "Instruction", "instructions", "literal_text"]

MAX_MODULE_BYTES = 64 << 20
"""Modules of compute kernels have some kilobytes; what is read is bounded."""

_MAGIC = 0x07230203
_HEADER_BYTES = 20
_NEWEST = (1, 6)
_MAX_BOUND = 4_194_303


@attrs.frozen
class Header:
    """What a module begins with: its version, and what all ids are below."""

    version: tuple[int, int]
    bound: int


class Instruction(NamedTuple):
    """One instruction: its opcode, its operand words, and its byte offset."""

    opcode: int
    operands: tuple[int, ...]
    offset: int


def read_header(payload: bytes) -> Header:
    """The header.

    Raises:
        InvalidArtifact: it is no SPIR-V, or of a version there is not.
    """
    size = len(payload)
    if size < _HEADER_BYTES or size % 4:
        raise InvalidArtifact(
            f"SPIR-V: {size} bytes, expected a multiple of 4 and a header of 20"
        )
    if size > MAX_MODULE_BYTES:
        raise InvalidArtifact(f"SPIR-V: {size} bytes, at most {MAX_MODULE_BYTES}")
    magic, version, _, bound, schema = struct.unpack_from("<5I", payload)
    if magic == int.from_bytes(_MAGIC.to_bytes(4, "little"), "big"):
        raise InvalidArtifact("SPIR-V: in the other byte order", offset=0)
    if magic != _MAGIC:
        raise InvalidArtifact(
            f"SPIR-V: magic number 0x{magic:08X}, expected 0x{_MAGIC:08X}", offset=0
        )
    numbers = (version >> 16 & 0xFF, version >> 8 & 0xFF)
    if version & 0xFF0000FF or not (1, 0) <= numbers <= _NEWEST:
        raise InvalidArtifact(
            f"SPIR-V: version word 0x{version:08X}, expected 1.0 to 1.6", offset=4
        )
    if not 1 <= bound <= _MAX_BOUND:
        raise InvalidArtifact(
            f"SPIR-V: bound {bound}, expected 1 to {_MAX_BOUND}", offset=12
        )
    if schema:
        raise InvalidArtifact(f"SPIR-V: schema {schema}, expected 0", offset=16)
    return Header(numbers, bound)


def instructions(payload: bytes) -> Iterator[Instruction]:
    """The instructions behind the header.

    Raises:
        InvalidArtifact: one has no words, or goes beyond the end.
    """
    words = struct.unpack(f"<{len(payload) // 4}I", payload)
    place = _HEADER_BYTES // 4
    while place < len(words):
        count, opcode = words[place] >> 16, words[place] & 0xFFFF
        if not count or place + count > len(words):
            left = len(words) - place
            raise InvalidArtifact(
                f"SPIR-V: an instruction of {count} words, {left} are left",
                offset=4 * place,
            )
        yield Instruction(opcode, words[place + 1 : place + count], 4 * place)
        place += count


def literal_text(
    words: Sequence[int], what: str, offset: int
) -> tuple[str, tuple[int, ...]]:
    """A text that words begin with, and the words behind it.

    Raises:
        InvalidArtifact: it does not end, or is no UTF-8.
    """
    raw = struct.pack(f"<{len(words)}I", *words)
    end = raw.find(b"\0")
    if end < 0:
        raise InvalidArtifact(f"SPIR-V: {what} without an end", offset=offset)
    try:
        text = raw[:end].decode()
    except UnicodeDecodeError:
        raise InvalidArtifact(f"SPIR-V: {what} is no UTF-8", offset=offset) from None
    return text, tuple(words[end // 4 + 1 :])
