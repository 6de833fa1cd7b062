"""Two GPUs against one, and the driver alone: ``python -m benchmarks.multigpu``.

* Peer copies of 4 MiB to 1 GiB: ours, straight and staged, against bare
  ``cuMemcpyPeerAsync`` calls, in GB/s.
* Two independent chains of kernels, one on each GPU, against one chain on one.
* A scan of 2**30 f32 as two halves on both, the carry added to the second, against
  one scan on one GPU.
* A service: many small runs at a time, placed on two GPUs against on one.

It needs two GPUs, and says so where there are none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import numpy as np

from accy_async import (
    ArtifactFormat,
    DeviceArray,
    DType,
    MultiSession,
    ScalarArgument,
    open_session,
)
from accy_async.backends import Backend, BufferHandle
from accy_async.backends.catalogue import gpu_names
from accy_async.backends.cuda import CudaBackend
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.errors import BackendUnavailable
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.graph.options import LaunchOptions
from accy_async.pipeline import PipelineLaunch, allocate_pipeline_intermediates
from accy_async.session.multi.pools import PipelinePools
from benchmarks.measuring import Figure, show

NAMES = ("cuda:0", "cuda:1")
FORMAT = ArtifactFormat.CUDA_PTX
COPY_BYTES = (4 << 20, 64 << 20, 1 << 30)
CHAIN, CHAIN_LENGTH = 200, 1 << 24
SCAN_LENGTH = 1 << 30
SERVICE_RUNS, SERVICE_CALLERS, SERVICE_LENGTH = 2000, 64, 1 << 18

Work = Callable[[], Awaitable[object]]


async def _seconds(works: dict[str, Work], rounds: int) -> dict[str, list[float]]:
    """How long each takes, in rounds; the first two are thrown away."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 2):
        for name, work in works.items():
            started = time.perf_counter()
            await work()
            if number >= 2:
                taken[name].append(time.perf_counter() - started)
    return taken


def _rates(taken: dict[str, list[float]], amount: float) -> list[Figure]:
    return [
        Figure(name, tuple(amount / one for one in samples))
        for name, samples in taken.items()
    ]


# ---------------------------------------------------------------- copies


def _bare_copy(session: MultiSession, source: int, target: int, size: int) -> Work:
    """A copy by the driver's own calls, and a wait for it that blocks."""
    one, two = (session.on(name).backend.base for name in NAMES)
    assert isinstance(one, CudaBackend)
    assert isinstance(two, CudaBackend)
    contexts: list[Any] = [one._context, two._context]  # noqa: SLF001 - no API of ours
    driver = contexts[0].driver
    contexts[0].make_current()
    stream = contexts[0].check(driver.cuStreamCreate(1), "cuStreamCreate")

    async def copy() -> None:
        contexts[0].make_current()
        answer = driver.cuMemcpyPeerAsync(
            target, contexts[1].native, source, contexts[0].native, size, stream
        )
        contexts[0].check(answer, "cuMemcpyPeerAsync")
        contexts[0].check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize")

    return copy


def _our_copy(
    one: Backend, source: BufferHandle, two: Backend, target: BufferHandle
) -> Work:
    """The same by ours, on the default stream."""
    route = one.route_to(two)

    async def copy() -> None:
        one.copy_to_peer(source, target, two)
        await (two if route.is_pulled else one).wait_default_stream()

    return copy


async def _copies(rounds: int) -> None:
    for size in COPY_BYTES:
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(open_session(devices=NAMES))
            one, two = (session.on(name).backend for name in NAMES)
            source, target = one.allocate_buffer(size), two.allocate_buffer(size)

            addresses = one.buffer_address(source), two.buffer_address(target)
            works: dict[str, Work] = {
                "cuMemcpyPeerAsync": _bare_copy(session, *addresses, size),
                f"ours, {one.route_to(two).way}": _our_copy(one, source, two, target),
            }
            figures = _rates(await _seconds(works, rounds), size / 1e9)
            figures += await _staged(size, rounds)
            title = f"copy of {size >> 20} MiB from GPU to GPU"
            show(title, figures, unit="GB/s", more_is_better=True)


class _Staging(CudaBackend):
    """A GPU that looks for no peer access."""

    def _way_to(self, peer: Backend) -> tuple[None, str]:
        del peer
        return None, "told not to"


async def _staged(size: int, rounds: int) -> list[Figure]:
    devices = [_Staging(index) for index in range(2)]
    try:
        async with open_session(devices=devices) as session:
            one, two = (session.on(name).backend for name in NAMES)
            source, target = one.allocate_buffer(size), two.allocate_buffer(size)

            copy = _our_copy(one, source, two, target)
            taken = await _seconds({"ours, staged": copy}, rounds)
            return _rates(taken, size / 1e9)
    finally:
        for device in devices:
            device.close()


# ---------------------------------------------------------------- chains


def _chains(names: tuple[str, ...]) -> LaunchGraphPlan:
    """On each device a chain of additions that has nothing to do with the others."""
    add = library_registry(FORMAT, dtype=DType.F32).get("accy.kernel.add", 1, FORMAT)
    count = [ScalarArgument.u32(CHAIN_LENGTH)]
    b = LaunchGraphBuilder()
    for number, name in enumerate(names):
        with b.on(name):
            x = b.scratch(f"x{number}", DType.F32, CHAIN_LENGTH)
            b.fill(x, 1.0)
            for _ in range(CHAIN):
                b.kernel(add, [x.read_write, x.read_write, x.read_write], count)
    return b.build()


async def _two_chains(rounds: int) -> None:
    async with open_session(devices=NAMES) as session:
        never = LaunchOptions(lowering="never")
        works: dict[str, Work] = {}
        for title, plan in (
            ("one chain on one GPU", _chains(NAMES[:1])),
            ("two chains on one GPU", _chains((NAMES[0], NAMES[0]))),
            ("two chains on two GPUs", _chains(NAMES)),
        ):

            async def run(plan: LaunchGraphPlan = plan) -> None:
                await session.run(plan, options=never)

            works[title] = run
        taken = await _seconds(works, rounds)
        figures = [
            Figure(name, tuple(1e3 * one for one in samples))
            for name, samples in taken.items()
        ]
        show(f"chains of {CHAIN} kernels", figures, unit="ms")


# ---------------------------------------------------------------- scan


async def _scan_on(
    session: MultiSession, pools: PipelinePools, name: str, length: int
) -> tuple[Work, DeviceArray]:
    """A scan of ones on one device, launched again and again."""
    seat = session.on(name)
    count = (ScalarArgument.u32(length),)
    source = await seat.upload(np.ones(length, np.float32))
    result = seat.allocate(length, DType.F32)
    request = PipelineLaunch(
        pipeline=pools.pipeline,
        registry=library_registry(FORMAT, dtype=DType.F32),
        format=FORMAT,
        operands=(source.binding("read_only"),),
        results=(result.binding("write_only"),),
        runtime_scalar_arguments=count,
        intermediates=await allocate_pipeline_intermediates(
            seat.backend, pools.pipeline, count
        ),
    )

    async def run() -> None:
        await session.launch_pipeline(request, pools)

    return run, result


async def _split_scan(rounds: int) -> None:
    registry = library_registry(FORMAT, dtype=DType.F32)
    axpy = registry.get("accy.kernel.axpy", 1, FORMAT)
    half = SCAN_LENGTH // 2
    async with open_session(devices=NAMES) as session:
        pools = await session.load_pipeline(scan_pipeline(DType.F32), registry)
        whole, _ = await _scan_on(session, pools, NAMES[0], SCAN_LENGTH)
        first, low = await _scan_on(session, pools, NAMES[0], half)
        second, high = await _scan_on(session, pools, NAMES[1], half)
        ones = await session.upload(np.ones(half, np.float32), device=NAMES[1])
        last = np.zeros(1, np.float32)
        b = LaunchGraphBuilder()
        x, y = b.buffer("x", DType.F32, half), b.buffer("y", DType.F32, half)
        scalars = [ScalarArgument.u32(half), b.runtime_scalar()]
        b.kernel(axpy, [y.read_write, x.read, y.read_write], scalars)
        carry = b.build()

        async def on_one() -> None:
            await whole()
            await session.on(NAMES[0]).backend.wait_default_stream()

        async def on_both() -> None:
            await first()
            await second()
            backend = session.on(NAMES[0]).backend
            await backend.wait_default_stream()
            backend.read_buffer(low.handle, last, offset_bytes=4 * (half - 1))
            await backend.wait_default_stream()
            options = LaunchOptions(runtime_scalars=(ScalarArgument.f32(last[0]),))
            await session.run(carry, {"x": ones, "y": high}, options)

        works: dict[str, Work] = {"one GPU": on_one, "two GPUs": on_both}
        taken = await _seconds(works, rounds)
        figures = _rates(taken, 8 * SCAN_LENGTH / 1e9)
        show("scan of 2**30 f32", figures, unit="GB/s", more_is_better=True)


# ---------------------------------------------------------------- service


def _request() -> LaunchGraphPlan:
    add = library_registry(FORMAT, dtype=DType.F32).get("accy.kernel.add", 1, FORMAT)
    b = LaunchGraphBuilder()
    given, out = (b.host(n, DType.F32, SERVICE_LENGTH) for n in ("given", "out"))
    x = b.scratch("x", DType.F32, SERVICE_LENGTH)
    b.copy_in(given, x)
    for _ in range(8):
        b.kernel(
            add,
            [x.read_write, x.read_write, x.read_write],
            [ScalarArgument.u32(SERVICE_LENGTH)],
        )
    b.copy_out(x, out)
    return b.build()


async def _serve(names: tuple[str, ...]) -> float:
    """Requests a second, by so many callers at a time."""
    plan = _request()
    async with open_session(devices=names) as session:

        async def caller(count: int) -> None:
            given = np.ones(SERVICE_LENGTH, np.float32)
            out = np.empty_like(given)
            for _ in range(count):
                await session.run(plan, {"given": given, "out": out})

        async def all_of(count: int) -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(SERVICE_CALLERS):
                    group.create_task(caller(count))

        await all_of(2)
        started = time.perf_counter()
        await all_of(SERVICE_RUNS // SERVICE_CALLERS)
        return SERVICE_RUNS / (time.perf_counter() - started)


async def _service(rounds: int) -> None:
    figures = []
    for title, names in (("one GPU", NAMES[:1]), ("two GPUs", NAMES)):
        samples = [await _serve(names) for _ in range(rounds)]
        figures.append(Figure(title, tuple(samples)))
    show("a service's small runs", figures, unit="runs/s", more_is_better=True)


async def _measure(rounds: int) -> None:
    await _copies(rounds)
    await _two_chains(rounds)
    await _split_scan(max(3, rounds // 3))
    await _service(max(3, rounds // 3))


def main(rounds: int = 15) -> None:
    """Print all tables."""
    try:
        count = len(gpu_names())
    except BackendUnavailable as error:
        print(f"two GPUs are needed: {error}")
        return
    if count < 2:
        print("two GPUs are needed: there is one")
        return
    asyncio.run(_measure(rounds))


if __name__ == "__main__":
    main()
