"""One sample: what some launches of a candidate take, by the device's clock or ours.

Where nothing has to happen between two launches, a sample is a *batch*: launches
back to back between two events, as one graph of the device where it has graphs, so
that the device never waits for the host; what one takes is a batch's part. Where
operands have to be restored or caches flushed in between, each launch stands between
two events of its own, and a sample is their sum.

Devices without a clock are timed from the host, and batches are longer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

from accy_async.backends.completion import run_abandonable
from accy_async.backends.devicegraph import GraphNode, GraphRequest
from accy_async.errors import UnsupportedOperation
from accy_async.tuning.measuring.candidate import CacheState, TimeSource

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import (
        EventHandle,
        GraphHandle,
        Handle,
        StreamHandle,
    )
    from accy_async.backends.launch import PreparedLaunch
    from accy_async.tuning.measuring.candidate import MeasureOptions
    from accy_async.tuning.measuring.workspace import Workspace

__all__ = ["SampleTimeout", "Sampler", "usual_sample_ns"]

_SHARED_RESOLUTIONS, _SHARED_LEAST_NS = 200.0, 100_000.0
_ALONE_RESOLUTIONS, _ALONE_LEAST_NS = 400.0, 200_000.0
"""On an H200 the MAD of a sample's time is 4 % where samples take 15 us, 1.5 % at 30,
and 0.45 % at 100: noise is a matter of a sample, not of a launch."""
_HOST_LEAST_NS = 2_000_000.0
_MOST_PAIRS = 64
"""Launches of a sample where each has events of its own."""


def usual_sample_ns(resolution_ns: float, *, is_shared: bool) -> float:
    """How long a sample is made by several launches, of kernels that are shorter.

    Args:
        resolution_ns: of the device's clock; 0 where it has none.
        is_shared: whether real work may wait for a sample. Short ones are less exact,
            and it takes more of them to tell candidates apart.
    """
    if resolution_ns <= 0.0:
        return _HOST_LEAST_NS
    if is_shared:
        return max(_SHARED_LEAST_NS, _SHARED_RESOLUTIONS * resolution_ns)
    return max(_ALONE_LEAST_NS, _ALONE_RESOLUTIONS * resolution_ns)


class SampleTimeout(TimeoutError):
    """A sample took longer than it may."""


class Sampler:
    """Takes samples on a stream of its own.

    Args:
        backend: the device.
        workspace: the buffers.
        options: how to measure.
        launches: launches of a sample, from an earlier measurement; 0 to find out.
        is_shared: whether real work may wait for a sample.
    """

    def __init__(
        self,
        backend: Backend,
        workspace: Workspace,
        options: MeasureOptions,
        launches: int = 0,
        *,
        is_shared: bool = False,
    ) -> None:
        capabilities = backend.capabilities
        resolution = capabilities.timing_resolution_ns
        self.source = TimeSource.DEVICE if resolution > 0.0 else TimeSource.HOST
        self.launches = launches
        self._backend = backend
        self._workspace = workspace
        self._options = options
        self._is_cold = options.cache is CacheState.COLD
        self._has_graphs = capabilities.device_graphs
        least_ns = options.least_sample_ns
        if least_ns is None:
            least_ns = usual_sample_ns(resolution, is_shared=is_shared)
        self._least_ns = least_ns
        self._stream: StreamHandle | None = None
        self._pairs: list[tuple[EventHandle, EventHandle]] = []
        self._graphs: dict[PreparedLaunch, tuple[GraphHandle, int]] = {}
        self._opened: list[Handle] = []

    @property
    def stream(self) -> StreamHandle:
        """The stream that everything runs on."""
        assert self._stream is not None
        return self._stream

    @property
    def open_stream(self) -> StreamHandle | None:
        """The same, None where there is none."""
        return self._stream

    @property
    def handles(self) -> tuple[Handle, ...]:
        """What it has opened, the newest first."""
        return tuple(reversed(self._opened))

    @property
    def pair(self) -> tuple[EventHandle, EventHandle] | None:
        """Two events to time something with; None where the device has no clock."""
        return self._events(1)[0] if self.source is TimeSource.DEVICE else None

    @property
    def has_pairs(self) -> bool:
        """Whether each launch of a sample stands alone."""
        return self._workspace.restores or self._is_cold

    def open(self) -> None:
        """Open a stream, the device's least urgent one unless told otherwise."""
        options = self._options
        priority = options.priority
        if priority is None:
            priority = self._backend.capabilities.priorities[0]
        self._stream = self._backend.create_stream(priority=priority)
        self._opened.append(self._stream)

    def abandon(self) -> tuple[Handle, ...]:
        """Leave the stream to what is on it; returns what is to be destroyed."""
        handles = self.handles
        self._opened.clear()
        self._graphs.clear()
        self._pairs.clear()
        self._stream = None
        return handles

    def choose_launches(self, one_ns: float) -> None:
        """Decide how many launches a sample is of, from what a single one takes."""
        most = self._options.most_launches
        if self.has_pairs:
            most = min(most, _MOST_PAIRS)
        wanted = int(self._least_ns / max(one_ns, 1.0)) + 1
        self.launches = min(most, max(1, wanted))

    def make_coarser(self) -> None:
        """A sample showed nothing: take more launches, and at the end another clock.

        Raises:
            UnsupportedOperation: not even the host's clock shows that time passes.
        """
        most = self._options.most_launches
        most = min(most, _MOST_PAIRS) if self.has_pairs else most
        if self.launches < most:
            self.launches = min(most, 4 * self.launches)
        elif self.source is TimeSource.DEVICE:
            self.source = TimeSource.HOST
        else:
            raise UnsupportedOperation(
                f"measuring: {self.launches} launches take no time by the host's clock"
            )

    async def take(self, prepared: PreparedLaunch) -> float:
        """What one launch takes, in nanoseconds; 0.0 where the clock shows nothing.

        Raises:
            SampleTimeout: it took too long; what is on the stream is still there.
            DeviceError: the launch failed.

        Cancellation: what was submitted runs on, on the stream.
        """
        count = self.launches or 1
        if self.source is TimeSource.HOST:
            return await self._by_host(prepared, count)
        if self.has_pairs:
            return await self._in_pairs(prepared, count)
        return await self._in_batch(prepared, count)

    async def settle(self) -> None:
        """Return once the stream is idle.

        Raises:
            SampleTimeout: that takes too long.
            DeviceError: something on it failed.
        """
        limit = self._options.time_limit_s
        with anyio.move_on_after(limit) as scope:
            await self._backend.wait_stream(self.stream)
        if scope.cancelled_caught:
            raise SampleTimeout(f"not done after {limit:g} s")

    # Within

    async def _in_batch(self, prepared: PreparedLaunch, count: int) -> float:
        (begin, end), *_ = self._events(1)
        backend, stream = self._backend, self.stream
        graph = await self._graph(prepared, count)
        backend.record_event(begin, stream)
        if graph is None:
            for _ in range(count):
                backend.submit_launch(prepared, stream)
        else:
            backend.launch_graph(graph, stream)
        backend.record_event(end, stream)
        await self.settle()
        return backend.elapsed_ns(begin, end) / count

    async def _in_pairs(self, prepared: PreparedLaunch, count: int) -> float:
        backend, stream = self._backend, self.stream
        pairs = self._events(count)
        for begin, end in pairs:
            self._make_ready()
            backend.record_event(begin, stream)
            backend.submit_launch(prepared, stream)
            backend.record_event(end, stream)
        await self.settle()
        return sum(backend.elapsed_ns(*pair) for pair in pairs) / count

    async def _by_host(self, prepared: PreparedLaunch, count: int) -> float:
        backend, stream = self._backend, self.stream
        if not self.has_pairs:
            started = time.perf_counter_ns()
            for _ in range(count):
                backend.submit_launch(prepared, stream)
            await self.settle()
            return (time.perf_counter_ns() - started) / count
        total = 0
        for _ in range(count):
            self._make_ready()
            await self.settle()
            started = time.perf_counter_ns()
            backend.submit_launch(prepared, stream)
            await self.settle()
            total += time.perf_counter_ns() - started
        return total / count

    def _make_ready(self) -> None:
        self._workspace.restore(self.stream)
        if self._is_cold:
            self._workspace.flush(self.stream)

    def _events(self, count: int) -> list[tuple[EventHandle, EventHandle]]:
        while len(self._pairs) < count:
            begin = self._backend.create_event(timing=True)
            self._opened.append(begin)
            end = self._backend.create_event(timing=True)
            self._opened.append(end)
            self._pairs.append((begin, end))
        return self._pairs[:count]

    async def _graph(self, prepared: PreparedLaunch, count: int) -> GraphHandle | None:
        """The batch as one graph of the device; None where single launches serve."""
        if count == 1 or not self._has_graphs:
            return None
        graph, of = self._graphs.get(prepared, (None, 0))
        if graph is None or of != count:
            nodes = tuple(
                GraphNode(prepared, after=(place - 1,) if place else ())
                for place in range(count)
            )
            request = GraphRequest(nodes)
            graph = await run_abandonable(  # some 10 us a node
                lambda: self._backend.create_graph(request),
                self._backend.abandon,
                name="make a batch",
            )
            self._graphs[prepared] = graph, count
            self._opened.append(graph)
        return graph
