"""The streams of a block as they fill, and the vector clocks of their items.

A clock is a list with one count for each lane: how many of its items are done.
One that is shorter than the lanes there are knows nothing of the later ones.
Clocks are shared, copied only where they differ, and let go when nothing will ask
for them again, so that their number stays near that of the streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from accy_async.graph.order import Block

__all__ = ["Clock", "Clocks", "Stream", "depths", "host_sets", "merged"]

Clock = list[int]


@attrs.define(eq=False)
class Stream:
    """A stream as it fills.

    Attributes:
        priority: as a node asked for it; None until one has.
        labels: the labels that have it.
        lanes: its lanes, by number.
        device: its device's number.
    """

    priority: int | None = None
    labels: list[str] = attrs.field(factory=list)
    lanes: list[int] = attrs.field(factory=list)
    device: int = 0


def merged(one: Clock, two: Clock) -> Clock:
    """What is known where both are; a new list."""
    if len(one) < len(two):
        one, two = two, one
    # Not max(): it would double the time that a whole layout takes.
    both = [a if a > b else b for a, b in zip(one, two, strict=False)]  # noqa: FURB136
    both += one[len(two) :]
    return both


class Clocks:
    """What is known to be done when each item is; and where its lane has it.

    Attributes:
        lane: of each item, its lane; -1 on the host.
        step: of each item, its place in its lane, from 1.
        tails: of each lane, its last item; -1 while it has none.
        lengths: of each lane, how many items it has.
        left: of each item, how many successors are still to be placed.
    """

    __slots__ = ("_known", "lane", "left", "lengths", "step", "tails")

    def __init__(self, block: Block) -> None:
        count = len(block)
        self._known: list[Clock | None] = [None] * count
        self.lane = [-1] * count
        self.step = [0] * count
        self.tails: list[int] = []
        self.lengths: list[int] = []
        self.left = [len(after) for after in block.succs]

    def open_lane(self) -> int:
        """A new lane, without items; its number."""
        self.tails.append(-1)
        self.lengths.append(0)
        return len(self.tails) - 1

    def finished_lanes(self, known: Clock) -> list[int]:
        """The lanes all of whose items the clock knows to be done."""
        lengths = self.lengths
        return [
            lane for lane, done in enumerate(known) if done == lengths[lane] and done
        ]

    def after(self, item: int) -> Clock:
        """What is known once the item is done. Not to be changed."""
        known = self._known[item]
        assert known is not None
        return known

    def has(self, known: Clock, item: int) -> bool:
        """Whether the clock knows that the item is done."""
        lane = self.lane[item]
        return lane < len(known) and known[lane] >= self.step[item]

    def all_of(self, items: Iterable[int]) -> Clock:
        """What is known once all of the items are done. Not to be changed."""
        known: Clock = []
        for item in items:
            if self.lane[item] < 0 or not self.has(known, item):
                mine = self.after(item)
                known = merged(known, mine) if known else mine
        return known

    def append(self, item: int, lane: int, known: Clock, preds: Sequence[int]) -> None:
        """Make the item its lane's last; before it, ``known`` is done.

        ``known`` is either a list of nobody else's, or the clock of the lane's
        last item, which is used on where nobody will ask for it.
        """
        left = self.left
        for pred in preds:
            left[pred] -= 1
        tail = self.tails[lane]
        if tail >= 0 and left[tail] and known is self._known[tail]:
            known = known.copy()
        step = self.lengths[lane] + 1
        missing = lane + 1 - len(known)
        if missing > 0:
            known.extend([0] * missing)
        known[lane] = step
        self._known[item] = known
        self.lane[item] = lane
        self.step[item] = step
        self.tails[lane] = item
        self.lengths[lane] = step
        self._let_go(preds)
        if tail >= 0 and not left[tail]:
            self._known[tail] = None

    def settle(self, item: int, known: Clock, preds: Sequence[int]) -> None:
        """A call on the host: in no lane, but once it is done so is ``known``."""
        for pred in preds:
            self.left[pred] -= 1
        self._known[item] = known
        self._let_go(preds)

    def _let_go(self, preds: Sequence[int]) -> None:
        for pred in preds:
            if not self.left[pred]:
                lane = self.lane[pred]
                if lane < 0 or self.tails[lane] != pred:
                    self._known[pred] = None


def depths(block: Block, weights: Sequence[int]) -> list[int]:
    """The longest way to the end of each item."""
    found = list(weights)
    preds = block.preds
    for item in block.topological:
        before = preds[item]
        if before:
            found[item] += max([found[p] for p in before])
    return found


def host_sets(
    block: Block, is_host: Sequence[bool]
) -> tuple[list[int], list[int]] | None:
    """What the host resolves before each item, and up to its end, as sets of bits.

    None where nothing is resolved on the host.
    """
    if True not in is_host:
        return None
    count = 0
    before = [0] * len(block)
    within = [0] * len(block)
    for item in block.topological:
        found = 0
        for pred in block.preds[item]:
            found |= within[pred]
        before[item] = found
        if is_host[item]:
            found |= 1 << count
            count += 1
        within[item] = found
    return before, within
