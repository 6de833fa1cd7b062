"""The scanner rings for what was reached, exactly then, and touches nothing else."""

from __future__ import annotations

import ctypes
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from accy_async.backends.cuda.board import (
    BUSY,
    IDLE,
    NO_BELL,
    Board,
    NativeLaunch,
    Slot,
)
from accy_async.backends.cuda.nativescanner import NativeScanner
from accy_async.backends.cuda.plainscanner import PlainScanner
from accy_async.backends.cuda.scanner import Found, Scanner
from accy_async.backends.cuda.scanner_code import ENTRIES, LLVM, TEXT
from tests.backends.loops import PATIENCE_S
from tests.backends.words import SCANNERS, Words
from tools.scanner import ARCHITECTURES, compile_scanner, llvm_version

pytestmark = pytest.mark.skipif(
    not hasattr(os, "eventfd"), reason="this system has no eventfd"
)

COUNT = 4096
_TIMEOUT_NS = 50_000_000


class Scanning:
    """A scanner at work on a thread, and what its scans found."""

    def __init__(self, make: type[Scanner]) -> None:
        self.words = Words(COUNT)
        self.scanner = make(self.words.address, COUNT)
        self.found: list[Found] = []
        self.is_told = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.scanner.begin()
        while True:
            found = self.scanner.scan(_TIMEOUT_NS)
            self.found.append(found)
            if found is Found.TOLD:
                self.is_told.set()
                return

    def arm(self, index: int, awaited: int, bell: int) -> None:
        now = time.monotonic_ns()
        self.scanner.arm(index, awaited, now, now, bell)

    def stop(self) -> None:
        self.scanner.end()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.fixture(params=SCANNERS)
def scanning(request: pytest.FixtureRequest) -> Iterator[Scanning]:
    work = Scanning(request.param)
    yield work
    work.stop()


@pytest.fixture
def bell() -> Iterator[int]:
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)
    yield descriptor
    os.close(descriptor)


def hear(bell: int) -> int:
    """How often the bell was rung since the last time, at least once."""
    assert select.select([bell], [], [], PATIENCE_S)[0], "nobody rang"
    return int.from_bytes(os.read(bell, 8), "little")


def is_quiet(bell: int, after_s: float = 0.02) -> bool:
    return not select.select([bell], [], [], after_s)[0]


def test_rings_when_the_value_is_reached(scanning: Scanning, bell: int) -> None:
    before = time.monotonic_ns()
    for value in range(1, 50):
        scanning.arm(7, value, bell)
        assert is_quiet(bell, 0)
        scanning.words.values[7] = value
        assert hear(bell) == 1
        assert before <= scanning.scanner.reached_ns(7) <= time.monotonic_ns()


def test_says_when_it_had_looked_last(scanning: Scanning, bell: int) -> None:
    """In between the value came, as far as anybody knows."""
    scanner = scanning.scanner
    assert scanner.sighting(5) == (0, 0)
    scanning.words.values[5] = 1
    scanning.arm(5, 1, bell)
    assert hear(bell) == 1
    first = scanner.reached_ns(5)
    scanning.arm(5, 2, bell)
    scanning.words.values[5] = 2
    assert hear(bell) == 1
    unseen, seen = scanner.sighting(5)
    assert first <= unseen < seen <= time.monotonic_ns()


def test_rings_for_what_was_reached_before(scanning: Scanning, bell: int) -> None:
    scanning.words.values[0] = 9
    scanning.arm(0, 4, bell)
    assert hear(bell) == 1


def test_rings_once(scanning: Scanning, bell: int) -> None:
    scanning.arm(3, 1, bell)
    scanning.words.values[3] = 1
    assert hear(bell) == 1
    scanning.words.values[3] = 2
    assert is_quiet(bell)


def test_a_later_arming_takes_the_place_of_the_first(
    scanning: Scanning, bell: int
) -> None:
    scanning.arm(3, 1, bell)
    scanning.arm(3, 5, bell)
    scanning.words.values[3] = 4
    assert is_quiet(bell)
    scanning.words.values[3] = 5
    assert hear(bell) == 1


def test_what_is_disarmed_does_not_ring(scanning: Scanning, bell: int) -> None:
    scanning.arm(3, 1, bell)
    scanning.scanner.disarm(3)
    scanning.words.values[3] = 1
    assert is_quiet(bell)


def test_thousands_of_slots_are_all_noticed(scanning: Scanning) -> None:
    bells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(4)]
    for index in range(COUNT):
        scanning.arm(index, 1, bells[index % 4])
    order = list(range(COUNT))
    random.Random(3).shuffle(order)
    for index in order:
        scanning.words.values[index] = 1
    left = set(range(COUNT))
    until = time.monotonic() + PATIENCE_S
    while left and time.monotonic() < until:
        left = {index for index in left if not scanning.scanner.reached_ns(index)}
    assert not left
    for bell in bells:
        assert hear(bell) >= 1
        os.close(bell)


def test_what_has_no_bell_ends_the_scan(scanning: Scanning, bell: int) -> None:
    scanning.arm(1, 1, NO_BELL)
    scanning.arm(2, 1, bell)
    scanning.words.values[1] = scanning.words.values[2] = 1
    assert hear(bell) == 1
    until = time.monotonic() + PATIENCE_S
    while Found.OURS not in scanning.found and time.monotonic() < until:
        time.sleep(0.001)
    assert Found.OURS in scanning.found


def test_scan_says_when_something_was_awaited_long(
    scanning: Scanning, bell: int
) -> None:
    time.sleep(2 * _TIMEOUT_NS / 1e9)
    assert not scanning.found, "nothing was awaited"
    scanning.arm(1, 1, bell)
    until = time.monotonic() + PATIENCE_S
    while not scanning.found and time.monotonic() < until:
        time.sleep(0.001)
    assert scanning.found[0] is Found.LATE


@pytest.mark.parametrize("is_armed", [False, True])
def test_interrupt_ends_a_scan(scanning: Scanning, bell: int, is_armed: bool) -> None:
    if is_armed:
        scanning.arm(1, 1, bell)
    scanning.scanner.interrupt()
    assert scanning.is_told.wait(PATIENCE_S)


def test_an_interrupt_between_two_scans_ends_the_next(scanning: Scanning) -> None:
    scanning.stop()
    scanner = type(scanning.scanner)(scanning.words.address, COUNT)
    scanner.interrupt()
    assert scanner.scan(_TIMEOUT_NS) is Found.TOLD
    scanner.resume()
    scanner.arm(0, 1, 0, 0, NO_BELL)
    scanning.words.values[0] = 1
    assert scanner.scan(_TIMEOUT_NS) is Found.OURS


def test_no_word_is_read_after_the_end(scanning: Scanning, bell: int) -> None:
    """The words may be gone; here they are there, and what they hold rings nothing."""
    scanner = scanning.scanner
    scanning.arm(1, 1, bell)
    scanning.stop()
    scanner.end()
    scanning.words.values[1] = 1
    assert scanner.scan(_TIMEOUT_NS) is Found.TOLD
    assert is_quiet(bell)
    assert not scanner.spin(scanning.words.address + 8, 1, 1000)


def test_armers_racing_with_what_is_reached(scanning: Scanning) -> None:
    """Four threads arm and await 100 values each, while a fifth writes them."""
    wanted = [0] * 4
    is_over = threading.Event()
    failures: list[str] = []

    def write() -> None:
        while not is_over.is_set():
            for index, value in enumerate(wanted):
                scanning.words.values[index] = value
            time.sleep(0)  # let the others have the interpreter at once

    def wait(index: int) -> None:
        bell = os.eventfd(0, os.EFD_NONBLOCK)
        for value in range(1, 101):
            scanning.arm(index, value + 1000, bell)
            scanning.arm(index, value, bell)
            wanted[index] = value
            if not select.select([bell], [], [], PATIENCE_S)[0]:
                failures.append(f"{index} was not rung for {value}")
                return
            os.read(bell, 8)
        scanning.scanner.disarm(index)
        os.close(bell)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    waiters = [threading.Thread(target=wait, args=(i,), daemon=True) for i in range(4)]
    for thread in waiters:
        thread.start()
    for thread in waiters:
        thread.join(PATIENCE_S)
    is_over.set()
    writer.join(PATIENCE_S)
    assert not failures


@pytest.mark.parametrize("make", SCANNERS)
def test_spin_ends_by_itself_or_by_the_value(make: type[Scanner]) -> None:
    words = Words(2)
    scanner = make(words.address, 2)
    assert not scanner.spin(words.address, 1, 50_000)
    words.values[0] = 3
    assert scanner.spin(words.address, 3, 0)
    timer = threading.Timer(0.01, lambda: words.values.__setitem__(1, 1))
    timer.start()
    until = time.monotonic() + PATIENCE_S
    while not scanner.spin(words.address + 8, 1, 10_000):
        assert time.monotonic() < until
        time.sleep(0)
    timer.join()


class Query:
    """The driver's function as machine code calls it, and what it was asked."""

    def __init__(self, *answers: int, then: Callable[[], object] = int) -> None:
        self.left = list(answers)
        self.asked: list[int] = []
        self._then = then
        self._native = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._answer)
        self.address = ctypes.cast(self._native, ctypes.c_void_p).value or 0

    def _answer(self, stream: int) -> int:
        self.asked.append(stream)
        self._then()
        return self.left.pop(0)


@pytest.mark.parametrize("answers", [[0], [700], [BUSY, BUSY, BUSY, 0]])
def test_a_stream_is_asked_about_until_it_is_done(answers: list[int]) -> None:
    query = Query(*answers)
    asked, left = query.asked, query.left
    words = Words(2)
    scanner = NativeScanner(words.address, 2)
    scanner._board.quick = 10**12
    scanner.admit(1, 77)
    ask = scanner.asking(1, query.address)
    assert ask is not None
    assert ask() == answers[-1]
    assert asked == [77] * len(answers)
    scanner._board.quick = 0
    left[:] = [BUSY, BUSY, 0]
    assert ask() == BUSY, "for a moment only"
    assert left == [0]
    assert PlainScanner(words.address, 1).asking(0, query.address) is None


def test_what_is_armed_while_it_is_claimed_is_not_forgotten() -> None:
    """For the same value, as whoever waits on another loop does."""
    words = Words(1)
    scanner = PlainScanner(words.address, 1)
    others: list[threading.Thread] = []

    class Slots(dict[int, tuple[int, int, int, int]]):
        def get(self, key: int, default: object = None) -> object:  # type: ignore[override]
            found = super().get(key, default)
            if not others:
                again = (0, 1, 0, 0, NO_BELL)
                others.append(threading.Thread(target=scanner.arm, args=again))
                others[0].start()
                others[0].join(0.01)
            return found

    bell = os.eventfd(0, os.EFD_NONBLOCK)
    scanner._slots = Slots()
    scanner.arm(0, 1, 0, 0, bell)
    words.values[0] = 1
    alarm = threading.Timer(PATIENCE_S, scanner.interrupt)
    alarm.start()
    assert scanner.scan(10**12) is Found.OURS
    alarm.cancel()
    others[0].join(PATIENCE_S)
    assert not scanner._slots
    assert os.eventfd_read(bell) == 1
    os.close(bell)


@pytest.mark.parametrize("answers", [[0, 0, 0], [0, 700, 0], [700, 700]])
def test_a_launch_has_a_flag_behind_it_where_there_is_a_position(
    answers: list[int],
) -> None:
    """Once, and none behind what was refused; each answer is told."""
    left, called = answers.copy(), list[tuple[int, ...]]()

    def launch(first: int, second: int, third: int, fourth: int) -> int:
        called.append((first, second, third, fourth))
        return left.pop(0)

    def write(stream: int, word: int, value: int, flags: int) -> int:
        called.append((stream, word, value, flags))
        return left.pop(0)

    u64, i32 = ctypes.c_uint64, ctypes.c_int
    launching = ctypes.CFUNCTYPE(i32, u64, u64, u64, u64)(launch)
    writing = ctypes.CFUNCTYPE(i32, u64, u64, u64, ctypes.c_uint)(write)
    words = Words(1)
    record = NativeLaunch(
        launch=ctypes.cast(launching, ctypes.c_void_p).value,
        first=5,
        second=2**40,
        third=7,
        write_value=ctypes.cast(writing, ctypes.c_void_p).value,
        on=77,
        word=words.address,
        position=2**41,
    )
    call = NativeScanner(words.address, 1).launching(record, None)
    assert call is not None
    assert call() == (answers[0] or -answers[1])
    assert record.position == 0
    assert call() == answers[-1], "only the launch"
    flag = [] if answers[0] else [(77, words.address, 2**41, 0)]
    assert called == [(5, 2**40, 7, 0), *flag, (5, 2**40, 7, 0)]
    assert PlainScanner(words.address, 1).launching(record, None) is None


def test_a_stream_that_is_barred_is_asked_about_no_more() -> None:
    """Neither by who asks later, nor by who is at it: that is seen at once."""
    words = Words(1)
    scanner = NativeScanner(words.address, 1)
    scanner._board.quick = 10**12
    query = Query(BUSY, BUSY, then=lambda: scanner._native.bar(scanner._address, 0))
    scanner.admit(0, 77)
    ask = scanner.asking(0, query.address)
    assert ask is not None
    assert ask() == BUSY
    assert ask() == BUSY
    assert query.asked == [77]


def test_a_stream_is_barred_once_nobody_asks_about_it() -> None:
    """Else it would be destroyed while the driver looks at it."""
    words = Words(1)
    scanner = NativeScanner(words.address, 1)
    is_asking, may_answer = threading.Event(), threading.Event()
    events: list[str] = []

    def answer() -> None:
        is_asking.set()
        assert may_answer.wait(PATIENCE_S)
        events.append("answered")

    query = Query(0, then=answer)
    scanner.admit(0, 77)
    ask = scanner.asking(0, query.address)
    assert ask is not None
    asker = threading.Thread(target=ask)
    asker.start()
    assert is_asking.wait(PATIENCE_S)
    assert scanner._native.bar(scanner._address, 0) == 1

    def bar() -> None:
        scanner.bar(0)
        events.append("barred")

    barring = threading.Thread(target=bar)
    barring.start()
    may_answer.set()
    barring.join(PATIENCE_S)
    asker.join(PATIENCE_S)
    assert events == ["answered", "barred"]


def test_looks_are_few_while_nothing_is_near() -> None:
    """C42: values expected in a second are looked for every half millisecond, no more.

    Sixteen of them by the same looks, so that none costs more than one.
    """
    scanning = Scanning(NativeScanner)
    now = time.monotonic_ns()
    for index in range(16):
        scanning.scanner.arm(index, 1, now + 10**9, now + 10**9, NO_BELL)
    assert isinstance(scanning.scanner, NativeScanner)
    before = scanning.scanner.looks
    time.sleep(0.1)
    looks = scanning.scanner.looks - before
    scanning.stop()
    elapsed = (time.monotonic_ns() - now) / 500_000
    assert 1 <= looks <= elapsed + 20


def test_board_is_as_the_machine_code_takes_it() -> None:
    assert Board.offsets()["kicks"] == 0
    assert Board.offsets()["slots"] == ctypes.sizeof(Board) == 128
    assert ctypes.sizeof(Slot) == 64
    assert Slot.offsets()["awaited"] == 0
    assert IDLE == 2**64 - 1


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_machine_code_is_what_its_source_compiles_to(architecture: str) -> None:
    """By the same LLVM that made it; others may choose other instructions."""
    if llvm_version() != LLVM:
        pytest.skip(f"made with LLVM {LLVM}, here is {llvm_version()}")
    code = compile_scanner(architecture)
    assert code.entries == ENTRIES[architecture]
    assert code.text == TEXT[architecture]
