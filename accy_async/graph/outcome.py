"""How runs and nodes can end, and what a run counts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import attrs

from accy_async.errors import AccyError

__all__ = [
    "HostCallFailed",
    "NodeSkipped",
    "NodeState",
    "RunCancelled",
    "RunStatistics",
]


class HostCallFailed(AccyError):
    """A host call ended with what cannot be raised as it is; see ``__cause__``."""


class RunCancelled(AccyError):
    """A run, or a node of it, was cancelled before it was done."""


class NodeSkipped(AccyError):
    """A node was not run, because one that it depends on failed.

    Its ``__cause__`` is that failure, where it is known.
    """


class NodeState(str, Enum):
    """Where a node of a run stands."""

    WAITING = "waiting"
    """Not submitted yet."""

    SUBMITTED = "submitted"
    """Given to the device, or running on the host."""

    FINISHED = "finished"
    """Done, and well."""

    FAILED = "failed"
    """Ended with an error."""

    SKIPPED = "skipped"
    """Not run, since something that it depends on failed."""

    CANCELLED = "cancelled"
    """Not run, since the run was cancelled."""

    def __str__(self) -> str:
        return self.value

    @property
    def is_final(self) -> bool:
        """True where the node will not change any more."""
        return self not in (NodeState.WAITING, NodeState.SUBMITTED)


@attrs.frozen(kw_only=True)
class RunStatistics:
    """A run at one moment, or as it ended.

    Attributes:
        nodes: nodes of the plan, by state.
        submissions: operations given to the device; a loop's nodes count once
            for each iteration.
        in_flight: those of them not known to be done.
        event_records: events recorded for edges between streams.
        event_waits: waits of a stream for such an event.
        streams: streams that the run had.
        host_calls: functions called on the host.
        yields: times that submitting gave way to the event loop.
        waits_for_room: times that submitting waited for work in flight to end.
        is_lowered: True where the run was one graph of the device, or several
            around its calls on the host; each is one submission.
        submit_ns: time spent submitting, in nanoseconds.
    """

    nodes: Mapping[NodeState, int]
    submissions: int
    in_flight: int
    event_records: int
    event_waits: int
    streams: int
    host_calls: int
    yields: int
    waits_for_room: int
    submit_ns: int
    is_lowered: bool = False
