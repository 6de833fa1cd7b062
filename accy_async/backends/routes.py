"""Which way bytes go from one device to another, and why."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from accy_async.backends.base import Backend

__all__ = ["CopyRoute", "Way", "way_by_host"]


class Way(str, Enum):
    """How a copy gets from one device to another."""

    LOCAL = "on the device"
    """Both buffers are on one device."""

    PEER = "straight, by peer access"
    """One device reads or writes the other's memory; the host has no part in it."""

    HOST = "straight, by host memory"
    """A buffer of the two is in host memory, which the other device reads or writes."""

    STAGED = "staged in host memory"
    """In pieces: out to page-locked memory, and in from there, two at a time."""

    def __str__(self) -> str:
        return self.value


@attrs.frozen
class CopyRoute:
    """The way from one device to another.

    Attributes:
        source, target: names of the devices, e.g. ``cuda:0``.
        way: how the bytes go.
        is_pulled: True where a stream of the target carries it out, False where one
            of the source does.
        why: why this way, in words.
    """

    source: str
    target: str
    way: Way
    is_pulled: bool
    why: str

    @property
    def device(self) -> str:
        """The device whose streams carry it out."""
        return self.target if self.is_pulled else self.source

    def __str__(self) -> str:
        return (
            f"{self.source} → {self.target}: {self.way}, by {self.device}: {self.why}"
        )


def way_by_host(device: Backend, peer: Backend) -> tuple[Way | None, str]:
    """How a device that reaches host memory copies to and from a peer, and why so.

    None, and why not, where the peer's memory is not the host's.
    """
    if peer.is_processor:
        return Way.HOST, f"memory of {peer.device} is the host's"
    return None, f"{device.device} reaches no memory of {peer.device}"
