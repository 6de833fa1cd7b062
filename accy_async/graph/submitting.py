"""Giving a run's nodes to the device: launches, and the events between streams.

All of it is sync and waits for nothing. A node's error is its own outcome, told to
its guard; only the loss of the device goes further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from accy_async.backends.timeline import Mark
from accy_async.graph.progress import NodeGuard

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.contract.steps import LaunchStep
    from accy_async.backends.guards import Guard
    from accy_async.backends.handles import EventHandle, StreamHandle
    from accy_async.backends.joined import JoinedBackend
    from accy_async.errors import DeviceError
    from accy_async.graph.bindings import Memory
    from accy_async.graph.layout import BlockLayout, Step
    from accy_async.graph.prepared import PreparedGraph
    from accy_async.graph.progress import RunProgress
    from accy_async.graph.telling import Telling

__all__ = ["Frame", "Submitter"]

_FORK = -1
"""The number of the event that a loop's other streams begin after."""


class Frame:
    """A block being run: its layout, its streams' places, its events by number.

    It has no streams (``lanes``) where the run is one of host calls alone.
    """

    __slots__ = ("began", "events", "lanes", "layout", "marks")

    def __init__(self, layout: BlockLayout, lanes: list[int]) -> None:
        self.layout = layout
        self.lanes = lanes
        self.events: dict[int, EventHandle] = {}
        # Where each event was recorded, where streams may be unable to wait for it.
        self.marks: dict[int, Mark] = {}
        # Where the device was when this turn of a loop began, for host calls.
        self.began: Mark | None = None

    def lane_of(self, item: int) -> int:
        """The stream of the run that an item is on; -1 for one that needs none."""
        place = self.layout.stream[item]
        return self.lanes[place] if self.lanes else -1


class Submitter:
    """Gives nodes of one run to its streams.

    Args:
        backend: the device.
        prepared: the plan.
        progress: what has become of the nodes.
        streams: the streams of this run.
        take_event: gives a pooled event for a stream.
        telling: tells an observer; None where there is none.
    """

    def __init__(
        self,
        backend: Backend,
        prepared: PreparedGraph,
        progress: RunProgress,
        streams: list[StreamHandle],
        take_event: Callable[[StreamHandle], EventHandle],
        telling: Telling | None,
    ) -> None:
        self.streams = streams
        self.memories: list[Memory] = list(prepared.initial_memories)
        self._backend = backend
        self._prepared = prepared
        self._progress = progress
        self._take_event = take_event
        self._telling = telling
        # The devices, where there are several, and the lanes on each.
        self._joined: JoinedBackend | None = None
        self._lanes_on: list[list[int]] = []
        if prepared.places is not None:
            self._joined = cast("JoinedBackend", backend)
            self._lanes_on = [[] for _ in prepared.places.devices]
            for lane, stream in enumerate(streams):
                self._lanes_on[self._joined.number_of(stream)].append(lane)
        # Where nobody is told of each, and loops change no buffers.
        self._is_plain = telling is None and not prepared.carried

    def submit_together(self, frame: Frame, steps: Sequence[Step]) -> int:
        """Submit plain launches from the front of some steps; returns how many."""
        progress, launches = self._progress, self._prepared.launches
        lanes, streams, events = frame.lanes, self.streams, frame.events
        if progress.is_guarding or not self._is_plain:
            return 0
        together: list[LaunchStep] = []
        for index, body, place, waits, record in steps:
            launch = launches[index] if body is None else None
            if launch is None:
                break
            before = [events[number] for number in waits] if waits else ()
            after = None
            if record >= 0:
                after = events.get(record)
                if after is None:
                    after = events[record] = self._take_event(streams[lanes[place]])
            guard = NodeGuard(progress, index)
            together.append((streams[lanes[place]], before, launch, guard, after))
        positions: list[int] = []
        refusal: Exception | None = None
        try:
            self._backend.submit_steps(together, positions)
        except Exception as error:  # noqa: BLE001 - it is a node's outcome
            refusal = error
        done = len(positions)
        for step, position in zip(steps, positions, strict=False):
            index, _, place, waits, record = step
            progress.submitted(index, lanes[place], position)
            progress.event_waits += len(waits)
            if record >= 0:
                progress.reached(lanes[place], position + 1)
                progress.event_records += 1
        if refusal is not None:
            index, _, place, _, record = steps[done]
            self._refused(index, together[done][3], refusal)
            if record >= 0:
                self.record(frame, record, lanes[place])
            done += 1
        return done

    def submit(self, node: int, lane: int) -> None:
        """Submit one node to a stream, unless it is not to run any more."""
        action = self._prepared.action(node, self.memories)
        progress = self._progress
        if progress.is_guarding and progress.blocks(node):
            progress.skipped(node)
            return
        stream = self.streams[lane]
        if self._telling is None:
            guard: Guard = progress.guard(node)
        else:
            guard = self._telling.guard(node, self._track(stream))
            self._telling.begin(guard, stream)
        try:
            position = action(stream, guard)
        except Exception as error:  # noqa: BLE001 - it is the node's outcome
            self._refused(node, guard, error)
        else:
            progress.submitted(node, lane, position)
            if self._telling is not None:
                timeline = progress.timelines[lane]
                self._telling.submitted(guard, stream, timeline, position)
                progress.reached(lane, timeline.submitted)

    def _refused(self, node: int, guard: Guard, error: Exception) -> None:
        """A node could not be submitted: it failed, unless the device is lost."""
        if not self._backend.is_healthy:
            raise error
        name = self._prepared.plan.nodes[node].name
        error.add_note(f"in submitting node {name!r}")
        guard.failed(cast("DeviceError", error))
        self._progress.skipped(node)

    def _track(self, stream: StreamHandle) -> int:
        """The number of a stream for observers: each device counts from 1."""
        return stream.id if self._joined is None else self._joined.track(stream)

    # Events

    def record(self, frame: Frame, number: int, lane: int) -> None:
        """Record one of the block's events, by its number, on a stream."""
        event = frame.events.get(number)
        if event is None:
            event = frame.events[number] = self._take_event(self.streams[lane])
        position = self._backend.record_event(event, self.streams[lane])
        if self._joined is not None:
            frame.marks[number] = Mark(self._progress.timelines[lane], position)
        self._progress.reached(lane, position)
        self._progress.event_records += 1

    def wait_for(self, frame: Frame, number: int, lane: int) -> Mark | None:
        """Hold what follows on a stream back until one of the block's events.

        Returns:
            The point that the host has to wait for instead, before it goes on, where
            the stream's device cannot wait for the event's.
        """
        event = frame.events[number]
        if self._joined is not None and not self._joined.can_wait(
            self.streams[lane], event
        ):
            return frame.marks[number]
        position = self._backend.stream_wait_event(self.streams[lane], event)
        self._progress.reached(lane, position)
        self._progress.event_waits += 1
        return None

    def wait_before(self, frame: Frame, item: int) -> list[Mark | None]:
        """Hold an item back until those on other streams that it depends on.

        Returns, as `fork` and `join` do, what `wait_for` does for each.
        """
        layout = frame.layout
        if not frame.lanes:
            return []
        return [
            self.wait_for(frame, layout.events[signaller], frame.lane_of(item))
            for signaller in layout.waits[item]
        ]

    def record_after(self, frame: Frame, item: int) -> None:
        """Record an item's event, if other streams wait for one."""
        if frame.lanes and frame.layout.records[item]:
            self.record(frame, frame.layout.events[item], frame.lane_of(item))

    # Loops

    def top_frame(self, layout: BlockLayout) -> Frame:
        """The plan's top block, on the streams of the run."""
        if self._joined is not None:
            return Frame(layout, self._lanes_across(layout))
        return Frame(layout, list(range(len(self.streams))))

    def body_frame(self, body: BlockLayout, lane: int) -> Frame:
        """A loop's body on the loop's own stream, and on the next ones of the run."""
        count = len(self.streams)
        if not count:
            return Frame(body, [])
        if self._joined is not None:
            return Frame(body, self._lanes_across(body, lane))
        lanes = [(lane + i) % count for i in range(max(1, body.stream_count))]
        return Frame(body, lanes)

    def _lanes_across(self, layout: BlockLayout, first: int = -1) -> list[int]:
        """A lane of its device for each stream of a block, the first one's given.

        The lanes of a device take turns, from the one behind the first on.
        """
        next_on = [0] * len(self._lanes_on)
        if first >= 0:
            device = self._joined.number_of(self.streams[first])  # type: ignore[union-attr]
            next_on[device] = self._lanes_on[device].index(first)
        devices = layout.stream_devices
        lanes = [first] if first >= 0 and not devices else []
        for device in devices:
            on = self._lanes_on[device]
            lanes.append(on[next_on[device] % len(on)])
            next_on[device] += 1
        return lanes

    def fork(self, frame: Frame) -> list[Mark | None]:
        """The iteration's other streams begin after its first one's work so far."""
        others = set(frame.lanes[1:]) - {frame.lanes[0]}
        if not others:
            return []
        self.record(frame, _FORK, frame.lanes[0])
        return [self.wait_for(frame, _FORK, lane) for lane in others]

    def join(self, frame: Frame) -> list[Mark | None]:
        """The iteration's first stream goes on after all of its others' work."""
        layout = frame.layout
        return [
            self.wait_for(frame, layout.events[item], frame.lanes[0])
            for item in (layout.ends if frame.lanes else ())
            if layout.stream[item] >= 0
            and frame.lanes[layout.stream[item]] != frame.lanes[0]
        ]

    def swap(self, first: int, second: int) -> None:
        """Exchange what holds the values of two slots, after an iteration."""
        memories = self.memories
        memories[first], memories[second] = memories[second], memories[first]
