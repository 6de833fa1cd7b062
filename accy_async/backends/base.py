"""The Backend contract: submission is sync and never blocks, only waiting is async.

A backend drives one device. Its users hold handles; it holds the objects. The
contract, which the conformance suite (tests/conformance) states for every
backend:

* **Order.** Operations of one stream run in the order of submission, across
  streams in no order but that of recorded events. The default stream (``None``)
  is a stream like the others.
* **Submission.** Every call but the waits is plain, thread-safe, and returns in
  microseconds without waiting for the device. `create_artifact` and
  `load_artifact` may compile or read: where `loads_block` is True, callers on an
  event loop run them on a thread.
* **Checks.** What is wrong in a call (a handle, a count, a limit) raises before
  anything is submitted, and changes nothing.
* **Device errors** belong to the operation that failed. They are raised by the
  waits that cover it (see `Timeline`), and by nothing else, unless the device is
  lost: then every call raises `DeviceLost` with the first error as its cause.
* **Lifetimes.** `destroy` makes a handle unusable at once and frees its object
  when the device has finished with it (see `lifetimes`); nobody has to wait
  first. `live_objects` counts what is not freed yet.
* **Waits** return when the work submitted *before* the call is done, and never
  block the loop. Cancelling a wait stops only the wait.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

import anyio
import anyio.lowlevel

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.kernel import ArtifactRequest, KernelArtifact
from accy_async.backends.handles import (
    BufferHandle,
    EventHandle,
    Handle,
    LoadedArtifact,
    ObjectKind,
    StreamHandle,
)
from accy_async.backends.hooks import BackendHooks, EventState, StreamState
from accy_async.backends.hostmemory import host_bytes
from accy_async.backends.launch import PreparedLaunch
from accy_async.backends.lifetimes import (
    Mark,
    Reaper,
    Resource,
    ResourceTable,
    Timeline,
    refuse_destroyed,
)
from accy_async.errors import (
    DeviceError,
    DeviceLost,
    ForkedProcess,
    InvalidBuffer,
    InvalidEvent,
    OutOfMemory,
    ReadBufferDestinationTooSmall,
    SessionClosed,
)

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard
    from accy_async.backends.launch import LaunchRequest

__all__ = ["DEFAULT_GRACE_S", "Backend", "EventState", "SettleTimeout", "StreamState"]

DEFAULT_GRACE_S = 5.0
"""How long cleanup waits for the device before it hands objects to the reaper."""


class SettleTimeout(TimeoutError):
    """A cleanup's wait was given up: its grace ran out."""


_BACKENDS: weakref.WeakSet[Backend] = weakref.WeakSet()


class Backend(BackendHooks):
    """One device and everything on it. See the module for the contract.

    Args:
        kind: the kind of device.
        grace_s: how long cleanup waits for the device, in seconds.
    """

    loads_block: ClassVar[bool] = False
    """True where creating or loading an artifact may take longer than microseconds."""

    writes_block: ClassVar[bool] = False
    """True where submitting a copy from host memory copies it first."""

    def __init__(self, kind: BackendKind, *, grace_s: float = DEFAULT_GRACE_S) -> None:
        self.kind = kind
        self.grace_s = grace_s
        self._lock = threading.RLock()
        self._table = ResourceTable(kind, self._free)
        self._reaper = Reaper(self._table)
        self._default = self._open_stream(0, "the default stream")
        self._lost: DeviceLost | None = None
        self._is_loss_told = False
        self._is_closed = False
        self._is_forked = False
        _BACKENDS.add(self)

    # Artifacts

    @property
    def default_format(self) -> ArtifactFormat:
        """The artifact format that callers who name none get."""
        return self.kind.default_format

    def create_artifact(self, request: ArtifactRequest) -> KernelArtifact:
        """Make a kernel artifact that this backend can load.

        Raises:
            UnsupportedOperation: the format is not one the device loads.
            CapabilityMismatch: the device lacks what the kernel requires.
            InvalidArtifact: the payload is malformed.
            CompilationError: the compiler refused it.
        """
        self._check("create_artifact")
        self.capabilities.check_request(request)
        return self._create(request)

    def load_artifact(self, artifact: KernelArtifact) -> LoadedArtifact:
        """Load a kernel onto the device.

        Raises:
            InvalidArtifact: the payload is malformed or lacks the kernel.
            RuntimeUnavailable: the driver or loader refused it.
            OutOfMemory: no room.
        """
        self._check("load_artifact")
        payload = self._load(artifact)
        resource = self._table.add(
            ObjectKind.ARTIFACT,
            lambda object_id: LoadedArtifact(
                id=object_id, backend=self.kind, kernel_name=artifact.kernel_name
            ),
            payload,
            f" ({artifact.kernel_name})",
        )
        return cast("LoadedArtifact", self._keep_unless_closed(resource))

    # Buffers

    def allocate_buffer(self, byte_size: int, *, alignment: int = 256) -> BufferHandle:
        """Allocate device memory; its contents are undefined.

        If there is none left, what is waiting to be freed is collected and the
        allocation tried once more.

        Args:
            byte_size: its size; 0 is allowed.
            alignment: of its address, a power of two.

        Raises:
            InvalidBuffer: a size below 0 or an alignment that is no power of 2.
            OutOfMemory: there is no room, with the sizes in the message.
        """
        self._check("allocate_buffer")
        if byte_size < 0:
            raise InvalidBuffer(f"byte_size: got {byte_size}, expected 0 or more")
        if alignment < 1 or alignment & (alignment - 1):
            raise InvalidBuffer(f"alignment: got {alignment}, expected a power of two")
        try:
            payload = self._allocate(byte_size, alignment)
        except OutOfMemory:
            if not self._reclaim():
                raise
            payload = self._allocate(byte_size, alignment)
        resource = self._table.add(
            ObjectKind.BUFFER,
            lambda object_id: BufferHandle(
                id=object_id, backend=self.kind, byte_size=byte_size
            ),
            payload,
            f" ({byte_size} bytes)",
        )
        return cast("BufferHandle", self._keep_unless_closed(resource))

    def _reclaim(self) -> bool:
        """Free what nobody uses any more; True if that freed anything."""
        before = sum(self._table.counts().values())
        self._table.sweep()
        gc.collect()
        return sum(self._table.counts().values()) < before

    def write_buffer(
        self,
        buffer: BufferHandle,
        data: object,
        *,
        offset_bytes: int = 0,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Submit a copy from host memory to a buffer.

        Args:
            buffer: where to.
            data: bytes or a C-contiguous array; *borrowed*: leave it unchanged
                until the stream has passed the copy.
            offset_bytes: where in the buffer to begin.
            stream: the stream that copies; None for the default stream.
            guard: asked before, and told of its failure; see `guards`.

        Returns:
            Its position on the stream's timeline.

        Raises:
            InvalidBuffer: the handle is not alive, the data are not contiguous,
                or the copy would pass the buffer's end.
        """
        self._check("write_buffer")
        memory = host_bytes(data, writable=False)
        with self._lock:
            resource = self._table.get(buffer)
            _check_range(resource, offset_bytes, memory.byte_size, "write")
            state = self._stream(stream)
            position = _advance(state, resource)
            self._write(state, position, resource, offset_bytes, memory, guard)
        return position

    def read_buffer(
        self,
        buffer: BufferHandle,
        out: object,
        *,
        byte_size: int | None = None,
        offset_bytes: int = 0,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Submit a copy from a buffer to host memory.

        Args:
            buffer: where from.
            out: a writable C-contiguous array or bytearray; *borrowed*: its
                contents are undefined until the stream has passed the copy.
            byte_size: how much to read; as much as ``out`` holds if left out.
            offset_bytes: where in the buffer to begin.
            stream: the stream that copies; None for the default stream.
            guard: asked before, and told of its failure; see `guards`.

        Returns:
            Its position on the stream's timeline.

        Raises:
            ReadBufferDestinationTooSmall: ``out`` is smaller than ``byte_size``.
            InvalidBuffer: the handle is not alive, ``out`` is not writable or
                contiguous, or the copy would pass the buffer's end.
        """
        self._check("read_buffer")
        memory = host_bytes(out, writable=True)
        with self._lock:
            resource = self._table.get(buffer)
            if byte_size is not None:
                if memory.byte_size < byte_size:
                    raise ReadBufferDestinationTooSmall(
                        f"reading {byte_size} bytes of {resource.name} into "
                        f"{memory.byte_size} bytes"
                    )
                memory = memory.first(byte_size)
            _check_range(resource, offset_bytes, memory.byte_size, "read")
            state = self._stream(stream)
            position = _advance(state, resource)
            self._read(state, position, resource, offset_bytes, memory, guard)
        return position

    def copy_buffer(
        self,
        source: BufferHandle,
        target: BufferHandle,
        *,
        byte_size: int | None = None,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Submit a copy from one buffer's start to another's, on the device.

        Args:
            source: where from.
            target: where to; another buffer.
            byte_size: how much; all of ``source`` if left out.
            stream: the stream that copies; None for the default stream.
            guard: asked before, and told of its failure; see `guards`.

        Returns:
            Its position on the stream's timeline.

        Raises:
            InvalidBuffer: a handle is not alive, both are one buffer, or the
                copy would pass an end.
        """
        self._check("copy_buffer")
        size = source.byte_size if byte_size is None else byte_size
        with self._lock:
            read, written = self._table.get(source), self._table.get(target)
            if read is written:
                raise InvalidBuffer(f"copy of {read.name} over itself")
            _check_range(read, 0, size, "copy")
            _check_range(written, 0, size, "copy")
            state = self._stream(stream)
            position = _advance(state, read, written)
            self._copy(state, position, read, written, size, guard)
        return position

    def fill_buffer(
        self,
        buffer: BufferHandle,
        pattern: bytes,
        *,
        byte_size: int | None = None,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Submit the writing of a pattern, again and again, over a buffer's start.

        Args:
            buffer: where to.
            pattern: 1, 2, 4 or 8 bytes.
            byte_size: how much to write, a multiple of the pattern's size; the
                whole buffer if left out.
            stream: the stream that fills; None for the default stream.
            guard: asked before, and told of its failure; see `guards`.

        Returns:
            Its position on the stream's timeline.

        Raises:
            InvalidBuffer: the handle is not alive, the pattern is of another
                size, or it does not fit ``byte_size`` or the buffer.
        """
        self._check("fill_buffer")
        size = buffer.byte_size if byte_size is None else byte_size
        if len(pattern) not in (1, 2, 4, 8) or size % len(pattern):
            raise InvalidBuffer(
                f"fill of {size} bytes with a pattern of {len(pattern)}, expected 1, "
                "2, 4 or 8 that divide it"
            )
        with self._lock:
            resource = self._table.get(buffer)
            _check_range(resource, 0, size, "fill")
            state = self._stream(stream)
            position = _advance(state, resource)
            self._fill(state, position, resource, pattern, size, guard)
        return position

    # Streams and events

    def create_stream(self, *, priority: int = 0) -> StreamHandle:
        """Open a stream.

        Args:
            priority: 0 is normal, lower is more urgent; the nearest one the
                device has is taken.
        """
        self._check("create_stream")
        nearest = self.capabilities.clamp_priority(priority)
        state = self._open_stream(nearest, "a stream")

        def make_handle(object_id: int) -> StreamHandle:
            state.id = object_id
            state.timeline.name = f"stream {object_id}"
            return StreamHandle(id=object_id, backend=self.kind, priority=nearest)

        resource = self._table.add(
            ObjectKind.STREAM, make_handle, state, timeline=state.timeline
        )
        return cast("StreamHandle", self._keep_unless_closed(resource))

    def create_event(self, *, timing: bool = False) -> EventHandle:
        """Open an event; with ``timing``, it also takes the device's time."""
        self._check("create_event")
        resource = self._table.add(
            ObjectKind.EVENT,
            lambda object_id: EventHandle(
                id=object_id, backend=self.kind, has_timing=timing
            ),
            self._open_event(has_timing=timing),
        )
        return cast("EventHandle", self._keep_unless_closed(resource))

    def record_event(
        self, event: EventHandle, stream: StreamHandle | None = None
    ) -> int:
        """Mark the point that the stream's submitted work has come to.

        Recording again moves the event; who waits for the old point still does.

        Returns:
            The point's position on the stream's timeline.
        """
        self._check("record_event")
        with self._lock:
            resource = self._table.get(event)
            state: EventState = resource.payload  # type: ignore[assignment]
            on = self._stream(stream)
            timeline = on.timeline
            position = timeline.advance()
            resource.touch(timeline, position)
            state.mark = (timeline, position)
            state.time_ns = None
            self._record(on, position, state)
        return position

    def stream_wait_event(self, stream: StreamHandle | None, event: EventHandle) -> int:
        """Hold back what is submitted to the stream next until the event.

        Returns:
            The wait's position on the stream's timeline.

        Raises:
            InvalidEvent: it was never recorded, so that it would wait for nothing.
        """
        self._check("stream_wait_event")
        with self._lock:
            resource = self._table.get(event)
            state: EventState = resource.payload  # type: ignore[assignment]
            if state.mark is None:
                _mark_of(resource, "stream_wait_event")  # which refuses it
            on = self._stream(stream)
            timeline = on.timeline
            position = timeline.advance()
            resource.touch(timeline, position)
            self._stream_wait(on, position, state)
        return position

    def is_event_complete(self, event: EventHandle) -> bool:
        """True where the stream has passed the event.

        Raises:
            InvalidEvent: it was never recorded.
        """
        self._check("is_event_complete")
        timeline, position = _mark_of(self._table.get(event), "is_event_complete")
        return timeline.has_reached(position)

    def is_stream_idle(self, stream: StreamHandle | None = None) -> bool:
        """True where everything submitted to the stream has completed."""
        self._check("is_stream_idle")
        return self._stream(stream).timeline.is_idle

    def elapsed_ns(self, start: EventHandle, end: EventHandle) -> float:
        """Device time from one event to another, in nanoseconds.

        Raises:
            InvalidEvent: an event is of another device, has no timing, was never
                recorded, or has not been reached; each has its own message.
        """
        self._check("elapsed_ns")
        resources = [self._table.get(event) for event in (start, end)]
        states = []
        for resource in resources:
            state = cast("EventState", resource.payload)
            if not state.has_timing:
                raise InvalidEvent(
                    f"elapsed_ns: {resource.name} was created without timing=True"
                )
            timeline, position = _mark_of(resource, "elapsed_ns")
            if not timeline.has_reached(position):
                raise InvalidEvent(
                    f"elapsed_ns: {resource.name} has not been reached; wait for it"
                )
            states.append(state)
        elapsed = self._elapsed_ns(*states)
        if elapsed is None:
            names = " or ".join(resource.name for resource in resources)
            raise InvalidEvent(
                f"elapsed_ns: {names} has not been reached: it was skipped after a "
                "failure"
            )
        return elapsed

    def mark(self, stream: StreamHandle | None = None) -> Mark:
        """The point that the stream's submitted work has come to; opens nothing."""
        timeline = self._stream(stream).timeline
        return Mark(timeline, timeline.submitted)

    # Launching

    def launch(self, request: LaunchRequest) -> int:
        """Submit a kernel to its stream. A grid of no blocks is a no-op.

        Returns:
            Its position on the stream's timeline; the last one's for a no-op.

        Raises:
            LaunchArgumentMismatch: the arguments are not the kernel's.
            CapabilityMismatch: the geometry is beyond the device's limits.
            InvalidArtifact, InvalidBuffer, InvalidStream: a handle is not alive.
        """
        with self._lock:
            prepared = self.prepare_launch(request)
            return self.submit_launch(prepared, request.stream)

    def prepare_launch(self, request: LaunchRequest) -> PreparedLaunch:
        """Check and pack a launch once, to submit it many times.

        Raises:
            LaunchArgumentMismatch, CapabilityMismatch, InvalidArtifact,
            InvalidBuffer: as for `launch`.
        """
        self._check("launch")
        request.check_counts()
        self.capabilities.check_geometry(request.geometry, request.artifact.kernel_name)
        with self._lock:
            artifact = self._find_for_launch(request.loaded)
            buffers = [self._find_for_launch(b.handle) for b in request.buffers]
            payload = self._prepare(request, artifact, buffers)
        return PreparedLaunch(request, artifact, buffers, payload)

    def submit_launch(
        self,
        prepared: PreparedLaunch,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Submit a prepared launch to a stream.

        Args:
            prepared: what `prepare_launch` gave.
            stream: where it runs; None for the default stream.
            guard: asked before, and told of its failure; see `guards`.

        Returns:
            Its position on the stream's timeline; the last one's for a no-op.

        Raises:
            InvalidArtifact, InvalidBuffer, InvalidStream: something that it uses
                is not alive any more.
        """
        self._check("launch")
        with self._lock:
            for resource in prepared.resources:
                if not resource.is_alive:
                    refuse_destroyed(resource)
            state = self._stream(stream)
            timeline = state.timeline
            if not prepared.has_blocks:
                return timeline.submitted
            position = timeline.advance()
            for resource in prepared.resources:
                resource.touch(timeline, position)
            self._launch(state, position, prepared, guard)
        return position

    def submit_launches(
        self, launches: Sequence[PreparedLaunch], stream: StreamHandle | None = None
    ) -> None:
        """Submit prepared launches in order, all of them or none.

        Raises:
            InvalidArtifact, InvalidBuffer, InvalidStream: something that one of
                them uses is not alive any more; none was submitted.
        """
        with self._lock:
            for prepared in launches:
                for resource in prepared.resources:
                    if not resource.is_alive:
                        refuse_destroyed(resource)
            for prepared in launches:
                self.submit_launch(prepared, stream)

    # Waits

    async def wait_stream(self, stream: StreamHandle) -> None:
        """Return once the work now submitted to the stream is done.

        Raises:
            DeviceError: some of it failed.
            InvalidStream: the stream is not alive.

        Cancellation: only the wait stops; the work goes on.
        """
        self._check("wait_stream")
        await self._wait_mark(self.mark(stream))

    async def wait_default_stream(self) -> None:
        """Return once the work now submitted to the default stream is done.

        Raises:
            DeviceError: some of it failed.

        Cancellation: only the wait stops; the work goes on.
        """
        self._check("wait_default_stream")
        await self._wait_mark(self.mark(None))

    async def wait_event(self, event: EventHandle) -> None:
        """Return once the event's last recorded point is reached.

        Raises:
            DeviceError: the work it marks failed.
            InvalidEvent: the event is not alive or was never recorded.

        Cancellation: only the wait stops; the work goes on.
        """
        self._check("wait_event")
        timeline, position = _mark_of(self._table.get(event), "wait_event")
        await self._wait_mark(Mark(timeline, position))

    async def wait_buffer(self, buffer: BufferHandle) -> None:
        """Return once the work now submitted that uses the buffer is done.

        Raises:
            DeviceError: some of it failed.
            ExceptionGroup: work failed on several streams.
            InvalidBuffer: the buffer is not alive.

        Cancellation: only the wait stops; the work goes on.
        """
        self._check("wait_buffer")
        uses = self._table.get(buffer).last_uses()
        if not uses:
            await anyio.lowlevel.checkpoint()
        await self._wait_marks(uses)

    async def wait_device(self) -> None:
        """Return once the work now submitted to every stream is done.

        Raises:
            DeviceError: some of it failed.
            ExceptionGroup: work failed on several streams.

        Cancellation: only the wait stops; the work goes on.
        """
        self._check("wait_device")
        await self._wait_marks(
            [Mark(line, line.submitted) for line in self._timelines()]
        )

    async def wait_open_streams(self) -> None:
        """`wait_device` for an owner that leaves: it tells what nobody was told yet.

        Streams destroyed already are left out: whoever destroyed a busy one had
        its grace to wait for it.

        Raises:
            DeviceError: work failed that no wait has told of.
            ExceptionGroup: such work failed on several streams.
        """
        self._check("wait_open_streams")
        retired = {resource.timeline for resource in self._table.retired()}
        await self._wait_marks(
            [
                Mark(line, line.submitted)
                for line in self._timelines()
                if line not in retired
            ],
            only_untold=True,
        )

    async def _wait_marks(
        self, marks: list[Mark], *, only_untold: bool = False
    ) -> None:
        """Wait for every mark, then raise what failed at any of them."""
        errors: list[Exception] = []
        for mark in marks:
            try:
                await self._wait_mark(mark, only_untold=only_untold)
            except DeviceError as error:
                errors.append(error)
                if isinstance(error, DeviceLost):
                    break
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("several streams failed", errors)

    async def _wait_mark(self, mark: Mark, *, only_untold: bool = False) -> None:
        """Wait, and free what the wait showed to be idle before anybody looks."""
        try:
            await (mark.wait_untold() if only_untold else mark.wait())
        except DeviceLost:
            self._is_loss_told = True
            raise
        finally:
            self._table.sweep()

    async def settle(
        self, wait: Callable[[], object], grace_s: float | None = None
    ) -> Exception | None:
        """Best-effort wait of a cleanup: shielded, with a deadline.

        Args:
            wait: an async callable, e.g. ``backend.wait_device``.
            grace_s: the deadline in seconds; the backend's own if left out.

        Returns:
            The error the wait raised, a SettleTimeout if it did not end in time,
            or None.

        Cancellation: shielded from it.
        """
        grace = self.grace_s if grace_s is None else grace_s
        with anyio.CancelScope(deadline=anyio.current_time() + grace, shield=True):
            try:
                await wait()  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 - returned, not swallowed
                return error
            return None
        return SettleTimeout(f"the device did not finish within {grace:g} s")

    # Lifetimes

    def destroy(self, handle: Handle) -> bool:
        """Destroy an object: unusable at once, freed when the device is done with it.

        Returns:
            True if it was freed at once, False if the reaper holds it.

        Raises:
            InvalidBuffer, InvalidArtifact, InvalidStream, InvalidEvent: it is
                not alive.
        """
        if self._is_forked:
            return True
        # Between a call's look-up of the object and its use, which are under the
        # same lock, it must not go.
        with self._lock:
            return self._table.destroy(handle)

    def is_alive(self, handle: Handle) -> bool:
        """True where the handle can be used and destroyed."""
        return self._table.find(handle) is not None

    def object_name(self, handle: Handle) -> str:
        """How messages name the object of a living handle."""
        return self._table.get(handle).name

    def live_objects(self, since_id: int = 1) -> dict[str, int]:
        """Objects not freed yet, by kind, those that the reaper holds included.

        Args:
            since_id: count only those with ids from this one.
        """
        return self._table.counts(since_id)

    @property
    def reaper(self) -> Reaper:
        """What was destroyed while the device might still use it."""
        return self._reaper

    @property
    def is_healthy(self) -> bool:
        """True while the backend is open and its device answers."""
        return not (self._is_closed or self._is_forked) and self._lost is None

    def untold_loss(self) -> DeviceLost | None:
        """The loss of the device, if no call or wait has raised it yet."""
        if self._lost is None or self._is_loss_told:
            return None
        self._is_loss_told = True
        lost = self._lost.copy()
        lost.__cause__ = self._lost.__cause__
        return lost

    def close(self) -> None:
        """Destroy every object left, newest first, and refuse further calls.

        Idempotent, and waits for nothing: busy objects go to the reaper.

        Raises:
            ExceptionGroup: the device refused to destroy some; all the others
                were destroyed nevertheless.
        """
        if self._is_forked or self._is_closed:
            return
        self._is_closed = True
        self.destroy_since(1)

    def destroy_since(self, first_id: int) -> int:
        """Destroy every living object with an id from ``first_id``, newest first.

        Returns:
            How many there were.

        Raises:
            ExceptionGroup: the device refused to destroy some; all the others
                were destroyed nevertheless.
        """
        leftovers = self._table.living(first_id)
        errors: list[Exception] = []
        interrupt: BaseException | None = None
        for resource in leftovers:
            try:
                self.destroy(resource.handle)
            except Exception as error:  # noqa: BLE001 - raised below, all together
                errors.append(error)
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = interrupt or error
        if interrupt is not None:
            raise interrupt
        if errors:
            raise ExceptionGroup("some objects could not be destroyed", errors)
        return len(leftovers)

    @property
    def next_id(self) -> int:
        """The id that the next object will get; ids count up."""
        return self._table.next_id

    # Within

    def _find_for_launch(self, handle: Handle) -> Resource | None:
        """The object of a handle in a launch; None for one to be taken on trust."""
        return self._table.get(handle)

    def _check(self, call: str) -> None:
        """Refuse a call on a backend closed, forked, or whose device is lost."""
        if self._is_forked:
            raise ForkedProcess(
                f"{call}: this backend was opened before fork() and cannot be used in "
                "the child; open one in the child, or start workers with spawn"
            )
        if self._is_closed:
            raise SessionClosed(f"{call}: the backend is closed")
        if self._lost is not None:
            self._is_loss_told = True
            raise self._lost.copy() from self._lost.__cause__

    def _lose(self, cause: DeviceError) -> None:
        """The device is gone: end every wait, free everything, refuse all calls."""
        lost = DeviceLost(
            f"the device is lost: {cause.message}",
            code=cause.code,
            call=cause.call,
            node=cause.node,
            kernel=cause.kernel,
            stream=cause.stream,
        )
        lost.__cause__ = cause
        self._lost = lost
        for timeline in self._timelines():
            timeline.lose(lost)
        self._table.lose()

    def _keep_unless_closed(self, resource: Resource) -> Handle:
        """The handle of a new object, destroyed if the backend closed meanwhile."""
        if self._is_closed and self._table.find(resource.handle) is not None:
            self._table.destroy(resource.handle)
            raise SessionClosed(
                f"the backend was closed while {resource.name} was made"
            )
        return resource.handle

    def _stream(self, stream: StreamHandle | None) -> StreamState:
        if stream is None:
            return self._default
        return self._table.get(stream).payload  # type: ignore[return-value]

    def _timelines(self) -> list[Timeline]:
        streams = [
            cast("StreamState", resource.payload)
            for resource in (*self._table.retired(), *reversed(self._table.living()))
            if resource.kind is ObjectKind.STREAM
        ]
        return [self._default.timeline, *(state.timeline for state in streams)]


def _advance(state: StreamState, *touched: Resource | None) -> int:
    position = state.timeline.advance()
    for resource in touched:
        if resource is not None:
            resource.touch(state.timeline, position)
    return position


def _mark_of(event: Resource, call: str) -> tuple[Timeline, int]:
    mark = cast("EventState", event.payload).mark
    if mark is None:
        raise InvalidEvent(f"{call}: {event.name} was never recorded")
    return mark


def _check_range(buffer: Resource, offset: int, size: int, what: str) -> None:
    capacity = cast("BufferHandle", buffer.handle).byte_size
    if offset < 0 or offset + size > capacity:
        raise InvalidBuffer(
            f"{what} of {size} bytes at offset {offset} passes the end of {buffer.name}"
        )


def _refuse_in_child() -> None:
    for backend in _BACKENDS:
        backend._is_forked = True  # noqa: SLF001 - this module's own class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_in_child)
