"""Segments of a device graph, recorded once and submitted again and again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from accy_async.backends.launch import PreparedLaunch
from accy_async.backends.vulkan.bound import Bound
from accy_async.backends.vulkan.launching import assertion_error
from accy_async.backends.vulkan.steps import LaunchStep, Staging, Step
from accy_async.backends.vulkan.streams import Operation

if TYPE_CHECKING:
    from accy_async.backends.devicegraph import GraphBody, GraphNode
    from accy_async.backends.guards import GuardOf
    from accy_async.backends.journal import Label, Work
    from accy_async.backends.vulkan.barriers import Synchronization
    from accy_async.backends.vulkan.binding import Vulkan
    from accy_async.backends.vulkan.memory import VulkanMemory
    from accy_async.backends.vulkan.queue import VulkanQueue
    from accy_async.backends.vulkan.recorder import Recorder, Recording
    from accy_async.backends.vulkan.segments import Part, Segment
    from accy_async.backends.vulkan.status import StatusWords
    from accy_async.backends.vulkan.streams import VulkanStream
    from accy_async.errors import DeviceError

__all__ = ["RecordedSegment", "Replay", "record_part"]

_LABELS_KEPT = 32
"""Launches of a segment that are named where a lost device has to be explained."""


def record_part(
    recorder: Recorder,
    part: Part,
    steps: Sequence[Step | None],
    synchronization: Synchronization,
    vulkan: Vulkan,
    *,
    shows_host: bool,
) -> Recording:
    """Record a part of a segment.

    Args:
        recorder: the graph's own.
        part: its nodes.
        steps: of all nodes, by their places.
        synchronization: the barriers of the queues that it is for.
        vulkan: the binding.
        shows_host: whether the host is to see what was written by then.

    Raises:
        AccyError: the driver refuses.
    """
    mine = [step for place in part.places if (step := steps[place]) is not None]

    def write(commands: Any) -> None:  # noqa: ANN401
        bound = Bound()
        for step, begins_level in zip(mine, part.begins_level, strict=True):
            if begins_level:
                synchronization.hold_apart(commands)
            step.record(vulkan, commands, bound)
        if shows_host:
            synchronization.show_host(commands)

    return recorder.record(write, mine)


class Turn:
    """Whose turn it is with the words of a segment, in all that it was and will be."""

    __slots__ = ("is_taken",)

    def __init__(self) -> None:
        self.is_taken = False


class RecordedSegment:
    """A segment as it was recorded; for other nodes another one takes its place.

    What was submitted, and has to wait for its turn, keeps the one that it began with.

    Args:
        plan: the segment.
        body: the graph's nodes.
        steps: of all of them, by their places.
        turn: that of the segment whose place it takes, if of any.

    Attributes:
        recordings: of its parts, in order.
        steps: of its own nodes, by their places.
        reads, writes: what they use together, apart.
        failing: those of them that may fail.
        stores: what is to be stored once it is done.
        labels: its launches, as errors name them; not too many.
        turn: taken while its words are a launch's that is at work.
    """

    def __init__(
        self,
        plan: Segment,
        body: GraphBody,
        steps: Sequence[Step | None],
        turn: Turn | None = None,
    ) -> None:
        self.plan = plan
        self.body = body
        self.turn = turn or Turn()
        self.recordings: tuple[Recording, ...] = ()
        self.steps = {
            place: step
            for place in self.plan.places
            if (step := steps[place]) is not None
        }
        self.reads, self.writes = _uses(self.steps.values())
        self.failing = {
            place: step
            for place in self.plan.failing
            if isinstance(step := steps[place], LaunchStep)
        }
        self.stores = _stores(self.steps.values())
        labels = (label_of(body[place]) for place in self.steps)
        named = (label for label in labels if label is not None)
        self.labels: Work = tuple(islice(named, _LABELS_KEPT))

    @property
    def shows_host(self) -> bool:
        """Whether the host looks at what it has written."""
        return bool(self.stores or self.failing)

    @property
    def buffers(self) -> list[Any]:
        """The command buffers, in order."""
        return [recording.native for recording in self.recordings]


class Replay(Operation):
    """A segment's turn on a stream.

    Args:
        position: its last one; it has `positions` of them.
        segment: the segment.
        queue: where it is submitted.
        guard_of: gives the guard of each node; None where there are none.
        words: where assertions leave their codes.
        is_apart: whether what was submitted before is to be known to be done before.

    Attributes:
        asks: whether guards are asked: they need not be where it is submitted.
    """

    __slots__ = ("_guard_of", "_is_apart", "_queue", "_segment", "_words", "asks")
    call = "launch_graph"

    def __init__(
        self,
        position: int,
        segment: RecordedSegment,
        queue: VulkanQueue,
        guard_of: GuardOf | None,
        words: StatusWords,
        *,
        is_apart: bool,
    ) -> None:
        self.position = position
        self.guard = None
        self.asks = False
        self._segment = segment
        self._queue = queue
        self._guard_of = guard_of
        self._words = words
        self._is_apart = is_apart

    @staticmethod
    def positions(segment: RecordedSegment) -> int:
        """How many positions of the stream it takes: its end, and those that fail."""
        return 1 + len(segment.failing)

    @property
    def can_fail(self) -> bool:  # type: ignore[override]
        return bool(self._segment.failing)

    @property
    def is_ready(self) -> bool:
        return not self._segment.turn.is_taken

    @property
    def work(self) -> Work | None:
        return self._segment.labels

    def hand_over(self, stream: VulkanStream) -> None:
        queue, segment = stream.turn_to(self._queue), self._segment
        if self._is_apart:
            queue.flush()
        blocked = self._blocked()
        if blocked:
            self._submit_rest(queue, blocked)
        else:
            queue.replay(
                segment.buffers, segment.reads, segment.writes, len(segment.steps)
            )
            queue.batch().kept.append(segment.recordings)
        self._end(stream, queue, blocked)

    def release(self) -> None:
        self._segment.turn.is_taken = False

    def _blocked(self) -> frozenset[int]:
        """The nodes that are not to run after all."""
        guards, body = self._guard_of, self._segment.body
        if guards is None or not self.asks:
            return frozenset()
        return frozenset(
            place
            for place in self._segment.steps
            if body[place].number >= 0 and guards(body[place].number).blocks()
        )

    def _submit_rest(self, queue: VulkanQueue, blocked: Collection[int]) -> None:
        """Record what may still run by itself: not all that was recorded together."""
        segment, vulkan = self._segment, queue.device.vulkan
        for place, step in segment.steps.items():
            if place in blocked:
                continue
            commands = queue.commands(step.reads, step.writes)
            if step.has_staging:  # which is no buffer's: nobody else keeps it apart
                queue.order(commands)
            step.record(vulkan, commands, queue.batch().bound)
            queue.batch().kept.append(step)
        if segment.shows_host:
            queue.batch().writes_host = True

    def _end(
        self, stream: VulkanStream, queue: VulkanQueue, blocked: Collection[int]
    ) -> None:
        """Say where it ends, what is stored then, and whose failure is whose."""
        segment, guards = self._segment, self._guard_of
        position = self.position - len(segment.failing)
        for place, step in segment.failing.items():
            if place not in blocked:
                assert step.offset is not None
                self._words.clear(step.offset)
                node = segment.body[place]
                has_guard = guards is not None and node.number >= 0
                guard = guards(node.number) if guards and has_guard else None
                look = partial(self._look, step, label_of(node), stream.id)
                queue.end(stream, position, look, guard)
            position += 1
        stores = segment.stores
        if blocked:
            stores = _stores(s for p, s in segment.steps.items() if p not in blocked)
        segment.turn.is_taken = bool(segment.failing)
        has_end = bool(stores or segment.failing)
        finish = partial(self._finish, stores) if has_end else None
        copied = sum(staging.memory.byte_size for staging in stores)
        queue.end(stream, self.position, finish, copied_bytes=copied)

    def _look(
        self, step: LaunchStep, label: Label | None, stream: int | None, has_run: bool
    ) -> DeviceError | None:
        """What a kernel's assertions have left."""
        assert step.offset is not None
        status = self._words.read(step.offset)
        if not status or not has_run or label is None:
            return None
        return assertion_error(status, label, stream)

    def _finish(self, stores: Sequence[Staging], has_run: bool) -> None:
        """The segment is through, and every word of it looked at."""
        self._segment.turn.is_taken = False
        if has_run:
            for staging in stores:
                staging.store()


def label_of(node: GraphNode) -> Label | None:
    """What errors call a node; None for one that is no launch."""
    operation = node.operation
    return operation.label if isinstance(operation, PreparedLaunch) else None


def _uses(
    steps: Iterable[Step],
) -> tuple[tuple[VulkanMemory, ...], tuple[VulkanMemory, ...]]:
    """What steps read and what they write together, apart, each once."""
    reads: dict[VulkanMemory, None] = {}
    writes: dict[VulkanMemory, None] = {}
    for step in steps:
        reads.update(dict.fromkeys(step.reads))
        writes.update(dict.fromkeys(step.writes))
    return tuple(one for one in reads if one not in writes), tuple(writes)


def _stores(steps: Iterable[Step]) -> tuple[Staging, ...]:
    """What is to be stored once steps are done, each once."""
    found = [step.stores for step in steps if step.stores is not None]
    return tuple(dict.fromkeys(found))
