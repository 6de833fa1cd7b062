"""What a stream was given last, for when its device does not say whose fault it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["JOURNAL_MASK", "Journal", "Label"]

JOURNAL_MASK = 1023
"""A CUDA stream's queue is 1024 deep: what has not begun yet is in the journal."""


class Label(NamedTuple):
    """What a launch is called: its node or diagnostic id, if any, and its kernel."""

    node: str | None
    kernel: str


Work = Label | tuple[Label, ...]
"""A launch, or the launches of a device graph."""


class Journal:
    """The last launches of a stream, and where each is on its timeline.

    Their names only, so that nothing which they use is kept. A ring by position that
    is allocated once: an entry costs two stores. Whoever submits makes them by hand,
    as `note` does.

    Attributes:
        work: launches and device graphs by their labels, each at the place that its
            position's lowest bits say.
        positions: the position that each was submitted at.
    """

    __slots__ = ("positions", "work")

    def __init__(self) -> None:
        self.work: list[Work | None] = []
        self.positions: list[int] = []  # which is quicker to store to than an array
        self.clear()

    def note(self, position: int, work: Work) -> None:
        """Keep what was submitted, in place of what is oldest."""
        at = position & JOURNAL_MASK
        self.work[at] = work
        self.positions[at] = position

    def since(self, position: int) -> Iterator[Label]:
        """The launches behind a position, in order."""
        for at, index in sorted((p, i) for i, p in enumerate(self.positions)):
            work = self.work[index]
            if at <= position or work is None:
                continue
            if isinstance(work, Label):
                yield work
            else:
                yield from work

    def clear(self) -> None:
        """Forget everything."""
        self.work[:] = [None] * (JOURNAL_MASK + 1)
        self.positions[:] = [0] * (JOURNAL_MASK + 1)
