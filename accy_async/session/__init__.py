"""Sessions: one device or several, and the owner of everything on it.

A session is opened with ``async with`` and owns what is made inside: however its
block is left, its streams are awaited for the grace at most and everything is
destroyed. It adds to a backend what an async service needs: a bounded pool of
streams, a bound on launches in flight, arrays in and out.

States: open → draining (nothing new is taken) → closed. Leaving takes every
session through both; a call on one that is not open raises `SessionClosed`.
"""

from accy_async.session.multi import MultiSession
from accy_async.session.opening import Session, open_session
from accy_async.session.policy import (
    DeviceLoad,
    PlacingPolicy,
    Work,
    place_least_loaded,
)
from accy_async.session.statistics import SessionStatistics

__all__ = [
    "DeviceLoad",
    "MultiSession",
    "PlacingPolicy",
    "Session",
    "SessionStatistics",
    "Work",
    "open_session",
    "place_least_loaded",
]
