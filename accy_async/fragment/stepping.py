"""Invoking a loaded fragment step by step, with buffers that stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio.lowlevel
import numpy as np

from accy_async.artifact.entry import ElementCountArgument
from accy_async.backends.cleanup import Cleanup
from accy_async.backends.hostmemory import host_bytes
from accy_async.backends.launch import LaunchRequest
from accy_async.errors import (
    InvalidArtifact,
    InvalidBuffer,
    ReadBufferDestinationTooSmall,
    SessionClosed,
)
from accy_async.fragment.arguments import check_inputs, host_dtype
from accy_async.fragment.bindings import (
    InvocationBindings,
    allocate_bindings,
    check_bindings_given,
    check_kernel_buffers,
)
from accy_async.fragment.catalogue import FragmentCatalogue
from accy_async.fragment.graphs import (
    RuntimeScalars,
    kernel_entries,
    launch_graph_plan,
    node_names,
)
from accy_async.fragment.submission import in_order, submit_prepared
from accy_async.graph.options import LaunchOptions
from accy_async.tuning.choice import LaunchTuning
from accy_async.tuning.launches import LaunchTuningCache
from accy_async.values import listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferBinding
    from accy_async.backends.loading import LoadedKernel
    from accy_async.dtypes import ScalarArgument
    from accy_async.fragment.arguments import HostArray
    from accy_async.fragment.compiled import CompiledFragment
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.tuning.launches import LaunchTuningCacheRecord

__all__ = ["SteppedFragment"]

_PLAIN = LaunchOptions()
_UNTUNED = LaunchTuning()


class SteppedFragment(FragmentCatalogue):
    """The kernels of a fragment on a device, to be launched with bindings.

    Args:
        backend: the device.
        compiled: what was compiled.
        kernels: its kernels as loaded, in the plan's order.
        grace_s: how long cleanup may wait for the device, in seconds; the backend's
            own if None.
        check_open: called with what is to be done; what it raises refuses it.
        launch_tuning: records to choose launch candidates by.
    """

    def __init__(
        self,
        backend: Backend,
        compiled: CompiledFragment,
        kernels: Sequence[LoadedKernel],
        *,
        grace_s: float | None = None,
        check_open: Callable[[str], None] | None = None,
        launch_tuning: Iterable[LaunchTuningCacheRecord] = (),
    ) -> None:
        super().__init__(compiled)
        self._backend = backend
        self._tuning = LaunchTuningCache(backend.capabilities, launch_tuning)
        self._grace_s = backend.grace_s if grace_s is None else grace_s
        self._loaded = tuple(kernels)
        self._entries = kernel_entries(self.plan)
        self._names = node_names(self.plan)
        self._kernels = {
            id(entry): (kernel.artifact, kernel.loaded)
            for entry, kernel in zip(self._entries, kernels, strict=True)
        }
        self._preferred: dict[int, int] = {}
        self._chosen = self._recorded_candidates()
        self._graph = self.create_launch_graph_plan()
        self._check_open = check_open
        self._is_closed = False

    @property
    def backend(self) -> Backend:
        """The device that it is on."""
        return self._backend

    @property
    def graph(self) -> LaunchGraphPlan:
        """Its launch graph, for `Session.start` and `Session.prepare`.

        Slots are named ``input_0`` after role and number; bindings'
        `InvocationBindings.graph_bindings` names those that have to be bound. Where a
        tuning record has chosen another candidate since, it is another graph.
        """
        return self._graph

    @property
    def tuning_record_count(self) -> int:
        """How many launch tuning records it has."""
        return len(self._tuning)

    def create_launch_graph_plan(
        self,
        *,
        tuning: LaunchTuning = _UNTUNED,
        runtime_scalars: RuntimeScalars | None = None,
    ) -> LaunchGraphPlan:
        """A launch graph of its kernels, whose edges follow from their slots.

        Args:
            tuning: the launch candidates to use. A kernel that it does not name takes
                the one that its tuning record says, else its first one.
            runtime_scalars: the scalars of every kernel that takes some, or of each
                one by its id. Left out, a kernel takes its defaults, and one without
                defaults the next ones of the run's `LaunchOptions.runtime_scalars`.

        Raises:
            InvalidArtifact: ``tuning`` names a kernel that is not there.
            LaunchArgumentMismatch: it names a candidate that is not, or the scalars
                are not what the kernels take.
        """
        chosen = self._recorded_candidates() | tuning.candidates(self.plan)
        return launch_graph_plan(
            self.plan, self._entries, candidates=chosen, runtime_scalars=runtime_scalars
        )

    def _recorded_candidates(self) -> dict[int, int]:
        """The launch candidates that tuning chose, by kernel id; records go first."""
        if not len(self._tuning):
            return dict(self._preferred)
        found = {k.kernel_id: self._tuning.selection(k) for k in self.plan.kernels}
        return self._preferred | {
            kernel_id: one.candidate_index
            for kernel_id, one in found.items()
            if one is not None
        }

    async def prepare_invocation_bindings(
        self, inputs: Sequence[object]
    ) -> InvocationBindings:
        """Allocate every buffer of an invocation, and upload inputs and constants.

        Args:
            inputs: for each parameter its bytes, or a C-contiguous array of its
                dtype; *borrowed* until the call returns.

        Raises:
            LaunchArgumentMismatch: more, fewer, or other sizes or dtypes than the
                parameters'.
            InvalidBuffer: an array is not contiguous.
            OutOfMemory: no room; nothing is left allocated.
            DeviceError: an upload failed; nothing is left allocated.
            SessionClosed: the fragment was closed.

        Cancellation: nothing is left allocated.
        """
        self._check("prepare_invocation_bindings")
        inputs = listed("inputs", inputs, "a list of arrays, or of bytes")
        check_inputs(self.plan, inputs)
        backend = self._backend
        bindings = allocate_bindings(backend, self.plan, self._kernels, inputs)
        try:
            await backend.wait_default_stream()
        except BaseException as error:
            await Cleanup(backend, f"binding {self.name!r}", self._grace_s).leave(
                error, wait=backend.wait_default_stream, handles=bindings.handles()
            )
            raise
        return bindings

    def submit_invocation(
        self,
        bindings: InvocationBindings,
        options: LaunchOptions = _PLAIN,
        *,
        tuning: LaunchTuning = _UNTUNED,
        runtime_scalars: RuntimeScalars | None = None,
    ) -> None:
        """Submit every kernel to one stream, after one another. Sync; never waits.

        Args:
            bindings: from `prepare_invocation_bindings`.
            options: the stream (None for the default stream), events to wait for and
                to signal, candidates by node name, scalars of the graph.
            tuning: the launch candidates to use.
            runtime_scalars: as for `create_launch_graph_plan`.

        Raises:
            LaunchArgumentMismatch: something does not fit; nothing was submitted.
            InvalidBuffer, InvalidStream, InvalidEvent: a handle is not alive.
            SessionClosed: the fragment was closed.
        """
        graph = self._graph
        if not tuning.is_empty or runtime_scalars is not None:
            graph = bindings.graph_for(
                graph,
                tuning,
                runtime_scalars,
                lambda: self.create_launch_graph_plan(
                    tuning=tuning, runtime_scalars=runtime_scalars
                ),
            )
        self.submit_invocation_with_graph(bindings, graph, options)

    def submit_invocation_with_graph(
        self,
        bindings: InvocationBindings,
        graph: LaunchGraphPlan,
        options: LaunchOptions = _PLAIN,
    ) -> None:
        """Submit a graph of the fragment's kernels to one stream. Sync; never waits.

        The stream's order keeps every edge. To have parts of a graph side by side, or
        loops, or calls on the host, start a run of it: `Session.start`.

        Args:
            bindings: from `prepare_invocation_bindings`.
            graph: from `create_launch_graph_plan`, or one made from it.
            options: as for `submit_invocation`.

        Raises:
            InvalidArtifact: the graph has no nodes, or is of another fragment.
            UnsupportedOperation: it takes a run.
            LaunchArgumentMismatch: the options do not fit; nothing was submitted.
            InvalidBuffer, InvalidStream, InvalidEvent: a handle is not alive.
            SessionClosed: the fragment was closed.
        """
        self._check("submit_invocation")
        check_bindings_given("bindings", bindings, self.plan)
        order = in_order(graph)
        prepared = bindings.prepared(graph, options)
        backend, stream = self._backend, options.stream
        for event in options.wait_events:
            backend.stream_wait_event(stream, event)
        submit_prepared(prepared, order, stream)
        if options.signal_event is not None:
            backend.record_event(options.signal_event, stream)

    async def complete_invocation(self, options: LaunchOptions = _PLAIN) -> None:
        """Return when what was submitted with these options is done.

        Awaits the event that they signal, else their stream, else the default stream.

        Raises:
            DeviceError: a kernel failed.
            InvalidStream, InvalidEvent: the handle is not alive.

        Cancellation: only the wait stops; the work goes on.
        """
        if options.signal_event is not None:
            await self._backend.wait_event(options.signal_event)
        elif options.stream is not None:
            await self._backend.wait_stream(options.stream)
        else:
            await self._backend.wait_default_stream()

    async def complete_invocation_graph(
        self, graph: LaunchGraphPlan, options: LaunchOptions = _PLAIN
    ) -> None:
        """As `complete_invocation`, for `submit_invocation_with_graph`.

        Raises:
            InvalidArtifact: the graph has no nodes: nothing was submitted.
            DeviceError, InvalidStream, InvalidEvent: as for `complete_invocation`.
        """
        in_order(graph)
        await self.complete_invocation(options)

    async def read_invocation_output(
        self,
        bindings: InvocationBindings,
        index: int,
        out: object = None,
        *,
        options: LaunchOptions = _PLAIN,
    ) -> HostArray:
        """Copy a result to host memory; awaits the copy.

        Args:
            bindings: what the invocation ran with.
            index: which result.
            out: a writable C-contiguous array, or bytes, of exactly the result's
                size; a new array if left out.
            options: the stream that copies, which the invocation ran on.

        Returns:
            The result, of its shape; bf16 as uint16.

        Raises:
            InvalidArtifact: there is no such result.
            LaunchArgumentMismatch: the bindings are closed, or another fragment's.
            ReadBufferDestinationTooSmall: ``out`` is smaller than the result.
            InvalidBuffer: ``out`` is larger, read-only or not contiguous.
            DeviceError: work that the copy follows, or the copy, failed.
            SessionClosed: the fragment was closed.

        Cancellation: only the wait stops; ``out`` is undefined, and kept alive until
            the copy is done with it.
        """
        self._check("read_invocation_output")
        slot = self.output_slot(index)
        if slot is None:
            raise InvalidArtifact(
                f"{self.name!r}: result {index!r}, it has {self.output_count}"
            )
        check_bindings_given("bindings", bindings, self.plan)
        dtype = host_dtype(slot.dtype)
        target = np.empty(slot.shape, dtype) if out is None else out
        memory = host_bytes(target, writable=True)
        if memory.byte_size != slot.byte_size:
            kind = (
                ReadBufferDestinationTooSmall
                if memory.byte_size < slot.byte_size
                else InvalidBuffer
            )
            raise kind(
                f"{self.name!r}: result {index} has {slot.byte_size} bytes, out has "
                f"{memory.byte_size}"
            )
        if not slot.is_bound:
            memory.array[:] = np.frombuffer(slot.data or b"", np.uint8)
            await anyio.lowlevel.checkpoint()
        else:
            source = bindings.binding(slot.slot_id).handle
            stream = options.stream
            self._backend.read_buffer(source, memory.array, stream=stream)
            if stream is None:
                await self._backend.wait_default_stream()
            else:
                await self._backend.wait_stream(stream)
        return memory.array.view(dtype).reshape(slot.shape)

    def launch_kernel_with_arguments(
        self,
        kernel_index: int,
        buffers: Sequence[BufferBinding],
        scalar_arguments: Sequence[ScalarArgument] = (),
        options: LaunchOptions = _PLAIN,
        *,
        candidate_index: int | None = None,
    ) -> None:
        """Launch one kernel with arguments of the caller's. Sync; never waits.

        Args:
            kernel_index: which kernel.
            buffers: its buffers, in its order.
            scalar_arguments: all of its scalars: the element count if it takes it as
                one, runtime scalars, static arguments.
            options: the stream, and events to wait for and to signal; or a candidate,
                by the kernel's node name.
            candidate_index: the launch candidate to use.

        Raises:
            InvalidArtifact: there is no such kernel.
            LaunchArgumentMismatch: arguments or candidate are not the kernel's.
            InvalidBuffer, InvalidStream, InvalidEvent: a handle is not alive.
            CapabilityMismatch: the geometry is beyond the device's limits.
            SessionClosed: the fragment was closed.
        """
        self._check("launch_kernel_with_arguments")
        kernel = self.plan.kernel(kernel_index)
        if candidate_index is None:
            candidate_index = options.tuning.get(self._names[kernel_index])
        buffers = listed("buffers", buffers, "a list of buffers")
        scalars = listed("scalar_arguments", scalar_arguments, "a list of scalars")
        check_kernel_buffers(self.plan, kernel, buffers)
        if candidate_index is None:
            counted = kernel.element_count_argument is ElementCountArgument.SCALAR_U32
            first = int(counted)
            last = first + kernel.runtime_scalar_argument_count
            geometry = kernel.launch.geometry(scalars[first:last])
        else:
            geometry = kernel.launch_resources.candidate(candidate_index).geometry
        loaded = self._loaded[kernel_index]
        backend, stream = self._backend, options.stream
        request = LaunchRequest(
            artifact=loaded.artifact,
            loaded=loaded.loaded,
            buffers=buffers,
            scalars=scalars,
            geometry=geometry,
            stream=stream,
            diagnostic_id=self._names[kernel_index],
        )
        prepared = backend.prepare_launch(request)
        for event in options.wait_events:
            backend.stream_wait_event(stream, event)
        backend.submit_launch(prepared, stream)
        if options.signal_event is not None:
            backend.record_event(options.signal_event, stream)

    def _check(self, call: str) -> None:
        if self._check_open is not None:
            self._check_open(call)
        if self._is_closed:
            raise SessionClosed(f"{call}: fragment {self.name!r} was closed")
