"""The parts of a launch graph, as values: slots, operations, nodes, edges, loops.

A graph names its buffers by *slot* and gets them bound when it is run, so that
one plan serves many runs. Names are the graph's identities: slots, nodes, loops
and events each have their own name space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.fingerprint import ADDED
from accy_async.backends.handles import BufferAccess, buffer_access
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import InvalidType, InvalidValue
from accy_async.values import (
    enum,
    field_name,
    instances,
    integer,
    optional,
    packed_bytes,
    text,
    to_integer,
    to_integers,
    to_tuple,
    tuple_of,
)

if TYPE_CHECKING:
    from typing import Any

    from attrs import Attribute

__all__ = [
    "BufferSlot",
    "BufferUse",
    "CopyBuffer",
    "CopyFromDevice",
    "CopyToDevice",
    "EventSignal",
    "EventWait",
    "Fill",
    "HostCall",
    "HostSlot",
    "KernelCall",
    "LaunchGraphDependency",
    "LaunchGraphLoop",
    "LaunchGraphLoopCarry",
    "LaunchGraphNode",
    "Operation",
    "RuntimeScalar",
]

_NAMES = tuple_of(str, expected="names (str)")
_PRIORITY = integer(-(2**31), 2**31 - 1)


def _shape(value: int | Sequence[int]) -> tuple[int, ...]:
    value = to_integer(value)
    return (value,) if isinstance(value, int) else to_integers(value)


def _check_shape(
    instance: object, attribute: Attribute[Any], value: tuple[int, ...]
) -> None:
    expected = "a tuple of integers of at least 0"
    tuple_of(int, expected=expected)(instance, attribute, value)
    if any(extent < 0 for extent in value):
        raise InvalidValue(field_name(instance, attribute), value, expected)


@attrs.frozen
class BufferSlot:
    """A buffer of the graph, of at most 2^63 - 1 bytes.

    Attributes:
        name: its name.
        dtype: element type.
        shape: extents, outermost first; an int for one dimension.
        is_scratch: True for the run to allocate it and free it; False for the
            caller to bind it.
        device: the name of the device it is on, as in ``cuda:1``; None leaves that to
            what is bound and to who uses it.
    """

    name: str = attrs.field(validator=text())
    dtype: DType = attrs.field(validator=enum(DType))
    shape: tuple[int, ...] = attrs.field(converter=_shape, validator=_check_shape)
    is_scratch: bool = attrs.field(
        default=False, kw_only=True, validator=instances(bool)
    )
    device: str | None = attrs.field(
        default=None, kw_only=True, validator=optional(text()), metadata=ADDED
    )

    def __attrs_post_init__(self) -> None:
        packed_bytes("BufferSlot.shape", self.shape, self.dtype.size_bytes)

    @property
    def byte_size(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * self.dtype.size_bytes


@attrs.frozen
class HostSlot:
    """Host memory that the graph copies from or to; the caller binds an array.

    Attributes:
        name: its name.
        dtype: element type.
        shape: extents, outermost first; an int for one dimension. It takes at most
            2^63 - 1 bytes.
    """

    name: str = attrs.field(validator=text())
    dtype: DType = attrs.field(validator=enum(DType))
    shape: tuple[int, ...] = attrs.field(converter=_shape, validator=_check_shape)

    def __attrs_post_init__(self) -> None:
        packed_bytes("HostSlot.shape", self.shape, self.dtype.size_bytes)

    @property
    def byte_size(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * self.dtype.size_bytes


@attrs.frozen
class BufferUse:
    """A buffer slot as one kernel uses it.

    Attributes:
        slot: its name.
        access: how the kernel uses it.
        declared: the slot itself, where a builder's reference made the use: a builder
            takes none that is another's.
    """

    slot: str = attrs.field(validator=text())
    access: BufferAccess = attrs.field(
        default=BufferAccess.READ_WRITE,
        converter=buffer_access,
        validator=enum(BufferAccess),
    )
    declared: BufferSlot | None = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen
class RuntimeScalar:
    """The run's runtime scalar of that index, given in its launch options."""

    index: int = attrs.field(validator=integer())


@attrs.frozen(kw_only=True)
class KernelCall:
    """Launch a kernel.

    Attributes:
        entry: the kernel.
        buffers: its buffers, in its order.
    """

    entry: KernelCallArtifact = attrs.field(validator=instances(KernelCallArtifact))
    buffers: tuple[BufferUse, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(BufferUse, expected="BufferUse values"),
    )

    def __attrs_post_init__(self) -> None:
        if len(self.buffers) != self.entry.buffer_argument_count:
            raise InvalidValue(
                "KernelCall.buffers",
                self.buffers,
                f"the {self.entry.buffer_argument_count} buffers that "
                f"{self.entry.target!r} takes",
            )


@attrs.frozen(kw_only=True)
class CopyToDevice:
    """Copy a host slot over a buffer slot of the same size."""

    source: str = attrs.field(validator=text())
    target: str = attrs.field(validator=text())


@attrs.frozen(kw_only=True)
class CopyFromDevice:
    """Copy a buffer slot over a host slot of the same size."""

    source: str = attrs.field(validator=text())
    target: str = attrs.field(validator=text())


@attrs.frozen(kw_only=True)
class CopyBuffer:
    """Copy a buffer slot over another of the same size, on this device or another."""

    source: str = attrs.field(validator=text())
    target: str = attrs.field(validator=text())


@attrs.frozen(kw_only=True)
class Fill:
    """Write one value to every element of a buffer slot; of the slot's dtype."""

    target: str = attrs.field(validator=text())
    value: ScalarArgument = attrs.field(validator=instances(ScalarArgument))


def _check_callable(instance: object, attribute: Attribute[Any], value: object) -> None:
    if not callable(value):
        raise InvalidType(
            field_name(instance, attribute), value, "a function, sync or async"
        )


@attrs.frozen(kw_only=True)
class HostCall:
    """Call a function on the host: async ones as a task, others on a thread.

    The function takes no argument. What depends on the node waits for it to
    return; what it depends on has finished on the device before it is called.

    Attributes:
        function: what to call.
        reads, writes: the buffer and host slots it uses, for the order between
            it and the nodes that use them too.
    """

    function: Callable[[], object] = attrs.field(validator=_check_callable)
    reads: tuple[str, ...] = attrs.field(
        default=(), converter=to_tuple, validator=_NAMES
    )
    writes: tuple[str, ...] = attrs.field(
        default=(), converter=to_tuple, validator=_NAMES
    )


@attrs.frozen
class EventWait:
    """Wait on the device for a named event."""

    event: str = attrs.field(validator=text())


@attrs.frozen
class EventSignal:
    """Signal a named event once what the node depends on is done."""

    event: str = attrs.field(validator=text())


Operation = (
    KernelCall
    | CopyToDevice
    | CopyFromDevice
    | CopyBuffer
    | Fill
    | HostCall
    | EventWait
    | EventSignal
)
_OPERATIONS = instances(
    KernelCall,
    CopyToDevice,
    CopyFromDevice,
    CopyBuffer,
    Fill,
    HostCall,
    EventWait,
    EventSignal,
)
_RUNTIME_SCALARS = tuple_of(
    ScalarArgument, RuntimeScalar, expected="ScalarArgument or RuntimeScalar values"
)


@attrs.frozen(kw_only=True)
class LaunchGraphNode:
    """One operation of a graph.

    Attributes:
        name: its name; ``run[name]`` awaits it.
        operation: what it does.
        stream: a label; nodes of one label run on one stream, in the plan's
            order. None leaves the choice to the layout.
        priority: of its stream; 0 is normal, lower is more urgent. None follows
            the nodes around it.
        wait_events: named events to wait for on the device before it.
        signal_event: a named event to signal after it.
        runtime_scalars: a kernel's scalars, in its order; none takes the
            entry's defaults.
        tuning_candidate: which of the entry's launch candidates to use; None
            for the first.
        device: the name of the device it runs on; None for that of its buffers.
    """

    name: str = attrs.field(validator=text())
    operation: Operation = attrs.field(validator=_OPERATIONS)
    stream: str | None = attrs.field(default=None, validator=optional(text()))
    priority: int | None = attrs.field(default=None, validator=optional(_PRIORITY))
    wait_events: tuple[str, ...] = attrs.field(
        default=(), converter=to_tuple, validator=_NAMES
    )
    signal_event: str | None = attrs.field(default=None, validator=optional(text()))
    runtime_scalars: tuple[ScalarArgument | RuntimeScalar, ...] = attrs.field(
        default=(), converter=to_tuple, validator=_RUNTIME_SCALARS
    )
    tuning_candidate: int | None = attrs.field(
        default=None, validator=optional(integer())
    )
    device: str | None = attrs.field(default=None, validator=optional(text()))

    @property
    def is_host(self) -> bool:
        """True for a call on the host, which the device cannot order."""
        return isinstance(self.operation, HostCall)

    def uses(self) -> tuple[tuple[str, BufferAccess], ...]:
        """The slots the node reads and writes, buffer and host slots alike."""
        operation = self.operation
        if isinstance(operation, KernelCall):
            return tuple((use.slot, use.access) for use in operation.buffers)
        if isinstance(operation, (CopyToDevice, CopyFromDevice, CopyBuffer)):
            return (
                (operation.source, BufferAccess.READ_ONLY),
                (operation.target, BufferAccess.WRITE_ONLY),
            )
        if isinstance(operation, Fill):
            return ((operation.target, BufferAccess.WRITE_ONLY),)
        if isinstance(operation, HostCall):
            return (
                *((slot, BufferAccess.READ_ONLY) for slot in operation.reads),
                *((slot, BufferAccess.READ_WRITE) for slot in operation.writes),
            )
        return ()


@attrs.frozen
class LaunchGraphDependency:
    """An edge: ``after`` starts when ``before`` has finished. Both name nodes."""

    before: str = attrs.field(validator=text())
    after: str = attrs.field(validator=text())


@attrs.frozen
class LaunchGraphLoopCarry:
    """A value that a loop carries from one iteration to the next.

    What an iteration leaves in ``next`` the following one finds in ``current``.
    The two slots swap their buffers; nothing is copied.

    After the loop the last iteration's value is in ``current`` (after no
    iteration, what was there before): which of two bound arrays that is,
    `Run.binding` tells.
    """

    current: str = attrs.field(validator=text())
    next: str = attrs.field(validator=text())


@attrs.frozen(kw_only=True)
class LaunchGraphLoop:
    """A range of the plan's nodes that repeats.

    Edges into or out of the range are edges of the loop as a whole. Loops nest.
    Exactly one of ``count`` and ``condition`` is given.

    Attributes:
        name: its name; ``run[name]`` awaits its last iteration.
        first, last: the nodes that begin and end the range, in the plan's order.
        count: iterations; 0 is allowed; a `RuntimeScalar` (a u32) is resolved
            when a run starts.
        condition: a buffer slot of one i32 or u32 element: another iteration
            follows while it is not zero, looked at before each.
        max_iterations: with a condition, how many there may be at most before
            the loop fails; None for no limit.
        carries: values carried from each iteration to the next.
    """

    name: str = attrs.field(validator=text())
    first: str = attrs.field(validator=text())
    last: str = attrs.field(validator=text())
    count: int | RuntimeScalar | None = attrs.field(
        default=None, validator=optional(instances(int, RuntimeScalar))
    )
    condition: str | None = attrs.field(default=None, validator=optional(text()))
    max_iterations: int | None = attrs.field(
        default=None, validator=optional(integer(1, 2**63 - 1))
    )
    carries: tuple[LaunchGraphLoopCarry, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(
            LaunchGraphLoopCarry, expected="LaunchGraphLoopCarry values"
        ),
    )

    def __attrs_post_init__(self) -> None:
        if (self.count is None) == (self.condition is None):
            raise InvalidValue(
                "LaunchGraphLoop.count",
                self.count,
                "either a count or a condition, and not both",
            )
        if isinstance(self.count, int) and not 0 <= self.count < 2**63:
            raise InvalidValue("LaunchGraphLoop.count", self.count, "0 or more")
        if self.max_iterations is not None and self.condition is None:
            raise InvalidValue(
                "LaunchGraphLoop.max_iterations",
                self.max_iterations,
                "None for a counted loop",
            )
