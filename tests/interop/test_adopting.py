"""Arrays and memory of other libraries, used where they are."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import accy_async
from accy_async import KernelCallRegistry, ScalarArgument
from accy_async.backends.adopting import adopt_array, adopt_memory
from accy_async.backends.devicegraph import GraphFill, GraphNode, GraphRequest
from accy_async.backends.recording import RecordingBackend
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.dtypes import DType
from accy_async.errors import ExchangeRefused, InvalidType, LaunchArgumentMismatch
from accy_async.graph import LaunchGraphBuilder
from accy_async.pipeline import PipelineLaunch
from tests.conformance.devices import CpuDevice
from tests.graph.graphs import kernel_entry
from tests.interop.producers import CudaArray, InterfaceArray, Producer

pytestmark = pytest.mark.anyio


class Owner:
    """Somebody whose end can be seen."""


# Lifetimes


async def test_numpy_array_is_used_in_place_and_kept() -> None:
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    gone = weakref.ref(values)
    async with accy_async.open_session("cpu") as session:
        array = session.adopt(values)
        assert (array.shape, array.dtype, array.is_borrowed) == (
            (2, 3),
            DType.I32,
            True,
        )
        values[0, 0] = 7
        assert (await session.download(array))[0, 0] == 7
        await session.write(array, np.zeros_like(values))
        assert not values.any()
        assert session.backend.bytes_in_use == 0  # type: ignore[attr-defined]
        del values
        gc.collect()
        assert gone() is not None
        array.free()
        assert gone() is None
    assert not any(session.live_objects().values())


@pytest.mark.parametrize("is_versioned", [False, True])
def test_producers_deleter_runs_once_the_last_use_is_done(is_versioned: bool) -> None:
    class Array(CudaArray):
        """A type of its own: what it knows is remembered."""

    backend = RecordingBackend()
    producer = Array(is_versioned=is_versioned)
    array = adopt_array(backend, producer)
    backend.hold(None)
    backend.fill_buffer(array.handle, b"\0")
    array.free()
    gc.collect()
    assert producer.released == 0
    assert backend.reaper.held() == ("buffer 1 (128 bytes, borrowed)",)
    backend.release_all()
    assert producer.released == 1
    assert backend.live_objects()["buffers"] == 0
    backend.close()


def test_closing_a_backend_lets_go_of_what_it_borrowed() -> None:
    backend = RecordingBackend()
    producer, owner = CudaArray(), Owner()
    gone = weakref.ref(owner)
    kept = [
        adopt_array(backend, producer),
        adopt_memory(backend, 0x4000, (2,), DType.F32, owner=owner),
    ]
    del owner
    assert gone() is not None
    backend.close()
    assert (producer.released, gone()) == (1, None)
    del kept


def test_losing_the_device_lets_go_of_what_it_borrowed() -> None:
    backend = RecordingBackend()
    producer = CudaArray()
    array = adopt_array(backend, producer)
    backend.fail_execution(1, sticky=True)
    backend.hold(None)
    backend.fill_buffer(array.handle, b"\0")
    array.free()
    backend.release_all()
    backend.close()
    assert producer.released == 1


def test_a_refused_array_is_given_back() -> None:
    backend = RecordingBackend()
    producer = CudaArray(shape=(4, 8), strides=(16, 2))
    with pytest.raises(ExchangeRefused):
        adopt_array(backend, producer)
    gc.collect()
    assert producer.released == 1
    assert backend.live_objects()["buffers"] == 0


def test_memory_on_a_lent_array_goes_round() -> None:
    """Ours, lent and adopted by another backend of ours, is kept by it."""
    mine, other = CpuDevice().backend, CpuDevice().backend
    array = accy_async.DeviceArray.allocate(mine, (4,), DType.U8)
    adopted = adopt_array(other, array)
    assert adopted.is_borrowed
    assert adopt_array(mine, array) is array
    array.free()
    assert mine.reaper.held()
    adopted.free()
    mine.close()
    other.close()


# What is asked of the producer


def test_producer_is_asked_as_the_protocol_says() -> None:
    backend = RecordingBackend()
    producer = CudaArray()
    adopt_array(backend, producer)
    (asked,) = producer.asked
    assert asked["max_version"] >= (1, 0)  # type: ignore[operator]
    (exchange,) = backend._exchange
    assert asked["stream"] == backend._stream_number(exchange)


def test_who_knows_no_versions_is_asked_without() -> None:
    class Old(CudaArray):
        """Its type is remembered."""

    backend = RecordingBackend()
    for _ in range(2):
        old = Old(is_versioned=False)
        assert adopt_array(backend, old).shape == (4, 8)
        assert list(old.asked[0]) == ["stream"]


@pytest.mark.parametrize(
    "error",
    [BufferError("no"), RuntimeError("grad"), TypeError("no"), ValueError("no")],
)
def test_producers_refusal_is_told(error: Exception) -> None:
    with pytest.raises(
        ExchangeRefused, match=f"CudaArray refuses to share it: {error}"
    ):
        adopt_array(RecordingBackend(), CudaArray(refuses=error))


def test_interface_is_followed_on_its_stream() -> None:
    backend = RecordingBackend()
    adopt_array(backend, InterfaceArray(stream=0x99))
    assert [(what, theirs) for what, _, theirs in backend.exchanges] == [
        ("follow", 0x99)
    ]
    for stream in (1, 2):
        adopt_array(backend, InterfaceArray(stream=stream))
        assert backend.exchanges[-1][2] == stream
    count = len(backend.exchanges)
    adopt_array(backend, InterfaceArray(stream=None))
    adopt_array(backend, InterfaceArray())
    assert len(backend.exchanges) == count


def test_every_stream_waits_once_for_what_arrives() -> None:
    backend = RecordingBackend(is_holding=True)
    array = adopt_array(backend, CudaArray())
    (exchange,) = backend._exchange
    streams = [backend.create_stream() for _ in range(2)]
    backend.release_all()
    exchange.is_held = True  # type: ignore[attr-defined]
    array = adopt_array(backend, InterfaceArray(stream=7))
    for stream in streams * 2:
        backend.fill_buffer(array.handle, b"\0", stream=stream)
        assert not backend.is_stream_idle(stream)
    free = backend.create_stream()
    backend.release(free)
    assert backend.is_stream_idle(free)  # nothing else is held up
    exchange.is_held = False  # type: ignore[attr-defined]
    backend._pump()
    assert all(backend.is_stream_idle(stream) for stream in streams)
    before = backend.mark(streams[0]).position
    backend.fill_buffer(array.handle, b"\0", stream=streams[0])
    assert backend.mark(streams[0]).position == before + 1


def test_a_device_graph_waits_for_what_arrives_in_it() -> None:
    backend = RecordingBackend()
    array = adopt_array(backend, CudaArray())
    fill = GraphFill(array.handle, b"\0", 128)
    graph = backend.create_graph(GraphRequest((GraphNode(fill),)))
    (exchange,) = backend._exchange
    exchange.is_held = True  # type: ignore[attr-defined]
    late = adopt_array(backend, InterfaceArray(stream=7))
    filling = GraphFill(late.handle, b"\0", 128)
    other = backend.create_graph(GraphRequest((GraphNode(filling),)))
    stream = backend.create_stream()
    backend.launch_graph(graph, stream)
    assert backend.is_stream_idle(stream)
    backend.launch_graph(other, stream)
    assert not backend.is_stream_idle(stream)
    exchange.is_held = False  # type: ignore[attr-defined]
    backend._pump()
    assert backend.is_stream_idle(stream)
    # And for what a consumer did with a buffer that is part of it.
    capsule = array.__dlpack__(stream=-1)
    del capsule
    backend.live_objects()
    before = backend.mark(stream).position
    backend.launch_graph(graph, stream)
    assert backend.mark(stream).position > before


# Bindings


async def test_graphs_take_arrays_and_keep_them() -> None:
    builder = LaunchGraphBuilder()
    x, y = (builder.buffer(name, DType.F32, (4, 8)) for name in "xy")
    builder.kernel(kernel_entry(2), [x.read, y.read_write])
    plan = builder.build()
    backend = RecordingBackend()
    async with accy_async.open_session(backend) as session:
        producers = [CudaArray(), InterfaceArray()]
        run = session.start(plan, dict(zip("xy", producers, strict=True)))
        await run
        bound = run.binding("x")
        assert isinstance(bound, accy_async.DeviceArray)
        with pytest.raises(LaunchArgumentMismatch, match="expected dtype f32"):
            session.start(plan, {"x": CudaArray(dtype=DType.I32), "y": producers[1]})
        with pytest.raises(LaunchArgumentMismatch, match="at least 128"):
            session.start(plan, {"x": CudaArray(shape=(3,)), "y": producers[1]})
        same = CudaArray()
        await session.run(plan, {"x": same, "y": same})
        assert len(same.asked) == 1
        assert len(set(backend.launches[-1].buffer_ids)) == 1
        del run, bound
    assert not any(session.live_objects().values())


async def test_pipelines_take_numpys_arrays() -> None:
    pipeline = scan_pipeline(DType.F32)
    async with accy_async.open_session("cpu") as session:
        format = session.backend.default_format
        registry: KernelCallRegistry = library_registry(format)
        values, sums = np.ones(1000, np.float32), np.zeros(1000, np.float32)
        ours = await session.upload(values)

        def launch(operand: Any, result: Any) -> PipelineLaunch:
            return PipelineLaunch(
                pipeline=pipeline,
                registry=registry,
                format=format,
                operands=[operand],
                results=[result],
                runtime_scalar_arguments=(ScalarArgument.u32(1000),),
            )

        for operand in (values, ours, ours.binding()):
            sums[:] = 0
            await session.launch_pipeline(launch(operand, sums))
            assert np.array_equal(sums, np.arange(1, 1001, dtype=np.float32))
        sums.flags.writeable = False
        with pytest.raises(LaunchArgumentMismatch, match=r"results\[0\] is read-only"):
            await session.launch_pipeline(launch(values, sums))
        with pytest.raises(InvalidType, match=r"PipelineLaunch.operands\[0\]"):
            launch(7, sums)
        with pytest.raises(ExchangeRefused, match=r"operands\[0\]: shape"):
            await session.launch_pipeline(launch(np.ones(2000, np.float32)[::2], sums))


async def test_asarray_copies_only_what_it_must() -> None:
    values = np.arange(4, dtype=np.float32)
    async with accy_async.open_session("cpu") as session:
        ours = await session.asarray(values)
        assert ours.is_borrowed
        assert await session.asarray(ours) is ours
        listed = await session.asarray([1, 2, 3], dtype=DType.I64)
        assert not listed.is_borrowed
    backend = RecordingBackend()
    async with accy_async.open_session(backend) as session:
        for host in (values, Producer(np_tensor(values))):
            assert not (await session.asarray(host)).is_borrowed
        assert backend.write_count == 2
        assert (await session.asarray(CudaArray())).is_borrowed


def np_tensor(values: np.ndarray[Any, np.dtype[np.float32]]) -> Any:
    from accy_async.interop.dlpack import CPU, Tensor

    return Tensor(
        address=values.ctypes.data,
        device=(CPU, 0),
        dtype=DType.F32,
        shape=values.shape,
    )


async def test_closed_sessions_take_nothing() -> None:
    async with accy_async.open_session("cpu") as session:
        pass
    for call in (
        lambda: session.adopt(np.zeros(3)),
        lambda: session.adopt_memory(64, 1, DType.U8, owner=None),
        lambda: session.adopt_stream(3),
        session.native_stream,
    ):
        with pytest.raises(accy_async.AccyError, match="the session is closed"):
            call()
