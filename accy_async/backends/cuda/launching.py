"""Launches on a CUDA stream: packed once, made with next to nothing beside the driver.

A launcher's `submit` is one function of Python. It takes the submission lock, makes one
comparison (was anything destroyed, lost or closed since?), one store for all the
objects it uses, the driver's call, and one store into the journal.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from accy_async.backends.base import Backend
from accy_async.backends.cuda.geometry import allow_geometry
from accy_async.backends.cuda.objects import CudaStream, LaunchArguments, MachineLaunch
from accy_async.backends.cuda.thunks import address_of
from accy_async.backends.journal import JOURNAL_MASK
from accy_async.backends.launcher import Launcher
from accy_async.backends.loops import due_turn, uninterrupted
from accy_async.backends.resources import Resource, Use
from accy_async.backends.timeline import Mark

if TYPE_CHECKING:
    from accy_async.backends.cuda.context import CudaContext
    from accy_async.backends.cuda.memory import DeviceMemory
    from accy_async.backends.cuda.modules import CudaKernel
    from accy_async.backends.cuda.timeline import CudaTimeline
    from accy_async.backends.guards import Guard
    from accy_async.backends.handles import BufferBinding
    from accy_async.backends.hooks import StreamState
    from accy_async.backends.launch import LaunchRequest, PreparedLaunch
    from accy_async.dtypes import ScalarArgument
    from accy_async.errors import AccyError

__all__ = ["CudaLauncher", "CudaLaunching"]

_OTHER_CONTEXT = frozenset({201, 400})
"""Codes of a launch on a thread where no context, or another, is current."""


_OFTEN = 16
"""Launches of a prepared launch from which on machine code makes it. Most have few."""


class _Submit(Protocol):
    """Launches, and returns the position."""

    def __call__(self, is_awaited: bool = False, /) -> int:
        """With a flag behind it if its end is awaited, or likely to be."""


class CudaLaunching(Backend):
    """The part of the backend that launches kernels."""

    _context: CudaContext
    _driver: Any
    _launch_kernel: Callable[..., tuple[Any]]
    _success: Any
    is_debugging: bool

    def _blame(
        self,
        result: Any,  # noqa: ANN401
        call: str,
        stream: StreamState,
        *,
        kernel: str | None = None,
        node: str | None = None,
    ) -> AccyError:
        raise NotImplementedError

    @abstractmethod
    def _has_ended(self, line: CudaTimeline, position: int) -> bool:
        """Whether a stream has come to a position; see `CudaAsking`."""

    @abstractmethod
    async def _ends_next(self, line: CudaTimeline, position: int) -> bool:
        """Whether it has after another turn; see `CudaAsking`."""

    @abstractmethod
    async def _wait_line(self, line: CudaTimeline, position: int) -> None:
        """Return once it has; see `CudaWaiting`."""

    @abstractmethod
    def _launching_natively(
        self, address: int | None, arguments: tuple[int, int, int], keep: object
    ) -> MachineLaunch | None:
        """What makes a launch with a flag behind it; see `CudaWaiting`."""

    def bind_launch(self, request: LaunchRequest) -> Launcher:
        """Bind a launch to its arguments and stream; see `Launches.bind_launch`."""
        if not request.geometry.block_count:
            return super().bind_launch(request)
        prepared = self.prepare_launch(request)
        with self._lock:
            stream = cast("CudaStream", self._stream(request.stream))
            held = [self._table.get(binding.handle) for binding in request.buffers]
            cast("LaunchArguments", prepared.payload).aim(stream)
            use = Use(stream.timeline)
            submit = self._submitting(prepared, stream, use)
            run = self._running(submit, stream)
            return CudaLauncher(self, prepared, submit, run, held, use)

    def _prepare(
        self,
        request: LaunchRequest,
        artifact: Resource | None,
        buffers: list[Resource | None],
    ) -> object:
        assert artifact is not None
        kernel = cast("CudaKernel", artifact.payload)
        geometry = request.geometry
        allow_geometry(self._context, kernel, request.artifact.kernel_name, geometry)
        slots = [
            cast("DeviceMemory", buffer.payload).address
            for buffer in buffers
            if buffer is not None
        ]
        slots += [scalar.slot for scalar in request.scalars]
        return LaunchArguments(self._driver, kernel.function, geometry, slots)

    def _prepare_again(
        self,
        prepared: PreparedLaunch,
        request: LaunchRequest,
        buffers: list[Resource | None],
    ) -> object:
        packed: LaunchArguments = prepared.payload  # type: ignore[assignment]
        before, count = prepared.request, len(buffers)
        slots = packed.values[: count + len(request.scalars)]
        for place, buffer in enumerate(buffers):
            if request.buffers[place] is not before.buffers[place] and buffer:
                memory: DeviceMemory = buffer.payload  # type: ignore[assignment]
                slots[place] = memory.address
        for place, scalar in enumerate(request.scalars):
            if scalar is not before.scalars[place]:
                slots[count + place] = scalar.slot
        return LaunchArguments(self._driver, packed.function, request.geometry, slots)

    def _launch(
        self,
        stream: StreamState,
        position: int,
        prepared: PreparedLaunch,
        guard: Guard | None,
    ) -> None:
        packed: LaunchArguments = prepared.payload  # type: ignore[assignment]
        on: CudaStream = stream  # type: ignore[assignment]
        if packed.native is not on.native:
            packed.aim(on)
        machine = packed.machine
        if machine is None:
            self._launch_plainly(packed, on, prepared.request)
        else:
            if on.flags.expected == position:
                code = machine.launch_flagged(on.flags, position)
            else:
                code = machine.call()
            if code > 0:
                self._launch_again(code, packed, on, prepared.request)
        on.recent[position & JOURNAL_MASK] = prepared.label

    def _launch_plainly(
        self, packed: LaunchArguments, stream: CudaStream, request: LaunchRequest
    ) -> None:
        """Launch through the bindings, until it has been often enough for better."""
        answer = self._launch_kernel(packed.config, packed.function, packed.pointer, 0)
        if answer[0] is not self._success:
            self._launch_again(answer[0], packed, stream, request)
        packed.calls += 1
        if packed.calls == _OFTEN:
            packed.machine = self._machine_for(packed, stream)

    def _launch_again(
        self,
        result: Any,  # noqa: ANN401
        packed: LaunchArguments,
        stream: StreamState,
        request: LaunchRequest,
    ) -> None:
        """What a refused launch comes to: made with our context, or an error.

        Launches do not look first whether the context is current on their thread:
        the driver does, and what it refuses has had no effect.
        """
        result = self._driver.CUresult(int(result))
        if int(result) in _OTHER_CONTEXT:
            self._context.make_current_again()
            (result,) = self._launch_kernel(
                packed.config, packed.function, packed.pointer, 0
            )
        if result != 0:
            stream.journal.note(stream.timeline.submitted, None)  # type: ignore[union-attr]
            raise self._blame(
                result,
                "cuLaunchKernelEx",
                stream,
                kernel=request.artifact.kernel_name,
                node=request.diagnostic_id,
            )

    def _submitting(
        self, prepared: PreparedLaunch, stream: CudaStream, use: Use
    ) -> _Submit:
        """A launcher's `submit`; its names are looked up here, once."""
        table, timeline, recent = self._table, stream.flags, stream.recent
        label, mask = prepared.label, JOURNAL_MASK
        packed = cast("LaunchArguments", prepared.payload)
        machine = self._machine_for(packed, stream)
        if machine is None:
            record, call = None, self._calling(packed)
        else:
            record, call = machine.record, machine.call

        def renew() -> None:
            self._renew(prepared, prepared.request.stream, use)

        def refused(code: int) -> None:
            self._launch_again(code, packed, stream, prepared.request)

        @uninterrupted
        def submit(is_awaited: bool = False) -> int:
            lock = self._lock
            # What `with` does takes twice the time. An interrupt may come right behind
            # `acquire`, or in it, while another thread has the lock.
            try:
                lock.acquire()
                if use.epoch is not table.epoch:
                    renew()
                timeline.submitted = use.position = position = timeline.submitted + 1
                if (
                    is_awaited or timeline.expected == position
                ) and record is not None:  # `MachineLaunch.launch_flagged`, in place
                    record.position = position
                    code = call()
                    if code == 0:
                        timeline.flagged = position
                else:
                    code = call()
                if code > 0:
                    refused(code)
                recent[position & mask] = label
            except BaseException:
                if record is not None:
                    record.position = 0
                try:  # it is not asked first: an interrupt could come behind that
                    lock.release()
                except RuntimeError:  # it was not had yet
                    pass
                raise
            lock.release()
            return position

        return submit

    def _running(
        self, submit: _Submit, stream: CudaStream
    ) -> Callable[[], Awaitable[None]]:
        """A launcher's `run`; as `wait_stream`, of what is known to be alive."""
        line, has_ended, ends_next = stream.flags, self._has_ended, self._ends_next

        async def run() -> None:
            position = submit(True)
            if stream.is_lent or stream.is_borrowed:
                await self._wait_mark(Mark(line, position))
                return
            if line.is_quick and not line.has_failed:
                turn = due_turn()
                if turn is not None:
                    await turn
                if has_ended(line, position) or await ends_next(line, position):
                    return
            await self._wait_line(line, position)

        return run

    def _calling(self, packed: LaunchArguments) -> Callable[[], int]:
        """What makes the driver's call through the bindings; returns its code."""
        launch, config = self._launch_kernel, packed.config
        function, pointer = packed.function, packed.pointer
        return lambda: int(launch(config, function, pointer, 0)[0])

    def _machine_for(
        self, packed: LaunchArguments, stream: CudaStream
    ) -> MachineLaunch | None:
        """What makes the driver's call without the bindings, if anything can."""
        arguments = packed.config.getPtr(), int(packed.function), packed.pointer
        address, keep = self._launch_address, packed.memory
        machine = self._launching_natively(address, arguments, keep)
        if machine is not None:
            machine.aim(stream)
        return machine

    @cached_property
    def _launch_address(self) -> int | None:
        """Where the driver's function is; None where the bindings' is to be called."""
        if self.is_debugging:
            return None
        return address_of(self._driver, "cuLaunchKernelEx")

    def exchange_buffer(
        self, launcher: CudaLauncher, index: int, binding: BufferBinding
    ) -> None:
        """Have a launcher use another buffer, and the one before no more."""
        held, use = launcher.held, launcher.use
        with self._lock:
            found, before = self._table.get(binding.handle), held[index]
            if found is not before:
                if found.arrival is not None:
                    use.epoch = None  # the next launch sees to it
                elif use.epoch is not None:
                    found.share(use)
                held[index] = found
                if before not in held:
                    before.unshare(use)
                prepared = launcher.prepared
                prepared.resources = tuple(dict.fromkeys((launcher.kernel, *held)))
            launcher.values[index] = cast("DeviceMemory", found.payload).address


class CudaLauncher(Launcher):
    """A launcher whose arguments lie where the driver reads them.

    They are changed there, as the driver copies them while it is called.

    Attributes:
        prepared: the launch, which nobody else has.
        kernel: what it launches.
        held: its buffers, in the order of the arguments.
        use: how far they are in use.
        values: its arguments, as the driver reads them.
    """

    __slots__ = ("_backend", "held", "kernel", "prepared", "use", "values")

    def __init__(
        self,
        backend: CudaLaunching,
        prepared: PreparedLaunch,
        submit: Callable[[], int],
        run: Callable[[], Awaitable[None]],
        held: list[Resource],
        use: Use,
    ) -> None:
        super().__init__(prepared.request, submit, run)
        self._backend = backend
        self.prepared = prepared
        self.kernel = cast("Resource", prepared.artifact)
        self.held = held
        self.use = use
        self.values = cast("LaunchArguments", prepared.payload).values

    def _put_scalar(self, index: int, value: ScalarArgument) -> None:
        self.values[len(self.held) + index] = value.slot
        self._scalars[index] = value

    def _put_buffer(self, index: int, binding: BufferBinding) -> None:
        self._backend.exchange_buffer(self, index, binding)
        self._buffers[index] = binding
