"""Handles: names for what a backend owns, safe to copy, compare and keep.

A handle holds no resource. The backend that gave it out looks it up at each
call, and refuses one that it has destroyed or never gave out, or that another backend
gave out. One that was made by hand is of no backend yet: it is looked up in the one
that it is given to.
"""

from __future__ import annotations

from enum import Enum

import attrs

from accy_async.artifact.formats import BackendKind, backend_kind
from accy_async.backends.origins import Origin
from accy_async.errors import InvalidStream, InvalidValue
from accy_async.values import enum, instances, integer, member_of, optional, text

__all__ = [
    "BufferAccess",
    "BufferBinding",
    "BufferHandle",
    "BufferOwnership",
    "EventHandle",
    "GraphHandle",
    "Handle",
    "LoadedArtifact",
    "ObjectKind",
    "StreamHandle",
]

_ID = integer(0, 2**63 - 1)
_ORIGIN = optional(instances(Origin))
_BYTES = integer(0, 2**63 - 1)


class BufferAccess(str, Enum):
    """How a kernel uses a buffer."""

    READ_ONLY = "read_only"
    WRITE_ONLY = "write_only"
    READ_WRITE = "read_write"

    def __str__(self) -> str:
        return self.value

    @property
    def reads(self) -> bool:
        """True where the kernel may read the buffer."""
        return self is not BufferAccess.WRITE_ONLY

    @property
    def writes(self) -> bool:
        """True where the kernel may write the buffer."""
        return self is not BufferAccess.READ_ONLY


class BufferOwnership(str, Enum):
    """Who frees a buffer's memory."""

    BACKEND = "backend"
    """The backend, when the buffer is destroyed."""

    EXTERNAL = "external"
    """Somebody else; destroying the handle only forgets it."""

    def __str__(self) -> str:
        return self.value


class ObjectKind(str, Enum):
    """The kinds of objects a backend owns, as `Backend.live_objects` counts them."""

    BUFFER = "buffers"
    ARTIFACT = "artifacts"
    STREAM = "streams"
    EVENT = "events"
    GRAPH = "graphs"

    def __str__(self) -> str:
        return self.value

    @property
    def singular(self) -> str:
        """The name of one, for messages."""
        return self.value[:-1]


def buffer_access(value: BufferAccess | str) -> BufferAccess:
    """Converter: a member, or its value as text."""
    return member_of(BufferAccess, value)


def buffer_ownership(value: BufferOwnership | str) -> BufferOwnership:
    """Converter: a member, or its value as text."""
    return member_of(BufferOwnership, value)


@attrs.frozen(kw_only=True)
class BufferHandle:
    """Names device memory of ``byte_size`` bytes.

    ``is_read_only`` is True where its owner, who is somebody else, forbids writing.
    """

    id: int = attrs.field(validator=_ID)
    backend: BackendKind = attrs.field(
        converter=backend_kind, validator=enum(BackendKind)
    )
    byte_size: int = attrs.field(validator=_BYTES)
    ownership: BufferOwnership = attrs.field(
        default=BufferOwnership.BACKEND,
        converter=buffer_ownership,
        validator=enum(BufferOwnership),
    )
    is_read_only: bool = attrs.field(default=False, validator=instances(bool))
    origin: Origin | None = attrs.field(
        default=None, validator=_ORIGIN, eq=False, repr=False
    )


@attrs.frozen(kw_only=True)
class BufferBinding:
    """A buffer as one launch uses it.

    Attributes:
        handle: the buffer.
        access: how the launch uses it.
        byte_size: how much of it, from its start, the launch may touch; all of
            it if left out.
        owner: what owns the buffer, kept alive with the binding; None if whoever
            made the binding sees to that.
    """

    handle: BufferHandle = attrs.field(validator=instances(BufferHandle))
    access: BufferAccess = attrs.field(
        default=BufferAccess.READ_WRITE,
        converter=buffer_access,
        validator=enum(BufferAccess),
    )
    byte_size: int = attrs.field(
        default=attrs.Factory(
            lambda self: getattr(self.handle, "byte_size", 0), takes_self=True
        ),
        validator=_BYTES,
    )

    owner: object = attrs.field(default=None, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.byte_size > self.handle.byte_size:
            raise InvalidValue(
                "BufferBinding.byte_size",
                self.byte_size,
                f"at most the buffer's {self.handle.byte_size} bytes",
            )

        if self.handle.is_read_only and self.access.writes:
            raise InvalidValue(
                "BufferBinding.access",
                self.access.value,
                f"read_only: buffer {self.handle.id} is another library's to write",
            )

    def is_same_buffer(self, other: BufferBinding) -> bool:
        """True where both bind one buffer, whatever part of it."""
        mine, theirs = self.handle, other.handle
        return (
            mine.id == theirs.id
            and mine.backend is theirs.backend
            and (
                mine.origin is theirs.origin
                or mine.origin is None
                or theirs.origin is None
            )
        )


@attrs.frozen(kw_only=True)
class LoadedArtifact:
    """Names a kernel that a device has loaded."""

    id: int = attrs.field(validator=_ID)
    backend: BackendKind = attrs.field(
        converter=backend_kind, validator=enum(BackendKind)
    )
    kernel_name: str = attrs.field(default="", validator=text(empty=True))
    origin: Origin | None = attrs.field(
        default=None, validator=_ORIGIN, eq=False, repr=False
    )


@attrs.frozen(kw_only=True)
class StreamHandle:
    """Names a stream: work submitted to it runs in order.

    ``priority`` 0 is the normal one; lower numbers run sooner, as in CUDA. On a GPU,
    what speaks the protocol of cuda.core takes it: ``Stream.from_external(stream)``.
    """

    id: int = attrs.field(validator=_ID)
    backend: BackendKind = attrs.field(
        converter=backend_kind, validator=enum(BackendKind)
    )
    priority: int = attrs.field(default=0, validator=integer(-(2**31), 2**31 - 1))
    origin: Origin | None = attrs.field(
        default=None, validator=_ORIGIN, eq=False, repr=False
    )

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version and native handle, for another library to submit to the stream.

        See `Session.native_stream`.

        Raises:
            InvalidStream: it is not alive, or of no backend.
            UnsupportedOperation: the device has no streams of a driver.
        """
        found = None if self.origin is None else self.origin.backend
        backend = None if found is None else found()
        if backend is None:
            raise InvalidStream(f"stream {self.id}: its backend is not there")
        return backend.native_stream(self).__cuda_stream__()


@attrs.frozen(kw_only=True)
class EventHandle:
    """Names an event: a point in a stream's work that can be waited for."""

    id: int = attrs.field(validator=_ID)
    backend: BackendKind = attrs.field(
        converter=backend_kind, validator=enum(BackendKind)
    )
    has_timing: bool = attrs.field(default=False, validator=instances(bool))
    origin: Origin | None = attrs.field(
        default=None, validator=_ORIGIN, eq=False, repr=False
    )


@attrs.frozen(kw_only=True)
class GraphHandle:
    """Names a device graph: work that the device was given once, to be launched."""

    id: int = attrs.field(validator=_ID)
    backend: BackendKind = attrs.field(
        converter=backend_kind, validator=enum(BackendKind)
    )
    origin: Origin | None = attrs.field(
        default=None, validator=_ORIGIN, eq=False, repr=False
    )


Handle = BufferHandle | LoadedArtifact | StreamHandle | EventHandle | GraphHandle
