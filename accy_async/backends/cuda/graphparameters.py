"""What the driver is told of the nodes of a CUDA graph, when made and when updated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from accy_async.backends.devicegraph import (
    GraphBranch,
    GraphCopy,
    GraphDownload,
    GraphFill,
    GraphLoop,
    GraphOperation,
    GraphRecord,
    GraphUpload,
)
from accy_async.backends.launch import PreparedLaunch

if TYPE_CHECKING:
    from accy_async.backends.cuda.context import CudaContext
    from accy_async.backends.cuda.graphnodes import Natives, Staging
    from accy_async.backends.cuda.memory import DeviceMemory
    from accy_async.backends.cuda.objects import CudaEvent, LaunchArguments
    from accy_async.backends.handles import BufferHandle, Handle
    from accy_async.backends.resources import Resource

__all__ = ["NodeUpdates", "address_of", "parameters"]


class NodeUpdates:
    """Changes of one graph's nodes in place, one after the other.

    Args:
        context: the device.
        executable: the graph.
        objects: what the nodes use, by handle.
        staging: pinned memory, by the array that it stands for.
    """

    def __init__(
        self,
        context: CudaContext,
        executable: Any,  # noqa: ANN401
        objects: Mapping[Handle, Resource],
        staging: Mapping[int, Staging],
    ) -> None:
        self._context = context
        self._executable = executable
        self._objects = objects
        self._staging = staging
        self._set_kernel = context.driver.cuGraphExecKernelNodeSetParams
        # The last kernel's; the driver copies them, and mostly the next is alike.
        self._node: Any = None
        self._function: Any = None
        self._geometry: object = None

    def set(self, natives: Natives, operation: GraphOperation) -> bool:
        """Change a node that is no loop or branch; False where the driver refuses."""
        if type(operation) is PreparedLaunch:
            return not operation.has_blocks or self._set_launch(natives[0], operation)
        if isinstance(operation, (GraphLoop, GraphBranch)):
            return False
        context, driver = self._context, self._context.driver
        wanted = parameters(context, operation, self._objects, self._staging)
        for native, (kind, value) in zip(natives, wanted, strict=False):
            if kind == "EventRecord":
                continue  # the same one: it is part of the topology
            call = getattr(driver, f"cuGraphExec{kind}NodeSetParams")
            (result,) = call(self._executable, native, value, context.native)
            if result != 0:
                return False
        return True

    def _set_launch(self, native: Any, launch: PreparedLaunch) -> bool:  # noqa: ANN401
        packed: LaunchArguments = launch.payload  # type: ignore[assignment]
        geometry = launch.request.geometry
        if packed.function is self._function and geometry is self._geometry:
            self._node.kernelParams = packed.pointer
        else:
            self._node = _kernel(self._context.driver, launch)
            self._function, self._geometry = packed.function, geometry
        (result,) = self._set_kernel(self._executable, native, self._node)
        return bool(result == 0)


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
