"""Cases that only a GPU can show, or that a GPU could spoil."""

from __future__ import annotations

import ctypes
import random
import re
import threading
import time

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from accy_async.artifact import (
    ArtifactFormat,
    ArtifactRequest,
    FixedLaunch,
    KernelArtifact,
    KernelCallArtifact,
)
from accy_async.backends import BufferHandle, LaunchRequest, LoadedArtifact
from accy_async.backends.cuda import CudaBackend
from accy_async.backends.cuda.driver import check, load_driver
from accy_async.compiler.emit import compile_ptx
from accy_async.compiler.form import KernelBuilder
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    AccyError,
    InvalidArtifact,
    OutOfMemory,
    UnsupportedOperation,
)
from accy_async.graph import LaunchGraphBuilder, LaunchOptions, NodeState
from accy_async.graph.pace import TOGETHER
from accy_async.session import open_session
from accy_async.tuning import MeasureOptions, RaceRules
from accy_async.tuning.measuring import Candidate, measure
from tests.gpu import native
from tests.gpu.harness import run_script

pytestmark = [pytest.mark.gpu, pytest.mark.anyio]

MIB = 2**20


async def test_c16_completion_needs_no_lock_that_a_blocked_thread_has() -> None:
    """A thread that keeps the interpreter lock in driver calls stops nobody."""
    native.host_words()
    driver = ctypes.PyDLL("libcuda.so.1")  # calls keep the interpreter lock
    done = threading.Event()
    calls = 0

    def hold_the_lock() -> None:
        nonlocal calls
        device, context = ctypes.c_int(), ctypes.c_void_p()
        driver.cuDeviceGet(ctypes.byref(device), 0)
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        driver.cuCtxSetCurrent(context)
        stream, pointer = ctypes.c_void_p(), ctypes.c_void_p()
        driver.cuStreamCreate(ctypes.byref(stream), 1)
        while not done.is_set():
            assert driver.cuMemAlloc_v2(ctypes.byref(pointer), 4096) == 0
            assert driver.cuStreamSynchronize(stream) == 0
            assert driver.cuMemFree_v2(pointer) == 0
            calls += 1
        driver.cuStreamDestroy_v2(stream)
        driver.cuDevicePrimaryCtxRelease_v2(device)

    thread = threading.Thread(target=hold_the_lock)
    progress = [0] * 4
    async with open_session("cuda") as session:
        g = LaunchGraphBuilder()
        g.kernel(native.entry("spin"), [], [ScalarArgument.u64(50_000)])
        plan = g.build()

        async def work(number: int) -> None:
            while progress[number] < 50 or calls < 50:
                await session.run(plan)
                progress[number] += 1

        thread.start()
        try:
            with anyio.fail_after(50):
                async with anyio.create_task_group() as group:
                    for number in range(4):
                        group.start_soon(work, number)
        finally:
            done.set()
            thread.join(timeout=30)
    assert not thread.is_alive()
    assert calls >= 50


async def test_c25_a_held_error_keeps_no_memory() -> None:
    """What a scope owned is free although its error, with all frames, is kept."""
    native.host_words()
    backend = CudaBackend(memory_limit_bytes=1536 * MIB)
    held: list[BaseException] = []
    for _ in range(3):
        try:
            async with open_session(backend) as session:
                array = session.allocate(256 * MIB, DType.F32)
                raise LookupError(array)
        except (LookupError, ExceptionGroup) as error:
            held.append(error)
    assert len(held) == 3
    backend.close()


@pytest.mark.parametrize("mode", [0, 1], ids=["global", "thread_local"])
async def test_c61_what_others_capture_is_not_broken(mode: int) -> None:
    """Whatever we do meanwhile, another library's capture ends as a graph."""
    native.host_words()
    backend = CudaBackend()
    buffer = backend.allocate_buffer(MIB)
    driver = load_driver()
    other = check(driver, driver.cuStreamCreate(1), "cuStreamCreate")
    async with open_session(backend) as session:
        answer = driver.cuStreamBeginCapture(other, driver.CUstreamCaptureMode(mode))
        check(driver, answer, "cuStreamBeginCapture")
        array = await session.upload(np.arange(1000, dtype=np.uint32))
        g = LaunchGraphBuilder()
        x = g.buffer("x", DType.U32, 1000)
        g.kernel(native.entry("mix"), [x.read_write], [ScalarArgument.u32(7)])
        await session.run(g.build(), {"x": array})
        assert (await session.download(array))[0] == 7
        backend.destroy(buffer)
        backend.trim()
        graph = check(driver, driver.cuStreamEndCapture(other), "cuStreamEndCapture")
    check(driver, driver.cuGraphDestroy(graph), "cuGraphDestroy")
    check(driver, driver.cuStreamDestroy(other), "cuStreamDestroy")
    backend.close()


async def test_c65_cached_memory_counts_for_no_limit_and_comes_back() -> None:
    native.host_words()
    backend = CudaBackend(memory_limit_bytes=1024 * MIB)
    first = backend.allocate_buffer(500 * MIB)
    backend.destroy(first)
    second = backend.allocate_buffer(800 * MIB)
    with pytest.raises(OutOfMemory) as raised:
        backend.allocate_buffer(500 * MIB)
    assert str(500 * MIB) in str(raised.value)
    backend.destroy(second)
    chosen = random.Random(65)
    live: list[tuple[BufferHandle, int]] = []
    most_live = most_reserved = 0
    for _ in range(3000):
        if live and (len(live) > 40 or chosen.random() < 0.5):
            backend.destroy(live.pop(chosen.randrange(len(live)))[0])
        else:
            size = int(2 ** chosen.uniform(10, 24))
            live.append((backend.allocate_buffer(size), size))
        most_live = max(most_live, sum(size for _, size in live))
        most_reserved = max(
            most_reserved, backend.memory_statistics()["reserved_bytes"]
        )
    assert most_reserved < 2 * max(most_live, 800 * MIB)
    for buffer, _ in live:
        backend.destroy(buffer)
    await backend.wait_device()
    backend.trim()
    statistics = backend.memory_statistics()
    assert statistics["used_bytes"] == 0
    assert statistics["reserved_bytes"] < most_reserved / 2  # some the driver keeps
    backend.close()


async def test_c42_waiting_burns_no_core() -> None:
    """A second takes a tenth of a core at most, for one wait and for sixteen."""
    native.host_words()
    async with open_session("cuda") as session, session.stream() as stream:
        backend = session.backend
        artifact = native.artifact("spin")
        loaded = backend.load_artifact(artifact)
        prepared = backend.prepare_launch(spin_request(artifact, loaded, 10**9))
        for waits in (1, 16):
            busy, begun = time.process_time(), time.perf_counter()
            backend.submit_launch(prepared, stream)
            async with anyio.create_task_group() as group:
                for _ in range(waits):
                    group.start_soon(backend.wait_stream, stream)
            elapsed = time.perf_counter() - begun
            assert time.process_time() - busy < 0.1 * elapsed
        backend.destroy(loaded)


async def test_c33_tiny_kernels_are_told_apart() -> None:
    """Of 3, 5 and 8 us: at most 15 % above a thousand queued ones, in their order."""
    native.host_words()
    takes_ns = (3_000, 5_000, 8_000)
    async with open_session("cuda") as session, session.stream() as stream:
        backend = session.backend
        artifact = native.artifact("spin")
        loaded = backend.load_artifact(artifact)
        requests = [spin_request(artifact, loaded, one) for one in takes_ns]
        outcome = await measure(
            backend,
            [
                Candidate(name=f"{one} ns", request=request)
                for one, request in zip(takes_ns, requests, strict=True)
            ],
            MeasureOptions(
                rules=RaceRules(min_rounds=8, max_rounds=48, repeats=0), check=None
            ),
        )
        delay = backend.prepare_launch(spin_request(artifact, loaded, 20_000_000))
        begin, end = (backend.create_event(timing=True) for _ in range(2))
        medians = []
        for request, one in zip(requests, outcome.candidates, strict=True):
            prepared = backend.prepare_launch(request)
            backend.submit_launch(delay, stream)  # so that the device waits for no one
            backend.record_event(begin, stream)
            for _ in range(1000):
                backend.submit_launch(prepared, stream)
            backend.record_event(end, stream)
            await backend.wait_stream(stream)
            assert one.median_ns is not None
            assert one.median_ns <= 1.15 * backend.elapsed_ns(begin, end) / 1000
            medians.append(one.median_ns)
        assert medians == sorted(medians)
        assert outcome.winner == "3000 ns"
        for made in (begin, end, loaded):
            backend.destroy(made)


def spin_request(
    artifact: KernelArtifact, loaded: LoadedArtifact, nanoseconds: int
) -> LaunchRequest:
    """A launch of one thread that takes so long."""
    return LaunchRequest(
        artifact=artifact,
        loaded=loaded,
        geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
        scalars=(ScalarArgument.u64(nanoseconds),),
    )


async def test_c67_many_launches_behind_a_long_one_leave_the_loop_alone() -> None:
    native.host_words()
    g = LaunchGraphBuilder()
    last = g.kernel(native.entry("spin"), [], [ScalarArgument.u64(500_000_000)])
    for _ in range(5000):
        last = g.kernel(native.entry("empty"), [], after=last)
    plan = g.build()
    beats = most = 0
    async with open_session("cuda", max_in_flight=512) as session:
        await session.run(plan)
        run = session.start(plan)

        async def beat() -> None:
            nonlocal beats, most
            while True:
                await anyio.sleep(0.001)
                beats += 1
                most = max(most, run.statistics().in_flight)

        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            await run
            group.cancel_scope.cancel()
    assert beats > 50
    assert most <= 512 + TOGETHER


def ptx(
    text: str | bytes, format: ArtifactFormat = ArtifactFormat.CUDA_PTX
) -> KernelArtifact:
    return KernelArtifact(
        kernel_name="mix",
        format=format,
        argument_count=2,
        scalar_argument_count=1,
        payload=text,
    )


async def test_c69_code_for_another_driver_or_device_is_told_apart() -> None:
    native.host_words()
    good = native.artifact("mix").payload
    assert isinstance(good, str)
    backend = CudaBackend()
    texts = []
    for bad in (
        ptx(re.sub(r"\.version \S+", ".version 99.0", good)),
        ptx(re.sub(r"\.target \S+", ".target sm_999", good)),
        ptx(good[: len(good) // 2]),
        ptx("\x07no ptx at all"),
        ptx(good.replace("add.u32", "frobnicate.u32")),
        ptx(b"\x7fELF and nothing else", ArtifactFormat.CUDA_CUBIN),
        ptx(b"no elf", ArtifactFormat.CUDA_CUBIN),
    ):
        with pytest.raises(AccyError) as raised:
            backend.load_artifact(bad)
        assert isinstance(raised.value, InvalidArtifact)
        texts.append(str(raised.value))
        assert backend.is_healthy
    assert "99.0" in texts[0]
    assert "sm_999" in texts[1]
    assert len(set(texts)) >= 6
    async with open_session(backend) as session:
        with pytest.raises(UnsupportedOperation):
            session.backend.create_artifact(
                ArtifactRequest(
                    kernel_name="mix",
                    requested_format=ArtifactFormat.VULKAN_SPIRV,
                    argument_count=2,
                    payload=b"\x03\x02\x23\x07",
                )
            )
        backend.destroy(backend.load_artifact(native.artifact("mix")))
    backend.close()


def step_entry() -> KernelCallArtifact:
    """Out = 3 * x + 1."""
    k = KernelBuilder("step", threadgroup=(1, 1, 1))
    out = k.buffer("out", DType.U32, "write_only")
    x = k.buffer("x", DType.U32, "read_only")
    with k.region():
        out[k.thread] = x[k.thread] * 3 + 1
    return KernelCallArtifact(
        target="test.step",
        version=1,
        format="cuda_ptx",
        entry_name="step",
        argument_count=2,
        payload=compile_ptx([k.build()]),
        launch=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
    )


@pytest.mark.parametrize(("turns", "expected"), [(0, 1), (1, 4), (1000, 3180628145)])
async def test_c60_carried_values_are_right_after_any_number_of_turns(
    turns: int, expected: int
) -> None:
    native.host_words()
    g = LaunchGraphBuilder()
    x, following = g.scratch("x", DType.U32, 1), g.scratch("next", DType.U32, 1)
    total, host = g.scratch("total", DType.U32, 1), g.host("out", DType.U32, 1)
    g.fill(x, 1)
    g.fill(total, 0)
    with g.loop(count=turns, carries=[(x, following)]):
        g.kernel(step_entry(), [following.write, x.read])
    with g.loop(count=30), g.loop(count=30):
        g.kernel(native.entry("count"), [total.read_write])
    g.copy_out(x, host)
    g.copy_out(total, g.host("turns", DType.U32, 1))
    out, counted = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    async with open_session("cuda") as session:
        await session.run(g.build(), {"out": out, "turns": counted})
    assert counted[0] == 900
    assert out[0] == expected


async def test_c37_a_failure_ends_all_of_a_fan_out() -> None:
    """Four streams idle, what had not begun never runs, one error, the next is exact.

    Eight kernels of 20 ms and what follows each; a call fails beside them.
    """
    native.host_words()
    is_failing = True

    def call() -> None:
        if is_failing:
            raise LookupError("the third")

    g = LaunchGraphBuilder()
    words = [g.scratch(f"w{number}", DType.U32, 1) for number in range(8)]
    said = g.host_call(call, name="call")
    for number, word in enumerate(words):
        g.fill(word, number)
        spin = g.kernel(
            native.entry("spin"),
            [],
            [ScalarArgument.u64(20_000_000)],
            stream=f"s{number % 4}",
        )
        g.kernel(
            native.entry("count"),
            [word.read_write],
            after=(spin, said),
            name=f"late{number}",
        )
        g.copy_out(word, g.host(f"out{number}", DType.U32, 1))
    plan = g.build()
    found = {f"out{number}": np.zeros(1, np.uint32) for number in range(8)}
    backend = CudaBackend()
    async with open_session(backend) as session:
        run = session.start(plan, found, LaunchOptions(on_error="cancel"))
        with pytest.RaisesGroup(LookupError):
            await run
        late = {run[f"late{number}"].state for number in range(8)}
        assert NodeState.FINISHED not in late
        is_failing = False
        await session.run(plan, found)
        assert [int(out[0]) for out in found.values()] == list(range(1, 9))
    assert not any(session.live_objects().values())
    backend.close()


def test_c52_a_process_that_only_imported_us_can_be_forked() -> None:
    """The child opens a device, and so does the parent afterwards."""
    script = """
import os
import anyio
import accy_async
from accy_async.session import open_session

async def main():
    async with open_session("cuda") as session:
        array = await session.upload([1.0, 2.0])
        return (await session.download(array)).tolist() == [1.0, 2.0]

child = os.fork()
if child == 0:
    os._exit(0 if anyio.run(main) else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), anyio.run(main))
"""
    assert run_script(script) == "0 True\n"


async def test_a_device_is_opened_by_its_uuid() -> None:
    async with open_session("cuda") as session:
        assert isinstance(session.backend, CudaBackend)
        uuid, index = session.backend.uuid, session.backend.device
    async with open_session(f"cuda:{uuid}") as session:
        assert session.backend.device == index
        x = await session.upload(np.arange(3))
        assert (await session.download(x)).tolist() == [0, 1, 2]
