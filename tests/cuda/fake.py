"""A CUDA driver that only keeps count: what the backend asks of it, without a GPU.

Types, enums and structs are those of the bindings, which can be imported without a
driver; functions are made up. Work is done the moment it is submitted.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
from cuda.bindings import driver as bindings

__all__ = ["FakeDriver", "Launched", "TwoGpus"]

_ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 4,
    "COOPERATIVE_LAUNCH": 1,
    "CLUSTER_LAUNCH": 1,
    "WARP_SIZE": 32,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1024,
    "MAX_BLOCK_DIM_Z": 64,
    "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
}


_ADDS_NODE = re.compile("cuGraphAdd[A-Za-z]+Node")

ENDS_CAPTURES = frozenset(
    {
        "cuEventQuery",
        "cuMemAllocFromPoolAsync",
        "cuMemFreeHost",
        "cuMemHostAlloc",
        "cuMemPoolGetAttribute",
        "cuMemPoolTrimTo",
        "cuModuleUnload",
        "cuStreamQuery",
        "cuStreamSynchronize",
    }
)
"""What ends captures of the process, unless its thread is in relaxed mode; tried on an
H200 with driver 580."""


_NativeLaunch = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)

_NativeQuery = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_NativeGraphLaunch = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2)
_NativeWrite = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint
)


@attrs.frozen
class Launched:
    """A launch, as its config said at the moment of the call."""

    function: int
    stream: int
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    shared_bytes: int
    attributes: dict[str, object]


class FakeDriver:
    """Stands in for ``cuda.bindings.driver``.

    Attributes:
        calls: how often each function was called.
        launches: every launch that succeeded.
        answers: codes for the next calls of a function, in order.
        blocks_per_multiprocessor: what occupancy queries answer.
        clusters: how many clusters fit at once.
        shared_bytes: static shared memory of every kernel loaded.
        queues: what the environment said when the context was made.
        ending_captures: calls that ended what others were capturing.
        keeps_launches: False to count launches only.
        tells_addresses: True to say where the functions are that machine code calls.
        values: the first argument of each launch from there.
        devices: how many there are.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.launches: list[Launched] = []
        self.answers: dict[str, list[int]] = {}
        self.blocks_per_multiprocessor = 2
        self.clusters = 4
        self.keeps_launches = True
        self.tells_addresses = False
        self.values: list[int] = []
        self._native: dict[bytes, Any] = {
            b"cuLaunchKernelEx": _NativeLaunch(self._launch_natively),
            b"cuStreamQuery": _NativeQuery(
                lambda stream: int(self.cuStreamQuery(stream)[0])
            ),
            b"cuGraphLaunch": _NativeGraphLaunch(
                lambda *arguments: int(self.cuGraphLaunch(*arguments)[0])
            ),
            b"cuStreamWriteValue64": _NativeWrite(
                lambda *arguments: int(self.cuStreamWriteValue64(*arguments)[0])
            ),
        }
        self.mode = threading.local()
        self.ending_captures: list[str] = []
        self.shared_bytes = 0
        self.devices = 1
        self.queues: str | None = None
        self.function_attributes: dict[str, int] = {}
        self._next = 0x1000
        self._memory: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._made: dict[str, Callable[..., tuple[Any, ...]]] = {}

    def __getattr__(self, name: str) -> Any:
        if not (name.startswith("cu") and name[2:3].isupper()):
            return getattr(bindings, name)
        if name not in self._made:
            self._made[name] = self._function(name)
        return self._made[name]

    def _function(self, name: str) -> Callable[..., tuple[Any, ...]]:
        does = getattr(self, f"_{name}", None)
        if does is None and _ADDS_NODE.fullmatch(name):
            does = self._added_node
        success = bindings.CUresult.CUDA_SUCCESS

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            if name in ENDS_CAPTURES and not getattr(self.mode, "is_relaxed", False):
                self.ending_captures.append(name)
            answers = self.answers.get(name)
            code = bindings.CUresult(answers.pop(0)) if answers else success
            if code != success:
                return (code,)
            outputs = () if does is None else does(*arguments)
            return (success, *outputs)

        return call

    def _handle(self) -> int:
        self._next += 0x100
        return self._next

    def _cuDeviceGetCount(self) -> tuple[int]:
        return (self.devices,)

    def _cuDeviceGetUuid(self, device: int) -> tuple[Any]:
        return (SimpleNamespace(bytes=bytes([0xAB, *range(14), device])),)

    def _cuDeviceGet(self, index: int) -> tuple[int]:
        return (index,)

    def _cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int]:
        del device
        self.queues = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")
        return (1,)

    def _cuDriverGetVersion(self) -> tuple[int]:
        return (13000,)

    def _cuDeviceGetAttribute(self, attribute: Any, device: int) -> tuple[int]:
        del device
        name = attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        return (_ATTRIBUTES.get(name, 0),)

    def _cuDeviceGetName(self, size: int, device: int) -> tuple[bytes]:
        del size, device
        return (b"made up\0",)

    def _cuDeviceTotalMem(self, device: int) -> tuple[int]:
        del device
        return (1 << 30,)

    def _cuCtxGetStreamPriorityRange(self) -> tuple[int, int]:
        return 0, -5

    def _cuMemPoolCreate(self, properties: Any) -> tuple[Any]:
        del properties
        return (self._handle(),)

    def _cuStreamCreate(self, flags: int) -> tuple[Any]:
        del flags
        return (bindings.CUstream(self._handle()),)

    def _cuStreamCreateWithPriority(self, flags: int, priority: int) -> tuple[Any]:
        del flags, priority
        return (bindings.CUstream(self._handle()),)

    def _cuEventCreate(self, flags: int) -> tuple[Any]:
        del flags
        return (bindings.CUevent(self._handle()),)

    def _cuEventElapsedTime(self, start: Any, end: Any) -> tuple[float]:
        del start, end
        return (1.0,)

    def _cuMemHostAlloc(self, size: int, flags: int) -> tuple[int]:
        del flags
        memory = ctypes.create_string_buffer(size)
        address = ctypes.addressof(memory)
        self._memory[address] = memory
        return (address,)

    def _cuMemAllocFromPoolAsync(self, size: int, pool: Any, stream: Any) -> tuple[int]:
        del size, pool, stream
        return (self._handle(),)

    def _cuStreamWriteValue64(
        self, stream: Any, address: int, value: int, flags: int
    ) -> tuple[()]:
        del stream, flags
        ctypes.c_uint64.from_address(int(address)).value = value
        return ()

    def _cuThreadExchangeStreamCaptureMode(self, mode: Any) -> tuple[Any]:
        was_relaxed = getattr(self.mode, "is_relaxed", False)
        modes = bindings.CUstreamCaptureMode
        relaxed, usual = (
            modes.CU_STREAM_CAPTURE_MODE_RELAXED,
            modes.CU_STREAM_CAPTURE_MODE_GLOBAL,
        )
        self.mode.is_relaxed = mode == relaxed
        return (relaxed if was_relaxed else usual,)

    def _cuMemPoolGetAttribute(self, pool: Any, attribute: Any) -> tuple[int]:
        del pool, attribute
        return (0,)

    def _cuModuleLoadDataEx(self, *arguments: Any) -> tuple[int]:
        del arguments
        return (self._handle(),)

    def _cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any]:
        del module, name
        return (bindings.CUfunction(self._handle()),)

    def _cuFuncSetAttribute(
        self, function: Any, attribute: Any, value: int
    ) -> tuple[()]:
        del function
        self.function_attributes[attribute.name] = value
        return ()

    def _cuFuncGetAttribute(self, attribute: Any, function: Any) -> tuple[int]:
        del function
        if attribute.name.endswith("MAX_DYNAMIC_SHARED_SIZE_BYTES"):
            return ((48 << 10) - self.shared_bytes,)
        return (self.shared_bytes,)

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, function: Any, threads: int, shared_bytes: int
    ) -> tuple[int]:
        del function, threads, shared_bytes
        return (self.blocks_per_multiprocessor,)

    def _cuOccupancyMaxActiveClusters(self, function: Any, config: Any) -> tuple[int]:
        del function, config
        return (self.clusters,)

    def _cuGraphCreate(self, flags: int) -> tuple[Any]:
        del flags
        return (bindings.CUgraph(self._handle()),)

    def _cuGraphInstantiate(self, graph: Any, flags: int) -> tuple[Any]:
        del graph, flags
        return (bindings.CUgraphExec(self._handle()),)

    def _cuGraphConditionalHandleCreate(self, *arguments: Any) -> tuple[Any]:
        del arguments
        return (bindings.CUgraphConditionalHandle(self._handle()),)

    def _added_node(self, graph: Any, after: Any, count: int, *more: Any) -> tuple[Any]:
        """Any of the functions that add a node of one kind."""
        del graph, more
        assert len(after or ()) == count
        return (bindings.CUgraphNode(self._handle()),)

    def _cuGraphAddNode(
        self, graph: Any, after: Any, data: Any, count: int, node: Any
    ) -> tuple[Any]:
        del data
        assert node.conditional.size == 1
        return self._added_node(graph, after, count)

    def _cuGetErrorName(self, code: Any) -> tuple[bytes]:
        return (bindings.CUresult(code).name.encode(),)

    def _cuGetErrorString(self, code: Any) -> tuple[bytes]:
        return (f"code {int(code)}".encode(),)

    def _cuGetProcAddress(self, name: bytes, version: int, flags: int) -> Any:
        assert (version, flags) == (12000, 0)
        address = ctypes.cast(self._native[name], ctypes.c_void_p).value
        return (address, 0) if self.tells_addresses else (0, 1)

    def _launch_natively(
        self, config: int, function: int, pointers: int, extra: int | None
    ) -> int:
        """What machine code calls in place of the driver."""
        assert extra is None
        first = ctypes.c_uint64.from_address(pointers).value
        self.values.append(ctypes.c_uint64.from_address(first).value if first else 0)
        made = bindings.CUlaunchConfig(_ptr=config)
        return int(self.cuLaunchKernelEx(made, function, pointers, 0)[0])

    def _cuLaunchKernelEx(
        self, config: Any, function: Any, pointer: int, extra: int
    ) -> tuple[()]:
        del pointer, extra
        if self.keeps_launches:
            self.launches.append(_launched(config, function))
        return ()


class TwoGpus(FakeDriver):
    """A driver with two devices, of which each has a context of its own.

    Attributes:
        can_access: whether they reach each other's memory.
        current: the context that is current.
        contexts: of each copy and wait, the context that was current.
        copies: the arguments of each copy from one to the other.
        streams: what each stream was given of copies, waits and flags, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.can_access = True
        self.current = 0
        self.contexts: list[int] = []
        self.copies: list[tuple[Any, ...]] = []
        self.streams: defaultdict[int, list[str]] = defaultdict(list)

    def _cuDeviceGetCount(self) -> tuple[int]:
        return (2,)

    def _cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int]:
        return (100 + device,)

    def _cuCtxSetCurrent(self, native: int) -> tuple[()]:
        self.current = native
        return ()

    def _cuDeviceCanAccessPeer(self, device: int, peer: int) -> tuple[int]:
        del device, peer
        return (int(self.can_access),)

    def _cuMemcpyPeerAsync(self, *arguments: Any) -> tuple[()]:
        self.streams[int(arguments[-1])].append("copy")
        self.contexts.append(self.current)
        self.copies.append(arguments)
        return ()

    def _cuMemcpyDtoHAsync(self, *arguments: Any) -> tuple[()]:
        del arguments
        self.contexts.append(self.current)
        return ()

    def _cuMemcpyHtoDAsync(self, *arguments: Any) -> tuple[()]:
        return self._cuMemcpyDtoHAsync(*arguments)

    def _cuStreamWaitEvent(self, *arguments: Any) -> tuple[()]:
        self.streams[int(arguments[0])].append("wait")
        return self._cuMemcpyDtoHAsync(*arguments)

    def _cuStreamWriteValue64(self, *arguments: Any) -> tuple[()]:
        self.streams[int(arguments[0])].append("flag")
        return super()._cuStreamWriteValue64(*arguments)


def _launched(config: Any, function: Any) -> Launched:
    kinds = bindings.CUlaunchAttributeID
    attributes: dict[str, object] = {}
    for attribute in config.attrs if config.numAttrs else ():
        if attribute.id == kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            size = attribute.value.clusterDim
            attributes["cluster"] = (size.x, size.y, size.z)
        elif attribute.id == kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            attributes["cooperative"] = attribute.value.cooperative
    return Launched(
        int(function),
        int(config.hStream),
        (config.gridDimX, config.gridDimY, config.gridDimZ),
        (config.blockDimX, config.blockDimY, config.blockDimZ),
        config.sharedMemBytes,
        attributes,
    )
