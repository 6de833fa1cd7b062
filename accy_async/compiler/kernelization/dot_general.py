"""Contractions as kernels: their tiling, launch and tile."""

from __future__ import annotations

from functools import partial

import attrs

from accy_async.artifact.formats import BackendKind
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.resources import (
    LaunchResourceCandidate,
    LaunchResourceClass,
    LaunchResourcePlan,
)
from accy_async.artifact.tiles import LaunchTile, LaunchTileKind
from accy_async.compiler.form import ProductTile
from accy_async.compiler.kernelization.assembly import (
    Assembly,
    grid_candidates,
    is_cpu,
)
from accy_async.compiler.kernelization.dot_blocked import write_blocked_product
from accy_async.compiler.kernelization.dot_cpu import cpu_tiling, write_cpu_product
from accy_async.compiler.kernelization.dot_gpu import GpuTiling, write_gpu_product
from accy_async.compiler.kernelization.dot_units import (
    tiles_of,
    unit_tiles,
    write_unit_product,
)
from accy_async.compiler.kernelization.products import (
    Extents,
    Product,
    extents_of,
    find_product,
)
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.kernelization.rows import kernelize_rows
from accy_async.compiler.kernelization.schedules import (
    MatrixProductSchedule,
    Threads2D,
    matrix_product_threads_for_extents,
)
from accy_async.compiler.kernelization.vectorproducts import as_sums, is_of_vectors
from accy_async.compiler.kernelization.work import (
    KernelizedWork,
    KernelStep,
    WorkItem,
)
from accy_async.dtypes import DType
from accy_async.errors import UnsupportedOperation

__all__ = ["kernelize_dot_general"]

_BLOCKS = 96
"""Blocks that keep a large GPU busy with tiles as large as they go."""
_SQUARE = Threads2D(16, 16)


def kernelize_dot_general(
    item: WorkItem,
    profile: TargetProfile,
    schedule: MatrixProductSchedule | None = None,
) -> KernelizedWork:
    """The kernel of a contraction, with elementwise work before and after it.

    Raises:
        UnsupportedOperation: see `find_product`.
    """
    if schedule is None and is_of_vectors(item.function):
        return kernelize_rows(
            attrs.evolve(item, function=as_sums(item.function)), profile
        )
    make = _cpu_step if is_cpu(profile) else _gpu_step
    tile = _unit_tile(item, profile, schedule)
    if tile is not None:
        make = partial(_unit_step, tile=tile)
    return KernelizedWork.of(item, (make(item, profile, schedule),))


def _cpu_step(
    item: WorkItem, profile: TargetProfile, schedule: MatrixProductSchedule | None
) -> KernelStep:
    del schedule  # lanes follow from the dtype; the caches want one tiling
    entry, op = find_product(item.function)
    size = extents_of(entry, op)
    swapped = size.n < 8 and size.m > size.n
    if swapped:
        size = Extents(size.batch, size.n, size.m, size.k)
    dtype = DType.F32 if op.accumulate.bits < 32 and op.accumulate.is_float else None
    tiling = cpu_tiling(size, dtype or op.accumulate)
    threadgroup = (tiling.lanes, 1, 1)
    a = Assembly(item, profile, "dot_general", threadgroup, element_count=size.elements)
    blocks = 0
    if size.elements:
        write_cpu_product(a, Product(a, swapped=swapped), tiling)
        blocks = tiling.panels(size) * tiling.chunks(size) * size.batch
    resources = grid_candidates(
        profile, blocks, threadgroup, LaunchResourceClass.MATRIX_PRODUCT
    )
    return a.step(resources, _tile(item, tiling.rows, tiling.lanes, tiling.stretch))


def _unit_tile(
    item: WorkItem, profile: TargetProfile, schedule: MatrixProductSchedule | None
) -> ProductTile | None:
    """The tile that tensor cores compute; None where they do not.

    Raises:
        UnsupportedOperation: the schedule asks for a tile, and they cannot.
    """
    tiles = unit_tiles(item.function, profile)
    if schedule is None:
        return tiles[0] if tiles else None
    if schedule.tile is not None and not tiles:
        raise UnsupportedOperation(
            f"a product of {', '.join(str(t) for t in item.function.parameter_types)} "
            f"has no tiles for tensor cores in {profile.format} on "
            f"{profile.capabilities.identity.name}"
        )
    return schedule.tile


def _unit_step(
    item: WorkItem,
    profile: TargetProfile,
    schedule: MatrixProductSchedule | None,
    *,
    tile: ProductTile,
) -> KernelStep:
    del schedule
    entry, op = find_product(item.function)
    size = extents_of(entry, op)
    threadgroup = (tile.threads, 1, 1)
    a = Assembly(item, profile, "dot_general", threadgroup, element_count=size.elements)
    write_unit_product(a, Product(a), tile)
    resources = grid_candidates(
        profile,
        tiles_of(size, tile),
        threadgroup,
        LaunchResourceClass.MATRIX_PRODUCT,
        per_thread=tile.sums,
        dynamic_shared_bytes=tile.shared_bytes,
    )
    return a.step(resources, _tile(item, tile.m, tile.n, tile.depth))


def _gpu_step(
    item: WorkItem, profile: TargetProfile, schedule: MatrixProductSchedule | None
) -> KernelStep:
    entry, op = find_product(item.function)
    size = extents_of(entry, op)
    tiling = _gpu_tiling(size, profile, op.accumulate, schedule)
    threadgroup = (tiling.threads.x, tiling.threads.y, 1)
    a = Assembly(item, profile, "dot_general", threadgroup, element_count=size.elements)
    if size.elements:
        write = write_gpu_product if tiling.rows == 1 else write_blocked_product
        write(a, Product(a), tiling)
    tile = _tile(item, tiling.m, tiling.n, tiling.depth)
    return a.step(_launches(size, profile, tiling), tile)


def _gpu_tiling(
    size: Extents,
    profile: TargetProfile,
    accumulate: DType,
    schedule: MatrixProductSchedule | None,
) -> GpuTiling:
    if schedule is not None and schedule.thread_blocks is not None:
        return GpuTiling(schedule.thread_blocks)
    small = accumulate.bits <= 32
    for each in (8, 4) if small else (4,):
        depth = 64 // each  # the larger tile is fetched with as many registers
        tiling = GpuTiling(_SQUARE, rows=each, columns=each, depth=depth)
        x, y, z = tiling.grid(size)
        if x * y * z >= _BLOCKS:
            return tiling
    threads = matrix_product_threads_for_extents(
        size.m, size.n, backend=profile.backend
    )
    return GpuTiling(threads, depth=16 if profile.backend is BackendKind.CUDA else 8)


def _launches(
    size: Extents, profile: TargetProfile, tiling: GpuTiling
) -> LaunchResourcePlan:
    """A block for each tile, and half as many along columns, rows, or both.

    Where there is one tile along an axis, two blocks are the other choice.
    """
    threadgroup = (tiling.threads.x, tiling.threads.y, 1)
    most = profile.capabilities.max_grid
    x, y, z = (min(g, limit) for g, limit in zip(tiling.grid(size), most, strict=True))
    grids = [(x, y, z)]
    if size.elements:
        other_x, other_y = (g // 2 + g % 2 if g > 1 else 2 for g in (x, y))
        grids += [(x, other_y, z), (other_x, y, z), (other_x, other_y, z)]
    return LaunchResourcePlan(
        candidates=tuple(
            LaunchResourceCandidate(
                geometry=FixedLaunch(grid=grid, threadgroup=threadgroup),
                elements_per_thread=tiling.rows * tiling.columns,
                label="x".join(map(str, grid)) + " blocks",
            )
            for grid in grids
        ),
        resource_class=LaunchResourceClass.MATRIX_PRODUCT,
    )


def _tile(item: WorkItem, m: int, n: int, k: int) -> LaunchTile:
    entry, _ = find_product(item.function)
    operand, result = entry.operands[0].dtype, item.function.results[0].dtype
    return LaunchTile(
        kind=LaunchTileKind.DOT_GENERAL,
        m=m,
        n=n,
        k=k,
        input_dtype=operand,
        output_dtype=result,
        input_tile_bytes=(m + n) * k * operand.size_bytes,
        output_tile_bytes=m * n * result.size_bytes,
    )
