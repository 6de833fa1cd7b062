from __future__ import annotations

import struct

import pytest

from accy_async.artifact.native import (
    IMPORTABLE,
    MachineImage,
    decode_image,
    link_object,
)
from accy_async.artifact.native.imports import resolve_import
from accy_async.artifact.native.limits import MAX_IMAGE_BYTES
from accy_async.errors import InvalidArtifact, RuntimeUnavailable
from tests.native.arm_words import arm
from tests.native.objects import (
    ABS,
    ALLOC,
    BODY,
    COMMON,
    EM_AARCH64,
    EM_X86_64,
    EXEC,
    FUNC,
    KERNELS,
    LOCAL,
    MINIMAL,
    MINIMAL_KERNELS,
    NOBITS,
    TLS,
    WEAK,
    WRITE,
    Sec,
    Sym,
    compile_ir,
    signature_section,
    text_object,
    write_elf,
)

RODATA = Sec(".rodata", bytes(range(256)), alignment=16)
CONSTANTS = Sym("constants", 3, 0)
CALL = bytes(16)
HERE, THERE = 1, 2  # symbol numbers: the entry, and the first symbol given


def link(payload: bytes) -> MachineImage:
    return decode_image(link_object(payload))


# ------------------------------------------------------------------- x86-64


@pytest.mark.parametrize("kind", [2, 4])
def test_x86_64_relative_32(kind: int) -> None:
    """S + A - P, forward to the rodata and backward to the entry."""
    places = [(0, kind, THERE, 0x20 - 4), (8, kind, HERE, -4)]
    image = link(text_object(CALL, places, [CONSTANTS], others=[RODATA]))
    assert image.rodata_offset == 4096
    assert struct.unpack_from("<i", image.text, 0)[0] == 4096 + 0x20 - 4
    assert struct.unpack_from("<i", image.text, 8)[0] == -4 - 8
    assert image.rodata == RODATA.data


def test_x86_64_relative_64() -> None:
    image = link(text_object(CALL, [(8, 24, THERE, 5)], [CONSTANTS], others=[RODATA]))
    assert struct.unpack_from("<q", image.text, 8)[0] == 4096 + 5 - 8


def test_x86_64_absolute_64() -> None:
    """The word holds the offset from the base, which the loader adds."""
    table = Sec(".data.rel.ro", bytes(16), ALLOC | WRITE, relocations=[(8, 1, 1, 3)])
    image = link(text_object(CALL, others=[table]))
    assert image.rodata == struct.pack("<QQ", 0, 3)
    assert image.base_relocations == (4096 + 8,)
    assert image.data == b""


@pytest.mark.parametrize("kind", [9, 41, 42])
def test_x86_64_slot_of_local_symbol(kind: int) -> None:
    places = [(3, kind, THERE, -4), (11, kind, THERE, -4)]
    image = link(text_object(CALL, places, [CONSTANTS], others=[RODATA]))
    assert struct.unpack_from("<i", image.text, 3)[0] == 4096 - 4 - 3
    assert struct.unpack_from("<i", image.text, 11)[0] == 4096 - 4 - 11
    assert struct.unpack_from("<Q", image.rodata)[0] == 4096 + 16
    assert image.base_relocations == (4096,)
    assert image.imports == ()


def test_x86_64_import() -> None:
    """A call goes to a stub that jumps through the slot; a load uses the slot."""
    places = [(1, 4, THERE, -4), (8, 42, THERE + 1, -4)]
    symbols = [Sym("tanhf"), Sym("expf")]
    image = link(text_object(CALL, places, symbols))
    assert image.imports == ("expf", "tanhf")
    assert image.got_offset == 4096
    assert struct.unpack_from("<i", image.text, 1)[0] == 32 - 4 - 1
    assert struct.unpack_from("<i", image.text, 8)[0] == 4096 - 4 - 8
    # endbr64; jmp *distance(%rip), which counts from the end of the jump
    jump = bytes.fromhex("f30f1efa ff25")
    assert image.text[16:26] == jump + struct.pack("<i", 4096 - 26)
    assert image.text[32:42] == jump + struct.pack("<i", 4104 - 42)
    assert image.rodata == bytes(16)
    assert image.base_relocations == ()


def test_pointer_to_import_goes_to_its_stub() -> None:
    table = Sec(".data.rel.ro", bytes(8), ALLOC | WRITE, relocations=[(0, 1, 2, 0)])
    image = link(text_object(CALL, (), [Sym("expf")], others=[table]))
    assert image.rodata == struct.pack("<QQ", 0, 16)
    assert image.base_relocations == (4096 + 8,)


# ------------------------------------------------------------------- AArch64

ARM_PAGE = 65536
LOADS = {
    278: ("ldrb w0, [x1]", "ldrb w0, [x1, #0x123]", 0x123),
    284: ("ldrh w0, [x1]", "ldrh w0, [x1, #0x122]", 0x122),
    285: ("str w0, [x1]", "str w0, [x1, #0x124]", 0x124),
    286: ("ldr x0, [x1]", "ldr x0, [x1, #0x128]", 0x128),
    299: ("ldr q0, [x1]", "ldr q0, [x1, #0x120]", 0x120),
    277: ("add x0, x1, #0", "add x0, x1, #0x123", 0x123),
}


def link_arm(
    code: str, places: list[tuple[int, int, int, int]], *symbols: Sym
) -> MachineImage:
    payload = text_object(
        arm(code),
        places,
        [CONSTANTS, *symbols],
        EM_AARCH64,
        [Sec(".rodata", bytes(0x6000), alignment=16)],
    )
    return link(payload)


@pytest.mark.parametrize("kind", LOADS)
def test_aarch64_low_12(kind: int) -> None:
    """The words are those that the assembler writes for the final offsets."""
    before, after, offset = LOADS[kind]
    image = link_arm(f"nop\n{before}", [(4, kind, THERE, 0x5000 + offset)])
    assert image.text == arm(f"nop\n{after}")


@pytest.mark.parametrize(
    ("addend", "page"),
    [(0, ARM_PAGE), (0x5FFF, ARM_PAGE + 0x5000), (-1, ARM_PAGE - 4096)],
)
def test_aarch64_page(addend: int, page: int) -> None:
    image = link_arm("nop\nadrp x7, #0", [(4, 275, THERE, addend)])
    assert image.text == arm(f"nop\nadrp x7, #{page}")


@pytest.mark.parametrize(
    ("kind", "word"), [(283, "bl"), (282, "b")], ids=["call", "jump"]
)
def test_aarch64_branch(kind: int, word: str) -> None:
    code = f"{word} #0\nnop\n{word} #0\nnop"
    image = link_arm(code, [(0, kind, HERE, 12), (8, kind, HERE, 0)])
    assert image.text == arm(f"{word} #12\nnop\n{word} #-8\nnop")


def test_aarch64_slot() -> None:
    places = [(0, 311, THERE, 0), (4, 312, THERE, 0)]
    image = link_arm("adrp x3, #0\nldr x3, [x3]", places)
    assert image.text == arm(f"adrp x3, #{ARM_PAGE}\nldr x3, [x3]")
    assert struct.unpack_from("<Q", image.rodata)[0] == ARM_PAGE + 16
    assert image.base_relocations == (ARM_PAGE,)


def test_aarch64_second_slot_and_import() -> None:
    places = [(0, 311, THERE, 0), (4, 312, THERE, 0), (8, 283, THERE + 1, 0)]
    image = link_arm("adrp x3, #0\nldr x3, [x3]\nbl #0\nret", places, Sym("expf"))
    wanted = f"""
        adrp x3, #{ARM_PAGE}
        ldr x3, [x3, #8]
        bl #8
        ret
        bti c
        adrp x16, #{ARM_PAGE}
        ldr x17, [x16]
        br x17
    """
    assert image.text == arm(wanted)
    assert image.imports == ("expf",)


def test_aarch64_data_words() -> None:
    relocations = [(0, 257, 1, 4), (8, 260, 1, 0), (16, 261, 1, 0), (20, 314, 1, 4)]
    table = Sec(".data.rel.ro", bytes(24), ALLOC | WRITE, relocations=relocations)
    payload = text_object(bytes(8), (), (), EM_AARCH64, [table])
    image = link(payload)
    assert struct.unpack("<Qqii", image.rodata) == (
        4,
        -ARM_PAGE - 8,
        -ARM_PAGE - 16,
        -ARM_PAGE - 20 + 4,
    )
    assert image.base_relocations == (ARM_PAGE,)


@pytest.mark.parametrize(
    ("code", "place", "message"),
    [
        ("nop", (0, 283, 1, 0), "CALL26 at 0 of section '.text', to symbol 'entry': "),
        ("nop", (0, 275, 1, 0), "is no ADRP"),
        ("nop", (0, 277, 1, 0), "is no ADD of an immediate"),
        ("nop", (0, 285, 1, 0), "is no load or store"),
        ("bl #0", (0, 283, 1, 2), "distance 2 is no multiple of 4"),
        ("bl #0", (0, 283, 1, 1 << 27), "does not fit 28 signed bits"),
        ("bl #0", (0, 283, 1, -(1 << 27) - 4), "does not fit 28 signed bits"),
        ("adrp x0, #0", (0, 275, 1, 1 << 32), "does not fit 33 signed bits"),
        ("ldr x0, [x1]", (0, 286, 1, 4), "offset 4 is no multiple of 8"),
        ("nop\nbl #0", (2, 283, 1, 0), "not aligned to 4 bytes"),
        ("nop", (2, 261, 1, 0), "ends beyond the section's 4 bytes"),
        ("adrp x0, #0", (0, 311, 1, 8), "addend 8, expected none"),
        ("nop", (0, 263, 1, 0), "relocation of type 263, which is not supported"),
        ("nop", (0, 541, 1, 0), "relocation of type 541, which is not supported"),
    ],
)
def test_aarch64_wrong_relocation(
    code: str, place: tuple[int, int, int, int], message: str
) -> None:
    payload = text_object(arm(code), [place], (), EM_AARCH64)
    with pytest.raises(InvalidArtifact, match=message) as caught:
        link_object(payload)
    assert caught.value.offset is not None


@pytest.mark.parametrize("optimize", [0, 2])
def test_aarch64_object_links(optimize: int) -> None:
    image = link(compile_ir(BODY, KERNELS, "aarch64", optimize=optimize))
    assert image.imports == ("expf", "memset", "tanhf")
    assert image.zero_bytes >= 1200
    assert image.data == struct.pack("<i", 40)


# ----------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            (0, 2, 1, 1 << 31),
            "R_X86_64_PC32 at 0 of section '.text', to symbol 'entry'",
        ),
        ((0, 2, 1, 1 << 31), "distance 2147483648 does not fit 32 signed bits"),
        ((0, 24, 1, (1 << 63) - 1), None),
        ((14, 2, 1, 0), "ends beyond the section's 16 bytes"),
        ((9, 1, 1, 0), "ends beyond the section's 16 bytes"),
        ((0, 10, 1, 0), "section '.text' has a relocation of type 10, which is not"),
        ((0, 11, 1, 0), "relocation of type 11, which is not supported; compile it"),
        ((0, 19, 1, 0), "relocation of type 19"),
        ((0, 9999, 1, 0), "relocation of type 9999"),
        ((0, 2, 0, 0), "symbol '', which is undefined"),
        ((0, 0, 0, 0), None),
    ],
)
def test_x86_64_wrong_relocation(
    place: tuple[int, int, int, int], message: str | None
) -> None:
    payload = text_object(CALL, [place])
    if message is None:
        link_object(payload)
        return
    with pytest.raises(InvalidArtifact, match=message) as caught:
        link_object(payload)
    assert caught.value.offset is not None


def test_overlapping_base_relocations() -> None:
    payload = text_object(CALL, [(0, 1, 1, 0), (4, 1, 1, 0)])
    with pytest.raises(InvalidArtifact, match="base relocation at 4 overlaps another"):
        link_object(payload)


@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        (Sym("system"), "'system', which is undefined, and no function that native"),
        (Sym("printf", binding=WEAK), "'printf', which is undefined"),
        (Sym("shared", COMMON, 8), "common symbol; compile with -fno-common"),
        (Sym("fixed", ABS, 4096), "'fixed', which is an absolute address"),
        (Sym("tls", 1, 0, kind=6), "'tls', which is thread-local"),
        (Sym("expf", kind=6), "'expf', which is thread-local"),
        (Sym("chosen", 1, 0, kind=10), "'chosen', which is an ifunc"),
        (Sym("described", 2), "in section '.accy.kernels', which is not loaded"),
        (Sym("debug", 3), "in section '.debug_info', which is not loaded"),
        (Sym("unwind", 4), "in section '.eh_frame', which is not loaded"),
    ],
)
def test_symbol_that_kernels_may_not_use(symbol: Sym, message: str) -> None:
    others = [Sec(".debug_info", bytes(8), 0), Sec(".eh_frame", bytes(8))]
    with pytest.raises(InvalidArtifact, match=message):
        link_object(text_object(CALL, [(0, 2, THERE, 0)], [symbol], others=others))
    link_object(text_object(CALL, (), [symbol], others=others))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (Sec(".tdata", bytes(8), ALLOC | WRITE | TLS), "'.tdata' is thread-local"),
        (Sec(".both", bytes(8), ALLOC | WRITE | EXEC), "both writable and executable"),
        (Sec(".zip", bytes(8), ALLOC | 0x800), "'.zip' is compressed"),
        (Sec(".init_array", bytes(8), ALLOC | WRITE, 14), "has section type 0xe"),
        (Sec(".holes", b"", ALLOC, NOBITS, 8), "is constant, but has no bytes"),
        (Sec(".far", bytes(8), alignment=8192), "has alignment 8192, above 4096"),
        (
            Sec(".bss", b"", ALLOC | WRITE, NOBITS, 8, relocations=[(0, 1, 1, 0)]),
            "the section has no bytes to change",
        ),
        (
            Sec(".bss", b"", ALLOC | WRITE, NOBITS, MAX_IMAGE_BYTES - 4000),
            "section '.bss' ends at 268435552 in memory",
        ),
    ],
)
def test_section_that_kernels_may_not_have(section: Sec, message: str) -> None:
    with pytest.raises(InvalidArtifact, match=message):
        link_object(text_object(CALL, others=[section]))


def test_sections_that_describe_are_dropped() -> None:
    """Unwind tables and notes go, with relocations that could not be applied."""
    unwind = [(0, 9999, 1, 0)]
    others = [
        Sec(".eh_frame", bytes(8), relocations=unwind),
        Sec(".unwind", bytes(8), ALLOC, 0x70000001, relocations=unwind),
        Sec(".note.gnu.property", bytes(8), ALLOC, 7),
        Sec(".comment", b"compiler", 0),
    ]
    assert link(text_object(CALL, others=others)) == link(text_object(CALL))


def test_alignment_of_sections_is_kept() -> None:
    others = [
        Sec(".rodata.a", b"a"),
        Sec(".rodata.b", b"b" * 8, alignment=64),
        Sec(".data", b"d", ALLOC | WRITE),
        Sec(".bss", b"", ALLOC | WRITE, NOBITS, 40, alignment=32),
    ]
    image = link(text_object(CALL, others=others))
    assert image.rodata == b"a" + bytes(63) + b"b" * 8
    assert image.data == b"d"
    assert image.zero_bytes == 31 + 40


def test_no_signatures() -> None:
    code = Sec(".text", CALL, ALLOC | EXEC)
    with pytest.raises(InvalidArtifact, match=r"0 sections named \.accy\.kernels"):
        link_object(write_elf([code], [Sym("entry", 1, 0, FUNC)]))


def test_signatures_twice() -> None:
    with pytest.raises(InvalidArtifact, match=r"2 sections named \.accy\.kernels"):
        link_object(text_object(CALL, others=[signature_section()]))


def test_signatures_of_another_architecture() -> None:
    code = Sec(".text", CALL, ALLOC | EXEC)
    sections = [code, signature_section("aarch64")]
    payload = write_elf(sections, [Sym("entry", 1, 0, FUNC)], EM_X86_64)
    with pytest.raises(InvalidArtifact, match="for x86_64, its signatures say aarch64"):
        link_object(payload)


@pytest.mark.parametrize(
    "symbol",
    [
        Sym("entry", 1, 0, FUNC, LOCAL),
        Sym("entry", 1, 0, FUNC, visibility=2),
        Sym("entry", 1, 0, 1),
        Sym("entry", 1, 16, FUNC),
        Sym("entry", 3, 0, FUNC),
        Sym("entry", ABS, 0, FUNC),
    ],
    ids=["local", "hidden", "object", "at-end", "in-rodata", "absolute"],
)
def test_entry_that_is_no_function_in_text(symbol: Sym) -> None:
    sections = [Sec(".text", CALL, ALLOC | EXEC), signature_section(), RODATA]
    with pytest.raises(InvalidArtifact, match="list entry, which it does not define"):
        link_object(write_elf(sections, [symbol]))


def test_function_defined_twice() -> None:
    with pytest.raises(InvalidArtifact, match="defines 'entry' twice"):
        link_object(text_object(CALL, (), [Sym("entry", 1, 8, FUNC)]))


def test_undefined_function_is_named() -> None:
    body = (
        MINIMAL
        + "\ndeclare i32 @getpid()\n"
        + ("define i32 @other() { %r = call i32 @getpid() ret i32 %r }")
    )
    with pytest.raises(InvalidArtifact, match="symbol 'getpid', which is undefined"):
        link_object(compile_ir(body, MINIMAL_KERNELS))


# ------------------------------------------------------------------- imports


def test_every_listed_function_is_found_or_named() -> None:
    """Arithmetic that C17 has is everywhere; newer helpers may be missing."""
    missing: dict[str, str] = {}
    for name in sorted(IMPORTABLE):
        try:
            assert resolve_import(name) == resolve_import(name) > 0
        except RuntimeUnavailable as error:
            missing[name] = str(error)
    assert all(name in message for name, message in missing.items())
    optional = {
        "exp10",
        "exp10f",
        "roundeven",
        "roundevenf",
        "sincos",
        "sincosf",
        "bcmp",
    }
    assert all(name.startswith("__") or name in optional for name in missing)


def test_function_that_is_not_listed() -> None:
    with pytest.raises(InvalidArtifact, match="'system' is no function"):
        resolve_import("system")
