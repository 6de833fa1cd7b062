"""Workers that were about to wait when their pool was closed."""

from __future__ import annotations

import threading

from accy_async.backends.cpu.pool import Job, Pace, Scratch, WorkerPool

GIVE_UP_S = 20.0


class GatedJob(Job):
    """A job whose blocks begin one by one, and end when they are let."""

    __slots__ = ("begun", "gate")

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks, 0, Pace())
        self.begun = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def call(self, begin: int, end: int, scratch: Scratch) -> int:
        """Begin, and wait at the gate."""
        self.begun.release()
        assert self.gate.acquire(timeout=GIVE_UP_S)
        return 0


class Pool(WorkerPool):
    """A pool that tells when a worker goes idle, and which thread it was."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.workers: set[threading.Thread] = set()
        self.went_idle = threading.Semaphore(0)
        wait = self._cond.wait

        def tell(timeout: float | None = None) -> bool:
            self.workers.add(threading.current_thread())
            self.went_idle.release()
            return wait(timeout)

        self._cond.wait = tell  # type: ignore[method-assign]


def post(pool: WorkerPool, job: Job) -> threading.Thread:
    """Run a job as a stream's thread would."""
    thread = threading.Thread(target=pool.run, args=(job, Scratch()), daemon=True)
    thread.start()
    return thread


def test_a_worker_that_finds_every_place_taken_ends_with_the_last_job() -> None:
    pool = Pool(2)
    first = GatedJob(2)
    first.gate.release(2)
    post(pool, first).join(GIVE_UP_S)
    assert pool.went_idle.acquire(timeout=GIVE_UP_S)  # it started a worker
    # Two streams take both places; one has blocks left that nobody has claimed.
    short, long = GatedJob(1), GatedJob(3)
    streams = []
    for job in (short, long):
        streams.append(post(pool, job))
        assert job.begun.acquire(timeout=GIVE_UP_S)
    pool.close()
    assert pool.went_idle.acquire(timeout=GIVE_UP_S)  # it looked, and waits again
    long.gate.release(3)
    short.gate.release(1)
    for thread in (*streams, *pool.workers):
        thread.join(GIVE_UP_S)
        assert not thread.is_alive()
