"""Native kernels for the tests: what the kernel form cannot say, written as IR.

Each runs the blocks of its range one after another. Waiting kernels give up
after `PATIENCE` looks and return `GAVE_UP`, so that no test can hang in one.
"""

from __future__ import annotations

import functools

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.kernel import KernelArtifact
from accy_async.artifact.native import (
    SIGNATURE_SECTION,
    SIGNATURE_SYMBOL,
    BufferParameter,
    KernelSignature,
    SignatureTable,
    encode_signatures,
    host_level,
    link_object,
)
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.emit.llvm import data_layout, emit_object
from accy_async.compiler.emit.target import cpu_target
from accy_async.dtypes import DType
from tests.harness.echo import echo_kernel

__all__ = ["GAVE_UP", "PATIENCE", "SIGNATURES", "artifact", "echo_artifact"]

PATIENCE = 20_000_000_000
GAVE_UP = 99

_WORDS = BufferParameter(DType.U32, "read_write")
_READ = BufferParameter(DType.U32, "read_only")
_WRITE = BufferParameter(DType.U32, "write_only")

SIGNATURES = {
    signature.entry_name: signature
    for signature in (
        # w[b] += 1
        KernelSignature("count", (_WORDS,), (), (1, 1, 1)),
        # w[0] = w[0] * 31 + tag
        KernelSignature("mix", (_WORDS,), (DType.U32,), (1, 1, 1)),
        # w[0] = w[0] * 31 + r[0]
        KernelSignature("combine", (_WORDS, _READ), (), (1, 1, 1)),
        # at block `where`: w[0] = 1, then wait until w[1] is not 0
        KernelSignature("gate", (_WORDS,), (DType.U64,), (1, 1, 1)),
        # w[me] = 1, then wait until w[1 - me] is not 0
        KernelSignature("meet", (_WORDS,), (DType.U64,), (1, 1, 1)),
        # log[1 + log[0]++] = tag
        KernelSignature("log", (_WORDS,), (DType.U32,), (1, 1, 1)),
        # the same, and at block `where` gates as `gate` does
        KernelSignature(
            "log_and_gate", (_WORDS, _WORDS), (DType.U32, DType.U64), (1, 1, 1)
        ),
        # returns `code` at block `where`
        KernelSignature("fail", (_WRITE,), (DType.U64, DType.I32), (1, 1, 1)),
        # out[b] = dynamic shared bytes; fills them, and fails if they are not ours
        KernelSignature("shared", (_WRITE,), (), (1, 1, 1)),
        # w[b] = r[b]
        KernelSignature("copy", (_WRITE, _READ), (), (1, 1, 1)),
    )
}

_BODY = """
define internal i32 @wait_for(ptr %word) noinline {
start:
  br label %look
look:
  %looks = phi i64 [ 0, %start ], [ %more, %again ]
  %seen = load atomic i32, ptr %word seq_cst, align 4
  %open = icmp ne i32 %seen, 0
  br i1 %open, label %opened, label %again
again:
  %more = add i64 %looks, 1
  %patient = icmp ult i64 %more, PATIENCE
  br i1 %patient, label %look, label %gave_up
opened:
  ret i32 0
gave_up:
  ret i32 GAVE_UP
}

define internal i32 @pass_gate(ptr %words, i64 %where, i64 %block) {
  %here = icmp eq i64 %where, %block
  br i1 %here, label %knock, label %pass
knock:
  store atomic i32 1, ptr %words seq_cst, align 4
  %second = getelementptr i32, ptr %words, i64 1
  %status = call i32 @wait_for(ptr %second)
  ret i32 %status
pass:
  ret i32 0
}

define internal void @append(ptr %log, i32 %tag) {
  %at = atomicrmw add ptr %log, i32 1 seq_cst
  %wide = zext i32 %at to i64
  %index = add i64 %wide, 1
  %entry = getelementptr i32, ptr %log, i64 %index
  store i32 %tag, ptr %entry
  ret void
}

define internal i32 @count.block(ptr %arguments, ptr %launch, i64 %block) {
  %words = load ptr, ptr %arguments
  %word = getelementptr i32, ptr %words, i64 %block
  %old = load i32, ptr %word
  %new = add i32 %old, 1
  store i32 %new, ptr %word
  ret i32 0
}

define internal i32 @mix.block(ptr %arguments, ptr %launch, i64 %block) {
  %words = load ptr, ptr %arguments
  %slot = getelementptr i64, ptr %arguments, i64 1
  %tag = load i32, ptr %slot
  %old = load i32, ptr %words
  %scaled = mul i32 %old, 31
  %new = add i32 %scaled, %tag
  store i32 %new, ptr %words
  ret i32 0
}

define internal i32 @combine.block(ptr %arguments, ptr %launch, i64 %block) {
  %words = load ptr, ptr %arguments
  %slot = getelementptr ptr, ptr %arguments, i64 1
  %others = load ptr, ptr %slot
  %other = load i32, ptr %others
  %old = load i32, ptr %words
  %scaled = mul i32 %old, 31
  %new = add i32 %scaled, %other
  store i32 %new, ptr %words
  ret i32 0
}

define internal i32 @gate.block(ptr %arguments, ptr %launch, i64 %block) {
  %words = load ptr, ptr %arguments
  %slot = getelementptr i64, ptr %arguments, i64 1
  %where = load i64, ptr %slot
  %status = call i32 @pass_gate(ptr %words, i64 %where, i64 %block)
  ret i32 %status
}

define internal i32 @meet.block(ptr %arguments, ptr %launch, i64 %block) {
  %words = load ptr, ptr %arguments
  %slot = getelementptr i64, ptr %arguments, i64 1
  %me = load i64, ptr %slot
  %mine = getelementptr i32, ptr %words, i64 %me
  store atomic i32 1, ptr %mine seq_cst, align 4
  %you = sub i64 1, %me
  %yours = getelementptr i32, ptr %words, i64 %you
  %status = call i32 @wait_for(ptr %yours)
  ret i32 %status
}

define internal i32 @log.block(ptr %arguments, ptr %launch, i64 %block) {
  %log = load ptr, ptr %arguments
  %slot = getelementptr i64, ptr %arguments, i64 1
  %tag = load i32, ptr %slot
  call void @append(ptr %log, i32 %tag)
  ret i32 0
}

define internal i32 @log_and_gate.block(ptr %arguments, ptr %launch, i64 %block) {
  %log = load ptr, ptr %arguments
  %slot1 = getelementptr i64, ptr %arguments, i64 1
  %words = load ptr, ptr %slot1
  %slot2 = getelementptr i64, ptr %arguments, i64 2
  %tag = load i32, ptr %slot2
  %slot3 = getelementptr i64, ptr %arguments, i64 3
  %where = load i64, ptr %slot3
  call void @append(ptr %log, i32 %tag)
  %status = call i32 @pass_gate(ptr %words, i64 %where, i64 %block)
  ret i32 %status
}

define internal i32 @fail.block(ptr %arguments, ptr %launch, i64 %block) {
  %slot1 = getelementptr i64, ptr %arguments, i64 1
  %where = load i64, ptr %slot1
  %slot2 = getelementptr i64, ptr %arguments, i64 2
  %code = load i32, ptr %slot2
  %here = icmp eq i64 %where, %block
  %status = select i1 %here, i32 %code, i32 0
  ret i32 %status
}

define internal i32 @shared.block(ptr %arguments, ptr %launch, i64 %block) {
start:
  %words = load ptr, ptr %arguments
  %at = getelementptr i8, ptr %launch, i64 40
  %shared = load ptr, ptr %at
  %sized = getelementptr i8, ptr %launch, i64 48
  %size = load i64, ptr %sized
  %short = trunc i64 %size to i32
  %word = getelementptr i32, ptr %words, i64 %block
  store i32 %short, ptr %word
  %address = ptrtoint ptr %shared to i64
  %low = and i64 %address, 63
  %crooked = icmp ne i64 %low, 0
  br i1 %crooked, label %bad, label %fill
fill:
  %i = phi i64 [ 0, %start ], [ %j, %filled ]
  %more = icmp ult i64 %i, %size
  br i1 %more, label %filled, label %check
filled:
  %byte = getelementptr i8, ptr %shared, i64 %i
  %mark = trunc i64 %block to i8
  store volatile i8 %mark, ptr %byte
  %j = add i64 %i, 1
  br label %fill
check:
  %k = phi i64 [ 0, %fill ], [ %l, %same ]
  %left = icmp ult i64 %k, %size
  br i1 %left, label %look, label %good
look:
  %there = getelementptr i8, ptr %shared, i64 %k
  %found = load volatile i8, ptr %there
  %wanted = trunc i64 %block to i8
  %equal = icmp eq i8 %found, %wanted
  br i1 %equal, label %same, label %bad
same:
  %l = add i64 %k, 1
  br label %check
good:
  ret i32 0
bad:
  ret i32 5
}

define internal i32 @copy.block(ptr %arguments, ptr %launch, i64 %block) {
  %words = load ptr, ptr %arguments
  %slot = getelementptr ptr, ptr %arguments, i64 1
  %others = load ptr, ptr %slot
  %from = getelementptr i32, ptr %others, i64 %block
  %to = getelementptr i32, ptr %words, i64 %block
  %value = load i32, ptr %from
  store i32 %value, ptr %to
  ret i32 0
}
"""

_ENTRY = """
define i32 @NAME(ptr %arguments, ptr %launch) {
start:
  %begin_at = getelementptr i8, ptr %launch, i64 24
  %end_at = getelementptr i8, ptr %launch, i64 32
  %begin = load i64, ptr %begin_at
  %end = load i64, ptr %end_at
  br label %loop
loop:
  %block = phi i64 [ %begin, %start ], [ %next, %good ]
  %more = icmp ult i64 %block, %end
  br i1 %more, label %body, label %done
body:
  %status = call i32 @NAME.block(ptr %arguments, ptr %launch, i64 %block)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %bad, label %good
good:
  %next = add i64 %block, 1
  br label %loop
bad:
  ret i32 %status
done:
  ret i32 0
}
"""


@functools.cache
def _object() -> bytes:
    target = cpu_target(host_level())
    table = SignatureTable(
        target.architecture, target.level, tuple(SIGNATURES.values())
    )
    signatures = encode_signatures(table)
    escaped = "".join(f"\\{byte:02X}" for byte in signatures)
    body = _BODY.replace("PATIENCE", str(PATIENCE)).replace("GAVE_UP", str(GAVE_UP))
    module = "\n".join(
        [
            f'target datalayout = "{data_layout(target)}"',
            f'target triple = "{target.triple}"',
            f"@{SIGNATURE_SYMBOL} = constant [{len(signatures)} x i8] "
            f'c"{escaped}", section "{SIGNATURE_SECTION}", align 1',
            body,
            *(_ENTRY.replace("NAME", name) for name in SIGNATURES),
        ]
    )
    return emit_object(module, target)


@functools.cache
def artifact(
    name: str, format: ArtifactFormat = ArtifactFormat.CPU_MACHINE_CODE
) -> KernelArtifact:
    """One of `SIGNATURES` as an artifact."""
    is_object = format is ArtifactFormat.CPU_OBJECT
    payload = _object() if is_object else link_object(_object())
    return _artifact(SIGNATURES[name], payload, format)


@functools.cache
def echo_artifact(dtype: DType) -> KernelArtifact:
    """The kernel of `echo_kernel`."""
    kernel = echo_kernel(dtype)
    payload = compile_cpu([kernel], format="cpu_machine_code")
    return _artifact(kernel.signature, payload, ArtifactFormat.CPU_MACHINE_CODE)


def _artifact(
    signature: KernelSignature, payload: bytes, format: ArtifactFormat
) -> KernelArtifact:
    return KernelArtifact(
        kernel_name=signature.entry_name,
        format=format,
        argument_count=len(signature.buffers) + len(signature.scalars),
        scalar_argument_count=len(signature.scalars),
        payload=payload,
    )
