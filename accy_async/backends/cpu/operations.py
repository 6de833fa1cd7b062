"""What streams of the CPU backend run: launches, copies, records, waits."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from accy_async.backends.cpu.kernels import CpuLaunch
from accy_async.backends.cpu.pool import INLINE_NS, Job, Pace, Scratch, WorkerPool
from accy_async.backends.cpu.streams import CpuStream, Operation
from accy_async.backends.hooks import EventState
from accy_async.errors import DeviceError

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard

__all__ = ["Copy", "FillMemory", "Launch", "Record", "WaitFor"]

_PIECE_BYTES = 256 << 10
"""What one block of a copy that is split over workers moves."""


class Launch(Operation):
    """A kernel over a grid.

    The buffers that it uses are in use until it has run, and so not freed.
    """

    __slots__ = ("_launch", "_pool")

    def __init__(
        self, position: int, pool: WorkerPool, launch: CpuLaunch, guard: Guard | None
    ) -> None:
        self.position = position
        self.guard = guard
        self._pool = pool
        self._launch = launch

    def run(self, stream: CpuStream) -> DeviceError | None:
        launch = self._launch
        pace = launch.pace
        is_short = pace.is_short(launch.blocks)
        if is_short and not pace.is_doubtful:
            status = self._run_short(stream.scratch)
        else:
            job = _LaunchJob(launch, stream.priority)
            # One block cannot be split. It never waits for its turn either, and so
            # cannot deadlock with a kernel of another stream that it waits for.
            if is_short or job.blocks == 1:
                job.run(0, job.blocks, stream.scratch)
            else:
                self._pool.run(job, stream.scratch)
            if job.error is not None:
                raise job.error
            status = job.status
        if not status:
            return None
        return self._error(f"assertion {status} failed", stream.id, code=status)

    def _run_short(self, scratch: Scratch) -> int:
        """Run all blocks here, with a look at the wall clock in place of a measurement.

        The clock also counts what others did meanwhile, so it only raises a doubt.
        """
        launch = self._launch
        kernel = launch.kernel
        block = scratch.describe(launch.shape, 0, launch.blocks, launch.shared_bytes)
        started = time.perf_counter_ns()
        status = kernel.function(launch.arguments, block)
        if time.perf_counter_ns() - started > 2 * INLINE_NS:
            launch.pace.is_doubtful = True
        return status

    def broken(self, error: BaseException, stream: CpuStream) -> DeviceError:
        message = f"the launch failed: {type(error).__name__}: {error}"
        return self._error(message, stream.id)

    def _error(
        self, message: str, stream_id: int | None, code: int | None = None
    ) -> DeviceError:
        return DeviceError(
            message,
            code=code,
            call="launch",
            node=self._launch.request.diagnostic_id,
            kernel=self._launch.kernel.name,
            stream=stream_id,
        )


class _LaunchJob(Job):
    __slots__ = ("_function", "_launch")

    def __init__(self, launch: CpuLaunch, priority: int) -> None:
        kernel = launch.kernel
        super().__init__(launch.blocks, priority, launch.pace)
        self._function = kernel.function
        self._launch = launch

    def call(self, begin: int, end: int, scratch: Scratch) -> int:
        launch = self._launch
        block = scratch.describe(launch.shape, begin, end, launch.shared_bytes)
        return self._function(launch.arguments, block)


class Copy(Operation):
    """A copy between host memory and a buffer, either way.

    Args:
        position: where on the stream.
        pool: the workers that a large one is split over.
        target: the address of what is written.
        source: the address of what is read.
        byte_size: how much.
        kept: what keeps both in place until the copy is done.
        pace: what `_PIECE_BYTES` have cost in copies so far.
        call: the backend call that submitted it.
        guard: asked before, and told of its failure.
    """

    __slots__ = ("_byte_size", "_call", "_kept", "_pace", "_pool", "_source", "_target")

    def __init__(
        self,
        position: int,
        pool: WorkerPool,
        target: int,
        source: int,
        byte_size: int,
        kept: tuple[NDArray[np.uint8], ...],
        pace: Pace,
        call: str,
        guard: Guard | None,
    ) -> None:
        self.position = position
        self.guard = guard
        self._pool = pool
        self._target = target
        self._source = source
        self._byte_size = byte_size
        self._kept = kept
        self._pace = pace
        self._call = call

    def run(self, stream: CpuStream) -> DeviceError | None:
        target, source, size = self._target, self._source, self._byte_size
        if size <= _PIECE_BYTES:
            ctypes.memmove(target, source, size)
            return None
        job = _CopyJob(target, source, size, self._pace, stream.priority)
        if job.pace.is_short(job.blocks):
            job.run(0, job.blocks, stream.scratch)
        else:
            self._pool.run(job, stream.scratch)
        if job.error is not None:
            raise job.error
        return None

    def broken(self, error: BaseException, stream: CpuStream) -> DeviceError:
        del stream
        return DeviceError(
            f"the copy failed: {type(error).__name__}: {error}", call=self._call
        )


class _CopyJob(Job):
    __slots__ = ("_size", "_source", "_target")

    def __init__(
        self, target: int, source: int, size: int, pace: Pace, priority: int
    ) -> None:
        super().__init__(-(-size // _PIECE_BYTES), priority, pace)
        self._target = target
        self._source = source
        self._size = size

    def call(self, begin: int, end: int, scratch: Scratch) -> int:
        first = begin * _PIECE_BYTES
        size = min(end * _PIECE_BYTES, self._size) - first
        ctypes.memmove(self._target + first, self._source + first, size)
        return 0


class FillMemory(Operation):
    """A pattern written over memory, again and again.

    Args:
        position: where on the stream.
        target: the bytes to write; a whole number of patterns.
        pattern: 1, 2, 4 or 8 bytes.
        guard: asked before, and told of its failure.
    """

    __slots__ = ("_pattern", "_target")

    def __init__(
        self,
        position: int,
        target: NDArray[np.uint8],
        pattern: bytes,
        guard: Guard | None,
    ) -> None:
        self.position = position
        self.guard = guard
        self._target = target
        self._pattern = pattern

    def run(self, stream: CpuStream) -> DeviceError | None:
        del stream
        pattern = self._pattern
        # numpy fills without the interpreter lock.
        self._target.view(f"u{len(pattern)}").fill(int.from_bytes(pattern, "little"))
        return None

    def broken(self, error: BaseException, stream: CpuStream) -> DeviceError:
        return DeviceError(
            f"the fill failed: {type(error).__name__}: {error}",
            call="fill_buffer",
            stream=stream.id,
        )


class Record(Operation):
    """The point that an event marks; takes the time there if the event wants it."""

    __slots__ = ("_event", "_lock", "_mark")

    keeps_order = True

    def __init__(
        self,
        position: int,
        event: EventState,
        lock: threading.RLock,
    ) -> None:
        self.position = position
        self.guard = None
        self._event = event
        self._mark = event.mark
        self._lock = lock

    def run(self, stream: CpuStream) -> DeviceError | None:
        event = self._event
        if event.has_timing:
            now_ns = float(time.perf_counter_ns())
            # Under the submission lock, so that an event recorded anew meanwhile
            # keeps the time of its new point.
            with self._lock:
                if event.mark == self._mark:
                    event.time_ns = now_ns
        return None

    def broken(self, error: BaseException, stream: CpuStream) -> DeviceError:
        del stream
        return DeviceError(
            f"recording the event failed: {type(error).__name__}: {error}",
            call="record_event",
        )


class WaitFor(Operation):
    """Holds the stream back until another has come to a recorded point."""

    __slots__ = ("_awaited_position", "_timeline")

    keeps_order = True

    def __init__(self, position: int, event: EventState) -> None:
        self.position = position
        self.guard = None
        assert event.mark is not None
        self._timeline, self._awaited_position = event.mark

    def run(self, stream: CpuStream) -> DeviceError | None:
        stream.hold_until(self._timeline, self._awaited_position)
        cause = self._timeline.error_at(self._awaited_position)
        if cause is None:
            return None
        consequence = cause.copy()
        consequence.is_consequence = True
        consequence.__cause__ = cause
        return consequence

    def broken(self, error: BaseException, stream: CpuStream) -> DeviceError:
        del stream
        return DeviceError(
            f"waiting for the event failed: {type(error).__name__}: {error}",
            call="stream_wait_event",
        )
