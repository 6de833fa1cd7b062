"""Objects for the tests: compiled with LLVM from IR, or put together by hand.

LLVM writes what compilers write; the hand-made ones hold what no compiler would,
and have layouts so plain that the linked words can be worked out on paper.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import attrs
import llvmlite.binding as llvm

from accy_async.artifact.native import (
    BufferParameter,
    KernelSignature,
    SignatureTable,
    encode_signatures,
)
from accy_async.dtypes import DType

EM_X86_64, EM_AARCH64 = 62, 183
PROGBITS, NOBITS = 1, 8
ALLOC, WRITE, EXEC, TLS = 2, 1, 4, 0x400
FUNC, OBJECT, NOTYPE = 2, 1, 0
GLOBAL, LOCAL, WEAK = 1, 0, 2
UNDEF, COMMON, ABS = 0, 0xFFF2, 0xFFF1

TARGETS = {
    "x86_64": ("x86_64-unknown-linux-gnu", "x86-64", "x86-64-v1"),
    "aarch64": ("aarch64-unknown-linux-gnu", "generic", "armv8-a"),
}

F32_IN = BufferParameter(DType.F32, "read_only")
F32_OUT = BufferParameter(DType.F32, "write_only")
KERNELS = (
    KernelSignature("transform", (F32_IN, F32_OUT), (DType.F32,), (1, 1, 1)),
    KernelSignature("dispatch", (F32_IN, F32_OUT), (), (1, 1, 1)),
    KernelSignature("vectors", (F32_IN, F32_OUT), (), (1, 1, 1)),
    KernelSignature("count", (F32_OUT,), (), (1, 1, 1)),
)

# transform: y[b] = a * exp(x[b]) + weights[b % 8], through an internal function.
# dispatch: y[b] = (b even ? exp : tanh)(x[b]), through a table of pointers.
# vectors: y[0:4] = x[0:4] * (1, 2, 3, 4) + (.5, .25, .125, 2), and y[4:12] = 0.
# count: y[0] = how often it ran since it was loaded, y[1] = the same in zeroed data.
BODY = """
@weights = constant [8 x float] [float 1.0, float 2.0, float 3.0, float 4.0,
                                 float 5.0, float 6.0, float 7.0, float 8.0]
@functions = internal constant [2 x ptr] [ptr @expf, ptr @tanhf]
@counter = internal global i32 40
@zeroed = internal global [300 x i32] zeroinitializer

declare float @expf(float)
declare float @tanhf(float)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal float @scaled(float %x, float %a) noinline {
  %e = call float @expf(float %x)
  %r = fmul float %e, %a
  ret float %r
}

define i32 @transform(ptr %args, ptr %launch) {
entry:
  %x = load ptr, ptr %args
  %y.slot = getelementptr i8, ptr %args, i64 8
  %y = load ptr, ptr %y.slot
  %a.slot = getelementptr i8, ptr %args, i64 16
  %a = load float, ptr %a.slot
  %begin.at = getelementptr i8, ptr %launch, i64 24
  %begin = load i64, ptr %begin.at
  %end.at = getelementptr i8, ptr %launch, i64 32
  %end = load i64, ptr %end.at
  br label %loop
loop:
  %b = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp ult i64 %b, %end
  br i1 %more, label %body, label %done
body:
  %x.at = getelementptr float, ptr %x, i64 %b
  %v = load float, ptr %x.at
  %s = call float @scaled(float %v, float %a)
  %i = and i64 %b, 7
  %w.at = getelementptr float, ptr @weights, i64 %i
  %w = load float, ptr %w.at
  %r = fadd float %s, %w
  %y.at = getelementptr float, ptr %y, i64 %b
  store float %r, ptr %y.at
  %next = add i64 %b, 1
  br label %loop
done:
  ret i32 0
}

define i32 @dispatch(ptr %args, ptr %launch) {
  %x = load ptr, ptr %args
  %y.slot = getelementptr i8, ptr %args, i64 8
  %y = load ptr, ptr %y.slot
  %begin.at = getelementptr i8, ptr %launch, i64 24
  %b = load i64, ptr %begin.at
  %i = and i64 %b, 1
  %f.at = getelementptr ptr, ptr @functions, i64 %i
  %f = load ptr, ptr %f.at
  %x.at = getelementptr float, ptr %x, i64 %b
  %v = load float, ptr %x.at
  %r = call float %f(float %v)
  %y.at = getelementptr float, ptr %y, i64 %b
  store float %r, ptr %y.at
  ret i32 5
}

define i32 @vectors(ptr %args, ptr %launch) {
  %x = load ptr, ptr %args
  %y.slot = getelementptr i8, ptr %args, i64 8
  %y = load ptr, ptr %y.slot
  %v = load <4 x float>, ptr %x, align 4
  %p = fmul <4 x float> %v, <float 1.0, float 2.0, float 3.0, float 4.0>
  %r = fadd <4 x float> %p, <float 0.5, float 0.25, float 0.125, float 2.0>
  store <4 x float> %r, ptr %y, align 4
  %rest = getelementptr float, ptr %y, i64 4
  %n.at = getelementptr i8, ptr %launch, i64 32
  %n = load i64, ptr %n.at
  %bytes = mul i64 %n, 32
  call void @llvm.memset.p0.i64(ptr %rest, i8 0, i64 %bytes, i1 false)
  ret i32 0
}

define i32 @count(ptr %args, ptr %launch) {
  %y = load ptr, ptr %args
  %old = load i32, ptr @counter
  %new = add i32 %old, 1
  store i32 %new, ptr @counter
  %z.at = getelementptr i32, ptr @zeroed, i64 299
  %z.old = load i32, ptr %z.at
  %z.new = add i32 %z.old, 1
  store i32 %z.new, ptr %z.at
  %f = sitofp i32 %new to float
  store float %f, ptr %y
  %g = sitofp i32 %z.new to float
  %y1 = getelementptr float, ptr %y, i64 1
  store float %g, ptr %y1
  ret i32 0
}
"""

MINIMAL = "define i32 @entry(ptr %args, ptr %launch) { ret i32 3 }"
MINIMAL_KERNELS = (KernelSignature("entry", (), (), (1, 1, 1)),)


@functools.cache
def _start_llvm() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def compile_ir(
    body: str = BODY,
    kernels: tuple[KernelSignature, ...] = KERNELS,
    architecture: str = "x86_64",
    *,
    level: str | None = None,
    reloc: str = "pic",
    optimize: int = 2,
) -> bytes:
    """The object that LLVM makes of IR, with its signature section."""
    _start_llvm()
    triple, cpu, baseline = TARGETS[architecture]
    table = SignatureTable(architecture, level or baseline, kernels)
    described = encode_signatures(table)
    escaped = "".join(f"\\{byte:02x}" for byte in described)
    section = (
        f"@accy_kernel_signatures = constant [{len(described)} x i8] "
        f'c"{escaped}", section ".accy.kernels"\n'
    )
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(
        cpu=cpu, opt=optimize, reloc=reloc, codemodel="small"
    )
    module = llvm.parse_assembly(section + body)
    module.triple = triple
    module.data_layout = str(machine.target_data)
    module.verify()
    return bytes(machine.emit_object(module))


def host_object(host: str) -> bytes:
    """The object of `BODY` for an architecture."""
    return compile_ir(architecture=host)


@attrs.frozen
class Sec:
    """A section to be written; ``relocations`` are (offset, kind, symbol, addend)."""

    name: str
    data: bytes = b""
    flags: int = ALLOC
    kind: int = PROGBITS
    size: int | None = None
    alignment: int = 1
    relocations: Sequence[tuple[int, int, int, int]] = ()


@attrs.frozen
class Sym:
    """A symbol to be written; ``section`` counts the given sections from 1."""

    name: str
    section: int = UNDEF
    value: int = 0
    kind: int = NOTYPE
    binding: int = GLOBAL
    visibility: int = 0


def write_elf(
    sections: Sequence[Sec],
    symbols: Sequence[Sym] = (),
    machine: int = EM_X86_64,
    elf_type: int = 1,
) -> bytes:
    """An object of the sections, the symbols (from number 1 on), and their tables."""
    names = bytearray(b"\0")

    def name(text: str) -> int:
        names.extend(text.encode() + b"\0")
        return len(names) - len(text.encode()) - 1

    body = bytearray(64)
    headers = [bytes(64)]
    relocation_headers: list[tuple[int, int, int, int]] = []
    for number, section in enumerate(sections, 1):
        size = len(section.data) if section.size is None else section.size
        headers.append(
            struct.pack(
                "<IIQQQQIIQQ",
                name(section.name),
                section.kind,
                section.flags,
                0,
                len(body),
                size,
                0,
                0,
                section.alignment,
                0,
            )
        )
        body += section.data
        if section.relocations:
            entries = b"".join(
                struct.pack("<QQq", offset, symbol << 32 | kind, addend)
                for offset, kind, symbol, addend in section.relocations
            )
            label = name(".rela" + section.name)
            relocation_headers.append((label, len(body), len(entries), number))
            body += entries
    symbol_table = len(sections) + len(relocation_headers) + 1
    for label, offset, size, number in relocation_headers:
        headers.append(
            struct.pack(
                "<IIQQQQIIQQ", label, 4, 0, 0, offset, size, symbol_table, number, 8, 24
            )
        )
    table = bytes(24) + b"".join(
        struct.pack(
            "<IBBHQQ",
            name(symbol.name),
            symbol.binding << 4 | symbol.kind,
            symbol.visibility,
            symbol.section,
            symbol.value,
            0,
        )
        for symbol in symbols
    )
    label, names_label = name(".symtab"), name(".strtab")
    headers.append(
        struct.pack(
            "<IIQQQQIIQQ",
            *(label, 2, 0, 0, len(body), len(table), symbol_table + 1, 1, 8, 24),
        )
    )
    body += table
    headers.append(
        struct.pack(
            "<IIQQQQIIQQ", names_label, 3, 0, 0, len(body), len(names), 0, 0, 1, 0
        )
    )
    body += names
    struct.pack_into(
        "<16sHHIQQQIHHHHHH",
        body,
        0,
        b"\x7fELF\x02\x01\x01",
        *(elf_type, machine, 1, 0, 0, len(body), 0, 64, 0, 0, 64, len(headers)),
        symbol_table + 1,
    )
    return bytes(body) + b"".join(headers)


def signature_section(
    architecture: str = "x86_64", level: str | None = None, name: str = "entry"
) -> Sec:
    """The signature section of one kernel without parameters."""
    table = SignatureTable(
        architecture,
        level or TARGETS[architecture][2],
        (KernelSignature(name, (), (), (1, 1, 1)),),
    )
    return Sec(".accy.kernels", encode_signatures(table))


def text_object(
    code: bytes,
    relocations: Sequence[tuple[int, int, int, int]] = (),
    symbols: Sequence[Sym] = (),
    machine: int = EM_X86_64,
    others: Sequence[Sec] = (),
) -> bytes:
    """An object of text (section 1), signatures (section 2) and other sections.

    Symbol 1 is ``entry`` at the text's beginning; those given follow.
    """
    architecture = "x86_64" if machine == EM_X86_64 else "aarch64"
    text = Sec(".text", code, ALLOC | EXEC, alignment=16, relocations=relocations)
    entry = Sym("entry", 1, 0, FUNC)
    return write_elf(
        [text, signature_section(architecture), *others], [entry, *symbols], machine
    )
