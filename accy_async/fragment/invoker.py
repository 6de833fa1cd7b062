"""Invoking a loaded fragment with arrays, as many times at once as lanes allow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.lowlevel

from accy_async.backends.array import DeviceArray
from accy_async.backends.cleanup import Cleanup
from accy_async.backends.loops import uninterrupted
from accy_async.compiler.tracing.calls import counted, given
from accy_async.errors import LaunchArgumentMismatch, SessionClosed
from accy_async.fragment.arguments import take_array
from accy_async.fragment.lane import Lane
from accy_async.fragment.memory import Buffers, write_constants
from accy_async.fragment.signature import Signature
from accy_async.graph.options import LaunchOptions, check_options
from accy_async.observe.protocol import Observer, new_id, state_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.artifact.planned import ArtifactPlan
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import Handle, LoadedArtifact, StreamHandle
    from accy_async.dtypes import ScalarArgument
    from accy_async.errors import AccyError
    from accy_async.fragment.arguments import HostArray
    from accy_async.fragment.streams import FragmentStreams
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["Invoker", "Tap"]

_PLAIN = LaunchOptions()


class Tap(Protocol):
    """Told of a fragment's next invocation; fails with nothing but cancellations."""

    async def begin(
        self,
        arguments: Sequence[DeviceArray | HostArray],
        options: LaunchOptions,
        stream: StreamHandle,
    ) -> None:
        """An invocation begins, and awaits this: its arguments, scalars, stream."""

    def end(self, why: AccyError) -> None:
        """There will be none."""


@uninterrupted
class Invoker:
    """The lanes of one loaded fragment. For one event loop.

    Args:
        backend: the device.
        plan: the fragment's.
        graph: its graph.
        kernels: its kernels, made and loaded, by their entries.
        streams: what invocations run on.
        grace_s: how long cleanup may wait for the device, in seconds.
        observer: told of every invocation, as of a run.
        check_open: refuses what is no longer possible; None if nothing is.

    Attributes:
        graph: what invocations launch that begin from now on.
        taps: each is told of the next invocation, before it submits anything; or,
            where there will be none, of that.
    """

    def __init__(
        self,
        backend: Backend,
        plan: ArtifactPlan,
        graph: LaunchGraphPlan,
        kernels: Mapping[int, tuple[KernelArtifact, LoadedArtifact]],
        streams: FragmentStreams,
        grace_s: float,
        observer: Observer | None,
        check_open: Callable[[str], None] | None,
    ) -> None:
        self._backend = backend
        self._plan = plan
        self.graph = graph
        self._kernels = kernels
        self._streams = streams
        self._grace_s = grace_s
        self._observer = observer
        self._check_open = check_open
        self._signature = Signature.of(plan)
        self._constants = Buffers(backend, f"constants of {plan.name!r}")
        self._making_constants = anyio.Lock()
        self._has_constants = False
        # Twice as many as streams, so that one invocation's copies hide behind others.
        self._places = anyio.Semaphore(2 * streams.limit)
        self._idle: list[Lane] = []
        self._running: dict[Lane, StreamHandle] = {}
        self._is_closed = False
        self.taps: list[Tap] = []

    @property
    def in_flight(self) -> int:
        """Invocations going on."""
        return len(self._running)

    async def invoke(
        self, arguments: Sequence[object], scalars: tuple[ScalarArgument, ...] = ()
    ) -> list[DeviceArray | HostArray]:
        """Run the fragment once; see `LoadedFragment.invoke`."""
        taken = self._take(arguments)
        options = _PLAIN
        if scalars or self.graph.runtime_scalar_count:
            options = LaunchOptions(runtime_scalars=scalars)
            check_options(self._backend, self.graph, options)
        self._check()
        self._streams.require_here("calling a fragment")
        try:
            self._places.acquire_nowait()
        except anyio.WouldBlock:
            await self._places.acquire()
        try:
            self._check()
            if not self._has_constants:
                await self._make_constants()
            return await self._run(taken, options)
        finally:
            self._places.release()

    async def _run(
        self, taken: Sequence[DeviceArray | HostArray], options: LaunchOptions
    ) -> list[DeviceArray | HostArray]:
        to_host = not any(isinstance(one, DeviceArray) for one in taken)
        lane = self._idle.pop() if self._idle else self._open_lane()
        stream = self._running[lane] = self._streams.take()
        told = None if self._observer is None else self._begin()
        try:
            while self.taps:
                await self.taps.pop().begin(taken, options, stream)
            results = await lane.run(
                self.graph, taken, options, stream, to_host=to_host
            )
        except BaseException as error:
            self._end(told, error)
            if self._is_closed:
                self._end_taps()
            await self._abandon(lane, stream, error)
            raise
        del self._running[lane]
        self._streams.give_back(stream)
        if self._is_closed:
            lane.close()
        else:
            self._idle.append(lane)
        self._end(told, None)
        return results

    def wait_for(self) -> Callable[[], Awaitable[None]] | None:
        """Waits for what is in flight, silent about failures; None if nothing is."""
        backend = self._backend
        marks = [backend.mark(stream) for stream in self._running.values()]
        if all(mark.is_reached for mark in marks) or not backend.is_healthy:
            return None

        async def wait() -> None:
            for mark in marks:
                await mark.wait_reached()

        return wait

    def detach(self) -> list[Handle]:
        """What it has, for others to destroy; lanes in use go when they are done."""
        self._is_closed = True
        self._end_taps()
        handles: list[Handle] = []
        while self._idle:
            handles += self._idle.pop().detach()
        handles += self._constants.detach()
        return handles

    def _take(self, arguments: Sequence[object]) -> list[DeviceArray | HostArray]:
        wanted = self._signature.arguments
        if len(arguments) != len(wanted):
            raise LaunchArgumentMismatch(
                f"{self._plan.name!r} takes {counted(len(wanted), 'array')}, "
                f"{given(len(arguments), ())}"
            )
        backend = self._backend
        return [
            take_array(backend, argument, slot.slot, slot.title)
            for argument, slot in zip(arguments, wanted, strict=True)
        ]

    def _check(self) -> None:
        if self._check_open is not None:
            self._check_open("calling a fragment")
        if self._is_closed:
            raise self._closed()

    def _end_taps(self) -> None:
        while self.taps:
            self.taps.pop().end(self._closed())

    def _closed(self) -> SessionClosed:
        return SessionClosed(f"fragment {self._plan.name!r} was closed")

    def _open_lane(self) -> Lane:
        return Lane(
            self._backend,
            self.graph,
            self._kernels,
            self._signature,
            self._constants,
        )

    async def _make_constants(self) -> None:
        """Upload what all lanes share, once.

        Cancellation: what was allocated is destroyed.
        """
        async with self._making_constants:
            if self._has_constants:
                return
            self._check()
            stream = self._streams.take()
            try:
                write_constants(self._backend, self._plan, self._constants, stream)
                if len(self._constants):
                    await self._backend.wait_stream(stream)
            except BaseException as error:
                handles: list[Handle] = [
                    *self._streams.give_up(stream),
                    *self._constants.detach(),
                ]
                await self._leave(error, stream, handles)
                raise
            self._streams.give_back(stream)
            self._has_constants = True

    async def _abandon(
        self, lane: Lane, stream: StreamHandle, primary: BaseException
    ) -> None:
        """Wait for what is in flight for the grace, destroy the lane, and raise."""
        del self._running[lane]
        handles: list[Handle] = [*self._streams.give_up(stream), *lane.detach()]
        await self._leave(primary, stream, handles)

    async def _leave(
        self, primary: BaseException, stream: StreamHandle, handles: list[Handle]
    ) -> None:
        backend = self._backend
        is_idle = (
            not backend.is_healthy
            or not backend.is_alive(stream)
            or backend.is_stream_idle(stream)
        )
        await Cleanup(backend, f"fragment {self._plan.name!r}", self._grace_s).leave(
            primary,
            wait=None if is_idle else lambda: backend.wait_stream(stream),
            handles=handles,
        )

    def _begin(self) -> int:
        assert self._observer is not None
        run_id = new_id()
        self._observer.run_started(run_id, self._plan.name, len(self.graph.nodes), 0)
        return run_id

    def _end(self, told: int | None, error: BaseException | None) -> None:
        if told is not None and self._observer is not None:
            self._observer.run_finished(told, 0, state_of(error), error)
