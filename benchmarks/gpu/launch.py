"""What a launch costs the host, beside the driver itself and other libraries.

A kernel of three arguments that does nothing, on a stream of its own, in bursts with
the device idle before: what is timed is the submission alone. All take turns in
rounds. The second table is of long rows until they are done, so that the device's own
rate counts too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import cycle

import attrs

import accy_async
from accy_async import DType, ScalarArgument
from accy_async.backends import LaunchRequest
from accy_async.backends.cuda import CudaBackend
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.pipeline import (
    Forward,
    KernelCallPipeline,
    KernelCallRegistry,
    Operand,
    PipelineLaunch,
    PipelineStage,
    Result,
    allocate_pipeline_intermediates,
    submit_pipeline,
)
from benchmarks.gpu.kernels import entry
from benchmarks.gpu.peers import BURST, PEERS, Peer, bursts_of
from benchmarks.gpu.tables import Row, Target, show
from benchmarks.measuring import per_call

ROUNDS = 21
STAGES = 8
NODES = 1000
ROW = 5000

BOUND = "ours: submit of a bound launch"
_TARGETS = {
    BOUND: (Target("cuda.bindings, packed", 1.25), Target("CuPy RawKernel", 0.75))
}


@attrs.frozen
class _Ours:
    """Our ways to launch: on the host's time, and until it is done."""

    bursts: dict[str, Peer]
    plan: LaunchGraphPlan
    session: accy_async.Session


def _peers() -> tuple[dict[str, Peer], dict[str, str]]:
    """The peers that can be measured, and why the others cannot."""
    found, missing = {}, {}
    for name, make in PEERS.items():
        try:
            peer = make()
            peer.launch()
            peer.wait()
        except ImportError as error:
            missing[name] = f"not installed ({error.name or error})"
        except Exception as error:  # noqa: BLE001 - a peer's trouble is a row's note
            missing[name] = f"failed: {type(error).__name__}: {error}"[:90]
        else:
            found[name] = peer
    return found, missing


async def _ours(stack: AsyncExitStack, raw_wait: Callable[[], object]) -> _Ours:
    session = await stack.enter_async_context(accy_async.open_session(CudaBackend()))
    backend = session.backend
    stream = await stack.enter_async_context(session.stream())
    arrays = [session.allocate(32, DType.F32) for _ in range(2)]
    noop, one = entry("noop"), ScalarArgument.u32(1)
    artifact = backend.create_artifact(noop.artifact_request(None))
    request = LaunchRequest(
        artifact=artifact,
        loaded=backend.load_artifact(artifact),
        buffers=tuple(array.binding() for array in arrays),
        scalars=(one,),
        geometry=noop.launch.geometry(()),
        stream=stream,
    )
    prepared, launcher = backend.prepare_launch(request), backend.bind_launch(request)
    bound, values = launcher.submit, cycle((one, ScalarArgument.u32(2)))
    bindings = cycle(array.binding() for array in arrays)

    def with_a_scalar() -> None:
        launcher.set_scalar(0, next(values))
        bound()

    def with_a_buffer() -> None:
        launcher.set_buffer(0, next(bindings))
        bound()

    submit, several = backend.submit_launch, [prepared] * STAGES
    pipeline = KernelCallPipeline(
        target="bench.chain",
        version=1,
        operand_count=1,
        result_count=1,
        stages=tuple(
            PipelineStage(
                target=noop.target,
                version=1,
                buffers=(Result(0), Operand(0)),
                scalars=(Forward(0),),
            )
            for _ in range(STAGES)
        ),
        runtime_scalar_argument_count=1,
    )
    registry = KernelCallRegistry([noop])
    pool = await stack.enter_async_context(
        await session.load_pipeline(pipeline, registry)
    )
    scratch = await stack.enter_async_context(
        await allocate_pipeline_intermediates(backend, pipeline, (one,))
    )
    chain = PipelineLaunch(
        pipeline=pipeline,
        registry=registry,
        format=backend.default_format,
        operands=(arrays[0].binding("read_only"),),
        results=(arrays[1].binding(),),
        runtime_scalar_arguments=(one,),
        artifacts=pool,
        intermediates=scratch,
        stream=stream,
    )
    eighth = BURST // STAGES
    ways: dict[str, tuple[Callable[[], object], int]] = {
        BOUND: (bound, 1),
        "ours: the same, a scalar changed each time": (with_a_scalar, 1),
        "ours: the same, a buffer changed each time": (with_a_buffer, 1),
        "ours: submit_launch of a prepared launch": (
            lambda: submit(prepared, stream), 1,
        ),
        f"ours: submit_launches of {STAGES}, a launch": (
            lambda: backend.submit_launches(several, stream), STAGES,
        ),
        f"ours: submit_pipeline of {STAGES} stages, a stage": (
            lambda: submit_pipeline(backend, chain), STAGES,
        ),
        "ours: backend.launch, prepared each time": (
            lambda: backend.launch(request), 1,
        ),
    }  # fmt: skip
    bursts = {}
    for name, (call, parts) in ways.items():
        count = BURST if parts == 1 else eighth

        def burst(
            _: int,
            call: Callable[[], object] = call,
            count: int = count,
            parts: int = parts,
        ) -> float:
            return per_call(call, count) / parts

        bursts[name] = Peer(call, raw_wait, burst)
    graph = LaunchGraphBuilder()
    out, source = (graph.scratch(name, DType.F32, 32) for name in ("out", "source"))
    graph.fill(source, 0.0)
    for _ in range(NODES):
        graph.kernel(noop, [out.read_write, source.read], [one])
    return _Ours(bursts, graph.build(), session)


async def measure() -> tuple[list[Row], list[Row]]:
    """The rows of both tables."""
    from cuda.bindings import driver

    peers, missing = _peers()
    synchronize = peers["cuda.bindings, packed"].wait

    def wait() -> None:
        synchronize()
        driver.cuCtxSynchronize()

    async with AsyncExitStack() as stack:
        ours = await _ours(stack, wait)
        everything = peers | ours.bursts
        bursts: dict[str, list[float]] = {name: [] for name in everything}
        for number in range(ROUNDS + 1):
            gc.collect()
            for name, peer in everything.items():
                took = bursts_of(peer)()
                if number:
                    bursts[name].append(took)
        rows: dict[str, list[float]] = {}
        for number in range(6):
            for name, peer in everything.items():
                if "of 8" not in name:
                    took = _row(peer)
                    rows.setdefault(name, []).extend([took] if number else [])
            started = time.perf_counter()
            await ours.session.run(ours.plan)
            took = (time.perf_counter() - started) / NODES * 1e6
            name = f"ours: a plan of {NODES} run again, a node"
            rows.setdefault(name, []).extend([took] if number else [])
    listed = [*PEERS, *ours.bursts]
    first = [
        Row(
            name, bursts.get(name, ()), missing.get(name, ""), _TARGETS.get(name, ())
        )
        for name in listed
    ]  # fmt: skip
    return first, [Row(name, samples) for name, samples in rows.items()]


def _row(peer: Peer) -> float:
    """Microseconds a launch of a long row, until the last one is done."""
    peer.wait()
    started = time.perf_counter()
    if peer.burst is not None:
        for _ in range(ROW // BURST):
            peer.burst(BURST)
    else:
        per_call(peer.launch, ROW)
    peer.wait()
    return (time.perf_counter() - started) / ROW * 1e6


def main() -> None:
    first, second = accy_async.run(measure)
    show(
        f"Host time of a launch, in bursts of {BURST} with the device idle",
        first,
        unit="us",
        ratio_to="cuda.bindings, packed",
    )
    show(
        f"A launch of {ROW} in a row, until the last is done",
        second,
        unit="us",
        ratio_to="cuda.bindings, packed",
    )


if __name__ == "__main__":
    main()
