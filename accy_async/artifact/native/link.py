"""Linking one relocatable object into a position-independent image.

The allocated sections are laid out as three segments (see
`accy_async.artifact.native.image`), the object's relocations are applied, and
what is left are the imports' slots and the words that need the image's base.
Nothing is searched, merged or relaxed: what the compiler wrote is what runs.

Source: System V gABI, chapter 4, Special Sections and Relocation; x86-64 psABI
4.4; AAELF64 5.7.
"""

from __future__ import annotations

import attrs

from accy_async.artifact.native.abi import SIGNATURE_SECTION
from accy_async.artifact.native.elf import parse_object
from accy_async.artifact.native.elf_model import (
    SHF_COMPRESSED,
    SHF_EXECINSTR,
    SHF_TLS,
    SHF_WRITE,
    SHN_ABS,
    SHN_COMMON,
    SHN_UNDEF,
    SHT_NOBITS,
    SHT_NOTE,
    SHT_PROGBITS,
    SHT_X86_64_UNWIND,
    STB_GLOBAL,
    STB_WEAK,
    STT_FUNC,
    STT_GNU_IFUNC,
    STT_TLS,
    STV_DEFAULT,
    STV_PROTECTED,
    ObjectFile,
    Relocation,
    Section,
    Symbol,
)
from accy_async.artifact.native.image import (
    PAGE_BYTES,
    SLOT_BYTES,
    MachineImage,
    align_up,
    check_image,
    encode_image,
)
from accy_async.artifact.native.imports import IMPORTABLE
from accy_async.artifact.native.limits import MAX_IMAGE_BYTES, MAX_SECTION_ALIGNMENT
from accy_async.artifact.native.relocate import (
    NONE_KINDS,
    RULES,
    STUB_BYTES,
    Rule,
    RuleError,
    write_stub,
)
from accy_async.artifact.native.signature import decode_signatures
from accy_async.errors import InvalidArtifact, OutOfMemory

__all__ = ["find_exports", "find_signatures", "link_image", "link_object"]

_TEXT, _RODATA, _DATA, _ZEROS = range(4)


def link_object(object_bytes: bytes) -> bytes:
    """Turn a relocatable object into a ``cpu_machine_code`` payload.

    Raises:
        InvalidArtifact: the object is malformed, needs something that is not
            supported (named with its section or symbol), or lacks a kernel that
            its signature section lists.
    """
    parsed = parse_object(object_bytes)
    image = link_image(parsed)
    table = decode_signatures(image.signatures)
    exported = {name for name, _ in image.exports}
    missing = [k.entry_name for k in table.kernels if k.entry_name not in exported]
    if missing:
        raise InvalidArtifact(
            f"object: its signatures list {', '.join(missing)}, which it does not "
            "define"
        )
    if table.architecture != parsed.architecture:
        raise InvalidArtifact(
            f"object: its code is for {parsed.architecture}, its signatures say "
            f"{table.architecture}"
        )
    return encode_image(image)


def find_signatures(parsed: ObjectFile) -> bytes:
    """The bytes of the object's signature section.

    Raises:
        InvalidArtifact: there is none, or more than one, or it is not constant.
    """
    found = [s for s in parsed.sections if s.name == SIGNATURE_SECTION]
    if len(found) != 1:
        raise InvalidArtifact(
            f"object: {len(found)} sections named {SIGNATURE_SECTION}, expected one"
        )
    section = found[0]
    if section.kind != SHT_PROGBITS or section.index in parsed.relocations:
        raise InvalidArtifact(
            f"object: section {SIGNATURE_SECTION} is not plain constant bytes",
            offset=section.header_offset,
        )
    return bytes(section.data)


def find_exports(parsed: ObjectFile) -> dict[str, Symbol]:
    """The global functions that the object defines, by name.

    Raises:
        InvalidArtifact: two have one name.
    """
    exports: dict[str, Symbol] = {}
    for symbol in parsed.symbols:
        if (
            symbol.kind != STT_FUNC
            or symbol.binding not in (STB_GLOBAL, STB_WEAK)
            or symbol.visibility not in (STV_DEFAULT, STV_PROTECTED)
            or not 0 < symbol.section < len(parsed.sections)
        ):
            continue
        section = parsed.sections[symbol.section]
        if not section.flags & SHF_EXECINSTR or symbol.value >= section.size:
            continue
        if symbol.name in exports:
            raise InvalidArtifact(
                f"object: defines {symbol.name!r} twice", offset=symbol.file_offset
            )
        exports[symbol.name] = symbol
    return exports


def link_image(parsed: ObjectFile) -> MachineImage:
    """Link a parsed object; `link_object` says what is refused."""
    return _Linker(parsed).link()


@attrs.define
class _Linker:
    """One object on its way to an image; every offset is from the image's base."""

    parsed: ObjectFile
    places: dict[int, int] = attrs.field(factory=dict)
    stubs: dict[str, int] = attrs.field(factory=dict)
    slots: dict[str | int, int] = attrs.field(factory=dict)
    base_relocations: list[int] = attrs.field(factory=list)

    def link(self) -> MachineImage:
        parsed = self.parsed
        signatures = find_signatures(parsed)
        exports = find_exports(parsed)
        segments = self._sort_sections()
        work = self._collect(segments)
        imports = tuple(name for name in self.slots if isinstance(name, str))
        text_bytes = self._place(segments[_TEXT], 0)
        if imports:
            text_bytes = self._place_stubs(imports, text_bytes)
        page = PAGE_BYTES[parsed.machine]
        got_offset = align_up(text_bytes, page)
        for number, key in enumerate(self.slots):
            self.slots[key] = got_offset + SLOT_BYTES * number
        rodata_end = self._place(
            segments[_RODATA], got_offset + SLOT_BYTES * len(self.slots)
        )
        data_offset = align_up(rodata_end, page)
        data_end = self._place(segments[_DATA], data_offset)
        memory_end = self._place(segments[_ZEROS], data_end)
        try:
            memory = bytearray(data_end)
        except MemoryError:
            raise OutOfMemory(
                f"object: no {data_end} bytes to link it in", requested_bytes=data_end
            ) from None
        for section in (*segments[_TEXT], *segments[_RODATA], *segments[_DATA]):
            place = self.places[section.index]
            memory[place : place + section.size] = section.data
        for name in imports:
            write_stub(parsed.machine, memory, self.stubs[name], self.slots[name])
        self._fill_local_slots(memory)
        for section, relocation, rule in work:
            self._apply(memory, section, relocation, rule)
        image = MachineImage(
            machine=parsed.machine,
            text=bytes(memory[:text_bytes]),
            rodata=bytes(memory[got_offset:rodata_end]),
            data=bytes(memory[data_offset:data_end]),
            zero_bytes=memory_end - data_end,
            got_offset=got_offset,
            imports=imports,
            base_relocations=tuple(sorted(self.base_relocations)),
            exports=tuple(
                sorted(
                    (name, self.places[symbol.section] + symbol.value)
                    for name, symbol in exports.items()
                    if symbol.section in self.places
                )
            ),
            signatures=signatures,
        )
        check_image(image)
        return image

    def _sort_sections(self) -> tuple[list[Section], ...]:
        segments: tuple[list[Section], ...] = ([], [], [], [])
        for section in self.parsed.sections:
            if section.is_allocated and not _is_dropped(section):
                segments[_segment_of(section)].append(section)
        return segments

    def _collect(
        self, segments: tuple[list[Section], ...]
    ) -> list[tuple[Section, Relocation, Rule]]:
        """Look up every relocation's rule, and name the slots that are needed.

        Imports come first and sorted, so that they are one run of slots in an
        order that does not depend on the code.
        """
        machine = self.parsed.machine
        rules, none = RULES[machine], NONE_KINDS[machine]
        loaded = {section.index for segment in segments for section in segment}
        work: list[tuple[Section, Relocation, Rule]] = []
        imported: set[str] = set()
        local: dict[int, None] = {}
        for segment in segments:
            for section in segment:
                for relocation in self.parsed.relocations.get(section.index, ()):
                    if relocation.kind in none:
                        continue
                    rule = rules.get(relocation.kind)
                    if rule is None:
                        raise InvalidArtifact(
                            f"object: section {section.name!r} has a relocation of "
                            f"type {relocation.kind}, which is not supported; compile "
                            "it position-independent, in the small code model",
                            offset=relocation.file_offset,
                        )
                    symbol = self.parsed.symbols[relocation.symbol]
                    if self._check_target(symbol, section, loaded):
                        imported.add(symbol.name)
                    elif rule.target == "slot":
                        local[relocation.symbol] = None
                    work.append((section, relocation, rule))
        self.slots = dict.fromkeys([*sorted(imported), *local], 0)
        return work

    def _check_target(self, symbol: Symbol, section: Section, loaded: set[int]) -> bool:
        """Whether a referenced symbol is an import; raises if it is neither."""
        reason = ""
        if symbol.kind in (STT_TLS, STT_GNU_IFUNC):
            reason = "is thread-local" if symbol.kind == STT_TLS else "is an ifunc"
        elif symbol.section == SHN_COMMON:
            reason = "is a common symbol; compile with -fno-common"
        elif symbol.section == SHN_ABS:
            reason = "is an absolute address"
        elif symbol.section == SHN_UNDEF:
            if symbol.name in IMPORTABLE:
                return True
            reason = "is undefined, and no function that native kernels may call"
        elif symbol.section not in loaded:
            name = self.parsed.sections[symbol.section].name
            reason = f"is in section {name!r}, which is not loaded"
        if reason:
            raise InvalidArtifact(
                f"object: section {section.name!r} refers to symbol {symbol.name!r}, "
                f"which {reason}",
                offset=symbol.file_offset,
            )
        return False

    def _place(self, sections: list[Section], position: int) -> int:
        for section in sections:
            position = align_up(position, section.alignment)
            self.places[section.index] = position
            position += section.size
            if position > MAX_IMAGE_BYTES:
                raise InvalidArtifact(
                    f"object: section {section.name!r} ends at {position} in memory, "
                    f"expected at most {MAX_IMAGE_BYTES}",
                    offset=section.header_offset,
                )
        return position

    def _place_stubs(self, imports: tuple[str, ...], position: int) -> int:
        position = align_up(position, STUB_BYTES)
        for name in imports:
            self.stubs[name] = position
            position += STUB_BYTES
        return position

    def _address(self, symbol: Symbol) -> int:
        if symbol.section == SHN_UNDEF:
            return self.stubs[symbol.name]
        return self.places[symbol.section] + symbol.value

    def _fill_local_slots(self, memory: bytearray) -> None:
        for key, slot in self.slots.items():
            if isinstance(key, int):
                address = self._address(self.parsed.symbols[key])
                memory[slot : slot + SLOT_BYTES] = address.to_bytes(8, "little")
                self.base_relocations.append(slot)

    def _apply(
        self, memory: bytearray, section: Section, relocation: Relocation, rule: Rule
    ) -> None:
        place = self.places[section.index] + relocation.offset
        symbol = self.parsed.symbols[relocation.symbol]
        if rule.target == "slot":
            is_import = symbol.section == SHN_UNDEF
            value = self.slots[symbol.name if is_import else relocation.symbol]
        else:
            value = self._address(symbol)
        try:
            if relocation.offset + rule.width > section.size:
                raise RuleError(f"it ends beyond the section's {section.size} bytes")
            if section.kind == SHT_NOBITS:
                raise RuleError("the section has no bytes to change")
            if relocation.addend and not rule.takes_addend:
                raise RuleError(f"it has addend {relocation.addend}, expected none")
            rule.apply(memory, place, value + relocation.addend)
        except RuleError as error:
            raise InvalidArtifact(
                f"object: {rule.name} at {relocation.offset} of section "
                f"{section.name!r}, to symbol {symbol.name!r}: {error}",
                offset=relocation.file_offset,
            ) from None
        if rule.is_absolute:
            self.base_relocations.append(place)


def _is_dropped(section: Section) -> bool:
    """Sections that describe the code to debuggers, unwinders and linkers."""
    return section.name in (SIGNATURE_SECTION, ".eh_frame") or section.kind in (
        SHT_NOTE,
        SHT_X86_64_UNWIND,
    )


def _segment_of(section: Section) -> int:
    writable = bool(section.flags & SHF_WRITE)
    executable = bool(section.flags & SHF_EXECINSTR)
    reason = ""
    if section.flags & SHF_TLS:
        reason = "is thread-local storage"
    elif section.flags & SHF_COMPRESSED:
        reason = "is compressed"
    elif section.kind not in (SHT_PROGBITS, SHT_NOBITS):
        reason = f"has section type {section.kind:#x}"
    elif writable and executable:
        reason = "is both writable and executable"
    elif section.kind == SHT_NOBITS and not writable:
        reason = "is constant, but has no bytes"
    elif section.alignment > MAX_SECTION_ALIGNMENT:
        reason = f"has alignment {section.alignment}, above {MAX_SECTION_ALIGNMENT}"
    if reason:
        raise InvalidArtifact(
            f"object: section {section.name!r} {reason}, which native kernels may not "
            "have",
            offset=section.header_offset,
        )
    if executable:
        return _TEXT
    if section.kind == SHT_NOBITS:
        return _ZEROS
    # Constants with pointers are written by the loader only, before it seals them.
    is_constant = not writable or section.name.startswith(".data.rel.ro")
    return _RODATA if is_constant else _DATA
