"""Launches on a GPU: attributes, large shared memory, contexts, many of them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import numpy as np
import pytest

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends import BufferBinding, BufferHandle, LaunchRequest
from accy_async.backends.cuda import CudaBackend
from accy_async.backends.cuda.driver import check
from accy_async.backends.launch import PreparedLaunch
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import CapabilityMismatch, DeviceError
from tests.conformance.devices import CudaDevice
from tests.gpu import native

pytestmark = [pytest.mark.gpu, pytest.mark.anyio]

ONE = FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1))

# Every block says that it has come and waits, five seconds at most, until all have;
# w[1 + b] is how many had come when block b went on.
MEET = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry meet(.param .u64 words)
{
    .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [words];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %nctaid.x;
    mov.u32 %r5, %tid.x;
    setp.ne.u32 %p1, %r5, 0;
    @%p1 ret;
    atom.global.add.u32 %r3, [%rd1], 1;
    mov.u64 %rd2, %globaltimer;
look:
    ld.volatile.global.u32 %r4, [%rd1];
    setp.ge.u32 %p1, %r4, %r2;
    @%p1 bra met;
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p2, %rd4, 5000000000;
    @%p2 bra look;
met:
    mad.wide.u32 %rd5, %r1, 4, %rd1;
    st.global.u32 [%rd5+4], %r4;
    ret;
}
"""

# w[b] is 1 + the number of the next block in b's cluster, from that block's memory.
NEIGHBOURS = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry neighbours(.param .u64 words)
{
    .reg .b64 %rd<4>; .reg .b32 %r<10>;
    .shared .align 4 .b32 mine;
    ld.param.u64 %rd1, [words];
    mov.u32 %r1, %ctaid.x;
    add.u32 %r2, %r1, 1;
    st.shared.u32 [mine], %r2;
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    mov.u32 %r3, %cluster_ctarank;
    mov.u32 %r4, %cluster_nctarank;
    add.u32 %r5, %r3, 1;
    rem.u32 %r5, %r5, %r4;
    mov.u32 %r6, mine;
    mapa.shared::cluster.u32 %r7, %r6, %r5;
    ld.shared::cluster.u32 %r8, [%r7];
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    mad.wide.u32 %rd2, %r1, 4, %rd1;
    st.global.u32 [%rd2], %r8;
    ret;
}
"""

# w[0] = the tag, by way of the last word of dynamic shared memory, behind 1 KiB.
FAR = """
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 4 .b8 dynamic[];
.visible .entry far(.param .u64 words, .param .u32 offset, .param .u32 tag)
{
    .reg .b64 %rd<2>; .reg .b32 %r<6>;
    .shared .align 4 .b8 fixed[1024];
    ld.param.u64 %rd1, [words];
    ld.param.u32 %r1, [offset];
    ld.param.u32 %r2, [tag];
    st.shared.u32 [fixed+1020], %r2;
    mov.u32 %r3, dynamic;
    add.u32 %r3, %r3, %r1;
    ld.volatile.shared.u32 %r4, [fixed+1020];
    st.volatile.shared.u32 [%r3], %r4;
    ld.volatile.shared.u32 %r5, [%r3];
    st.global.u32 [%rd1], %r5;
    ret;
}
"""
SOURCES = {"meet": (MEET, 0), "neighbours": (NEIGHBOURS, 0), "far": (FAR, 2)}


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    native.host_words()
    made = CudaBackend()
    yield made
    made.close()


def request(
    backend: CudaBackend,
    name: str,
    buffer: BufferHandle,
    geometry: FixedLaunch,
    scalars: tuple[Any, ...] = (),
) -> LaunchRequest:
    if name in SOURCES:
        payload, count = SOURCES[name]
        artifact = KernelArtifact(
            kernel_name=name,
            format=ArtifactFormat.CUDA_PTX,
            argument_count=1 + count,
            scalar_argument_count=count,
            payload=payload,
        )
    else:
        artifact = native.artifact(name)
    return LaunchRequest(
        artifact=artifact,
        loaded=backend.load_artifact(artifact),
        buffers=(BufferBinding(handle=buffer),),
        scalars=scalars,
        geometry=geometry,
    )


def buffer_of(backend: CudaBackend, count: int) -> BufferHandle:
    buffer = backend.allocate_buffer(4 * count)
    backend.fill_buffer(buffer, bytes(4))
    return buffer


async def read(backend: CudaBackend, buffer: BufferHandle) -> list[int]:
    out = np.zeros(buffer.byte_size // 4, np.uint32)
    backend.read_buffer(buffer, out)
    await backend.wait_default_stream()
    return [int(value) for value in out]


async def test_all_blocks_of_a_cooperative_launch_meet(backend: CudaBackend) -> None:
    """As many as the device runs at once; one more is refused, and says so."""
    threads = (256, 1, 1)
    units = backend.capabilities.identity.compute_units
    buffer = buffer_of(backend, 1 + 64 * units)
    one = attrs.evolve(ONE, threadgroup=threads, cooperative=True)
    with pytest.raises(CapabilityMismatch, match="the device runs") as caught:
        backend.launch(
            request(backend, "meet", buffer, attrs.evolve(one, grid=(64 * units, 1, 1)))
        )
    most = int(str(caught.value).split("the device runs ")[1].split()[0])
    assert most >= units
    geometry = attrs.evolve(one, grid=(most, 1, 1))
    backend.launch(request(backend, "meet", buffer, geometry))
    words = await read(backend, buffer)
    assert words[: 1 + most] == [most] * (1 + most)
    with pytest.raises(CapabilityMismatch):
        backend.launch(
            request(backend, "meet", buffer, attrs.evolve(one, grid=(most + 1, 1, 1)))
        )


@pytest.mark.parametrize("size", [1, 2, 8, 16])
async def test_blocks_of_a_cluster_read_each_others_memory(
    backend: CudaBackend, size: int
) -> None:
    if not backend.capabilities.features.clusters:
        pytest.skip("the device has no clusters")
    buffer = buffer_of(backend, 32)
    geometry = attrs.evolve(ONE, grid=(32, 1, 1), cluster=(size, 1, 1))
    prepared = backend.prepare_launch(request(backend, "neighbours", buffer, geometry))
    for _ in range(3):
        backend.submit_launch(prepared)
    expected = [
        1 + block // size * size + (block % size + 1) % size for block in range(32)
    ]
    assert await read(backend, buffer) == expected


async def test_clusters_of_a_cooperative_launch(backend: CudaBackend) -> None:
    if not backend.capabilities.features.clusters:
        pytest.skip("the device has no clusters")
    buffer = buffer_of(backend, 17)
    geometry = attrs.evolve(ONE, grid=(16, 1, 1), cluster=(4, 1, 1), cooperative=True)
    backend.launch(request(backend, "meet", buffer, geometry))
    assert await read(backend, buffer) == [16] * 17


@pytest.mark.parametrize("dynamic", [4, 48 << 10, (48 << 10) + 4, 200 << 10, "most"])
async def test_shared_memory_up_to_what_the_device_has(
    backend: CudaBackend, dynamic: int | str
) -> None:
    """With a kernel that has 1 KiB of its own, which counts too."""
    most = backend.capabilities.max_shared_memory_bytes - 1024
    size = most if isinstance(dynamic, str) else dynamic
    buffer = buffer_of(backend, 1)
    scalars = ScalarArgument.u32(size - 4), ScalarArgument.u32(77)
    geometry = attrs.evolve(ONE, dynamic_shared_memory_bytes=size)
    backend.launch(request(backend, "far", buffer, geometry, scalars))
    assert await read(backend, buffer) == [77]
    too_much = attrs.evolve(ONE, dynamic_shared_memory_bytes=most + 1)
    with pytest.raises(CapabilityMismatch, match="beside 1024 static ones"):
        backend.launch(request(backend, "far", buffer, too_much, scalars))


def counting(backend: CudaBackend, buffer: BufferHandle) -> PreparedLaunch:
    return backend.prepare_launch(request(backend, "count", buffer, ONE))


async def test_launches_from_threads_that_never_launched(backend: CudaBackend) -> None:
    buffer = buffer_of(backend, 1)
    prepared = counting(backend, buffer)
    backend.submit_launch(prepared)

    def work(_: int) -> None:
        for _ in range(50):
            backend.submit_launch(prepared)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert await read(backend, buffer) == [401]


@pytest.mark.parametrize("which", ["none", "another"])
async def test_launches_after_another_library_changed_the_context(
    backend: CudaBackend, which: str
) -> None:
    driver = backend._driver
    buffer = buffer_of(backend, 1)
    prepared = counting(backend, buffer)
    backend.submit_launch(prepared)
    before = check(driver, driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
    other = None
    if which == "another":
        answer = driver.cuCtxCreate(None, 0, backend._context.device)
        other = check(driver, answer, "cuCtxCreate")
    else:
        check(driver, driver.cuCtxSetCurrent(0), "cuCtxSetCurrent")
    for _ in range(3):
        backend.submit_launch(prepared)
    check(driver, driver.cuCtxSetCurrent(before), "cuCtxSetCurrent")
    if other is not None:
        check(driver, driver.cuCtxDestroy(other), "cuCtxDestroy")
        check(driver, driver.cuCtxSetCurrent(before), "cuCtxSetCurrent")
    assert await read(backend, buffer) == [4]


async def test_a_bound_launch_is_made_by_machine_code(backend: CudaBackend) -> None:
    """From threads of any context, with what is changed in between."""
    assert backend._launch_address
    first, second = buffer_of(backend, 1), buffer_of(backend, 1)
    launcher = backend.bind_launch(request(backend, "count", first, ONE))
    launcher.submit()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [launcher.submit() for _ in range(50)], range(8)))
    launcher.set_buffer(0, BufferBinding(handle=second))
    for _ in range(10):
        launcher.submit()
    assert await read(backend, first) == [401]
    assert await read(backend, second) == [10]


async def test_what_ten_thousand_launches_use_is_freed_behind_the_last(
    backend: CudaBackend,
) -> None:
    stream = backend.create_stream()
    buffer = buffer_of(backend, 1)
    total = buffer_of(backend, 1)
    prepared = counting(backend, buffer)
    await backend.wait_default_stream()
    for _ in range(10_000):
        backend.submit_launch(prepared, stream)
    backend.copy_buffer(buffer, total, stream=stream)
    backend.destroy(buffer)
    await backend.wait_stream(stream)
    assert await read(backend, total) == [10_000]


def test_other_threadgroup_than_the_kernels_is_refused_unharmed() -> None:
    """The PTX says how many threads a block has, and the driver keeps to it."""
    device = CudaDevice()
    buffer = device.write([0])
    artifact = device.echo_artifact(DType.U32)
    request = device.request(artifact, [buffer], [ScalarArgument.u32(5)])
    wrong = attrs.evolve(request.geometry, threadgroup=(2, 1, 1))
    with pytest.raises(DeviceError, match="cuLaunchKernel"):
        device.backend.launch(attrs.evolve(request, geometry=wrong))
    assert device.backend.is_healthy
    device.close()
