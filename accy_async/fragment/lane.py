"""A lane: what one invocation at a time runs in, kept for the ones after it.

A lane has the fragment's graph prepared for the buffers of its last invocation. An
invocation that brings others has only the launches packed again that use them. Host
arrays pass through buffers of the lane's own, which stay: calls with host arrays find
everything as they left it. (Where the device is the host, those are arrays as well, and
no stream has to copy anything.) A graph of several kernels that finds most of it so is
lowered to a graph of the device, and then launched as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accy_async.backends.array import DeviceArray
from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.backends.loops import uninterrupted
from accy_async.fragment.lanecall import LaneCall
from accy_async.fragment.lanememory import LaneMemory
from accy_async.fragment.memory import Buffers
from accy_async.fragment.submission import (
    in_order,
    launches_alone,
    submit_prepared,
)
from accy_async.graph.lowering.lowered import LoweredGraph
from accy_async.graph.lowering.policy import (
    FIRST_LOWERED_RUN,
    can_lower,
    follow,
    lower,
)
from accy_async.graph.options import LaunchOptions
from accy_async.graph.prepared import PreparedGraph
from accy_async.graph.slices import in_slices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import (
        BufferHandle,
        Handle,
        LoadedArtifact,
        StreamHandle,
    )
    from accy_async.backends.launch import PreparedLaunch
    from accy_async.fragment.arguments import HostArray
    from accy_async.fragment.signature import Signature
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["Lane"]

_LEAST_LOWERED = 3
"""Kernels from which on a launch of a graph costs less than theirs do."""

_PREPARED_AT_ONCE = 32
"""Kernels whose launches are packed at a stretch: some 300 us."""

_CALM = 2
"""Invocations in a row that change little, after which a lane lowers its graph."""


@uninterrupted
class Lane:
    """See the module.

    Args:
        backend: the device.
        graph: the fragment's graph.
        kernels: its kernels, made and loaded, by their entries.
        signature: its parameters and results.
        constants: the buffers of its constants, which lanes share.
    """

    def __init__(
        self,
        backend: Backend,
        graph: LaunchGraphPlan,
        kernels: Mapping[int, tuple[KernelArtifact, LoadedArtifact]],
        signature: Signature,
        constants: Buffers,
    ) -> None:
        self._backend = backend
        self._graph = graph
        self._kernels = kernels
        self._signature = signature
        self._order = in_order(graph) if graph.nodes else ()
        self._memory = LaneMemory(backend, constants)
        self._prepared: PreparedGraph | None = None
        self._ready: list[PreparedLaunch] | None = None
        self._calm = 0

    async def run(
        self,
        graph: LaunchGraphPlan,
        arguments: Sequence[DeviceArray | HostArray],
        options: LaunchOptions,
        stream: StreamHandle,
        *,
        to_host: bool,
    ) -> list[DeviceArray | HostArray]:
        """Run the fragment once; the results, each in memory of its own.

        Args:
            graph: the fragment's now: that of the run before, or one that launches the
                same kernels otherwise.
            arguments: of the types that the parameters have.
            options: the runtime scalars.
            stream: what to run it on.
            to_host: True for results in host memory.

        Raises:
            AccyError: the lane is of no use any more then, as after a cancellation.
        """
        if graph is not self._graph:
            self._take_up(graph)
        call = LaneCall(self._memory, stream)
        for slot, given in zip(self._signature.arguments, arguments, strict=True):
            call.take(slot, given)
        results = [call.open(slot, to_host=to_host) for slot in self._signature.results]
        await self._bind(call.wanted, options)
        await call.upload()
        self._submit(stream)
        call.download()
        await self._backend.wait_stream(stream)
        call.finish()
        return results

    def close(self) -> None:
        """Destroy what it has; what is in use goes to the reaper."""
        errors: list[Exception] = []
        destroy_all(self._backend, self.detach(), errors)
        raise_together("closing a fragment's lane", None, errors)

    def detach(self) -> list[Handle]:
        """What it has, newest first, for others to destroy; it is of no use then."""
        handles: list[Handle] = []
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.lowered is not None:
            handles += prepared.lowered.handles()
        return handles + self._memory.detach()

    def _take_up(self, graph: LaunchGraphPlan) -> None:
        """Have the launches packed anew, as another graph of the kernels says."""
        self._graph = graph
        self._order = in_order(graph) if graph.nodes else ()
        self._calm = 0
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.close()

    async def _bind(
        self, wanted: dict[str, BufferHandle], options: LaunchOptions
    ) -> None:
        """Have the launches use these buffers and scalars, and lower what may be."""
        prepared, bound = self._prepared, self._memory.bound
        if prepared is None:
            await self._prepare(wanted, options)
            return
        is_same = options.runtime_scalars == prepared.options.runtime_scalars
        if is_same and all(bound[name] is one for name, one in wanted.items()):
            self._calm += 1
        else:
            bound.update(wanted)
            changed = prepared.rebind(dict(bound), options)
            self._ready = launches_alone(prepared, self._order)
            self._follow(prepared, changed)
        is_wanted = self._calm >= _CALM and len(self._order) >= _LEAST_LOWERED
        if is_wanted and prepared.lowered is None and can_lower(prepared):
            await lower(prepared, options, is_observed=False)

    async def _prepare(
        self, wanted: dict[str, BufferHandle], options: LaunchOptions
    ) -> None:
        bound = self._memory.bound
        bound.update(wanted)
        if not self._order:
            return
        self._memory.bind_missing(self._graph.slots)
        self._prepared = PreparedGraph(
            self._backend, self._graph, [self._kernels], dict(bound), {}, options
        )
        self._prepared.runs = FIRST_LOWERED_RUN
        making = self._prepared.make_actions()
        if len(self._order) <= _PREPARED_AT_ONCE:
            for _ in making:
                pass
        else:
            await in_slices(making)
        self._ready = launches_alone(self._prepared, self._order)

    def _follow(self, prepared: PreparedGraph, changed: Sequence[int]) -> None:
        """Have the device's graph follow, or drop it where that is most of it."""
        if len(changed) * 4 <= len(self._order):
            self._calm += 1
            follow(prepared, list(changed))
            return
        self._calm = 0
        lowered, prepared.lowered = prepared.lowered, None
        if lowered is not None:
            lowered.close()

    def _submit(self, stream: StreamHandle) -> None:
        prepared = self._prepared
        if prepared is None:
            return
        lowered = prepared.lowered
        if isinstance(lowered, LoweredGraph) and lowered.is_made and not lowered.limits:
            lowered.launch(stream, None)
        elif self._ready is not None:
            self._backend.submit_launches(self._ready, stream)
        else:
            submit_prepared(prepared, self._order, stream)
