"""One kernel launch, as a backend is asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

import attrs

from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends.handles import BufferBinding, LoadedArtifact, StreamHandle
from accy_async.backends.journal import Label
from accy_async.dtypes import ScalarArgument
from accy_async.errors import InvalidArtifact, LaunchArgumentMismatch
from accy_async.values import instances, optional, text, to_tuple, tuple_of

if TYPE_CHECKING:
    from weakref import ref

    from accy_async.backends.hooks import StreamState
    from accy_async.backends.lifetimes import ResourceTable
    from accy_async.backends.resources import Resource, Use

__all__ = [
    "BoundLaunch",
    "KeptLaunch",
    "LaunchRequest",
    "PreparedLaunch",
    "refuse_foreign",
]


@attrs.frozen(kw_only=True)
class LaunchRequest:
    """A kernel, its arguments, its geometry, and the stream it runs on.

    Attributes:
        artifact: what the kernel takes.
        loaded: the kernel as the device has it.
        buffers: the kernel's buffer arguments, in order.
        scalars: its scalar arguments, in order.
        geometry: blocks, threads, dynamic shared memory.
        stream: where to run it; None for the default stream.
        diagnostic_id: a name of the caller's for error messages.
    """

    artifact: KernelArtifact = attrs.field(validator=instances(KernelArtifact))
    loaded: LoadedArtifact = attrs.field(validator=instances(LoadedArtifact))
    geometry: FixedLaunch = attrs.field(validator=instances(FixedLaunch))
    buffers: tuple[BufferBinding, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(
            BufferBinding,
            expected="BufferBinding values, as an array's binding() gives",
        ),
    )
    scalars: tuple[ScalarArgument, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(ScalarArgument, expected="ScalarArgument values"),
    )
    stream: StreamHandle | None = attrs.field(
        default=None, validator=optional(instances(StreamHandle))
    )
    diagnostic_id: str | None = attrs.field(default=None, validator=optional(text()))

    def with_arguments(
        self,
        buffers: tuple[BufferBinding, ...],
        scalars: tuple[ScalarArgument, ...],
    ) -> LaunchRequest:
        """The same with other arguments, as many; nothing of it is checked again."""
        made = object.__new__(LaunchRequest)
        put = object.__setattr__
        put(made, "artifact", self.artifact)
        put(made, "loaded", self.loaded)
        put(made, "geometry", self.geometry)
        put(made, "buffers", buffers)
        put(made, "scalars", scalars)
        put(made, "stream", self.stream)
        put(made, "diagnostic_id", self.diagnostic_id)
        return made

    def without_owners(self) -> LaunchRequest:
        """An equal one that keeps nobody's buffers alive."""
        buffers = tuple(
            one if one.owner is None else attrs.evolve(one, owner=None)
            for one in self.buffers
        )
        return self.with_arguments(buffers, self.scalars)

    def check_counts(self) -> None:
        """Refuse arguments the kernel does not take.

        Raises:
            LaunchArgumentMismatch: a count differs from the artifact's.
        """
        artifact, scalars = self.artifact, len(self.scalars)
        if (
            scalars == artifact.scalar_argument_count
            and scalars + len(self.buffers) == artifact.argument_count
        ):
            return
        for what, got, expected in (
            ("buffers", len(self.buffers), artifact.buffer_argument_count),
            ("scalars", scalars, artifact.scalar_argument_count),
        ):
            if got != expected:
                raise LaunchArgumentMismatch(
                    f"kernel {artifact.kernel_name!r} takes {expected} {what}, "
                    f"the launch gives {got}"
                )


class BoundLaunch:
    """A prepared launch on one stream: what submitting it again need not look up.

    Attributes:
        handle: the stream's, as it was given; None for the default stream.
        stream: what the backend keeps for the stream.
        use: how far the launch's objects are in use on it.
    """

    __slots__ = ("handle", "stream", "use")

    def __init__(self, handle: object, stream: StreamState, use: Use) -> None:
        self.handle = handle
        self.stream = stream
        self.use = use


NEVER: Any = BoundLaunch(object(), cast("Any", None), cast("Any", None))
"""The binding of a launch that was not submitted yet; its handle is no stream's."""

ONCE: Any = BoundLaunch(object(), cast("Any", None), cast("Any", None))
"""That of one submitted once: what comes once only is not worth binding."""


class PreparedLaunch:
    """A launch that was checked and packed once, to be submitted many times.

    Made by `Backend.prepare_launch`. It is good while the objects that it uses
    are alive, and refused afterwards.

    Attributes:
        request: what it launches; its stream is the default for submissions.
        artifact: the kernel, None where the backend takes it on trust.
        loaded: the kernel's handle.
        resources: every object that it uses.
        payload: the arguments in the backend's own form.
        label: what errors call it.
        has_blocks: False for a grid of no blocks, which is a no-op.
        owner: the table of the backend that made it; others refuse it.
        bound: the launch on the stream that it was submitted to last.
        others: the same for each stream, where it was on several.
    """

    __slots__ = (
        "artifact",
        "bound",
        "has_blocks",
        "label",
        "loaded",
        "others",
        "owner",
        "payload",
        "request",
        "resources",
    )

    def __init__(
        self,
        request: LaunchRequest,
        artifact: Resource | None,
        buffers: list[Resource | None],
        payload: object,
        owner: ResourceTable,
    ) -> None:
        self.request = request
        self.owner = owner
        self.bound: BoundLaunch = NEVER
        self.others: dict[StreamState, BoundLaunch] | None = None
        self.artifact = artifact
        self.loaded = request.loaded
        self.label = Label(request.diagnostic_id, request.artifact.kernel_name)
        self.payload = payload
        self.has_blocks = request.geometry.block_count > 0
        self.resources = _resources(artifact, buffers)

    def renewed(
        self,
        request: LaunchRequest,
        buffers: list[Resource | None],
        payload: object,
    ) -> PreparedLaunch:
        """The same kernel and geometry with other arguments."""
        made = object.__new__(PreparedLaunch)
        made.request = request
        made.owner = self.owner
        made.bound = NEVER
        made.others = None
        made.artifact = self.artifact
        made.loaded = self.loaded
        made.label = self.label
        made.payload = payload
        made.has_blocks = self.has_blocks
        made.resources = _resources(self.artifact, buffers)
        return made


KeptLaunch: TypeAlias = "tuple[ref[LaunchRequest], PreparedLaunch | None]"
"""A request that was launched, and its launch, once it came again."""


def _resources(
    artifact: Resource | None, buffers: list[Resource | None]
) -> tuple[Resource, ...]:
    """What a launch uses, each once."""
    if artifact is not None and len(buffers) == 1 and buffers[0] is not None:
        return artifact, buffers[0]
    found = dict.fromkeys([artifact, *buffers])
    found.pop(None, None)
    return tuple(cast("dict[Resource, None]", found))


def refuse_foreign(launch: PreparedLaunch, here: str) -> NoReturn:
    """Refuse a launch that another backend prepared than this one, ``here``.

    Raises:
        InvalidArtifact: it was.
    """
    origin = launch.request.loaded.origin
    there = "" if origin is None else f", of {origin.title}"
    raise InvalidArtifact(
        f"kernel {launch.request.artifact.kernel_name!r}: the launch was prepared on "
        f"another backend{there}, this one is {here}"
    )
