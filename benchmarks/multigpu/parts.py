"""What the sections share: devices, rounds, and rows of their tables."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from accy_async import ArtifactFormat
from benchmarks.gpu.tables import Row, Target

__all__ = ["FORMAT", "NAMES", "Work", "rows_of", "seconds"]

NAMES = ("cuda:0", "cuda:1")
FORMAT = ArtifactFormat.CUDA_PTX

Work = Callable[[], Awaitable[object]]


async def seconds(works: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """How long each takes, in rounds; the first two are thrown away."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 2):
        for name, work in works.items():
            started = time.perf_counter()
            await work()
            if number >= 2:
                taken[name].append(time.perf_counter() - started)
    return taken


def rows_of(
    taken: Mapping[str, Sequence[float]],
    *,
    amount: float = 0.0,
    targets: Mapping[str, tuple[Target, ...]] | None = None,
) -> list[Row]:
    """A row for each: rates of an amount, or milliseconds if there is none."""
    return [
        Row(
            name,
            [amount / one if amount else 1e3 * one for one in samples],
            targets=(targets or {}).get(name, ()),
        )
        for name, samples in taken.items()
    ]
