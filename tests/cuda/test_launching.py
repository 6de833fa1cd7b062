"""Launches on the CUDA backend: what each costs, and what the driver is asked."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import attrs
import pytest

from accy_async.artifact import FixedLaunch
from accy_async.backends import BufferBinding, BufferHandle, LaunchRequest, StreamHandle
from accy_async.backends.cuda import CudaBackend
from accy_async.backends.launch import PreparedLaunch
from accy_async.errors import (
    CapabilityMismatch,
    DeviceError,
    DeviceLost,
    InvalidArtifact,
    InvalidBuffer,
    InvalidStream,
    SessionClosed,
)
from tests.cuda.fake import FakeDriver
from tests.gpu import native

ONE = FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1))


def prepare(
    backend: CudaBackend,
    buffers: Sequence[BufferHandle],
    geometry: FixedLaunch = ONE,
    node: str | None = None,
) -> PreparedLaunch:
    artifact = native.artifact(("empty", "count", "combine")[len(buffers)])
    return backend.prepare_launch(
        LaunchRequest(
            artifact=artifact,
            loaded=backend.load_artifact(artifact),
            buffers=tuple(BufferBinding(handle=buffer) for buffer in buffers),
            geometry=geometry,
            diagnostic_id=node,
        )
    )


@pytest.fixture
def pair(backend: CudaBackend) -> list[BufferHandle]:
    return [backend.allocate_buffer(64) for _ in range(2)]


@pytest.fixture
def stream(backend: CudaBackend) -> StreamHandle:
    return backend.create_stream()


def calls_in(submit: Callable[[], object], count: int) -> Counter[str]:
    """The Python and C functions that so many launches call, by kind and name."""
    seen: Counter[str] = Counter()

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            seen[f"python {frame.f_code.co_name}"] += 1
        elif event == "c_call":
            seen[f"c {getattr(argument, '__name__', argument)}"] += 1

    sys.setprofile(look)
    try:
        for _ in range(count):
            submit()
    finally:
        sys.setprofile(None)
    del seen["c setprofile"]
    return seen


def test_a_launch_makes_two_calls_of_ours_and_one_of_the_drivers(
    backend: CudaBackend,
    driver: FakeDriver,
    pair: list[BufferHandle],
    stream: StreamHandle,
) -> None:
    """Whatever it uses, and however much it was used before."""
    driver.tells_addresses = True
    prepared = prepare(backend, pair)
    for _ in range(20):
        backend.submit_launch(prepared, stream)
    driver.keeps_launches = False
    before = driver.calls.copy()
    seen = calls_in(partial(backend.submit_launch, prepared, stream), 100)
    assert driver.calls - before == {"cuLaunchKernelEx": 100}
    # Python that is the driver, and what machine code calls in its place.
    fake = ("call", "_launch_natively", "_cuLaunchKernelEx", "__getattr__")
    ours = {name: n for name, n in seen.items() if name.startswith("python ")}
    for name in fake:
        del ours[f"python {name}"]
    assert ours == {"python submit_launch": 100, "python _launch": 100}
    request = attrs.evolve(prepared.request, stream=stream)
    for _ in range(20):
        backend.launch(request)
    seen = calls_in(partial(backend.launch, request), 100)
    ours = {name: n for name, n in seen.items() if name.startswith("python ")}
    for name in fake:
        del ours[f"python {name}"]
    assert ours.pop("python launch") == 100, "a request that comes again costs one more"
    assert ours == {"python submit_launch": 100, "python _launch": 100}


def test_launches_keep_nothing(
    backend: CudaBackend,
    driver: FakeDriver,
    pair: list[BufferHandle],
    stream: StreamHandle,
) -> None:
    """The blocks allocated are as many after 10,000 launches as before.

    But for the journal, which is full after its 1,024 entries.
    """
    prepared = prepare(backend, pair)
    driver.keeps_launches = False

    def allocated(count: int) -> int:
        for _ in range(count):
            backend.submit_launch(prepared, stream)
        gc.collect()
        return sys.getallocatedblocks()

    allocated(2000)
    first = allocated(100)
    assert allocated(10_000) - first <= 10  # of the interpreter's own


def test_the_config_names_geometry_and_stream(
    backend: CudaBackend, driver: FakeDriver, pair: list[BufferHandle]
) -> None:
    geometry = FixedLaunch(
        grid=(3, 2, 1), threadgroup=(8, 4, 2), dynamic_shared_memory_bytes=512
    )
    prepared = prepare(backend, pair, geometry)
    one, two = backend.create_stream(), backend.create_stream()
    for stream in (one, two, one, None, two):
        backend.submit_launch(prepared, stream)
    streams = [launched.stream for launched in driver.launches]
    assert streams[0] == streams[2]
    assert streams[1] == streams[4]
    assert len(set(streams)) == 3
    for launched in driver.launches:
        assert launched.grid == (3, 2, 1)
        assert launched.threadgroup == (8, 4, 2)
        assert launched.shared_bytes == 512
        assert launched.attributes == {}


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_what_was_destroyed_is_refused_before_the_driver_is_asked(
    backend: CudaBackend,
    driver: FakeDriver,
    pair: list[BufferHandle],
    stream: StreamHandle,
    rounds: int,
) -> None:
    prepared = prepare(backend, pair)
    others = [prepare(backend, pair), prepare(backend, pair[:1])]
    for _ in range(rounds):
        for each in (prepared, *others):
            backend.submit_launch(each, stream)
    asked = driver.calls["cuLaunchKernelEx"]
    backend.destroy(pair[1])
    with pytest.raises(InvalidBuffer, match=f"buffer {pair[1].id} .* was destroyed"):
        backend.submit_launch(prepared, stream)
    with pytest.raises(InvalidBuffer, match=f"buffer {pair[1].id} .* was destroyed"):
        backend.submit_launches([others[1], prepared], stream)
    assert driver.calls["cuLaunchKernelEx"] == asked
    backend.submit_launch(others[1], stream)  # which does not use it
    backend.destroy(others[1].loaded)
    with pytest.raises(InvalidArtifact, match=r"artifact .*\(count\) was destroyed"):
        backend.submit_launch(others[1], stream)
    backend.destroy(stream)
    fine = prepare(backend, pair[:1])
    with pytest.raises(InvalidStream, match=f"stream {stream.id} was destroyed"):
        backend.submit_launch(fine, stream)
    backend.submit_launch(fine)
    backend.close()
    with pytest.raises(SessionClosed):
        backend.submit_launch(fine)


def test_another_backends_launch_is_refused(
    backend: CudaBackend, pair: list[BufferHandle]
) -> None:
    prepared = prepare(backend, pair)
    for _ in range(2):
        backend.submit_launch(prepared)
    other = CudaBackend()
    with pytest.raises(InvalidArtifact, match="prepared on another backend"):
        other.submit_launch(prepared)
    other.close()


@pytest.mark.parametrize("code", [201, 400])
def test_a_launch_without_our_context_is_made_again_with_it(
    backend: CudaBackend, driver: FakeDriver, pair: list[BufferHandle], code: int
) -> None:
    """A new thread's first launch, or one after another library's work."""
    prepared = prepare(backend, pair)
    driver.answers["cuLaunchKernelEx"] = [code]
    before = driver.calls["cuCtxSetCurrent"]
    assert backend.submit_launch(prepared) == 1
    assert len(driver.launches) == 1
    assert driver.calls["cuCtxSetCurrent"] == before + 1


@pytest.mark.parametrize("code", [1, 400])
def test_a_refused_launch_names_kernel_node_stream_and_call(
    backend: CudaBackend,
    driver: FakeDriver,
    pair: list[BufferHandle],
    stream: StreamHandle,
    code: int,
) -> None:
    prepared = prepare(backend, pair, node="the node")
    driver.answers["cuLaunchKernelEx"] = [code, code]
    with pytest.raises(DeviceError) as caught:
        backend.submit_launch(prepared, stream)
    error = caught.value
    assert (error.kernel, error.node, error.stream, error.call, error.code) == (
        "combine", "the node", stream.id, "cuLaunchKernelEx", code,
    )  # fmt: skip
    driver.answers.clear()
    backend.submit_launch(prepared, stream)


def test_a_sticky_code_loses_the_device_for_bound_launches_too(
    backend: CudaBackend, driver: FakeDriver, pair: list[BufferHandle]
) -> None:
    prepared = prepare(backend, pair)
    for _ in range(2):
        backend.submit_launch(prepared)
    driver.answers["cuLaunchKernelEx"] = [700]
    with pytest.raises(DeviceError):
        backend.submit_launch(prepared)
    asked = driver.calls["cuLaunchKernelEx"]
    with pytest.raises(DeviceLost):
        backend.submit_launch(prepared)
    assert driver.calls["cuLaunchKernelEx"] == asked


GRID = FixedLaunch(grid=(8, 2, 1), threadgroup=(32, 1, 1))


@pytest.mark.parametrize(
    ("changes", "attributes"),
    [
        ({"cluster": (4, 2, 1)}, {"cluster": (4, 2, 1)}),
        ({"cooperative": True, "grid": (8, 1, 1)}, {"cooperative": 1}),
        (
            {"cluster": (2, 1, 1), "cooperative": True, "grid": (8, 1, 1)},
            {"cluster": (2, 1, 1), "cooperative": 1},
        ),
    ],
    ids=["cluster", "cooperative", "both"],
)
def test_attributes_travel_with_every_launch(
    backend: CudaBackend,
    driver: FakeDriver,
    changes: dict[str, Any],
    attributes: dict[str, object],
) -> None:
    """Also on streams that come later."""
    prepared = prepare(backend, [], attrs.evolve(GRID, **changes))
    for stream in (None, backend.create_stream(), None):
        backend.submit_launch(prepared, stream)
    assert [launched.attributes for launched in driver.launches] == [attributes] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cooperative": True, "grid": (9, 1, 1)},
            "a cooperative launch of 9 blocks, the device runs 8 of them at the same",
        ),
        (
            {"cooperative": True, "cluster": (2, 1, 1), "grid": (10, 1, 1)},
            "a cooperative launch of 10 blocks, the device runs 8 of them at the same",
        ),
        (
            {"cluster": (8, 2, 2), "grid": (8, 2, 2)},
            r"cluster \(8, 2, 2\) has 32 blocks, the device takes 16",
        ),
        (
            {"dynamic_shared_memory_bytes": 227 << 10},
            "232448 bytes of dynamic shared memory beside 1024 static ones, the device "
            "takes 232448",
        ),
    ],
    ids=["cooperative", "cooperative clusters", "cluster", "shared"],
)
def test_what_cannot_run_at_once_is_refused_before_the_launch(
    backend: CudaBackend, driver: FakeDriver, changes: dict[str, Any], message: str
) -> None:
    """The made-up device has 4 multiprocessors of 2 blocks, and room for 4 clusters."""
    driver.shared_bytes = 1024
    with pytest.raises(CapabilityMismatch, match=f"kernel 'empty': {message}"):
        prepare(backend, [], attrs.evolve(GRID, **changes))
    assert not driver.launches


def test_a_cluster_that_fits_nowhere_is_refused(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    driver.clusters = 0
    with pytest.raises(CapabilityMismatch, match="no cluster of 2 blocks fits"):
        prepare(backend, [], attrs.evolve(GRID, cluster=(2, 1, 1)))


def test_large_clusters_are_asked_for_once(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    """Eight blocks go anywhere; more only where the kernel says so beforehand."""
    name = "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"
    prepare(backend, [], attrs.evolve(GRID, cluster=(8, 1, 1)))
    assert name not in driver.function_attributes
    prepare(backend, [], attrs.evolve(GRID, cluster=(8, 2, 1)))
    assert driver.function_attributes[name] == 1


@pytest.mark.parametrize("static", [0, 1024])
def test_shared_memory_beyond_what_is_there_anyway_is_asked_for(
    backend: CudaBackend, driver: FakeDriver, static: int
) -> None:
    """48 KiB come without asking, static and dynamic together."""
    driver.shared_bytes = static
    name = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    free = (48 << 10) - static
    prepare(backend, [], attrs.evolve(GRID, dynamic_shared_memory_bytes=free))
    assert name not in driver.function_attributes
    prepare(backend, [], attrs.evolve(GRID, dynamic_shared_memory_bytes=free + 1))
    assert driver.function_attributes[name] == free + 1


def test_a_grid_of_no_blocks_needs_no_room(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    driver.blocks_per_multiprocessor = driver.clusters = 0
    empty = attrs.evolve(GRID, grid=(0, 1, 1), cooperative=True, cluster=(2, 1, 1))
    backend.submit_launch(prepare(backend, [], empty))
    assert not driver.launches
