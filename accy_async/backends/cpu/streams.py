"""Streams of the CPU backend: each a queue of operations and a thread.

The thread is started by the first operation and ends when the stream is freed,
or the backend closed, and the queue is empty. It runs the operations in order,
says on the stream's timeline what came of each, and sweeps the backend's table,
so that what was destroyed while in use is freed when its last use is done.

Nothing that is raised there ends the thread. What an operation raises, or its guard,
becomes the operation's `DeviceError`; what cannot be freed is told to its owner in the
end (`accy_async.backends.refusals`). Operations in a failed range are skipped, but for
those that keep order between streams: what is submitted once the failure was told
relies on it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue

from accy_async.backends.completion import Completion
from accy_async.backends.cpu.pool import Scratch
from accy_async.backends.guards import Guard
from accy_async.backends.hooks import StreamState
from accy_async.backends.timeline import Timeline
from accy_async.errors import DeviceError

__all__ = ["CpuStream", "CpuTimeline", "Operation"]


class CpuTimeline(Timeline):
    """A timeline that other streams' threads can wait for."""

    __slots__ = ("_listeners", "_listeners_lock")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._listeners: list[tuple[int, Callable[[], None]]] = []
        self._listeners_lock = threading.Lock()

    def listen(self, position: int, call: Callable[[], None]) -> bool:
        """Have ``call`` called once ``position`` is complete, on some thread.

        Returns:
            False if it is complete already; nothing will be called then.
        """
        with self._listeners_lock:
            if self.completed >= position:
                return False
            self._listeners.append((position, call))
            return True

    def complete(self, position: int) -> None:
        """Say that every operation up to ``position`` is done; any thread."""
        super().complete(position)
        self._tell()

    def lose(self, error: DeviceError) -> None:
        """The device is gone: every wait, now and later, raises ``error``."""
        super().lose(error)
        self._tell()

    def _tell(self) -> None:
        with self._listeners_lock:
            if not self._listeners:
                return
            completed = self.completed
            reached = [call for at, call in self._listeners if at <= completed]
            self._listeners = [one for one in self._listeners if one[0] > completed]
        for call in reached:
            call()


class _Opens(Completion):
    """Opens a stream's gate."""

    __slots__ = ("_gate",)

    def __init__(self, gate: threading.Lock) -> None:
        super().__init__()
        self._gate = gate

    def set(self) -> None:
        self._gate.release()


class Operation(ABC):
    """Something submitted to a stream.

    Attributes:
        position: where on the stream's timeline.
        guard: asked before it runs, and told of its failure; None for none.
    """

    __slots__ = ("guard", "position")

    position: int
    guard: Guard | None
    keeps_order = False
    """True for an operation that is not skipped when one before it failed."""

    @abstractmethod
    def run(self, stream: CpuStream) -> DeviceError | None:
        """Do it, on the stream's thread; returns what failed on the device."""

    @abstractmethod
    def broken(self, error: BaseException, stream: CpuStream) -> DeviceError:
        """The error of an operation whose running raised another."""


class CpuStream(StreamState):
    """One stream.

    Args:
        timeline: how far it has come.
        priority: its urgency; lower is more urgent.
        lock: the backend's submission lock.
        sweep: frees what has become idle; it raises nothing.
    """

    def __init__(
        self,
        timeline: CpuTimeline,
        priority: int,
        lock: threading.RLock,
        sweep: Callable[[], object],
    ) -> None:
        super().__init__(timeline, priority)
        self.scratch = Scratch()
        self._lock = lock
        self._sweep = sweep
        self._queue: SimpleQueue[Operation | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._gate = threading.Lock()
        self._gate.acquire()

    @property
    def has_thread(self) -> bool:
        """True while its thread runs, or waits for operations."""
        return self._thread is not None

    def submit(self, operation: Operation) -> None:
        """Put an operation at the end of the queue; under the submission lock.

        Raises:
            DeviceError: the system has no thread for it. It is as if it had not been
                submitted.
        """
        if self._thread is not None:
            self._queue.put(operation)
            return
        try:
            self._start()
        except RuntimeError as error:
            self.timeline.complete(operation.position)  # all before it is done
            raise DeviceError(
                f"the stream's thread was not started: {error}", stream=self.id
            ) from error
        self._queue.put(operation)
        if self._is_stopping:
            self._queue.put(None)

    def stop(self) -> None:
        """Let the thread end when the queue is empty; any thread, waits for nothing.

        Idempotent.
        """
        with self._lock:
            if self._is_stopping:
                return
            self._is_stopping = True
            if self._thread is not None:
                self._queue.put(None)

    def hold_until(self, timeline: Timeline, position: int) -> None:
        """Return once the position is complete; on the stream's own thread.

        The timeline may be another device's.
        """
        if not isinstance(timeline, CpuTimeline):
            timeline.watch(position, _Opens(self._gate))
            self._gate.acquire()
        elif timeline.listen(position, self._gate.release):
            self._gate.acquire()

    def _start(self) -> None:
        name = f"accy_async cpu {self.timeline.name}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        thread.start()
        self._thread = thread

    def _serve(self) -> None:
        while True:
            operation = self._queue.get()
            if operation is None:
                if self._may_end():
                    return
                continue
            position = operation.position
            self._run(operation)
            # While the thread waits it keeps no operation, thus no memory, alive.
            del operation
            self.timeline.complete(position)
            self._sweep()

    def _run(self, operation: Operation) -> None:
        timeline = self.timeline
        position = operation.position
        if not operation.keeps_order and timeline.error_at(position) is not None:
            return
        guard = operation.guard
        try:
            if guard is not None and guard.blocks():
                return
            error = operation.run(self)
        except BaseException as cause:  # noqa: BLE001 - it is reported by the waits
            error = operation.broken(cause, self)
            # The traceback would keep the operation's memory alive.
            error.__cause__ = cause.with_traceback(None)
        if guard is not None:
            error = _told(guard, error)
        if error is not None:
            timeline.fail(position, error)

    def _may_end(self) -> bool:
        """True, and the thread must end, if nothing was submitted meanwhile."""
        with self._lock:
            if not self._queue.empty():
                self._queue.put(None)
                return False
            self._thread = None
            return True


def _told(guard: Guard, error: DeviceError | None) -> DeviceError | None:
    """Tell a guard how its operation ended; gives what it could not be told."""
    try:
        if error is None:
            guard.ended()
        else:
            guard.failed(error)
    except BaseException as cause:  # noqa: BLE001 - the waits report it
        failed = DeviceError(f"the guard failed: {type(cause).__name__}: {cause}")
        failed.__cause__ = cause.with_traceback(None)
        return failed
    return None
