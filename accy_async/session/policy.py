"""Placing: which of several devices gets work that may go to any of them.

A policy is a function of what is to be done and of the devices that could do it; it
gives the name of one. It is asked for runs and launches that name no device and whose
data lie on none, or on several. Where the data lie on one device there is nothing to
choose: kernels reach no other's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import attrs

from accy_async.values import instances, integer, text

__all__ = ["DeviceLoad", "PlacingPolicy", "Work", "place_least_loaded"]


@attrs.frozen(kw_only=True)
class Work:
    """What is to be placed.

    Attributes:
        kind: ``run`` of a plan, ``launch`` of a pipeline, ``call`` of a fragment, or
            ``data``, for a caller who asks where to put some (`MultiSession.place`).
        name: the run's, the pipeline's or the fragment's name; may be empty.
    """

    kind: Literal["run", "launch", "call", "data"] = attrs.field()
    name: str = attrs.field(default="", validator=text(empty=True))


@attrs.frozen(kw_only=True)
class DeviceLoad:
    """A device that could do it, and is healthy.

    Attributes:
        device: its name.
        load: runs, launches and calls going on there, and operations in flight.
        resident_bytes: how much of the work's data is there.
        has_run: True where the very plan, pipeline or fragment ran there before, so
            that its kernels are loaded.
    """

    device: str = attrs.field(validator=text())
    load: int = attrs.field(default=0, validator=integer())
    resident_bytes: int = attrs.field(default=0, validator=integer())
    has_run: bool = attrs.field(default=False, validator=instances(bool))


PlacingPolicy = Callable[[Work, Sequence[DeviceLoad]], str]
"""Gives the name of one of the candidates, of which there is at least one.

Sync, called on the event loop's thread when something is started; it must not block.
"""


def place_least_loaded(work: Work, candidates: Sequence[DeviceLoad]) -> str:
    """Where most of the data is; of equals the least loaded; then where it ran.

    Of what is equal in all of that, the first of the session's devices.
    """
    del work
    best = max(candidates, key=lambda one: (one.resident_bytes, -one.load, one.has_run))
    return best.device
