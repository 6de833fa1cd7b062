"""Schedules: how the work of one kernel is laid out, as values to choose and to keep.

A schedule decides what code is made; a launch candidate decides how one kernel is
launched. Every kind that has more than one sensible layout has a schedule, a list
of candidates for given extents, and a heuristic: the first candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.formats import BackendKind
from accy_async.compiler.form import ProductTile
from accy_async.errors import InvalidValue
from accy_async.values import instances, integer, optional

__all__ = [
    "GatherSchedule",
    "GeneratedRowPipelineSchedule",
    "GeneratedScanSchedule",
    "MatrixProductSchedule",
    "RowSparseCrossEntropySchedule",
    "ScatterAddSchedule",
    "ScatterSchedule",
    "Schedule",
    "Threads2D",
    "gather_schedule_candidates",
    "matrix_product_thread_candidates_for_extents",
    "matrix_product_threads_for_extents",
    "row_pipeline_schedule_candidates",
    "scan_schedule_candidates",
    "scatter_schedule_candidates",
]

_THREADS = integer(1, 1024)
_SORTED = 2048
"""Updates of a line from which on a GPU sorts them sooner than it goes through them."""
_MARKED = 256
"""The same where they need not be sorted."""
_LARGE = 2**18
"""Elements from which on that is so, however few they are: threads copy few each."""


@attrs.frozen
class Threads2D:
    """Threads of a block along the columns (x) and the rows (y) of a product."""

    x: int = attrs.field(validator=_THREADS)
    y: int = attrs.field(validator=_THREADS)


@attrs.frozen(kw_only=True)
class MatrixProductSchedule:
    """A product of matrices: the threads of a block, or a tile for tensor cores.

    Attributes:
        thread_blocks: a block computes a tile of as many columns and rows as it has
            threads, each a sum by itself; None where ``tile`` says more.
        tile: a block computes that tile on units that take many threads at a time;
            None for no such units.
    """

    thread_blocks: Threads2D | None = attrs.field(
        default=None, validator=optional(instances(Threads2D))
    )
    tile: ProductTile | None = attrs.field(
        default=None, validator=optional(instances(ProductTile))
    )

    def __attrs_post_init__(self) -> None:
        if (self.thread_blocks is None) is (self.tile is None):
            raise InvalidValue(
                "MatrixProductSchedule", self, "either thread_blocks or a tile"
            )

    @property
    def numbers(self) -> tuple[int, ...]:
        """It in numbers, as records keep it: two for threads, six for a tile."""
        settled = self.tile or self.thread_blocks
        assert settled is not None
        return attrs.astuple(settled)

    @classmethod
    def of(cls, numbers: Sequence[int]) -> MatrixProductSchedule:
        """A schedule from its numbers.

        Raises:
            InvalidValue: there is none of them.
        """
        if len(numbers) == len(attrs.fields(Threads2D)):
            return cls(thread_blocks=Threads2D(*numbers))
        names = [field.name for field in attrs.fields(ProductTile)]
        if len(numbers) != len(names):
            raise InvalidValue(
                "MatrixProductSchedule.of", tuple(numbers), f"2 or {len(names)} numbers"
            )
        return cls(tile=ProductTile(**dict(zip(names, numbers, strict=True))))


@attrs.frozen(kw_only=True)
class GeneratedScanSchedule:
    """A scan: threads of a block.

    Attributes:
        threads: of a block, a power of two.
        lines_per_block: True where a thread goes along a line by itself, so that a
            block scans as many lines as it has threads; False where a block's
            threads scan one line together.
    """

    threads: int = attrs.field(validator=_THREADS)
    lines_per_block: bool = False


@attrs.frozen(kw_only=True)
class GeneratedRowPipelineSchedule:
    """A pipeline over rows: threads of a block that share a row, a power of two."""

    threads: int = attrs.field(validator=_THREADS)


@attrs.frozen(kw_only=True)
class RowSparseCrossEntropySchedule:
    """A cross entropy of rows: the threads of a block, as in a row pipeline."""

    threads: int = attrs.field(validator=_THREADS)


@attrs.frozen(kw_only=True)
class GatherSchedule:
    """A gather: threads of a block, each an element at a time."""

    threads: int = attrs.field(validator=_THREADS)


@attrs.frozen(kw_only=True)
class ScatterSchedule:
    """A scatter: threads that go through all updates, or a thread for each.

    All schedules give the same bits.

    Attributes:
        threads: of a block.
        segments: parts of the axis with blocks of their own, whose threads go through
            all updates; 1 where each update is looked at once.
        by_update: whether each update is looked at once, in several kernels.

    Raises:
        InvalidValue: each update is looked at once, and there are several segments.
    """

    threads: int = attrs.field(validator=_THREADS)
    segments: int = attrs.field(default=1, validator=integer(1, 65535))
    by_update: bool = attrs.field(default=False, validator=instances(bool))

    def __attrs_post_init__(self) -> None:
        if self.by_update and self.segments > 1:
            name = f"{type(self).__name__}.segments"
            raise InvalidValue(name, self.segments, "1, as it goes by update")


@attrs.frozen(kw_only=True)
class ScatterAddSchedule(ScatterSchedule):
    """A scatter that adds: as `ScatterSchedule`."""


Schedule = (
    MatrixProductSchedule
    | GeneratedScanSchedule
    | GeneratedRowPipelineSchedule
    | RowSparseCrossEntropySchedule
    | GatherSchedule
    | ScatterSchedule
)


def matrix_product_thread_candidates_for_extents(
    m: int, n: int, *, backend: BackendKind = BackendKind.CUDA
) -> tuple[Threads2D, ...]:
    """Thread blocks for a product of ``m`` rows and ``n`` columns, best first.

    Square blocks share most between threads; flat ones suit results with few rows
    or columns. Those much larger than the result are left out.
    """
    square = 8 if backend in (BackendKind.VULKAN, BackendKind.METAL) else 16
    preferred = [
        Threads2D(square, square),
        Threads2D(8, 8) if square != 8 else Threads2D(16, 16),
        Threads2D(32, 8),
        Threads2D(8, 32),
    ]
    if n >= 4 * m:
        preferred.sort(key=lambda t: -t.x)
    elif m >= 4 * n:
        preferred.sort(key=lambda t: -t.y)
    fitting = [t for t in preferred if t.x <= 2 * max(n, 8) and t.y <= 2 * max(m, 8)]
    return tuple(fitting or preferred[:1])


def matrix_product_threads_for_extents(
    m: int, n: int, *, backend: BackendKind = BackendKind.CUDA
) -> Threads2D:
    """The thread block used untuned."""
    return matrix_product_thread_candidates_for_extents(m, n, backend=backend)[0]


def _powers(least: int, most: int) -> list[int]:
    powers = []
    while least <= most:
        powers.append(least)
        least *= 2
    return powers


def _row_threads(columns: int, backend: BackendKind) -> list[int]:
    """Threads for a row, best first: some four elements each."""
    if backend is BackendKind.CPU:
        return [64, 32, 128]
    fitting = [t for t in _powers(32, 1024) if t == 32 or t <= columns]
    wanted = max(1, columns // 4)
    return sorted(fitting, key=lambda t: (abs(t - min(wanted, 256)), t))


def row_pipeline_schedule_candidates(
    columns: int, *, backend: BackendKind = BackendKind.CUDA
) -> tuple[GeneratedRowPipelineSchedule, ...]:
    """Schedules for rows of ``columns`` elements, best first."""
    return tuple(
        GeneratedRowPipelineSchedule(threads=threads)
        for threads in _row_threads(columns, backend)
    )


def scan_schedule_candidates(
    lines: int, extent: int, *, backend: BackendKind = BackendKind.CUDA
) -> tuple[GeneratedScanSchedule, ...]:
    """Schedules for ``lines`` scans of ``extent`` elements each, best first."""
    alone = [
        GeneratedScanSchedule(threads=threads, lines_per_block=True)
        for threads in (64, 128, 32)
    ]
    together = [
        GeneratedScanSchedule(threads=threads)
        for threads in (256, 128, 512, 1024)
        if threads == 128 or threads <= max(extent, 128)
    ]
    if backend is BackendKind.CPU:
        return tuple(alone)
    few = lines < 4096 and extent > 64
    return tuple(together + alone if few else alone + together)


def gather_schedule_candidates(
    elements: int, *, backend: BackendKind = BackendKind.CUDA
) -> tuple[GatherSchedule, ...]:
    """Schedules for a gather of ``elements`` elements, best first."""
    if backend is BackendKind.CPU:
        return (GatherSchedule(threads=256), GatherSchedule(threads=64))
    fitting = [t for t in (256, 128, 64, 512) if t <= max(64, elements)]
    return tuple(GatherSchedule(threads=threads) for threads in fitting)


def scatter_schedule_candidates(
    lines: int,
    extent: int,
    updates: int,
    *,
    sorts: bool = True,
    backend: BackendKind = BackendKind.CUDA,
) -> tuple[ScatterSchedule, ...]:
    """Schedules for ``lines`` lines of ``extent`` elements along the axis, best first.

    Each part of the axis goes through all indices, so there are no more parts than
    keep the device busy: some 32,768 threads on a GPU, four blocks on a CPU. On GPUs
    it pays to look at each update once where a line has many, which takes more kernels
    where that ``sorts`` them.
    """
    if backend is BackendKind.CPU:
        threads, wanted = 64, 4 * 64
    else:
        threads, wanted = 128, 32768
    while threads > 32 and threads >= 2 * lines:
        threads //= 2
    blocks = -(-max(lines, 1) // threads)
    segments = max(1, min(wanted // (threads * blocks), extent, 65535))
    options = dict.fromkeys((segments, max(1, segments // 4), 1))
    alone = [ScatterSchedule(threads=threads, segments=parts) for parts in options]
    if backend is BackendKind.CPU:
        return tuple(alone)
    by_update = [ScatterSchedule(threads=128, by_update=True)]
    if sorts:
        is_many = updates >= _SORTED
    else:
        is_many = updates >= _MARKED or lines * extent >= _LARGE
    return tuple(by_update + alone if is_many else alone + by_update)
