"""Launches: packed once, recorded again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accy_async.artifact.scalarblock import ScalarBlock
from accy_async.backends.vulkan.streams import Operation
from accy_async.errors import CapabilityMismatch, DeviceError, LaunchArgumentMismatch

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard
    from accy_async.backends.journal import Label
    from accy_async.backends.launch import LaunchRequest
    from accy_async.backends.vulkan.device import VulkanDevice
    from accy_async.backends.vulkan.kernels import VulkanKernel
    from accy_async.backends.vulkan.memory import VulkanMemory
    from accy_async.backends.vulkan.status import StatusWords
    from accy_async.backends.vulkan.streams import VulkanStream

__all__ = ["Launch", "VulkanLaunch", "assertion_error"]

_COMPUTE = 1
"""VK_PIPELINE_BIND_POINT_COMPUTE."""

_STAGE = 0x20
"""VK_SHADER_STAGE_COMPUTE_BIT."""


class VulkanLaunch:
    """A launch as it is recorded: its set, its scalars, its grid.

    Attributes:
        kernel: the kernel.
        reads, writes: the memory that it uses, apart.

    Raises:
        LaunchArgumentMismatch: scalars or threads are not the kernel's.
        CapabilityMismatch: a buffer is larger than the device lets kernels see, or
            dynamic shared memory is asked for.
    """

    __slots__ = ("_grid", "_pushed", "_set", "kernel", "reads", "writes")

    def __init__(
        self,
        device: VulkanDevice,
        kernel: VulkanKernel,
        request: LaunchRequest,
        memories: list[VulkanMemory],
    ) -> None:
        self.kernel = kernel
        _check(kernel, request)
        block = ScalarBlock(scalar.dtype for scalar in request.scalars)
        pushed = block.pack(request.scalars)
        if len(pushed) != kernel.push_bytes:
            raise LaunchArgumentMismatch(
                f"kernel {kernel.name!r} takes {kernel.push_bytes} bytes of scalars, "
                f"the launch gives {len(pushed)}"
            )
        self._pushed = device.vulkan.ffi.from_buffer(pushed)
        self._grid = request.geometry.grid
        ranges = []
        for index, (binding, memory) in enumerate(
            zip(request.buffers, memories, strict=True)
        ):
            size = max(4, -(-binding.byte_size // 4) * 4)
            if size > device.limits.max_storage_bytes:
                raise CapabilityMismatch(
                    f"kernel {kernel.name!r}: buffer {index} is {binding.byte_size} "
                    f"bytes, the device's maxStorageBufferRange is "
                    f"{device.limits.max_storage_bytes}"
                )
            ranges.append((memory.block, memory.offset, size))
        self.writes = tuple(
            dict.fromkeys(memories[index] for index in sorted(kernel.writes))
        )
        self.reads = tuple(
            dict.fromkeys(memory for memory in memories if memory not in self.writes)
        )
        self._set = kernel.take_set(tuple(ranges))

    def record(self, commands: Any, lib: Any, word: Any) -> None:  # noqa: ANN401
        """Record it, its word's offset by a pointer."""
        kernel, bound = self.kernel, self._set
        lib.vkCmdBindPipeline(commands, _COMPUTE, kernel.pipeline)
        if bound is not None:
            lib.vkCmdBindDescriptorSets(
                commands,
                _COMPUTE,
                kernel.layout,
                0,
                1,
                bound.pointer,
                int(kernel.can_fail),
                word,
            )
        if kernel.push_bytes:
            lib.vkCmdPushConstants(
                commands, kernel.layout, _STAGE, 0, kernel.push_bytes, self._pushed
            )
        lib.vkCmdDispatch(commands, *self._grid)


class Launch(Operation):
    """A kernel over a grid."""

    __slots__ = ("_launch", "_offset", "_stream_id", "_words", "label")
    call = "launch"
    label: Label

    def __init__(
        self,
        position: int,
        guard: Guard | None,
        launch: VulkanLaunch,
        label: Label,
        words: StatusWords,
    ) -> None:
        self.position = position
        self.guard = guard
        self._launch = launch
        self.label = label
        self._words = words
        self._offset = 0
        self._stream_id: int | None = None

    @property
    def can_fail(self) -> bool:  # type: ignore[override]
        return self._launch.kernel.can_fail

    @property
    def is_ready(self) -> bool:
        return not self._launch.kernel.can_fail or self._words.has_room

    def hand_over(self, stream: VulkanStream) -> None:
        queue, launch = stream.turn_to(stream.queue), self._launch
        vulkan = queue.device.vulkan
        commands = queue.commands(launch.reads, launch.writes)
        word = vulkan.null
        if launch.kernel.can_fail:
            self._offset = self._words.take()
            self._stream_id = stream.id
            word = vulkan.ffi.new("uint32_t*", self._offset)
            queue.batch().writes_host = True
        launch.record(commands, vulkan.lib, word)
        queue.batch().kept.append(launch)
        finisher = self._finish if launch.kernel.can_fail else None
        queue.end(stream, self.position, finisher, self.guard)

    def _finish(self, has_run: bool) -> DeviceError | None:
        """What the kernel's assertions have left."""
        status = self._words.read(self._offset)
        self._words.give_back(self._offset)
        if not status or not has_run:
            return None
        return assertion_error(status, self.label, self._stream_id)


def assertion_error(status: int, label: Label, stream: int | None) -> DeviceError:
    """The error of a launch whose assertion has left a code."""
    return DeviceError(
        f"assertion {status} failed",
        code=status,
        call="launch",
        node=label.node,
        kernel=label.kernel,
        stream=stream,
    )


def _check(kernel: VulkanKernel, request: LaunchRequest) -> None:
    geometry = request.geometry
    if geometry.threadgroup != kernel.local_size:
        raise LaunchArgumentMismatch(
            f"kernel {kernel.name!r}: threadgroup is {geometry.threadgroup}, expected "
            f"{kernel.local_size}, which the module sets"
        )
    if geometry.dynamic_shared_memory_bytes:
        raise CapabilityMismatch(
            f"kernel {kernel.name!r}: {geometry.dynamic_shared_memory_bytes} bytes of "
            "dynamic shared memory, Vulkan has none: the module's arrays are all"
        )
