"""Private buffers: what candidates write, so that nothing of the caller's is written.

A buffer that candidates write is replaced by one of our own. Where it is read as
well, ours has the caller's contents before each launch; where it is only written, it
is poisoned before it is checked, so that what a candidate leaves out is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from accy_async.backends.handles import BufferBinding, BufferHandle
from accy_async.errors import LaunchArgumentMismatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from accy_async.backends.base import Backend
    from accy_async.backends.handles import StreamHandle
    from accy_async.backends.launch import LaunchRequest
    from accy_async.dtypes import DType
    from accy_async.tuning.measuring.candidate import Candidate, ResultCheck

__all__ = ["POISON", "Workspace", "first_wrong"]

POISON = 0xFF
"""Every byte of a poisoned buffer: not a number in every float, -1 in integers."""

_MOST_COMPARED = 1 << 20


@attrs.define
class _Private:
    """One of our buffers, in place of one of the caller's."""

    original: BufferHandle
    places: tuple[int, ...]
    is_read: bool
    buffer: BufferHandle | None = None


class Workspace:
    """The buffers of one measurement.

    Args:
        backend: where they are.
        candidates: which are to use them.

    Raises:
        LaunchArgumentMismatch: the candidates do not take the same buffers.
    """

    def __init__(self, backend: Backend, candidates: Sequence[Candidate]) -> None:
        self._backend = backend
        self._flush: BufferHandle | None = None
        first = candidates[0]
        for candidate in candidates[1:]:
            if _buffers(candidate.request) != _buffers(first.request):
                raise LaunchArgumentMismatch(
                    f"candidates {first.name!r} and {candidate.name!r} take different "
                    "buffers"
                )
        self._private = _private_of([one.request for one in candidates])

    @property
    def restores(self) -> bool:
        """Whether anything has to be restored before a launch."""
        return any(one.is_read for one in self._private)

    @property
    def handles(self) -> tuple[BufferHandle, ...]:
        """Our buffers that are open."""
        ours = [one.buffer for one in self._private]
        return tuple(one for one in (*ours, self._flush) if one is not None)

    def open(self, flush_bytes: int = 0) -> None:
        """Allocate our buffers, and one of ``flush_bytes`` to flush caches with.

        Raises:
            OutOfMemory: there is no room; what was allocated is in `handles`.
        """
        for one in self._private:
            one.buffer = self._backend.allocate_buffer(one.original.byte_size)
        if flush_bytes:
            self._flush = self._backend.allocate_buffer(flush_bytes)

    def abandon(self) -> tuple[BufferHandle, ...]:
        """Take no part in what a kernel still does to our buffers: they are left.

        Returns:
            What is to be destroyed; `open` allocates others.
        """
        handles = self.handles
        for one in self._private:
            one.buffer = None
        self._flush = None
        return handles

    def bind(self, request: LaunchRequest) -> LaunchRequest:
        """The launch on our buffers."""
        buffers: list[BufferBinding] = list(request.buffers)
        for one in self._private:
            assert one.buffer is not None
            for place in one.places:
                buffers[place] = attrs.evolve(buffers[place], handle=one.buffer)
        return attrs.evolve(request, buffers=tuple(buffers), stream=None)

    def restore(self, stream: StreamHandle) -> None:
        """Give what is read and written the caller's contents."""
        for one in self._private:
            if one.is_read and one.buffer is not None and one.original.byte_size:
                self._backend.copy_buffer(one.original, one.buffer, stream=stream)

    def flush(self, stream: StreamHandle) -> None:
        """Overwrite what the device's caches hold."""
        if self._flush is not None:
            self._backend.fill_buffer(self._flush, b"\0", stream=stream)

    def prepare_check(self, stream: StreamHandle) -> None:
        """Restore what is read, and poison what is only written."""
        self.restore(stream)
        for one in self._private:
            if not one.is_read and one.buffer is not None and one.original.byte_size:
                self._backend.fill_buffer(one.buffer, bytes([POISON]), stream=stream)

    def read_results(self, stream: StreamHandle) -> dict[int, NDArray[np.uint8]]:
        """Begin to read every written buffer, by its first place among the arguments.

        The arrays hold them once the stream has come so far.
        """
        results = {}
        for one in self._private:
            assert one.buffer is not None
            out = np.empty(one.original.byte_size, np.uint8)
            if out.nbytes:
                self._backend.read_buffer(one.buffer, out, stream=stream)
            results[one.places[0]] = out
        return results


def first_wrong(
    got: NDArray[np.uint8],
    expected: NDArray[np.uint8],
    dtype: DType | None,
    check: ResultCheck,
) -> int | None:
    """The first element that is not as expected, None where all are.

    Equal bits are equal. Floats may differ by the check's tolerance; not a number is
    right only where just these bits are expected.
    """
    if got.nbytes != expected.nbytes:
        return min(got.nbytes, expected.nbytes)
    width = 1 if dtype is None else dtype.size_bytes
    count = got.nbytes // width
    wrong = (got != expected)[: count * width].reshape(count, width).any(axis=1)
    if dtype is not None and dtype.is_float and wrong.any():
        left, right = (
            _numbers(data[: count * width], dtype) for data in (got, expected)
        )
        with np.errstate(invalid="ignore", over="ignore"):
            sizes = np.abs(right)
            largest = sizes.max(initial=0.0, where=np.isfinite(sizes))
            bound = np.maximum(
                max(check.absolute, check.of_largest * largest),
                check.relative * np.maximum(np.abs(left), sizes),
            )
            is_near = np.isfinite(bound) & (np.abs(left - right) <= bound)
            wrong &= ~is_near & (left != right)
    found = np.flatnonzero(wrong)
    return int(found[0]) if len(found) else None


def _numbers(data: NDArray[np.uint8], dtype: DType) -> NDArray[np.float64]:
    if dtype.value == "bf16":
        wide = data.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).astype(np.float64)
    numbers: NDArray[np.float64] = data.view(dtype.numpy).astype(np.float64)
    return numbers


def _buffers(request: LaunchRequest) -> list[tuple[int, int]]:
    return [(one.handle.id, one.byte_size) for one in request.buffers]


def _private_of(requests: Sequence[LaunchRequest]) -> tuple[_Private, ...]:
    """A buffer for each of the caller's that any candidate writes, aliases together."""
    found: list[_Private] = []
    buffers = requests[0].buffers
    seen: set[int] = set()
    for place, binding in enumerate(buffers):
        if place in seen:
            continue
        same = tuple(
            other
            for other in range(place, len(buffers))
            if buffers[other].is_same_buffer(binding)
        )
        seen.update(same)
        accesses = [
            request.buffers[other].access for request in requests for other in same
        ]
        if any(access.writes for access in accesses):
            reads = any(access.value != "write_only" for access in accesses)
            found.append(_Private(binding.handle, same, reads))
    return tuple(found)
