"""Ways to learn in an event loop that a GPU is done: what each costs, in one run.

On the bare driver, so that only the ways differ: launch a kernel, await its end. For
an empty kernel the whole of it is timed; for one of 10 ms how late the task runs after
the stream has written its word (another thread reads nothing but that word), and, in a
pass of its own, the part of a core that the process took meanwhile.
"""

from __future__ import annotations

import ctypes
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import anyio.lowlevel

import accy_async
from accy_async.artifact.native.elf import parse_object
from accy_async.artifact.native.elf_model import EM_AARCH64, EM_X86_64
from accy_async.artifact.native.host import host_architecture
from accy_async.artifact.native.image import MachineImage
from accy_async.artifact.native.memory import map_image
from accy_async.backends.bell import Bell, Waiter
from accy_async.backends.completion import Completion
from accy_async.backends.cuda.board import NO_BELL
from accy_async.backends.cuda.nativescanner import NativeScanner
from accy_async.backends.loops import current_bell
from accy_async.compiler.emit.llvm import data_layout, emit_object
from accy_async.compiler.emit.target import cpu_target
from benchmarks.gpu.bare import Bare, run_cpp
from benchmarks.measuring import per_call

WAKES = 2000
LONG_NS = 10_000_000
LONG_WAKES = 30
LOOPS = ("asyncio", "uvloop", "trio")


class Way(ABC):
    """Submit what is needed behind a kernel, and await that."""

    name: str

    def __init__(self, bare: Bare) -> None:
        self.bare = bare

    def open(self, bell: Bell) -> None:
        """Prepare, on the loop."""
        self.bell = bell

    @abstractmethod
    async def wait(self, *, is_long: bool) -> None:
        """Return once the stream is done."""

    def close(self) -> None:
        """End what was opened."""
        return


class Turns(Way):
    name = "word read between turns"

    async def wait(self, *, is_long: bool) -> None:
        awaited, word, turn = self.bare.flag(), self.bare.word, self.bell.turn
        while word.value < awaited:
            await turn()


class Queries(Way):
    name = "cuStreamQuery between turns"

    async def wait(self, *, is_long: bool) -> None:
        query, stream, turn = (
            self.bare.driver.cuStreamQuery,
            self.bare.stream,
            self.bell,
        )
        if is_long:
            self.bare.flag()
        while query(stream)[0]:
            await turn.turn()


class TurnThenSpin(Way):
    name = "a turn, then the word read natively"

    def open(self, bell: Bell) -> None:
        super().open(bell)
        self.scanner = NativeScanner(self.bare.address, 1)

    async def wait(self, *, is_long: bool) -> None:
        awaited, address = self.bare.flag(), self.bare.address
        await self.bell.turn()
        while not self.scanner.spin(address, awaited, 10_000):
            await self.bell.turn()


class Timed(TurnThenSpin):
    name = "the loop's timer before the end, then the word"

    async def wait(self, *, is_long: bool) -> None:
        alarm = self.bell.alarm
        if is_long and alarm is not None:
            begun, roused = time.monotonic_ns(), Completion()
            at = begun + LONG_NS - alarm.lag.allowance
            awaited, address = self.bare.flag(), self.bare.address
            alarm.call_at(at, roused.set)
            await roused.wait()
            took, is_late = time.monotonic_ns() - at, self.bare.word.value >= awaited
            alarm.lag.learn(took, is_late=is_late)
            while not self.scanner.spin(address, awaited, 10_000):
                await self.bell.turn()
        else:
            await super().wait(is_long=is_long)


class _Rung(Way):
    """One that is woken by its loop's bell, which something native rings."""

    _waiter: Waiter | None = None

    def open(self, bell: Bell) -> None:
        super().open(bell)
        bell.listen(self._answer, self.close)
        descriptor = bell.duplicate()
        assert descriptor is not None
        self.descriptor = descriptor

    def _answer(self) -> None:
        waiter = self._waiter
        if waiter is not None and waiter.is_waiting and self.is_done():
            waiter.is_waiting = False
            waiter.wake()

    @abstractmethod
    def is_done(self) -> bool:
        """Whether this ring was the one."""

    @abstractmethod
    def submit(self, *, is_long: bool) -> None:
        """Have the bell rung."""

    async def wait(self, *, is_long: bool) -> None:
        def subscribe(waiter: Waiter) -> bool:
            self._waiter = waiter
            self.submit(is_long=is_long)
            return True

        await self.bell.park(subscribe, lambda: None)

    def close(self) -> None:
        self.bell.unlisten(self._answer, self.close)


class Scanned(_Rung):
    name = "scanner writes to an eventfd"

    def open(self, bell: Bell) -> None:
        super().open(bell)
        self.scanner = NativeScanner(self.bare.address, 1)
        self.thread = threading.Thread(target=self._scan, daemon=True)
        self.thread.start()

    def _scan(self) -> None:
        self.scanner.begin()
        while self.scanner.scan(10**9):
            pass

    def submit(self, *, is_long: bool) -> None:
        self.awaited = self.bare.flag()
        near = time.monotonic_ns() + (LONG_NS - 60_000 if is_long else 0)
        self.scanner.arm(0, self.awaited, near, near + 1_000_000, self.descriptor)

    def is_done(self) -> bool:
        return self.bare.word.value >= self.awaited

    def close(self) -> None:
        super().close()
        self.scanner.end()
        self.thread.join()


_HOST_FUNCTION = """
target datalayout = "{layout}"
target triple = "{triple}"
define void @ring(ptr %data) {{
    %one = alloca i64
    store i64 1, ptr %one
    %fd = load i32, ptr %data
    %place = getelementptr i8, ptr %data, i64 8
    %write = load ptr, ptr %place
    %ignored = call i64 %write(i32 %fd, ptr %one, i64 8)
    %p_count = getelementptr i8, ptr %data, i64 16
    %before = atomicrmw add ptr %p_count, i64 1 seq_cst
    ret void
}}
"""


class _HostData(ctypes.Structure):
    _fields_ = (
        ("fd", ctypes.c_int64),
        ("write", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
    )


class HostFunction(_Rung):
    name = "cuLaunchHostFunc, machine code that writes to an eventfd"

    def open(self, bell: Bell) -> None:
        super().open(bell)
        architecture = host_architecture()
        level = {"x86_64": "x86-64-v1", "aarch64": "armv8-a"}[architecture]
        target = cpu_target(level)
        source = _HOST_FUNCTION.format(layout=data_layout(target), triple=target.triple)
        parsed = parse_object(emit_object(source, target))
        (text,) = (bytes(s.data) for s in parsed.sections if s.name == ".text")
        machine = {"x86_64": EM_X86_64, "aarch64": EM_AARCH64}[architecture]
        image = MachineImage(machine, text, b"", b"", 0, 0, (), (), (), b"")
        write = ctypes.cast(ctypes.CDLL(None).write, ctypes.c_void_p).value
        self.data = _HostData(self.descriptor, write, 0)
        self.function = self.bare.driver.CUhostFn(map_image(image))
        self.calls = 0

    def submit(self, *, is_long: bool) -> None:
        if is_long:
            self.bare.flag()  # for who measures
        self.calls += 1
        answer = self.bare.driver.cuLaunchHostFunc(
            self.bare.stream, self.function, ctypes.addressof(self.data)
        )
        self.bare.check(answer, "cuLaunchHostFunc")

    def is_done(self) -> bool:
        return True  # one call, one ring


class Blocked(Way):
    name = "a thread in cuEventSynchronize, blocking"

    def open(self, bell: Bell) -> None:
        super().open(bell)
        answer = self.bare.driver.cuEventCreate(1 | 2)  # blocking sync, no timing
        self.event = self.bare.check(answer, "cuEventCreate")
        self.jobs: SimpleQueue[Completion | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        driver = self.bare.driver
        driver.cuCtxSetCurrent(self.bare.context)
        while (signal := self.jobs.get()) is not None:
            driver.cuEventSynchronize(self.event)
            signal.set()

    async def wait(self, *, is_long: bool) -> None:
        if is_long:
            self.bare.flag()  # for who measures
        answer = self.bare.driver.cuEventRecord(self.event, self.bare.stream)
        self.bare.check(answer, "cuEventRecord")
        signal = Completion()
        self.jobs.put(signal)
        await signal.wait()

    def close(self) -> None:
        self.jobs.put(None)
        self.thread.join()


WAYS: tuple[type[Way], ...] = (
    Turns, Queries, TurnThenSpin, Timed, Scanned, HostFunction, Blocked,
)  # fmt: skip


def quantile(samples: list[float], share: float) -> float:
    """The sample below which that share of them lies."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def measure_short(way: Way, bare: Bare) -> list[float]:
    """Microseconds from the launch of an empty kernel to the task running on."""
    way.open(current_bell())
    taken = []
    for number in range(WAKES + 200):
        begun = time.perf_counter_ns()
        bare.launch()
        await way.wait(is_long=False)
        if number >= 200:
            taken.append((time.perf_counter_ns() - begun) / 1000)
    way.close()
    return taken


async def measure_long(way: Way, bare: Bare) -> tuple[list[float], float]:
    """How late, in microseconds, behind 10 ms; and the share of a core taken."""
    way.open(current_bell())
    late = []
    for _ in range(LONG_WAKES):
        seen = Observer(bare, bare.count + 1)
        bare.launch(LONG_NS)
        await way.wait(is_long=True)
        woken = time.monotonic_ns()
        late.append((woken - seen.done_ns()) / 1000)
    busy, begun = time.process_time(), time.perf_counter()
    for _ in range(LONG_WAKES):
        bare.launch(LONG_NS)
        await way.wait(is_long=True)
    share = (time.process_time() - busy) / (time.perf_counter() - begun)
    way.close()
    return late, share


class Observer:
    """A thread that notes when a word had its value, and does nothing else."""

    def __init__(self, bare: Bare, awaited: int, address: int | None = None) -> None:
        self._scanner = NativeScanner(address or bare.address, 1)
        now = time.monotonic_ns()
        self._scanner.arm(0, awaited, now, now + 60 * 10**9, NO_BELL)
        self._thread = threading.Thread(target=self._scanner.scan, args=(60 * 10**9,))
        self._thread.start()

    def done_ns(self) -> int:
        """When it was, on the monotonic clock."""
        self._thread.join()
        return self._scanner.reached_ns(0)


async def _turn_cost(turn: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    for _ in range(5000):
        await turn()
    return (time.perf_counter() - begun) / 5000 * 1e6


async def _loop_pieces() -> dict[str, float]:
    bell = current_bell()
    return {
        "a turn by the bell": await _turn_cost(bell.turn),
        "a turn by anyio": await _turn_cost(anyio.lowlevel.checkpoint),
        "current_bell": per_call(current_bell, 20000),
    }


def show_pieces(bare: Bare) -> None:
    """What single calls cost."""
    write = ctypes.CDLL("libcuda.so.1").cuStreamWriteValue64_v2
    u64 = ctypes.c_uint64
    write.argtypes = (ctypes.c_void_p, u64, u64, ctypes.c_uint)
    stream = int(bare.stream)
    driver = bare.driver
    pieces: dict[str, float] = {}

    def timed(name: str, call: Callable[[], object]) -> None:
        costs = []
        for _ in range(20):
            costs.append(per_call(call, 100))
            driver.cuStreamSynchronize(bare.stream)
        pieces[name] = quantile(costs, 0.5)

    timed(
        "cuStreamWriteValue64, the bindings",
        lambda: driver.cuStreamWriteValue64(bare.stream, bare.address + 8, 1, 0),
    )
    timed("the same by ctypes", lambda: write(stream, bare.address + 8, 1, 0))
    timed("cuLaunchKernel", bare.launch)
    timed("cuStreamQuery", lambda: driver.cuStreamQuery(bare.stream))
    scanner = NativeScanner(bare.address, 1)
    timed("spin, reached", lambda: scanner.spin(bare.address, 0, 1000))
    timed("arm, nobody asleep", lambda: scanner.arm(0, 2**63, 0, 0, NO_BELL))
    for name, cost in pieces.items():
        print(f"  {cost:7.2f} us  {name}")
    for loop in LOOPS:
        costs = accy_async.run(_loop_pieces, loop=loop)
        for name, cost in costs.items():
            print(f"  {cost:7.2f} us  {name} ({loop})")


def main() -> None:
    bare = Bare()
    cpp = run_cpp()
    base = cpp[0] if cpp else float("nan")
    print(f"C++ launch and synchronise: p50 {base:.1f} us" if cpp else "no nvcc here")
    show_pieces(bare)
    head = f"{'way':58} {'loop':8} {'p50':>7} {'p99':>7} {'ratio':>6}"
    print(f"{head} {'late50':>8} {'late99':>8} {'core':>6}")
    for kind in WAYS:
        for loop in LOOPS:
            taken = accy_async.run(measure_short, kind(bare), bare, loop=loop)
            late, share = accy_async.run(measure_long, kind(bare), bare, loop=loop)
            middle = quantile(taken, 0.5)
            print(
                f"{kind.name:58} {loop:8} {middle:7.1f} {quantile(taken, 0.99):7.1f} "
                f"{middle / base:6.2f} {quantile(late, 0.5):8.1f} "
                f"{quantile(late, 0.99):8.1f} {100 * share:5.1f}%"
            )


if __name__ == "__main__":
    main()
