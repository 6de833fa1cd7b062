"""Several devices as one, for who submits to all of them: each call finds its own.

A call goes to the device of the stream, buffer or kernel that it names. What has one
end on each of two devices becomes a wait for a peer, or a copy to it. What makes
objects is asked of a single device (`JoinedBackend.at`), which counts them as usual.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, cast

import attrs

if TYPE_CHECKING:
    from accy_async.backends.base import Backend, Settled
    from accy_async.backends.capabilities import Capabilities
    from accy_async.backends.contract.steps import LaunchStep
    from accy_async.backends.guards import Guard
    from accy_async.backends.handles import (
        BufferBinding,
        BufferHandle,
        EventHandle,
        Handle,
        StreamHandle,
    )
    from accy_async.backends.launch import LaunchRequest, PreparedLaunch
    from accy_async.backends.launcher import Launcher
    from accy_async.backends.timeline import Mark
    from accy_async.dtypes import ScalarArgument

__all__ = ["JoinedBackend", "joined_backend"]


def joined_backend(devices: Sequence[Backend]) -> Backend:
    """Several devices, for code that is written for one and names what it uses."""
    return cast("Backend", JoinedBackend(devices))


class JoinedBackend:
    """The devices together; see the module. It owns nothing, and opens nothing.

    Args:
        devices: the backends, or an owner's views of them; each another device.
    """

    def __init__(self, devices: Sequence[Backend]) -> None:
        self.devices = tuple(devices)
        self._numbers = {one.origin: i for i, one in enumerate(self.devices)}
        self.base = self
        self.asks_guards = all(one.asks_guards for one in self.devices)
        self.is_debugging = any(one.is_debugging for one in self.devices)
        # Adopting and device graphs are for one device.
        self.exchange_device = None
        self.capabilities: Capabilities = attrs.evolve(
            self.devices[0].capabilities, device_graphs=False, device_loops=False
        )

    def __repr__(self) -> str:
        return f"<JoinedBackend {', '.join(one.device for one in self.devices)}>"

    def at(self, number: int) -> Backend:
        """The device of that number."""
        return self.devices[number]

    def number_of(self, handle: Handle) -> int:
        """The number of the device that a handle is of; 0 for one made by hand."""
        return self._numbers.get(handle.origin, 0)  # type: ignore[arg-type]

    def of(self, handle: Handle | None) -> Backend:
        """The device that a handle is of; the first for the default stream."""
        if handle is None:
            return self.devices[0]
        return self.devices[self._numbers.get(handle.origin, 0)]  # type: ignore[arg-type]

    def track(self, stream: StreamHandle) -> int:
        """A number that no stream of another device has, for observers."""
        return self.number_of(stream) << 20 | stream.id

    # The devices' state

    @property
    def device(self) -> str:
        """The devices' names."""
        return ", ".join(one.device for one in self.devices)

    @property
    def is_healthy(self) -> bool:
        """True while all of them answer."""
        return all(one.is_healthy for one in self.devices)

    @property
    def is_answering(self) -> bool:
        """True while any of them answers."""
        return any(one.is_healthy for one in self.devices)

    @property
    def reaper(self) -> _Reapers:
        """What all of them hold."""
        return _Reapers(self.devices)

    def foreign(self, handle: Handle) -> str:
        """Why a handle is of none of the devices; empty if it is of one."""
        reasons = [one.foreign(handle) for one in self.devices]
        if not all(reasons):
            return ""
        theirs = reasons[0].partition(", this one is")[0]
        return f"{theirs}, the run is on {self.device}"

    def is_alive(self, handle: Handle) -> bool:
        """See `Backend.is_alive`."""
        return self.of(handle).is_alive(handle)

    def destroy(self, handle: Handle) -> bool:
        """See `Backend.destroy`."""
        return self.of(handle).destroy(handle)

    def discard(self, handle: Handle) -> bool:
        """See `Backend.discard`."""
        return self.of(handle).discard(handle)

    def object_name(self, handle: Handle) -> str:
        """See `Backend.object_name`."""
        return self.of(handle).object_name(handle)

    async def settle_whole(
        self, wait: Callable[[], Awaitable[object]], grace_s: float | None = None
    ) -> Settled:
        """See `Backend.settle_whole`."""
        return await self.devices[0].settle_whole(wait, grace_s)

    # Streams and events

    def mark(self, stream: StreamHandle | None = None) -> Mark:
        """See `Backend.mark`."""
        return self.of(stream).mark(stream)

    def record_event(
        self, event: EventHandle, stream: StreamHandle | None = None
    ) -> int:
        """See `Backend.record_event`: the event must be of the stream's device."""
        return self.of(stream).record_event(event, stream)

    def stream_wait_event(self, stream: StreamHandle | None, event: EventHandle) -> int:
        """See `Backend.stream_wait_event`; the event may be any device's."""
        on, of = self.of(stream), self.of(event)
        if on is of:
            return on.stream_wait_event(stream, event)
        return on.wait_for_peer(stream, event, of)

    def can_wait(self, stream: StreamHandle, event: EventHandle) -> bool:
        """True where the stream's device can wait for the event without the host."""
        on, of = self.of(stream), self.of(event)
        return on is of or on.can_wait_for(of)

    # Memory and launches

    def write_buffer(
        self,
        buffer: BufferHandle,
        data: object,
        *,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """See `Backend.write_buffer`."""
        return self.of(buffer).write_buffer(buffer, data, stream=stream, guard=guard)

    def read_buffer(
        self,
        buffer: BufferHandle,
        out: object,
        *,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """See `Backend.read_buffer`."""
        return self.of(buffer).read_buffer(buffer, out, stream=stream, guard=guard)

    def copy_buffer(
        self,
        source: BufferHandle,
        target: BufferHandle,
        *,
        byte_size: int | None = None,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """See `Backend.copy_buffer`; the target may be on another device."""
        on, to = self.of(source), self.of(target)
        if on is to:
            return on.copy_buffer(
                source, target, byte_size=byte_size, stream=stream, guard=guard
            )
        return on.copy_to_peer(
            source, target, to, byte_size=byte_size, stream=stream, guard=guard
        )

    def fill_buffer(
        self,
        buffer: BufferHandle,
        pattern: bytes,
        *,
        byte_size: int | None = None,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """See `Backend.fill_buffer`."""
        return self.of(buffer).fill_buffer(
            buffer, pattern, byte_size=byte_size, stream=stream, guard=guard
        )

    def prepare_launch(self, request: LaunchRequest) -> PreparedLaunch:
        """See `Backend.prepare_launch`: all must be of the kernel's device."""
        return self.of(request.loaded).prepare_launch(request)

    def renew_launch(
        self,
        prepared: PreparedLaunch,
        buffers: tuple[BufferBinding, ...],
        scalars: tuple[ScalarArgument, ...],
    ) -> PreparedLaunch:
        """See `Backend.renew_launch`."""
        return self.of(prepared.loaded).renew_launch(prepared, buffers, scalars)

    def bind_launch(self, request: LaunchRequest) -> Launcher:
        """See `Backend.bind_launch`: all must be of the kernel's device."""
        return self.of(request.loaded).bind_launch(request)

    def submit_launch(
        self,
        prepared: PreparedLaunch,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """See `Backend.submit_launch`."""
        return self.of(stream).submit_launch(prepared, stream, guard)

    def submit_steps(self, steps: Sequence[LaunchStep], positions: list[int]) -> None:
        """See `Backend.submit_steps`: each device gets what follows on it, at once.

        It stops before a step that waits for another device, which is a call of its
        own.
        """
        first = 0
        while first < len(steps):
            device = self.of(steps[first][0])
            last = first + 1
            while last < len(steps) and self.of(steps[last][0]) is device:
                last += 1
            before = len(positions)
            device.submit_steps(steps[first:last], positions)
            if len(positions) - before < last - first:
                return
            first = last


class _Reapers:
    """What the reapers of several devices hold."""

    def __init__(self, devices: Sequence[Backend]) -> None:
        self._devices = devices

    def held(self) -> tuple[str, ...]:
        """The names of the objects held, with their devices'."""
        return tuple(
            f"{name} of {one.device}"
            for one in self._devices
            for name in one.reaper.held()
        )

    def give_up(self, names: Collection[str], waited_s: float) -> None:
        """See `Reaper.give_up`."""
        for one in self._devices:
            suffix = f" of {one.device}"
            theirs = [name.removesuffix(suffix) for name in names if suffix in name]
            one.reaper.give_up(theirs, waited_s)
