"""What replaying a lowered plan costs, beside bare CUDA graphs and other libraries'.

A plan of 10, 100 or 1000 launches of one small kernel, one after the other or as
eight chains. Every way replays a graph of the same kernels with the same edges and
waits for its end: the driver's own through its bindings, ours through
`Session.prepare` on either loop, cuda.core's, PyTorch's and CuPy's, where these are
installed (theirs are captured from streams). Then what a plan's first runs cost, when
its graph has paid for itself, and what rebinding costs.

Times are of the host, from the call to the moment when the work is known to be done;
each figure is the median of its rounds, in which every way has its turn. Beneath each
table stands what ours takes more than the bare graph, and whether it may.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import attrs

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.dtypes import DType, ScalarArgument
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.session import Session, open_session
from benchmarks.gpu.tables import verdict
from benchmarks.measuring import Figure, machine, show

SIZES = (10, 100, 1000)
CHAINS = {"one chain": 1, "eight chains": 8}
LOOPS = ("asyncio", "trio")
ROUNDS = 15
MOST_MORE_US = 5.0
"""What awaiting our prepared plan may take more than the bare graph and wait."""

BARE = "bare cuGraphLaunch and wait"
_REPLAYS = {10: 200, 100: 100, 1000: 20}

PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry count(.param .u64 words, .param .u32 step)
{
    .reg .b64 %rd<2>; .reg .b32 %r<3>;
    ld.param.u64 %rd1, [words];
    ld.param.u32 %r1, [step];
    ld.global.u32 %r2, [%rd1];
    add.u32 %r2, %r2, %r1;
    st.global.u32 [%rd1], %r2;
    ret;
}
"""

ENTRY = KernelCallArtifact(
    target="benchmark.count",
    version=1,
    format=ArtifactFormat.CUDA_PTX,
    entry_name="count",
    argument_count=2,
    payload=PTX,
    launch=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
    runtime_scalar_argument_count=1,
)


def make_plan(count: int, chains: int) -> tuple[LaunchGraphPlan, list[str]]:
    """So many launches as so many chains, each on a buffer of its own."""
    b = LaunchGraphBuilder()
    names = [f"w{i}" for i in range(chains)]
    words = [b.buffer(name, DType.U32, 1) for name in names]
    step = b.runtime_scalar()
    for number in range(count):
        b.kernel(ENTRY, [words[number % chains]], [step], name=f"n{number}")
    return b.build(), names


@attrs.frozen
class Bare:
    """The same graph through the driver's bindings alone."""

    driver: Any
    executable: Any
    stream: Any

    @classmethod
    def make(cls, count: int, memory: list[int]) -> Bare:
        """So many launches on as many chains as there are words, in this memory.

        Where a word lies decides how long the kernels take, so it is ours.
        """
        import ctypes

        from cuda.bindings import driver as d

        def check(answer: tuple[Any, ...]) -> Any:  # noqa: ANN401
            assert answer[0] == 0, answer[0]
            return answer[1] if len(answer) > 1 else None

        check(d.cuInit(0))
        context = check(d.cuDevicePrimaryCtxRetain(check(d.cuDeviceGet(0))))
        check(d.cuCtxSetCurrent(context))
        module = check(d.cuModuleLoadData(PTX.encode() + b"\0"))
        function = check(d.cuModuleGetFunction(module, b"count"))
        graph = check(d.cuGraphCreate(0))
        chains = len(memory)
        last: list[Any] = [None] * chains
        for number in range(count):
            chain = number % chains
            values = (ctypes.c_uint64 * 2)(memory[chain], 1)
            first = ctypes.addressof(values)
            pointers = (ctypes.c_void_p * 2)(first, first + 8)
            node = d.CUDA_KERNEL_NODE_PARAMS()
            node.func = function
            node.gridDimX = node.gridDimY = node.gridDimZ = 1
            node.blockDimX = node.blockDimY = node.blockDimZ = 1
            node.kernelParams = ctypes.addressof(pointers)
            after = [last[chain]] if last[chain] is not None else None
            last[chain] = check(
                d.cuGraphAddKernelNode(graph, after, len(after or ()), node)
            )
        executable = check(d.cuGraphInstantiate(graph, 0))
        return cls(d, executable, check(d.cuStreamCreate(1)))

    def replay(self) -> None:
        self.driver.cuGraphLaunch(self.executable, self.stream)
        self.driver.cuStreamSynchronize(self.stream)


def torch_replay(count: int, chains: int) -> Callable[[], object] | None:
    """PyTorch's: a graph captured from streams, of additions in place."""
    try:
        import torch
    except ImportError:
        return None
    words = [torch.zeros(1, dtype=torch.int32, device="cuda") for _ in range(chains)]
    streams = [torch.cuda.Stream() for _ in range(chains)]
    graph = torch.cuda.CUDAGraph()
    words[0].add_(1)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(main)
        for number in range(count):
            with torch.cuda.stream(streams[number % chains]):
                words[number % chains].add_(1)
        for stream in streams:
            main.wait_stream(stream)

    def replay() -> None:
        graph.replay()
        torch.cuda.current_stream().synchronize()

    return replay


def cupy_replay(count: int, chains: int) -> Callable[[], object] | None:
    """CuPy's, captured from one stream; it has no chains side by side."""
    if chains > 1:
        return None
    try:
        import cupy
    except ImportError:
        return None
    kernel = cupy.RawKernel(
        'extern "C" __global__ void count(int* w, int s) { *w += s; }', "count"
    )
    word = cupy.zeros(1, cupy.int32)
    kernel((1,), (1,), (word, cupy.int32(1)))
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for _ in range(count):
            kernel((1,), (1,), (word, cupy.int32(1)))
        graph = stream.end_capture()

    def replay() -> None:
        graph.launch(stream)
        stream.synchronize()

    return replay


def core_replay(count: int, chains: int) -> Callable[[], object] | None:
    """cuda.core's, captured by its graph builder from one stream."""
    if chains > 1:
        return None
    try:
        from cuda.core import (
            Device,
            LaunchConfig,
            ObjectCode,
            launch,
        )
    except ImportError:
        return None
    device = Device()
    device.set_current()
    kernel = ObjectCode.from_ptx(PTX.encode()).get_kernel("count")
    stream = device.create_stream()
    memory = device.allocate(4, stream=stream)
    stream.sync()
    import numpy as np

    builder = stream.create_graph_builder()
    builder.begin_building()
    config = LaunchConfig(grid=1, block=1)
    for _ in range(count):
        launch(builder, config, kernel, int(memory.handle), np.uint32(1))
    graph = builder.end_building().complete()

    def replay() -> None:
        graph.launch(stream)
        stream.sync()

    return replay


def per_replay(replay: Callable[[], object], replays: int) -> float:
    """Microseconds of a replay that is waited for."""
    started = time.perf_counter()
    for _ in range(replays):
        replay()
    return (time.perf_counter() - started) / replays * 1e6


async def per_await(run: Callable[[], Awaitable[object]], replays: int) -> float:
    """The same of what is awaited."""
    started = time.perf_counter()
    for _ in range(replays):
        await run()
    return (time.perf_counter() - started) / replays * 1e6


def _prepared(loop: str) -> str:
    return f"ours, prepared ({loop})"


def judge(taken: Mapping[str, Sequence[float]]) -> list[str]:
    """How much more than the bare graph ours takes on each loop, and whether it may."""
    bare = statistics.median(taken[BARE])
    return [
        f"{_prepared(loop)}, more than bare: "
        + verdict(statistics.median(taken[_prepared(loop)]) - bare, MOST_MORE_US, "us")
        for loop in LOOPS
    ]


def ours(
    loop: str, count: int, chains: int, others: dict[str, Callable[[], object]]
) -> dict[str, list[float]]:
    """Rounds in which each of the others and our own way have their turn."""
    plan, names = make_plan(count, chains)
    replays = _REPLAYS[count]
    taken: dict[str, list[float]] = {}

    async def main() -> None:
        async with open_session("cuda") as session:
            bindings = {name: session.allocate(1, DType.U32) for name in names}
            options = LaunchOptions(runtime_scalars=(ScalarArgument.u32(1),))
            prepared = await session.prepare(plan, bindings, options)
            assert prepared.is_lowered, prepared.obstacles
            memory = [
                session.backend.buffer_address(bindings[name].handle) for name in names
            ]
            bare = {BARE: Bare.make(count, memory).replay}
            for number in range(ROUNDS + 1):
                found = {
                    name: per_replay(call, replays)
                    for name, call in {**bare, **others}.items()
                }
                found[_prepared(loop)] = await per_await(prepared.run, replays)
                for name, how, times in (
                    ("lowered", "automatic", replays),
                    ("node by node", "never", max(2, replays // 10)),
                ):
                    way = attrs.evolve(options, lowering=how)

                    def again(way: LaunchOptions = way) -> Awaitable[object]:
                        return session.run(plan, bindings, way)

                    await again()  # what the way before left in caches is its own
                    found[f"Session.run, {name} ({loop})"] = await per_await(
                        again, times
                    )
                if number:
                    for name, value in found.items():
                        taken.setdefault(name, []).append(value)

    anyio.run(main, backend=loop)
    return taken


async def first_runs(session: Session, count: int) -> list[tuple[str, float]]:
    """What a plan's first runs cost, its kernel loaded before; and rebinding; in us."""
    plan, names = make_plan(count, 1)
    given = [{n: session.allocate(1, DType.U32) for n in names} for _ in range(2)]
    options = LaunchOptions(runtime_scalars=(ScalarArgument.u32(1),))
    await session.run(plan, given[0], options)
    plan, _ = make_plan(count, 1)

    async def timed(run: Callable[[], Awaitable[object]]) -> float:
        return await per_await(run, 1)

    def again() -> Awaitable[object]:
        return session.run(plan, given[0], options)

    found = [("first run, plain", await timed(again))]
    found.append(("second run, makes the graph", await timed(again)))
    lowered = sorted([await timed(again) for _ in range(21)])[10]
    never = attrs.evolve(options, lowering="never")

    def plainly() -> Awaitable[object]:
        return session.run(plan, given[0], never)

    plain = sorted([await timed(plainly) for _ in range(21)])[10]
    found += [("run again, lowered", lowered), ("run again, plain", plain)]
    gain = max(plain - lowered, 1e-9)
    found.append(("break-even, runs", (found[1][1] - plain) / gain))
    started = time.perf_counter()
    prepared = await session.prepare(plan, given[0], options)
    found.append(("Session.prepare", (time.perf_counter() - started) * 1e6))

    async def rebound(number: int, *, scalar: bool) -> float:
        started = time.perf_counter()
        if scalar:
            await prepared.rebind(runtime_scalars=[ScalarArgument.u32(number)])
        else:
            await prepared.rebind(given[number % 2])
        return (time.perf_counter() - started) * 1e6

    for scalar, what in ((False, "buffer"), (True, "scalar")):
        figures = sorted([await rebound(n, scalar=scalar) for n in range(20)])
        found.append((f"rebind, every node's {what}", figures[10]))
    await prepared.aclose()
    return found


def main() -> None:
    for name, chains in CHAINS.items():
        for count in SIZES:
            others: dict[str, Callable[[], object]] = {}
            for title, make in (
                ("cuda.core", core_replay),
                ("PyTorch", torch_replay),
                ("CuPy", cupy_replay),
            ):
                try:
                    replay = make(count, chains)
                except Exception as error:  # noqa: BLE001 - a peer's, told and left out
                    print(f"{title}: left out: {error!r}", file=sys.stderr)
                    continue
                if replay is not None:
                    others[title] = replay
            taken: dict[str, list[float]] = {}
            for loop in LOOPS:
                for way, samples in ours(loop, count, chains, others).items():
                    taken.setdefault(way, []).extend(samples)
            show(
                f"A replay of {count} nodes, {name}, awaited",
                [Figure(way, tuple(samples)) for way, samples in taken.items()],
                unit="us",
            )
            print(*judge(taken), "", sep="\n")
    print_first_runs()


def print_first_runs() -> None:
    from rich.console import Console
    from rich.table import Table

    columns: dict[int, list[tuple[str, float]]] = {}

    async def measure() -> None:
        async with open_session("cuda") as session:
            for count in SIZES:
                columns[count] = await first_runs(session, count)

    anyio.run(measure, backend="asyncio")
    table = Table(title="What a lowered plan costs once, us", title_justify="left")
    table.add_column("what")
    for count in SIZES:
        table.add_column(f"{count:,} nodes", justify="right")
    for row, (name, _) in enumerate(columns[SIZES[0]]):
        table.add_row(name, *(f"{columns[count][row][1]:,.1f}" for count in SIZES))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 110
    console.print(table)
    print(machine())


if __name__ == "__main__":
    main()
