"""What loops with limits have come to, as the device says after each launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import attrs
import numpy as np

from accy_async.backends.devicegraph import GraphDownload
from accy_async.backends.timeline import Mark
from accy_async.errors import GraphError

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferHandle
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["LimitedMark", "Verdicts", "limit_reached"]


class Verdicts:
    """A word on the device and one on the host for each loop that has a limit.

    The device graph has the one copied to the other. They are told apart by the loops'
    numbers in the plan. The graphs of one plan share them.
    """

    def __init__(self, backend: Backend, plan: LaunchGraphPlan) -> None:
        self._backend = backend
        self._plan = plan
        self._found: dict[int, tuple[BufferHandle, np.ndarray]] = {}

    def buffer(self, loop: int) -> BufferHandle:
        """A loop's word on the device; made when first needed.

        Raises:
            OutOfMemory: no room.
        """
        return self._of(loop)[0]

    def download(self, loop: int) -> GraphDownload:
        """What copies a loop's verdict to the host."""
        buffer, word = self._of(loop)
        return GraphDownload(buffer, word)

    def clear(self, loops: Iterable[int]) -> None:
        """Say that none has failed, before a launch: those not run say nothing."""
        for loop in loops:
            if loop in self._found:
                self._found[loop][1][0] = 0

    def errors(self, loops: Iterable[int]) -> dict[int, GraphError | None]:
        """What loops failed with in the launch that has ended, by their numbers.

        Of several that reached their limit side by side, within one loop, the one with
        the fewest iterations failed and ended the others, which have None.
        """
        limit_of = [one.max_iterations or 0 for one in self._plan.loops]
        made = self._found
        reached = [loop for loop in loops if loop in made and made[loop][1][0]]
        ended: set[int] = set()
        found: dict[int, GraphError | None] = {}
        for loop in sorted(reached, key=limit_of.__getitem__):
            outermost = self._plan.order.by_loop[loop]
            while outermost.parent is not None and outermost.parent.loop >= 0:
                outermost = outermost.parent
            has_ended = outermost.loop in ended
            found[loop] = None if has_ended else limit_reached(self._plan, loop)
            ended.add(outermost.loop)
        return found

    def handles(self) -> Iterator[BufferHandle]:
        """What it owns, as it is to be destroyed."""
        for buffer, _ in self._found.values():
            yield buffer

    def forget(self) -> None:
        """Own nothing any more."""
        self._found = {}

    def _of(self, loop: int) -> tuple[BufferHandle, np.ndarray]:
        found = self._found.get(loop)
        if found is None:
            word = np.zeros(1, np.uint32)
            found = self._found[loop] = self._backend.allocate_buffer(4), word
        return found


def limit_reached(plan: LaunchGraphPlan, loop: int) -> GraphError:
    """The error of a loop whose condition still holds after as many as there may be."""
    found = plan.loops[loop]
    return GraphError(
        f"loop {found.name!r}: its condition still holds after "
        f"max_iterations={found.max_iterations}"
    )


@attrs.frozen
class LimitedMark(Mark):
    """The end of a run whose loops may fail by their limits: waiting for it tells.

    Attributes:
        name: the run's, for messages.
    """

    name: str
    _find: Callable[[], Mapping[int, GraphError | None]]
    _found: list[Mapping[int, GraphError | None]] = attrs.field(
        factory=list, init=False
    )

    def look(self) -> None:
        """Keep what the device says, if it is there: the next run says it anew."""
        if not self._found and self.is_reached:
            self._found.append(self._find())

    def raise_failures(self) -> None:
        """Say what failed of a run that has ended.

        Raises:
            ExceptionGroup: the loops whose conditions still held.
        """
        self.look()
        errors = [error for found in self._found for error in found.values() if error]
        if errors:
            raise ExceptionGroup(f"run {self.name!r} failed", errors)

    async def wait(self) -> None:
        """See `Mark.wait`; raises as `raise_failures`, too."""
        await self.timeline.wait(self.position)
        self.raise_failures()
