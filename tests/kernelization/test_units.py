"""Products for tensor cores: which go there, and what each thread gets and does.

What the tensor cores compute is written out in the kernel form where there are none,
so that all that is around it runs here, on the CPU; `tests.gpu.test_products` has them.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.requirements import DeviceFeatures
from accy_async.compiler.form import ProductTile, TileProduct
from accy_async.compiler.form.traversal import every_statement
from accy_async.compiler.kernelization import KernelizedWork, TargetProfile, kernelize
from accy_async.compiler.kernelization.dot_units import unit_tiles
from accy_async.compiler.kernelization.schedules import (
    MatrixProductSchedule,
    Threads2D,
)
from accy_async.compiler.semantic import FunctionBuilder, Value
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue, UnsupportedOperation
from tests.kernelization.harness import CUDA, Make, check, function, item, profile


def units(shared: int = 227 << 10, *, async_copy: bool = True) -> TargetProfile:
    """A GPU with tensor cores, whose kernels are made by NVRTC."""
    made = profile(ArtifactFormat.CUDA_CUBIN)
    capabilities = attrs.evolve(
        made.capabilities,
        features=DeviceFeatures(tensor_cores=True, async_copy=async_copy),
        max_shared_memory_bytes=shared,
    )
    return attrs.evolve(made, capabilities=capabilities)


UNITS = units()
F32 = DType.F32
SMALL = MatrixProductSchedule(
    tile=ProductTile(m=32, n=64, depth=32, warps_m=1, warps_n=4, stages=2)
)


def product_of(work: KernelizedWork) -> TileProduct | None:
    for statement in every_statement(work.step.kernel.body):
        if isinstance(statement, TileProduct):
            return statement
    return None


@pytest.mark.parametrize(
    ("lhs", "rhs", "axes", "letters"),
    [
        ("[32,64]", "[64,64]", ([1], [0]), "ij,jk->ik"),
        ("[33,17]", "[17,71]", ([1], [0]), "ij,jk->ik"),
        ("[33,24]", "[70,24]", ([1], [1]), "ij,kj->ik"),
        ("[20,40]", "[20,72]", ([0], [0]), "ji,jk->ik"),
        ("[3,16,20]", "[3,20,24]", ([2], [1], [0], [0]), "bij,bjk->bik"),
    ],
)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_each_thread_stores_what_its_sums_are(
    dtype: str, lhs: str, rhs: str, axes: tuple[list[int], ...], letters: str
) -> None:
    work = check(
        "dot_general",
        [f"{dtype}{lhs}", f"{dtype}{rhs}"],
        lambda f, a, b: f.dot_general(a, b, *axes),
        roundings=60,
        scale=lambda a, b: np.einsum(letters, *(abs(x).astype(float) for x in (a, b))),
        target=UNITS,
        schedule=SMALL,
        candidate=1,
    )
    assert product_of(work) is not None
    assert work.step.launch.dynamic_shared_memory_bytes == (32 + 64) * 32 * 2 * 2


def test_work_after_it_and_several_results() -> None:
    def layer(f: FunctionBuilder, x: Value, w: Value, shift: Value) -> list[Value]:
        product = f.dot_general(x, w, [1], [1], accumulate=F32, result=F32)
        moved = f.add(product, f.broadcast(shift, (40, 50)))
        return [f.maximum(moved, 0.0), f.compare(moved, 0.0, "gt")]

    whole = np.random.default_rng(4).integers(-4, 5, (3, 50, 50)).astype(np.float16)
    work = check(
        "dot_general",
        ["f16[40,30]", "f16[50,30]", "f32[50]"],
        layer,
        arguments=[whole[0, :40, :30], whole[1, :, :30], whole[2, 0].astype("f4")],
        target=UNITS,
    )
    assert product_of(work) is not None


def _matmul(f: FunctionBuilder, a: Value, b: Value) -> Value:
    return f.matmul(a, b)


@pytest.mark.parametrize(
    ("types", "make", "target"),
    [
        (["f32[64,64]", "f32[64,64]"], _matmul, UNITS),
        (["f16[64,8]", "f16[8,64]"], _matmul, UNITS),
        (["f16[64,64]", "f16[64,64]"], _matmul, CUDA),
        (["f16[64,64]", "f16[64,64]"], _matmul, units(async_copy=False)),
        (["f16[64,64]", "f16[64,64]"], _matmul, units(shared=16 << 10)),
        (
            ["f16[64,64]", "f16[64,64]"],
            lambda f, a, b: f.matmul(f.abs(a), b),
            UNITS,
        ),
        (
            ["f16[64,64,2]", "f16[64,64,2]"],
            lambda f, a, b: f.dot_general(a, b, [1], [0], [2], [2]),
            UNITS,
        ),
    ],
    ids=["f32", "shallow", "PTX", "sm_75", "memory", "computed", "apart"],
)
def test_other_products_are_each_threads_own(
    types: list[str], make: Make, target: TargetProfile
) -> None:
    of = function(types, make)
    assert unit_tiles(of, target) == ()
    work = kernelize(item("dot_general", of), target)
    assert product_of(work) is None
    with pytest.raises(UnsupportedOperation, match="no tiles for tensor cores"):
        kernelize(item("dot_general", of), target, SMALL)


def test_large_results_have_large_tiles_and_operands_say_how_they_lie() -> None:
    of = function(["f16[4096,4096]", "f16[4096,4096]"], _matmul)
    work = kernelize(item("dot_general", of), UNITS)
    product = product_of(work)
    assert product is not None
    assert product.tile.m * product.tile.n >= 128 * 128
    left, right = product.operands
    assert (left.along_depth, left.pitch, left.vector) == (True, 4096, 8)
    assert (right.along_depth, right.pitch, right.vector) == (False, 4096, 8)
    rounds = (4096 // product.tile.m) * (4096 // product.tile.n)
    assert work.step.launch.grid == (rounds, 1, 1)
    tiles = unit_tiles(of, units(shared=100 << 10))
    assert max(tile.shared_bytes for tile in tiles) <= 100 << 10


def test_threads_may_be_asked_for_instead() -> None:
    of = function(["f16[64,64]", "f16[64,64]"], _matmul)
    schedule = MatrixProductSchedule(thread_blocks=Threads2D(16, 16))
    work = kernelize(item("dot_general", of), UNITS, schedule)
    assert product_of(work) is None
    assert work.step.kernel.threadgroup == (16, 16, 1)


def test_a_schedule_and_its_numbers() -> None:
    for schedule in (SMALL, MatrixProductSchedule(thread_blocks=Threads2D(8, 4))):
        assert MatrixProductSchedule.of(schedule.numbers) == schedule
    with pytest.raises(InvalidValue, match="2 or 6 numbers"):
        MatrixProductSchedule.of((1, 2, 3))
    with pytest.raises(InvalidValue, match="either"):
        MatrixProductSchedule()


@pytest.mark.parametrize(
    "change",
    [{"m": 48}, {"n": 32}, {"depth": 48}, {"stages": 1}],
    ids=str,
)
def test_tiles_that_cannot_be(change: dict[str, int]) -> None:
    assert SMALL.tile is not None
    with pytest.raises(InvalidValue, match=rf"ProductTile\.{next(iter(change))}\b"):
        attrs.evolve(SMALL.tile, **change)
