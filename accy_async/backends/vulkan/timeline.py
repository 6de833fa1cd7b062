"""How far a stream of a Vulkan device has come.

A queue's semaphore says which of its batches have run, and to ask it takes a call of
the driver. So nobody follows what nobody asks for: whoever looks at a timeline asks,
as do those who wait, for as long as polling is worth it, and the hub's thread for
those who sleep.
"""

from __future__ import annotations

from collections.abc import Hashable
from time import monotonic_ns
from typing import TYPE_CHECKING, Protocol

from accy_async.backends.arrival import arrive
from accy_async.backends.completion import Completion
from accy_async.backends.journal import JOURNAL_MASK, Label
from accy_async.backends.loops import current_bell
from accy_async.backends.timeline import Timeline

if TYPE_CHECKING:
    from accy_async.backends.bell import Bell
    from accy_async.backends.pace import Pace, Paces
    from accy_async.backends.vulkan.streams import VulkanStream

__all__ = ["Finishing", "VulkanTimeline"]


class Finishing(Protocol):
    """The backend, as timelines know it.

    Attributes:
        paces: how long waits for the device take.
    """

    paces: Paces

    def look(self, stream: VulkanStream) -> bool:
        """Complete what has run of a stream and leaves nothing to do on the host.

        Any thread, whatever it holds; never blocks. False where something is left.
        """

    def take(self, stream: VulkanStream) -> None:
        """Complete what has run of a stream, unless that takes long on the host."""

    def follow(self, line: VulkanTimeline, position: int) -> None:
        """Have the hub see to one more who sleeps until that position."""

    def ring(self) -> None:
        """Have the hub see to whatever has run."""


class VulkanTimeline(Timeline):
    """The timeline of one stream.

    Args:
        name: the stream's name.
        backend: asks the driver.

    Attributes:
        stream: whose it is; set by it.
        is_quick: whether the last wait ended within a turn of its loop.
    """

    __slots__ = ("_backend", "_completed", "_overseen", "is_quick", "stream")

    def __init__(self, name: str, backend: Finishing) -> None:
        self._backend = backend
        self._completed = 0
        self._overseen = 0
        self.is_quick = False
        self.stream: VulkanStream | None = None
        super().__init__(name)

    @property
    def completed(self) -> int:
        """The position up to which everything is known to be done; looks."""
        # Who holds this lock is about to say so, or is us.
        if self._completed < self.submitted and not self._lock.locked():
            self._look()
        return self._completed

    @completed.setter
    def completed(self, position: int) -> None:
        self._completed = position

    @property
    def noted(self) -> int:
        """The position up to which everything was found to be done; does not look."""
        return self._completed

    @property
    def is_idle(self) -> bool:
        """True where everything submitted has completed."""
        if self._completed < self.submitted and not self._look():
            self._backend.ring()
        return self._completed >= self.submitted

    def has_reached(self, position: int) -> bool:
        """True where everything up to ``position`` is done."""
        return self._completed >= position or self.has_come(position)

    def watch(self, position: int, completion: Completion) -> None:
        """Have the signal set once every operation up to ``position`` has ended."""
        super().watch(position, completion)
        if not completion.is_set:
            try:
                self._backend.follow(self, position)
            except BaseException:  # there is nobody to set it
                self.unwatch(completion)
                raise

    def oversee(self, position: int) -> None:
        """See to it that ``position`` is noticed when it is done, if nobody looks."""
        if position > self._overseen:
            self._overseen = position
            self._backend.follow(self, position)

    @property
    def first_awaited(self) -> int | None:
        """The earliest position that somebody sleeps for, or that is overseen."""
        with self._lock:
            first = min(self._waiters.values(), default=None)
        if first is None and self._overseen > self._completed:
            return self._overseen
        return first

    # Waiting; see `backends.arrival.Awaited`

    async def wait_reached(self, position: int) -> None:
        """Return once every operation up to ``position`` has ended, in any way.

        Always a checkpoint.

        Cancellation: only the wait stops.
        """
        before = self._completed
        bell = current_bell()
        if before >= position:
            await bell.turn()
            return
        await arrive(self, position, bell, before)

    @property
    def paces(self) -> Paces:
        """How long waits for the device take."""
        return self._backend.paces

    @property
    def can_poll(self) -> bool:
        """False where something is to be done on the host that takes long."""
        stream = self.stream
        assert stream is not None
        return not any(queue.long for queue in stream.queues)

    def kind_at(self, position: int) -> Hashable:
        """What waits for such work as there is at a position have in common."""
        stream = self.stream
        assert stream is not None
        work = stream.journal.work[position & JOURNAL_MASK]
        return work if work is None or isinstance(work, Label) else id(work)

    def has_come(self, position: int) -> bool:
        """Look, and do what takes no time on the host."""
        stream = self.stream
        if stream is not None and self._completed < position:
            self._backend.take(stream)
        return self._completed >= position

    def spin(self, position: int, limit_ns: int) -> None:
        """Look until the position is reached, no longer than that."""
        until = monotonic_ns() + limit_ns
        stream = self.stream
        batch = None if stream is None else stream.batch
        while not self.has_come(position):
            if batch is not None:
                batch.queue.spin(batch.number, until)
                batch = None
            if monotonic_ns() >= until:
                return

    async def sleep(
        self, position: int, bell: Bell, begun: int, pace: Pace
    ) -> tuple[int, int]:
        """Sleep until the position is reached; as `Awaited.sleep`."""
        await self.wait_signal(position, Completion(bell))
        now = monotonic_ns()
        return now, now

    def _look(self) -> bool:
        stream = self.stream
        return stream is None or self._backend.look(stream)
