"""Other ways to run a graph of launches, for `graph_cost`."""

from __future__ import annotations

import asyncio
import graphlib
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import anyio
import trio

from accy_async.backends import BufferBinding, LaunchRequest, RecordingBackend
from accy_async.backends.launch import PreparedLaunch
from accy_async.graph import LaunchGraphPlan
from benchmarks.graph_plans import STREAMS, Parts, entry

__all__ = ["THREADS", "Peers"]

THREADS = 4

Launch = Callable[[int], None]


class Peers:
    """Other ways to run a graph: a method each, which returns the seconds it took."""

    def __init__(self, parts: Parts, plan: LaunchGraphPlan) -> None:
        self.preds = parts.preds
        self.count = len(parts.nodes)
        self.launch, self.bare_launch = _launches(plan)
        self.order = plan.layout(STREAMS).order

    def launches_alone(self) -> float:
        return self._in_a_loop(self.bare_launch)

    def calls_alone(self) -> float:
        return self._in_a_loop(self.launch)

    def _in_a_loop(self, launch: Launch) -> float:
        started = time.perf_counter()
        for node in self.order:
            launch(node)
        return time.perf_counter() - started

    def empty_trio_tasks(self) -> float:
        async def nothing() -> None:
            pass

        async def main() -> float:
            started = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(self.count):
                    nursery.start_soon(nothing)
            return time.perf_counter() - started

        return trio.run(main)

    def trio_nursery(self) -> float:
        preds, launch = self.preds, self.launch

        async def main() -> float:
            started = time.perf_counter()
            done = [trio.Event() for _ in range(self.count)]

            async def run(node: int) -> None:
                for before in preds[node]:
                    if not done[before].is_set():
                        await done[before].wait()
                launch(node)
                done[node].set()

            async with trio.open_nursery() as nursery:
                for node in range(self.count):
                    nursery.start_soon(run, node)
            return time.perf_counter() - started

        return trio.run(main)

    def anyio_group(self) -> float:
        preds, launch = self.preds, self.launch

        async def main() -> float:
            started = time.perf_counter()
            done = [anyio.Event() for _ in range(self.count)]

            async def run(node: int) -> None:
                for before in preds[node]:
                    if not done[before].is_set():
                        await done[before].wait()
                launch(node)
                done[node].set()

            async with anyio.create_task_group() as group:
                for node in range(self.count):
                    group.start_soon(run, node)
            return time.perf_counter() - started

        return asyncio.run(main())

    def asyncio_gather(self) -> float:
        return self._gather(self.launch)

    def bare_asyncio_gather(self) -> float:
        return self._gather(self.bare_launch)

    def _gather(self, launch: Launch) -> float:
        preds = self.preds

        async def main() -> float:
            started = time.perf_counter()
            tasks: list[asyncio.Task[None]] = []

            async def run(node: int) -> None:
                for before in preds[node]:
                    if not tasks[before].done():
                        await tasks[before]
                launch(node)

            tasks.extend(asyncio.create_task(run(node)) for node in range(self.count))
            await asyncio.gather(*tasks)
            return time.perf_counter() - started

        return asyncio.run(main())

    def graphlib_threads(self) -> float:
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()

        def run(node: int) -> None:
            self.launch(node)
            ended.put(node)

        with ThreadPoolExecutor(THREADS) as pool:
            started = time.perf_counter()
            sorter = graphlib.TopologicalSorter(dict(enumerate(self.preds)))
            sorter.prepare()
            futures: list[Future[None]] = []
            while sorter.is_active():
                futures += [pool.submit(run, node) for node in sorter.get_ready()]
                sorter.done(ended.get())
            took = time.perf_counter() - started
        for future in futures:
            future.result()
        return took

    def dask_threads(self) -> float:
        try:
            from dask.threaded import get
        except ImportError:  # it comes with the extra `bench`
            return float("nan")

        launch = self.launch

        def run(node: int, _: Sequence[None]) -> None:
            launch(node)

        started = time.perf_counter()
        graph = {
            f"n{node}": (run, node, [f"n{before}" for before in befores])
            for node, befores in enumerate(self.preds)
        }
        get(graph, list(graph), num_workers=THREADS)
        return time.perf_counter() - started


def _launches(plan: LaunchGraphPlan) -> tuple[Launch, Launch]:
    """What launches a node on its stream: with the events of the layout, and bare."""
    backend = RecordingBackend(keeps_records=False)
    kernel = entry()
    artifact = backend.create_artifact(kernel.artifact_request(None))
    loaded = backend.load_artifact(artifact)
    buffers = tuple(BufferBinding(handle=backend.allocate_buffer(256)) for _ in "ab")
    streams = [backend.create_stream() for _ in range(STREAMS)]
    layout = plan.layout(STREAMS)
    on = [streams[stream] for stream in layout.stream]
    events = {
        node: backend.create_event()
        for node, is_on in enumerate(layout.records)
        if is_on
    }
    waits = [tuple(events[before] for before in befores) for befores in layout.waits]
    prepared: list[PreparedLaunch] = [
        backend.prepare_launch(
            LaunchRequest(
                artifact=artifact,
                loaded=loaded,
                buffers=buffers,
                geometry=kernel.launch.geometry(()),
                diagnostic_id=node.name,
            )
        )
        for node in plan.nodes
    ]
    submit, wait, record = (
        backend.submit_launch,
        backend.stream_wait_event,
        backend.record_event,
    )

    def launch(node: int) -> None:
        stream = on[node]
        for event in waits[node]:
            wait(stream, event)
        submit(prepared[node], stream)
        if node in events:
            record(events[node], stream)

    def bare_launch(node: int) -> None:
        submit(prepared[node], on[node])

    return launch, bare_launch
