"""A lane: what one invocation at a time runs in, kept for the ones after it.

A lane has the fragment's graph prepared for the buffers of its last invocation. An
invocation that brings others has only the launches packed again that use them. Host
arrays pass through buffers of the lane's own, which stay: calls with host arrays find
everything as they left it. (Where the device is the host, those are arrays as well, and
no stream has to copy anything.) A graph of several kernels that finds most of it so is
lowered to a graph of the device, and then launched as one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from accy_async.backends.adopting import adopt_array
from accy_async.backends.array import DeviceArray
from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.backends.completion import run_abandonable
from accy_async.fragment.arguments import host_dtype
from accy_async.fragment.memory import Buffers
from accy_async.fragment.signature import ArgumentSlot, ResultKind, ResultSlot
from accy_async.fragment.spares import MOST_KEPT_BYTES, Spares
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
from accy_async.interop.dlpack import CPU

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

_IN_PLACE_BYTES = 1 << 16
"""Host arrays from this size on are used where they are, if the device is the host:
a copy of 64 KiB takes some 6 us, as long as it takes to adopt an array."""

_MOST_AT_ONCE = 1 << 20
"""Bytes that may be copied on the event loop's thread: some 100 us."""

_LEAST_LOWERED = 3
"""Kernels from which on a launch of a graph costs less than theirs do."""

_PREPARED_AT_ONCE = 32
"""Kernels whose launches are packed at a stretch: some 300 us."""

_CALM = 2
"""Invocations in a row that change little, after which a lane lowers its graph."""


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
        self._own = Buffers(backend, "a fragment's lane")
        self._bound: dict[str, BufferHandle] = dict(constants.items())
        self._spares = Spares(backend)
        self._staging: dict[str, tuple[HostArray, DeviceArray]] = {}
        self._prepared: PreparedGraph | None = None
        self._ready: list[PreparedLaunch] | None = None
        self._calm = 0
        place = backend.exchange_device
        self._is_host = place is not None and place[0] == CPU

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
        call = _Call(self, stream)
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
        handles += [adopted.handle for _, adopted in self._staging.values()]
        self._staging.clear()
        handles += self._spares.detach()
        handles += self._own.detach()
        return handles

    def own(self, slot: ArgumentSlot | ResultSlot) -> BufferHandle:
        """The lane's own buffer for a slot."""
        return self._own.allocate(slot.name, slot.slot.byte_size)

    def result(self, slot: ResultSlot) -> DeviceArray:
        """A new array for a result, the caller's; its buffer comes back if small."""
        backend, planned = self._backend, slot.slot
        if planned.byte_size > MOST_KEPT_BYTES:
            return DeviceArray.allocate(backend, planned.shape, planned.dtype)
        handle = self._spares.take(slot.name)
        if handle is None:
            handle = backend.allocate_buffer(planned.byte_size)
        reclaim = self._spares.reclaim(slot.name)
        return DeviceArray(
            backend, handle, planned.shape, planned.dtype, reclaim=reclaim
        )

    def staging(
        self, slot: ArgumentSlot | ResultSlot
    ) -> tuple[HostArray, DeviceArray] | None:
        """The same as an array of the host, where the device is the host."""
        if not self._is_host:
            return None
        found = self._staging.get(slot.name)
        if found is None:
            planned = slot.slot
            array = np.zeros(planned.shape, host_dtype(planned.dtype))
            adopted = adopt_array(self._backend, array, dtype=planned.dtype)
            found = self._staging[slot.name] = array, adopted
        return found

    def source(self, slot: ResultSlot) -> BufferHandle:
        """What holds a slot's value in this invocation."""
        return self._bound[slot.name]

    def is_used_in_place(self, byte_size: int) -> bool:
        """True for host arrays that need no copy."""
        return self._is_host and byte_size >= _IN_PLACE_BYTES

    @property
    def backend(self) -> Backend:
        """The device."""
        return self._backend

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
        prepared, bound = self._prepared, self._bound
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
        self._bound.update(wanted)
        if not self._order:
            return
        for slot in self._graph.slots:
            if slot.name not in self._bound:
                handle = self._own.allocate(slot.name, slot.byte_size)
                self._bound[slot.name] = handle
        self._prepared = PreparedGraph(
            self._backend, self._graph, [self._kernels], dict(self._bound), {}, options
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
        if isinstance(lowered, LoweredGraph) and lowered.is_made:
            lowered.launch(stream, None)
        elif self._ready is not None:
            self._backend.submit_launches(self._ready, stream)
        else:
            submit_prepared(prepared, self._order, stream)


class _Call:
    """One invocation of a lane: what is copied before and after it, and kept alive."""

    def __init__(self, lane: Lane, stream: StreamHandle) -> None:
        self.wanted: dict[str, BufferHandle] = {}
        self._lane = lane
        self._backend = lane.backend
        self._stream = stream
        self._copies: list[tuple[BufferHandle, BufferHandle]] = []
        self._uploads: list[tuple[BufferHandle, object]] = []
        self._downloads: list[tuple[BufferHandle, HostArray]] = []
        self._results: list[tuple[ResultSlot, DeviceArray | HostArray]] = []
        self._staged: list[tuple[HostArray, HostArray]] = []
        self._adopted: list[DeviceArray] = []

    def take(self, slot: ArgumentSlot, given: DeviceArray | HostArray) -> None:
        """Bind an argument, or have it copied to the lane's own buffer."""
        if isinstance(given, DeviceArray) and not slot.is_written:
            self.wanted[slot.name] = given.handle
            return
        if (
            not isinstance(given, DeviceArray)
            and not slot.is_written
            and given.flags.aligned
            and self._lane.is_used_in_place(given.nbytes)
        ):
            self.wanted[slot.name] = self._adopt(given, slot, is_read_only=True)
            return
        if not isinstance(given, DeviceArray):
            staging = self._lane.staging(slot)
            if staging is not None:
                np.copyto(staging[0], given)  # nothing else uses the lane now
                self.wanted[slot.name] = staging[1].handle
                return
        own = self.wanted[slot.name] = self._lane.own(slot)
        if isinstance(given, DeviceArray):
            self._copies.append((given.handle, own))
        else:
            self._uploads.append((own, given))

    def open(self, result: ResultSlot, *, to_host: bool) -> DeviceArray | HostArray:
        """Memory for a result, bound where kernels can write it as it is."""
        slot = result.slot
        is_written = result.kind is ResultKind.WRITTEN
        if to_host:
            array = np.empty(slot.shape, host_dtype(slot.dtype))
            if is_written and self._lane.is_used_in_place(array.nbytes):
                self.wanted[result.name] = self._adopt(array, result)
                return array
            if not is_written:
                self._results.append((result, array))
                return array
            staging = self._lane.staging(result)
            if staging is not None:
                self.wanted[result.name] = staging[1].handle
                self._staged.append((staging[0], array))
            else:
                own = self.wanted[result.name] = self._lane.own(result)
                self._downloads.append((own, array))
            return array
        made = self._lane.result(result)
        if is_written:
            self.wanted[result.name] = made.handle
        else:
            self._results.append((result, made))
        return made

    async def upload(self) -> None:
        """Submit the copies that come before the kernels."""
        backend, stream = self._backend, self._stream
        for handle, data in self._uploads:
            write = functools.partial(backend.write_buffer, handle, data, stream=stream)
            if backend.writes_block and handle.byte_size > _MOST_AT_ONCE:
                await run_abandonable(write, lambda _: None, name="upload")
            else:
                write()
        for source, target in self._copies:
            backend.copy_buffer(source, target, stream=stream)

    def download(self) -> None:
        """Submit the copies that come after the kernels."""
        backend, stream = self._backend, self._stream
        for handle, out in self._downloads:
            backend.read_buffer(handle, out, stream=stream)
        for result, made in self._results:
            self._copy_result(result, made)

    def finish(self) -> None:
        """Give out what was staged, and let go of what was adopted."""
        for source, target in self._staged:
            np.copyto(target, source)
        for array in self._adopted:
            array.free()

    def _copy_result(self, result: ResultSlot, made: DeviceArray | HostArray) -> None:
        backend, stream = self._backend, self._stream
        if result.kind is ResultKind.KNOWN:
            data = result.slot.data
            assert data is not None
            if isinstance(made, DeviceArray):
                backend.write_buffer(made.handle, data, stream=stream)
            else:
                made[...] = np.frombuffer(data, made.dtype).reshape(made.shape)
            return
        source = self._lane.source(result)
        if isinstance(made, DeviceArray):
            backend.copy_buffer(
                source, made.handle, byte_size=made.byte_size, stream=stream
            )
        else:
            backend.read_buffer(source, made, stream=stream)

    def _adopt(
        self,
        array: HostArray,
        slot: ArgumentSlot | ResultSlot,
        *,
        is_read_only: bool = False,
    ) -> BufferHandle:
        adopted = adopt_array(
            self._backend,
            array,
            dtype=slot.slot.dtype,
            is_read_only=is_read_only,
            what=slot.name,
        )
        self._adopted.append(adopted)
        return adopted.handle
