"""A small space to search on a device whose times are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from accy_async.artifact import FixedLaunch
from accy_async.backends import BufferAccess, BufferBinding, LaunchRequest
from accy_async.backends.handles import BufferHandle
from accy_async.tuning import MeasureOptions, RaceRules
from accy_async.tuning.search import Schedule, SearchOptions, SearchSpace, Variant
from tests.tuning.devices import ScriptedDevice, number_of

__all__ = ["MEASURE", "QUICK", "SPACE", "buffers_of", "build_on", "device_of", "valley"]

SPACE = SearchSpace({"threads": tuple(range(32, 32 * 13, 32))})
MEASURE = MeasureOptions(rules=RaceRules(min_rounds=8, max_rounds=24, repeats=0))
QUICK = SearchOptions(budget_s=1.0, workers=1, heat=4, measure=MEASURE)


def device_of(
    times: Callable[[int], float], noise: float = 0.002, **more: object
) -> ScriptedDevice:
    """A device where a schedule of ``32 (n + 1)`` threads takes ``times(n)`` ns."""
    random = np.random.default_rng(5)

    def duration(request: LaunchRequest) -> float:
        return times(number_of(request)) * float(np.exp(random.normal(0.0, noise)))

    return ScriptedDevice(duration, **more)


def valley(number: int) -> float:
    """Fastest at the eighth of twelve, by more than a half."""
    return 1e5 * (1.0 + 0.1 * abs(number - 7))


def build_on(device: ScriptedDevice) -> Callable[[Schedule], Variant]:
    def build(schedule: Schedule) -> Variant:
        return Variant(
            artifact=device.artifact,
            geometry=FixedLaunch(
                grid=(1, 1, 1), threadgroup=(schedule["threads"], 1, 1)
            ),
        )

    return build


def buffers_of(device: ScriptedDevice) -> list[BufferBinding]:
    def bind(handle: BufferHandle, access: str) -> BufferBinding:
        return BufferBinding(handle=handle, access=BufferAccess(access))

    return [bind(device.target, "write_only"), bind(device.source, "read_only")]
