"""What a backend implements; `Backend` makes the contract out of it.

Hooks run after the contract's checks. Those that submit run under the
submission lock, in the order of their positions, and must not block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends.peerhooks import PeerHooks
from accy_async.errors import UnsupportedOperation

if TYPE_CHECKING:
    from accy_async.artifact.formats import BackendKind
    from accy_async.artifact.kernel import ArtifactRequest
    from accy_async.backends.capabilities import Capabilities
    from accy_async.backends.devicegraph import GraphRequest
    from accy_async.backends.guards import Guard, GuardOf
    from accy_async.backends.handles import Handle
    from accy_async.backends.hostmemory import HostMemory
    from accy_async.backends.journal import Journal
    from accy_async.backends.launch import LaunchRequest, PreparedLaunch
    from accy_async.backends.resources import Resource
    from accy_async.backends.timeline import Timeline

__all__ = ["BackendHooks", "EventState", "GraphState", "StreamState"]


class StreamState:
    """What a backend keeps for one stream; backends add their own to it.

    ``id`` is the stream's, None for the default stream. ``is_lent`` is True once
    another library may submit to it, ``is_borrowed`` where it is another's own.
    ``journal`` has the last launches, where the device does not say whose fault its
    errors are.
    """

    id: int | None = None
    journal: Journal | None = None
    is_lent = False
    is_borrowed = False

    def __init__(self, timeline: Timeline, priority: int = 0) -> None:
        self.timeline = timeline
        self.priority = priority


class EventState:
    """What a backend keeps for one event; backends add their own to it.

    ``mark`` is the stream and position of the last record, None before it;
    ``time_ns`` the device's time there, None until it is reached or where the
    event has no timing.
    """

    def __init__(self, *, has_timing: bool) -> None:
        self.has_timing = has_timing
        self.mark: tuple[Timeline, int] | None = None
        self.time_ns: float | None = None


class GraphState:
    """What a backend keeps for one device graph; backends add their own to it.

    ``request`` is what the graph was made of, as it was updated last; ``events`` are
    those that its nodes record, in their order.
    """

    def __init__(self, request: GraphRequest) -> None:
        self.request = request
        self.events: tuple[Resource, ...] = ()


class BackendHooks(PeerHooks, ABC):
    """The hooks of one device; those for others beside it are in `peerhooks`."""

    kind: BackendKind

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the device is and can do; the same object every time."""

    @abstractmethod
    def _load(self, artifact: KernelArtifact) -> object:
        """Load a kernel; returns the payload of its resource."""

    @abstractmethod
    def _memory_statistics(self) -> dict[str, int]:
        """Bytes of the device's memory by name, see `Backend.memory_statistics`."""

    def _trim(self, keep_bytes: int) -> None:
        """Give memory that is kept for later buffers back, down to that much."""

    @abstractmethod
    def _allocate(self, byte_size: int, alignment: int) -> object:
        """Get device memory; returns the payload of its resource."""

    @abstractmethod
    def _write(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        data: HostMemory,
        guard: Guard | None,
    ) -> None:
        """Submit a copy from host memory, which is to be kept until it is done."""

    @abstractmethod
    def _read(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        out: HostMemory,
        guard: Guard | None,
    ) -> None:
        """Submit a copy to host memory, which is to be kept until it is done."""

    @abstractmethod
    def _copy(
        self,
        stream: StreamState,
        position: int,
        source: Resource,
        target: Resource,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        """Submit a copy from one buffer's start to another's."""

    @abstractmethod
    def _fill(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        pattern: bytes,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        """Submit the writing of a pattern over a buffer's first bytes."""

    @abstractmethod
    def _prepare(
        self,
        request: LaunchRequest,
        artifact: Resource | None,
        buffers: list[Resource | None],
    ) -> object:
        """Check a launch against its kernel, and put it in the backend's own form.

        None stands for an object that the backend does not know.
        """

    def _prepare_again(
        self,
        prepared: PreparedLaunch,
        request: LaunchRequest,
        buffers: list[Resource | None],
    ) -> object:
        """`_prepare` for a request that differs from a launch's in arguments alone."""
        return self._prepare(request, prepared.artifact, buffers)

    @abstractmethod
    def _launch(
        self,
        stream: StreamState,
        position: int,
        prepared: PreparedLaunch,
        guard: Guard | None,
    ) -> None:
        """Submit a kernel."""

    @abstractmethod
    def _open_stream(self, priority: int, name: str) -> StreamState:
        """Open a stream whose timeline has the name."""

    @abstractmethod
    def _open_event(self, *, has_timing: bool) -> EventState:
        """Open an event."""

    @abstractmethod
    def _record(self, stream: StreamState, position: int, event: EventState) -> None:
        """Submit the marking of an event; its ``mark`` is set already."""

    @abstractmethod
    def _stream_wait(
        self, stream: StreamState, position: int, event: EventState
    ) -> None:
        """Submit a wait of the stream for the event's ``mark`` of this moment."""

    def _open_graph(
        self, request: GraphRequest, objects: Mapping[Handle, Resource]
    ) -> GraphState:
        """Make a device graph; only where ``capabilities.device_graphs``."""
        raise NotImplementedError

    def _update_graph(
        self,
        graph: GraphState,
        request: GraphRequest,
        objects: Mapping[Handle, Resource],
    ) -> bool:
        """Make its nodes those of a request of the same topology, from now on.

        False where the device cannot: the graph is of no use any more then.
        """
        raise NotImplementedError

    def _launch_graph(
        self, stream: StreamState, graph: GraphState, guard_of: GuardOf | None
    ) -> int:
        """Take positions of the stream and submit the graph; returns the last one.

        Events that its nodes record have got their ``mark`` when it returns.
        """
        raise NotImplementedError

    def _elapsed_ns(self, start: EventState, end: EventState) -> float | None:
        """Device time between two events that were passed; None if one was skipped."""
        if start.time_ns is None or end.time_ns is None:
            return None
        return end.time_ns - start.time_ns

    @abstractmethod
    def _free(self, resource: Resource) -> None:
        """Free an object; any thread, once for each object."""

    # Memory and streams of other libraries; see `accy_async.backends.exchange`.

    exchanges_streams: bool = False
    """True where memory is handed over on streams, and not when it is idle."""

    @property
    def exchange_device(self) -> tuple[int, int] | None:
        """DLPack's device type and index of the memory; None where it has none."""
        return None

    @property
    def is_processor(self) -> bool:
        """True where its memory is the host's, which other devices reach as such."""
        return self.exchange_device == (1, 0)  # DLPack's kDLCPU

    def _borrow(self, address: int, byte_size: int, keeper: object) -> object:
        """Take another's memory; returns the payload of its resource."""
        del address, byte_size, keeper
        raise UnsupportedOperation(
            f"{self.kind}: takes no memory of other libraries; upload a copy of it"
        )

    def _address(self, buffer: Resource) -> int:
        """Where a buffer's memory lies."""
        raise UnsupportedOperation(f"{buffer.name} cannot be shared: it has no address")

    def _borrow_stream(self, number: int, keeper: object) -> StreamState:
        """Take another's stream, by the driver's number."""
        del number, keeper
        raise UnsupportedOperation(f"{self.kind}: takes no streams of other libraries")

    def _stream_number(self, stream: StreamState) -> int:
        """The driver's number of a stream."""
        del stream
        raise UnsupportedOperation(f"{self.kind}: has no streams of a driver")

    def _check_address(self, address: int) -> None:
        """Refuse what is no memory of this device, as far as that can be told."""
        del address

    def _check_lending(self) -> None:
        """Refuse to lend memory that could not be taken back safely."""

    def _follow(self, stream: StreamState, position: int, number: int | None) -> bool:
        """Submit a wait for another's stream, by its number; for all if None.

        False where the device refuses that just now, and nothing was submitted.
        """
        del stream, position, number
        return True

    def _lead(self, stream: StreamState, position: int, number: int) -> None:
        """Have another's stream wait for what was submitted to this one."""
        del stream, position, number

    def _pass(self, stream: StreamState, position: int) -> None:
        """Submit an operation that does nothing, and have its end told."""
        stream.timeline.request(position)

    def _notice(self, stream: StreamState, position: int) -> None:
        """See to it that what is idle then is freed, though nobody waits for it."""
        del stream, position

    def _create(self, request: ArtifactRequest) -> KernelArtifact:
        """Make an artifact; backends that compile do it here."""
        return KernelArtifact.from_request(request)

    @abstractmethod
    def _find_for_launch(self, handle: Handle) -> Resource | None:
        """The object of a handle in a launch; None for one to be taken on trust."""
