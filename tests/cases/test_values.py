"""C23, C54, C56: scalars, empty work and strided views mean what they say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from numpy.typing import NDArray

from accy_async.artifact import DType, FixedLaunch, ScalarArgument
from accy_async.backends import BufferBinding, LaunchRequest, RecordingBackend
from accy_async.backends.cpu import CpuBackend
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import cpu_registry
from accy_async.errors import InvalidArtifact, InvalidBuffer, InvalidValue
from accy_async.pipeline import (
    KernelCallPipeline,
    KernelCallRegistry,
    PipelineLaunch,
    PipelineStage,
    Result,
    allocate_pipeline_intermediates,
    launch_pipeline,
    load_pipeline_artifacts,
    submit_pipeline,
)
from tests.harness.scan_chain import ENTRIES, LAUNCH, PIPELINE, PTX, REGISTRY, RESULTS

pytestmark = pytest.mark.anyio

WHOLE = (0, 1, -1, 127, 128, 255, 256, -129, 2**15, 2**31 - 1, 2**31, -1 - 2**31)
LARGE = (2**32, 2**40, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**200)
FLOATS = (0.0, -0.0, 0.1, 1.5, 2.0, 65504.0, 65520.0, 1e39, 1e309, math.inf, math.nan)
NUMPY = (
    *(kind(3) for kind in (np.int8, np.uint8, np.int32, np.uint64, np.int64)),
    *(kind(1.5) for kind in (np.float16, np.float32, np.float64)),
    np.bool_(True),
    np.array(7),
    np.array(0.1, np.float32),
)
OTHERS = (None, "1", b"1", [1], (1,), np.array([1]), 1 + 2j, object())
SCALARS = (*WHOLE, *LARGE, *FLOATS, True, False, *NUMPY, *OTHERS)


def expected(dtype: DType, given: object) -> object:
    """What the scalar holds, or the class of the error, said in other words."""
    value = given.item() if isinstance(given, np.generic) else given
    if isinstance(value, np.ndarray):
        value = value.item() if value.ndim == 0 else None
    if not isinstance(value, (bool, int, float)):
        return TypeError
    if dtype is DType.BOOL or isinstance(value, bool):
        return value if dtype is DType.BOOL and isinstance(value, bool) else TypeError
    if not dtype.is_float:
        if not isinstance(value, int):
            return TypeError
        return value if dtype.minimum <= value <= dtype.maximum else OverflowError
    if isinstance(value, int) and abs(value) > 2**1023:
        return OverflowError
    return expected_float(dtype, value)


def expected_float(dtype: DType, value: float) -> object:
    if math.isnan(value) or math.isinf(value):
        return float(value)
    with np.errstate(over="ignore"):
        held = float(np.array(float(value)).astype(dtype.numpy))
    if math.isinf(held):
        return OverflowError
    return OverflowError if isinstance(value, int) and int(held) != value else held


@pytest.mark.parametrize("dtype", [one for one in DType if one is not DType.BF16])
@pytest.mark.parametrize("given", SCALARS, ids=lambda one: f"{type(one).__name__}")
def test_c23_a_scalar_is_exact_or_refused(dtype: DType, given: object) -> None:
    """C23: every dtype by every kind of value: the exact value, or an error.

    Never zero, garbage or a wrapped number; the error names what was given, and
    is a TypeError for the wrong kind, an OverflowError for what does not fit.
    (Not bf16, as numpy, which says here what is right, has none.)
    """
    want = expected(dtype, given)
    if isinstance(want, type):
        with pytest.raises(want) as caught:
            ScalarArgument.of(dtype, given)
        assert isinstance(caught.value, InvalidValue)
        assert caught.value.field == f"ScalarArgument.{dtype.value}"
        return
    held = ScalarArgument.of(dtype, given)
    assert type(held.value) in (bool, int, float)
    if dtype is DType.BOOL:
        assert held.to_bytes() == bytes([int(bool(want))])
    else:
        assert held.to_bytes() == np.array(want, dtype.numpy).tobytes()


@pytest.mark.parametrize("has_pool", [False, True])
@pytest.mark.parametrize("count", [0, 1])
async def test_c54_no_elements_are_a_completed_no_op(
    has_pool: bool, count: int
) -> None:
    """C54: n = 0 launches, allocates, loads and waits nothing; n = 1 does it all."""
    backend = RecordingBackend()
    pool = await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX)
    before = len(backend.calls)
    request = attrs.evolve(
        LAUNCH,
        runtime_scalar_arguments=(ScalarArgument.u32(count),),
        artifacts=pool if has_pool else None,
    )
    await launch_pipeline(backend, request)
    assert backend.launch_count == 3 * count
    if count == 0:
        assert len(backend.calls) == before
    else:
        assert [launch.grid for launch in backend.launches] == [(1, 1, 1)] * 3
        assert backend.allocated_buffer_byte_sizes == [4, 4]


async def test_c54_no_elements_still_check_the_arguments() -> None:
    """C54: an empty launch that would be wrong with elements is wrong without."""
    backend = RecordingBackend()
    empty = attrs.evolve(LAUNCH, runtime_scalar_arguments=(ScalarArgument.u32(0),))
    for wrong in (
        attrs.evolve(empty, operands=()),
        attrs.evolve(empty, registry=KernelCallRegistry(ENTRIES[:1])),
    ):
        with pytest.raises(ValueError, match="pipeline"):
            await launch_pipeline(backend, wrong)
    with pytest.raises(InvalidArtifact):
        await allocate_pipeline_intermediates(
            backend, PIPELINE, empty.runtime_scalar_arguments
        )


async def test_c54_a_chain_without_stages_is_a_no_op() -> None:
    """C54: an empty pipeline loads an empty pool, and launches nothing."""
    backend = RecordingBackend()
    empty = KernelCallPipeline(
        target="empty", version=1, operand_count=0, result_count=0, stages=()
    )
    request = PipelineLaunch(pipeline=empty, registry=REGISTRY, format=PTX)
    await launch_pipeline(backend, request)
    async with await load_pipeline_artifacts(backend, empty, REGISTRY, PTX) as pool:
        assert len(pool) == 0
        async with await allocate_pipeline_intermediates(backend, empty) as scratch:
            assert len(scratch) == 0
            whole = attrs.evolve(request, artifacts=pool, intermediates=scratch)
            await launch_pipeline(backend, whole)
            submit_pipeline(backend, whole)
    assert backend.calls == []


async def test_c54_a_fixed_grid_of_zero_runs_nothing_and_lets_the_rest_run() -> None:
    """C54: a stage without blocks is skipped by the device, its neighbours run."""
    backend = RecordingBackend()
    nothing = attrs.evolve(
        ENTRIES[2],
        target="nothing",
        argument_count=1,
        runtime_scalar_argument_count=0,
        launch=FixedLaunch(grid=(4, 0, 1), threadgroup=(64, 1, 1)),
    )
    something = attrs.evolve(
        nothing,
        target="something",
        launch=FixedLaunch(grid=(4, 1, 1), threadgroup=(64, 1, 1)),
    )
    stages = [
        PipelineStage(target=target, version=1, buffers=(Result(0),))
        for target in ("something", "nothing", "something")
    ]
    pipeline = KernelCallPipeline(
        target="fixed", version=1, operand_count=0, result_count=1, stages=stages
    )
    await launch_pipeline(
        backend,
        PipelineLaunch(
            pipeline=pipeline,
            registry=KernelCallRegistry([nothing, something]),
            format=PTX,
            results=RESULTS,
        ),
    )
    assert backend.launch_count == 2
    assert not any(backend.live_objects().values())


def every_backend() -> list[Any]:
    return [
        pytest.param(RecordingBackend, id="recording"),
        pytest.param(lambda: CpuBackend(workers=2), id="cpu"),
    ]


@pytest.mark.parametrize("make", every_backend())
async def test_c54_copies_of_no_bytes_are_fine(
    make: Callable[[], RecordingBackend | CpuBackend],
) -> None:
    """C54: empty arrays of any shape go up and come down, with their shapes."""
    backend = make()
    try:
        buffer = backend.allocate_buffer(0)
        for shape in ((0,), (3, 0), (0, 5, 2)):
            array = np.zeros(shape, np.float32)
            backend.write_buffer(buffer, array)
            backend.read_buffer(buffer, array)
            await backend.wait_default_stream()
            assert array.shape == shape
        backend.destroy(buffer)
        await backend.wait_device()
        assert not any(backend.live_objects().values())
    finally:
        backend.close()


async def test_c54_an_empty_scan_on_the_cpu_is_a_no_op() -> None:
    """C54: the library's scan of no elements completes, of one element it is right."""
    backend = CpuBackend(workers=1)
    registry = cpu_registry()
    try:
        for count in (0, 1):
            values = np.full(count, 5.0, np.float32)
            out = np.zeros(count, np.float32)
            operand, result = (
                BufferBinding(handle=backend.allocate_buffer(values.nbytes))
                for _ in range(2)
            )
            backend.write_buffer(operand.handle, values)
            await launch_pipeline(
                backend,
                PipelineLaunch(
                    pipeline=scan_pipeline(DType.F32),
                    registry=registry,
                    format="cpu_machine_code",
                    operands=(operand,),
                    results=(result,),
                    runtime_scalar_arguments=(ScalarArgument.u32(count),),
                ),
            )
            backend.read_buffer(result.handle, out)
            await backend.wait_default_stream()
            assert out.tolist() == [5.0] * count
    finally:
        backend.close()
    assert not any(backend.live_objects().values())


async def test_c54_a_single_launch_of_no_blocks_is_not_recorded() -> None:
    """C54: the backend takes a grid of zero and submits nothing for it."""
    backend = RecordingBackend()
    async with await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX) as pool:
        entry = pool.entries[2]
        backend.launch(
            LaunchRequest(
                artifact=entry.artifact,
                loaded=entry.loaded,
                buffers=(LAUNCH.results[0], LAUNCH.operands[0]),
                scalars=(ScalarArgument.u32(0),),
                geometry=FixedLaunch(grid=(0, 1, 1), threadgroup=(64, 1, 1)),
            )
        )
        assert backend.launch_count == 0
        assert backend.is_stream_idle()


BASE = np.arange(24, dtype=np.float32).reshape(4, 6)
VIEWS: dict[str, NDArray[Any]] = {
    "sliced": BASE.reshape(-1)[::2],
    "transposed": BASE.T,
    "reversed": BASE.reshape(-1)[::-1],
    "broadcast": np.broadcast_to(np.float32(3), 1000),
    "fortran": np.asfortranarray(BASE),
    "column": BASE[:, 1],
    "structured_field": np.zeros(8, [("a", "f4"), ("b", "i4")])["a"],
}


@pytest.mark.parametrize("make", every_backend())
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
async def test_c56_views_are_refused_with_the_remedy(
    make: Callable[[], RecordingBackend | CpuBackend], view: NDArray[Any]
) -> None:
    """C56: neither written nor read as if contiguous: a ValueError that says how."""
    backend = make()
    try:
        buffer = backend.allocate_buffer(4096)
        for copy in (backend.write_buffer, backend.read_buffer):
            with pytest.raises(InvalidBuffer, match=r"numpy\.ascontiguousarray"):
                copy(buffer, view)
        assert backend.is_stream_idle()
    finally:
        backend.close()


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.ascontiguousarray(VIEWS["transposed"]), id="contiguous_copy"),
        pytest.param(BASE[1:3], id="rows"),
        pytest.param(np.zeros(8, [("a", "f4"), ("b", "i4")]), id="structured"),
        pytest.param(np.float32(3).reshape(()), id="scalar"),
        pytest.param(BASE.view(np.uint8), id="bytes"),
    ],
)
async def test_c56_what_is_contiguous_arrives_as_it_is(array: NDArray[Any]) -> None:
    """C56: packed arrays of any shape and dtype go up and come down equal."""
    backend = CpuBackend(workers=1)
    try:
        buffer = backend.allocate_buffer(array.nbytes)
        out = np.empty_like(array)
        backend.write_buffer(buffer, array)
        backend.read_buffer(buffer, out)
        await backend.wait_default_stream()
        assert out.tobytes() == array.tobytes()
    finally:
        backend.close()


def test_c56_a_read_only_array_is_no_destination() -> None:
    """C56: what must not be written is refused as an output, and taken as an input."""
    backend = RecordingBackend()
    buffer = backend.allocate_buffer(96)
    frozen = BASE.copy()
    frozen.setflags(write=False)
    with pytest.raises(InvalidBuffer, match="read-only"):
        backend.read_buffer(buffer, frozen)
    with pytest.raises(InvalidBuffer, match="read-only"):
        backend.read_buffer(buffer, bytes(96))
    backend.write_buffer(buffer, frozen)
    with pytest.raises(InvalidBuffer, match="holds no values"):
        backend.write_buffer(buffer, np.array([None, "x"]))
