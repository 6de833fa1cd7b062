"""Elementwise work, gathers among it: a thread computes one element, or a few.

The elements are numbered along (`flat`), or go by rows where an operation asks for
coordinates and the last axis is long: a block then stays within a row, so that all
coordinates but the last are the block's and only the last is the thread's. Large
transposes go by squares on GPUs, see `transposes`.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.planned import CompileLaunch
from accy_async.artifact.resources import LaunchResourceClass
from accy_async.artifact.tiles import LaunchTile, LaunchTileKind
from accy_async.compiler.form import Expression, maximum, minimum
from accy_async.compiler.kernelization.assembly import (
    Assembly,
    ceil_div,
    grid_candidates,
    is_cpu,
    power_of_two,
)
from accy_async.compiler.kernelization.elements import is_elementwise, needs_coordinates
from accy_async.compiler.kernelization.places import Place
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.kernelization.schedules import GatherSchedule
from accy_async.compiler.kernelization.transposes import (
    THREADS,
    Crossing,
    find_crossing,
    write_crossing,
)
from accy_async.compiler.kernelization.work import (
    KernelizedWork,
    KernelStep,
    WorkItem,
)
from accy_async.compiler.semantic import Function, Value
from accy_async.errors import UnsupportedOperation

__all__ = ["kernelize_elementwise"]

_LARGE = 2**20
"""Elements from which on a GPU's thread takes several: enough threads are left."""
_BYTES_PER_THREAD = 16
"""Of each array that a thread then reads or writes: several accesses under way."""
_MOST_UNROLLED = 24
"""Operations that are still written out for each of them."""
_SHORT_ROW = {True: 16, False: 128}
"""Rows shorter than this are numbered along; by whether the target is a CPU."""


@attrs.frozen
class _Layout:
    """Rows of columns, cut into tiles of ``threads * per_thread`` columns.

    Attributes:
        rows, columns: of all elements.
        threads: of a block.
        per_thread: columns that each takes.
        takes_neighbours: whether these lie next to each other, so that one access has
            them all, or the threads' do, so that their accesses go together.
    """

    rows: int
    columns: int
    threads: int
    per_thread: int
    takes_neighbours: bool = False

    @property
    def span(self) -> int:
        return self.threads * self.per_thread

    @property
    def row_tiles(self) -> int:
        return ceil_div(self.columns, self.span)

    @property
    def tiles(self) -> int:
        return self.rows * self.row_tiles


def kernelize_elementwise(
    item: WorkItem, profile: TargetProfile, schedule: GatherSchedule | None = None
) -> KernelizedWork:
    """The kernel of elementwise work.

    Raises:
        UnsupportedOperation: an operation is not elementwise, or the results differ
            in shape.
    """
    function = item.function
    shape = _common_shape(function)
    crossing = find_crossing(function, shape, profile) if schedule is None else None
    if crossing is not None:
        step = _crossing_step(item, profile, crossing)
    else:
        layout = _layout(function, shape, profile, schedule)
        step = _step(item, profile, shape, layout)
    return KernelizedWork.of(item, (step,))


def _common_shape(function: Function) -> tuple[int, ...]:
    for entry in function.operations:
        if not is_elementwise(entry.op):
            raise UnsupportedOperation(
                f"{entry.op.opcode} is no elementwise operation, or has too many "
                "elements for code"
            )
    shapes = {value.shape for value in function.results}
    if len(shapes) != 1:
        raise UnsupportedOperation(
            f"elementwise work gives results of one shape, not {sorted(shapes)}"
        )
    return shapes.pop()


def _layout(
    function: Function,
    shape: tuple[int, ...],
    profile: TargetProfile,
    schedule: GatherSchedule | None,
) -> _Layout:
    count = function.results[0].type.element_count
    rows, columns = 1, count
    by_rows = needs_coordinates(function) and len(shape) > 1 and count > 0
    if by_rows and shape[-1] >= _SHORT_ROW[is_cpu(profile)]:
        rows, columns = count // shape[-1], shape[-1]
    threads = _threads(columns if rows > 1 else count, profile)
    if schedule is not None:
        threads = schedule.threads
    per_thread = 1
    widest = max(value.dtype.size_bytes for value in _arrays(function))
    several = min(8, _BYTES_PER_THREAD // widest)
    is_large = count >= _LARGE and columns >= threads * several
    is_simple = len(function.operations) <= _MOST_UNROLLED
    if is_large and is_simple and not is_cpu(profile):
        per_thread = several
    takes_neighbours = (
        per_thread > 1
        and profile.format is ArtifactFormat.CUDA_PTX
        and (rows == 1 or columns % per_thread == 0)
    )
    return _Layout(rows, columns, threads, per_thread, takes_neighbours)


def _arrays(function: Function) -> Iterator[Value]:
    yield from function.results
    yield from function.parameters


def _threads(columns: int, profile: TargetProfile) -> int:
    if is_cpu(profile):
        return power_of_two(columns, 8, 1024)
    if profile.backend is BackendKind.CUDA:
        least, middle = 32, 128
    else:
        least, middle = 8, 64
    if columns <= 1024:
        return power_of_two(columns, least, least if least == 32 else middle)
    return middle if columns <= 65536 else 256


def _step(
    item: WorkItem, profile: TargetProfile, shape: tuple[int, ...], layout: _Layout
) -> KernelStep:
    count = item.function.results[0].type.element_count
    threadgroup = (layout.threads, 1, 1)
    a = Assembly(
        item, profile, _name(item), threadgroup, element_count=count, counted=True
    )
    if count:
        _write(a, shape, layout)
    resources = grid_candidates(
        profile,
        layout.tiles if count else 0,
        threadgroup,
        LaunchResourceClass.GATHER_SCATTER
        if item.kind is CompileLaunch.GATHER
        else LaunchResourceClass.ELEMENTWISE,
        per_thread=layout.per_thread,
    )
    tile = LaunchTile(kind=LaunchTileKind.ELEMENTWISE)
    in_place = frozenset() if needs_coordinates(item.function) else _unmoved(item)
    return a.step(resources, tile, in_place=in_place)


def _crossing_step(
    item: WorkItem, profile: TargetProfile, crossing: Crossing
) -> KernelStep:
    count = item.function.results[0].type.element_count
    threadgroup = (THREADS, 1, 1)
    a = Assembly(item, profile, _name(item), threadgroup, element_count=count)
    write_crossing(a, crossing)
    resources = grid_candidates(
        profile,
        crossing.count,
        threadgroup,
        LaunchResourceClass.ELEMENTWISE,
        per_thread=crossing.side * crossing.side // THREADS,
    )
    return a.step(resources, LaunchTile(kind=LaunchTileKind.ELEMENTWISE))


def _name(item: WorkItem) -> str:
    """The kind, and the operation that the first result comes of."""
    if item.kind is not CompileLaunch.ELEMENTWISE:
        return str(item.kind)
    maker = item.function.producers().get(item.function.results[0])
    return f"{item.kind}_{'copy' if maker is None else maker.op.opcode}"


def _unmoved(item: WorkItem) -> frozenset[int]:
    """The operands as large as the results: each is read where it is written."""
    count = item.function.results[0].type.element_count
    return frozenset(
        index
        for index, type in enumerate(item.function.parameter_types)
        if type.element_count == count and count > 1
    )


def _write(a: Assembly, shape: tuple[int, ...], layout: _Layout) -> None:
    n = a.elements_in_all()
    if is_cpu(a.profile):
        with a.tasks(layout.tiles) as tile:
            _Tile(a, shape, layout, n, tile).write_lanes()
        return
    # One region around all tiles: no thread ever waits for another.
    a.k.takes_neighbours = layout.takes_neighbours
    with a.k.region(), a.places.scope(), a.tasks(layout.tiles) as tile:
        _Tile(a, shape, layout, n, tile).write_threads()


class _Tile:
    """Writes what is done with one tile."""

    def __init__(
        self,
        a: Assembly,
        shape: tuple[int, ...],
        layout: _Layout,
        n: Expression,
        tile: Expression,
    ) -> None:
        self.a, self.shape, self.layout = a, shape, layout
        row = a.number(0)
        if layout.rows == 1:
            begin = a.k.let("begin", tile * layout.span)
        elif layout.row_tiles == 1:
            row, begin = tile, a.number(0)
        else:
            row = a.k.let("row", tile / layout.row_tiles)
            begin = a.k.let("begin", tile % layout.row_tiles * layout.span)
        first = begin
        if layout.rows > 1:
            first = a.k.let("first", row * layout.columns + begin)
        self.begin, self.first = begin, first
        self.outer = a.places.unravel(row, shape[:-1]) if layout.rows > 1 else []
        left = a.left(n, first)
        self.is_exact = layout.columns % layout.span == 0
        if layout.rows > 1 and not self.is_exact:
            left = minimum(left, a.left(a.number(layout.columns), begin))
        self.left = a.k.let("left", left)

    def write_lanes(self) -> None:
        """The elements of a core's lanes, one each."""
        a = self.a
        limit = None if self.is_exact else self.left
        with a.k.region(limit=limit), a.places.scope():
            _compute(a, self._places(a.thread, [0]))

    def write_threads(self) -> None:
        """The elements of a GPU's threads, within a region."""
        a, layout = self.a, self.layout
        step = 1 if layout.takes_neighbours else layout.threads
        mine = a.thread
        if layout.takes_neighbours:
            mine = a.k.let(None, a.thread * layout.per_thread)
        if layout.per_thread == 1:
            self._one_by_one(mine, [0])
            return
        offsets = [i * step for i in range(layout.per_thread)]
        with a.k.when(self.left >= layout.span), a.places.scope():
            _compute(a, self._places(mine, offsets))
        with a.k.otherwise():
            if layout.takes_neighbours:
                self._rest(mine)
            else:
                self._one_by_one(mine, offsets)

    def _rest(self, mine: Expression) -> None:
        """What there is of a thread's neighbours.

        A loop, so that LLVM does not let it share stores with the whole tile's code,
        which could then not be made at once.
        """
        a = self.a
        here = self.left - mine.cast(a.signed)
        count = a.k.let(None, minimum(maximum(here, 0), self.layout.per_thread))
        with a.k.count("rest", a.number(0), a.wide(count)) as at, a.places.scope():
            _compute(a, self._places(a.k.let(None, mine + at), [0]))

    def _one_by_one(self, mine: Expression, offsets: list[int]) -> None:
        a = self.a
        for offset in offsets:
            at = (mine + offset if offset else mine).cast(a.signed)
            with a.k.when(at < self.left), a.places.scope():
                _compute(a, self._places(mine, [offset]))

    def _places(self, mine: Expression, offsets: list[int]) -> list[Place]:
        """The elements so far behind one of the tile's.

        The offset is added last, so that LLVM sees which ones are neighbours.
        """
        a, layout = self.a, self.layout
        inner = a.k.let(None, self.begin + mine)
        linear = inner if layout.rows == 1 else a.k.let(None, self.first + mine)

        def behind(base: Expression, offset: int) -> Expression:
            return a.k.let(None, base + offset) if offset else base

        places = []
        for offset in offsets:
            number = behind(linear, offset)
            if layout.rows == 1:
                places.append(a.places.at(self.shape, number))
                continue
            coordinates = [*self.outer, behind(inner, offset)]
            places.append(a.places.coordinate(self.shape, coordinates, number))
        return places


def _compute(a: Assembly, places: list[Place]) -> None:
    """The results at the places: all are computed before the first is stored."""
    computed = [
        [a.elements.value(value, place) for place in places]
        for value in a.function.results
    ]
    numbers = [a.places.number(a.places.linear(place)) for place in places]
    for out, values in zip(a.results, computed, strict=True):
        for at, value in zip(numbers, values, strict=True):
            out[at] = value
