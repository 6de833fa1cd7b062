"""The nodes of a CUDA graph: their parameters, their making, their updating.

A loop becomes a conditional node, whose body ends with a kernel that says whether
there is another turn. Bodies that take turns lie within each other: the second one
in a conditional node of the first, and so on, so that the loop may end after any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from accy_async.backends.cuda.conditions import BEGIN, LOOK, NEXT
from accy_async.backends.devicegraph import (
    GraphBody,
    GraphCopy,
    GraphDownload,
    GraphFill,
    GraphLoop,
    GraphNode,
    GraphOperation,
    GraphRecord,
    GraphUpload,
    walk,
)
from accy_async.backends.launch import PreparedLaunch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from accy_async.backends.cuda.conditions import Conditions
    from accy_async.backends.cuda.context import CudaContext
    from accy_async.backends.cuda.memory import DeviceMemory, DevicePool, PinnedPool
    from accy_async.backends.cuda.objects import CudaEvent, LaunchArguments
    from accy_async.backends.handles import BufferHandle, Handle
    from accy_async.backends.resources import Resource

__all__ = ["GraphBuilder", "Staging", "update_node"]

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
            isinstance(node.operation, GraphLoop) and node.operation.count is not None
            for node in walk(body)
        )
        if counting:
            self.counters = self._pool.allocate(_COUNTER_BYTES * counting, 256)
            self._free_counter = self.counters.address
        return self._add_body(graph, body)

    def _take_staging(self, body: GraphBody) -> None:
        for place, node in enumerate(body):
            is_loop = isinstance(node.operation, GraphLoop)
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
                # A loop without turns leaves the array as it was.
                if is_loop or isinstance(operation, GraphUpload):
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
        if loop.count is not None:
            counter = self._free_counter
            self._free_counter += _COUNTER_BYTES
            first = (BEGIN, (counter, loop.count, handle))
            last, word = NEXT, counter
        else:
            condition = cast("BufferHandle", loop.condition)
            word = address_of(self._objects, condition)
            first, last = (LOOK, (word, handle, 0)), LOOK
        begin = self._add_condition(graph, after, *first)
        node, body = self._add_conditional(
            graph, [begin], handle, kinds.CU_GRAPH_COND_TYPE_WHILE
        )
        turn_handle = handle
        for number, turn in enumerate(loop.turns):
            made = self._add_body(body, turn)
            ends = _ends(turn, made)
            is_last = number == len(loop.turns) - 1
            turn_handle = 0 if is_last else self._new_handle(body)
            decide = self._add_condition(body, ends, last, (word, handle, turn_handle))
            if not is_last:
                _, body = self._add_conditional(
                    body, [decide], turn_handle, kinds.CU_GRAPH_COND_TYPE_IF
                )
        return begin, node

    def _new_handle(self, graph: Any) -> int:  # noqa: ANN401
        answer = self._driver.cuGraphConditionalHandleCreate(
            graph, self._context.native, 0, 0
        )
        return int(self._context.check(answer, "cuGraphConditionalHandleCreate"))

    def _add_condition(
        self,
        graph: Any,  # noqa: ANN401
        after: list[Any],
        kernel: str,
        arguments: tuple[int, int, int],
    ) -> Any:  # noqa: ANN401
        node, keeper = self._conditions.parameters(kernel, arguments)
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


def update_node(
    context: CudaContext,
    executable: Any,  # noqa: ANN401
    natives: Natives,
    operation: GraphOperation,
    objects: Mapping[Handle, Resource],
    staging: Mapping[int, Staging],
) -> bool:
    """Change a node that is no loop in place; False where the driver refuses."""
    driver = context.driver
    if isinstance(operation, GraphLoop):
        return False
    wanted = parameters(context, operation, objects, staging)
    for native, (kind, value) in zip(natives, wanted, strict=False):
        if kind == "EventRecord":
            continue  # the same one: it is part of the topology
        more = (context.native,) if kind in ("Memcpy", "Memset") else ()
        call = f"cuGraphExec{kind}NodeSetParams"
        (result,) = getattr(driver, call)(executable, native, value, *more)
        if result != 0:
            return False
    return True


def parameters(
    context: CudaContext,
    operation: GraphOperation,
    objects: Mapping[Handle, Resource],
    staging: Mapping[int, Staging],
) -> list[tuple[str, Any]]:
    """The driver's nodes that an operation comes to: their kinds and parameters.

    None where there is nothing to do.
    """
    driver = context.driver
    if isinstance(operation, PreparedLaunch):
        return [("Kernel", _kernel(driver, operation))] if operation.has_blocks else []
    if isinstance(operation, GraphRecord):
        event = cast("CudaEvent", objects[operation.event].payload)
        return [("EventRecord", event.native)]
    if isinstance(operation, GraphFill):
        address = address_of(objects, operation.target)
        return [("Memset", m) for m in _memsets(driver, address, operation)]
    device, host = (
        driver.CUmemorytype.CU_MEMORYTYPE_DEVICE,
        (driver.CUmemorytype.CU_MEMORYTYPE_HOST),
    )
    if isinstance(operation, GraphCopy):
        read = address_of(objects, operation.source)
        written = address_of(objects, operation.target)
        size, ends = operation.byte_size, ((device, read), (device, written))
    elif isinstance(operation, GraphUpload):
        written = address_of(objects, operation.target)
        size = operation.array.nbytes
        pinned = staging[id(operation.array)].address if size else 0
        ends = ((host, pinned), (device, written))
    elif isinstance(operation, GraphDownload):
        read = address_of(objects, operation.source)
        size = operation.array.nbytes
        pinned = staging[id(operation.array)].address if size else 0
        ends = ((device, read), (host, pinned))
    else:
        return []
    return [("Memcpy", _memcpy(driver, size, *ends))] if size else []


def address_of(objects: Mapping[Handle, Resource], buffer: BufferHandle) -> int:
    """Where a buffer is on the device."""
    memory = cast("DeviceMemory", objects[buffer].payload)
    return memory.address


def _kernel(driver: Any, launch: PreparedLaunch) -> Any:  # noqa: ANN401
    packed: LaunchArguments = launch.payload  # type: ignore[assignment]
    geometry = launch.request.geometry
    node = driver.CUDA_KERNEL_NODE_PARAMS()
    node.func = packed.function
    node.gridDimX, node.gridDimY, node.gridDimZ = geometry.grid
    node.blockDimX, node.blockDimY, node.blockDimZ = geometry.threadgroup
    node.sharedMemBytes = geometry.dynamic_shared_memory_bytes
    node.kernelParams = packed.pointer
    return node


def _memcpy(
    driver: Any,  # noqa: ANN401
    size: int,
    source: tuple[Any, int],
    target: tuple[Any, int],
) -> Any:  # noqa: ANN401
    node = driver.CUDA_MEMCPY3D()
    node.srcMemoryType, read = source
    node.dstMemoryType, written = target
    is_from_host = node.srcMemoryType == driver.CUmemorytype.CU_MEMORYTYPE_HOST
    is_to_host = node.dstMemoryType == driver.CUmemorytype.CU_MEMORYTYPE_HOST
    if is_from_host:
        node.srcHost = read
    else:
        node.srcDevice = driver.CUdeviceptr(read)
    if is_to_host:
        node.dstHost = written
    else:
        node.dstDevice = driver.CUdeviceptr(written)
    node.WidthInBytes, node.Height, node.Depth = size, 1, 1
    return node


def _memsets(driver: Any, address: int, fill: GraphFill) -> list[Any]:  # noqa: ANN401
    """A fill; a pattern of eight bytes as two columns of four, 8 bytes apart."""
    pattern, size = fill.pattern, fill.byte_size
    if not size:
        return []
    if len(pattern) < 8:
        return [_memset(driver, address, pattern, size // len(pattern), 1, 0)]
    return [
        _memset(driver, address + half, pattern[half : half + 4], 1, size // 8, 8)
        for half in (0, 4)
    ]


def _memset(
    driver: Any,  # noqa: ANN401
    address: int,
    pattern: bytes,
    width: int,
    height: int,
    pitch: int,
) -> Any:  # noqa: ANN401
    node = driver.CUDA_MEMSET_NODE_PARAMS()
    node.dst = driver.CUdeviceptr(address)
    node.elementSize = len(pattern)
    node.value = int.from_bytes(pattern, "little")
    node.width, node.height, node.pitch = width, height, pitch
    return node


def _ends(body: GraphBody, made: Sequence[Natives]) -> list[Any]:
    """The driver's nodes after which all of a body is done."""
    followed = {place for node in body for place in node.after}
    return [made[place][-1] for place in range(len(body)) if place not in followed]
