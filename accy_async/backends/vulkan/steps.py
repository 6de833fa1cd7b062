"""The nodes of a device graph as commands: what each uses, and how it is recorded."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from accy_async.backends.devicegraph import (
    GraphBody,
    GraphBranch,
    GraphCopy,
    GraphDownload,
    GraphFill,
    GraphLoop,
    GraphOperation,
    GraphUpload,
)
from accy_async.backends.launch import PreparedLaunch
from accy_async.backends.vulkan.memory import MemoryKind
from accy_async.backends.vulkan.regions import Pattern, Place, copy_region, fill_region
from accy_async.errors import CapabilityMismatch

if TYPE_CHECKING:
    import numpy as np

    from accy_async.backends.handles import BufferHandle, Handle
    from accy_async.backends.resources import Resource
    from accy_async.backends.vulkan.binding import Vulkan
    from accy_async.backends.vulkan.bound import Bound
    from accy_async.backends.vulkan.launching import VulkanLaunch
    from accy_async.backends.vulkan.memory import Allocator, VulkanMemory
    from accy_async.backends.vulkan.status import StatusWords

__all__ = ["CopyStep", "FillStep", "LaunchStep", "Staging", "Step", "StepMaker"]


class Staging:
    """Memory that stands for an array of the host within a graph.

    Attributes:
        array: the array.
        memory: the memory.
        is_loaded: whether it has to hold the array's values when the graph begins.
    """

    __slots__ = ("array", "is_loaded", "memory")

    def __init__(
        self, array: np.ndarray, memory: VulkanMemory, *, is_loaded: bool
    ) -> None:
        self.array = array
        self.memory = memory
        self.is_loaded = is_loaded

    def load(self) -> None:
        """Take the array's values."""
        ctypes.memmove(
            self.memory.address, self.array.ctypes.data, self.memory.byte_size
        )

    def store(self) -> None:
        """Give the array what the device wrote."""
        ctypes.memmove(
            self.array.ctypes.data, self.memory.address, self.memory.byte_size
        )


class Step:
    """A node that comes to commands.

    Attributes:
        reads, writes: the memory that it uses, apart; staging left out.
        stores: what has to be stored once it is done.
        has_staging: whether it uses memory that is no buffer's.
    """

    reads: tuple[VulkanMemory, ...] = ()
    writes: tuple[VulkanMemory, ...] = ()
    stores: Staging | None = None
    has_staging = False

    def record(self, vulkan: Vulkan, commands: Any, bound: Bound) -> None:  # noqa: ANN401
        """Record it behind what is bound; barriers are the caller's affair."""
        raise NotImplementedError


class CopyStep(Step):
    """A copy, also from and to staging memory."""

    def __init__(self, source: Place, target: Place, byte_size: int) -> None:
        self._ends = source, target
        self._byte_size = byte_size

    def record(self, vulkan: Vulkan, commands: Any, bound: Bound) -> None:  # noqa: ANN401
        copy_region(vulkan, commands, *self._ends, self._byte_size)


class FillStep(Step):
    """A pattern, with staging memory for it where it takes any."""

    def __init__(
        self, target: VulkanMemory, pattern: Pattern, staged: VulkanMemory | None
    ) -> None:
        self.writes = (target,)
        self._fill = target, pattern, staged

    def record(self, vulkan: Vulkan, commands: Any, bound: Bound) -> None:  # noqa: ANN401
        fill_region(vulkan, commands, *self._fill)


class LaunchStep(Step):
    """A launch.

    Attributes:
        launch: as it is recorded.
        offset: of its word, where it may fail; None where not.
    """

    def __init__(
        self, vulkan: Vulkan, launch: VulkanLaunch, offset: int | None
    ) -> None:
        self.launch = launch
        self.offset = offset
        self.reads, self.writes = launch.reads, launch.writes
        self._word = vulkan.null
        if offset is not None:
            self._word = vulkan.ffi.new("uint32_t*", offset)

    def record(self, vulkan: Vulkan, commands: Any, bound: Bound) -> None:  # noqa: ANN401
        self.launch.record(commands, vulkan.lib, bound, self._word)


class StepMaker:
    """Makes the steps of one graph, and has the memory that they take.

    Args:
        vulkan: the binding.
        allocator: where staging memory comes from.
        words: where words for assertions come from.
        lock: the submission lock.

    Attributes:
        staging: of each array of the host, by its identity.
    """

    def __init__(
        self,
        vulkan: Vulkan,
        allocator: Allocator,
        words: StatusWords,
        lock: AbstractContextManager[object],
    ) -> None:
        self._vulkan = vulkan
        self._allocator = allocator
        self._words = words
        self._lock = lock
        self._patterns: dict[tuple[bytes, int], VulkanMemory] = {}
        self._offsets: dict[int, int] = {}
        self.staging: dict[int, Staging] = {}

    def take_staging(self, body: GraphBody) -> None:
        """Take memory for the arrays that the body copies from and to.

        Raises:
            OutOfMemory: there is none left.
            CapabilityMismatch: the body has a loop, which no command can be.
        """
        loaded: set[int] = set()
        stored: set[int] = set()
        arrays: dict[int, np.ndarray] = {}
        for node in body:
            operation = node.operation
            if isinstance(operation, (GraphLoop, GraphBranch)):
                raise CapabilityMismatch("create_graph: Vulkan decides on no loops")
            if isinstance(operation, (GraphUpload, GraphDownload)):
                arrays[id(operation.array)] = operation.array
                is_upload = isinstance(operation, GraphUpload)
                (loaded if is_upload else stored).add(id(operation.array))
        for key, array in arrays.items():
            if not array.nbytes:
                continue
            kind = MemoryKind.DOWNLOAD if key in stored else MemoryKind.UPLOAD
            memory = self._allocator.take(kind, array.nbytes)
            self.staging[key] = Staging(array, memory, is_loaded=key in loaded)

    def make(
        self, place: int, operation: GraphOperation, objects: Mapping[Handle, Resource]
    ) -> Step | None:
        """A node's step; None for one that comes to no command.

        Args:
            place: the node's, which keeps its word.
            operation: what it does.
            objects: what it uses.

        Raises:
            OutOfMemory: there is no memory, or no word, left.
        """
        if isinstance(operation, PreparedLaunch):
            return self._make_launch(place, operation)

        def memory(buffer: BufferHandle) -> VulkanMemory:
            return cast("VulkanMemory", objects[buffer].payload)

        step: CopyStep
        if isinstance(operation, GraphFill):
            return self._make_fill(memory(operation.target), operation)
        if isinstance(operation, GraphCopy):
            if not operation.byte_size:
                return None
            read, written = memory(operation.source), memory(operation.target)
            step = CopyStep((read, 0), (written, 0), operation.byte_size)
            step.reads, step.writes = (read,), (written,)
            return step
        if not isinstance(operation, (GraphUpload, GraphDownload)):
            return None
        staging = self.staging.get(id(operation.array))
        if staging is None:
            return None
        size = staging.memory.byte_size
        if isinstance(operation, GraphUpload):
            written = memory(operation.target)
            step = CopyStep((staging.memory, 0), (written, 0), size)
            step.writes = (written,)
        else:
            read = memory(operation.source)
            step = CopyStep((read, 0), (staging.memory, 0), size)
            step.reads, step.stores = (read,), staging
        step.has_staging = True
        return step

    def close(self) -> None:
        """Give all of it back; nothing of it may be in use."""
        for staging in self.staging.values():
            self._allocator.give_back(staging.memory)
        for memory in self._patterns.values():
            self._allocator.give_back(memory)
        with self._lock:
            for offset in self._offsets.values():
                self._words.give_back(offset)
        self.staging, self._patterns, self._offsets = {}, {}, {}

    def _make_launch(self, place: int, prepared: PreparedLaunch) -> Step | None:
        if not prepared.has_blocks:
            return None
        launch = cast("VulkanLaunch", prepared.payload)
        offset: int | None = None
        if launch.kernel.can_fail:
            if place not in self._offsets:
                with self._lock:
                    self._offsets[place] = self._words.reserve()
            offset = self._offsets[place]
        return LaunchStep(self._vulkan, launch, offset)

    def _make_fill(self, target: VulkanMemory, fill: GraphFill) -> Step | None:
        if not fill.byte_size:
            return None
        pattern = Pattern(fill.pattern, fill.byte_size)
        staged: VulkanMemory | None = None
        if pattern.staged_bytes:
            key = fill.pattern, pattern.staged_bytes
            staged = self._patterns.get(key)
            if staged is None:
                staged = self._allocator.take(MemoryKind.UPLOAD, pattern.staged_bytes)
                self._patterns[key] = staged
                pattern.stage(staged)
        return FillStep(target, pattern, staged)
