"""Elementwise work, gathers among it: a thread computes one element, or a few.

The elements are numbered along (`flat`), or go by rows where an operation asks for
coordinates and the last axis is long: a block then stays within a row, so that all
coordinates but the last are the block's and only the last is the thread's.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from accy_async.artifact.formats import BackendKind
from accy_async.artifact.planned import CompileLaunch
from accy_async.artifact.resources import LaunchResourceClass
from accy_async.artifact.tiles import LaunchTile, LaunchTileKind
from accy_async.compiler.form import minimum
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
    """Rows of columns, cut into tiles of ``threads * per_thread`` columns."""

    rows: int
    columns: int
    threads: int
    per_thread: int

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
    layout = _layout(function, shape, profile, schedule)
    step = _step(item, profile, shape, layout)
    return KernelizedWork(
        work_item_id=item.work_item_id,
        compile_launch=item.kind,
        op_count=item.op_count,
        steps=(step,),
    )


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
    return _Layout(rows, columns, threads, per_thread)


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
    with a.tasks(layout.tiles) as tile:
        row, begin = a.number(0), tile * layout.span
        if layout.rows > 1:
            row = tile
            begin = a.number(0)
            if layout.row_tiles > 1:
                row = a.k.let("row", tile / layout.row_tiles)
                begin = a.k.let("begin", tile % layout.row_tiles * layout.span)
        else:
            begin = a.k.let("begin", begin)
        first = begin
        if layout.rows > 1:
            first = a.k.let("first", row * layout.columns + begin)
        outer = a.places.unravel(row, shape[:-1]) if layout.rows > 1 else []
        left = a.left(n, first)
        exact = layout.columns % layout.span == 0
        if layout.rows > 1 and not exact:
            left = minimum(left, a.left(a.number(layout.columns), begin))
        left = a.k.let("left", left)

        def place(offset: int) -> Place:
            inner = begin + a.thread + offset if offset else begin + a.thread
            if layout.rows == 1:
                return a.places.at(shape, a.k.let(None, inner))
            linear = a.k.let(None, first + a.thread + offset)
            return a.places.coordinate(shape, [*outer, a.k.let(None, inner)], linear)

        if is_cpu(a.profile) and exact:
            with a.k.region(), a.places.scope():
                _compute(a, [place(0)])
        elif layout.per_thread == 1:
            with a.k.region(limit=left), a.places.scope():
                _compute(a, [place(0)])
        else:
            offsets = [i * layout.threads for i in range(layout.per_thread)]
            with a.k.when(left >= layout.span), a.k.region(), a.places.scope():
                _compute(a, [place(offset) for offset in offsets])
            with a.k.otherwise():
                for offset in offsets:
                    with a.k.region(limit=left - offset), a.places.scope():
                        _compute(a, [place(offset)])


def _compute(a: Assembly, places: list[Place]) -> None:
    """The results at the places: all are computed before the first is stored."""
    computed = [
        [a.elements.value(value, place) for value in a.function.results]
        for place in places
    ]
    for place, values in zip(places, computed, strict=True):
        at = a.places.number(a.places.linear(place))
        for out, value in zip(a.results, values, strict=True):
            out[at] = value
