"""What a large store of tuning records costs: to open it, and to find a record there.

``python -m benchmarks.tuning_store 100000`` makes one of so many records; that takes a
few seconds for every 10,000. The files were just written, and come from memory.
"""

from __future__ import annotations

import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, cycle
from pathlib import Path

from accy_async.artifact.store import ArtifactStore
from accy_async.artifact.tiles import LaunchTile, LaunchTileKind
from accy_async.tuning import (
    LaunchCandidateMeasurement,
    LaunchTuningCacheKey,
    LaunchTuningCacheRecord,
    TuningStore,
)
from benchmarks.measuring import Figure, in_rounds, per_call, show

__all__ = ["main"]

KIND = "launch_tuning"
AT_ONCE = 100
"""Records that are looked up, or kept, for one sample."""

TILE = LaunchTile(kind=LaunchTileKind.ELEMENTWISE, m=1, n=4096)


def record(number: int) -> LaunchTuningCacheRecord:
    """A record of its own for every number."""
    return LaunchTuningCacheRecord(
        key=LaunchTuningCacheKey(
            backend="cuda",
            device=1,
            driver="570.86",
            format="cuda_ptx",
            kernel_fingerprint=number,
            output_layout_fingerprint=2,
            input_layout_fingerprint=3,
            element_count=4096,
            tile=TILE,
            candidate_count=8,
            launch_resource_fingerprint=4,
        ),
        selection=LaunchCandidateMeasurement(
            kernel_id=0, candidate_index=3, median_ns=1000, sample_count=30
        ),
    )


def costs(store: TuningStore, records: int, rounds: int) -> list[Figure]:
    """Microseconds for a record, each in turn."""
    opened = store.open(KIND)
    known = [record(number * 7919 % records).key for number in range(AT_ONCE)]
    numbers = count(records)
    unknown = [record(next(numbers)).key for _ in range(AT_ONCE)]

    def of_each(call: Callable[[], object]) -> Callable[[], float]:
        return lambda: per_call(call, 1) / records

    def found(keys: Sequence[LaunchTuningCacheKey]) -> Callable[[], float]:
        looked_up = cycle(keys)
        return lambda: per_call(lambda: opened.find(next(looked_up)), len(keys))

    def keep() -> float:
        new = [record(next(numbers)) for _ in range(AT_ONCE)]
        started = time.perf_counter()
        store.keep(KIND, new)
        taken_us = (time.perf_counter() - started) * 1e6
        for one in new:
            store.forget(KIND, one)
        return taken_us / AT_ONCE

    return in_rounds(
        {
            "open, for each record": of_each(lambda: store.open(KIND)),
            "load all, for each record": of_each(lambda: store.load(KIND)),
            "find one": found(known),
            "find that there is none": found(unknown),
            "keep one": keep,
        },
        rounds,
    )


def kept_bytes(read: Callable[[], object]) -> float:
    """Memory that is taken by what is read."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = read()
        taken = tracemalloc.get_traced_memory()[0] - before
        del found
    finally:
        tracemalloc.stop()
    return taken


def main(records: int = 10_000, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = TuningStore(ArtifactStore(Path(folder)))
        store.keep(KIND, (record(number) for number in range(records)))
        taken = costs(store, records, rounds)
        show(f"A store of {records:,} records", taken, unit="us")
        opened = kept_bytes(partial(store.open, KIND))
        loaded = kept_bytes(partial(store.load, KIND))
        print(
            f"memory: {opened / records:,.0f} bytes a record opened, "
            f"{loaded / records:,.0f} loaded\n"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
