"""Launches: packed once, recorded again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accy_async.artifact.scalarblock import ScalarBlock
from accy_async.backends.vulkan.bound import Bound
from accy_async.backends.vulkan.streams import Operation
from accy_async.errors import CapabilityMismatch, DeviceError, LaunchArgumentMismatch

if TYPE_CHECKING:
    from accy_async.backends.guards import Guard
    from accy_async.backends.journal import Label
    from accy_async.backends.launch import LaunchRequest
    from accy_async.backends.vulkan.device import VulkanDevice
    from accy_async.backends.vulkan.kernels import VulkanKernel
    from accy_async.backends.vulkan.memory import VulkanMemory
    from accy_async.backends.vulkan.queue import VulkanQueue
    from accy_async.backends.vulkan.recorder import Recorder, Recording
    from accy_async.backends.vulkan.status import StatusWords
    from accy_async.backends.vulkan.streams import VulkanStream

__all__ = ["Launch", "VulkanLaunch", "assertion_error", "launch_on"]

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

    __slots__ = (
        "_grid",
        "_is_known",
        "_pushed",
        "_recordings",
        "_scalars",
        "_set",
        "kernel",
        "reads",
        "writes",
    )

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
        self._scalars = pushed
        self._pushed = device.vulkan.ffi.from_buffer(pushed)
        self._recordings: list[Recording | None] = [None, None]
        self._is_known = False
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

    def record(self, commands: Any, lib: Any, bound: Bound, word: Any) -> None:  # noqa: ANN401
        """Record it behind what is bound, its word's offset by a pointer."""
        kernel, descriptors = self.kernel, self._set
        if bound.kernel is not kernel:
            lib.vkCmdBindPipeline(commands, _COMPUTE, kernel.pipeline)
            bound.kernel = kernel
            bound.descriptors = bound.scalars = None
        if descriptors is not None and descriptors is not bound.descriptors:
            lib.vkCmdBindDescriptorSets(
                commands,
                _COMPUTE,
                kernel.layout,
                0,
                1,
                descriptors.pointer,
                int(kernel.can_fail),
                word,
            )
            if not kernel.can_fail:  # whose word is another each time
                bound.descriptors = descriptors
        if kernel.push_bytes and bound.scalars != self._scalars:
            lib.vkCmdPushConstants(
                commands, kernel.layout, _STAGE, 0, kernel.push_bytes, self._pushed
            )
            bound.scalars = self._scalars
        lib.vkCmdDispatch(commands, *self._grid)

    def is_repeated(self) -> bool:
        """Whether it was asked for before: then a recording of its own is worth it."""
        was_known, self._is_known = self._is_known, True
        return was_known

    def recording(
        self, recorder: Recorder, queue: VulkanQueue, *, is_held: bool
    ) -> Recording:
        """Its own recording, behind a barrier or not.

        Raises:
            AccyError: the driver refuses it.
        """
        found = self._recordings[is_held]
        if found is None:

            def write(commands: Any) -> None:  # noqa: ANN401
                vulkan = queue.device.vulkan
                if is_held:
                    queue.synchronization.hold_apart(commands)
                self.record(commands, vulkan.lib, Bound(), vulkan.null)

            # It keeps us alive as long as we keep it, and no longer.
            found = self._recordings[is_held] = recorder.record(write, None)
        return found


def launch_on(
    stream: VulkanStream,
    launch: VulkanLaunch,
    position: int,
    guard: Guard | None,
    recorder: Recorder | None,
) -> None:
    """Hand over a launch that cannot fail, which nothing has to wait for.

    Args:
        stream: where it runs.
        launch: the launch.
        position: where on the stream's timeline.
        guard: told of its failure.
        recorder: has recordings of launches that are made again and again; None where
            the launch is to be recorded with others.

    Raises:
        AccyError: the driver refuses.
    """
    queue, last = stream.queue, stream.batch
    if last is not None and last.queue is not queue:
        stream.turn_to(queue)
    if recorder is not None and launch.is_repeated():
        is_held = queue.hold(launch.reads, launch.writes)
        try:
            recording = launch.recording(recorder, queue, is_held=is_held)
        except BaseException:
            queue.hazards.forget_barriers()  # its own is not there
            raise
        queue.put(recording.native)
        batch = queue.batch()
    else:
        vulkan = queue.device.vulkan
        commands = queue.commands(launch.reads, launch.writes)
        batch = queue.batch()
        launch.record(commands, vulkan.lib, batch.bound, vulkan.null)
    batch.kept.append(launch)
    queue.end(stream, position, None, guard)


class Launch(Operation):
    """A kernel over a grid."""

    __slots__ = ("_launch", "_offset", "_recorder", "_stream_id", "_words", "label")
    call = "launch"
    label: Label

    def __init__(
        self,
        position: int,
        guard: Guard | None,
        launch: VulkanLaunch,
        label: Label,
        words: StatusWords,
        recorder: Recorder | None,
    ) -> None:
        self.position = position
        self.guard = guard
        self._launch = launch
        self.label = label
        self._words = words
        self._recorder = recorder
        self._offset = 0
        self._stream_id: int | None = None

    @property
    def can_fail(self) -> bool:  # type: ignore[override]
        return self._launch.kernel.can_fail

    @property
    def is_ready(self) -> bool:
        return not self._launch.kernel.can_fail or self._words.has_room

    def hand_over(self, stream: VulkanStream) -> None:
        launch = self._launch
        if not launch.kernel.can_fail:
            launch_on(stream, launch, self.position, self.guard, self._recorder)
            return
        queue = stream.turn_to(stream.queue)
        vulkan = queue.device.vulkan
        commands = queue.commands(launch.reads, launch.writes)
        batch = queue.batch()
        self._offset = self._words.take()
        self._stream_id = stream.id
        word = vulkan.ffi.new("uint32_t*", self._offset)
        batch.writes_host = True
        launch.record(commands, vulkan.lib, batch.bound, word)
        batch.kept.append(launch)
        queue.end(stream, self.position, self._finish, self.guard)

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
