"""One scanner for a device: it wakes everybody who waits for it.

A wait that is not worth polling is left to the hub (`CudaTimeline` decides). Each
stream has a slot on the scanner's board, for the earliest position that somebody
waits for. Where all of those are tasks of one event loop, the scanner rings that
loop's bell itself, and the loop does the rest on its own thread: no other thread of
Python takes part. Everything else is done by a second thread, so that nothing keeps
the first from scanning: waits from several loops for one stream, what is to be done
on the host first and takes long, and what nobody waits for.

Now and then it asks the driver about each stream that somebody waits for. That turns
a lost signal into a late one, and a lost context into an error for everybody, instead
of a word that is never written.

Order of locks: the backend's, the hub's, a timeline's.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from accy_async.backends.cuda.board import NO_BELL
from accy_async.backends.cuda.nativescanner import open_scanner
from accy_async.backends.cuda.scanner import Found
from accy_async.backends.hubthread import start_hub_thread
from accy_async.backends.pace import Paces
from accy_async.errors import AccyError

if TYPE_CHECKING:
    from accy_async.backends.bell import Bell
    from accy_async.backends.cuda.timeline import CudaTimeline

__all__ = ["Hub"]

_log = logging.getLogger("accy_async.backends")

_SWEEP_NS = 50_000_000
"""How often the driver is asked about the streams that somebody waits for."""


class Hub:
    """The scanner and its two threads, which the first wait that needs them starts.

    Args:
        words: the address of the streams' words.
        count: how many there are.
        after: called on the second thread after something got done; it raises nothing.
        has_chores: whether there is something for ``after`` to do.
    """

    def __init__(
        self,
        words: int,
        count: int,
        after: Callable[[], object],
        has_chores: Callable[[], bool],
    ) -> None:
        self.scanner = open_scanner(words, count)
        self.paces = Paces()
        self.has_chores = has_chores
        self._after = after
        self._lock = threading.Lock()
        self._doors: dict[Bell, _Door] = {}
        self._own: set[CudaTimeline] = set()
        self._ended: deque[_Door] = deque()
        self._work: SimpleQueue[Found] = SimpleQueue()
        self._to_start = [("hub", self._serve), ("scanner", self._scan)]
        self._is_closed = False
        _HUBS.add(self)

    def expect(self, line: CudaTimeline) -> None:
        """See to everybody who waits for this stream; any thread, never blocks long.

        Raises:
            RuntimeUnavailable: there is no thread to do it with.
        """
        with self._lock:
            self._expect(line)

    def expect_also(self, line: CudaTimeline, position: int, bell: Bell | None) -> None:
        """The same, for one more who waits for ``position`` on that bell's loop."""
        with self._lock:
            armed = line.armed
            if armed is None or armed > position or line.bell is not bell:
                self._expect(line)

    def _expect(self, line: CudaTimeline) -> None:
        demand = None if self._is_closed or line.is_detached else line.demand()
        if demand is not None and self._to_start:
            self._start()
        door = self._doors.get(line.bell) if line.bell is not None else None
        if door is not None:
            door.lines.discard(line)
        self._own.discard(line)
        if demand is None:
            if line.armed is not None:
                line.armed = line.bell = None
                self.scanner.disarm(line.slot)
            return
        position, bell, near, late = demand
        line.armed, line.bell = position, bell
        door = None if bell is None else self._door(bell)
        if door is None:
            self._own.add(line)
        else:
            door.lines.add(line)
        descriptor = NO_BELL if door is None else door.descriptor
        self.scanner.arm(line.slot, position, near, late, descriptor)

    def _start(self) -> None:
        """Start the threads.

        Raises:
            RuntimeUnavailable: the system has none to give; the next wait tries again.
        """
        while self._to_start:
            name, target = self._to_start[-1]
            start_hub_thread(target, f"accy_async cuda {name}")
            self._to_start.pop()

    def forget(self, line: CudaTimeline) -> None:
        """Leave a stream's slot to others: all that was submitted to it is done."""
        with self._lock:
            self._expect(line)
        line.poll()

    def nudge(self) -> None:
        """Have the second thread look at what there is to do."""
        self._work.put(Found.TOLD)

    def close(self) -> None:
        """Read no word any more; those who still wait are the caller's to wake.

        Idempotent. The threads end by themselves, soon.
        """
        with self._lock:
            self._is_closed = True
            doors = list(self._doors.values())
            self._doors.clear()
            self._own.clear()
        self.scanner.end()
        self.nudge()
        for door in doors:
            door.close()

    def _door(self, bell: Bell) -> _Door | None:
        """The way to a loop; None where the loop ended or has no descriptor."""
        door = self._doors.get(bell)
        if door is None:
            descriptor = bell.duplicate()
            if descriptor is None:
                return None
            door = self._doors[bell] = _Door(self, bell, descriptor)
        return door

    def serve(self, lines: list[CudaTimeline]) -> bool:
        """Wake who waits for what these streams have reached; any thread.

        Returns:
            True if any has reached what was awaited.
        """
        has_reached = False
        for line in lines:
            if line.has_reached_target:
                has_reached = True
                line.poll()
                self.expect(line)
        return has_reached

    def lines_of(self, door: _Door) -> list[CudaTimeline]:
        """The streams that are awaited on a loop."""
        with self._lock:
            return list(door.lines)

    def drop_soon(self, door: _Door) -> None:
        """A loop has ended; takes no lock."""
        self._ended.append(door)
        self.scanner.interrupt()

    # On the threads

    def _scan(self) -> None:
        scanner = self.scanner
        scanner.begin()
        while not self._is_closed:
            scanner.resume()
            self._drop_ended()
            found = scanner.scan(_SWEEP_NS)
            if found is not Found.TOLD:
                self._work.put(found)

    def _serve(self) -> None:
        while True:
            found = self._work.get()
            if self._is_closed:
                return
            if found is Found.LATE:
                self._sweep()
            with self._lock:
                own = list(self._own)
            self.serve(own)
            self._after()

    def _drop_ended(self) -> None:
        """Close what led to loops that have ended: here, where nobody rings."""
        while self._ended:
            door = self._ended.popleft()
            with self._lock:
                self._doors.pop(door.bell, None)
                lines = list(door.lines)
                for line in lines:
                    self._expect(line)
            door.close()

    def _sweep(self) -> None:
        """Ask the driver about every stream that somebody waits for."""
        with self._lock:
            lines = list(self._own)
            for door in self._doors.values():
                lines += door.lines
        for line in lines:
            try:
                is_idle = line.is_idle
            except AccyError as error:  # it is asked again, and its word may still come
                _log.warning("asking the driver about %s: %s", line.name, error)
                continue
            if is_idle:
                self.expect(line)


class _Door:
    """The way from a hub to one event loop.

    Its descriptor is a duplicate of the bell's, which only the scanning thread closes
    while it scans: so the scanner never writes to one that means something else since.
    """

    __slots__ = ("bell", "descriptor", "hub", "lines")

    def __init__(self, hub: Hub, bell: Bell, descriptor: int) -> None:
        self.hub = hub
        self.bell = bell
        self.descriptor = descriptor
        self.lines: set[CudaTimeline] = set()
        bell.listen(self.answer, self.end)

    def answer(self) -> None:
        """The bell was rung, perhaps by the scanner; on the loop's thread."""
        hub = self.hub
        if hub.serve(hub.lines_of(self)) and hub.has_chores():
            hub.nudge()

    def end(self) -> None:
        self.hub.drop_soon(self)

    def close(self) -> None:
        self.bell.unlisten(self.answer, self.end)
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)


_HUBS: weakref.WeakSet[Hub] = weakref.WeakSet()


def _close_all() -> None:
    """Have no thread read words that the process is about to give back."""
    for hub in list(_HUBS):
        hub.close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    # The threads are the parent's, and so is the device.
    os.register_at_fork(after_in_child=_HUBS.clear)
