"""What a GPU exchanges with other libraries: memory by address, streams by number."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from accy_async.backends.base import Backend
from accy_async.backends.cleanup import do_all
from accy_async.backends.cuda.driver import STICKY_CODES
from accy_async.backends.cuda.memory import BorrowedMemory, DeviceMemory
from accy_async.errors import ExchangeRefused, UnsupportedOperation
from accy_async.interop.dlpack import CUDA
from accy_async.interop.streams import LEGACY_DEFAULT

if TYPE_CHECKING:
    from accy_async.backends.cuda.context import CudaContext
    from accy_async.backends.cuda.objects import CudaStream
    from accy_async.backends.cuda.timeline import CudaTimeline
    from accy_async.backends.hooks import StreamState
    from accy_async.backends.resources import Resource

__all__ = ["CudaExchange"]

_NOT_READY = 600
_CAPTURING = frozenset(range(900, 909))
"""Another library captures a stream: CUDA Driver API, CUDA_ERROR_STREAM_CAPTURE_*."""

_CONTEXT_EVENTS_SINCE = 12050
"""The first driver with ``cuCtxRecordEvent``: CUDA 12.5."""

_LOOKS = 50
"""How often an event is looked at that is expected at once."""


def _nothing() -> None:
    """What is done on the host at a position that only has to be noticed."""


class CudaExchange(Backend):
    """The hooks of the backend that deal with other libraries."""

    exchanges_streams = True
    _context: CudaContext
    _meeting_event: Any = None

    @abstractmethod
    def _call(self, answer: Any, call: str) -> Any:  # noqa: ANN401
        """What a driver call gave."""

    @abstractmethod
    def _make_stream(self, name: str, priority: int, native: Any) -> CudaStream:  # noqa: ANN401
        """Keep a stream of the driver's."""

    @property
    def exchange_device(self) -> tuple[int, int] | None:
        """DLPack's device type and index."""
        return CUDA, self._context.index

    def _borrow(self, address: int, byte_size: int, keeper: object) -> object:
        return BorrowedMemory(address, byte_size, keeper)

    def _check_address(self, address: int) -> None:
        """Refuse what is no memory of this device."""
        self._context.make_current()
        driver = self._context.driver
        kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        code, ordinal = driver.cuPointerGetAttribute(kind, address)
        if int(code) in STICKY_CODES:
            raise self._context.error(code, "cuPointerGetAttribute")
        if int(code) != 0:
            raise ExchangeRefused(
                f"address {address:#x} is no memory of a GPU (the driver says {code!r})"
            )
        if int(ordinal) != self._context.index:
            raise ExchangeRefused(
                f"address {address:#x} is memory of GPU {int(ordinal)}, expected GPU "
                f"{self._context.index}; copy it there first"
            )

    def _address(self, buffer: Resource) -> int:
        return cast("DeviceMemory", buffer.payload).address

    def _borrow_stream(self, number: int, keeper: object) -> StreamState:
        self._context.make_current()
        driver = self._context.driver
        native = driver.CUstream(number)
        if number != LEGACY_DEFAULT:
            context = self._call(driver.cuStreamGetCtx(native), "cuStreamGetCtx")
            context = context[0] if isinstance(context, tuple) else context
            if int(context) != int(self._context.native):
                raise ExchangeRefused(
                    f"stream {number:#x} is of another GPU or context, expected the "
                    f"primary context of GPU {self._context.index}"
                )
        priority = self._call(driver.cuStreamGetPriority(native), "cuStreamGetPriority")
        state = self._make_stream(f"stream {number:#x}", int(priority), native)
        state.keeper = keeper
        return state

    def _stream_number(self, stream: StreamState) -> int:
        return cast("CudaStream", stream).number

    def _check_lending(self) -> None:
        version = self._context.driver_version
        if version < _CONTEXT_EVENTS_SINCE:
            raise UnsupportedOperation(
                f"this driver (CUDA {version // 1000}.{version % 1000 // 10}) cannot "
                "tell when other libraries are done with memory; expected CUDA 12.5 or "
                "later"
            )

    def _is_context_idle(self) -> bool:
        """True where nothing is at work in the context, other libraries' included."""
        if self._context.driver_version < _CONTEXT_EVENTS_SINCE:
            return True  # it cannot be asked
        driver, event = self._context.driver, self._event()
        call = "cuCtxRecordEvent"
        with self._context.relaxed():
            # Ends what others capture all the same; nothing less covers every stream.
            (result,) = driver.cuCtxRecordEvent(self._context.native, event)
            for _ in range(_LOOKS if result == 0 else 0):
                call = "cuEventQuery"  # the event itself takes some microseconds
                (result,) = driver.cuEventQuery(event)
                if int(result) != _NOT_READY:
                    break
        if int(result) in STICKY_CODES:
            raise self._context.error(result, call)
        return bool(result == 0)

    def _follow(self, stream: StreamState, position: int, number: int | None) -> bool:
        """Submit a wait for a stream; for all that the context was given if None.

        The latter ends captures that other libraries have under way in the context
        (CUDA Driver API, cuCtxRecordEvent): nothing less covers every stream.
        """
        cast("CudaStream", stream).journal.note(position, None)
        driver, event = self._context.driver, self._event()
        if number is None:
            answer = driver.cuCtxRecordEvent(self._context.native, event)
            if int(answer[0]) in _CAPTURING:
                return False
            self._call(answer, "cuCtxRecordEvent")
        else:
            answer = driver.cuEventRecord(event, driver.CUstream(number))
            self._call(answer, "cuEventRecord")
        native = cast("CudaStream", stream).native
        answer = driver.cuStreamWaitEvent(native, event, 0)
        self._call(answer, "cuStreamWaitEvent")
        return True

    def _lead(self, stream: StreamState, position: int, number: int) -> None:
        cast("CudaStream", stream).journal.note(position, None)
        driver, event = self._context.driver, self._event()
        answer = driver.cuEventRecord(event, cast("CudaStream", stream).native)
        self._call(answer, "cuEventRecord")
        answer = driver.cuStreamWaitEvent(driver.CUstream(number), event, 0)
        self._call(answer, "cuStreamWaitEvent")

    def _notice(self, stream: StreamState, position: int) -> None:
        cast("CudaStream", stream).journal.note(position, None)
        cast("CudaTimeline", stream.timeline).finish_with(position, _nothing)

    def _event(self) -> Any:  # noqa: ANN401
        """An event to meet at: waits are for what it marks when they are submitted."""
        self._context.make_current()
        if self._meeting_event is None:
            answer = self._context.driver.cuEventCreate(2)  # without timing
            self._meeting_event = self._call(answer, "cuEventCreate")
        return self._meeting_event

    def _close_exchange(self) -> None:
        """Destroy the events met at; nothing may wait for them any more."""
        driver = self._context.driver
        events = [self._meeting_event]
        if self._meeting is not None:
            events.append(self._meeting.native)  # type: ignore[attr-defined]
        self._meeting_event = self._meeting = None

        def destroy(event: object) -> None:
            self._call(driver.cuEventDestroy(event), "cuEventDestroy")

        do_all(
            "destroying events",
            [partial(destroy, event) for event in events if event is not None],
        )
