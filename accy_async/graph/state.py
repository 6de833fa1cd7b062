"""The deciding part of running a graph: pure, sync, and told what happened.

A `BlockState` knows, for one block of a plan, which items may start. It is told
of submissions, endings and failures and answers with the items to start next;
it never waits, and knows no device and no loop. Whatever order the world answers
in can so be replayed and tested.

Theory. An edge between two items of the device is resolved by the device (by
stream order or an event), so the later one may be submitted once the earlier one
*is submitted*. An edge from an item that the host resolves (a host call, a loop
whose condition is read back) holds until that item *has ended*. One rule serves
both: an item's successors are released by `submitted` for device items and by
`ended` for host items.

States, and who may go where::

    BLOCKED → READY → STARTED → ENDED
       └────────┴────────→ SKIPPED

Anything else is a mistake of the caller and raises `IllegalTransition`, changing
nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from enum import IntEnum

__all__ = ["BlockState", "IllegalTransition", "ItemState"]


class ItemState(IntEnum):
    """Where an item stands."""

    BLOCKED = 0
    """Waits for predecessors."""

    READY = 1
    """May start."""

    STARTED = 2
    """Submitted to the device, or running on the host."""

    ENDED = 3
    """A host item that is done; a device item's end is the device's to tell."""

    SKIPPED = 4
    """Never started, and never will be."""


class IllegalTransition(RuntimeError):
    """An item was told to go where it cannot go from where it stands."""


class BlockState:
    """Which items of one block may start.

    Args:
        rank: each item's place in the order of urgency; lower goes first.
        preds: each item's predecessors.
        succs: each item's successors.
        is_host: True for each item that the host resolves.
        follows: the item that each must be submitted after though it does not
            depend on it; -1 for none.
    """

    __slots__ = (
        "_followers",
        "_is_host",
        "_pending",
        "_rank",
        "_ready",
        "_remaining",
        "_succs",
        "states",
    )

    def __init__(
        self,
        rank: Sequence[int],
        preds: Sequence[Sequence[int]],
        succs: Sequence[Sequence[int]],
        is_host: Sequence[bool],
        follows: Sequence[int] = (),
    ) -> None:
        self._rank = rank
        self._succs = succs
        self._is_host = is_host
        self._pending = [len(before) for before in preds]
        self._followers: dict[int, list[int]] = {}
        for item, leader in enumerate(follows):
            if leader >= 0:
                self._followers.setdefault(leader, []).append(item)
                self._pending[item] += 1
        self.states = [ItemState.BLOCKED] * len(rank)
        self._remaining = len(rank)
        self._ready: list[tuple[int, int]] = []
        for item, pending in enumerate(self._pending):
            if pending == 0:
                self._make_ready(item)

    @property
    def is_done(self) -> bool:
        """True where every item has been released or skipped.

        What is still to be waited for then is the device's.
        """
        return self._remaining == 0

    @property
    def has_ready(self) -> bool:
        """True where `take` would give an item."""
        return bool(self._ready)

    def take(self) -> int | None:
        """The most urgent item that may start, which counts as started then."""
        while self._ready:
            _, item = heapq.heappop(self._ready)
            if self.states[item] is ItemState.READY:
                self.states[item] = ItemState.STARTED
                return item
        return None

    def submitted(self, item: int) -> None:
        """A device item was submitted: its successors are released."""
        self._expect(item, ItemState.STARTED, is_host=False)
        self.states[item] = ItemState.ENDED
        self._release(item)

    def ended(self, item: int) -> None:
        """A host item is done: its successors are released."""
        self._expect(item, ItemState.STARTED, is_host=True)
        self.states[item] = ItemState.ENDED
        self._release(item)

    def failed(self, item: int) -> list[int]:
        """An item failed; what depends on it and has not started is skipped.

        Returns:
            The items skipped, in no particular order.
        """
        if self.states[item] is ItemState.STARTED:
            self.states[item] = ItemState.ENDED
            self._remaining -= 1
        elif self.states[item] is not ItemState.ENDED:
            raise IllegalTransition(
                f"item {item} failed while {self.states[item].name}"
            )
        return self._skip_from(self._succs[item])

    def cancel(self) -> list[int]:
        """Skip every item that has not started; returns them."""
        return self._skip(
            item
            for item, state in enumerate(self.states)
            if state in (ItemState.BLOCKED, ItemState.READY)
        )

    def _skip_from(self, items: Sequence[int]) -> list[int]:
        skipped: list[int] = []
        todo = list(items)
        while todo:
            item = todo.pop()
            fresh = self._skip((item,))
            if fresh:
                skipped += fresh
                todo.extend(self._succs[item])
        return skipped

    def _skip(self, items: Iterable[int]) -> list[int]:
        skipped: list[int] = []
        for item in items:
            if self.states[item] in (ItemState.BLOCKED, ItemState.READY):
                self.states[item] = ItemState.SKIPPED
                self._remaining -= 1
                skipped.append(item)
        return skipped

    def _release(self, item: int) -> None:
        self._remaining -= 1
        for after in (*self._succs[item], *self._followers.get(item, ())):
            self._pending[after] -= 1
            if self._pending[after] == 0 and self.states[after] is ItemState.BLOCKED:
                self._make_ready(after)

    def _make_ready(self, item: int) -> None:
        self.states[item] = ItemState.READY
        heapq.heappush(self._ready, (self._rank[item], item))

    def _expect(self, item: int, state: ItemState, *, is_host: bool) -> None:
        if self.states[item] is not state or self._is_host[item] is not is_host:
            kind = "host" if self._is_host[item] else "device"
            raise IllegalTransition(
                f"{kind} item {item} is {self.states[item].name}; expected a "
                f"{'host' if is_host else 'device'} item that is {state.name}"
            )
