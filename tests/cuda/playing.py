"""A CUDA driver that carries graphs out: on memory of the host, one node at a time.

Kernels are functions in Python, by name; those of loops among them do what their PTX
says. Nodes run in the order in which they were added, which their edges allow.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver as bindings

from tests.cuda.fake import FakeDriver

__all__ = ["Kernel", "PlayingDriver", "words"]

_BODY_OFFSET = 16
"""Where in the parameters of a conditional node the driver's answer is pointed to:
cuda.h, CUDA_CONDITIONAL_NODE_PARAMS."""

_ALIGNMENT = 256

Kernel = Callable[..., None]


def words(address: int, count: int = 1) -> np.ndarray:
    """Memory of the device as u32 values."""
    return np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address))


class PlayingDriver(FakeDriver):
    """See the module.

    Args:
        kernels: how many arguments each kernel takes, all 64 bits, and what it does.
    """

    def __init__(self, kernels: dict[str, tuple[int, Kernel]]) -> None:
        super().__init__()
        self.played: list[str] = []
        self._kernels: dict[str, tuple[int, Kernel]] = {
            **kernels,
            "accy_begin": (3, self._begin),
            "accy_next": (4, self._next_turn),
            "accy_stop": (3, self._stop),
            "accy_look": (4, self._look),
            "accy_limit": (3, self._limit),
            "accy_bound": (6, self._bound),
            "accy_gate": (3, self._gate),
            "accy_clear": (1, self._clear),
            "accy_swap": (3, self._swap),
        }
        self._functions: dict[int, str] = {}
        self._graphs: dict[int, list[Callable[[], None]]] = {}
        self._executables: dict[int, int] = {}
        self._nodes: dict[int, tuple[int, int]] = {}
        self._values: dict[int, int] = {}
        self._kept: list[object] = []

    # Memory, modules, graphs

    def _cuMemAllocFromPoolAsync(self, size: int, pool: Any, stream: Any) -> tuple[int]:
        del pool, stream
        (start,) = self._cuMemHostAlloc(size + _ALIGNMENT, 0)
        return (-(-start // _ALIGNMENT) * _ALIGNMENT,)

    def _cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any]:
        (function,) = super()._cuModuleGetFunction(module, name)
        self._functions[int(function)] = name.decode()
        return (function,)

    def _cuGraphCreate(self, flags: int) -> tuple[Any]:
        (graph,) = super()._cuGraphCreate(flags)
        self._graphs[int(graph)] = []
        return (graph,)

    def _cuGraphInstantiate(self, graph: Any, flags: int) -> tuple[Any]:
        (executable,) = super()._cuGraphInstantiate(graph, flags)
        self._executables[int(executable)] = int(graph)
        return (executable,)

    def _cuGraphLaunch(self, executable: Any, stream: Any) -> tuple[()]:
        del stream
        self._play(self._executables[int(executable)])
        return ()

    def _play(self, graph: int) -> None:
        for run in self._graphs[graph]:
            run()

    # Nodes

    def _add(self, graph: Any, run: Callable[[], None]) -> tuple[Any]:
        node = self._handle()
        self._nodes[node] = int(graph), len(self._graphs[int(graph)])
        self._graphs[int(graph)].append(run)
        return (bindings.CUgraphNode(node),)

    def _change(self, node: Any, run: Callable[[], None]) -> tuple[()]:
        graph, place = self._nodes[int(node)]
        self._graphs[graph][place] = run
        return ()

    def _added_node(self, graph: Any, after: Any, count: int, *more: Any) -> tuple[Any]:
        assert len(after or ()) == count
        for node in after or ():
            assert self._nodes[int(node)][0] == int(graph)
        what = more[0] if more else None
        if isinstance(what, bindings.CUDA_KERNEL_NODE_PARAMS):
            return self._add(graph, self._launching(what))
        if isinstance(what, bindings.CUDA_MEMCPY3D):
            return self._add(graph, _copying(what))
        if isinstance(what, bindings.CUDA_MEMSET_NODE_PARAMS):
            return self._add(graph, _setting(what))
        return self._add(graph, lambda: None)

    def _cuGraphExecKernelNodeSetParams(self, _: Any, node: Any, what: Any) -> Any:
        return self._change(node, self._launching(what))

    def _cuGraphAddNode(
        self, graph: Any, after: Any, data: Any, count: int, node: Any
    ) -> tuple[Any]:
        del data
        (body,) = self._cuGraphCreate(0)
        answer = (ctypes.c_uint64 * 1)(int(body))
        self._kept.append(answer)
        field = node.conditional.getPtr() + _BODY_OFFSET
        ctypes.c_uint64.from_address(field).value = ctypes.addressof(answer)
        handle = int(node.conditional.handle)
        kinds = bindings.CUgraphConditionalNodeType
        repeats = node.conditional.type == kinds.CU_GRAPH_COND_TYPE_WHILE

        def run() -> None:
            while self._values[handle]:
                self._play(int(body))
                if not repeats:
                    return

        for one in after or ():
            assert self._nodes[int(one)][0] == int(graph)
        assert len(after or ()) == count
        return self._add(graph, run)

    def _cuGraphConditionalHandleCreate(self, *arguments: Any) -> tuple[Any]:
        (handle,) = super()._cuGraphConditionalHandleCreate(*arguments)
        self._values[int(handle)] = 0xDEAD  # what nobody has set decides nothing
        return (handle,)

    def _launching(self, node: Any) -> Callable[[], None]:
        """The kernel, with its arguments as they are now: the driver copies them."""
        name = self._functions[int(node.func)]
        count, kernel = self._kernels[name]
        pointers = (ctypes.c_uint64 * count).from_address(int(node.kernelParams))
        arguments = [
            ctypes.c_uint64.from_address(pointer).value for pointer in pointers
        ]

        def run() -> None:
            self.played.append(name)
            kernel(*arguments)

        return run

    # What loops' kernels do

    def _begin(self, counter: int, count: int, loop: int) -> None:
        ctypes.c_uint64.from_address(counter).value = count
        self._values[loop] = int(count != 0)

    def _next_turn(self, counter: int, loop: int, turn: int, end: int) -> None:
        left = ctypes.c_uint64.from_address(counter)
        left.value -= 1
        self._set((loop, turn), left.value != 0)
        self._set((end,), left.value == 0)

    def _stop(self, word: int, counter: int, value: int) -> None:
        if ctypes.c_uint32.from_address(word).value != 0:
            ctypes.c_uint64.from_address(counter).value = value

    def _look(self, word: int, loop: int, turn: int, end: int) -> None:
        goes_on = ctypes.c_uint32.from_address(word).value != 0
        self._set((loop, turn), goes_on)
        self._set((end,), not goes_on)

    def _limit(self, counter: int, limit: int, verdict: int) -> None:
        ctypes.c_uint64.from_address(counter).value = limit
        ctypes.c_uint32.from_address(verdict).value = 0

    def _bound(
        self, word: int, loop: int, turn: int, end: int, counter: int, verdict: int
    ) -> None:
        holds = ctypes.c_uint32.from_address(word).value != 0
        left = ctypes.c_uint64.from_address(counter)
        goes_on = holds and 0 < left.value < 2**64 - 1
        if holds and left.value == 0:
            ctypes.c_uint32.from_address(verdict).value = 1
        left.value -= goes_on
        self._set((loop, turn), goes_on)
        self._set((end,), not goes_on)

    def _gate(self, word: int, branch: int, first: int) -> None:
        has_failed = ctypes.c_uint32.from_address(word).value != 0
        if first or has_failed:
            self._set((branch,), not has_failed)

    def _clear(self, end: int) -> None:
        self._values[end] = 0

    def _swap(self, one: int, other: int, size: int) -> None:
        kept = ctypes.string_at(one, size)
        ctypes.memmove(one, other, size)
        ctypes.memmove(other, kept, size)

    def _set(self, handles: Sequence[int], value: bool) -> None:
        for handle in handles:
            if handle:
                self._values[handle] = int(value)


def _copying(what: Any) -> Callable[[], None]:
    host = bindings.CUmemorytype.CU_MEMORYTYPE_HOST
    source = what.srcHost if what.srcMemoryType == host else what.srcDevice
    target = what.dstHost if what.dstMemoryType == host else what.dstDevice
    read, written, size = int(source), int(target), what.WidthInBytes

    def run() -> None:
        ctypes.memmove(written, read, size)

    return run


def _setting(what: Any) -> Callable[[], None]:
    address, pitch = int(what.dst), what.pitch
    element = what.value.to_bytes(what.elementSize, "little")
    row, rows = element * what.width, what.height

    def run() -> None:
        for number in range(rows):
            ctypes.memmove(address + number * pitch, row, len(row))

    return run
