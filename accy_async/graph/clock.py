"""When a device did what it was given, in the host's time.

A device that asks nobody when an operation's turn comes (`Backend.asks_guards`) is
told to take its own time, by timed events around the operation. Their times count
from an *anchor*, an event whose moment on the host's clock is known within some
microseconds: the tightest of a few round trips through a stream of the clock's own.
Anchors are taken anew every second, as clocks drift and a long elapsed time is told
less exactly (CUDA gives it in 24 bits).

What the device did in order is told in order, on one stream and across streams. So a
new anchor goes on from the one before, by the device's own clock, as far as what was
measured allows; how far it had to give way makes the rate of the two clocks. And
where an operation would have begun before it was submitted, it is the anchor that is
early: all that counts from it is told as much later from then on. Both happen where
other programs use the device, and its answers take a hundred times as long.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import attrs

from accy_async.errors import AccyError
from accy_async.observe.protocol import ClockAlignment

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import EventHandle, StreamHandle

__all__ = ["DeviceClock", "Stamp", "continued"]

_ALIGN_EVERY_NS = 1_000_000_000
_ROUND_TRIPS = 4
_PATIENCE_NS = 1_000_000
"""How long a round trip may take: some 10 us are usual, also where much is at work."""


class _Busy(Exception):
    """The device took too long to answer."""


class _Anchor:
    """An event, when it was by the host's clock, and who still counts from it."""

    __slots__ = ("alignment", "event", "users")

    def __init__(self, event: EventHandle, alignment: ClockAlignment) -> None:
        self.event = event
        self.alignment = alignment
        self.users = 0

    def moment(self, passed_ns: int, *, not_before: int) -> int:
        """The host's time so long after the event; later from now on if it must be."""
        at = self.alignment.to_host_ns(passed_ns)
        if at < not_before:
            self.alignment = attrs.evolve(
                self.alignment, host_ns=self.alignment.host_ns + not_before - at
            )
        return max(at, not_before)


class Stamp:
    """The events around one operation, and what they are counted from."""

    __slots__ = ("anchor", "clock", "end", "start", "stream_id", "submitted_ns")

    def __init__(
        self,
        clock: DeviceClock,
        anchor: _Anchor,
        start: EventHandle,
        stream_id: int,
        submitted_ns: int,
    ) -> None:
        self.clock = clock
        self.anchor = anchor
        self.start = start
        self.end: EventHandle | None = None
        self.stream_id = stream_id
        self.submitted_ns = submitted_ns


class DeviceClock:
    """Takes the time on one device, for one event loop.

    `begin` and `end` are its thread's; `read` and `forget` are anybody's.

    Args:
        backend: the device.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._idle: list[EventHandle] = []
        self._stream: StreamHandle | None = None
        self._anchor: _Anchor | None = None
        self._aligned_ns = 0
        self._ends: dict[int, int] = {}
        self._lock = threading.Lock()  # of the anchors; the device is not called in it

    def takes(self, stream: StreamHandle) -> bool:
        """Whether it takes the time on this stream; elsewhere guards tell."""
        del stream
        return True

    def begin(self, stream: StreamHandle) -> Stamp:
        """Note where an operation begins that is submitted to the stream next.

        Sync; takes some 50 us once a second, when it looks how the clocks stand.

        Raises:
            AccyError: the device refused; nothing was noted.
        """
        now = time.perf_counter_ns()
        anchor = self._anchor
        if anchor is None or now - self._aligned_ns > _ALIGN_EVERY_NS:
            anchor = self._align()
            now = time.perf_counter_ns()
        event = self._take()
        try:
            self._backend.record_event(event, stream)
        except BaseException:
            self._idle.append(event)
            raise
        with self._lock:
            anchor.users += 1
        return Stamp(self, anchor, event, stream.id, now)

    def end(self, stamp: Stamp, stream: StreamHandle) -> int:
        """Note where the operation ends; returns the position to look behind.

        Raises:
            AccyError: the device refused.
        """
        event = self._take()
        try:
            position = self._backend.record_event(event, stream)
        except BaseException:
            self._idle.append(event)
            raise
        stamp.end = event
        return position

    def read(self, stamp: Stamp) -> tuple[int, int]:
        """When an operation began and ended, as ``time.perf_counter_ns()``.

        Once the device has passed its end; gives the events back.

        Raises:
            AccyError: the device cannot say.
        """
        assert stamp.end is not None
        backend = self._backend
        began = backend.elapsed_ns(stamp.anchor.event, stamp.start)
        took = max(0, round(backend.elapsed_ns(stamp.start, stamp.end)))
        with self._lock:
            start = stamp.anchor.moment(round(began), not_before=stamp.submitted_ns)
        start = max(start, self._ends.get(stamp.stream_id, 0))
        self._ends[stamp.stream_id] = start + took
        self.forget(stamp, is_past=True)
        return start, start + took

    def forget(self, stamp: Stamp, *, is_past: bool = False) -> None:
        """Give up an operation's events; those not passed yet are destroyed."""
        for event in (stamp.start, stamp.end):
            if event is None:
                continue
            if is_past:
                self._idle.append(event)
            else:
                self._backend.discard(event)
        stamp.end = None
        self._release(stamp.anchor)

    def _take(self) -> EventHandle:
        while self._idle:
            event = self._idle.pop()
            if self._backend.is_alive(event):
                return event
        return self._backend.create_event(timing=True)

    def _release(self, anchor: _Anchor) -> None:
        with self._lock:
            anchor.users -= 1
            is_done = anchor.users == 0 and anchor is not self._anchor
        if is_done:
            self._idle.append(anchor.event)

    def _align(self) -> _Anchor:
        """Take a new anchor; the old one again where the device is too busy."""
        backend, old = self._backend, self._anchor
        if self._stream is None:
            self._stream = backend.create_stream()
        stream, base, probe = self._stream, self._take(), self._take()
        before = time.perf_counter_ns()
        backend.record_event(base, stream)

        def read_device_ns() -> int:
            backend.record_event(probe, stream)
            limit = time.perf_counter_ns() + _PATIENCE_NS
            while not backend.is_event_complete(probe):
                if time.perf_counter_ns() > limit:
                    raise _Busy
            return round(backend.elapsed_ns(base, probe))

        try:
            read_device_ns()  # which warms both ways
            alignment = ClockAlignment.measure(
                read_device_ns, samples=_ROUND_TRIPS, host_clock=time.perf_counter_ns
            )
            if old is not None:
                passed = round(backend.elapsed_ns(old.event, base))
        except (_Busy, AccyError):
            backend.discard(probe)
            self._aligned_ns = time.perf_counter_ns()
            if old is not None:
                backend.discard(base)
                return old
            took = self._aligned_ns - before
            alignment = ClockAlignment(device_ns=0, host_ns=before, uncertainty_ns=took)
        else:
            self._idle.append(probe)
            self._aligned_ns = time.perf_counter_ns()
        with self._lock:
            if old is not None:
                alignment = continued(old.alignment, passed, alignment)
            new = self._anchor = _Anchor(base, alignment)
            is_done = old is not None and old.users == 0
        if old is not None and is_done:
            self._idle.append(old.event)
        return new


def continued(
    old: ClockAlignment, passed_ns: int, measured: ClockAlignment
) -> ClockAlignment:
    """A new alignment that goes on from an old one, by the device's clock.

    Args:
        old: what was in force until now; its device's time counts from its anchor.
        passed_ns: the new anchor's device time, counted from the old anchor.
        measured: what was measured of the new one; its device's time counts from
            the new anchor.

    Returns:
        An alignment counted from the new anchor. It says of the new anchor's moment
        what the old one says, unless that is further from the measured moment than
        this is uncertain: then it gives way so far, and the rate with it.
    """
    moment = measured.to_host_ns(0)
    expected = old.to_host_ns(passed_ns)
    low, high = moment - measured.uncertainty_ns, moment + measured.uncertainty_ns
    host_ns = min(max(expected, low), high)
    spans = old
    if host_ns != expected:
        first = attrs.evolve(old, device_ns=0, host_ns=old.to_host_ns(0))
        second = attrs.evolve(measured, device_ns=passed_ns, host_ns=host_ns)
        spans = ClockAlignment.between(first, second)
    return ClockAlignment(
        device_ns=0,
        host_ns=host_ns,
        uncertainty_ns=measured.uncertainty_ns,
        device_span_ns=spans.device_span_ns,
        host_span_ns=spans.host_span_ns,
    )
