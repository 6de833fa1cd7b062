"""What stands beside ours: the bare driver, and wgpu-py.

All launch the same thing: an addition of one u32 to another, in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from accy_async.backends.launch import PreparedLaunch
from accy_async.backends.vulkan import VulkanBackend
from accy_async.backends.vulkan.barriers import Synchronization
from accy_async.backends.vulkan.bound import Bound
from accy_async.backends.vulkan.hub import wait_for
from accy_async.backends.vulkan.launching import VulkanLaunch

__all__ = ["Bare", "Wgpu"]

_PATIENCE_NS = 30 * 10**9


class Bare:
    """The driver's calls alone, on a queue of its own backend's device.

    Args:
        backend: has the device; nothing else may be submitted to its first queue.
    """

    def __init__(self, backend: VulkanBackend) -> None:
        self._device = backend._device  # noqa: SLF001 - the driver's own handles
        self._vulkan = vulkan = self._device.vulkan
        self._queue = backend._queues[0].native  # noqa: SLF001
        self._barriers = Synchronization(vulkan, self._device.family)
        kind = vulkan.struct(
            "VkSemaphoreTypeCreateInfo",
            semaphoreType=vulkan.lib.VK_SEMAPHORE_TYPE_TIMELINE,
        )
        self._semaphore = self._device.make(
            "Semaphore", vulkan.struct("VkSemaphoreCreateInfo", pNext=kind)
        )
        self._pool = self._device.make(
            "CommandPool",
            vulkan.struct(
                "VkCommandPoolCreateInfo", queueFamilyIndex=self._device.family.index
            ),
        )
        self._count = 0

    def record(self, levels: Sequence[Sequence[PreparedLaunch]]) -> Callable[[], None]:
        """Record launches, a barrier before each level; returns what submits them."""
        vulkan = self._vulkan
        commands = vulkan.get(
            "vkAllocateCommandBuffers",
            "VkCommandBuffer",
            self._device.native,
            vulkan.struct(
                "VkCommandBufferAllocateInfo",
                commandPool=self._pool,
                level=vulkan.lib.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                commandBufferCount=1,
            ),
        )
        begin = vulkan.struct(
            "VkCommandBufferBeginInfo",
            flags=vulkan.lib.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT,
        )
        vulkan.call("vkBeginCommandBuffer", commands, begin)
        bound = Bound()
        for level in levels:
            self._barriers.hold_apart(commands)
            for prepared in level:
                launch = cast("VulkanLaunch", prepared.payload)
                launch.record(commands, vulkan.lib, bound, vulkan.null)
        vulkan.call("vkEndCommandBuffer", commands)
        value = vulkan.array("uint64_t", [0])
        numbers = vulkan.struct(
            "VkTimelineSemaphoreSubmitInfo",
            signalSemaphoreValueCount=1,
            pSignalSemaphoreValues=value,
        )
        info = vulkan.struct(
            "VkSubmitInfo",
            pNext=numbers,
            commandBufferCount=1,
            pCommandBuffers=vulkan.array("VkCommandBuffer", [commands]),
            signalSemaphoreCount=1,
            pSignalSemaphores=vulkan.array("VkSemaphore", [self._semaphore]),
        )
        submit, queue, null = vulkan.lib.vkQueueSubmit, self._queue, vulkan.null

        def submit_it() -> None:
            self._count += 1
            value[0] = self._count
            submit(queue, 1, info, null)

        return submit_it

    def wait(self) -> None:
        """Return once all of it is done."""
        wait_for(self._device, [(self._semaphore, self._count)], _PATIENCE_NS)


class Wgpu:
    """The same addition by wgpu-py, on its Vulkan adapter of that name.

    Args:
        device: the name of the Vulkan device.
        chains: how many words there are to add to.

    Raises:
        ImportError: it is not installed.
        LookupError: it has no such adapter.
    """

    SHADER = """
        @group(0) @binding(0) var<storage, read_write> x: array<u32>;
        @group(0) @binding(1) var<storage, read> one: array<u32>;
        @compute @workgroup_size(256)
        fn add(@builtin(global_invocation_id) id: vec3<u32>) {
            if (id.x < 1u) { x[id.x] = x[id.x] + one[id.x]; }
        }
    """

    def __init__(self, device: str, chains: int = 1) -> None:
        import wgpu

        adapters = wgpu.gpu.enumerate_adapters_sync()
        adapter = next(
            (
                one
                for one in adapters
                if one.info["backend_type"] == "Vulkan" and one.info["device"] == device
            ),
            None,
        )
        if adapter is None:
            found = ", ".join(one.info["device"] for one in adapters)
            raise LookupError(f"wgpu has no Vulkan adapter {device!r}; it has {found}")
        self._device = adapter.request_device_sync()
        usage = wgpu.BufferUsage
        flags = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        module = self._device.create_shader_module(code=self.SHADER)
        self._pipeline = self._device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "add"}
        )
        one = self._device.create_buffer(size=4, usage=flags)
        self._device.queue.write_buffer(one, 0, b"\1\0\0\0")
        self._words = [
            self._device.create_buffer(size=4, usage=flags) for _ in range(chains)
        ]
        layout = self._pipeline.get_bind_group_layout(0)
        self._groups = [
            self._device.create_bind_group(
                layout=layout,
                entries=[self._entry(0, word), self._entry(1, one)],
            )
            for word in self._words
        ]

    def submit(self, count: int = 1) -> None:
        """Encode so many launches in one pass, each chain in its turn; submit it."""
        encoder = self._device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(self._pipeline)
        for number in range(count):
            if number == 0 or len(self._groups) > 1:
                compute.set_bind_group(0, self._groups[number % len(self._groups)])
            compute.dispatch_workgroups(1)
        compute.end()
        self._device.queue.submit([encoder.finish()])

    def wait(self) -> None:
        """Return once all of it is done.

        By reading four bytes: its `on_submitted_work_done` raises in wgpu 0.32.
        """
        self._device.queue.read_buffer(self._words[0])

    @staticmethod
    def _entry(binding: int, buffer: Any) -> dict[str, Any]:  # noqa: ANN401
        resource = {"buffer": buffer, "offset": 0, "size": 4}
        return {"binding": binding, "resource": resource}
