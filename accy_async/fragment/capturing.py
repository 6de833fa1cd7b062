"""Taking a copy of what an invocation works on, while it goes its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from accy_async.backends.array import DeviceArray
from accy_async.backends.closing import ClosedOnExit
from accy_async.backends.writing import submit_write
from accy_async.errors import AccyError

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferHandle, StreamHandle
    from accy_async.backends.timeline import Mark
    from accy_async.fragment.arguments import HostArray
    from accy_async.fragment.bindings import InvocationBindings
    from accy_async.fragment.invoker import Tap
    from accy_async.graph.options import LaunchOptions

__all__ = ["InvocationCapture"]


class InvocationCapture(ClosedOnExit):
    """Bindings that get the arguments of a fragment's next call.

    From `LoadedFragment.capture_invocation`; from then on the next call copies its
    arguments once more, on its own stream and before its kernels, and ends after
    that. It waits for nothing else, and does not fail where a copy does. An async
    context manager, which owns the bindings: `aclose` destroys them.
    """

    def __init__(
        self, backend: Backend, bindings: InvocationBindings, taps: list[Tap]
    ) -> None:
        self._backend = backend
        self._bindings = bindings
        self._taps = taps
        self._begun = anyio.Event()
        self._mark: Mark | None = None
        self._error: AccyError | None = None
        taps.append(self)

    async def wait(self) -> InvocationBindings:
        """Await the next call, and the copies that it makes.

        Returns:
            The bindings: inputs, constants and runtime scalars are those of the call,
            outputs and scratch undefined.

        Raises:
            AccyError: the copies could not be made, or failed, as did the call then.
            SessionClosed: the fragment was closed before there was a call.

        Cancellation: only the wait stops.
        """
        await self._backend.wait_default_stream()  # constants
        await self._begun.wait()
        if self._error is not None:
            raise self._error
        mark = self._mark
        assert mark is not None
        await mark.wait_reached()
        failed = mark.timeline.error_at(mark.position)
        if failed is not None:
            raise failed.copy() from failed.__cause__
        return self._bindings

    async def aclose(self) -> None:
        """Take part in no call, and destroy the bindings. Idempotent.

        Raises:
            AccyError: the device refused to destroy something.

        Cancellation: shielded from it; what a copy still uses the reaper frees.
        """
        if self in self._taps:
            self._taps.remove(self)
        self._bindings.close()
        await anyio.lowlevel.cancel_shielded_checkpoint()

    # As a `Tap`

    async def begin(
        self,
        arguments: Sequence[DeviceArray | HostArray],
        options: LaunchOptions,
        stream: StreamHandle,
    ) -> None:
        """The call begins.

        Cancellation: the call after it is listened to instead.
        """
        bindings = self._bindings
        try:
            for slot_id, given in zip(
                bindings.plan.input_slot_ids, arguments, strict=True
            ):
                own = bindings.binding(slot_id).handle
                await self._copy(given, own, stream)
            bindings.runtime_scalars = options.runtime_scalars
            self._mark = self._backend.mark(stream)
        except AccyError as error:
            self._error = error  # told to who waits here, not to who calls
        except BaseException:
            if not bindings.is_closed:
                self._taps.append(self)
            raise
        self._begun.set()

    async def _copy(
        self,
        given: DeviceArray | HostArray,
        own: BufferHandle,
        stream: StreamHandle,
    ) -> None:
        backend = self._backend
        if isinstance(given, DeviceArray):
            backend.copy_buffer(
                given.handle, own, byte_size=own.byte_size, stream=stream
            )
            return
        await submit_write(backend, own, given, stream, name="capture")

    def end(self, why: AccyError) -> None:
        """There will be no call."""
        self._error = why
        self._begun.set()
