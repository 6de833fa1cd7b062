"""Streams and events: opened, recorded, waited for by other streams."""

from __future__ import annotations

from typing import cast

from accy_async.backends.contract.core import BackendCore
from accy_async.backends.handles import EventHandle, ObjectKind, StreamHandle
from accy_async.backends.hooks import EventState
from accy_async.backends.resources import Resource
from accy_async.backends.timeline import Mark, Timeline
from accy_async.errors import InvalidEvent

__all__ = ["Streams", "mark_of"]


class Streams(BackendCore):
    """Streams and events of one device."""

    def create_stream(self, *, priority: int = 0) -> StreamHandle:
        """Open a stream.

        Args:
            priority: 0 is normal, lower is more urgent; the nearest one the
                device has is taken.
        """
        nearest = self.capabilities.clamp_priority(priority)

        def make_handle(object_id: int) -> StreamHandle:
            state.id = object_id
            state.timeline.name = f"stream {object_id}"
            return StreamHandle(
                id=object_id, backend=self.kind, priority=nearest, origin=self._origin
            )

        with self._makers:
            self._check("create_stream")
            state = self._open_stream(nearest, "a stream")
            resource = self._keep(
                ObjectKind.STREAM, make_handle, state, timeline=state.timeline
            )
        return cast("StreamHandle", resource.handle)

    def create_event(self, *, timing: bool = False) -> EventHandle:
        """Open an event; with ``timing``, it also takes the device's time."""
        with self._makers:
            self._check("create_event")
            resource = self._keep(
                ObjectKind.EVENT,
                lambda object_id: EventHandle(
                    id=object_id,
                    backend=self.kind,
                    has_timing=timing,
                    origin=self._origin,
                ),
                self._open_event(has_timing=timing),
            )
        return cast("EventHandle", resource.handle)

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
            if not state.has_timing:
                # Whoever waits for the event must not wait for what comes behind it. A
                # timed event does without: its time is taken, a flag takes some too.
                timeline.request(position)
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
                mark_of(resource, "stream_wait_event")  # which refuses it
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
        timeline, position = mark_of(self._table.get(event), "is_event_complete")
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
            timeline, position = mark_of(resource, "elapsed_ns")
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
        """The point that the stream's submitted work has come to; opens nothing.

        On a stream that another library submits to, that library's work is included.
        """
        state = self._stream(stream)
        timeline = state.timeline
        if state.is_lent or state.is_borrowed:
            self._cover(state)
        return Mark(timeline, timeline.submitted)


def mark_of(event: Resource, call: str) -> tuple[Timeline, int]:
    """Where an event was recorded last; refuses one that never was."""
    mark = cast("EventState", event.payload).mark
    if mark is None:
        raise InvalidEvent(f"{call}: {event.name} was never recorded")
    return mark
