"""The nodes of a CUDA graph, and how loops are made of them.

A loop becomes a conditional node, whose body ends with a kernel that says whether
there is another turn. Bodies that take turns lie within each other: the second one
in a conditional node of the first, and so on, so that the loop may end after any.
What is to be exchanged where it ends in the midst of them is in conditional nodes
behind the loop, one for each turn that was to come. A branch is one more. A loop that
a failure within ends has its counter say so, which its deciding kernel looks at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accy_async.backends.cuda.conditions import (
    BEGIN,
    BOUND,
    CLEAR,
    GATE,
    LIMIT,
    LOOK,
    NEXT,
    STOP,
    STOPPED,
    SWAP,
    UNLIMITED,
)
from accy_async.backends.cuda.graphparameters import address_of, parameters
from accy_async.backends.devicegraph import (
    GraphBody,
    GraphBranch,
    GraphDownload,
    GraphLoop,
    GraphNode,
    GraphUpload,
    walk,
)
from accy_async.backends.launch import PreparedLaunch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from accy_async.backends.cuda.conditions import Conditions
    from accy_async.backends.cuda.context import CudaContext
    from accy_async.backends.cuda.memory import DeviceMemory, DevicePool, PinnedPool
    from accy_async.backends.devicegraph import GraphExchange
    from accy_async.backends.handles import Handle
    from accy_async.backends.resources import Resource

__all__ = ["GraphBuilder", "Natives", "Staging"]

_COUNTER_BYTES = 8

Natives = tuple[Any, ...]
"""The driver's nodes that a node of the request came to, in order."""


class Staging:
    """Pinned memory that stands for an array of the host within a graph.

    Attributes:
        array_bytes: the array, as bytes.
        address, byte_size, block: the memory.
        is_loaded: whether it has to hold the array's values when the graph begins.
        writers: the nodes of the outermost body that may write it.
    """

    __slots__ = (
        "address",
        "array_bytes",
        "block",
        "byte_size",
        "is_loaded",
        "writers",
    )

    def __init__(self, array: np.ndarray, pinned: PinnedPool) -> None:
        self.array_bytes: NDArray[np.uint8] = array.reshape(-1).view(np.uint8)
        self.byte_size = array.nbytes
        self.address, block = pinned.take(array.nbytes)
        self.block = block[: array.nbytes]
        self.is_loaded = False
        self.writers: set[int] = set()

    def store(self) -> None:
        """Copy what the device wrote to the array."""
        np.copyto(self.array_bytes, self.block)


class GraphBuilder:
    """Makes the driver's nodes of a request.

    Args:
        context: the device.
        pool: gives device memory for the loops' counters.
        pinned: gives memory for what is copied from and to the host.
        conditions: the kernels that loops end with.
        objects: what the nodes use, by handle.

    Attributes:
        staging: what it took of ``pinned``, by the array's identity.
        counters: what it took of ``pool``, if anything.
    """

    def __init__(
        self,
        context: CudaContext,
        pool: DevicePool,
        pinned: PinnedPool,
        conditions: Conditions,
        objects: Mapping[Handle, Resource],
    ) -> None:
        self._context = context
        self._driver = context.driver
        self._pool = pool
        self._pinned = pinned
        self._conditions = conditions
        self._objects = objects
        self._free_counter = 0
        self.staging: dict[int, Staging] = {}
        self.counters: DeviceMemory | None = None

    def build(self, graph: Any, body: GraphBody) -> list[Natives]:  # noqa: ANN401
        """Make all nodes; returns the driver's, for each of the outermost body."""
        self._take_staging(body)
        counting = sum(
            isinstance(node.operation, GraphLoop) and _counts(node.operation)
            for node in walk(body)
        )
        if counting:
            self.counters = self._pool.allocate(_COUNTER_BYTES * counting, 256)
            self._free_counter = self.counters.address
        return self._add_body(graph, body)

    def _take_staging(self, body: GraphBody) -> None:
        for place, node in enumerate(body):
            may_not_run = isinstance(node.operation, (GraphLoop, GraphBranch))
            for one in walk((node,)):
                operation = one.operation
                if not isinstance(operation, (GraphUpload, GraphDownload)):
                    continue
                array = operation.array
                if not array.nbytes:
                    continue
                staging = self.staging.get(id(array))
                if staging is None:
                    staging = self.staging[id(array)] = Staging(array, self._pinned)
                if isinstance(operation, GraphDownload):
                    staging.writers.add(place)
                # A loop without turns leaves the array as it was, as does a branch.
                if may_not_run or isinstance(operation, GraphUpload):
                    staging.is_loaded = True

    def _add_body(self, graph: Any, body: GraphBody) -> list[Natives]:  # noqa: ANN401
        made: list[Natives] = []
        for node in body:
            after = [made[place][-1] for place in node.after]
            made.append(self._add(graph, node, after))
        return made

    def _add(self, graph: Any, node: GraphNode, after: list[Any]) -> Natives:  # noqa: ANN401
        operation = node.operation
        if isinstance(operation, GraphLoop):
            return self._add_loop(graph, operation, after)
        if isinstance(operation, GraphBranch):
            return self._add_branch(graph, operation, after)
        wanted = parameters(self._context, operation, self._objects, self.staging)
        if not wanted:
            return (self._added("cuGraphAddEmptyNode", graph, after),)
        made: list[Any] = []
        for kind, value in wanted:
            call = f"cuGraphAdd{kind}Node"
            more = (self._context.native,) if kind in ("Memcpy", "Memset") else ()
            native = self._added(call, graph, made[-1:] or after, value, *more)
            made.append(native)
        if isinstance(operation, PreparedLaunch):
            self._set_attributes(made[0], operation, node.priority)
        return tuple(made)

    def _set_attributes(
        self,
        native: Any,  # noqa: ANN401
        launch: PreparedLaunch,
        priority: int,
    ) -> None:
        geometry = launch.request.geometry
        if geometry.cluster is not None:
            value = self._driver.CUkernelNodeAttrValue()
            size = value.clusterDim
            size.x, size.y, size.z = geometry.cluster
            self._set_attribute(native, "CLUSTER_DIMENSION", value)
        if geometry.cooperative:
            value = self._driver.CUkernelNodeAttrValue()
            value.cooperative = 1
            self._set_attribute(native, "COOPERATIVE", value)
        if priority:
            value = self._driver.CUkernelNodeAttrValue()
            value.priority = self._context.capabilities.clamp_priority(priority)
            self._set_attribute(native, "PRIORITY", value)

    def _set_attribute(self, native: Any, name: str, value: Any) -> None:  # noqa: ANN401
        kind = getattr(self._driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
        answer = self._driver.cuGraphKernelNodeSetAttribute(native, kind, value)
        self._context.check(answer, "cuGraphKernelNodeSetAttribute")

    # Loops

    def _add_loop(self, graph: Any, loop: GraphLoop, after: list[Any]) -> Natives:  # noqa: ANN401
        kinds = self._driver.CUgraphConditionalNodeType
        handle = self._new_handle(graph)
        ends = self._new_ends(graph, loop)
        for end in filter(None, ends):
            after = [self._add_kernel(graph, after, CLEAR, end)]
        words = [address_of(self._objects, word) for word in loop.conditions]
        within = [address_of(self._objects, word) for word in loop.unless]
        counter = self._take_counter() if _counts(loop) else 0
        verdict, look, bound = 0, LOOK, tuple[int, ...]()
        verdicts, limit = within, UNLIMITED
        if loop.limit is not None:
            assert loop.verdict is not None
            verdict, limit = address_of(self._objects, loop.verdict), loop.limit
            verdicts = [verdict, *within]
        for word in verdicts:
            after = [self._add_kernel(graph, after, LIMIT, counter, limit, word)]
        if loop.count is not None:
            begin = self._add_kernel(graph, after, BEGIN, counter, loop.count, handle)
        else:
            if counter:
                look, bound = BOUND, (counter, verdict)
            begin = self._add_kernel(graph, after, look, words[0], handle, 0, 0, *bound)
        last, body = self._add_conditional(
            graph, [begin], handle, kinds.CU_GRAPH_COND_TYPE_WHILE
        )
        for number, turn in enumerate(loop.turns):
            made = _ends(turn, self._add_body(body, turn))
            is_last = number == len(loop.turns) - 1
            again = 0 if is_last else self._new_handle(body)
            stopped = STOPPED if loop.count is None else 1  # which is the last turn
            for word in within:
                made = [self._add_kernel(body, made, STOP, word, counter, stopped)]
            if loop.count is not None:
                decide = self._add_kernel(
                    body, made, NEXT, counter, handle, again, ends[number]
                )
            else:
                word = words[0 if is_last else number + 1]
                decide = self._add_kernel(
                    body, made, look, word, handle, again, ends[number], *bound
                )
            if not is_last:
                _, body = self._add_conditional(
                    body, [decide], again, kinds.CU_GRAPH_COND_TYPE_IF
                )
        for end, exchanges in zip(ends, loop.exchanges, strict=False):
            if end:
                last = self._add_exchanges(graph, last, end, exchanges)
        return begin, last

    def _take_counter(self) -> int:
        counter = self._free_counter
        self._free_counter += _COUNTER_BYTES
        return counter

    def _add_branch(
        self,
        graph: Any,  # noqa: ANN401
        branch: GraphBranch,
        after: list[Any],
    ) -> Natives:
        handle, first = self._new_handle(graph), 1
        for word in branch.unless:
            address = address_of(self._objects, word)
            after = [self._add_kernel(graph, after, GATE, address, handle, first)]
            first = 0
        kind = self._driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
        node, body = self._add_conditional(graph, after, handle, kind)
        self._add_body(body, branch.body)
        return after[0], node

    def _new_ends(self, graph: Any, loop: GraphLoop) -> list[int]:  # noqa: ANN401
        """For each turn, what is set where the loop ends after it; 0 for nothing."""
        found = [
            self._new_handle(graph) if any(one.byte_size for one in exchanges) else 0
            for exchanges in loop.exchanges
        ]
        return found + [0] * (len(loop.turns) - len(found))

    def _add_exchanges(
        self,
        graph: Any,  # noqa: ANN401
        after: Any,  # noqa: ANN401
        end: int,
        exchanges: Sequence[GraphExchange],
    ) -> Any:  # noqa: ANN401
        """What moves buffers' contents where they belong, if the loop ended so."""
        kind = self._driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
        node, body = self._add_conditional(graph, [after], end, kind)
        before: list[Any] = []
        for one in exchanges:
            if one.byte_size:
                addresses = [address_of(self._objects, b) for b in (one.one, one.other)]
                before = [
                    self._add_kernel(body, before, SWAP, *addresses, one.byte_size)
                ]
        return node

    def _new_handle(self, graph: Any) -> int:  # noqa: ANN401
        answer = self._driver.cuGraphConditionalHandleCreate(
            graph, self._context.native, 0, 0
        )
        return int(self._context.check(answer, "cuGraphConditionalHandleCreate"))

    def _add_kernel(
        self,
        graph: Any,  # noqa: ANN401
        after: list[Any],
        kernel: str,
        *arguments: int,
    ) -> Any:  # noqa: ANN401
        """One of the loops' own kernels."""
        node, keeper = self._conditions.parameters(kernel, *arguments)
        native = self._added("cuGraphAddKernelNode", graph, after, node)
        del keeper  # the driver has copied them
        return native

    def _add_conditional(
        self,
        graph: Any,  # noqa: ANN401
        after: list[Any],
        handle: int,
        kind: Any,  # noqa: ANN401
    ) -> tuple[Any, Any]:
        """A conditional node, and the graph that is its body."""
        driver = self._driver
        node = driver.CUgraphNodeParams()
        node.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        node.conditional.handle = driver.CUgraphConditionalHandle(handle)
        node.conditional.type = kind
        node.conditional.size = 1
        node.conditional.ctx = self._context.native
        answer = driver.cuGraphAddNode(graph, after or None, None, len(after), node)
        native = self._context.check(answer, "cuGraphAddNode")
        return native, node.conditional.phGraph_out[0]

    def _added(
        self,
        call: str,
        graph: Any,  # noqa: ANN401
        after: list[Any],
        *more: Any,
    ) -> Any:  # noqa: ANN401
        answer = getattr(self._driver, call)(graph, after or None, len(after), *more)
        return self._context.check(answer, call)


def _counts(loop: GraphLoop) -> bool:
    """Whether a loop's turns are counted, be it down from where none ever get to 0."""
    return loop.count is not None or loop.limit is not None or bool(loop.unless)


def _ends(body: GraphBody, made: Sequence[Natives]) -> list[Any]:
    """The driver's nodes after which all of a body is done."""
    followed = {place for node in body for place in node.after}
    return [made[place][-1] for place in range(len(body)) if place not in followed]
