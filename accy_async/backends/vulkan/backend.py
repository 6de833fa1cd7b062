"""The Vulkan backend: the contract's hooks, carried out by queues."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, ClassVar, cast

from accy_async.artifact.formats import BackendKind
from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends.base import DEFAULT_GRACE_S
from accy_async.backends.contract.checks import check_grace, check_memory_limit
from accy_async.backends.handles import Handle, ObjectKind
from accy_async.backends.hooks import EventState, StreamState
from accy_async.backends.vulkan.barriers import Synchronization
from accy_async.backends.vulkan.clock import TickClock, VulkanEvent
from accy_async.backends.vulkan.device import VulkanDevice
from accy_async.backends.vulkan.families import DEFAULT_QUEUES
from accy_async.backends.vulkan.graphs import VulkanGraph
from accy_async.backends.vulkan.hub import Hub
from accy_async.backends.vulkan.kernels import VulkanKernel, load_kernel
from accy_async.backends.vulkan.launching import Launch, VulkanLaunch
from accy_async.backends.vulkan.leaving import leave
from accy_async.backends.vulkan.memory import Allocator, MemoryKind, VulkanMemory
from accy_async.backends.vulkan.operations import (
    Copy,
    Download,
    Fill,
    Mark,
    Nothing,
    Upload,
    WaitFor,
)
from accy_async.backends.vulkan.peers import VulkanPeers
from accy_async.backends.vulkan.queue import VulkanQueue
from accy_async.backends.vulkan.recorder import Recorder
from accy_async.backends.vulkan.regions import Pattern
from accy_async.backends.vulkan.status import StatusWords
from accy_async.backends.vulkan.streams import VulkanStream
from accy_async.backends.vulkan.timeline import VulkanTimeline
from accy_async.errors import InvalidArtifact, InvalidType, InvalidValue

if TYPE_CHECKING:
    from accy_async.artifact.kernel import ArtifactRequest
    from accy_async.backends.capabilities import Capabilities
    from accy_async.backends.guards import Guard
    from accy_async.backends.hostmemory import HostMemory
    from accy_async.backends.launch import LaunchRequest, PreparedLaunch
    from accy_async.backends.owners import Owner
    from accy_async.backends.resources import Resource
    from accy_async.backends.vulkan.families import QueueFamily

__all__ = ["VulkanBackend"]

_QUEUES = "an integer from 1 on"


class VulkanBackend(VulkanPeers):
    """One Vulkan device.

    Args:
        device: its number in the driver's order; part of its name or its driver's,
            such as ``"lavapipe"``; None for the best one, a software device only
            where there is no other.
        grace_s: how long cleanup waits for the device, in seconds.
        memory_limit_bytes: what all buffers may take together; None for no limit
            but the device's.
        hardware_only: True to have no software device where none is named.
        queues: how many queues for kernels streams are spread over, at the most.
        validation: True to have Khronos' validation layer look, at
            synchronisation too; `validation_messages` has what it says.
        debug: True to wait for each operation where it is submitted, so that an error
            names the very launch that caused it. Submitting then blocks.

    Raises:
        BackendUnavailable: no loader, no driver, no device, or no validation layer;
            the message says what to do.
        InvalidValue: no such device, or less than one queue.
        InvalidType: the number of queues is none.
    """

    loads_block: ClassVar[bool] = True
    writes_block: ClassVar[bool] = True
    asks_guards: ClassVar[bool] = False

    def __init__(
        self,
        device: int | str | None = None,
        *,
        grace_s: float = DEFAULT_GRACE_S,
        memory_limit_bytes: int | None = None,
        hardware_only: bool = False,
        queues: int = DEFAULT_QUEUES,
        validation: bool = False,
        debug: bool = False,
    ) -> None:
        check_grace("VulkanBackend", grace_s)
        check_memory_limit("VulkanBackend", memory_limit_bytes)
        if isinstance(queues, bool) or not isinstance(queues, int):
            raise InvalidType("VulkanBackend.queues", queues, _QUEUES)
        if queues < 1:
            raise InvalidValue("VulkanBackend.queues", queues, _QUEUES)
        self._device = VulkanDevice(
            device, hardware_only=hardware_only, queues=queues, validation=validation
        )
        try:
            self.is_debugging = debug
            self._stalled = {}
            self._opened = []
            self._begin_finishing()
            self._gathering = 0
            self._is_given_back = False
            self._allocator = Allocator(self._device, memory_limit_bytes)
            self._words = StatusWords(
                self._allocator, self._device.limits.storage_alignment
            )
            family = self._device.family
            name = f"accy_async vulkan {self._device.chosen.index}"
            self._hub = Hub(self._device, self, name)
            self._synchronization = Synchronization(self._device.vulkan, family)
            self._computing = [self._queue(family, i) for i in range(family.count)]
            copying = self._device.copying
            self._copying = None if copying is None else self._queue(copying, 0)
            self._recorder = Recorder(self._device)
            self._queues = [*self._computing, *filter(None, [self._copying])]
            super().__init__(BackendKind.VULKAN, grace_s=grace_s)
            self._clock = TickClock(
                self._device,
                self._allocator,
                family.timestamp_bits,
                self._device.tick_ns,
                self._lock,
            )
        except BaseException:
            self._device.destroy()
            raise
        weakref.finalize(self, leave, self._device, self._hub, self._queues)

    def _queue(self, family: QueueFamily, index: int) -> VulkanQueue:
        return VulkanQueue(self._device, family, index, self._opened, self._hub.ring)

    @property
    def capabilities(self) -> Capabilities:
        """What the device is and can do."""
        return self._device.capabilities

    @property
    def validation_messages(self) -> tuple[str, ...]:
        """What the validation layer has said so far, the end of the device included."""
        return tuple(self._device.messages)

    def _memory_statistics(self) -> dict[str, int]:
        return self._allocator.statistics()

    def _trim(self, keep_bytes: int) -> None:
        self._allocator.trim(keep_bytes)

    def _end(self) -> None:
        """Give the device back, or have the hub do so when nothing is in use."""
        try:
            if self._finishing.acquire(blocking=False):
                try:
                    self.finish()
                finally:
                    self._finishing.release()
        finally:
            self._hub.ring()  # which sees to what is still at work

    def _after_makers(self) -> None:
        self.after()
        self._hub.ring()

    def leave(self) -> None:
        """The hub's thread ends: it does what it was waited for with."""
        self._give_back_late()

    def has_ended(self) -> bool:
        """True where nothing will come any more; the hub asks."""
        return self._is_given_back

    def _give_back(self) -> None:
        """End the hub and give the device back, if nothing is in use any more."""
        with self._lock:
            if self._is_given_back or not self._is_closed:
                return
            if self._table.living() or self._reaper or self._makers:
                return
            if self._stalled or any(queue.flying for queue in self._queues):
                return
            if self._hub.is_at_work:
                self._hub.stop()  # on its way out it does the rest
                return
            self._is_given_back = True
            self._hub.stop()
        for queue in self._queues:
            queue.stop_asking()
        self._device.destroy()

    def destroy(self, handle: Handle) -> bool:
        """As the contract says; the hub frees it where it is still in use."""
        self.catch_up()
        is_freed = super().destroy(handle)
        if not is_freed:
            self._hub.ring()
        return is_freed

    def live_objects(self, owner: Owner | None = None) -> dict[str, int]:
        """As the contract says, after a look at what has run."""
        self.catch_up()
        self._table.sweep()
        return super().live_objects(owner)

    def after(self) -> None:
        """Free what became idle, and the device once it is not needed any more."""
        self._table.sweep()
        if self._is_closed:
            self._give_back_late()

    def _give_back_late(self) -> None:
        """`_give_back` where nobody asked: what is refused is kept for who closes."""
        try:
            self._give_back()
        except Exception as error:  # noqa: BLE001 - as said
            self._table.refusals.note(None, error, "giving the device back")

    # Hooks

    def _create(self, request: ArtifactRequest) -> KernelArtifact:
        if isinstance(request.payload, str):
            raise InvalidArtifact(
                f"kernel {request.kernel_name!r}: a payload of "
                f"{request.requested_format} is bytes, got text"
            )
        return KernelArtifact.from_request(request)

    def _load(self, artifact: KernelArtifact) -> object:
        return load_kernel(self._device, artifact, self._words)

    def _allocate(self, byte_size: int, alignment: int) -> object:
        return self._allocator.take(MemoryKind.DEVICE, byte_size, alignment)

    def _write(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        data: HostMemory,
        guard: Guard | None,
    ) -> None:
        target = cast("VulkanMemory", buffer.payload)
        with self._at(stream, position):
            operation = Upload(
                position, guard, self._allocator, target, offset_bytes, data
            )
        self._submit(stream, operation)

    def _read(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        offset_bytes: int,
        out: HostMemory,
        guard: Guard | None,
    ) -> None:
        source = cast("VulkanMemory", buffer.payload)
        with self._at(stream, position):
            operation = Download(
                position, guard, self._allocator, source, offset_bytes, out
            )
        self._submit(stream, operation)

    def _copy(
        self,
        stream: StreamState,
        position: int,
        source: Resource,
        target: Resource,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        read = cast("VulkanMemory", source.payload)
        written = cast("VulkanMemory", target.payload)
        self._submit(stream, Copy(position, guard, read, written, byte_size))

    def _fill(
        self,
        stream: StreamState,
        position: int,
        buffer: Resource,
        pattern: bytes,
        byte_size: int,
        guard: Guard | None,
    ) -> None:
        target = cast("VulkanMemory", buffer.payload)
        with self._at(stream, position):
            repeated = Pattern(pattern, byte_size)
            operation = Fill(position, guard, self._allocator, target, repeated)
        self._submit(stream, operation)

    def _prepare(
        self,
        request: LaunchRequest,
        artifact: Resource | None,
        buffers: list[Resource | None],
    ) -> object:
        assert artifact is not None
        memories = [
            cast("VulkanMemory", buffer.payload)
            for buffer in buffers
            if buffer is not None
        ]
        kernel = cast("VulkanKernel", artifact.payload)
        return VulkanLaunch(self._device, kernel, request, memories)

    def _launch(
        self,
        stream: StreamState,
        position: int,
        prepared: PreparedLaunch,
        guard: Guard | None,
    ) -> None:
        launch = cast("VulkanLaunch", prepared.payload)
        # What a processor runs is better recorded together where it is submitted so.
        is_apart = not (self._gathering and self._device.chosen.is_software)
        recorder = self._recorder if is_apart else None
        on = cast("VulkanStream", stream)
        if (
            on.pending
            or on.blocked_at
            or launch.kernel.can_fail
            or self.is_debugging  # whose errors name the operation
        ):
            self._submit(
                on,
                Launch(position, guard, launch, prepared.label, self._words, recorder),
            )
        else:
            self._submit_launch(on, position, launch, prepared.label, guard, recorder)

    def _open_stream(self, priority: int, name: str) -> StreamState:
        queue = self._queue_for(priority)
        line = VulkanTimeline(name, self)
        return VulkanStream(line, queue, self._copying, priority)

    def _open_event(self, *, has_timing: bool) -> EventState:
        return VulkanEvent(has_timing=has_timing, source=self._clock.source)

    def _record(self, stream: StreamState, position: int, event: EventState) -> None:
        marked = cast("VulkanEvent", event)
        marked.ticks = None
        marked.recorded = Mark(position, marked, self._clock)
        marked.recorded_on = cast("VulkanStream", stream)
        self._submit(stream, marked.recorded)

    def _stream_wait(
        self, stream: StreamState, position: int, event: EventState
    ) -> None:
        marked = cast("VulkanEvent", event)
        assert marked.recorded is not None
        assert marked.recorded_on is not None
        self._submit(stream, WaitFor(position, marked.recorded, marked.recorded_on))

    def _elapsed_ns(self, start: EventState, end: EventState) -> float | None:
        return self._clock.elapsed_ns(
            cast("VulkanEvent", start), cast("VulkanEvent", end)
        )

    def _pass(self, stream: StreamState, position: int) -> None:
        self._submit(stream, Nothing(position))

    def _free(self, resource: Resource) -> None:
        if self._lost is not None:  # it goes with the device
            return
        if resource.kind is ObjectKind.BUFFER:
            self._allocator.give_back(cast("VulkanMemory", resource.payload))
        elif resource.kind is ObjectKind.ARTIFACT:
            cast("VulkanKernel", resource.payload).close()
        elif resource.kind is ObjectKind.GRAPH:
            self._close_graph(cast("VulkanGraph", resource.payload))
        elif resource.kind is ObjectKind.STREAM:
            cast("VulkanStream", resource.payload).queue.streams -= 1

    def _find_for_launch(self, handle: Handle) -> Resource | None:
        return self._table.get(handle)
