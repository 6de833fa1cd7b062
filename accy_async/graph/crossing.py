"""Running plans whose nodes are on several devices.

The same executive as for one device, with streams, events and kernels of each. An
edge from one device to another is an event that the other's stream waits for; where
it cannot, the host waits before it submits what is behind the edge, and with it
everything that comes later in the order of submission.

Such a run is not lowered: a device graph is one device's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from accy_async.backends.joined import joined_backend
from accy_async.errors import LaunchArgumentMismatch
from accy_async.graph.clock import DeviceClock, Stamp
from accy_async.graph.executive import GraphExecutive
from accy_async.graph.slices import laid_out

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from accy_async.backends.base import Backend
    from accy_async.backends.handles import EventHandle, StreamHandle
    from accy_async.backends.joined import JoinedBackend
    from accy_async.backends.origins import Origin
    from accy_async.backends.streampool import StreamPool
    from accy_async.graph.bindings import Binding
    from accy_async.graph.job import Job
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.prepared import PreparedGraph
    from accy_async.graph.run import Run
    from accy_async.graph.whereabouts import Whereabouts
    from accy_async.observe.protocol import Observer

__all__ = ["CrossingExecutive"]


class CrossingExecutive(GraphExecutive):
    """Runs plans on several devices.

    Args:
        devices: their backends, or an owner's views of them.
        pools: the pool of streams of each.
        max_in_flight: operations that all such runs may have in flight together.
        grace_s: how long a cancelled run may wait for the devices, in seconds.
    """

    def __init__(
        self,
        devices: Sequence[Backend],
        pools: Sequence[StreamPool],
        max_in_flight: int,
        grace_s: float,
    ) -> None:
        backend = joined_backend(devices)
        self._joined = cast("JoinedBackend", backend)
        self._pools = _Pools(self._joined, pools)
        super().__init__(
            backend, cast("StreamPool", self._pools), max_in_flight, grace_s
        )
        self._idle_on: dict[Origin, list[EventHandle]] = {
            one.origin: [] for one in devices
        }

    def start(
        self,
        group: TaskGroup,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding] | None,
        options: LaunchOptions,
        observer: Observer | None = None,
        places: Whereabouts | None = None,
        prepared: PreparedGraph | None = None,
    ) -> Run:
        """Start a run in a task of the group; see `GraphExecutive.start`.

        Raises:
            LaunchArgumentMismatch: also where the options name a stream, or an event
                that not all of the devices can wait for.
        """
        if options.stream is not None:
            raise LaunchArgumentMismatch(
                f"options.stream: the plan runs on {self._joined.device}, and a stream "
                "is of one device"
            )
        for event in options.wait_events:
            of = self._joined.of(event)
            for device in self._joined.devices:
                if not (device is of or device.can_wait_for(of)):
                    raise LaunchArgumentMismatch(
                        f"options.wait_events: {device.device} cannot wait for an "
                        f"event of {of.device}: await it before the run"
                    )
        if options.signal_event is not None:
            of = self._joined.of(options.signal_event)
            for device in self._joined.devices:
                if not (device is of or of.can_wait_for(device)):
                    raise LaunchArgumentMismatch(
                        f"options.signal_event: {of.device} cannot wait for "
                        f"{device.device}, which the plan runs on too: await the run"
                    )
        return super().start(group, plan, bindings, options, observer, places, prepared)

    async def _lease(self, job: Job) -> None:
        """Have streams on each device; waits for none, as for a single one.

        Where others have them, the run makes do with as many on each as there are on
        the device that has fewest.
        """
        assert job.places is not None
        job.max_streams = self._pools.limit
        layout = await laid_out(job.plan, job.max_streams, job.places)
        fewest = job.max_streams
        for device, count in enumerate(layout.most_on):
            wanted = [
                priority
                for priority, on in zip(
                    layout.stream_priorities, layout.stream_devices, strict=True
                )
                if on == device
            ]
            wanted = [*wanted, *[0] * count][:count]
            pool = self._pools.of[device]
            for place, priority in enumerate(wanted):
                if place == 0:
                    stream: StreamHandle | None = pool.lease_or_share(priority)
                else:
                    stream = pool.lease_nowait(priority)
                if stream is None:
                    fewest = min(fewest, place)
                    break
                job.leased.append(stream)
        job.max_streams = fewest
        job.streams = job.leased
        job.progress.use_streams(
            [self._backend.mark(stream).timeline for stream in job.streams]
        )

    def _signal(self, job: Job, event: EventHandle) -> None:
        """Record the event on a stream of its device, behind all of the others."""
        backend, reached, number = self._backend, job.progress.reached, self._joined
        first = next(
            lane
            for lane, stream in enumerate(job.streams)
            if number.of(stream) is number.of(event)
        )
        take = job.take_event(self._new_event)
        for lane, stream in enumerate(job.streams):
            if lane != first:
                joined = take(stream)
                reached(lane, backend.record_event(joined, stream))
                reached(first, backend.stream_wait_event(job.streams[first], joined))
        reached(first, backend.record_event(event, job.streams[first]))

    def _make_clock(self) -> DeviceClock:
        return cast("DeviceClock", _Clocks(self._joined))

    def _keep_events(self, events: list[EventHandle]) -> None:
        for event in events:
            assert event.origin is not None
            self._idle_on[event.origin].append(event)

    def _new_event(self, stream: StreamHandle) -> EventHandle:
        assert stream.origin is not None
        idle = self._idle_on[stream.origin]
        return idle.pop() if idle else self._joined.of(stream).create_event()


class _Pools:
    """The pools of several devices, as an executive uses one."""

    def __init__(self, joined: JoinedBackend, pools: Sequence[StreamPool]) -> None:
        self._joined = joined
        self.of = tuple(pools)
        self.limit = min(pool.limit for pool in pools)

    def give_back(self, stream: StreamHandle) -> bool:
        """Return a stream to its device's pool."""
        return self.of[self._joined.number_of(stream)].give_back(stream)


class _Clocks:
    """The clocks of several devices: every time is taken, and read, on one of them.

    Each is laid over the host's clock by itself, so that times of two devices can be
    compared as the host's, and none is ever counted from another device's event.
    """

    def __init__(self, joined: JoinedBackend) -> None:
        self._joined = joined
        self._of: dict[Backend, DeviceClock] = {}

    def takes(self, stream: StreamHandle) -> bool:
        """Whether the stream's device asks no guards."""
        return not self._joined.of(stream).asks_guards

    def begin(self, stream: StreamHandle) -> Stamp:
        """See `DeviceClock.begin`."""
        device = self._joined.of(stream)
        clock = self._of.get(device)
        if clock is None:
            clock = self._of[device] = DeviceClock(device)
        return clock.begin(stream)

    def end(self, stamp: Stamp, stream: StreamHandle) -> int:
        """See `DeviceClock.end`."""
        return stamp.clock.end(stamp, stream)

    def read(self, stamp: Stamp) -> tuple[int, int]:
        """See `DeviceClock.read`."""
        return stamp.clock.read(stamp)

    def forget(self, stamp: Stamp, *, is_past: bool = False) -> None:
        """See `DeviceClock.forget`."""
        stamp.clock.forget(stamp, is_past=is_past)
