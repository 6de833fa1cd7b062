"""Measuring one list of candidates on many devices and hosts.

    async with open_fleet(["cuda:0", "cuda:1"]) as fleet:
        outcome = await fleet.measure(work)

* `FleetWork`: the candidates and what they work on, as data; `kernel_work` makes one of
  a planned kernel's launch candidates, `launch_records` its winners' records.
* `open_fleet`: workers in this process, or where `WorkerPlace` and `WorkerSource` say;
  each has a session of ours. `ray_workers` opens them on a Ray cluster.
* `accy_async.fleet.board`: the deciding part, pure.
"""

from accy_async.fleet.fleet import Fleet, FleetMeasuring, open_fleet
from accy_async.fleet.found import (
    DeviceKind,
    FleetDevice,
    FleetMeasurement,
    FleetOutcome,
    KindOutcome,
    launch_records,
)
from accy_async.fleet.places import (
    FleetWorker,
    LocalPlace,
    WorkerPlace,
    WorkerSource,
)
from accy_async.fleet.rayworkers import RayWorkers, ray_workers
from accy_async.fleet.work import FleetBuffer, FleetCandidate, FleetWork, kernel_work

__all__ = [
    "DeviceKind",
    "Fleet",
    "FleetBuffer",
    "FleetCandidate",
    "FleetDevice",
    "FleetMeasurement",
    "FleetMeasuring",
    "FleetOutcome",
    "FleetWork",
    "FleetWorker",
    "KindOutcome",
    "LocalPlace",
    "RayWorkers",
    "WorkerPlace",
    "WorkerSource",
    "kernel_work",
    "launch_records",
    "open_fleet",
    "ray_workers",
]
