"""Arrays, streams and kernels of PyTorch, CuPy, Numba, JAX and Triton, on one GPU."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import accy_async
from accy_async import DType, ScalarArgument, Session
from accy_async.artifact.geometry import FixedLaunch
from accy_async.backends import BufferBinding, LaunchRequest, StreamHandle
from accy_async.backends.cuda import CudaBackend
from accy_async.errors import ExchangeRefused, InvalidValue, LaunchArgumentMismatch
from accy_async.graph import LaunchGraphBuilder
from tests.gpu import native
from tests.gpu.sessions import until

pytestmark = [pytest.mark.gpu, pytest.mark.anyio]

N = 1 << 16
SLEEP_CYCLES = 40_000_000
"""Some 20 ms of an H200."""


def launch(
    session: Session,
    kernel: str,
    buffers: list[BufferBinding],
    scalars: tuple[ScalarArgument, ...] = (),
    stream: StreamHandle | None = None,
    grid: int = 1,
) -> None:
    """Launch one of `native.NAMES`; the session unloads it."""
    artifact = native.artifact(kernel)
    session.backend.launch(
        LaunchRequest(
            artifact=artifact,
            loaded=session.backend.load_artifact(artifact),
            buffers=tuple(buffers),
            scalars=scalars,
            geometry=FixedLaunch(grid=(grid, 1, 1), threadgroup=(1, 1, 1)),
            stream=stream,
        )
    )


def spin(session: Session, stream: StreamHandle, seconds: float) -> None:
    launch(session, "spin", [], (ScalarArgument.u64(int(seconds * 1e9)),), stream)


def words(torch: Any, value: int, n: int = N) -> Any:
    return torch.full((n,), value, dtype=torch.int32, device="cuda")


async def test_torch_tensor_is_used_in_place(torch: Any) -> None:
    given = words(torch, 7)
    async with accy_async.open_session("cuda") as session:
        array = session.adopt(given)
        assert (array.shape, array.dtype, array.is_borrowed) == ((N,), DType.I32, True)
        launch(session, "count", [array.binding()], grid=N)
        found = await session.download(array)
        assert (found == 8).all()
        assert int(given.sum()) == 8 * N
    assert not any(session.live_objects().values())
    assert int(given.sum()) == 8 * N


async def test_torch_takes_ours_and_outlives_the_session(torch: Any) -> None:
    values = np.arange(N, dtype=np.float32).reshape(256, -1)
    async with accy_async.open_session("cuda") as session:
        array = await session.upload(values)
        taken = torch.from_dlpack(array)
        assert taken.shape == values.shape
        backend = session.backend.base
        assert taken.data_ptr() == backend.buffer_address(array.handle)
        array.free()
        (held,) = backend.reaper.held()
        assert held.endswith("exported")
    assert np.array_equal(taken.cpu().numpy(), values)
    assert session.live_objects()["buffers"] == 1
    del taken
    await until(lambda: not any(session.live_objects().values()))
    await until(lambda: getattr(backend, "_is_given_back"))  # noqa: B009


@pytest.mark.parametrize("through", ["dlpack", "interface"])
async def test_cupy_both_ways(cupy: Any, through: str) -> None:
    values = np.arange(12, dtype=np.int32).reshape(3, 4)
    async with accy_async.open_session("cuda") as session:
        array = await session.upload(values)
        taken = cupy.from_dlpack(array) if through == "dlpack" else cupy.asarray(array)
        assert (taken.get() == values).all()
        taken += 1
        cupy.cuda.get_current_stream().synchronize()
        assert (await session.download(array) == values + 1).all()
        given = cupy.arange(12, dtype=cupy.float32)
        back = session.adopt(given)
        assert (await session.download(back) == np.arange(12)).all()
        pointer = given.data.ptr
        raw = session.adopt_memory(pointer, (12,), DType.F32, owner=given)
        assert (await session.download(raw) == np.arange(12)).all()
        del taken, array
    await until(lambda: not any(session.live_objects().values()))


async def test_numba_both_ways() -> None:
    cuda = pytest.importorskip("numba.cuda")
    values = np.arange(100, dtype=np.int64)
    async with accy_async.open_session("cuda") as session:
        array = await session.upload(values)
        taken = cuda.as_cuda_array(array)
        assert (taken.copy_to_host() == values).all()
        given = cuda.to_device(values)
        # It returns before its copy has arrived, and names no stream to wait for.
        cuda.synchronize()
        back = session.adopt(given)
        assert (await session.download(back) == values).all()
        del taken
    del array
    await until(lambda: not any(session.live_objects().values()))


async def test_jax_both_ways() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    values = np.arange(128, dtype=np.float32)
    async with accy_async.open_session("cuda") as session:
        array = await session.upload(values)
        taken = jax.dlpack.from_dlpack(array)
        assert (np.asarray(taken) == values).all()
        given = jax.numpy.arange(128, dtype=jax.numpy.float32) * 2
        back = session.adopt(given, read_only=True)
        assert (await session.download(back) == values * 2).all()
        del taken
    gc.collect()
    await until(lambda: not any(session.live_objects().values()))


async def test_import_waits_for_the_producers_stream(torch: Any) -> None:
    side = torch.cuda.Stream()
    async with accy_async.open_session("cuda") as session:
        for _ in range(5):
            given = words(torch, 0)
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                torch.cuda._sleep(SLEEP_CYCLES)
                given.fill_(7)
                array = session.adopt(given)
            async with session.stream() as stream:
                found = await session.download(array, stream=stream)
            assert (found == 7).all()


async def test_interface_import_waits_for_the_producers_stream(cupy: Any) -> None:
    side = cupy.cuda.Stream(non_blocking=True)

    class Shown:
        """Only the interface of an array."""

        def __init__(self, array: Any) -> None:
            self.array = array

        @property
        def __cuda_array_interface__(self) -> Any:
            return self.array.__cuda_array_interface__

    async with accy_async.open_session("cuda") as session:
        with side:
            given = cupy.zeros(N, dtype=cupy.int32)
            for _ in range(50):
                given += cupy.ones(N, dtype=cupy.int32)
            array = session.adopt(Shown(given))
        found = await session.download(array)
        assert (found == 50).all()


async def test_export_has_the_consumers_stream_wait(torch: Any) -> None:
    async with accy_async.open_session("cuda") as session:
        for side in (torch.cuda.Stream(), torch.cuda.default_stream()):
            array = await session.upload(np.zeros(N, np.int32))
            async with session.stream() as stream:
                spin(session, stream, 0.02)
                launch(session, "count", [array.binding()], stream=stream, grid=N)
                with torch.cuda.stream(side):
                    found = torch.from_dlpack(array).clone()
                    total = int(found.sum())
            assert total == N


async def test_c01_of_a_lent_buffer(torch: Any) -> None:
    """What a consumer still reads is not given out again, on whatever stream it is."""
    side = torch.cuda.Stream()
    host = torch.empty(N, dtype=torch.float32, pin_memory=True)
    async with accy_async.open_session("cuda") as session:
        for _ in range(30):
            array = await session.upload(np.full(N, 7, np.float32))
            host.zero_()
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                taken = torch.from_dlpack(array)
                torch.cuda._sleep(SLEEP_CYCLES // 4)
                host.copy_(taken, non_blocking=True)
            array.free()
            del taken, array
            again = [session.allocate(N, DType.F32) for _ in range(3)]
            for one in again:
                session.backend.fill_buffer(one.handle, np.float32(-1).tobytes())
            await session.backend.wait_default_stream()
            side.synchronize()
            assert bool((host == 7).all())


async def test_c01_of_a_borrowed_array(torch: Any) -> None:
    """What we still read is not given out again by its owner."""
    async with accy_async.open_session("cuda") as session:
        for _ in range(30):
            given = torch.full((N,), 7.0, device="cuda")
            array = session.adopt(given)
            out = session.allocate(N, DType.F32)
            async with session.stream() as stream:
                spin(session, stream, 0.004)
                session.backend.copy_buffer(array.handle, out.handle, stream=stream)
                array.free()
                del given, array
                again = [torch.full((N,), -1.0, device="cuda") for _ in range(3)]
                torch.cuda.synchronize()
            assert (await session.download(out) == 7).all()
            del again


async def test_later_uses_follow_what_the_consumer_did(torch: Any) -> None:
    side = torch.cuda.Stream()
    async with accy_async.open_session("cuda") as session:
        array = await session.upload(np.zeros(N, np.int32))
        with torch.cuda.stream(side):
            taken = torch.from_dlpack(array)
            torch.cuda._sleep(SLEEP_CYCLES)
            taken.fill_(9)
        del taken
        await until(lambda: not session.backend._table.get(array.handle).is_exported)
        assert (await session.download(array) == 9).all()


async def test_what_cannot_be_taken_is_refused(torch: Any, cupy: Any) -> None:
    square = torch.zeros((8, 8), device="cuda")
    async with accy_async.open_session("cuda") as session:
        for view in (square[::2, ::2], square.T, square[:1].expand(8, 8)):
            with pytest.raises(ExchangeRefused, match="not packed in C order"):
                session.adopt(view)
        with pytest.raises(ExchangeRefused, match="not packed in C order"):
            session.adopt(cupy.arange(8)[::-1])
        with pytest.raises(ExchangeRefused, match="complex64"):
            session.adopt(square.to(torch.complex64))
        with pytest.raises(ExchangeRefused, match="CPU"):
            session.adopt(torch.zeros(4))
        with pytest.raises(ExchangeRefused, match="no memory of a GPU"):
            host = np.zeros(4, np.float32)
            session.adopt_memory(host.ctypes.data, 4, DType.F32, owner=host)
        assert session.adopt(square[2:4]).shape == (2, 8)
        assert session.adopt(torch.zeros((0, 4), device="cuda")).shape == (0, 4)
        frozen = session.adopt(square, read_only=True)
        with pytest.raises(InvalidValue, match="read_only"):
            frozen.binding("read_write")
        with pytest.raises(ExchangeRefused, match="read-only"):
            frozen.__dlpack__(stream=-1)


async def test_dtypes_go_both_ways(torch: Any) -> None:
    names = {
        DType.BF16: torch.bfloat16, DType.F16: torch.float16, DType.F64: torch.float64,
        DType.BOOL: torch.bool, DType.U8: torch.uint8, DType.I64: torch.int64,
    }  # fmt: skip
    async with accy_async.open_session("cuda") as session:
        for dtype, theirs in names.items():
            given = torch.tensor([0, 1, 1, 0], device="cuda").to(theirs)
            array = session.adopt(given)
            assert array.dtype is dtype
            back = torch.from_dlpack(array)
            assert back.dtype is theirs
            assert bool((back == given).all())
            assert back.data_ptr() == given.data_ptr()


async def test_empty_arrays_go_out(torch: Any) -> None:
    async with accy_async.open_session("cuda") as session:
        taken = torch.from_dlpack(session.allocate((0, 3), DType.F32))
        assert tuple(taken.shape) == (0, 3)
        with pytest.raises(ExchangeRefused, match="stream 0"):
            session.allocate(3, DType.F32).__dlpack__(stream=0)


async def test_a_copy_is_the_consumers_own(torch: Any) -> None:
    async with accy_async.open_session("cuda") as session:
        array = await session.upload(np.arange(N, dtype=np.int32))
        async with session.stream() as stream:
            spin(session, stream, 0.01)
            launch(session, "count", [array.binding()], stream=stream, grid=N)
            capsule = array.__dlpack__(stream=1, max_version=(1, 0), copy=True)
            taken = torch.utils.dlpack.from_dlpack(capsule)
            assert taken.data_ptr() != session.backend.buffer_address(array.handle)
            assert (taken.cpu().numpy() == np.arange(N) + 1).all()


async def test_streams_of_others_are_used_and_left_open(torch: Any, cupy: Any) -> None:
    theirs = torch.cuda.Stream()
    async with accy_async.open_session("cuda") as session:
        stream = session.adopt_stream(theirs)
        given = words(torch, 0)
        torch.cuda.synchronize()
        array = session.adopt(given)
        with torch.cuda.stream(theirs):
            torch.cuda._sleep(SLEEP_CYCLES)
            given.fill_(4)
        launch(session, "count", [array.binding()], stream=stream, grid=N)
        await session.backend.wait_stream(stream)
        assert int(given.sum()) == 5 * N
        event = session.backend.create_event()
        session.backend.record_event(event, stream)
        await session.backend.wait_event(event)
        legacy = session.adopt_stream(cupy.cuda.Stream.null)
        launch(session, "count", [array.binding()], stream=legacy, grid=N)
        await session.backend.wait_stream(legacy)
        with pytest.raises(ExchangeRefused, match="per-thread"):
            session.adopt_stream(cupy.cuda.Stream.ptds)
    with torch.cuda.stream(theirs):  # it is still there
        given.add_(1)
    theirs.synchronize()
    assert int(given.sum()) == 7 * N


async def test_leaving_does_not_wait_for_work_of_others(torch: Any) -> None:
    theirs = torch.cuda.Stream()
    backend = CudaBackend()  # closing it frees pinned memory, which waits for the GPU
    async with accy_async.open_session(backend) as session:
        stream = session.adopt_stream(theirs)
        array = session.allocate(N, DType.F32)
        session.backend.fill_buffer(array.handle, b"\0", stream=stream)
        launch(session, "empty", [], stream=stream)  # unloading it would wait, too
        await session.backend.wait_stream(stream)
        with torch.cuda.stream(theirs):
            torch.cuda._sleep(10 * SLEEP_CYCLES)
    assert not theirs.query()
    theirs.synchronize()
    backend.close()


async def test_others_submit_to_our_streams(torch: Any, cupy: Any) -> None:
    async with accy_async.open_session("cuda") as session:
        array = await session.upload(np.zeros(N, np.int32))
        async with session.stream() as stream:
            native_stream = session.native_stream(stream)
            outside = torch.cuda.ExternalStream(native_stream.handle)
            with torch.cuda.stream(outside):
                taken = torch.from_dlpack(array)
                torch.cuda._sleep(SLEEP_CYCLES)
                taken.fill_(3)
            await session.backend.wait_stream(stream)
            assert outside.query()
            with cupy.cuda.Stream.from_external(stream):
                shown = cupy.asarray(array)
                shown += 1
            await session.backend.wait_stream(stream)
        assert (await session.download(array) == 4).all()
        del taken, shown
    del array
    await until(lambda: not any(session.live_objects().values()))


async def test_graphs_and_pipelines_take_arrays_of_others(torch: Any) -> None:
    builder = LaunchGraphBuilder()
    data = builder.buffer("data", DType.U32, 1)
    builder.kernel(native.entry("mix"), [data.read_write], [ScalarArgument.u32(5)])
    plan = builder.build()
    given = torch.ones(1, dtype=torch.uint32, device="cuda")
    async with accy_async.open_session("cuda") as session:
        await session.run(plan, {"data": given})
        assert int(given.cpu()[0]) == 36
        wrong = torch.ones(1, dtype=torch.int32, device="cuda")
        with pytest.raises(LaunchArgumentMismatch, match="dtype u32"):
            await session.run(plan, {"data": wrong})
        frozen = session.adopt(given, read_only=True)
        with pytest.raises(LaunchArgumentMismatch, match="read-only"):
            await session.run(plan, {"data": frozen})
