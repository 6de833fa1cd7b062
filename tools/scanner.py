"""Makes the machine code of the scanner: ``python -m tools.scanner``.

The scanner is what notices that a GPU has written an awaited word, on a thread that
needs no interpreter for it; docs/waiting.md says why and how. It is kept as machine
code, in accy_async/backends/cuda/scanner_code.py, so that waiting loads no compiler.
This is its source, and what compiles it for every architecture.

All memory that it shares with Python is one *board*, described field by field in
accy_async/backends/cuda/board.py; the offsets here are asked of that module. It calls
three functions of the C library, through pointers on the board. What makes a launch
with a flag behind it is compiled along with it.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import attrs
import llvmlite.binding

from accy_async.artifact.native.elf import parse_object
from accy_async.artifact.native.link import find_exports
from accy_async.backends.cuda.board import (
    BUSY,
    IDLE,
    NO_STREAM,
    Board,
    NativeLaunch,
    Slot,
)
from accy_async.compiler.emit.llvm import data_layout, emit_object
from accy_async.compiler.emit.target import LEVELS, CpuTarget

__all__ = [
    "ARCHITECTURES",
    "TARGET_FILE",
    "Code",
    "compile_scanner",
    "llvm_version",
    "render",
]

TARGET_FILE = Path(__file__).parent.parent / "accy_async/backends/cuda/scanner_code.py"
ARCHITECTURES = {"x86_64": LEVELS["x86-64-v1"], "aarch64": LEVELS["armv8-a"]}

_FUTEX_CALL = {"x86_64": 202, "aarch64": 98}
"""The number of the system call: Linux, arch/*/include/.../unistd.h."""

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "@llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "@llvm.aarch64.hint(i32 1)"),
}

_SOURCE = """
%timespec = type {{ i64, i64 }}
{declare_pause}

; The monotonic clock, in nanoseconds.
define internal i64 @now(ptr %board) alwaysinline {{
    %time = alloca %timespec
    %slot = getelementptr i8, ptr %board, i64 {clock_gettime}
    %clock = load ptr, ptr %slot
    %ignored = call i32 %clock(i32 1, ptr %time)  ; CLOCK_MONOTONIC
    %seconds = load i64, ptr %time
    %part = getelementptr i8, ptr %time, i64 8
    %rest = load i64, ptr %part
    %whole = mul i64 %seconds, 1000000000
    %sum = add i64 %whole, %rest
    ret i64 %sum
}}

; Sleep until somebody kicks the board; for pause nanoseconds at most if it is not
; negative. Returns at once if the board was kicked since %seen was read.
define internal void @sleep(ptr %board, i32 %seen, i64 %pause) alwaysinline {{
entry:
    %time = alloca %timespec
    %asleep = getelementptr i8, ptr %board, i64 {is_asleep}
    %number = getelementptr i8, ptr %board, i64 {syscall}
    %system = load ptr, ptr %number
    %seconds = udiv i64 %pause, 1000000000
    %rest = urem i64 %pause, 1000000000
    store i64 %seconds, ptr %time
    %part = getelementptr i8, ptr %time, i64 8
    store i64 %rest, ptr %part
    %is_endless = icmp slt i64 %pause, 0
    %limit = select i1 %is_endless, ptr null, ptr %time
    %wide = zext i32 %seen to i64
    store atomic i32 1, ptr %asleep seq_cst, align 4
    ; FUTEX_WAIT_PRIVATE is 128
    %ignored = call i64 (i64, ...) %system(i64 {futex}, ptr %board, i64 128,
                                           i64 %wide, ptr %limit, ptr null, i64 0)
    store atomic i32 0, ptr %asleep seq_cst, align 4
    ret void
}}

; Have the scanner look at the board anew, from any thread.
define internal void @kick(ptr %board) alwaysinline {{
    %before = atomicrmw add ptr %board, i32 1 seq_cst, align 4
    %place = getelementptr i8, ptr %board, i64 {is_asleep}
    %asleep = load atomic i32, ptr %place seq_cst, align 4
    %is_awake = icmp eq i32 %asleep, 0
    br i1 %is_awake, label %end, label %wake
wake:
    %number = getelementptr i8, ptr %board, i64 {syscall}
    %system = load ptr, ptr %number
    ; FUTEX_WAKE_PRIVATE is 129
    %ignored = call i64 (i64, ...) %system(i64 {futex}, ptr %board, i64 129, i64 1,
                                           ptr null, ptr null, i64 0)
    br label %end
end:
    ret void
}}

define void @accy_kick(ptr %board) {{
    call void @kick(ptr %board)
    ret void
}}

; Await a value in a word, in place of what was awaited there.
define void @accy_arm(ptr %board, i64 %index, i64 %awaited, i64 %near, i64 %late,
                      i32 %bell) {{
    %offset = mul i64 %index, {slot_bytes}
    %from = add i64 %offset, {slots}
    %slot = getelementptr i8, ptr %board, i64 %from
    %p_near = getelementptr i8, ptr %slot, i64 {near}
    %p_late = getelementptr i8, ptr %slot, i64 {late}
    %p_bell = getelementptr i8, ptr %slot, i64 {bell}
    store atomic i64 %near, ptr %p_near monotonic, align 8
    store atomic i64 %late, ptr %p_late monotonic, align 8
    store atomic i32 %bell, ptr %p_bell monotonic, align 4
    store atomic i64 %awaited, ptr %slot release, align 8
    call void @kick(ptr %board)
    ret void
}}

; Tell the scanner to end; 0 once it reads no word any more.
define i32 @accy_end(ptr %board) {{
    %place = getelementptr i8, ptr %board, i64 {must_end}
    store atomic i32 1, ptr %place seq_cst, align 4
    call void @kick(ptr %board)
    %scanning = getelementptr i8, ptr %board, i64 {is_scanning}
    %answer = load atomic i32, ptr %scanning seq_cst, align 4
    ret i32 %answer
}}

; Read a word until it has reached a value, for so long; 1 if it has. Not at all once
; the board has ended, as the words may be gone.
define i32 @accy_spin(ptr %board, ptr %word, i64 %awaited, i64 %limit) {{
entry:
    %place = getelementptr i8, ptr %board, i64 {must_end}
    %end = load atomic i32, ptr %place seq_cst, align 4
    %has_ended = icmp ne i32 %end, 0
    br i1 %has_ended, label %missed, label %try
try:
    %first = load atomic i64, ptr %word acquire, align 8
    %is_there = icmp uge i64 %first, %awaited
    br i1 %is_there, label %reached, label %begin
begin:
    %begun = call i64 @now(ptr %board)
    %until = add i64 %begun, %limit
    br label %look
look:
    call void {pause}
    %value = load atomic i64, ptr %word acquire, align 8
    %is_here = icmp uge i64 %value, %awaited
    br i1 %is_here, label %reached, label %check
check:
    %time = call i64 @now(ptr %board)
    %is_over = icmp sge i64 %time, %until
    br i1 %is_over, label %missed, label %look
reached:
    ret i32 1
missed:
    ret i32 0
}}

; Make a launch, and where a position is given have its stream write it behind that,
; once. Returns the driver's answer to the launch, and where that is 0, less what it
; answers to the writing.
define internal i32 @launch(ptr %record) alwaysinline {{
    %p_position = getelementptr i8, ptr %record, i64 {position}
    %position = load i64, ptr %p_position
    store i64 0, ptr %p_position
    %p_launch = getelementptr i8, ptr %record, i64 {launch}
    %p_first = getelementptr i8, ptr %record, i64 {first}
    %p_second = getelementptr i8, ptr %record, i64 {second}
    %p_third = getelementptr i8, ptr %record, i64 {third}
    %launch = load ptr, ptr %p_launch
    %first = load i64, ptr %p_first
    %second = load i64, ptr %p_second
    %third = load i64, ptr %p_third
    %answer = call i32 %launch(i64 %first, i64 %second, i64 %third, i64 0)
    %is_refused = icmp ne i32 %answer, 0
    %is_plain = icmp eq i64 %position, 0
    %is_over = or i1 %is_refused, %is_plain
    br i1 %is_over, label %end, label %flag
flag:
    %p_write = getelementptr i8, ptr %record, i64 {write_value}
    %p_stream = getelementptr i8, ptr %record, i64 {on}
    %p_word = getelementptr i8, ptr %record, i64 {word}
    %write = load ptr, ptr %p_write
    %stream = load i64, ptr %p_stream
    %word = load i64, ptr %p_word
    %written = call i32 %write(i64 %stream, i64 %word, i64 %position, i32 0)
    %less = sub i32 0, %written
    ret i32 %less
end:
    ret i32 %answer
}}

; The same as a builtin of Python calls it: without the interpreter lock meanwhile, and
; the answer is a number of Python's.
define ptr @accy_launch(ptr %record) {{
    %p_leave = getelementptr i8, ptr %record, i64 {leave}
    %p_enter = getelementptr i8, ptr %record, i64 {enter}
    %p_number = getelementptr i8, ptr %record, i64 {number}
    %leave = load ptr, ptr %p_leave
    %enter = load ptr, ptr %p_enter
    %number = load ptr, ptr %p_number
    %thread = call ptr %leave()
    %answer = call i32 @launch(ptr %record)
    call void %enter(ptr %thread)
    %wide = sext i32 %answer to i64
    %object = call ptr %number(i64 %wide)
    ret ptr %object
}}

; Ask the driver about a slot's stream for a moment, as long as the board says: again
; and again until it answers something else than that the stream is busy. Returns its
; last answer; unasked that the stream is busy, where there is none to be asked about.
; Whoever asks is counted, so that nobody destroys the stream meanwhile.
define i32 @accy_ask(ptr %board, i64 %index, ptr %query) {{
entry:
    %offset = mul i64 %index, {slot_bytes}
    %from = add i64 %offset, {slots}
    %slot = getelementptr i8, ptr %board, i64 %from
    %p_askers = getelementptr i8, ptr %slot, i64 {askers}
    %p_stream = getelementptr i8, ptr %slot, i64 {stream}
    %p_quick = getelementptr i8, ptr %board, i64 {quick}
    %quick = load i64, ptr %p_quick
    %others = atomicrmw add ptr %p_askers, i32 1 seq_cst, align 4
    br label %look
look:
    %until = phi i64 [ 0, %entry ], [ %limit, %begin ], [ %until, %check ]
    %stream = load atomic i64, ptr %p_stream seq_cst, align 8
    %is_barred = icmp eq i64 %stream, {no_stream}
    br i1 %is_barred, label %leave, label %question
question:
    %answer = call i32 %query(i64 %stream)
    %is_busy = icmp eq i32 %answer, {busy}
    br i1 %is_busy, label %again, label %leave
again:
    %time = call i64 @now(ptr %board)
    %is_first = icmp eq i64 %until, 0
    br i1 %is_first, label %begin, label %check
begin:
    %limit = add i64 %time, %quick
    br label %look
check:
    %is_over = icmp sge i64 %time, %until
    br i1 %is_over, label %leave, label %look
leave:
    %last = phi i32 [ {busy}, %look ], [ %answer, %question ], [ {busy}, %check ]
    %ignored = atomicrmw sub ptr %p_askers, i32 1 seq_cst, align 4
    ret i32 %last
}}

; Have nobody ask about a slot's stream any more; 0 once nobody does.
define i32 @accy_bar(ptr %board, i64 %index) {{
    %offset = mul i64 %index, {slot_bytes}
    %from = add i64 %offset, {slots}
    %slot = getelementptr i8, ptr %board, i64 %from
    %p_askers = getelementptr i8, ptr %slot, i64 {askers}
    %p_stream = getelementptr i8, ptr %slot, i64 {stream}
    store atomic i64 {no_stream}, ptr %p_stream seq_cst, align 8
    %askers = load atomic i32, ptr %p_askers seq_cst, align 4
    ret i32 %askers
}}

; Watch the board. Returns 0 where it was told to, 1 where a value was reached for
; which there is no bell, 2 after %timeout nanoseconds in which something was awaited.
define i32 @accy_scan(ptr %board, i64 %timeout) {{
entry:
    %one = alloca i64
    store i64 1, ptr %one
    %scanning = getelementptr i8, ptr %board, i64 {is_scanning}
    %p_end = getelementptr i8, ptr %board, i64 {must_end}
    %p_return = getelementptr i8, ptr %board, i64 {must_return}
    %p_count = getelementptr i8, ptr %board, i64 {slot_count}
    %p_words = getelementptr i8, ptr %board, i64 {words}
    %p_write = getelementptr i8, ptr %board, i64 {write}
    %p_looks = getelementptr i8, ptr %board, i64 {looks}
    %p_looked = getelementptr i8, ptr %board, i64 {looked}
    %p_furthest = getelementptr i8, ptr %board, i64 {furthest}
    %p_longest = getelementptr i8, ptr %board, i64 {longest}
    %p_shortest = getelementptr i8, ptr %board, i64 {shortest}
    %slots = getelementptr i8, ptr %board, i64 {slots}
    %words = load ptr, ptr %p_words
    %write = load ptr, ptr %p_write
    %most = load i64, ptr %p_furthest
    %longest = load i64, ptr %p_longest
    %shortest = load i64, ptr %p_shortest
    store atomic i32 1, ptr %scanning seq_cst, align 4
    %begun = call i64 @now(ptr %board)
    %first_deadline = add i64 %begun, %timeout
    br label %pass

pass:
    %deadline = phi i64 [ %first_deadline, %entry ], [ %deadline, %spin ],
                        [ %deadline, %doze ], [ %next_deadline, %idle ]
    %seen = load atomic i32, ptr %board seq_cst, align 4
    %end = load atomic i32, ptr %p_end seq_cst, align 4
    %return = load atomic i32, ptr %p_return seq_cst, align 4
    %told = or i32 %end, %return
    %is_told = icmp ne i32 %told, 0
    br i1 %is_told, label %leave_told, label %look
look:
    %looks = load i64, ptr %p_looks
    %more_looks = add i64 %looks, 1
    store i64 %more_looks, ptr %p_looks
    %time = call i64 @now(ptr %board)
    %looked = load i64, ptr %p_looked
    store i64 %time, ptr %p_looked
    %furthest = add i64 %time, %most
    %count = load atomic i32, ptr %p_count acquire, align 4
    %wide_count = zext i32 %count to i64
    br label %next

next:
    %index = phi i64 [ 0, %look ], [ %index_on, %on ]
    %soonest = phi i64 [ %furthest, %look ], [ %soonest_on, %on ]
    %is_armed = phi i1 [ false, %look ], [ %is_armed_on, %on ]
    %is_ours = phi i1 [ false, %look ], [ %is_ours_on, %on ]
    %bell = phi i32 [ -1, %look ], [ %bell_on, %on ]
    %is_past = icmp uge i64 %index, %wide_count
    br i1 %is_past, label %after, label %read
read:
    %offset = mul i64 %index, {slot_bytes}
    %slot = getelementptr i8, ptr %slots, i64 %offset
    %awaited = load atomic i64, ptr %slot acquire, align 8
    %is_idle = icmp eq i64 %awaited, {idle_value}
    br i1 %is_idle, label %on, label %compare
compare:
    %word = getelementptr i64, ptr %words, i64 %index
    %value = load atomic i64, ptr %word acquire, align 8
    %is_reached = icmp uge i64 %value, %awaited
    br i1 %is_reached, label %note, label %wait
note:
    %p_reached = getelementptr i8, ptr %slot, i64 {reached}
    %p_unreached = getelementptr i8, ptr %slot, i64 {unreached}
    store atomic i64 %looked, ptr %p_unreached monotonic, align 8
    store atomic i64 %time, ptr %p_reached monotonic, align 8
    %swapped = cmpxchg ptr %slot, i64 %awaited, i64 {idle_value}
               seq_cst seq_cst, align 8
    %is_claimed = extractvalue {{ i64, i1 }} %swapped, 1
    br i1 %is_claimed, label %claimed, label %again
again:  ; something else is awaited since: look at once
    br label %on
claimed:  ; the bell is read last: the same value may be awaited anew, by another's bell
    %p_bell = getelementptr i8, ptr %slot, i64 {bell}
    %own = load atomic i32, ptr %p_bell acquire, align 4
    %is_bell = icmp sge i32 %own, 0
    br i1 %is_bell, label %choose, label %ours
ours:
    br label %on
choose:  ; ring a bell once, however many slots in a row it has
    %is_same = icmp eq i32 %own, %bell
    br i1 %is_same, label %on, label %flush
flush:
    %is_other = icmp sge i32 %bell, 0
    br i1 %is_other, label %ring_other, label %hold
ring_other:
    %ignored_1 = call i64 %write(i32 %bell, ptr %one, i64 8)
    br label %hold
hold:
    br label %on
wait:
    %p_near = getelementptr i8, ptr %slot, i64 {near}
    %p_late = getelementptr i8, ptr %slot, i64 {late}
    %near = load atomic i64, ptr %p_near monotonic, align 8
    %late = load atomic i64, ptr %p_late monotonic, align 8
    %overdue = sub i64 %time, %late
    %is_overdue = icmp sgt i64 %overdue, 0
    %share = ashr i64 %overdue, {overdue_shift}
    %is_long = icmp sgt i64 %share, %longest
    %least_share = select i1 %is_long, i64 %longest, i64 %share
    %later = add i64 %time, %least_share
    %is_early = icmp slt i64 %time, %near
    %in_time = select i1 %is_overdue, i64 %later, i64 %time
    %due = select i1 %is_early, i64 %near, i64 %in_time
    %is_sooner = icmp slt i64 %due, %soonest
    %sooner = select i1 %is_sooner, i64 %due, i64 %soonest
    br label %on
on:
    %soonest_on = phi i64 [ %soonest, %read ], [ %time, %again ], [ %soonest, %ours ],
                          [ %soonest, %choose ], [ %soonest, %hold ],
                          [ %sooner, %wait ]
    %is_armed_on = phi i1 [ %is_armed, %read ], [ true, %again ], [ %is_armed, %ours ],
                          [ %is_armed, %choose ], [ %is_armed, %hold ],
                          [ true, %wait ]
    %is_ours_on = phi i1 [ %is_ours, %read ], [ %is_ours, %again ], [ true, %ours ],
                         [ %is_ours, %choose ], [ %is_ours, %hold ],
                         [ %is_ours, %wait ]
    %bell_on = phi i32 [ %bell, %read ], [ %bell, %again ], [ %bell, %ours ],
                       [ %bell, %choose ], [ %own, %hold ], [ %bell, %wait ]
    %index_on = add i64 %index, 1
    br label %next

after:
    %is_rung = icmp sge i32 %bell, 0
    br i1 %is_rung, label %ring, label %decide
ring:
    %ignored_2 = call i64 %write(i32 %bell, ptr %one, i64 8)
    br label %decide
decide:
    br i1 %is_ours, label %leave_ours, label %rest
rest:
    br i1 %is_armed, label %time_out, label %idle
idle:
    call void @sleep(ptr %board, i32 %seen, i64 -1)
    %woken = call i64 @now(ptr %board)
    %next_deadline = add i64 %woken, %timeout
    br label %pass
time_out:
    %is_over = icmp sge i64 %time, %deadline
    br i1 %is_over, label %leave_late, label %nap
nap:
    %is_deadline = icmp slt i64 %deadline, %soonest
    %until = select i1 %is_deadline, i64 %deadline, i64 %soonest
    %pause = sub i64 %until, %time
    %is_short = icmp slt i64 %pause, %shortest
    br i1 %is_short, label %spin, label %doze
spin:
    call void {pause}
    br label %pass
doze:
    call void @sleep(ptr %board, i32 %seen, i64 %pause)
    br label %pass

leave_told:
    br label %leave
leave_ours:
    br label %leave
leave_late:
    br label %leave
leave:
    %answer = phi i32 [ 0, %leave_told ], [ 1, %leave_ours ], [ 2, %leave_late ]
    store atomic i32 0, ptr %scanning seq_cst, align 4
    ret i32 %answer
}}
"""


@attrs.frozen
class Code:
    """The scanner for one architecture: its bytes, and where its functions begin."""

    text: bytes
    entries: dict[str, int]


def compile_scanner(architecture: str) -> Code:
    """Compile the scanner; position-independent, and without anything to relocate."""
    target = ARCHITECTURES[architecture]
    parsed = parse_object(emit_object(_module(architecture, target), target))
    exports = find_exports(parsed)
    (home,) = {symbol.section for symbol in exports.values()}
    if parsed.relocations.get(home):
        raise AssertionError("the scanner refers to something outside its text")
    entries = {
        name.removeprefix("accy_"): symbol.value for name, symbol in exports.items()
    }
    return Code(bytes(parsed.sections[home].data), dict(sorted(entries.items())))


def _module(architecture: str, target: CpuTarget) -> str:
    declare_pause, pause = _PAUSE[architecture]
    body = _SOURCE.format(
        declare_pause=declare_pause,
        pause=pause,
        futex=_FUTEX_CALL[architecture],
        idle_value=IDLE - 2**64,  # LLVM takes integers with a sign
        busy=BUSY,
        no_stream=NO_STREAM,
        slot_bytes=Slot.byte_size(),
        overdue_shift=Board.OVERDUE_SHIFT,
        **Board.offsets(),
        **Slot.offsets(),
        **NativeLaunch.offsets(),
    )
    layout = f'target datalayout = "{data_layout(target)}"\n'
    return f'{layout}target triple = "{target.triple}"\n{body}'


def llvm_version() -> int:
    """The major version of the LLVM that compiles here."""
    return int(llvmlite.binding.llvm_version_info[0])


def render(codes: dict[str, Code]) -> str:
    """The module that holds the machine code."""
    lines = [
        '"""The scanner as machine code; made by ``python -m tools.scanner``."""',
        "",
        "from __future__ import annotations",
        "",
        '__all__ = ["ENTRIES", "LLVM", "TEXT"]',
        "",
        f"LLVM = {llvm_version()}",
        '"""The version that compiled it."""',
        "",
        "ENTRIES: dict[str, dict[str, int]] = {",
    ]
    for architecture, code in codes.items():
        lines.append(f'    "{architecture}": {{')
        lines += [f'        "{name}": {at},' for name, at in code.entries.items()]
        lines.append("    },")
    lines += ["}", "", "TEXT: dict[str, bytes] = {"]
    for architecture, code in codes.items():
        lines.append(f'    "{architecture}": bytes.fromhex(')
        wrapped = textwrap.wrap(code.text.hex(), 72)
        lines += [f'        "{line}"' for line in wrapped]
        lines.append("    ),")
    lines += ["}", ""]
    return "\n".join(lines)


def main() -> None:
    codes = {name: compile_scanner(name) for name in ARCHITECTURES}
    TARGET_FILE.write_text(render(codes), encoding="utf-8")
    sizes = ", ".join(f"{len(code.text)} for {name}" for name, code in codes.items())
    print(f"{TARGET_FILE.name}: bytes: {sizes}")


if __name__ == "__main__":
    main()
