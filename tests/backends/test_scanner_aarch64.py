"""The scanner's AArch64 code, run through an emulator on any machine."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pytest

from accy_async.backends.cuda.board import (
    BUSY,
    IDLE,
    NO_BELL,
    NO_STREAM,
    Board,
    NativeLaunch,
    Slot,
)
from accy_async.backends.cuda.scanner_code import ENTRIES, TEXT

unicorn = pytest.importorskip("unicorn", reason="the emulator is not installed")
arm64 = pytest.importorskip("unicorn.arm64_const")

CODE, BOARD, WORDS, STACK, OUTSIDE = (0x1000_0000 * i for i in range(1, 6))
WRITE, SYSCALL, CLOCK, STOP, QUERY, LAUNCH, FLAG = (OUTSIDE + 64 * i for i in range(7))
LEAVE, ENTER, NUMBER = (OUTSIDE + 64 * i for i in range(7, 10))
THREAD, OBJECT = 0x1234_5678, 0x8765_4320
RET = struct.pack("<I", 0xD65F03C0)
SLOTS = 4
FUTEX_WAIT, FUTEX_WAKE = 128, 129


class Emulated:
    """The board in an emulator; what the code calls is done here."""

    def __init__(self) -> None:
        self.machine = machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        for place in (CODE, BOARD, WORDS, STACK, OUTSIDE):
            machine.mem_map(place, 65536)
        machine.mem_write(CODE, TEXT["aarch64"])
        for place in range(OUTSIDE, OUTSIDE + 640, 64):
            machine.mem_write(place, RET)
        board = Board(words=WORDS, write=WRITE, syscall=SYSCALL, clock_gettime=CLOCK)
        board.furthest = board.longest = 1_000_000
        board.shortest = board.quick = 10_000
        idle = bytes(Slot(awaited=IDLE, bell=NO_BELL))
        machine.mem_write(BOARD, bytes(board) + idle * SLOTS)
        self.now = 5_000_000_000
        self.rung: list[int] = []
        self.slept: list[int | None] = []
        self.woken = 0
        self.answers: list[int] = []
        self.called: list[tuple[int, ...]] = []
        self.is_away = False
        self.numbers: list[int] = []
        self.on_sleep: Callable[[], object] = lambda: None
        self.on_query: Callable[[], object] = lambda: None
        for place, call in (
            (WRITE, self._write), (SYSCALL, self._syscall), (CLOCK, self._clock),
            (QUERY, self._query), (LAUNCH, self._called), (FLAG, self._called),
            (LEAVE, self._leave), (ENTER, self._enter), (NUMBER, self._number),
        ):  # fmt: skip
            machine.hook_add(unicorn.UC_HOOK_CODE, call, None, place, place)

    def _register(self, number: int) -> int:
        value: int = self.machine.reg_read(getattr(arm64, f"UC_ARM64_REG_X{number}"))
        return value

    def _clock(self, *_: Any) -> None:
        self.now += 1000
        assert self._register(0) == 1
        time = struct.pack("<QQ", self.now // 10**9, self.now % 10**9)
        self.machine.mem_write(self._register(1), time)

    def _write(self, *_: Any) -> None:
        data = self.machine.mem_read(self._register(1), self._register(2))
        assert bytes(data) == (1).to_bytes(8, "little")
        self.rung.append(self._register(0) & 0xFFFF_FFFF)

    def _query(self, *_: Any) -> None:
        assert self._register(0) == 77
        self.on_query()
        answer = self.answers.pop(0)
        self.machine.reg_write(arm64.UC_ARM64_REG_X0, answer)

    def _called(self, *_: Any) -> None:
        assert self.is_away, "the driver may wait: others are to run meanwhile"
        self.called.append(tuple(map(self._register, range(4))))
        self.machine.reg_write(arm64.UC_ARM64_REG_X0, self.answers.pop(0))

    def _leave(self, *_: Any) -> None:
        assert not self.is_away
        self.is_away = True
        self.machine.reg_write(arm64.UC_ARM64_REG_X0, THREAD)

    def _enter(self, *_: Any) -> None:
        assert self.is_away
        assert self._register(0) == THREAD
        self.is_away = False

    def _number(self, *_: Any) -> None:
        assert not self.is_away
        self.numbers.append(self._register(0))
        self.machine.reg_write(arm64.UC_ARM64_REG_X0, OBJECT)

    def _syscall(self, *_: Any) -> None:
        assert self._register(0) == 98
        assert self._register(1) == BOARD
        if self._register(2) == FUTEX_WAKE:
            self.woken += 1
            return
        assert self._register(2) == FUTEX_WAIT
        limit = self._register(4)
        pause = None
        if limit:
            seconds, rest = struct.unpack("<QQ", self.machine.mem_read(limit, 16))
            pause = seconds * 10**9 + rest
            self.now += pause
        self.slept.append(pause)
        self.on_sleep()

    def call(self, name: str, *arguments: int) -> int:
        for number, value in enumerate((BOARD, *arguments)):
            register = getattr(arm64, f"UC_ARM64_REG_X{number}")
            self.machine.reg_write(register, value & (2**64 - 1))
        self.machine.reg_write(arm64.UC_ARM64_REG_LR, STOP)
        self.machine.reg_write(arm64.UC_ARM64_REG_SP, STACK + 32768)
        start = CODE + ENTRIES["aarch64"][name]
        self.machine.emu_start(start, STOP, count=1_000_000)
        return self._register(0) & 0xFFFF_FFFF

    def write_word(self, index: int, value: int) -> None:
        self.machine.mem_write(WORDS + 8 * index, struct.pack("<Q", value))

    def place(self, index: int) -> int:
        return BOARD + ctypes.sizeof(Board) + ctypes.sizeof(Slot) * index

    def slot(self, index: int) -> Slot:
        data = self.machine.mem_read(self.place(index), ctypes.sizeof(Slot))
        return Slot.from_buffer_copy(bytes(data))

    def admit(self, index: int, stream: int) -> None:
        place = self.place(index) + Slot.offsets()["stream"]
        self.machine.mem_write(place, struct.pack("<Q", stream))

    def board(self) -> Board:
        return Board.from_buffer_copy(
            bytes(self.machine.mem_read(BOARD, ctypes.sizeof(Board)))
        )

    def set_field(self, name: str, value: int) -> None:
        place = BOARD + Board.offsets()[name]
        self.machine.mem_write(place, struct.pack("<I", value))


@pytest.fixture
def emulated() -> Emulated:
    made = Emulated()
    made.set_field("slot_count", SLOTS)
    return made


def test_arming_fills_the_slot_and_kicks(emulated: Emulated) -> None:
    emulated.call("arm", 2, 7, 12, 13, 9)
    slot = emulated.slot(2)
    assert (slot.awaited, slot.near, slot.late, slot.bell) == (7, 12, 13, 9)
    assert emulated.board().kicks == 1
    assert emulated.woken == 0
    emulated.set_field("is_asleep", 1)
    emulated.call("kick")
    assert emulated.woken == 1


@pytest.mark.parametrize("answers", [[0], [700], [BUSY, BUSY, 0]])
def test_a_stream_is_asked_about_until_it_is_done(
    emulated: Emulated, answers: list[int]
) -> None:
    emulated.answers = list(answers)
    emulated.admit(1, 77)
    assert emulated.call("ask", 1, QUERY) == answers[-1]
    assert not emulated.answers
    assert emulated.slot(1).askers == 0


def test_a_stream_is_asked_about_for_a_moment_only(emulated: Emulated) -> None:
    emulated.answers = [BUSY] * 20
    emulated.admit(1, 77)
    assert emulated.call("ask", 1, QUERY) == BUSY
    assert len(emulated.answers) == 20 - 11  # each look at the clock takes 1 us here


def test_a_stream_that_is_barred_is_asked_about_no_more(emulated: Emulated) -> None:
    emulated.admit(1, 77)
    emulated.answers = [BUSY] * 20
    emulated.on_query = lambda: emulated.admit(1, NO_STREAM)
    assert emulated.call("ask", 1, QUERY) == BUSY
    assert len(emulated.answers) == 20 - 1
    emulated.admit(1, 77)
    assert emulated.call("bar", 1) == 0
    assert emulated.slot(1).stream == NO_STREAM
    assert emulated.call("ask", 1, QUERY) == BUSY
    assert len(emulated.answers) == 20 - 1
    place = emulated.place(1) + Slot.offsets()["askers"]
    emulated.machine.mem_write(place, struct.pack("<I", 2))
    assert emulated.call("bar", 1) == 2


def test_scan_rings_each_bell_once_and_sleeps(emulated: Emulated) -> None:
    for index, bell in enumerate((3, 3, 4)):
        emulated.call("arm", index, 5, emulated.now, emulated.now, bell)
        emulated.write_word(index, 5)

    def stop() -> None:
        emulated.set_field("must_return", 1)

    emulated.on_sleep = stop
    assert emulated.call("scan", 10**9) == 0
    assert emulated.rung == [3, 4]
    assert emulated.slept == [None]
    assert all(emulated.slot(index).awaited == IDLE for index in range(3))
    assert emulated.slot(0).reached > 0
    assert emulated.board().is_scanning == 0


def test_scan_returns_for_what_has_no_bell(emulated: Emulated) -> None:
    emulated.call("arm", 1, 5, emulated.now, emulated.now, NO_BELL)
    emulated.write_word(1, 6)
    assert emulated.call("scan", 10**9) == 1
    assert emulated.rung == []


def test_scan_sleeps_until_what_is_near(emulated: Emulated) -> None:
    near = emulated.now + 3_000_000
    emulated.call("arm", 0, 5, near, near, 8)

    def go_on() -> None:
        if emulated.rung:
            emulated.set_field("must_return", 1)
        elif emulated.now >= near:
            emulated.write_word(0, 5)

    emulated.on_sleep = go_on
    assert emulated.call("scan", 10**9) == 0
    assert emulated.rung == [8]
    assert emulated.now >= near
    assert emulated.slept[:3] == [10**6, 10**6, pytest.approx(10**6, abs=10_000)]
    assert emulated.slept[-1] is None


def test_scan_gives_up_after_its_time(emulated: Emulated) -> None:
    emulated.call("arm", 0, 5, emulated.now, emulated.now, 8)
    assert emulated.call("scan", 2_000_000) == 2
    assert emulated.rung == []


def test_no_word_is_read_after_the_end(emulated: Emulated) -> None:
    emulated.call("arm", 0, 5, 0, 0, 8)
    emulated.write_word(0, 5)
    assert emulated.call("end") == 0
    assert emulated.call("scan", 10**9) == 0
    assert emulated.rung == []
    assert emulated.call("spin", WORDS, 5, 10**6) == 0


def test_spin_ends_by_the_value_or_by_itself(emulated: Emulated) -> None:
    assert emulated.call("spin", WORDS, 5, 20_000) == 0
    emulated.write_word(0, 5)
    assert emulated.call("spin", WORDS, 5, 20_000) == 1


@pytest.mark.parametrize("answers", [[0, 0, 0], [0, 700, 0], [700, 700]])
def test_a_launch_has_a_flag_behind_it_where_there_is_a_position(
    emulated: Emulated, answers: list[int]
) -> None:
    machine, place = emulated.machine, WORDS + 4096
    record = NativeLaunch(
        launch=LAUNCH, first=5, second=2**40, third=7,
        write_value=FLAG, on=77, word=WORDS, position=2**41,
        leave=LEAVE, enter=ENTER, number=NUMBER,
    )  # fmt: skip
    machine.mem_write(place, bytes(record))
    emulated.answers = answers.copy()
    for expected in (answers[0] or -answers[1], answers[-1]):
        machine.reg_write(arm64.UC_ARM64_REG_X0, place)
        machine.reg_write(arm64.UC_ARM64_REG_LR, STOP)
        machine.reg_write(arm64.UC_ARM64_REG_SP, STACK + 32768)
        machine.emu_start(CODE + ENTRIES["aarch64"]["launch"], STOP, count=1_000)
        assert emulated._register(0) == OBJECT
        assert emulated.numbers.pop() == expected % 2**64
    flag = [] if answers[0] else [(77, WORDS, 2**41, 0)]
    assert emulated.called == [(5, 2**40, 7, 0), *flag, (5, 2**40, 7, 0)]
