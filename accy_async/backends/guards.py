"""Guards: a word in whether a submitted operation runs, and whose its failure is.

An operation submitted with a guard asks it when its turn comes on the device, where
the device can ask (`Backend.asks_guards`; a GPU runs what it was given), and tells it
how it ended: its failure goes to the guard instead of its stream, so that the stream's
other work goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from accy_async.errors import DeviceError

__all__ = ["Guard", "GuardOf"]


class Guard(Protocol):
    """What an operation is submitted under. Called on any thread; never blocks."""

    def blocks(self) -> bool:
        """True for the operation to be skipped after all."""

    def ended(self) -> None:
        """The operation ran, and well."""

    def failed(self, error: DeviceError) -> None:
        """The operation failed on the device."""


GuardOf = Callable[[int], Guard]
"""The guard of each node of a device graph, by the number that the node has."""
