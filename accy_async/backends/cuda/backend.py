"""The CUDA backend: the contract's hooks, carried out by the driver."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from accy_async.artifact.formats import BackendKind
from accy_async.backends.base import DEFAULT_GRACE_S
from accy_async.backends.cleanup import do_all
from accy_async.backends.contract.checks import check_grace, check_memory_limit
from accy_async.backends.cuda.conditions import Conditions
from accy_async.backends.cuda.context import CudaContext
from accy_async.backends.cuda.debugging import SynchronousDriver
from accy_async.backends.cuda.driver import STICKY_CODES, DriverError, driver_error
from accy_async.backends.cuda.exchange import CudaExchange
from accy_async.backends.cuda.graphs import CudaGraph, CudaGraphs
from accy_async.backends.cuda.launching import CudaLaunching
from accy_async.backends.cuda.memory import (
    BorrowedMemory,
    DeviceMemory,
    DevicePool,
    PinnedPool,
)
from accy_async.backends.cuda.modules import LateUnloads, load_kernel
from accy_async.backends.cuda.objects import CudaEvent, CudaStream
from accy_async.backends.cuda.peers import CudaPeers
from accy_async.backends.cuda.timeline import CudaTimeline
from accy_async.backends.cuda.waiting import CudaWaiting
from accy_async.backends.handles import Handle, ObjectKind
from accy_async.backends.hooks import EventState, StreamState
from accy_async.backends.resources import Resource
from accy_async.errors import AccyError, DeviceError

if TYPE_CHECKING:
    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.backends.capabilities import Capabilities

__all__ = ["CudaBackend"]


def _nothing() -> None:
    """What is done on the host at a position that only has to be noticed."""


class CudaBackend(CudaWaiting, CudaLaunching, CudaPeers, CudaExchange, CudaGraphs):
    """One NVIDIA GPU.

    Args:
        device: its index, or its UUID as ``GPU-...``, which ``nvidia-smi -L`` lists.
        grace_s: how long cleanup waits for the device, in seconds.
        memory_limit_bytes: what all buffers may take together; None for no limit
            but the device's.
        debug: True to wait for each operation where it is submitted, so that an error
            names the very launch that caused it. Submitting then blocks. So does
            ``CUDA_LAUNCH_BLOCKING=1`` in the environment, as for other libraries.

    Raises:
        BackendUnavailable: no driver or no device; the message says what to do.
        InvalidValue: no such device.
    """

    loads_block: ClassVar[bool] = True
    writes_block: ClassVar[bool] = True
    asks_guards: ClassVar[bool] = False

    def __init__(
        self,
        device: int | str = 0,
        *,
        grace_s: float = DEFAULT_GRACE_S,
        memory_limit_bytes: int | None = None,
        debug: bool = False,
    ) -> None:
        check_grace("CudaBackend", grace_s)
        check_memory_limit("CudaBackend", memory_limit_bytes)
        self._context = CudaContext(device)
        with ExitStack() as undo:
            undo.callback(self._context.release)
            self._open(memory_limit_bytes, undo, debug=debug)
            super().__init__(BackendKind.CUDA, grace_s=grace_s)
            undo.pop_all()
        self._context.on_loss = self._on_loss

    def _open(
        self, memory_limit_bytes: int | None, undo: ExitStack, *, debug: bool
    ) -> None:
        """Make what the first stream needs; ``undo`` gets what gives it back."""
        self._driver = self._context.driver
        self.is_debugging = debug or os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
        if self.is_debugging:
            self._driver = SynchronousDriver(self._driver)
        self._launch_kernel = self._driver.cuLaunchKernelEx
        self._success = self._driver.CUresult.CUDA_SUCCESS
        self._pool = DevicePool(self._context, memory_limit_bytes)
        undo.callback(self._pool.close)
        self._pinned = PinnedPool(self._context)
        undo.callback(self._pinned.close)
        self._open_words(self._pinned)
        self._unloads = LateUnloads(self._context)
        self._conditions = Conditions(self._context)
        self._accesses = weakref.WeakKeyDictionary()
        self._admitted = []
        self._is_given_back = False

    @property
    def capabilities(self) -> Capabilities:
        """What the device is and can do."""
        return self._context.capabilities

    @property
    def uuid(self) -> str:
        """The device's UUID, as ``GPU-...``: opens it again, whatever its index."""
        return self._context.uuid

    def _memory_statistics(self) -> dict[str, int]:
        return self._pool.statistics()

    def _trim(self, keep_bytes: int) -> None:
        self._pool.trim(keep_bytes)

    def _end(self) -> None:
        """Give the context back, or have the hub do so when nothing is in use."""
        lines = [cast("CudaTimeline", line) for line in self._timelines()]
        busy = [line for line in lines if not line.is_idle]  # asks the driver
        self._table.sweep()
        self._give_back()
        if not self._is_given_back:  # then the hub tries again when these are done
            for line in busy or lines:
                line.finish_with(line.submitted, _nothing)

    def _after_makers(self) -> None:
        self._after_completion()

    def _give_back(self) -> None:
        """End the hub and give the context back, if nothing is in use any more."""
        with self._lock:
            if self._is_given_back:
                return
            if self._makers:  # the last of them tries again
                return
            if self._lost is not None:  # what there was went with the context
                self._is_given_back = True
                self._hub.close()
                return
            # `close` may still be at it: the hub must not be faster.
            if self._table.living() or self._reaper:
                return
            standing = (self._default, *self._exchange)
            if not all(state.timeline.is_idle for state in standing):
                return
            self._is_given_back = True
            self._hub.close()
            streams = [
                partial(self._close_stream, cast("CudaStream", state))
                for state in standing
            ]
            do_all(
                "giving the device back",
                (
                    self._take_back_access,
                    partial(self._unloads.unload, self._note_refusal),
                    self._conditions.unload,
                    *streams,
                    self._close_exchange,
                    self._pool.close,
                    self._pinned.close,
                    self._context.release,
                ),
            )

    def _unload_if_idle(
        self, refused: Callable[[Resource, Exception], object] | None = None
    ) -> None:
        """Unload what was to be unloaded, if nothing is at work on the device.

        Args:
            refused: told of each kernel that the driver refuses; kept for whose it was
                if left out.
        """
        if not self._unloads or self._lost is not None:
            return
        with self._lock:  # no submission comes between
            if not self._unloads:  # the device was given back meanwhile
                return
            lines = self._timelines()
            if all(line.is_idle for line in lines) and self._is_context_idle():
                self._unloads.unload(refused or self._note_refusal)

    def _note_refusal(self, kernel: Resource, error: Exception) -> None:
        what = f"unloading the module of {kernel.name}, which was destroyed before"
        self._table.refusals.note(kernel.owner, error, what)

    def _unload(self, kernel: Resource) -> None:
        """Unload a kernel's module, now or when the device stands still.

        Raises:
            AccyError: the driver refused it now.
        """
        mine: list[Exception] = []

        def refused(other: Resource, error: Exception) -> None:
            if other is kernel:
                mine.append(error)
            else:
                self._note_refusal(other, error)

        self._unloads.add(kernel)
        self._unload_if_idle(refused)
        if mine:
            raise mine[0]

    def _tidy(self) -> None:
        self._unload_if_idle()

    # Hooks

    def _load(self, artifact: KernelArtifact) -> object:
        self._context.make_current()
        return load_kernel(self._context, artifact)

    def _allocate(self, byte_size: int, alignment: int) -> object:
        self._context.make_current()
        return self._pool.allocate(byte_size, alignment)

    def _open_stream(self, priority: int, name: str) -> StreamState:
        self._context.make_current()
        native = self._call(
            self._driver.cuStreamCreateWithPriority(1, priority),
            "cuStreamCreateWithPriority",
        )
        return self._make_stream(name, priority, native)

    def _open_event(self, *, has_timing: bool) -> EventState:
        self._context.make_current()
        flags = 0 if has_timing else 2  # CU_EVENT_DISABLE_TIMING
        native = self._call(self._driver.cuEventCreate(flags), "cuEventCreate")
        return CudaEvent(has_timing=has_timing, native=native)

    def _record(self, stream: StreamState, position: int, event: EventState) -> None:
        native = cast("CudaStream", stream).native
        self._submit(
            "cuEventRecord", cast("CudaEvent", event).native, native, stream=stream
        )

    def _stream_wait(
        self, stream: StreamState, position: int, event: EventState
    ) -> None:
        on, awaited = cast("CudaStream", stream), cast("CudaEvent", event)
        self._submit("cuStreamWaitEvent", on.native, awaited.native, 0, stream=stream)
        if awaited.finisher is not None:
            on.flags.finish_with(position, awaited.finisher)

    def _elapsed_ns(self, start: EventState, end: EventState) -> float:
        answer = self._driver.cuEventElapsedTime(
            cast("CudaEvent", start).native, cast("CudaEvent", end).native
        )
        return 1e6 * float(self._call(answer, "cuEventElapsedTime"))

    def _free(self, resource: Resource) -> None:
        if self._lost is not None:  # it went with the context
            if isinstance(resource.payload, (BorrowedMemory, CudaStream)):
                resource.payload.keeper = None
            return
        driver = self._driver
        self._context.make_current()
        if isinstance(resource.payload, BorrowedMemory):
            resource.payload.keeper = None
        elif resource.kind is ObjectKind.BUFFER:
            self._pool.free(cast("DeviceMemory", resource.payload))
        elif resource.kind is ObjectKind.ARTIFACT:
            self._unload(resource)
        elif resource.kind is ObjectKind.GRAPH:
            self._close_graph(cast("CudaGraph", resource.payload))
        elif resource.kind is ObjectKind.STREAM:
            self._close_stream(cast("CudaStream", resource.payload))
        else:
            native = cast("CudaEvent", resource.payload).native
            self._call(driver.cuEventDestroy(native), "cuEventDestroy")

    def _find_for_launch(self, handle: Handle) -> Resource | None:
        return self._table.get(handle)

    # Within

    def _submit(self, call: str, *arguments: object, stream: StreamState) -> None:
        self._context.make_current()
        stream.journal.note(stream.timeline.submitted, None)  # type: ignore[union-attr]
        answer = getattr(self._driver, call)(*arguments)
        if answer[0] != 0:
            raise self._blame(answer[0], call, stream)

    def _call(self, answer: Any, call: str) -> Any:  # noqa: ANN401
        return self._context.check(answer, call)

    def _on_loss(self, error: DriverError) -> DeviceError:
        """The context is gone, as a call found that need not have to do with it.

        It is the one who is told, where it raises what this gives.
        """
        lost = self._lose(error)
        self._is_loss_told = True
        return lost.consequence()

    def _blame(
        self,
        result: Any,  # noqa: ANN401
        call: str,
        stream: StreamState,
        *,
        kernel: str | None = None,
        node: str | None = None,
    ) -> AccyError:
        """The error of a submission; one that takes the context loses the device.

        Nothing else says so of an operation before it, unless each was waited for.
        """
        if int(result) in STICKY_CODES and not self.is_debugging:
            return self._context.error(result, call)
        error = driver_error(self._driver, result, call)
        if not isinstance(error, DriverError):
            return error
        blamed = DeviceError(
            error.message,
            code=error.code,
            call=call,
            node=node,
            kernel=kernel,
            stream=stream.id,
        )
        if error.code not in STICKY_CODES:
            return blamed
        lost = self._lose(blamed)
        told = lost.copy()
        told.__cause__ = lost.__cause__
        return told
