"""What one run has while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import anyio

    from accy_async.backends.handles import EventHandle, StreamHandle
    from accy_async.graph.bindings import Binding, Memory
    from accy_async.graph.lowering.policy import Lowered
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.prepared import PreparedGraph
    from accy_async.graph.progress import RunProgress
    from accy_async.graph.run import Run
    from accy_async.graph.telling import Telling
    from accy_async.graph.whereabouts import Whereabouts
    from accy_async.observe.protocol import Observer

__all__ = ["Job", "title_of"]


def title_of(plan: LaunchGraphPlan) -> str:
    """What a run is called that was given no name."""
    return f"plan of {len(plan.nodes)} nodes"


class Job:
    """What one run has; given back when it ends."""

    def __init__(
        self,
        run: Run,
        plan: LaunchGraphPlan,
        bindings: dict[str, Binding],
        bound: Mapping[str, Memory],
        options: LaunchOptions,
        progress: RunProgress,
        scope: anyio.CancelScope,
        observer: Observer | None,
        places: Whereabouts | None = None,
    ) -> None:
        self.run = run
        self.plan = plan
        self.bindings = bindings
        self.bound = bound
        self.options = options
        self.progress = progress
        self.scope = scope
        self.has_begun = False
        self.prepared: PreparedGraph | None = None
        self.observer = observer
        self.places = places
        self.telling: Telling | None = None
        self.lowered: Lowered | None = None
        self.max_streams = 1
        self.streams: list[StreamHandle] = []
        self.leased: list[StreamHandle] = []
        self.events: list[EventHandle] = []

    def held(self, memories: Sequence[Memory]) -> dict[str, Binding]:
        """What holds each bound slot's value at the end, as the caller bound it."""
        given = {id(memory): self.bindings[name] for name, memory in self.bound.items()}
        return {
            slot.name: given[id(memory)]
            for slot, memory in zip(self.plan.slots, memories, strict=True)
            if id(memory) in given
        }

    def take_event(
        self, new: Callable[[StreamHandle], EventHandle]
    ) -> Callable[[StreamHandle], EventHandle]:
        """Note the events that are taken, to be given back with the rest."""

        def take(stream: StreamHandle) -> EventHandle:
            event = new(stream)
            self.events.append(event)
            return event

        return take
