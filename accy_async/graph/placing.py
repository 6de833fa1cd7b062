"""Placing the items of one block on streams, one after the other.

See `layout` for the rules, and `streams` for the clocks that tell what an item
comes after.
"""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.graph.order import HOST, Block
from accy_async.graph.streams import Clock, Clocks, Stream, depths, host_sets, merged

__all__ = [
    "CONTINUES",
    "HOST_SIDE",
    "LABELLED",
    "OPENS",
    "REUSES",
    "SHARES",
    "Placer",
]

HOST_SIDE, LABELLED, CONTINUES, REUSES, OPENS, SHARES = range(6)
"""Why an item is where it is: it runs on the host; its label has that stream; it
goes on from a predecessor that was the stream's last; it comes after the stream's
last item anyway; nothing before it could be gone on from; there were no more
streams to open."""


class Placer:
    """Places a block's items; the results are in lists parallel to them."""

    def __init__(
        self,
        *,
        block: Block,
        submission: Sequence[int],
        weights: Sequence[int],
        labels: Sequence[str | None],
        priorities: Sequence[int | None],
        is_host: Sequence[bool],
        max_streams: int,
        own_label: str | None,
        own_priority: int | None,
        devices: Sequence[int] | None = None,
        own_device: int = 0,
    ) -> None:
        count = len(block)
        self.block = block
        self.submission = submission
        self.weights = weights
        self.labels = labels
        self.priorities = priorities
        self.devices = devices  # None where there is one
        self.streams: list[Stream] = []
        self.stream = [-1] * count
        self.waits: list[tuple[int, ...]] = [()] * count
        self.records = [False] * count
        self.follows = [-1] * count
        self.choice = [HOST_SIDE] * count
        self.awaits: dict[int, tuple[int, ...]] = {}
        self.ends: tuple[int, ...] = ()

        self._rank = [0] * count  # where each stands in the submission order
        for position, item in enumerate(submission):
            self._rank[item] = position
        self._done_at = [0] * count  # were every item to take its weight
        self._free_at: list[int] = []  # and when each stream would be free then
        self._depth = depths(block, weights)
        self._clocks = Clocks(block)
        self._lane_stream: list[int] = []
        self._host_sets = host_sets(block, is_host)
        self._is_plain = (
            self._host_sets is None
            and devices is None
            and not any(priority is not None for priority in priorities)
        )
        self._open_for(max_streams, own_label, own_priority, own_device)

    def _open_for(
        self,
        max_streams: int,
        own_label: str | None,
        own_priority: int | None,
        own_device: int,
    ) -> None:
        """Divide the streams between labels and the rest; open a loop's own.

        Each device has so many.
        """
        labels, kinds = self.labels, self.block.kinds
        self._label_queue: dict[str, list[int]] = {}
        for item in range(len(labels) - 1, -1, -1):
            label = labels[item]
            if label is not None:
                self._label_queue.setdefault(label, []).append(item)
        self._label_stream: dict[str, int] = {}
        is_body = self.block.parent is not None
        is_mixed = any(
            label is None and kind != HOST
            for label, kind in zip(labels, kinds, strict=True)
        )
        needs_free = is_mixed or (is_body and own_label is None)
        label_count = len(self._label_queue)
        self._free_limit = max(1, max_streams - label_count) if needs_free else 0
        self._label_limit = max_streams - self._free_limit
        self._free_streams: list[int] = []
        self._label_streams: list[int] = []
        self._unused = -1  # a loop's own stream, until something is on it
        if is_body:
            self._unused = self._open(own_priority or 0, own_label, own_device)

    def place_all(self) -> None:
        """Place every item, in submission order."""
        kinds, every = self.block.kinds, self.block.preds
        rank = self._rank.__getitem__
        for item in self.submission:
            preds = every[item]
            if len(preds) > 1:
                preds = sorted(preds, key=rank, reverse=True)
            if kinds[item] == HOST:
                self._place_call(item, preds)
            else:
                self._place(item, preds)
        self._find_ends()

    def _place(self, item: int, preds: Sequence[int]) -> None:
        if self.labels[item] is not None:
            lane = self._labelled(item)
        else:
            lane = self._going_on(item, preds)
            if lane < 0:
                lane = self._elsewhere(item, preds)
        number = self._lane_stream[lane]
        tail = self._clocks.tails[lane]
        self.follows[item] = tail
        self.stream[item] = number
        self.choice[item] = self._choice
        known = self._wait(item, number, tail, preds)
        start = self._free_at[number]
        for pred in preds:
            if self._done_at[pred] > start:
                start = self._done_at[pred]
        self._done_at[item] = self._free_at[number] = start + self.weights[item]
        self._clocks.append(item, lane, known, preds)

    def _wait(self, item: int, stream: int, tail: int, preds: Sequence[int]) -> Clock:
        """Find what the item has to wait for; returns what is done before it.

        ``preds`` come latest first: none is implied by a later one in the list.
        """
        clocks, streams = self._clocks, self.stream
        known: Clock = clocks.after(tail) if tail >= 0 else []
        away = []
        for pred in preds:
            where = streams[pred]
            if where != stream and where >= 0:
                away.append(pred)
            elif where < 0 or not clocks.has(known, pred):
                known = merged(known, clocks.after(pred))
        if away:
            waits = []
            for pred in away:
                if not clocks.has(known, pred):
                    known = merged(known, clocks.after(pred))
                    waits.append(pred)
                    self.records[pred] = True
            self.waits[item] = tuple(waits)
        return known

    def _place_call(self, item: int, preds: Sequence[int]) -> None:
        """A call on the host: what it awaits, all else before it being implied."""
        clocks = self._clocks
        calls = [pred for pred in preds if self.stream[pred] < 0]
        known = merged([], clocks.all_of(calls))
        awaits = calls
        for pred in preds:
            if self.stream[pred] >= 0 and not clocks.has(known, pred):
                awaits.append(pred)
                known = merged(known, clocks.after(pred))
        self.awaits[item] = tuple(awaits)
        self._done_at[item] = 1 + max((self._done_at[p] for p in preds), default=0)
        clocks.settle(item, known, preds)

    # ------------------------------------------------------------ choosing a lane

    _choice = HOST_SIDE

    def _going_on(self, item: int, preds: Sequence[int]) -> int:
        """The lane of a predecessor that is its last item; -1 for none.

        First one that nobody else can go on from, to leave the others theirs;
        then the one at the end of the longest way.
        """
        clocks = self._clocks
        best, best_key = -1, (False, 0, 0)
        for pred in preds:
            lane = clocks.lane[pred]
            if lane < 0 or clocks.tails[lane] != pred:
                continue
            if not self._may_join(item, self._lane_stream[lane]):
                continue
            key = (clocks.left[pred] == 1, self._depth[pred], -lane)
            if best < 0 or key > best_key:
                best, best_key = lane, key
        if best >= 0:
            self._adopt(item, self._lane_stream[best])
            self._choice = CONTINUES
        return best

    def _elsewhere(self, item: int, preds: Sequence[int]) -> int:
        """A lane whose last item comes before this one, or one of a new stream.

        With no more streams to open, a lane of the stream that is free first.
        """
        clocks = self._clocks
        best, best_key = -1, (False, 0)
        for lane in clocks.finished_lanes(clocks.all_of(preds)):
            tail = clocks.tails[lane]
            stream = self._lane_stream[lane]
            if not self._may_join(item, stream):
                continue
            key = (clocks.left[tail] > 0, self._free_at[stream])
            if best < 0 or key < best_key:
                best, best_key = lane, key
        if best >= 0:
            self._adopt(item, self._lane_stream[best])
            self._choice = REUSES
            return best
        self._choice = OPENS
        if self._unused >= 0 and self._may_join(item, self._unused):
            return self._lane_in(item, self._unused)
        device = self._device_of(item)
        if len(self._on(device, self._free_streams)) < self._free_limit:
            return self._lane_in(item, self._open(self.priorities[item], None, device))
        self._choice = SHARES
        return self._lane_in(item, self._freest(item))

    def _labelled(self, item: int) -> int:
        label = self.labels[item]
        assert label is not None
        self._choice = LABELLED
        self._label_queue[label].pop()  # label edges keep the plan's order
        stream = self._label_stream.get(label)
        if stream is None:
            device = self._device_of(item)
            labelled = self._on(device, self._label_streams)
            if len(labelled) < self._label_limit:
                stream = self._open(None, label, device)
            else:
                if not labelled and not self._on(device, self._free_streams):
                    self._open(None, None, device)
                shared = labelled or self._on(device, self._free_streams)
                stream = min(shared, key=lambda s: (len(self.streams[s].labels), s))
                self.streams[stream].labels.append(label)
                self._label_stream[label] = stream
        self._adopt(item, stream)
        return self._lane_in(item, stream)

    def _device_of(self, item: int) -> int:
        return 0 if self.devices is None else self.devices[item]

    def _on(self, device: int, streams: list[int]) -> list[int]:
        """Those of the streams that are on a device."""
        if self.devices is None:
            return streams
        return [number for number in streams if self.streams[number].device == device]

    def _open(self, priority: int | None, label: str | None, device: int) -> int:
        number = len(self.streams)
        stream = Stream(priority, device=device)
        self.streams.append(stream)
        self._free_at.append(0)
        if label is None:
            self._free_streams.append(number)
        else:
            self._label_streams.append(number)
            self._label_stream[label] = number
            stream.labels.append(label)
        return number

    def _may_join(self, item: int, stream: int) -> bool:
        """Whether an item without a label may go on in a stream.

        Not in one of another device or priority; nor before a labelled node that does
        not depend on it, which it would hold up.
        """
        found = self.streams[stream]
        if self.devices is not None and found.device != self.devices[item]:
            return False
        wanted = self.priorities[item]
        if wanted is not None and found.priority not in (None, wanted):
            return False
        for label in found.labels:
            queue = self._label_queue.get(label)
            if queue and not self.block.has_edge(item, queue[-1]):
                return False
        return True

    def _adopt(self, item: int, stream: int) -> None:
        """Give the stream the item's priority, if nobody has asked for one yet."""
        if self.priorities[item] is not None and self.streams[stream].priority is None:
            self.streams[stream].priority = self.priorities[item]

    def _freest(self, item: int) -> int:
        """The stream that is free first, of the item's priority if there is one."""
        if self._is_plain:
            return min(self._free_streams, key=self._free_at.__getitem__)
        wanted = self.priorities[item]
        sure = self._host_sets is None

        def cost(stream: int) -> tuple[bool, bool, int]:
            found = self.streams[stream]
            is_other = wanted is not None and found.priority not in (None, wanted)
            has_lane = sure or any(self._is_sure(item, lane) for lane in found.lanes)
            return is_other, not has_lane, self._free_at[stream]

        stream = min(self._on(self._device_of(item), self._free_streams), key=cost)
        self._adopt(item, stream)
        return stream

    def _is_sure(self, item: int, lane: int) -> bool:
        """Whether the item is sure to be submitted after the lane's last one.

        It is where it waits for all that the host resolves up to that one's end.
        """
        tail = self._clocks.tails[lane]
        if self._host_sets is None or tail < 0:
            return True
        before, within = self._host_sets
        return not within[tail] & ~before[item]

    def _lane_in(self, item: int, stream: int) -> int:
        lanes = self.streams[stream].lanes
        for lane in lanes:
            if self._is_sure(item, lane):
                return lane
        if stream == self._unused:
            self._unused = -1
        lane = self._clocks.open_lane()
        self._lane_stream.append(stream)
        lanes.append(lane)
        return lane

    # ------------------------------------------------------------ the end

    def _find_ends(self) -> None:
        """The fewest items that, when done, everything is."""
        clocks = self._clocks
        last = [tail for tail in clocks.tails if tail >= 0]
        last += [
            item
            for item, kind in enumerate(self.block.kinds)
            if kind == HOST and not self.block.succs[item]
        ]
        ends = []
        known: Clock = []
        for item in sorted(last, key=self._rank.__getitem__, reverse=True):
            if self.stream[item] < 0 or not clocks.has(known, item):
                ends.append(item)
                known = merged(known, clocks.after(item))
        self.ends = tuple(ends)
        if self.block.parent is not None:
            for item in ends:  # the loop's stream waits for the others
                if self.stream[item] > 0:
                    self.records[item] = True
