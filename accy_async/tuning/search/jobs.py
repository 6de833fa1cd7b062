"""Work on threads that goes on while nobody awaits it, and is awaited when wanted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from accy_async.backends.completion import Completion

__all__ = ["Job", "Workers"]

_T = TypeVar("_T")


class Job(Generic[_T]):
    """Work that is done once, on a thread; its result is a value that needs no end."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work: Callable[[], _T] | None = work
        self._completion = Completion()
        self._results: list[_T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it; called once, by the thread."""
        work, self._work = self._work, None
        if work is None:  # nobody wants it any more
            return
        try:
            self._results.append(work())
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        self._completion.set()

    def forget(self) -> None:
        """Nobody wants it: where it was not begun, it never will be."""
        self._work = None

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


class Workers:
    """Some threads that take jobs in turn, started when there is something to do.

    Args:
        count: how many at most.
        name: of the threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[[], _T]) -> Job[_T]:
        """Have some work done; never blocks."""
        job = Job(work)
        self._jobs.put(job)
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return job

    def close(self) -> None:
        """Begin nothing more; what is being done is left to its end."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job.forget()
        for _ in self._threads:
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
