"""What a stream was given last, for when its device does not say whose fault it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["JOURNAL_MASK", "Journal", "Label", "Work"]

JOURNAL_MASK = 1023
"""A CUDA stream's queue is 1024 deep: what has not begun yet is in the journal."""


class Label(NamedTuple):
    """What a launch is called: its node or diagnostic id, if any, and its kernel."""

    node: str | None
    kernel: str


Work = Label | tuple[Label, ...]
"""A launch, or the launches of a device graph."""


class Journal:
    """The last launches of a stream, each at its position's lowest bits.

    Their names only, so that nothing which they use is kept. A ring that is allocated
    once: an entry costs one store, which whoever launches makes by hand, as `note`
    does. Operations that are no launches have to `note` None at theirs, so that what
    was there before them is not taken for new.

    Attributes:
        work: launches and device graphs by their labels.
    """

    __slots__ = ("work",)

    def __init__(self) -> None:
        self.work: list[Work | None] = [None] * (JOURNAL_MASK + 1)

    def note(self, position: int, work: Work | None) -> None:
        """Keep what was submitted, in place of what is oldest."""
        self.work[position & JOURNAL_MASK] = work

    def between(self, reached: int, submitted: int) -> Iterator[Label]:
        """The launches behind one position, up to another, in order."""
        first = max(reached, submitted - len(self.work)) + 1
        for position in range(first, submitted + 1):
            work = self.work[position & JOURNAL_MASK]
            if isinstance(work, Label):
                yield work
            elif work is not None:
                yield from work

    def clear(self) -> None:
        """Forget everything."""
        self.work[:] = [None] * len(self.work)
