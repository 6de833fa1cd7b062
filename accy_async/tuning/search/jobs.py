"""Work on threads that goes on while nobody awaits it, and is awaited when wanted."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from accy_async.backends.completion import Completion

__all__ = ["Job", "Workers"]

_T = TypeVar("_T")


class Job(Generic[_T]):
    """Work that is done once, on a thread; its result is a value that needs no end."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self.began_s: float | None = None
        self._work: Callable[[], _T] | None = work
        self._completion = Completion()
        self._lock = threading.Lock()
        self._is_done = False
        self._results: list[_T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it; called once, by the thread."""
        work, self._work = self._work, None
        if work is None:  # nobody wants it any more
            return
        self.began_s = time.monotonic()
        results: list[_T] = []
        error: BaseException | None = None
        try:
            results.append(work())
        except BaseException as failure:  # noqa: BLE001 - `result` raises it
            error = failure
        self._end(results, error)

    def forget(self) -> None:
        """Nobody wants it: where it was not begun, it never will be."""
        self._work = None

    def give_up(self, error: BaseException) -> None:
        """Whatever it comes to, this is what it came to; unless it is done."""
        self._end([], error)

    async def result(self) -> _T:
        """Its result, once there is one.

        Raises:
            Exception: what the work raised.

        Cancellation: only the wait stops; the work goes on, and can be awaited again.
        """
        await self._completion.wait()
        if isinstance(self._error, StopIteration):
            raise RuntimeError("the work raised StopIteration") from self._error
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _end(self, results: list[_T], error: BaseException | None) -> None:
        with self._lock:
            if self._is_done:
                return
            self._is_done = True
            self._results, self._error = results, error
        self._completion.set()


class Workers:
    """Some threads that take jobs in turn, started when there is something to do.

    Args:
        count: how many at most.
        name: of the threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._running: dict[threading.Thread, Job[Any] | None] = {}

    def submit(self, work: Callable[[], _T]) -> Job[_T]:
        """Have some work done; never blocks."""
        job = Job(work)
        self._jobs.put(job)
        self._hire()
        return job

    def give_up_after(self, limit_s: float) -> None:
        """Give up what has been worked on for longer, and have others go on.

        The thread that is stuck in it is left to itself, and another takes its place.
        """
        now = time.monotonic()
        with self._lock:
            stuck = {
                thread: job
                for thread, job in self._running.items()
                if job is not None
                and job.began_s is not None
                and now - job.began_s >= limit_s
            }
            for thread in stuck:
                del self._running[thread]
        for job in stuck.values():
            job.give_up(TimeoutError(f"not done after {limit_s:g} s"))
            self._hire()

    def close(self) -> None:
        """Begin nothing more; what is being done is left to its end."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job.forget()
        for _ in self._running:
            self._jobs.put(None)

    def _hire(self) -> None:
        """Start a thread, unless there are enough."""
        with self._lock:
            if len(self._running) >= self._count:
                return
            thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._running[thread] = None
        try:
            thread.start()
        except RuntimeError:  # the system has no more
            with self._lock:
                del self._running[thread]
                if self._running:  # these will do
                    return
            raise

    def _serve(self) -> None:
        thread = threading.current_thread()
        while (job := self._jobs.get()) is not None:
            with self._lock:
                self._running[thread] = job
            job.run()
            with self._lock:
                if thread not in self._running:  # given up: another has its place
                    return
                self._running[thread] = None
