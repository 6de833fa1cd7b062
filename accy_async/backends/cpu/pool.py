"""The workers that run blocks, shared by all streams of one backend.

A `Job` is a range of blocks. Its stream's thread posts it, takes part in it, and
returns when all of it is done. At most ``size`` threads run blocks of posted jobs
at once, whoever they are; each takes a *chunk* at a time, always of the most
urgent job, and in turns where several are equally urgent. So an urgent job waits
for one chunk of the others, however long they are.

A chunk is sized by what the kernel's blocks have cost so far (`Pace`, in CPU
time, which waiting for the interpreter lock does not distort): long enough that
handing it out is lost in it, short enough for others to get their turn.
"""

from __future__ import annotations

import ctypes
import heapq
import struct
import threading
import time
from abc import ABC, abstractmethod

from accy_async.artifact.native.abi import LaunchBlock

__all__ = ["CHUNK_NS", "INLINE_NS", "Job", "Pace", "Scratch", "WorkerPool"]

CHUNK_NS = 400_000
"""What a chunk should cost: a hundred times what handing it out does."""

INLINE_NS = 60_000
"""Work up to this runs on the stream's own thread: waking another costs as much."""

_LEAST_CHUNK_NS = 30_000
_CALL_NS = 1_000
_TRUST = 16
_SHARED_ALIGNMENT = 64
_LAUNCH = struct.Struct("<6I5Q")


class Pace:
    """What one block of a kernel costs, learned from its runs.

    Written by several threads without a lock: a lost update costs nothing.

    Attributes:
        ns_per_block: what a block costs; 0 before the first run.
        is_doubtful: True where a run seemed longer than that, so that the next
            should be measured.
    """

    __slots__ = ("_trusted_blocks", "is_doubtful", "ns_per_block")

    def __init__(self) -> None:
        self.ns_per_block = 0.0
        self.is_doubtful = False
        self._trusted_blocks = 1

    def learn(self, blocks: int, cpu_ns: int) -> None:
        """Take a run of so many blocks into account."""
        self.is_doubtful = False
        known = self.ns_per_block
        if known and cpu_ns < _LEAST_CHUNK_NS:
            return
        measured = max(cpu_ns - _CALL_NS, 1) / blocks
        self.ns_per_block = (known + measured) / 2 if known else measured
        # What a few blocks cost tells little about very many: their cost drowns
        # in that of the call, and the first may be unlike the others.
        self._trusted_blocks = max(self._trusted_blocks, _TRUST * blocks)

    def is_short(self, blocks: int) -> bool:
        """True where so many blocks are known to be done in `INLINE_NS`."""
        known = self.ns_per_block
        return (
            bool(known)
            and blocks <= self._trusted_blocks
            and (known * blocks <= INLINE_NS)
        )

    def chunk(self, remaining: int, workers: int) -> int:
        """How many blocks to take at once: few at the end, for balance."""
        known = self.ns_per_block
        if not known:
            return 1
        fair = max(-(-remaining // (2 * workers)), int(_LEAST_CHUNK_NS / known))
        return max(1, min(fair, int(CHUNK_NS / known), self._trusted_blocks))


class Scratch:
    """What one thread needs to call kernels, made once."""

    __slots__ = ("_buffer", "_shared", "_shared_address", "_shared_size", "launch")

    def __init__(self) -> None:
        self._buffer = bytearray(_LAUNCH.size)
        self.launch = LaunchBlock.from_buffer(self._buffer)
        self._shared = bytearray()
        self._shared_address = 0
        self._shared_size = 0

    def describe(
        self,
        shape: tuple[int, int, int, int, int, int],
        begin: int,
        end: int,
        shared_bytes: int,
    ) -> LaunchBlock:
        """The launch structure for blocks from ``begin`` up to ``end``.

        Args:
            shape: the grid, then the threadgroup.
            begin: the first block.
            end: the one after the last.
            shared_bytes: dynamic shared memory.
        """
        if shared_bytes > self._shared_size:
            self._grow(shared_bytes)
        _LAUNCH.pack_into(
            self._buffer, 0, *shape, begin, end, self._shared_address, shared_bytes, 0
        )
        return self.launch

    def _grow(self, shared_bytes: int) -> None:
        self._shared = bytearray(shared_bytes + _SHARED_ALIGNMENT - 1)
        address = _address_of(self._shared)
        self._shared_address = -(-address // _SHARED_ALIGNMENT) * _SHARED_ALIGNMENT
        self._shared_size = shared_bytes


class Job(ABC):
    """A range of blocks to run.

    Attributes:
        status: 0, or what the failed block with the lowest number returned.
        error: what went wrong besides, or None.
    """

    __slots__ = (
        "_done",
        "_failed_at",
        "_running",
        "blocks",
        "error",
        "next_block",
        "pace",
        "priority",
        "status",
    )

    def __init__(self, blocks: int, priority: int, pace: Pace) -> None:
        self.blocks = blocks
        self.priority = priority
        self.pace = pace
        self.next_block = 0
        self.status = 0
        self.error: BaseException | None = None
        self._running = 0
        self._failed_at = blocks
        self._done = threading.Lock()
        self._done.acquire()

    @abstractmethod
    def call(self, begin: int, end: int, scratch: Scratch) -> int:
        """Run blocks without the interpreter lock; returns 0 or a failure's code."""

    @property
    def is_claimed(self) -> bool:
        """True where no block is left to take."""
        return self.next_block >= self.blocks

    def run(self, begin: int, end: int, scratch: Scratch) -> None:
        """Run blocks and keep what came of it; raises nothing."""
        started = time.thread_time_ns()
        try:
            status = self.call(begin, end, scratch)
        except BaseException as error:  # noqa: BLE001 - the operation reports it
            # Its traceback would keep the arguments' memory alive.
            self.error = error.with_traceback(None)
            self.next_block = self.blocks
            return
        self.pace.learn(end - begin, time.thread_time_ns() - started)
        if status and begin < self._failed_at:
            self._failed_at = begin
            self.status = status
            self.next_block = self.blocks

    def claim(self, workers: int) -> tuple[int, int]:
        """Take the next chunk; under the pool's lock."""
        begin = self.next_block
        left = self.blocks - begin
        end = begin + min(self.pace.chunk(left, workers), left)
        self.next_block = end
        self._running += 1
        return begin, end

    def put_down(self) -> None:
        """A chunk is done; under the pool's lock."""
        self._running -= 1
        if self._running == 0 and self.is_claimed:
            self._done.release()

    def wait(self) -> None:
        """Return once every chunk taken is done."""
        self._done.acquire()


class WorkerPool:
    """Threads that run chunks, started when first needed.

    Args:
        size: how many threads may run blocks at once.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._cond = threading.Condition(threading.Lock())
        self._heap: list[tuple[int, int, Job]] = []
        self._turn = 0
        self._running = 0
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    @property
    def has_threads(self) -> bool:
        """True while any thread runs, or waits for jobs."""
        return self._threads > 0

    def run(self, job: Job, scratch: Scratch) -> None:
        """Run all of a job, on this thread and on workers; returns when it is done."""
        with self._cond:
            self._push(job)
            self._call_workers(min(self.size - self._running, job.blocks) - 1)
            self._take_part(job, scratch)
        job.wait()

    def close(self) -> None:
        """Let the workers end when nothing is left to do. Waits for nothing.

        A job posted later starts them anew, and they end after it.
        """
        with self._cond:
            self._is_closed = True
            self._wake_all()

    def _wake_all(self) -> None:
        """Have every idle worker look again."""
        self._idle = 0
        self._cond.notify_all()

    def _push(self, job: Job) -> None:
        self._turn += 1
        heapq.heappush(self._heap, (job.priority, self._turn, job))

    def _most_urgent(self) -> Job | None:
        """The job whose turn it is; forgets those with nothing left to take."""
        heap = self._heap
        while heap and heap[0][2].is_claimed:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def _call_workers(self, wanted: int) -> bool:
        """Have so many workers look for work; False where not one could be had."""
        if wanted <= 0:
            return True
        woken = min(wanted, self._idle)
        self._idle -= woken
        self._cond.notify(woken)
        for started in range(min(wanted - woken, self.size - self._threads)):
            name = f"accy_async cpu worker {self._threads + 1}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no more
                return woken + started > 0
            self._threads += 1
        return True

    def _take_part(self, own: Job, scratch: Scratch) -> None:
        """Run chunks of one job while it is its turn; the lock is held."""
        while not own.is_claimed and self._running < self.size:
            if self._most_urgent() is not own:
                break
            self._run_chunk(own, scratch)
        # Whoever leaves a place hands it on, so that no job waits beside it.
        if self._running < self.size and self._most_urgent() is not None:
            if not self._call_workers(1):
                self._do_all(scratch)
        elif self._is_closed and self._most_urgent() is None:
            self._wake_all()  # those that found every place taken since

    def _do_all(self, scratch: Scratch) -> None:
        """Run whatever there is, as there is no worker to; the lock is held."""
        while self._running < self.size and (job := self._most_urgent()) is not None:
            self._run_chunk(job, scratch)

    def _serve(self) -> None:
        scratch = Scratch()
        with self._cond:
            while True:
                job = self._most_urgent()
                if job is not None and self._running < self.size:
                    self._run_chunk(job, scratch)
                elif job is None and self._is_closed:
                    self._threads -= 1
                    self._wake_all()
                    return
                else:
                    # A frame that waits must keep no job's memory alive.
                    del job
                    # Whoever wakes a worker takes it off the count of idle ones.
                    self._idle += 1
                    self._cond.wait()

    def _run_chunk(self, job: Job, scratch: Scratch) -> None:
        """Run one chunk of the most urgent job, without the lock meanwhile."""
        begin, end = job.claim(self.size)
        heapq.heappop(self._heap)
        if not job.is_claimed:
            self._push(job)
        self._running += 1
        self._cond.release()
        try:
            job.run(begin, end, scratch)
        finally:
            self._cond.acquire()
            self._running -= 1
            job.put_down()


def _address_of(memory: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))
