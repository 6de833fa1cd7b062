"""Every error accy_async raises, in one hierarchy.

Strategy, so that a handler knows what to catch:

* Input that is wrong in itself raises at construction: `InvalidValue` (also a
  `ValueError`), its special cases `InvalidType` (also a `TypeError`) and
  `OutOfRange` (also an `OverflowError`).
* Values that are right alone but do not fit together raise before anything is
  allocated or launched: `InvalidArtifact`, `InvalidProgram`, `LaunchArgumentMismatch`,
  `UnsupportedOperation`, `CapabilityMismatch`, `GraphError`.
* What the device or its driver reports is a `DeviceError`; memory it has not
  got is `OutOfMemory`; a device that is not there is `RuntimeUnavailable`.
* You closed it: `SessionClosed`. The world broke it: `DeviceLost`.
* Several at once, or an error during the cleanup that another error or a
  cancellation began, arrive as an `ExceptionGroup` of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Self

__all__ = [
    "AccyError",
    "BackendUnavailable",
    "CapabilityMismatch",
    "CompilationError",
    "DeviceError",
    "DeviceLost",
    "ExchangeRefused",
    "ForkedProcess",
    "GraceExpired",
    "GraphError",
    "InterfaceMissing",
    "InvalidArtifact",
    "InvalidBuffer",
    "InvalidEvent",
    "InvalidGraph",
    "InvalidPipeline",
    "InvalidProgram",
    "InvalidStream",
    "InvalidType",
    "InvalidValue",
    "KernelEntryMissing",
    "LaunchArgumentMismatch",
    "OutOfMemory",
    "OutOfRange",
    "PassFailed",
    "ReadBufferDestinationTooSmall",
    "RuntimeUnavailable",
    "SessionClosed",
    "WrongEventLoop",
    "Suspect",
    "TuningStopped",
    "UnsupportedOperation",
    "WorkerLost",
    "WorkerRefused",
]


class AccyError(Exception):
    """The common base of every error this package raises."""


class InvalidValue(AccyError, ValueError):
    """A field was given a value it cannot hold.

    Attributes:
        field: the field's qualified name, as ``Class.field``.
        value: what was given.
        expected: what would have been accepted, in words.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"{field}: got {_brief(value)}, expected {expected}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.field, self.value, self.expected), self.__dict__


class InvalidType(InvalidValue, TypeError):
    """A field was given a value of a type it does not take."""


class OutOfRange(InvalidValue, OverflowError):
    """A number does not fit the width or sign of its declared type."""


class InvalidArtifact(AccyError, ValueError):
    """An artifact, entry or pipeline is malformed or inconsistent.

    Attributes:
        offset: byte offset of the fault in a binary payload, if it has one.
    """

    def __init__(self, message: str, *, offset: int | None = None) -> None:
        self.offset = offset
        super().__init__(message if offset is None else f"{message} (at byte {offset})")


class InvalidPipeline(InvalidValue, InvalidArtifact):
    """A pipeline contradicts itself: an index, a count or a name is out of place."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        InvalidValue.__init__(self, field, value, expected)
        self.offset = None


class InvalidProgram(AccyError, ValueError):
    """A tensor program contradicts itself: shapes, dtypes or values do not fit.

    Attributes:
        operation: the operation that is refused, if it is one.
    """

    def __init__(self, message: str, *, operation: str | None = None) -> None:
        self.operation = operation
        super().__init__(message)

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.operation is None else f"{self.operation}: {message}"


class UnsupportedOperation(AccyError):
    """The backend, format or device has no way to do what was asked."""


class KernelEntryMissing(InvalidArtifact, UnsupportedOperation):
    """A registry holds no entry for a target, version and format.

    It is both: the pipeline does not fit its registry (`InvalidArtifact`), and
    the operation has no kernel in that format (`UnsupportedOperation`).
    """


class CapabilityMismatch(UnsupportedOperation):
    """The device lacks a dtype, feature or limit that the kernel requires."""


class InvalidBuffer(AccyError, ValueError):
    """A buffer handle is unknown, freed, foreign, or accessed out of bounds."""


class ExchangeRefused(InvalidBuffer, BufferError):
    """An array cannot be taken from, or given to, another library as it is."""


class InterfaceMissing(ExchangeRefused, AttributeError):
    """An array does not offer a protocol: to who asks, as if it were not there."""


class InvalidStream(AccyError, ValueError):
    """A stream handle is unknown, destroyed, or of another backend."""


class InvalidEvent(AccyError, ValueError):
    """An event is unknown, destroyed, foreign, or not in the state required."""


class InvalidGraph(AccyError, ValueError):
    """A device graph is unknown, destroyed, foreign, or uses what was destroyed."""


class ReadBufferDestinationTooSmall(InvalidBuffer):
    """The host memory given to a read is smaller than what is read."""


class LaunchArgumentMismatch(AccyError, ValueError):
    """Operands, scalars, pools or scratch do not fit what is launched."""


class OutOfMemory(AccyError, MemoryError):
    """The device or the host had no memory left for a request.

    Attributes:
        requested_bytes: the size that could not be had, if known.
    """

    def __init__(self, message: str, *, requested_bytes: int | None = None) -> None:
        self.requested_bytes = requested_bytes
        super().__init__(message)


class RuntimeUnavailable(AccyError, RuntimeError):
    """A runtime, driver or loader is absent, or refused to load something."""


class BackendUnavailable(RuntimeUnavailable):
    """The named backend cannot run here; the message says what to do."""


class CompilationError(AccyError):
    """A compiler refused its input.

    Attributes:
        log: the compiler's own words.
        source: the name of the source that it complains of first, or None.
        line: the line there, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        log: str = "",
        source: str | None = None,
        line: int | None = None,
    ) -> None:
        self.log = log
        self.source = source
        self.line = line
        super().__init__(f"{message}\n{log}" if log else message)


class PassFailed(AccyError):
    """A pass of preparation refused a program; ``__cause__`` says why.

    Attributes:
        pipeline: the phase, as ``tensor``.
        pass_name: the pass, as ``einsum_lowering``.
        kind: ``pass`` where the pass refused what it was given, ``verifier`` where
            what it made contradicts itself (a bug of ours: please report it).
        target_op: the operation that it was at, as ``einsum``, or None.
        location: the source line that the operation was traced from, or None.
        worker_count: threads that ran the pass.
    """

    def __init__(
        self,
        message: str,
        *,
        pipeline: str,
        pass_name: str,
        kind: str = "pass",
        target_op: str | None = None,
        location: str | None = None,
        worker_count: int = 1,
    ) -> None:
        self.message = message
        self.pipeline = pipeline
        self.pass_name = pass_name
        self.kind = kind
        self.target_op = target_op
        self.location = location
        self.worker_count = worker_count
        at = "" if target_op is None else f" at {target_op}"
        at += "" if location is None else f" ({location})"
        super().__init__(f"{pipeline}.{pass_name}{at}: {message}")

    def __reduce__(self) -> tuple[object, ...]:
        facts = {
            name: value for name, value in self.__dict__.items() if name != "message"
        }
        return partial(type(self), **facts), (self.message,)


class Suspect(NamedTuple):
    """A launch that may have caused an error.

    Args:
        node: the graph node or diagnostic id, or None.
        kernel: the kernel's entry name.
        stream: the id of its stream, None for the default stream.
    """

    node: str | None
    kernel: str
    stream: int | None

    def __str__(self) -> str:
        where = "the default stream" if self.stream is None else f"stream {self.stream}"
        if self.node is None:
            return f"kernel {self.kernel} on {where}"
        return f"{self.node} (kernel {self.kernel} on {where})"


class DeviceError(AccyError, RuntimeError):
    """The device reported an error while running submitted work.

    Attributes:
        code: the backend's own error code, or None.
        call: the backend call that failed or that submitted the failed work.
        node: the graph node or diagnostic id it belongs to, or None.
        kernel: the kernel's entry name, or None.
        stream: the id of the stream, or None for the default stream.
        message: what went wrong, without these facts.
        is_consequence: True where an earlier error of the same stream or
            context caused this one; ``__cause__`` is then that error.
        suspects: where the device does not say who caused it, the launches that may
            have, in order on each stream; with a single one, the error names it.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        call: str | None = None,
        node: str | None = None,
        kernel: str | None = None,
        stream: int | None = None,
        is_consequence: bool = False,
        suspects: tuple[Suspect, ...] = (),
    ) -> None:
        self.suspects = suspects
        self.code = code
        self.call = call
        self.node = node
        self.kernel = kernel
        self.stream = stream
        self.is_consequence = is_consequence
        self.message = message
        facts = [
            f"{name}={value}"
            for name, value in (
                ("call", call),
                ("kernel", kernel),
                ("node", node),
                ("stream", stream),
                ("code", code),
            )
            if value is not None
        ]
        super().__init__(f"{message} [{', '.join(facts)}]" if facts else message)

    def copy(self) -> Self:
        """The same error anew, without a traceback: one for each wait it ends."""
        return type(self)(
            self.message,
            code=self.code,
            call=self.call,
            node=self.node,
            kernel=self.kernel,
            stream=self.stream,
            is_consequence=self.is_consequence,
            suspects=self.suspects,
        )

    def consequence(self) -> Self:
        """The same error for what it took along, with its cause or itself as cause."""
        error = self.copy()
        error.is_consequence = True
        error.__cause__ = self.__cause__ or self
        return error


class DeviceLost(DeviceError):
    """The device or its context is gone; every later call fails the same way."""


class TuningStopped(DeviceLost):
    """A candidate that was measured took the device with it: tuning stopped there.

    Attributes:
        candidate: its name.
        not_tried: the names of those that were still to be tried. Nothing is known of
            them, and nothing was kept.
    """

    def __init__(
        self,
        message: str,
        *,
        candidate: str = "",
        not_tried: tuple[str, ...] = (),
        code: int | None = None,
        call: str | None = None,
        node: str | None = None,
        kernel: str | None = None,
        stream: int | None = None,
        is_consequence: bool = False,
        suspects: tuple[Suspect, ...] = (),
    ) -> None:
        super().__init__(
            message,
            code=code,
            call=call,
            node=node,
            kernel=kernel,
            stream=stream,
            is_consequence=is_consequence,
            suspects=suspects,
        )
        self.candidate = candidate
        self.not_tried = not_tried


class WorkerLost(AccyError, RuntimeError):
    """A worker of a fleet is gone, or its device is: others go on with its work.

    Attributes:
        worker: its name.
        culprit: the candidate that took it along, where that is known; else empty.
    """

    def __init__(self, message: str, *, worker: str = "", culprit: str = "") -> None:
        self.worker = worker
        self.culprit = culprit
        super().__init__(f"worker {worker}: {message}" if worker else message)


class WorkerRefused(AccyError, RuntimeError):
    """A worker of a fleet cannot do what it was asked; the message says why.

    Attributes:
        worker: its name.
    """

    def __init__(self, message: str, *, worker: str = "") -> None:
        self.worker = worker
        super().__init__(f"worker {worker}: {message}" if worker else message)


class GraphError(AccyError, ValueError):
    """A launch graph is malformed: a cycle, an unknown id, an unordered hazard."""


class SessionClosed(AccyError, RuntimeError):
    """The session or backend was closed, and then used again."""


class ForkedProcess(SessionClosed):
    """A session or backend of a parent process was used in its forked child."""


class WrongEventLoop(AccyError, RuntimeError):
    """A session was asked for what only tasks of its own event loop may do."""


class GraceExpired(AccyError, TimeoutError):
    """Cleanup gave up waiting for the device when its grace ran out.

    Nothing the device may still use was freed: the objects named here belong
    to the backend's reaper, which frees each when its last use completes.

    Attributes:
        objects: the names of the objects that were still in use.
        grace_s: the deadline that expired, in seconds.
        is_interrupted: True where an interrupt ended the wait before its deadline.
    """

    def __init__(
        self,
        what: str,
        grace_s: float,
        objects: Sequence[str],
        is_interrupted: bool = False,
    ) -> None:
        self.objects = tuple(objects)
        self.grace_s = grace_s
        self.is_interrupted = is_interrupted
        listed = ", ".join(self.objects) if self.objects else "none"
        ended = (
            f"the wait for the device was interrupted before its grace of {grace_s:g} s"
            if is_interrupted
            else f"the device did not finish within the grace of {grace_s:g} s"
        )
        super().__init__(f"{what}: {ended}; handed to the reaper, not freed: {listed}")
        self._what = what

    def __reduce__(self) -> tuple[object, ...]:
        given = (self._what, self.grace_s, self.objects, self.is_interrupted)
        return type(self), given, self.__dict__


def _brief(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a message must not fail
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= 200 else f"{text[:197]}..."
