"""What the kernels of all kinds begin with: a name, buffers, an element count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from accy_async.artifact.entry import ElementCountArgument
from accy_async.artifact.formats import BackendKind
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.resources import (
    LaunchResourceCandidate,
    LaunchResourceClass,
    LaunchResourcePlan,
)
from accy_async.artifact.tiles import LaunchTile
from accy_async.compiler.form import ArrayHandle, Expression, KernelBuilder, constant
from accy_async.compiler.kernelization.elements import Elements
from accy_async.compiler.kernelization.places import Places
from accy_async.compiler.kernelization.profile import MathTier, TargetProfile
from accy_async.compiler.kernelization.work import (
    BufferOrigin,
    KernelStep,
    StepBuffer,
    WorkItem,
)
from accy_async.compiler.semantic import Function, TensorType
from accy_async.dtypes import DType
from accy_async.values import U32_MAX

__all__ = [
    "KERNEL_VERSION",
    "Assembly",
    "ceil_div",
    "grid_candidates",
    "is_cpu",
    "power_of_two",
]

KERNEL_VERSION = 1
"""Raised when generated code changes what it computes or how it is called."""

_NARROW = 2**31
"""Elements that numbers of 32 bits count, with room for a block beyond the end."""


def is_cpu(profile: TargetProfile) -> bool:
    """Whether the threads of a block are lanes of a loop on one core."""
    return profile.backend is BackendKind.CPU


def ceil_div(value: int, divisor: int) -> int:
    """``value / divisor`` rounded up."""
    return -(-value // divisor)


def power_of_two(value: int, least: int, most: int) -> int:
    """The smallest power of two not below ``value``, within the bounds."""
    power = least
    while power < value and power < most:
        power *= 2
    return power


class Assembly:
    """One kernel while it is made: its builder, buffers and values.

    Args:
        item: the work item.
        profile: the target.
        what: what the kernel does, for its name: ``elementwise_add``.
        threadgroup: the threads of a block.
        counted: whether it learns its element count from a buffer where the target
            has it so; CPUs do not, where known counts make better loops.
        function: what is computed; None: the work item's function.
        results: types of what is written and where it lies, if not the results.
        partials: types of scratch that it reads beside the operands.
        updated: whether the results hold something that it reads.
    """

    def __init__(
        self,
        item: WorkItem,
        profile: TargetProfile,
        what: str,
        threadgroup: tuple[int, int, int],
        *,
        element_count: int,
        counted: bool = False,
        function: Function | None = None,
        results: Sequence[tuple[BufferOrigin, TensorType]] | None = None,
        partials: Sequence[TensorType] = (),
        updated: bool = False,
    ) -> None:
        self.item = item
        self.profile = profile
        self.function = item.function if function is None else function
        self.element_count = element_count
        self._names = 0
        name = f"accy_{what}_{item.work_item_id}_v{KERNEL_VERSION}"
        tier = profile.math_tier
        self.k = KernelBuilder(name, threadgroup, is_approximate=tier is MathTier.FAST)
        self.threads = threadgroup[0] * threadgroup[1] * threadgroup[2]
        if results is None:
            results = [(BufferOrigin.RESULT, t) for t in self.function.result_types]
        access = "read_write" if updated else "write_only"
        self.results = [
            self.k.buffer(f"out{i}", type.dtype, access)
            for i, (_, type) in enumerate(results)
        ]
        self.arguments = [
            StepBuffer(origin=origin, index=i) for i, (origin, _) in enumerate(results)
        ]
        self.partials = [
            self._input(f"part{i}", type, BufferOrigin.SCRATCH, i)
            for i, type in enumerate(partials)
        ]
        self.operands = [
            self._input(f"in{i}", type, BufferOrigin.OPERAND, i)
            for i, type in enumerate(self.function.parameter_types)
        ]
        self.count = ElementCountArgument.NONE
        self._count: ArrayHandle | None = None
        if counted and not is_cpu(profile) and element_count <= U32_MAX:
            self.count = ElementCountArgument.BUFFER_U32
            self._count = self.k.buffer("count", DType.U32, "read_only")
        self.index = self._index_dtype(results)
        self.signed = DType.I32 if self.index is DType.U32 else DType.I64
        self.places = Places(self.k, self.index)
        self.elements = Elements(
            self.function,
            self.places,
            dict(zip(self.function.parameters, self.operands, strict=True)),
            fuse=tier is not MathTier.EXACT,
        )

    def _input(
        self, name: str, type: TensorType, origin: BufferOrigin, index: int
    ) -> ArrayHandle:
        self.arguments.append(StepBuffer(origin=origin, index=index))
        return self.k.buffer(name, type.dtype, "read_only")

    def _index_dtype(self, results: Sequence[tuple[BufferOrigin, TensorType]]) -> DType:
        if is_cpu(self.profile):
            return DType.U64
        counts = [value.type.element_count for value in self.function.values()]
        counts += [type.element_count for _, type in results]
        counts.append(self.element_count)
        return DType.U32 if max(counts) < _NARROW else DType.U64

    def fresh(self, name: str) -> str:
        """A name that the kernel has not got yet: names stand once in a kernel."""
        self._names += 1
        return f"{name}{self._names}"

    def number(self, value: int) -> Expression:
        """A constant of the dtype that elements are numbered in."""
        return constant(self.index, value)

    def wide(self, value: Expression) -> Expression:
        """A value in the dtype that elements are numbered in."""
        return value.cast(self.index)

    @property
    def thread(self) -> Expression:
        """The thread's number in its block."""
        return self.wide(self.k.thread)

    @property
    def block(self) -> Expression:
        """The block's number along x."""
        return self.wide(self.k.block_x)

    def elements_in_all(self) -> Expression:
        """The element count, as given or as known."""
        if self._count is None:
            return self.number(self.element_count)
        return self.k.let("n", self.wide(self._count.at(constant(DType.U32, 0))))

    @contextmanager
    def tasks(self, count: int) -> Iterator[Expression]:
        """The number of this block's task, of so many along the grid's x.

        Any number of blocks goes through all tasks: a block takes every grid-th. CPUs
        are given a block for each task, as far as their grids go.
        """
        if is_cpu(self.profile) and count <= self.profile.capabilities.max_grid[0]:
            yield self.block
            return
        grid = self.wide(self.k.grid_x)
        rounds = (self.number(count - 1) + grid - self.block) / grid
        count_rounds = self.k.count("round", self.number(0), rounds)
        with count_rounds as number, self.places.scope():
            yield self.k.let("task", self.block + number * grid)

    @contextmanager
    def thread_tasks(self, count: int) -> Iterator[Expression]:
        """The number of each thread's task, of so many in all, in a region of its own.

        A block has one for each of its threads; any number of blocks goes through all.
        """
        blocks = self.tasks(ceil_div(count, self.threads))
        with self.k.region(), self.places.scope(), blocks as block:
            own = self.k.let("own", block * self.threads + self.thread)
            with self.k.when(own < count), self.places.scope():
                yield own

    @contextmanager
    def loop(
        self,
        name: str,
        begin: Expression,
        end: Expression,
        step: int = 1,
        *,
        limit: Expression | None = None,
    ) -> Iterator[Expression]:
        """What the threads below ``limit`` do in each round, each by itself.

        On CPUs the threads' loop is the inner one, which becomes vectors. On GPUs it
        is the outer: within a region threads need not meet after each round.
        """
        count = self.k.count(self.fresh(name), begin, end, step)
        region = self.k.region(limit=limit)
        if is_cpu(self.profile):
            with count as at, region, self.places.scope():
                yield at
        else:
            with region, self.places.scope(), count as at, self.places.scope():
                yield at

    def left(self, end: Expression, begin: Expression) -> Expression:
        """``end - begin`` with its sign."""
        return end.cast(self.signed) - begin.cast(self.signed)

    def step(
        self,
        resources: LaunchResourcePlan,
        tile: LaunchTile,
        *,
        in_place: frozenset[int] = frozenset(),
    ) -> KernelStep:
        """The kernel with its launch."""
        return KernelStep(
            kernel=self.k.build(),
            arguments=tuple(self.arguments),
            element_count=self.element_count,
            element_count_argument=self.count,
            launch_resources=resources,
            tile=tile,
            in_place=in_place,
        )


def grid_candidates(
    profile: TargetProfile,
    tiles: int,
    threadgroup: tuple[int, int, int],
    resource_class: LaunchResourceClass,
    *,
    per_thread: int = 1,
    most: int = 4,
    dynamic_shared_bytes: int = 0,
) -> LaunchResourcePlan:
    """Launches of a kernel whose blocks go through any number of tiles.

    The first has a block for each tile, as far as the device's grid goes; the others
    ever fewer blocks that take several. Where there is one tile only, two blocks are
    the other choice, so that there is one. CPUs have the first only: their scheduler
    deals out blocks by itself. No tile is no block, and no work.
    """
    grids = [min(tiles, profile.capabilities.max_grid[0])]
    if not is_cpu(profile) and tiles:
        grids += [ceil_div(grids[0], share) for share in (2, 4, 8)]
        grids = list(dict.fromkeys(grids))[:most]
        if len(grids) == 1:
            grids.append(2)
    return LaunchResourcePlan(
        candidates=tuple(
            LaunchResourceCandidate(
                geometry=FixedLaunch(
                    grid=(grid, 1, 1),
                    threadgroup=threadgroup,
                    dynamic_shared_memory_bytes=dynamic_shared_bytes,
                ),
                elements_per_thread=per_thread * max(1, ceil_div(tiles, max(grid, 1))),
                label=f"{grid} blocks",
            )
            for grid in grids
        ),
        resource_class=resource_class,
    )
