"""What a session counts."""

from __future__ import annotations

import attrs

__all__ = ["SessionStatistics"]


@attrs.frozen(kw_only=True)
class SessionStatistics:
    """A session at one moment.

    Attributes:
        live_objects: objects not freed yet, by kind.
        held_by_reaper: names of those destroyed while still in use.
        streams_open: streams kept for blocks, runs and calls of fragments, in use and
            idle.
        streams_leased: those of them in use now.
        runs: graph runs going on.
        launches: pipeline launches begun since the session was opened.
        launches_in_flight: those of them not known to be done.
    """

    live_objects: dict[str, int]
    held_by_reaper: tuple[str, ...]
    streams_open: int
    streams_leased: int
    runs: int
    launches: int
    launches_in_flight: int
