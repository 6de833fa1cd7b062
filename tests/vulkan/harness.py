"""Runs kernels of the kernel form on a Vulkan device, on numpy arrays.

One device serves them all; every launch makes what it needs and destroys it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from accy_async.artifact.scalarblock import ScalarBlock
from accy_async.artifact.spirv import check_spirv
from accy_async.compiler.emit.text import (
    VulkanFeature,
    VulkanTarget,
    compile_spirv,
    emit_glsl,
)
from accy_async.compiler.emit.text.glslang import compile_shader, find_glslang
from accy_async.compiler.form import Kernel
from accy_async.dtypes import ScalarArgument
from tests import threads
from tests.compiler.harness import Array, Grid, KernelRunner

__all__ = [
    "Device",
    "VulkanRunner",
    "device",
    "has_validation",
    "join_threads",
    "unavailable",
]

join_threads = functools.partial(threads.join_threads, named=("accy_async vulkan",))
"""Waits for the hubs of closed backends to end."""

_WHOLE_SIZE = 2**64 - 1  # the binding has it as a negative number
_CONTROLS = {
    VulkanFeature.NANS_32,
    VulkanFeature.NANS_64,
    VulkanFeature.ROUNDING_32,
    VulkanFeature.ROUNDING_64,
    VulkanFeature.SUBNORMALS_32,
    VulkanFeature.SUBNORMALS_64,
}


@functools.cache
def unavailable() -> str:
    """Why no kernel can run here; empty where one can."""
    try:
        device()
    except Exception as error:  # noqa: BLE001 - whatever a driver or its absence raises
        return f"{type(error).__name__}: {error}"
    return "" if find_glslang() else "there is no glslang"


@functools.cache
def has_validation() -> bool:
    """Whether the validation layer is installed."""
    import vulkan as vk

    names = [layer.layerName for layer in vk.vkEnumerateInstanceLayerProperties()]
    return "VK_LAYER_KHRONOS_validation" in names


@functools.cache
def device() -> Device:
    """The one device."""
    return Device()


class Device:
    """The first Vulkan device that computes, with all it can do enabled."""

    def __init__(self) -> None:
        import vulkan as vk

        self.vk: Any = vk
        application = vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 2, 0))
        self.instance = vk.vkCreateInstance(
            vk.VkInstanceCreateInfo(pApplicationInfo=application), None
        )
        self.physical = vk.vkEnumeratePhysicalDevices(self.instance)[0]
        self.properties = vk.vkGetPhysicalDeviceProperties(self.physical)
        features = self._features()
        families = vk.vkGetPhysicalDeviceQueueFamilyProperties(self.physical)
        family = next(
            index
            for index, found in enumerate(families)
            if found.queueFlags & vk.VK_QUEUE_COMPUTE_BIT
        )
        queue = vk.VkDeviceQueueCreateInfo(
            queueFamilyIndex=family, queueCount=1, pQueuePriorities=[1.0]
        )
        self.handle = vk.vkCreateDevice(
            self.physical,
            vk.VkDeviceCreateInfo(pNext=features, pQueueCreateInfos=[queue]),
            None,
        )
        self.queue = vk.vkGetDeviceQueue(self.handle, family, 0)
        self.pool = vk.vkCreateCommandPool(
            self.handle, vk.VkCommandPoolCreateInfo(queueFamilyIndex=family), None
        )

    target: VulkanTarget

    def _features(self) -> Any:
        """What the device has, which is also how to enable it."""
        vk = self.vk
        twelve = vk.VkPhysicalDeviceVulkan12Features()
        eleven = vk.VkPhysicalDeviceVulkan11Features(pNext=twelve)
        features = vk.VkPhysicalDeviceFeatures2(pNext=eleven)
        vk.vkGetPhysicalDeviceFeatures2(self.physical, features)
        controls = vk.VkPhysicalDeviceFloatControlsProperties()
        properties = vk.VkPhysicalDeviceProperties2(pNext=controls)
        vk.vkGetPhysicalDeviceProperties2(self.physical, properties)
        places = {
            VulkanFeature.FLOAT64: features.features,
            VulkanFeature.INT64: features.features,
            VulkanFeature.STORAGE_8: twelve,
            VulkanFeature.STORAGE_16: eleven,
            **dict.fromkeys(_CONTROLS, controls),
        }
        limits = self.properties.limits
        self.target = VulkanTarget(
            features=frozenset(
                feature
                for feature, place in places.items()
                if getattr(place, feature.value)
            ),
            max_threads=limits.maxComputeWorkGroupInvocations,
            max_threadgroup=tuple(limits.maxComputeWorkGroupSize),
            max_shared_bytes=limits.maxComputeSharedMemorySize,
            max_push_constant_bytes=limits.maxPushConstantsSize,
            max_storage_buffers=limits.maxPerStageDescriptorStorageBuffers,
        )
        self._keep = (twelve, eleven)
        return features

    def memory_type(self, allowed: int) -> int:
        """Memory that the host writes and reads without more ado."""
        vk = self.vk
        wanted = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT
        wanted |= vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
        memory = vk.vkGetPhysicalDeviceMemoryProperties(self.physical)
        return next(
            index
            for index in range(memory.memoryTypeCount)
            if allowed >> index & 1
            and memory.memoryTypes[index].propertyFlags & wanted == wanted
        )


class VulkanRunner(KernelRunner):
    """Kernels on the device; ``edit`` may change their GLSL before it is compiled."""

    def __init__(
        self, kernels: Sequence[Kernel], edit: Callable[[str], str] | None = None
    ) -> None:
        super().__init__(kernels)
        self._device = device()
        self._edit = edit
        self._payloads: dict[str, bytes] = {}

    def _launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Array],
        scalars: Sequence[ScalarArgument],
        grid: Grid,
    ) -> int:
        payload = self._payloads.get(kernel.name) or self._compile(kernel)
        self._payloads[kernel.name] = payload
        module = check_spirv(payload, kernel.name)
        status = np.zeros(1, np.uint32)
        given = [*buffers, status][: len(module.bindings)]
        pushed = ScalarBlock(s.dtype for s in kernel.scalars).pack(scalars)
        assert len(pushed) == module.push_constant_bytes
        with ExitStack() as stack:
            launch = _Launch(self._device, stack)
            launch.run(payload, kernel.name, given, pushed, grid)
        return int(status[0])

    def _compile(self, kernel: Kernel) -> bytes:
        if self._edit is None:
            return compile_spirv(kernel, self._device.target)
        text = emit_glsl(kernel, self._device.target)
        edited = self._edit(text)
        assert edited != text
        return compile_shader(edited, kernel.name)


class _Launch:
    """One launch and all that is made for it."""

    def __init__(self, on: Device, stack: ExitStack) -> None:
        self._device, self._vk, self._stack = on, on.vk, stack

    def run(
        self,
        payload: bytes,
        name: str,
        arrays: Sequence[Array],
        pushed: bytes,
        grid: Grid,
    ) -> None:
        vk, handle = self._vk, self._device.handle
        storage = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
        bindings = [
            vk.VkDescriptorSetLayoutBinding(
                binding=index,
                descriptorType=storage,
                descriptorCount=1,
                stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            )
            for index in range(len(arrays))
        ]
        info = vk.VkDescriptorSetLayoutCreateInfo(pBindings=bindings)
        set_layout = self._made("DescriptorSetLayout", info)
        range_ = vk.VkPushConstantRange(
            stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT, offset=0, size=len(pushed)
        )
        info = vk.VkPipelineLayoutCreateInfo(
            pSetLayouts=[set_layout], pPushConstantRanges=[range_] if pushed else []
        )
        layout = self._made("PipelineLayout", info)
        info = vk.VkShaderModuleCreateInfo(codeSize=len(payload), pCode=payload)
        stage = vk.VkPipelineShaderStageCreateInfo(
            stage=vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=self._made("ShaderModule", info),
            pName=name,
        )
        create = vk.VkComputePipelineCreateInfo(stage=stage, layout=layout)
        pipeline = vk.vkCreateComputePipelines(handle, None, 1, [create], None)[0]
        self._stack.callback(vk.vkDestroyPipeline, handle, pipeline, None)
        memory = {array.ctypes.data: self._buffer(array) for array in arrays}
        written = self._descriptors(set_layout, [memory[a.ctypes.data] for a in arrays])
        self._submit(pipeline, layout, written, pushed, grid)
        for array in arrays:
            _, mapped = memory[array.ctypes.data]
            raw = np.frombuffer(mapped, np.uint8, array.nbytes)
            array[...] = raw.view(array.dtype).reshape(array.shape)

    def _made(self, kind: str, info: Any) -> Any:
        vk, handle = self._vk, self._device.handle
        made = getattr(vk, f"vkCreate{kind}")(handle, info, None)
        self._stack.callback(getattr(vk, f"vkDestroy{kind}"), handle, made, None)
        return made

    def _buffer(self, array: Array) -> tuple[Any, Any]:
        """A buffer with the array's bytes, and its mapped memory."""
        vk, handle = self._vk, self._device.handle
        assert array.flags.c_contiguous
        size = max(array.nbytes, 4)
        info = vk.VkBufferCreateInfo(
            size=size, usage=vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
        )
        buffer = self._made("Buffer", info)
        needs = vk.vkGetBufferMemoryRequirements(handle, buffer)
        memory = vk.vkAllocateMemory(
            handle,
            vk.VkMemoryAllocateInfo(
                allocationSize=needs.size,
                memoryTypeIndex=self._device.memory_type(needs.memoryTypeBits),
            ),
            None,
        )
        self._stack.callback(vk.vkFreeMemory, handle, memory, None)
        vk.vkBindBufferMemory(handle, buffer, memory, 0)
        mapped = vk.vkMapMemory(handle, memory, 0, size, 0)
        raw = array.view(np.uint8).reshape(-1) if array.ndim else array
        np.frombuffer(mapped, np.uint8, array.nbytes)[:] = raw
        return buffer, mapped

    def _descriptors(self, layout: Any, buffers: Sequence[tuple[Any, Any]]) -> Any:
        vk, handle = self._vk, self._device.handle
        storage = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
        size = vk.VkDescriptorPoolSize(
            type=storage, descriptorCount=max(len(buffers), 1)
        )
        pool = self._made(
            "DescriptorPool",
            vk.VkDescriptorPoolCreateInfo(maxSets=1, pPoolSizes=[size]),
        )
        allocate = vk.VkDescriptorSetAllocateInfo(
            descriptorPool=pool, pSetLayouts=[layout]
        )
        written = vk.vkAllocateDescriptorSets(handle, allocate)[0]
        writes = [
            vk.VkWriteDescriptorSet(
                dstSet=written,
                dstBinding=index,
                descriptorCount=1,
                descriptorType=storage,
                pBufferInfo=[
                    vk.VkDescriptorBufferInfo(
                        buffer=buffer, offset=0, range=_WHOLE_SIZE
                    )
                ],
            )
            for index, (buffer, _) in enumerate(buffers)
        ]
        vk.vkUpdateDescriptorSets(handle, len(writes), writes, 0, None)
        return written

    def _submit(
        self,
        pipeline: Any,
        layout: Any,
        written: Any,
        pushed: bytes,
        grid: Grid,
    ) -> None:
        vk, handle, on = self._vk, self._device.handle, self._device
        point = vk.VK_PIPELINE_BIND_POINT_COMPUTE
        commands = vk.vkAllocateCommandBuffers(
            handle,
            vk.VkCommandBufferAllocateInfo(
                commandPool=on.pool,
                level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                commandBufferCount=1,
            ),
        )
        command = commands[0]
        self._stack.callback(vk.vkFreeCommandBuffers, handle, on.pool, 1, [command])
        vk.vkBeginCommandBuffer(command, vk.VkCommandBufferBeginInfo())
        vk.vkCmdBindPipeline(command, point, pipeline)
        vk.vkCmdBindDescriptorSets(command, point, layout, 0, 1, [written], 0, None)
        if pushed:
            stage, data = vk.VK_SHADER_STAGE_COMPUTE_BIT, vk.ffi.from_buffer(pushed)
            vk.vkCmdPushConstants(command, layout, stage, 0, len(pushed), data)
        vk.vkCmdDispatch(command, *grid)
        vk.vkEndCommandBuffer(command)
        fence = self._made("Fence", vk.VkFenceCreateInfo())
        vk.vkQueueSubmit(
            on.queue, 1, [vk.VkSubmitInfo(pCommandBuffers=[command])], fence
        )
        vk.vkWaitForFences(handle, 1, [fence], vk.VK_TRUE, 60 * 10**9)
