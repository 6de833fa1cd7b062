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

    ``timestamp_bits`` says how many bits of a time stamp are valid, 0 for none.
    """

    index: int
    count: int
    timestamp_bits: int = 0
    can_compute: bool = True


def choose_families(
    found: Sequence[FoundFamily], most_queues: int = DEFAULT_QUEUES
) -> tuple[QueueFamily, QueueFamily | None]:
    """The family for kernels, and that for copies where there is one for these alone.

    Kernels go to a family that does not draw, where there is one, and which is not in
    the way of whatever draws. Copies between the host and the device get one queue of
    a family that neither draws nor computes, which is a copy engine's; one that has
    the least else to do, as engines for video copy too.

    Args:
        found: all there are, in the driver's order; one of them computes.
        most_queues: so many queues for kernels at the most.
    """
    kernels = min(
        (index for index, one in enumerate(found) if one.flags & _COMPUTE),
        key=lambda index: bool(found[index].flags & _GRAPHICS),
    )
    one = found[kernels]
    chosen = QueueFamily(kernels, min(one.count, most_queues), one.timestamp_bits)
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
