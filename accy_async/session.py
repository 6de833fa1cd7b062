"""Sessions: one device, and the owner of everything on it.

A session is opened with ``async with`` and owns what is made inside: however its
block is left, its streams are awaited for the grace at most and everything is
destroyed. It adds to a backend what an async service needs: a bounded pool of
streams, a bound on launches in flight, arrays in and out.

States: open → draining (nothing new is taken) → closed. Leaving takes every
session through both; a call on one that is not open raises `SessionClosed`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import attrs
import numpy as np

from accy_async.backends.array import DeviceArray
from accy_async.backends.base import DEFAULT_GRACE_S, Backend, SettleTimeout
from accy_async.backends.catalogue import open_backend
from accy_async.backends.cleanup import overtake, raise_together
from accy_async.backends.completion import run_abandonable
from accy_async.backends.streampool import StreamPool
from accy_async.dtypes import DType
from accy_async.errors import (
    GraceExpired,
    InvalidBuffer,
    InvalidType,
    InvalidValue,
    ReadBufferDestinationTooSmall,
    SessionClosed,
)
from accy_async.graph.executive import GraphExecutive
from accy_async.graph.options import LaunchOptions
from accy_async.observe.protocol import phase
from accy_async.pipeline.launch import PipelineLaunch, launch_pipeline
from accy_async.pipeline.pool import PipelineArtifactPool, load_pipeline_artifacts

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from numpy.typing import ArrayLike, NDArray

    from accy_async.artifact.entry import KernelCallRegistry
    from accy_async.artifact.formats import ArtifactFormat
    from accy_async.backends.capabilities import Capabilities
    from accy_async.backends.handles import StreamHandle
    from accy_async.backends.lifetimes import Mark
    from accy_async.graph.outcome import RunStatistics
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.prepared import Binding
    from accy_async.graph.run import Run
    from accy_async.observe.protocol import Observer
    from accy_async.pipeline.model import KernelCallPipeline

__all__ = ["Session", "SessionStatistics", "open_session"]

_MOST_AT_ONCE = 1 << 20
"""Bytes that may be copied on the event loop's thread: some 100 us."""

_OPENED_AT_ONCE = frozenset({"cpu", "recording"})

DEFAULT_MAX_IN_FLIGHT = 512
"""Pipeline launches in flight: half of the depth (1024) at which a CUDA launch
queue begins to block its caller."""


@attrs.frozen(kw_only=True)
class SessionStatistics:
    """A session at one moment.

    Attributes:
        live_objects: objects not freed yet, by kind.
        held_by_reaper: names of those destroyed while still in use.
        streams_open: streams of the pool, leased and idle.
        streams_leased: streams that a block uses now.
        runs: graph runs going on.
        launches: pipeline launches begun since the session was opened.
        launches_in_flight: those of them not known to be done.
    """

    live_objects: dict[str, int]
    held_by_reaper: tuple[str, ...]
    streams_open: int
    streams_leased: int
    runs: int
    launches: int
    launches_in_flight: int


@asynccontextmanager
async def open_session(
    backend: str | Backend = "auto",
    *,
    grace: float | None = None,
    max_streams: int | None = None,
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    observer: Observer | None = None,
) -> AsyncIterator[Session]:
    """Open a session on a device, and close it on the way out.

    Leaving the block in any way awaits the work in flight for ``grace`` seconds
    at most and destroys every object made in it, newest first. What the device
    still uses then is left to the reaper, and the block ends with a
    `GraceExpired` that names it. A caller's own backend stays open, without
    what was made on it during the session.

    Args:
        backend: ``"auto"`` (the best here), a backend's name, or an open backend.
        grace: how long cleanup may wait for the device, in seconds; 5 if left
            out, a caller's own backend's if that is given.
        max_streams: how many streams the pool opens at most; as many as the
            device makes use of if left out.
        max_in_flight: pipeline launches in flight before `Session.launch_pipeline`
            waits for the oldest; and operations that all graph runs together may
            have in flight.
        observer: told of every run, load, upload and download; None costs nothing.

    Raises:
        InvalidValue: no such backend, or a number out of range.
        BackendUnavailable: it cannot run here.
        DeviceError: on leaving: work that nobody awaited failed.
        ExceptionGroup: the block and its cleanup failed, or the cleanup failed
            in several ways or under a cancellation.

    Cancellation: an ordinary exit; the cleanup is shielded, for the grace.
    """
    _check_number("grace", grace, 0.0)
    _check_number("max_streams", max_streams, 1)
    _check_number("max_in_flight", max_in_flight, 1)
    is_owned = not isinstance(backend, Backend)
    if isinstance(backend, Backend):
        device = backend
    elif backend in _OPENED_AT_ONCE:
        device = open_backend(backend, grace_s=DEFAULT_GRACE_S)
    else:  # a driver may take its time
        device = await run_abandonable(
            lambda: open_backend(backend, grace_s=DEFAULT_GRACE_S),
            lambda late: late.close(),
            name=f"open {backend}",
        )
    session = Session(
        device,
        is_owned=is_owned,
        grace_s=device.grace_s if grace is None else grace,
        max_streams=max_streams or device.capabilities.max_streams,
        max_in_flight=max_in_flight,
        observer=observer,
    )
    primary: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            session._begin(tasks)  # noqa: SLF001 - opened here, left here
            try:
                await anyio.lowlevel.checkpoint()
                yield session
            except BaseException as error:  # noqa: BLE001 - _leave raises it
                primary = error
            with anyio.CancelScope(shield=True):
                await session._stop_runs()  # noqa: SLF001
    except BaseExceptionGroup as group:
        # Nothing but an interrupt ends the session's own group: it is no group.
        primary = primary or group.exceptions[0]
    except BaseException as error:  # noqa: BLE001 - as above
        primary = primary or error
    await session._leave(primary)  # noqa: SLF001


class Session:
    """A device and what was made on it; `open_session` makes one.

    Attributes:
        backend: the device, for calls that the session does not wrap. What is
            made on it is the session's too.
        grace_s: how long cleanup may wait for the device, in seconds.
        max_streams: how many streams the pool opens at most.
        max_in_flight: pipeline launches in flight at most.
        observer: told of what happens, unless a call names another.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        is_owned: bool,
        grace_s: float,
        max_streams: int,
        max_in_flight: int,
        observer: Observer | None = None,
    ) -> None:
        self.observer = observer
        self.backend = backend
        self.grace_s = grace_s
        self.max_streams = max_streams
        self.max_in_flight = max_in_flight
        self._is_owned = is_owned
        self._outer_grace_s = backend.grace_s
        backend.grace_s = grace_s
        self._first_id = backend.next_id
        self._state = "open"
        self._streams = StreamPool(backend, max_streams)
        self._runs = GraphExecutive(backend, self._streams, max_in_flight, grace_s)
        self._group: TaskGroup | None = None
        self._in_flight: deque[_InFlight] = deque()
        self._launch_count = 0

    def __repr__(self) -> str:
        name = self.backend.capabilities.identity.name
        return f"<Session on {name}: {self._state}>"

    # What it is

    @property
    def capabilities(self) -> Capabilities:
        """What the device is and can do."""
        return self.backend.capabilities

    @property
    def is_open(self) -> bool:
        """True until the session's block is left."""
        return self._state == "open"

    @property
    def is_healthy(self) -> bool:
        """True while the session is open and its device answers."""
        return self.is_open and self.backend.is_healthy

    def live_objects(self) -> dict[str, int]:
        """Objects made in the session and not freed yet, by kind.

        All zero after the session, but for what the device was still using when
        the grace ran out: that is counted until it is freed.
        """
        return self.backend.live_objects(self._first_id)

    def statistics(self) -> SessionStatistics:
        """The session at this moment."""
        self._forget_completed()
        return SessionStatistics(
            live_objects=self.live_objects(),
            held_by_reaper=self.backend.reaper.held(),
            streams_open=self._streams.opened,
            streams_leased=self._streams.leased,
            runs=self._runs.running,
            launches=self._launch_count,
            launches_in_flight=len(self._in_flight),
        )

    # Streams

    @asynccontextmanager
    async def stream(self, *, priority: int = 0) -> AsyncIterator[StreamHandle]:
        """Lease a stream from the pool; leaving the block awaits its work.

        Awaits a free stream while all are leased. A stream belongs to the block
        that leased it, never to "the current task": pass it on by hand.

        Args:
            priority: 0 is normal, lower is more urgent.

        Raises:
            SessionClosed: the session is not open.
            DeviceError: on leaving: work of the stream failed.
            GraceExpired: on leaving after an error or a cancellation (then in an
                ExceptionGroup): the work did not end in time. The stream is left
                to the reaper.

        Cancellation: while waiting for a stream, nothing has happened. Inside
            the block, what was submitted is awaited for the grace at most.
        """
        self._check("stream")
        stream = await self._streams.lease(priority)
        primary: BaseException | None = None
        try:
            self._check("stream")
            yield stream
            if self.backend.is_alive(stream):
                await self.backend.wait_stream(stream)
        except BaseException as error:  # noqa: BLE001 - raised below
            primary = error
        await self._return_stream(stream, primary)

    async def _return_stream(
        self, stream: StreamHandle, primary: BaseException | None
    ) -> None:
        backend = self.backend
        is_busy = (
            backend.is_healthy
            and backend.is_alive(stream)
            and not backend.is_stream_idle(stream)
        )
        settled = None
        if is_busy:
            settled = await backend.settle(
                lambda: backend.wait_stream(stream), self.grace_s
            )
        name = f"stream {stream.id}"
        errors: list[Exception] = []
        if not self._streams.give_back(stream) and isinstance(settled, SettleTimeout):
            errors.append(GraceExpired(name, self.grace_s, (name,)))
        elif settled is not None and not isinstance(settled, SettleTimeout):
            errors.append(settled)
        raise_together(f"leaving {name}", primary, errors)

    # Arrays

    def allocate(self, shape: int | Sequence[int], dtype: DType) -> DeviceArray:
        """Allocate an array; its contents are undefined. Sync; never waits.

        Args:
            shape: extents, outermost first; an int for one dimension.
            dtype: the element type.

        Raises:
            InvalidValue: the shape or dtype is no shape or dtype.
            OutOfMemory: no room.
            SessionClosed: the session is not open.
        """
        self._check("allocate")
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        return DeviceArray.allocate(self.backend, extents, dtype)

    async def upload(
        self,
        array: ArrayLike,
        *,
        dtype: DType | None = None,
        copy: bool = False,
        stream: StreamHandle | None = None,
    ) -> DeviceArray:
        """Copy a numpy array to a new array on the device; awaits the copy.

        Args:
            array: any shape; C-contiguous unless ``copy``; *borrowed*: leave it
                unchanged until the call returns.
            dtype: the element type, where numpy's says too little (bf16 as
                uint16); it must have the same size.
            copy: True to take a view that is not C-contiguous, through a
                contiguous copy.
            stream: the stream that copies; None for the default stream.

        Raises:
            InvalidBuffer: it is not C-contiguous (also a ValueError).
            InvalidValue: its dtype has no counterpart on a device.
            OutOfMemory: no room.
            DeviceError: the copy failed.
            SessionClosed: the session is not open.

        Cancellation: the new array is freed once the copy is done with it.
        """
        self._check("upload")
        host = np.asarray(array)
        element = _element_type(host, dtype)
        if copy:
            host = np.ascontiguousarray(host).reshape(host.shape)
        _check_contiguous("upload", host)
        target = DeviceArray.allocate(self.backend, host.shape, element)
        try:
            with phase(self.observer, "upload", repr(target)):
                await self._write(target, host, stream)
                await self._wait_stream(stream)
        except BaseException as error:
            errors: list[Exception] = []
            try:
                target.free()
            except Exception as refused:  # noqa: BLE001 - raised together below
                errors.append(refused)
            raise_together("upload", error, errors)
            raise
        return target

    async def write(
        self,
        target: DeviceArray,
        array: ArrayLike,
        *,
        stream: StreamHandle | None = None,
    ) -> None:
        """Copy a numpy array over an array on the device; awaits the copy.

        The copy follows every use of ``target`` submitted before.

        Raises:
            InvalidBuffer: it is not C-contiguous, or not as large as ``target``.
            DeviceError: the copy, or earlier work on ``target``, failed.
            SessionClosed: the session is not open.

        Cancellation: the copy may still happen.
        """
        self._check("write")
        host = np.asarray(array)
        _check_contiguous("write", host)
        if host.nbytes != target.byte_size:
            raise InvalidBuffer(
                f"write: {host.nbytes} bytes for {target!r} of {target.byte_size}"
            )
        await self.backend.wait_buffer(target.handle)
        with phase(self.observer, "upload", repr(target)):
            await self._write(target, host, stream)
            await self._wait_stream(stream)

    async def download(
        self,
        source: DeviceArray,
        *,
        out: NDArray[np.generic] | None = None,
        stream: StreamHandle | None = None,
    ) -> NDArray[np.generic]:
        """Copy an array from the device to numpy; awaits the copy.

        The copy follows every use of ``source`` submitted before, on any stream.

        Args:
            source: what to copy.
            out: a writable C-contiguous array to copy into; a new one if left
                out. bf16 comes as uint16.
            stream: the stream that copies; None for the default stream.

        Returns:
            The copy, of the array's shape.

        Raises:
            ReadBufferDestinationTooSmall: ``out`` is smaller than ``source``.
            InvalidBuffer: ``out`` is larger, read-only or not C-contiguous.
            DeviceError: work that writes ``source``, or the copy, failed.
            SessionClosed: the session is not open.

        Cancellation: only the wait stops; ``out`` is undefined and is kept
            alive until the copy is done with it.
        """
        self._check("download")
        if out is None:
            name = "uint16" if source.dtype is DType.BF16 else source.dtype.numpy
            out = np.empty(source.shape, dtype=name)
        _check_out(source, out)
        await self.backend.wait_buffer(source.handle)
        with phase(self.observer, "download", repr(source)):
            self.backend.read_buffer(source.handle, out, stream=stream)
            await self._wait_stream(stream)
        return out

    # Pipelines

    async def load_pipeline(
        self,
        pipeline: KernelCallPipeline,
        registry: KernelCallRegistry,
        format: ArtifactFormat | str | None = None,
    ) -> PipelineArtifactPool:
        """Load a pipeline's kernels; see `load_pipeline_artifacts`.

        The format is the device's own if left out. The pool can be closed early;
        the session destroys its kernels at the latest.

        Raises:
            SessionClosed: the session is not open.
        """
        self._check("load_pipeline")
        with phase(self.observer, "load", pipeline.target):
            return await load_pipeline_artifacts(
                self.backend, pipeline, registry, format or self.backend.default_format
            )

    async def launch_pipeline(self, request: PipelineLaunch) -> None:
        """Run a pipeline once; see `accy_async.pipeline.launch_pipeline`.

        Awaits, before anything else, that fewer than ``max_in_flight`` launches
        are in flight.

        Raises:
            SessionClosed: the session is not open.

        Cancellation: while waiting for a place, nothing has happened.
        """
        self._check("launch_pipeline")
        await self._wait_for_place()
        self._launch_count += 1
        in_flight = _InFlight()
        self._in_flight.append(in_flight)
        try:
            await launch_pipeline(self.backend, request, grace_s=self.grace_s)
        except BaseException:
            in_flight.finish(None)
            raise
        is_awaited = request.artifacts is None or request.intermediates is None
        in_flight.finish(None if is_awaited else self.backend.mark(request.stream))

    # Graphs

    def start(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None = None,
        options: LaunchOptions | None = None,
        *,
        observer: Observer | None = None,
    ) -> Run:
        """Start a run of a plan. Sync: it is checked now, and submitted in a task.

        Args:
            plan: what to run.
            bindings: an array or buffer for each slot that is not scratch, a
                numpy array for each host slot, an event for each external one.
            options: how this run differs from the plain one.
            observer: told of every node; the session's own if left out.

        Raises:
            LaunchArgumentMismatch: bindings or options do not fit the plan.
            InvalidType: a binding cannot be one.
            SessionClosed: the session is not open.
        """
        self._check("start")
        assert self._group is not None
        return self._runs.start(
            self._group,
            plan,
            bindings,
            options or LaunchOptions(),
            observer or self.observer,
        )

    async def run(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None = None,
        options: LaunchOptions | None = None,
        *,
        observer: Observer | None = None,
    ) -> RunStatistics:
        """Run a plan, and return when all of it is done.

        `start` and ``await``, tied together: so that `anyio.fail_after` and
        `anyio.move_on_after` around it stop the run itself.

        Raises:
            ExceptionGroup: everything that failed in the run.
            LaunchArgumentMismatch, InvalidType, SessionClosed: as for `start`.

        Cancellation: cancels the run, and returns once it is over: within the
            grace, or with a `GraceExpired` in an ExceptionGroup.
        """
        run = self.start(plan, bindings, options, observer=observer)
        try:
            return await run
        except anyio.get_cancelled_exc_class() as cancelled:
            run.cancel()
            with anyio.CancelScope(shield=True):
                await run.wait_over()
            raise_together(f"run {run.name!r}", cancelled, run.cleanup_errors())
            raise

    async def _wait_for_place(self) -> None:
        self._forget_completed()
        while len(self._in_flight) >= self.max_in_flight:
            await self._in_flight[0].wait()
            self._forget_completed()
            self._check("launch_pipeline")

    def _forget_completed(self) -> None:
        while self._in_flight and self._in_flight[0].is_done:
            self._in_flight.popleft()

    # Within

    async def _write(
        self,
        target: DeviceArray,
        host: NDArray[np.generic],
        stream: StreamHandle | None,
    ) -> None:
        """Submit a copy to the device; on a thread where it would hold up the loop."""

        def write() -> int:
            return self.backend.write_buffer(target.handle, host, stream=stream)

        if self.backend.writes_block and host.nbytes > _MOST_AT_ONCE:
            await run_abandonable(write, lambda _: None, name="upload")
        else:
            write()

    async def _wait_stream(self, stream: StreamHandle | None) -> None:
        if stream is None:
            await self.backend.wait_default_stream()
        else:
            await self.backend.wait_stream(stream)

    def _check(self, call: str) -> None:
        if self._state != "open":
            raise SessionClosed(f"{call}: the session is {self._state}")

    def _begin(self, group: TaskGroup) -> None:
        self._group = group

    async def _stop_runs(self) -> None:
        """Cancel what runs, and wait for it: each run ends within the grace."""
        self._state = "draining"
        self._runs.cancel_all()
        await self._runs.wait_all()

    async def _leave(self, primary: BaseException | None) -> None:
        self._state = "draining"
        backend = self.backend
        settled: Exception | None = None
        errors: list[Exception] = []
        held_before = set(backend.reaper.held())
        interrupt: BaseException | None = None
        try:
            if backend.is_healthy:
                settled = await backend.settle(backend.wait_open_streams, self.grace_s)
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = error
        late = self._destroy_everything(errors)
        interrupt = interrupt or late
        self._state = "closed"
        backend.grace_s = self._outer_grace_s
        held = [name for name in backend.reaper.held() if name not in held_before]
        if held:
            errors.insert(0, GraceExpired("the session", self.grace_s, held))
        if settled is not None and not isinstance(settled, SettleTimeout):
            errors.insert(0, settled)
        errors += self._runs.unobserved_errors()
        if settled is None and (lost := backend.untold_loss()) is not None:
            errors.insert(0, lost)
        if interrupt is not None:
            primary = overtake(primary, interrupt, errors)
        raise_together("the session", primary, errors)

    def _destroy_everything(self, errors: list[Exception]) -> BaseException | None:
        """Destroy what is left; returns the interrupt that came between, if one did."""
        closing: list[Callable[[], object]] = [
            lambda: self.backend.destroy_since(self._first_id)
        ]
        if self._is_owned:
            closing.append(self.backend.close)
        interrupt: BaseException | None = None
        for close in closing:
            try:
                close()
            except ExceptionGroup as group:
                errors.extend(group.exceptions)
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                interrupt = interrupt or error
        return interrupt


class _InFlight:
    """A launch's place, taken until the launch is known to be done.

    While the launch is being awaited by its caller, that says when; afterwards
    the point that its stream had come to does.
    """

    __slots__ = ("_is_awaited", "_mark", "_returned")

    def __init__(self) -> None:
        self._is_awaited = True
        self._mark: Mark | None = None
        self._returned = anyio.Event()

    @property
    def is_done(self) -> bool:
        return not self._is_awaited and (self._mark is None or self._mark.is_reached)

    def finish(self, mark: Mark | None) -> None:
        """The caller is done with it; the device will be at ``mark``."""
        self._is_awaited = False
        self._mark = mark
        self._returned.set()

    async def wait(self) -> None:
        await self._returned.wait()
        if self._mark is not None:
            await self._mark.wait_reached()


def _check_number(name: str, value: float | None, minimum: float) -> None:
    field = f"open_session.{name}"
    expected = f"a number of at least {minimum:g}, or None"
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidType(field, value, expected)
    if not value >= minimum:
        raise InvalidValue(field, value, expected)


def _element_type(host: NDArray[np.generic], dtype: DType | None) -> DType:
    if dtype is None:
        return DType.from_numpy(host.dtype)
    if not isinstance(dtype, DType):
        raise InvalidType("upload.dtype", dtype, "a DType")
    if host.dtype.hasobject or dtype.size_bytes != host.dtype.itemsize:
        raise InvalidValue(
            "upload.dtype", dtype, f"a dtype as wide as the array's {host.dtype}"
        )
    return dtype


def _check_contiguous(call: str, host: NDArray[np.generic]) -> None:
    if not host.flags.c_contiguous:
        raise InvalidBuffer(
            f"{call}: an array of shape {host.shape} and strides {host.strides} is not "
            "C-contiguous; pass numpy.ascontiguousarray(array)"
        )


def _check_out(source: DeviceArray, out: NDArray[np.generic]) -> None:
    if not isinstance(out, np.ndarray):
        raise InvalidType("download.out", out, "a numpy array")
    if out.nbytes < source.byte_size:
        raise ReadBufferDestinationTooSmall(
            f"download: {source!r} has {source.byte_size} bytes, out has {out.nbytes}"
        )
    if out.nbytes > source.byte_size:
        raise InvalidBuffer(
            f"download: {source!r} has {source.byte_size} bytes, out has {out.nbytes}"
        )
