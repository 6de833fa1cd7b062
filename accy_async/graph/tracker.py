"""Finding the nodes that got done, for whoever iterates over a run."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from accy_async.backends.completion import Completion
from accy_async.backends.loops import current_bell

if TYPE_CHECKING:
    from accy_async.graph.progress import RunProgress

__all__ = ["Tracker"]


class Tracker:
    """Finds what got done since the last look, in time linear in all nodes."""

    def __init__(self, progress: RunProgress) -> None:
        self.news = Completion()
        self._progress = progress
        self._lanes: dict[int, deque[tuple[int, int]]] = {}
        self._others: deque[int] = deque()
        self._given = bytearray(progress.relations.count)
        for index in progress.begun():
            self.add(index)

    def add(self, index: int) -> None:
        """A node was submitted, or is done."""
        place = self._progress.place(index)
        if place is None:
            self._others.append(index)
        else:
            lane, position = place
            self._lanes.setdefault(lane, deque()).append((position, index))
        self.news.set()

    def take(self) -> list[int]:
        """What got done."""
        progress = self._progress
        found = []
        for lane, waiting in self._lanes.items():
            completed = progress.timelines[lane].completed
            while waiting and waiting[0][0] <= completed:
                found.append(waiting.popleft()[1])
        while self._others:
            index = self._others.popleft()
            if progress.state(index).is_final:
                found.append(index)
        if progress.done.is_set():
            found += range(len(self._given))
        fresh = []
        for index in found:
            if not self._given[index] and progress.state(index).is_final:
                self._given[index] = 1
                fresh.append(index)
        return fresh

    async def wait(self) -> None:
        """Return when something may have got done."""
        progress = self._progress
        news = self.news = Completion(current_bell())
        lines = []
        for lane, waiting in self._lanes.items():
            if waiting:
                line = progress.timelines[lane]
                line.watch(waiting[0][0], news)
                lines.append(line)
        if self._others or progress.done.is_set():
            news.set()
        try:
            await news.wait()
        except GeneratorExit:  # see `Timeline.unwatch`
            lines.clear()
            raise
        finally:
            for line in lines:
                line.unwatch(news)
