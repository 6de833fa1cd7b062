"""Many launches in one go, with the events around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accy_async.backends.contract.core import BackendCore
from accy_async.errors import AccyError

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard
    from accy_async.backends.handles import EventHandle, StreamHandle
    from accy_async.backends.hooks import EventState
    from accy_async.backends.launch import PreparedLaunch
    from accy_async.backends.resources import Resource

__all__ = ["LaunchStep", "Steps"]

LaunchStep = tuple[
    "StreamHandle",
    "Sequence[EventHandle]",
    "PreparedLaunch",
    "Guard",
    "EventHandle | None",
]
"""A stream, the events that it waits for before a launch, the launch, its guard, and
the event that is recorded after it."""


class Steps(BackendCore):
    """Submission for who has much to submit, as graphs have."""

    def submit_steps(self, steps: Sequence[LaunchStep], positions: list[int]) -> None:
        """Submit launches as `stream_wait_event`, `launch`, `record_event` would.

        Locking and looking once for all of them costs half of what these calls do.
        It stops before a step that they would refuse, which has no effect then:
        making the calls for it tells why.

        Args:
            steps: what to submit, in order.
            positions: gets the position of each launch once its step is through,
                also where the device refuses one after it.

        Raises:
            AccyError: the device refused the step behind the last position.
        """
        if self._is_closed or self._is_forked or self._lost is not None:
            return
        get = self._table.get
        with self._lock:
            for stream, events, prepared, guard, recorded in steps:
                try:
                    state = self._stream(stream)
                    waits = [get(event) for event in events]
                    record = None if recorded is None else get(recorded)
                except AccyError:
                    return
                if not (prepared.has_blocks and _are_ready(waits, prepared.resources)):
                    return
                timeline = state.timeline
                for event in waits:
                    position = timeline.advance()
                    event.touch(timeline, position)
                    self._stream_wait(state, position, event.payload)  # type: ignore[arg-type]
                launched = timeline.advance()
                for resource in prepared.resources:
                    resource.touch(timeline, launched)
                self._launch(state, launched, prepared, guard)
                if record is not None:
                    position = timeline.advance()
                    record.touch(timeline, position)
                    mark: EventState = record.payload  # type: ignore[assignment]
                    mark.mark = (timeline, position)
                    mark.time_ns = None
                    self._record(state, position, mark)
                    if not mark.has_timing:  # see `Streams.record_event`
                        timeline.request(position)
                positions.append(launched)


def _are_ready(events: Sequence[Resource], resources: Sequence[Resource]) -> bool:
    """Whether the events have been recorded, and the others are alive and here."""
    for event in events:
        if event.payload.mark is None:  # type: ignore[attr-defined]
            return False
    for resource in resources:
        if not resource.is_alive or resource.arrival is not None:
            return False
    return True
