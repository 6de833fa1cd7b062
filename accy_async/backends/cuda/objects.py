"""What the backend keeps for its objects: the driver's handles, packed arguments."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accy_async.backends.cuda.geometry import launch_config
from accy_async.backends.hooks import EventState, StreamState

if TYPE_CHECKING:
    from accy_async.artifact.geometry import FixedLaunch
    from accy_async.backends.cuda.board import NativeLaunch
    from accy_async.backends.cuda.timeline import CudaTimeline
    from accy_async.backends.journal import Journal

__all__ = ["CudaEvent", "CudaStream", "LaunchArguments", "MachineLaunch"]


class CudaStream(StreamState):
    """A stream: the driver's handle, its word, and the ring of its journal."""

    journal: Journal

    def __init__(self, timeline: CudaTimeline, priority: int, native: Any) -> None:  # noqa: ANN401
        super().__init__(timeline, priority)
        self.native = native
        self.flags = timeline
        self.journal = timeline.journal
        self.number = int(native)
        self.recent = self.journal.work
        self.keeper: object = None  # of a stream that somebody else owns


class CudaEvent(EventState):
    """An event: the driver's handle.

    ``finisher`` is what the host has to do once it is reached, before anybody is told.
    """

    def __init__(self, *, has_timing: bool, native: Any) -> None:  # noqa: ANN401
        super().__init__(has_timing=has_timing)
        self.native = native
        self.finisher: Callable[[], None] | None = None


class MachineLaunch:
    """A launch that machine code makes, with a flag behind it where one is due.

    Attributes:
        record: what it reads. A ``position`` that is put there is the flag of the next
            launch, and gone after it.
        call: makes the launch; `Scanner.launching` says what it returns.
    """

    __slots__ = ("call", "record")

    def __init__(self, record: NativeLaunch, call: Callable[[], int]) -> None:
        self.record = record
        self.call = call

    def aim(self, on: CudaStream) -> None:
        """Have the flags written by this stream, into its word."""
        self.record.on = on.number
        self.record.word = on.flags.word_address

    def launch_flagged(self, line: CudaTimeline, position: int) -> int:
        """Launch what is at a position, and have the stream write that behind it.

        Returns:
            As `call`: a flag that was refused is the wait's to see to.
        """
        try:
            self.record.position = position
            code = self.call()
        except BaseException:  # an interrupt: it is not the next one's
            self.record.position = 0
            raise
        if code == 0:
            line.flagged = position
        return code


class LaunchArguments:
    """A launch's arguments and geometry as ``cuLaunchKernelEx`` takes them.

    All is packed once; what changes from one submission to the next is the stream.

    Args:
        driver: the driver.
        function: the kernel.
        geometry: what it is launched with.
        slots: the arguments, as numbers of 64 bits.

    Attributes:
        config: geometry, attributes and stream; made when a stream is named first, as
            graphs need none.
        native: the stream that ``config`` names.
        function: the kernel.
        pointer: the address of the arguments' addresses.
        values: the arguments, 64 bits each, and behind them their addresses.
        machine: what makes the driver's call, where it is made often; None before.
        calls: how often it was made before that.
    """

    __slots__ = (
        "_driver",
        "_geometry",
        "calls",
        "config",
        "function",
        "machine",
        "native",
        "pointer",
        "values",
    )

    def __init__(
        self,
        driver: Any,  # noqa: ANN401 - bindings are untyped
        function: Any,  # noqa: ANN401
        geometry: FixedLaunch,
        slots: list[int],
    ) -> None:
        size = 8 * len(slots)
        self.values = values = _words(2 * len(slots) or 1)()
        first = ctypes.addressof(values)
        if size:
            values[:] = [*slots, *range(first, first + size, 8)]
        self.pointer = first + size
        self.function = function
        self.config: Any = None
        self.native: Any = None
        self.machine: MachineLaunch | None = None
        self.calls = 0
        self._driver = driver
        self._geometry = geometry

    @property
    def memory(self) -> object:
        """What all of it lies in, to be kept while the driver may read it."""
        return self.config, self.values

    def aim(self, on: CudaStream) -> None:
        """Have the launch go to this stream; under the submission lock."""
        if self.config is None:
            self.config = launch_config(self._driver, self._geometry)
        self.native = None  # an interrupt may come between: then aim again
        self.config.hStream = native = on.native
        if self.machine is not None:
            self.machine.aim(on)
        self.native = native


@functools.cache
def _words(count: int) -> type[ctypes.Array[ctypes.c_uint64]]:
    """So many numbers of 64 bits."""
    return ctypes.c_uint64 * count
