"""Launch graph plans: immutable, validated once, run as often as wanted."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.fingerprint import canonical_bytes
from accy_async.dtypes import DType
from accy_async.errors import GraphError
from accy_async.graph.dataflow import WRITES, Uses
from accy_async.graph.draw import to_dot, to_svg
from accy_async.graph.explain import explain
from accy_async.graph.hazards import OrderEdge
from accy_async.graph.layout import BlockLayout, lay_out
from accy_async.graph.nodes import (
    BufferSlot,
    HostCall,
    HostSlot,
    KernelCall,
    LaunchGraphDependency,
    LaunchGraphLoop,
    LaunchGraphNode,
)
from accy_async.graph.order import GraphOrder
from accy_async.graph.validate import PlanIndex, index_plan
from accy_async.values import integer, some_names, to_tuple, tuple_of

if TYPE_CHECKING:
    from attrs import Attribute

    from accy_async.backends.capabilities import Capabilities
    from accy_async.graph.whereabouts import Whereabouts

__all__ = ["DEFAULT_MAX_STREAMS", "LaunchGraphPlan", "function_name"]

DEFAULT_MAX_STREAMS = 8
"""Streams that `LaunchGraphPlan.layout` and its drawings use unless told."""


def _no_duplicates(
    instance: object, attribute: Attribute[Any], value: tuple[str, ...]
) -> None:
    tuple_of(str, expected="names of events (str)")(instance, attribute, value)
    if len(set(value)) != len(value):
        twice = next(name for name in value if value.count(name) > 1)
        raise GraphError(f"external event {twice!r} is listed twice")


@attrs.frozen(kw_only=True, repr=False)
class LaunchGraphPlan:
    """A graph of device and host work, ready to be run.

    Validated when it is made; running it again costs no validation. Plans are
    equal where all their parts are.

    Attributes:
        nodes: the operations, in the plan's order. The order means nothing but
            where this says so: nodes of one stream label, ranges of loops, ties.
        dependencies: which node waits for which; given twice they count once.
        loops: ranges of the nodes that repeat.
        slots: the buffers and host memory that the nodes name.
        runtime_scalar_count: scalars that a run brings.
        external_events: events of the caller's; nodes may wait for them, and a
            signal to one is seen by the caller.

    Raises:
        GraphError: the parts contradict each other; the message names them.
    """

    nodes: tuple[LaunchGraphNode, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(LaunchGraphNode, expected="LaunchGraphNode values"),
    )
    dependencies: tuple[LaunchGraphDependency, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(
            LaunchGraphDependency, expected="LaunchGraphDependency values"
        ),
    )
    loops: tuple[LaunchGraphLoop, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(LaunchGraphLoop, expected="LaunchGraphLoop values"),
    )
    slots: tuple[BufferSlot | HostSlot, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(
            BufferSlot, HostSlot, expected="BufferSlot or HostSlot values"
        ),
    )
    runtime_scalar_count: int = attrs.field(default=0, validator=integer(0, 4096))
    external_events: tuple[str, ...] = attrs.field(
        default=(), converter=to_tuple, validator=_no_duplicates
    )
    _index: PlanIndex = attrs.field(init=False, eq=False)
    _layouts: dict[object, BlockLayout] = attrs.field(
        init=False, eq=False, factory=dict
    )
    _cached: dict[str, int] = attrs.field(init=False, eq=False, factory=dict)
    _devices: dict[str, str] | None = attrs.field(init=False, eq=False, default=None)

    def __attrs_post_init__(self) -> None:
        index = index_plan(
            self.nodes,
            self.dependencies,
            self.loops,
            self.slots,
            self.runtime_scalar_count,
            self.external_events,
        )
        object.__setattr__(self, "_index", index)
        if len(index.dependencies) != len(self.dependencies):
            merged = tuple(dict.fromkeys(self.dependencies))
            object.__setattr__(self, "dependencies", merged)

    def __hash__(self) -> int:
        return self.fingerprint

    def __repr__(self) -> str:
        return (
            f"<LaunchGraphPlan: {len(self.nodes)} nodes, "
            f"{len(self.dependencies)} dependencies, {len(self.loops)} loops, "
            f"{len(self.slots)} slots>"
        )

    @property
    def node_index(self) -> Mapping[str, int]:
        """Where each node stands among the nodes, by name."""
        return MappingProxyType(self._index.nodes)

    @property
    def slot_index(self) -> Mapping[str, int]:
        """Where each slot stands among the slots, by name."""
        return MappingProxyType(self._index.slots)

    @property
    def loop_index(self) -> Mapping[str, int]:
        """Where each loop stands among the loops, by name."""
        return MappingProxyType(self._index.loops)

    @property
    def scalar_dtypes(self) -> Mapping[int, DType]:
        """The dtypes of a run's scalars, by index, as far as nodes say them."""
        return self._index.scalar_dtypes

    @property
    def order(self) -> GraphOrder:
        """The plan's blocks: its items and their edges, at each level."""
        return self._index.order

    @property
    def order_edges(self) -> list[OrderEdge]:
        """The edges that events and stream labels add to the dependencies."""
        return self._index.order_edges

    @property
    def uses(self) -> list[Uses]:
        """Of each node, the slots it uses by index, each once, and how."""
        return self._index.uses

    @property
    def entries(self) -> tuple[KernelCallArtifact, ...]:
        """The kernels that nodes launch, each once."""
        return self._index.entries

    @property
    def signalled_events(self) -> tuple[str, ...]:
        """The events that nodes signal, each once."""
        return self._index.signalled

    def is_written(self, slot: str) -> bool:
        """True where a node writes the slot."""
        written = self._cached.get("written")
        if written is None:
            slots = {i for uses in self.uses for i, how in uses if how & WRITES}
            written = self._cached["written"] = sum(1 << i for i in slots)
        return bool(written >> self._index.slots[slot] & 1)

    def node(self, name: str) -> LaunchGraphNode:
        """The node of that name.

        Raises:
            GraphError: there is none.
        """
        return self.nodes[_find("node", name, self._index.nodes)]

    def slot(self, name: str) -> BufferSlot | HostSlot:
        """The slot of that name.

        Raises:
            GraphError: there is none.
        """
        return self.slots[_find("slot", name, self._index.slots)]

    def loop(self, name: str) -> LaunchGraphLoop:
        """The loop of that name.

        Raises:
            GraphError: there is none.
        """
        return self.loops[_find("loop", name, self._index.loops)]

    def precedes(self, before: str, after: str) -> bool:
        """True where one node has always finished before the other starts.

        Raises:
            GraphError: there is no node of one of the names.
        """
        one = _find("node", before, self._index.nodes)
        two = _find("node", after, self._index.nodes)
        return self.order.precedes(one, two)

    @property
    def uses_device(self) -> bool:
        """True where it has more than host calls."""
        found = self._cached.get("uses_device")
        if found is None:
            found = any(not isinstance(n.operation, HostCall) for n in self.nodes)
            self._cached["uses_device"] = found
        return bool(found)

    @property
    def fingerprint(self) -> int:
        """A 64-bit fingerprint of the whole plan, the same in every process.

        Host calls count by the qualified names of their functions.
        """
        found = self._cached.get("fingerprint")
        if found is None:
            found = self._cached["fingerprint"] = _fingerprint(self)
        return found

    def layout(
        self,
        max_streams: int = DEFAULT_MAX_STREAMS,
        places: Whereabouts | None = None,
    ) -> BlockLayout:
        """The plan laid out on at most that many streams; made once for each.

        Args:
            max_streams: how many; on each device, where there are several.
            places: where everything is; None for one device.

        Raises:
            GraphError: ``max_streams`` is below 1.
        """
        key = (max_streams, places)
        found = self._layouts.get(key)
        if found is None:
            found = lay_out(self.order, self.nodes, self.loops, max_streams, places)
            self._layouts[key] = found
        return found

    def is_laid_out(self, max_streams: int, places: Whereabouts | None = None) -> bool:
        """True where `layout` for so many streams was asked for before."""
        return (max_streams, places) in self._layouts

    @property
    def names_devices(self) -> bool:
        """True where a node or a slot says which device it is on."""
        return bool(self.named_devices)

    @property
    def named_devices(self) -> Mapping[str, str]:
        """The devices that slots and nodes say they are on, with who says so first.

        Calls on the host are on no device, whatever they say.
        """
        found = self._devices
        if found is None:
            found = {}
            for slot in self.slots:
                if isinstance(slot, BufferSlot) and slot.device is not None:
                    found.setdefault(slot.device, f"slot {slot.name!r}")
            for node in self.nodes:
                if node.device is not None and not node.is_host:
                    found.setdefault(node.device, f"node {node.name!r}")
            object.__setattr__(self, "_devices", found)
        return found

    def explain(
        self,
        max_streams: int = DEFAULT_MAX_STREAMS,
        limit: int = 40,
        places: Whereabouts | None = None,
        capabilities: Capabilities | None = None,
    ) -> str:
        """How the plan is laid out, and why, as text.

        Args:
            max_streams: what `layout` is asked for.
            limit: how many items of each block, slots and edges are listed.
            places: where everything is, as `MultiSession.locate` says; with them the
                text has the ways between the devices.
            capabilities: what the device can do that the plan is for, as
                ``session.backend.capabilities``; with them the text says what becomes
                of the plan on that device, and not on any that has graphs.
        """
        return explain(self, max_streams, limit, places, capabilities)

    def to_dot(self, max_streams: int = DEFAULT_MAX_STREAMS, limit: int = 500) -> str:
        """The plan in Graphviz's language, up to ``limit`` nodes."""
        return to_dot(self, max_streams, limit)

    def to_svg(self, max_streams: int = DEFAULT_MAX_STREAMS, limit: int = 200) -> str:
        """The plan as an SVG image, up to ``limit`` nodes."""
        return to_svg(self, max_streams, limit)

    def _repr_svg_(self) -> str:
        return self.to_svg()


def _find(what: str, name: str, names: Mapping[str, int]) -> int:
    index = names.get(name)
    if index is None:
        raise GraphError(f"the plan has no {what} {name!r}; it has {some_names(names)}")
    return index


def function_name(function: object) -> str:
    """A function's qualified name; of a callable object, its class's."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _fingerprint(plan: LaunchGraphPlan) -> int:
    """SHA-256 over one ASCII line a part; entries count by their fingerprints.

    ``ascii`` of names, numbers and tuples is the same everywhere; the canonical
    bytes that other fingerprints hash would take ten times as long here.
    """
    digest = hashlib.sha256()
    entries: dict[int, int] = {}
    parts: tuple[tuple[object, ...], ...]
    for node in plan.nodes:
        digest.update(ascii(_describe(node, entries)).encode())
    parts = (plan.dependencies, plan.loops, plan.slots, plan.external_events)
    for part in parts:
        digest.update(ascii(len(part)).encode())
        for value in part:
            if isinstance(value, LaunchGraphDependency):
                digest.update(ascii((value.before, value.after)).encode())
            else:
                digest.update(canonical_bytes(value))
    digest.update(ascii(plan.runtime_scalar_count).encode())
    return int.from_bytes(digest.digest()[:8], "big")


def _describe(node: LaunchGraphNode, entries: dict[int, int]) -> tuple[object, ...]:
    operation = node.operation
    what: tuple[object, ...]
    if isinstance(operation, KernelCall):
        buffers = [(use.slot, use.access.value) for use in operation.buffers]
        what = (_entry(operation.entry, entries), *buffers)
    elif isinstance(operation, HostCall):
        name = function_name(operation.function)
        what = (name, operation.reads, operation.writes)
    else:
        what = (canonical_bytes(operation),)
    scalars = canonical_bytes(node.runtime_scalars) if node.runtime_scalars else b""
    return (
        type(operation).__name__,
        what,
        node.name,
        node.stream,
        node.priority,
        node.wait_events,
        node.signal_event,
        scalars,
        node.tuning_candidate,
        *([] if node.device is None else [node.device]),
    )


def _entry(entry: KernelCallArtifact, entries: dict[int, int]) -> int:
    found = entries.get(id(entry))
    if found is None:
        found = entries[id(entry)] = entry.fingerprint
    return found
