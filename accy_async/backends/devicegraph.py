"""Device graphs as values: what a device is given once, to launch as a whole.

A graph is a *body*: nodes in an order in which each comes after those that it
names, by their place in the body. A loop is a node with bodies of its own. What
the nodes are about (kernels, buffers, numbers) can be changed in place as long as
the *topology* stays: the kinds of the nodes, their edges, their loops.

Each value is checked when it is made, by what its handles say of their buffers, and
raises `InvalidType` or `InvalidValue` where it could not run; the body's edges are
checked when a graph is made of it, by `check_body`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import attrs
import numpy as np

from accy_async.backends.graphoperands import (
    refuse_beyond,
    refuse_no_bytes,
    refuse_no_words,
    refuse_one_buffer,
    refuse_read_only,
)
from accy_async.backends.handles import BufferHandle, EventHandle, Handle
from accy_async.backends.launch import PreparedLaunch
from accy_async.errors import InvalidType, InvalidValue
from accy_async.values import (
    MAX_BYTES,
    instances,
    integer,
    optional,
    to_tuple,
    tuple_of,
)

__all__ = [
    "GraphBody",
    "GraphBranch",
    "GraphCopy",
    "GraphDownload",
    "GraphExchange",
    "GraphFill",
    "GraphJoin",
    "GraphLoop",
    "GraphNode",
    "GraphOperation",
    "GraphRecord",
    "GraphRequest",
    "GraphUpload",
    "check_body",
    "node_count",
    "topology",
    "walk",
]


_BUFFER = instances(BufferHandle)
_SIZE = integer(0, MAX_BYTES)
_PATTERN_BYTES = (1, 2, 4, 8)


@attrs.frozen
class GraphCopy:
    """Copy a buffer's first bytes over another's."""

    source: BufferHandle = attrs.field(validator=_BUFFER)
    target: BufferHandle = attrs.field(validator=_BUFFER)
    byte_size: int = attrs.field(validator=_SIZE)

    def __attrs_post_init__(self) -> None:
        refuse_one_buffer("GraphCopy.target", self.source, self.target)
        refuse_read_only("GraphCopy.target", self.target)
        for buffer in (self.source, self.target):
            refuse_beyond("GraphCopy.byte_size", self.byte_size, buffer)

    def handles(self) -> tuple[Handle, ...]:
        """The objects that it uses."""
        return self.source, self.target


@attrs.frozen
class GraphFill:
    """Write a pattern of 1, 2, 4 or 8 bytes over a buffer's first bytes."""

    target: BufferHandle = attrs.field(validator=_BUFFER)
    pattern: bytes = attrs.field(validator=instances(bytes))
    byte_size: int = attrs.field(validator=_SIZE)

    def __attrs_post_init__(self) -> None:
        refuse_read_only("GraphFill.target", self.target)
        refuse_beyond("GraphFill.byte_size", self.byte_size, self.target)
        if len(self.pattern) not in _PATTERN_BYTES:
            raise InvalidValue("GraphFill.pattern", self.pattern, "1, 2, 4 or 8 bytes")
        if self.byte_size % len(self.pattern):
            expected = f"a multiple of the pattern's {len(self.pattern)} bytes"
            raise InvalidValue("GraphFill.byte_size", self.byte_size, expected)

    def handles(self) -> tuple[Handle, ...]:
        """The objects that it uses."""
        return (self.target,)


@attrs.frozen(eq=False)
class GraphUpload:
    """Copy an array of the host, as it is when the graph is launched, to a buffer."""

    array: np.ndarray = attrs.field(validator=instances(np.ndarray))
    target: BufferHandle = attrs.field(validator=_BUFFER)

    def __attrs_post_init__(self) -> None:
        refuse_read_only("GraphUpload.target", self.target)
        refuse_no_bytes("GraphUpload.array", self.array)
        refuse_beyond("GraphUpload.array.nbytes", self.array.nbytes, self.target)

    def handles(self) -> tuple[Handle, ...]:
        """The objects that it uses."""
        return (self.target,)


@attrs.frozen(eq=False)
class GraphDownload:
    """Copy a buffer to an array of the host, which has it when the graph is done."""

    source: BufferHandle = attrs.field(validator=_BUFFER)
    array: np.ndarray = attrs.field(validator=instances(np.ndarray))

    def __attrs_post_init__(self) -> None:
        refuse_no_bytes("GraphDownload.array", self.array)
        if not self.array.flags.writeable:
            raise InvalidValue("GraphDownload.array", "read-only", "a writable array")
        refuse_beyond("GraphDownload.array.nbytes", self.array.nbytes, self.source)

    def handles(self) -> tuple[Handle, ...]:
        """The objects that it uses."""
        return (self.source,)


@attrs.frozen
class GraphJoin:
    """Nothing but a point that nodes come before and after."""

    def handles(self) -> tuple[Handle, ...]:
        """The objects that it uses: none."""
        return ()


@attrs.frozen
class GraphRecord:
    """Record an event; not within a loop."""

    event: EventHandle = attrs.field(validator=instances(EventHandle))

    def handles(self) -> tuple[Handle, ...]:
        """The objects that it uses."""
        return (self.event,)


@attrs.frozen
class GraphExchange:
    """Exchange the first bytes of two buffers; only where a loop ends."""

    one: BufferHandle = attrs.field(validator=_BUFFER)
    other: BufferHandle = attrs.field(validator=_BUFFER)
    byte_size: int = attrs.field(validator=_SIZE)

    def __attrs_post_init__(self) -> None:
        refuse_one_buffer("GraphExchange.other", self.one, self.other)
        for name, buffer in (("one", self.one), ("other", self.other)):
            refuse_read_only(f"GraphExchange.{name}", buffer)
            refuse_beyond("GraphExchange.byte_size", self.byte_size, buffer)


def _buffers() -> tuple[BufferHandle, ...]:
    field: tuple[BufferHandle, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(BufferHandle, expected="BufferHandle values"),
    )
    return field


@attrs.frozen
class GraphLoop:
    """Bodies that take turns, again and again, each turn after the one before.

    Attributes:
        turns: the bodies; the first one comes first.
        count: how many turns there are; None where ``conditions`` decide.
        conditions: for each body a buffer of one 32-bit word: it has its turn while
            that is not zero, looked at just before; the loop ends otherwise.
        exchanges: for each body, what is exchanged, one after the other, where
            ``conditions`` or ``unless`` end the loop after a turn of it; shorter where
            nothing is after the last ones.
        limit: of a loop that conditions end, how many turns there may be at most.
        verdict: with a limit, a buffer of one 32-bit word, which is 1 afterwards where
            there would have been another turn, else 0.
        unless: the verdicts of loops within it. They are 0 when it begins, and it ends
            after a turn in which one was left, whatever count or conditions say;
            with no verdict of its own then.
    """

    turns: tuple[GraphBody, ...] = attrs.field(
        validator=tuple_of(tuple, expected="a tuple of bodies")
    )
    count: int | None = attrs.field(
        default=None, validator=optional(integer(0, MAX_BYTES))
    )
    conditions: tuple[BufferHandle, ...] = _buffers()
    exchanges: tuple[tuple[GraphExchange, ...], ...] = attrs.field(
        default=(), validator=tuple_of(tuple, expected="a tuple of tuples")
    )
    limit: int | None = attrs.field(
        default=None, validator=optional(integer(0, MAX_BYTES))
    )
    verdict: BufferHandle | None = attrs.field(
        default=None, validator=optional(_BUFFER)
    )
    unless: tuple[BufferHandle, ...] = _buffers()

    def __attrs_post_init__(self) -> None:
        turns = len(self.turns)
        if not turns:
            raise InvalidValue("GraphLoop.turns", self.turns, "at least one body")
        if self.count is None and len(self.conditions) != turns:
            expected = f"one for each of {turns} turns, where there is no count"
            raise InvalidValue("GraphLoop.conditions", self.conditions, expected)
        if len(self.exchanges) > turns:
            expected = f"at most one for each of {turns} turns"
            raise InvalidValue("GraphLoop.exchanges", self.exchanges, expected)
        if (self.limit is None) != (self.verdict is None):
            expected = "a buffer where there is a limit, and None where there is none"
            raise InvalidValue("GraphLoop.verdict", self.verdict, expected)
        refuse_no_words("GraphLoop.conditions", self.conditions)
        refuse_no_words("GraphLoop.unless", self.unless)
        if self.verdict is not None:
            refuse_no_words("GraphLoop.verdict", (self.verdict,))
            refuse_read_only("GraphLoop.verdict", self.verdict)

    def handles(self) -> tuple[Handle, ...]:
        """The objects that it uses itself."""
        moved = [one for several in self.exchanges for one in several]
        return (
            *self.conditions,
            *([] if self.verdict is None else [self.verdict]),
            *self.unless,
            *(buffer for one in moved for buffer in (one.one, one.other)),
        )


@attrs.frozen
class GraphBranch:
    """A body that runs unless one of some words is not zero, looked at just before."""

    body: GraphBody
    unless: tuple[BufferHandle, ...] = _buffers()

    def __attrs_post_init__(self) -> None:
        refuse_no_words("GraphBranch.unless", self.unless)

    def handles(self) -> tuple[Handle, ...]:
        """The objects that it uses itself."""
        return self.unless


GraphOperation = (
    PreparedLaunch
    | GraphCopy
    | GraphFill
    | GraphUpload
    | GraphDownload
    | GraphJoin
    | GraphRecord
    | GraphLoop
    | GraphBranch
)
"""What a node does. A launch of no blocks does nothing."""

_OPERATIONS = get_args(GraphOperation)


@attrs.frozen
class GraphNode:
    """One node of a body.

    Attributes:
        operation: what it does.
        after: the nodes of its body that it comes after, by their places, all
            before its own.
        number: what the launcher calls it, for its guard; -1 for none.
        name: for error messages.
        priority: of a launch, against the graph's other nodes; 0 is normal.
    """

    operation: GraphOperation
    after: tuple[int, ...] = ()
    number: int = -1
    name: str = ""
    priority: int = 0


GraphBody = tuple[GraphNode, ...]


@attrs.frozen(eq=False)
class GraphRequest:
    """What a device graph is to be made of."""

    body: GraphBody

    def has_topology_of(self, other: GraphRequest) -> bool:
        """True where the nodes of one can be changed in place to those of the other."""
        mine, theirs = self.body, other.body
        return len(mine) == len(theirs) and all(map(_are_alike, mine, theirs))

    def parts(self) -> tuple[list[PreparedLaunch], dict[Handle, None]]:
        """The launches in it, which know what they use, and what other nodes use."""
        launches: list[PreparedLaunch] = []
        handles: dict[Handle, None] = {}
        for node in walk(self.body):
            operation = node.operation
            if isinstance(operation, PreparedLaunch):
                launches.append(operation)
            else:
                handles.update(dict.fromkeys(operation.handles()))
        return launches, handles


def walk(body: GraphBody) -> Iterator[GraphNode]:
    """Every node of a body and of the bodies in it, each once, loops first."""
    for node in body:
        yield node
        if isinstance(node.operation, GraphLoop):
            for turn in node.operation.turns:
                yield from walk(turn)
        elif isinstance(node.operation, GraphBranch):
            yield from walk(node.operation.body)


def check_body(body: GraphBody, *, is_within: bool = False) -> None:
    """Refuse a body, and bodies in it, that is none or whose edges lead nowhere.

    Args:
        body: the body.
        is_within: whether it is a loop's or a branch's.

    Raises:
        InvalidType, InvalidValue: a node is none, does nothing that a graph can, comes
            after one that is not before it, or records an event where it may not.
    """
    for place, node in enumerate(body):
        if not isinstance(node, GraphNode):
            raise InvalidType(f"GraphBody[{place}]", node, "a GraphNode")
        operation, after = node.operation, node.after
        if not isinstance(operation, _OPERATIONS):
            expected = " or ".join(kind.__name__ for kind in _OPERATIONS)
            raise InvalidType("GraphNode.operation", operation, expected)
        if after and not (min(after) >= 0 and max(after) < place):
            expected = f"places before its own, which is {place}"
            raise InvalidValue("GraphNode.after", after, expected)
        if isinstance(operation, GraphLoop):
            for turn in operation.turns:
                check_body(turn, is_within=True)
        elif isinstance(operation, GraphBranch):
            check_body(operation.body, is_within=True)
        elif is_within and isinstance(operation, GraphRecord):
            expected = "one of the outermost body"
            raise InvalidValue("GraphNode.operation", operation, expected)


def node_count(body: GraphBody) -> int:
    """How many nodes the body has, those of bodies in it included."""
    return sum(1 for _ in walk(body))


def topology(body: GraphBody) -> tuple[object, ...]:
    """What has to stay for nodes to be changed in place."""
    return tuple((_kind(node.operation), node.after, node.priority) for node in body)


def _are_alike(one: GraphNode, other: GraphNode) -> bool:
    """Whether nodes are equal as far as the topology goes."""
    if one is other:
        return True
    if one.after != other.after or one.priority != other.priority:
        return False
    a, b = one.operation, other.operation
    if type(a) is type(b) is PreparedLaunch and a.has_blocks and b.has_blocks:
        first, second = a.request.geometry, b.request.geometry
        if first is second:
            return True
    return _kind(a) == _kind(b)


def _kind(operation: GraphOperation) -> object:
    if isinstance(operation, GraphLoop):
        turns = tuple(map(topology, operation.turns))
        has_limit, within = operation.limit is not None, len(operation.unless)
        exchanges = len(operation.exchanges)
        return "loop", operation.count is None, turns, exchanges, has_limit, within
    if isinstance(operation, GraphBranch):
        return "branch", topology(operation.body), len(operation.unless)
    if isinstance(operation, PreparedLaunch):
        if not operation.has_blocks:  # nothing to the device
            return GraphJoin
        geometry = operation.request.geometry
        return PreparedLaunch, geometry.cluster, geometry.cooperative
    if isinstance(operation, GraphFill):
        return GraphFill, len(operation.pattern), operation.byte_size > 0
    if isinstance(operation, (GraphUpload, GraphDownload)):
        return type(operation), id(operation.array), operation.array.nbytes > 0
    if isinstance(operation, GraphCopy):
        return GraphCopy, operation.byte_size > 0
    if isinstance(operation, GraphRecord):
        return operation
    return type(operation)
