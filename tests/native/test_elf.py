from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.artifact.native import elf, link_object, load_object, parse_object
from accy_async.artifact.native.elf_model import Relocation
from accy_async.artifact.native.limits import MAX_IMAGE_BYTES
from accy_async.errors import InvalidArtifact
from tests.native.objects import (
    ALLOC,
    EXEC,
    MINIMAL,
    MINIMAL_KERNELS,
    NOBITS,
    Sec,
    Sym,
    compile_ir,
    host_object,
    text_object,
    write_elf,
)

RET = b"\xc3"
ENTRY_RELOCATION = (1, 2, 1, -4)


def small_object() -> bytes:
    return text_object(b"\xe8\0\0\0\0\xc3", [ENTRY_RELOCATION])


def test_parsed_object_says_what_was_written() -> None:
    parsed = parse_object(small_object())
    assert parsed.architecture == "x86_64"
    assert [section.name for section in parsed.sections] == [
        "",
        ".text",
        ".accy.kernels",
        ".rela.text",
        ".symtab",
        ".strtab",
    ]
    text = parsed.sections[1]
    assert (bytes(text.data), text.alignment) == (b"\xe8\0\0\0\0\xc3", 16)
    assert [symbol.name for symbol in parsed.symbols] == ["", "entry"]
    relocation = parsed.relocations[1][0]
    assert relocation == Relocation(1, 2, 1, -4, relocation.file_offset)


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_truncated_object_at_every_length(architecture: str) -> None:
    """Each prefix is refused with an offset; none raises anything else."""
    payload = compile_ir(MINIMAL, MINIMAL_KERNELS, architecture)
    for length in range(len(payload)):
        with pytest.raises(InvalidArtifact) as caught:
            parse_object(payload[:length])
        assert caught.value.offset is not None
        with pytest.raises(InvalidArtifact):
            load_object(payload[:length], "entry")


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_mutated_object(architecture: str) -> None:
    """A changed object is refused or linked, and never run."""
    payload = host_object(architecture)
    chance = random.Random(7)
    outcomes = {True: 0, False: 0}
    for _ in range(1200):
        changed = bytearray(payload)
        for _ in range(chance.choice((1, 1, 2, 8))):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        outcomes[_links(bytes(changed))] += 1
    assert min(outcomes.values()) > 0


def test_mutated_header_and_tables() -> None:
    """Every byte of the header and section table, at the values that hurt."""
    payload = small_object()
    table = struct.unpack_from("<Q", payload, 40)[0]
    for position in (*range(64), *range(table, len(payload))):
        for value in (0, 1, 0x7F, 0x80, 0xFF, payload[position] ^ 1):
            _links(payload[:position] + bytes([value]) + payload[position + 1 :])


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=150, deadline=None)
def test_random_bytes(data: bytes, has_header: bool) -> None:
    _links(small_object()[:64] + data if has_header else data)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_mutated_fields(data: st.DataObject) -> None:
    """Whole fields of one section header, symbol or relocation, at any value."""
    payload = bytearray(small_object())
    aligned = st.integers(0, len(payload) // 4 - 2).map(lambda number: 4 * number)
    edges = st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, len(payload)])
    for _ in range(data.draw(st.integers(1, 3))):
        value = data.draw(edges | st.integers(0, 2**64 - 1))
        struct.pack_into("<Q", payload, data.draw(aligned), value)
    _links(bytes(payload))


def _links(payload: bytes) -> bool:
    try:
        link_object(payload)
    except InvalidArtifact:
        return False
    return True


@pytest.mark.parametrize(
    ("offset", "format", "value", "message"),
    [
        (4, "B", 1, "not a 64-bit ELF"),
        (5, "B", 2, "not a little-endian"),
        (6, "B", 0, "unknown ELF version"),
        (7, "B", 9, "another OS ABI, EI_OSABI 9"),
        (16, "<H", 2, "ET_EXEC, expected a relocatable"),
        (16, "<H", 3, "ET_DYN, expected a relocatable"),
        (16, "<H", 4, "ET_CORE, expected a relocatable"),
        (18, "<H", 243, "ELF machine 243"),
        (48, "<I", 1, "ELF flags 0x1"),
        (52, "<H", 52, "header of 52 bytes"),
        (56, "<H", 1, "program headers"),
        (58, "<H", 40, "section headers of 40 bytes"),
        (60, "<H", 0, "0 section headers"),
        (60, "<H", 7, "truncated, its 7 section headers"),
        (40, "<Q", 2**64 - 1, "truncated, its 6 section headers"),
        (62, "<H", 6, "section names in section 6 of 6"),
        (62, "<H", 1, "section names are no string table"),
    ],
)
def test_wrong_header_field(offset: int, format: str, value: int, message: str) -> None:
    payload = bytearray(small_object())
    struct.pack_into(format, payload, offset, value)
    with pytest.raises(InvalidArtifact, match=message) as caught:
        parse_object(bytes(payload))
    assert caught.value.offset is not None


NAME, KIND, FLAGS, OFFSET, SIZE, LINK, INFO, ALIGNMENT, ENTRY = (
    *(0, 4, 8, 24, 32, 40, 44, 48, 56),
)
TEXT, RELA, SYMTAB = 1, 3, 4


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        (TEXT, NAME, 10**6, "name of section 1 at 1000000 does not end"),
        (TEXT, OFFSET, 2**63, "truncated, section '.text'"),
        (TEXT, SIZE, 2**63, "loaded size to 9223372036854775"),
        (TEXT, ALIGNMENT, 3, "alignment 3, expected a power of two"),
        (RELA, LINK, 1, "names section 1 as its symbol table"),
        (RELA, INFO, 9, "relocations of section 9 of 6"),
        (RELA, KIND, 9, "SHT_REL"),
        (RELA, ENTRY, 16, "in entries of 16, expected entries of 24"),
        (RELA, SIZE, 23, "holds 23 bytes in entries of 24"),
        (SYMTAB, LINK, 1, "symbol names in section 1, which is no string table"),
        (SYMTAB, INFO, 3, "3 local symbols of 2"),
        (SYMTAB, SIZE, 24, "names symbol 1 of 1"),
        (SYMTAB, KIND, 1, "names section 4 as its symbol table"),
        (RELA, KIND, 2, "two symbol tables"),
    ],
)
def test_wrong_section_field(
    section: int, field: int, value: int, message: str
) -> None:
    payload = bytearray(small_object())
    at = struct.unpack_from("<Q", payload, 40)[0] + 64 * section + field
    wide = field in (FLAGS, OFFSET, SIZE, ALIGNMENT, ENTRY)
    struct.pack_into("<Q" if wide else "<I", payload, at, value)
    with pytest.raises(InvalidArtifact, match=message) as caught:
        parse_object(bytes(payload))
    assert caught.value.offset is not None


@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        (Sym("far", 1, 7), "'far' at 7 beyond the 6 bytes"),
        (Sym("lost", 50), "'lost' in section 50 of 6"),
        (Sym("odd", 0xFFFF), "'odd' in reserved section 0xffff"),
        (Sym("x" * 2000, 1), "is longer than 1024"),
    ],
)
def test_wrong_symbol(symbol: Sym, message: str) -> None:
    payload = text_object(b"\xe8\0\0\0\0\xc3", [ENTRY_RELOCATION], [symbol])
    with pytest.raises(InvalidArtifact, match=message):
        parse_object(payload)


def test_name_that_is_no_text() -> None:
    payload = small_object().replace(b"entry\0", b"\xff\xfe\xfd\xfc\xfb\0")
    with pytest.raises(InvalidArtifact, match="symbol 1 is no UTF-8"):
        parse_object(payload)


@pytest.mark.parametrize(
    ("relocation", "message"),
    [
        ((6, 2, 1, 0), "relocation at 6 beyond the 6 bytes of section '.text'"),
        ((0, 2, 9, 0), "names symbol 9 of 2"),
    ],
)
def test_wrong_relocation(relocation: tuple[int, int, int, int], message: str) -> None:
    payload = text_object(b"\xe8\0\0\0\0\xc3", [relocation])
    with pytest.raises(InvalidArtifact, match=message):
        parse_object(payload)


def test_zeroed_data_beyond_the_bound_is_not_allocated() -> None:
    """A few bytes of file cannot ask for all memory, nor can many small parts."""
    part = Sec(".bss", flags=ALLOC | 1, kind=NOBITS, size=MAX_IMAGE_BYTES // 4)
    payload = text_object(RET, others=[part] * 4)
    with pytest.raises(InvalidArtifact, match="expected at most 268435456"):
        parse_object(payload)


def test_too_many_relocations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "MAX_RELOCATIONS", 3)
    text = Sec(".a", bytes(8), ALLOC | EXEC, relocations=[(0, 0, 0, 0)] * 2)
    with pytest.raises(InvalidArtifact, match="2 entries, expected at most 1"):
        parse_object(write_elf([text, text]))


def test_relocations_of_debug_sections_are_not_read() -> None:
    debug = Sec(".debug_info", bytes(8), 0, relocations=[(99, 99, 99, 0)])
    assert parse_object(write_elf([debug])).relocations == {}
