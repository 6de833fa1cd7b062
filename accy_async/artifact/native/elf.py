"""Reading ELF64 relocatable objects, with every number checked before its use.

Two rules: an offset, size or index that the file gives is compared with what
the file holds before anything is read or allocated by it; and whatever is wrong
raises `InvalidArtifact` with the byte offset of the field at fault. So a parsed
`ObjectFile` can be used without further bounds checks, save those that need a
relocation's width.

Source: System V gABI, chapter 4, Object Files (ELF Header, Sections, String
Table, Symbol Table, Relocation). Objects with 0xff00 sections or more, which
need the extended numbering, are refused.
"""

from __future__ import annotations

import struct

from accy_async.artifact.native.elf_model import (
    MACHINES,
    SHF_ALLOC,
    SHN_ABS,
    SHN_COMMON,
    SHN_LORESERVE,
    SHN_UNDEF,
    SHT_NOBITS,
    SHT_REL,
    SHT_RELA,
    SHT_STRTAB,
    SHT_SYMTAB,
    ObjectFile,
    Relocation,
    Section,
    Symbol,
)
from accy_async.artifact.native.limits import MAX_IMAGE_BYTES
from accy_async.errors import InvalidArtifact

__all__ = ["ObjectFile", "parse_object"]

# Bounds of our own, far above what a kernel needs: names are scanned for their
# end and relocation tables may overlap, so without them a small file could ask
# for time and memory that grow with the square of its size.
MAX_SYMBOLS = 1 << 17
MAX_RELOCATIONS = 1 << 20
MAX_NAME_BYTES = 1024

_TYPES = {0: "ET_NONE", 2: "ET_EXEC", 3: "ET_DYN", 4: "ET_CORE"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")


def parse_object(data: bytes) -> ObjectFile:
    """Read an ELF64 little-endian relocatable object for x86-64 or AArch64.

    Raises:
        InvalidArtifact: not such a file, truncated, or inconsistent; with the
            byte offset of the fault.
    """
    machine, table_offset, count, names_index = _read_header(data)
    view = memoryview(data)
    sections = _read_sections(view, table_offset, count, names_index)
    symbol_table = _find_symbol_table(sections)
    symbols = _read_symbols(sections, symbol_table)
    relocations = _read_relocations(sections, symbol_table, len(symbols))
    return ObjectFile(machine, sections, symbols, relocations)


def _read_header(data: bytes) -> tuple[int, int, int, int]:
    if not data:
        raise InvalidArtifact("object: empty, expected an ELF file", offset=0)
    if data[:4] != b"\x7fELF"[: len(data)]:
        raise InvalidArtifact(
            f"object: begins with {data[:8]!r}, expected an ELF file", offset=0
        )
    if len(data) < _HEADER.size:
        raise InvalidArtifact(
            f"object: truncated in its header, {len(data)} bytes, expected at least "
            f"{_HEADER.size}",
            offset=len(data),
        )
    if len(data) > MAX_IMAGE_BYTES:
        raise InvalidArtifact(
            f"object: {len(data)} bytes, expected at most {MAX_IMAGE_BYTES}", offset=0
        )
    (
        identity,
        kind,
        machine,
        version,
        _entry,
        _program_offset,
        table_offset,
        flags,
        header_bytes,
        _program_entry_bytes,
        program_count,
        entry_bytes,
        count,
        names_index,
    ) = _HEADER.unpack_from(data)
    _expect(identity[4] == 2, "object: not a 64-bit ELF file (EI_CLASS)", 4)
    _expect(identity[5] == 1, "object: not a little-endian ELF file (EI_DATA)", 5)
    _expect(identity[6] == 1 and version == 1, "object: unknown ELF version", 6)
    _expect(
        identity[7] in (0, 3),
        f"object: made for another OS ABI, EI_OSABI {identity[7]}, expected 0 or 3",
        7,
    )
    _expect(
        kind == 1,
        f"object: ELF type {_TYPES.get(kind, kind)}, expected a relocatable object "
        "(ET_REL), as compilers write with -c",
        16,
    )
    _expect(
        machine in MACHINES,
        f"object: ELF machine {machine}, expected one of {MACHINES}",
        18,
    )
    _expect(flags == 0, f"object: ELF flags {flags:#x}, expected none", 48)
    _expect(header_bytes == _HEADER.size, f"object: header of {header_bytes} bytes", 52)
    _expect(program_count == 0, "object: has program headers, expected none", 56)
    _expect(
        entry_bytes == _SECTION.size,
        f"object: section headers of {entry_bytes} bytes, expected {_SECTION.size}",
        58,
    )
    _expect(
        0 < count < SHN_LORESERVE,
        f"object: {count} section headers, expected 1 to {SHN_LORESERVE - 1}",
        60,
    )
    _expect(
        table_offset + count * _SECTION.size <= len(data),
        f"object: truncated, its {count} section headers at {table_offset} end beyond "
        f"its {len(data)} bytes",
        40,
    )
    _expect(
        0 < names_index < count,
        f"object: section names in section {names_index} of {count}",
        62,
    )
    return machine, table_offset, count, names_index


def _read_sections(
    view: memoryview, table_offset: int, count: int, names_index: int
) -> tuple[Section, ...]:
    table = view[table_offset : table_offset + count * _SECTION.size]
    rows = list(_SECTION.iter_unpack(table))
    at = table_offset + names_index * _SECTION.size
    _, kind, _, _, offset, size, *_ = rows[names_index]
    _expect(kind == SHT_STRTAB, "object: section names are no string table", at)
    _check_extent(view, offset, size, "section names", at)
    names = bytes(view[offset : offset + size])
    sections: list[Section] = []
    total = 0
    for index, row in enumerate(rows):
        (name_at, kind, flags, _, offset, size, link, info, alignment, entry) = row
        at = table_offset + index * _SECTION.size
        if kind == 0:
            sections.append(
                Section(index, "", 0, 0, 0, 0, 0, 0, 1, 0, at, memoryview(b""))
            )
            continue
        name = _read_name(names, name_at, f"section {index}", at)
        what = f"section {name or index!r}"
        _expect(
            alignment & (alignment - 1) == 0 if alignment else True,
            f"object: {what} has alignment {alignment}, expected a power of two",
            at + 48,
        )
        if flags & SHF_ALLOC:
            total += size
            _expect(
                total <= MAX_IMAGE_BYTES,
                f"object: {what} brings the loaded size to {total} bytes, expected at "
                f"most {MAX_IMAGE_BYTES}",
                at + 32,
            )
        data = memoryview(b"")
        if kind != SHT_NOBITS:
            _check_extent(view, offset, size, what, at)
            data = view[offset : offset + size]
        sections.append(
            Section(
                index=index,
                name=name,
                kind=kind,
                flags=flags,
                offset=offset,
                size=size,
                link=link,
                info=info,
                alignment=alignment or 1,
                entry_bytes=entry,
                header_offset=at,
                data=data,
            )
        )
    return tuple(sections)


def _find_symbol_table(sections: tuple[Section, ...]) -> Section | None:
    tables = [section for section in sections if section.kind == SHT_SYMTAB]
    if not tables:
        return None
    if len(tables) > 1:
        raise InvalidArtifact(
            "object: two symbol tables, expected one", offset=tables[1].header_offset
        )
    return tables[0]


def _read_symbols(
    sections: tuple[Section, ...], table: Section | None
) -> tuple[Symbol, ...]:
    if table is None:
        return ()
    count = _count_entries(table, _SYMBOL.size, MAX_SYMBOLS)
    at = table.header_offset
    _expect(
        0 < table.link < len(sections) and sections[table.link].kind == SHT_STRTAB,
        f"object: symbol names in section {table.link}, which is no string table",
        at + 40,
    )
    _expect(
        table.info <= count,
        f"object: {table.info} local symbols of {count} symbols",
        at + 44,
    )
    names = bytes(sections[table.link].data)
    symbols: list[Symbol] = []
    position = table.offset
    for name_at, info, other, index, value, size in _SYMBOL.iter_unpack(table.data):
        name = _read_name(names, name_at, f"symbol {len(symbols)}", position)
        if index < SHN_LORESERVE:
            if index >= len(sections):
                raise InvalidArtifact(
                    f"object: symbol {name!r} in section {index} of {len(sections)}",
                    offset=position + 6,
                )
            if index != SHN_UNDEF and value > sections[index].size:
                raise InvalidArtifact(
                    f"object: symbol {name!r} at {value} beyond the "
                    f"{sections[index].size} bytes of its section",
                    offset=position + 8,
                )
        elif index not in (SHN_ABS, SHN_COMMON):
            raise InvalidArtifact(
                f"object: symbol {name!r} in reserved section {index:#x}",
                offset=position + 6,
            )
        symbols.append(
            Symbol(name, value, size, index, info >> 4, info & 15, other & 3, position)
        )
        position += _SYMBOL.size
    return tuple(symbols)


def _read_relocations(
    sections: tuple[Section, ...], symbol_table: Section | None, symbol_count: int
) -> dict[int, tuple[Relocation, ...]]:
    found: dict[int, list[Relocation]] = {}
    total = 0
    for section in sections:
        if section.kind not in (SHT_RELA, SHT_REL):
            continue
        at = section.header_offset
        _expect(
            0 < section.info < len(sections),
            f"object: relocations of section {section.info} of {len(sections)}",
            at + 44,
        )
        target = sections[section.info]
        if not target.is_allocated:
            continue
        _expect(
            section.kind == SHT_RELA,
            f"object: section {section.name!r} has relocations without addends "
            "(SHT_REL), expected SHT_RELA",
            at + 4,
        )
        _expect(
            symbol_table is not None and section.link == symbol_table.index,
            f"object: section {section.name!r} names section {section.link} as its "
            "symbol table, which it is not",
            at + 40,
        )
        total += _count_entries(section, _RELA.size, MAX_RELOCATIONS - total)
        into = found.setdefault(target.index, [])
        position = section.offset
        for offset, info, addend in _RELA.iter_unpack(section.data):
            if offset >= target.size:
                raise InvalidArtifact(
                    f"object: relocation at {offset} beyond the {target.size} bytes "
                    f"of section {target.name!r}",
                    offset=position,
                )
            if info >> 32 >= symbol_count:
                raise InvalidArtifact(
                    f"object: relocation of section {target.name!r} names symbol "
                    f"{info >> 32} of {symbol_count}",
                    offset=position + 8,
                )
            into.append(
                Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend, position)
            )
            position += _RELA.size
    return {index: tuple(entries) for index, entries in found.items()}


def _count_entries(section: Section, entry_bytes: int, maximum: int) -> int:
    at = section.header_offset
    _expect(
        section.entry_bytes == entry_bytes and section.size % entry_bytes == 0,
        f"object: section {section.name!r} holds {section.size} bytes in entries of "
        f"{section.entry_bytes}, expected entries of {entry_bytes}",
        at + 56,
    )
    count = section.size // entry_bytes
    _expect(
        count <= maximum,
        f"object: section {section.name!r} has {count} entries, expected at most "
        f"{maximum}",
        at + 32,
    )
    return count


def _check_extent(
    view: memoryview, offset: int, size: int, what: str, header_offset: int
) -> None:
    _expect(
        offset + size <= len(view),
        f"object: truncated, {what} at {offset} with {size} bytes ends beyond the "
        f"file's {len(view)} bytes",
        header_offset + 24,
    )


def _read_name(names: bytes, start: int, what: str, offset: int) -> str:
    end = names.find(b"\0", start, start + MAX_NAME_BYTES + 1)
    if end < 0:
        raise InvalidArtifact(
            f"object: the name of {what} at {start} does not end within its string "
            f"table of {len(names)} bytes, or is longer than {MAX_NAME_BYTES}",
            offset=offset,
        )
    try:
        return names[start:end].decode()
    except UnicodeDecodeError:
        raise InvalidArtifact(
            f"object: the name of {what} is no UTF-8", offset=offset
        ) from None


def _expect(condition: bool, message: str, offset: int) -> None:
    if not condition:
        raise InvalidArtifact(message, offset=offset)
