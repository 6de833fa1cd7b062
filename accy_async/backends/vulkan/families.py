"""Which families of queues are used: one for kernels, and one that only copies."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

__all__ = ["DEFAULT_QUEUES", "FoundFamily", "QueueFamily", "choose_families"]

DEFAULT_QUEUES = 4
"""Kernels of one queue overlap where no barrier is between them, so that few queues
are enough to keep a device busy; and each takes NVIDIA's driver 0.1 s to make."""

_GRAPHICS, _COMPUTE, _TRANSFER, _SPARSE = 1, 2, 4, 8
"""Bits of VkQueueFlagBits; those above are for video and for optical flow."""


@attrs.frozen
class FoundFamily:
    """A family as the driver tells of it: VkQueueFamilyProperties."""

    flags: int
    count: int
    timestamp_bits: int


@attrs.frozen
class QueueFamily:
    """Queues that are used: of which family, how many, and how they tell time.

    Attributes:
        index: the family's number.
        count: how many queues.
        timestamp_bits: how many bits of a time stamp are valid, 0 for none.
        can_compute: whether kernels run on them.
        urgent: so many of them, the last ones, are for urgent streams.
    """

    index: int
    count: int
    timestamp_bits: int = 0
    can_compute: bool = True
    urgent: int = 0

    @property
    def priorities(self) -> list[float]:
        """The queues' priorities, as they are made with them.

        The two ends of the range: devices need not tell more than two apart
        (Vulkan 1.2, discreteQueuePriorities).
        """
        return [0.0] * (self.count - self.urgent) + [1.0] * self.urgent


def choose_families(
    found: Sequence[FoundFamily], most_queues: int = DEFAULT_QUEUES
) -> tuple[QueueFamily, QueueFamily | None]:
    """The family for kernels, and that for copies where there is one for these alone.

    Kernels go to a family that does not draw, where there is one, and which is not in
    the way of whatever draws; of three queues and more one is for urgent streams.
    Copies between the host and the device get one queue of a family that neither draws
    nor computes, which is a copy engine's; one that has the least else to do, as
    engines for video copy too.

    Args:
        found: all there are, in the driver's order; one of them computes.
        most_queues: so many queues for kernels at the most.
    """
    kernels = min(
        (index for index, one in enumerate(found) if one.flags & _COMPUTE),
        key=lambda index: bool(found[index].flags & _GRAPHICS),
    )
    one = found[kernels]
    count = min(one.count, most_queues)
    chosen = QueueFamily(kernels, count, one.timestamp_bits, urgent=int(count > 2))
    copying = [
        index
        for index, one in enumerate(found)
        if one.flags & _TRANSFER and not one.flags & (_GRAPHICS | _COMPUTE)
    ]
    if not copying:
        return chosen, None

    def others(index: int) -> int:
        return (found[index].flags & ~(_TRANSFER | _SPARSE)).bit_count()

    return chosen, QueueFamily(min(copying, key=others), 1, can_compute=False)
