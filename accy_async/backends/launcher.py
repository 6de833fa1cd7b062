"""A kernel bound to its stream and its arguments, to be launched again and again.

The shortest way to the device that there is: everything that a launch could look up
was looked up before. What stays is what keeps the contract, that objects know their
uses, that what was destroyed is refused, and that errors name the kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from accy_async.backends.handles import BufferBinding
from accy_async.dtypes import ScalarArgument
from accy_async.errors import InvalidType, LaunchArgumentMismatch

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.launch import LaunchRequest

__all__ = ["GeneralLauncher", "Launcher"]


class Launcher(ABC):
    """One kernel on one stream, launched as often as its owner likes.

    Made by `Backend.bind_launch`, which checks everything once. It owns no object
    that it uses: one that is destroyed is refused by the next launch.

    A change of an argument counts for the launches submitted after it. Threads may
    share a launcher, and see to it themselves which launch gets which arguments.

    Attributes:
        submit: launches the kernel, and returns its position on the stream's timeline
            (the last one's for a grid of no blocks). A plain function without
            arguments, so that a loop can keep it in a variable of its own.

            Raises `InvalidArtifact`, `InvalidBuffer`, `InvalidStream` where something
            that it uses is not alive any more, and whatever the device says.
        run: launches the kernel, and returns once it has ended: the quickest way to
            await one, as it is known at the launch that somebody waits. A function
            without arguments, likewise, whose answer is to be awaited.

            Raises what `submit` does, before it lets anybody else run, and
            `DeviceError` where the launch failed. Cancellation: only the wait stops;
            the work goes on.
    """

    __slots__ = ("_buffers", "_request", "_scalars", "run", "submit")

    def __init__(
        self,
        request: LaunchRequest,
        submit: Callable[[], int],
        run: Callable[[], Awaitable[None]],
    ) -> None:
        self._request = request
        self._buffers = list(request.buffers)
        self._scalars = list(request.scalars)
        self.submit = submit
        self.run = run

    @property
    def request(self) -> LaunchRequest:
        """What it launches by now."""
        return attrs.evolve(
            self._request, buffers=tuple(self._buffers), scalars=tuple(self._scalars)
        )

    def set_scalar(self, index: int, value: ScalarArgument | float) -> None:
        """Give a scalar argument another value.

        Args:
            index: which of the scalar arguments, from 0.
            value: an argument of the same type, or a number that this type holds.

        Raises:
            LaunchArgumentMismatch: there is no such argument, or it has another type.
            InvalidType, OutOfRange: the type does not hold the value.
        """
        dtype = self._scalars[self._check(index, self._scalars, "scalar")].dtype
        if not isinstance(value, ScalarArgument):
            value = ScalarArgument(dtype, value)
        elif value.dtype is not dtype:
            raise LaunchArgumentMismatch(
                f"kernel {self._name!r}: scalar {index} is of type {dtype.value}, "
                f"not {value.dtype.value}"
            )
        self._put_scalar(index, value)

    def set_buffer(self, index: int, binding: BufferBinding) -> None:
        """Put another buffer in the place of one.

        The one before stays in use as far as it was launched with, and no further.

        Args:
            index: which of the buffer arguments, from 0.
            binding: the buffer, and how the kernel uses it.

        Raises:
            LaunchArgumentMismatch: there is no such argument.
            InvalidBuffer: the buffer is not alive, or another backend's.
        """
        self._check(index, self._buffers, "buffer")
        if not isinstance(binding, BufferBinding):
            raise InvalidType(
                "binding", binding, "a BufferBinding, as an array's binding() gives"
            )
        self._put_buffer(index, binding)

    @abstractmethod
    def _put_scalar(self, index: int, value: ScalarArgument) -> None:
        """Use a value that fits, from the next launch on."""

    @abstractmethod
    def _put_buffer(self, index: int, binding: BufferBinding) -> None:
        """Use a buffer from the next launch on, if it is alive."""

    @property
    def _name(self) -> str:
        return self._request.artifact.kernel_name

    def _check(self, index: int, arguments: Sequence[object], what: str) -> int:
        if type(index) is int and 0 <= index < len(arguments):
            return index
        raise LaunchArgumentMismatch(
            f"kernel {self._name!r} has {len(arguments)} {what} arguments, "
            f"none of index {index!r}"
        )


class GeneralLauncher(Launcher):
    """A launcher on any backend: what changes is prepared anew."""

    __slots__ = ("_backend", "_current")

    def __init__(self, backend: Backend, request: LaunchRequest) -> None:
        self._backend = backend
        self._current = current = [backend.prepare_launch(request)]
        launch, stream = backend.submit_launch, request.stream

        async def run() -> None:
            await backend.wait_stream(stream, launch(current[0], stream))

        super().__init__(request, lambda: launch(current[0], stream), run)

    def _put_scalar(self, index: int, value: ScalarArgument) -> None:
        scalars = [*self._scalars[:index], value, *self._scalars[index + 1 :]]
        self._prepare(attrs.evolve(self.request, scalars=tuple(scalars)))
        self._scalars = scalars

    def _put_buffer(self, index: int, binding: BufferBinding) -> None:
        buffers = [*self._buffers[:index], binding, *self._buffers[index + 1 :]]
        self._prepare(attrs.evolve(self.request, buffers=tuple(buffers)))
        self._buffers = buffers

    def _prepare(self, request: LaunchRequest) -> None:
        self._current[0] = self._backend.prepare_launch(request)
