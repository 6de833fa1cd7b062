"""Streams of other libraries, as the number that the CUDA driver knows them by."""

from __future__ import annotations

from accy_async.errors import ExchangeRefused, InvalidType

__all__ = ["LEGACY_DEFAULT", "THREAD_DEFAULT", "NativeStream", "stream_number"]

LEGACY_DEFAULT, THREAD_DEFAULT = 1, 2
"""CUDA Driver API: CU_STREAM_LEGACY and CU_STREAM_PER_THREAD."""

_PROTOCOL_VERSION = 0
_ATTRIBUTES = ("cuda_stream", "ptr", "handle")
"""Where PyTorch, CuPy and Numba keep a stream's handle."""


def stream_number(stream: object) -> int:
    """The driver's number of a stream; 1 for the legacy default stream.

    Args:
        stream: an object with ``__cuda_stream__`` (cuda.core, CuPy), a stream of
            PyTorch, CuPy or Numba, or the number itself. 0 is taken for the legacy
            default stream, as these libraries do.

    Raises:
        InvalidType: it is none of these.
        ExchangeRefused: it speaks a later version of the protocol.
    """
    number = _number(stream)
    if number is None:
        raise InvalidType(
            "stream", stream, "an object with __cuda_stream__, or a stream's handle"
        )
    return number or LEGACY_DEFAULT


def _number(stream: object) -> int | None:
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        answer = protocol() if callable(protocol) else protocol
        version, handle = answer
        if version != _PROTOCOL_VERSION:
            raise ExchangeRefused(
                f"stream {stream!r}: version {version} of __cuda_stream__, expected "
                f"{_PROTOCOL_VERSION}"
            )
        return int(handle)
    if isinstance(stream, int):
        return None if isinstance(stream, bool) or stream < 0 else stream
    for name in _ATTRIBUTES:
        handle = getattr(stream, name, None)
        handle = getattr(handle, "value", handle)  # a ctypes pointer, None for 0
        if handle is not None:
            try:
                return int(handle)
            except (TypeError, ValueError):
                return None
        if hasattr(stream, name):
            return 0
    return None


class NativeStream:
    """A stream of ours as other libraries take it.

    ``cupy.cuda.ExternalStream(native.handle)``, ``torch.cuda.ExternalStream(
    native.handle)``, and anything that takes ``__cuda_stream__``. It is good while
    the stream is open.

    Attributes:
        handle: the driver's number.
    """

    __slots__ = ("handle",)

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __repr__(self) -> str:
        return f"NativeStream({self.handle:#x})"

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version and handle: the protocol of cuda.core."""
        return _PROTOCOL_VERSION, self.handle
