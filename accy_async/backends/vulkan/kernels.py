"""Loaded kernels: pipelines, their layouts, and the descriptor sets of launches."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.spirv import SpirvModule, check_spirv
from accy_async.backends.vulkan.limits import check_module
from accy_async.errors import (
    DeviceError,
    RuntimeUnavailable,
    UnsupportedOperation,
)

if TYPE_CHECKING:
    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.backends.vulkan.device import VulkanDevice
    from accy_async.backends.vulkan.memory import Block
    from accy_async.backends.vulkan.status import StatusWords

__all__ = ["DescriptorSet", "Range", "VulkanKernel", "load_kernel"]

Range = tuple["Block", int, int]
"""What a descriptor names: a block, an offset in it, and a size, in bytes."""

_SETS = 64
"""Descriptor sets of one pool."""


def load_kernel(
    device: VulkanDevice, artifact: KernelArtifact, words: StatusWords
) -> VulkanKernel:
    """Check a kernel, and have the driver compile it.

    Raises:
        UnsupportedOperation: it is of a format that Vulkan does not load.
        InvalidArtifact: it is no SPIR-V, lacks the kernel, or takes other buffers.
        CapabilityMismatch: the device lacks what it needs.
        RuntimeUnavailable: the driver refused it.
    """
    if artifact.format is not ArtifactFormat.VULKAN_SPIRV:
        raise UnsupportedOperation(
            f"kernel {artifact.kernel_name!r}: Vulkan does not load {artifact.format}"
        )
    module = check_spirv(artifact.payload, artifact.kernel_name)
    buffers = artifact.buffer_argument_count
    check_module(module, artifact.kernel_name, buffers, device.limits)
    assert isinstance(artifact.payload, bytes)
    try:
        return VulkanKernel(
            device, artifact.payload, artifact.kernel_name, buffers, module, words
        )
    except DeviceError as error:
        raise RuntimeUnavailable(
            f"kernel {artifact.kernel_name!r}: the driver refused it: {error}"
        ) from error


class VulkanKernel:
    """A pipeline, and the sets that its launches bind.

    Attributes:
        name: the kernel.
        local_size: threads of a block, which the module sets.
        push_bytes: bytes of its scalars.
        buffers: how many buffers it takes.
        can_fail: True where it has a word for its assertions.
        pipeline, layout: the driver's handles.
        writes: which of its buffers it may write.
    """

    def __init__(
        self,
        device: VulkanDevice,
        payload: bytes,
        name: str,
        buffers: int,
        module: SpirvModule,
        words: StatusWords,
    ) -> None:
        self.name = name
        self.buffers = buffers
        self.push_bytes = module.push_constant_bytes
        self.local_size = next(
            entry.local_size for entry in module.entry_points if entry.name == name
        )
        bound = {binding.binding: binding for binding in module.bindings}
        self.can_fail = buffers in bound
        self.writes = frozenset(
            index
            for index, binding in bound.items()
            if index < buffers and binding.is_writable
        )
        self._device = device
        self._words = words
        self._pools: list[Any] = []
        # Finalizers put them back, which may take no lock.
        self._idle: deque[Any] = deque()
        # By what they name: blocks, as a driver's handle may come again.
        self._sets: weakref.WeakValueDictionary[tuple[Range, ...], DescriptorSet] = (
            weakref.WeakValueDictionary()
        )
        self._made: list[tuple[str, Any]] = []
        try:
            self._make(payload)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Destroy it; none of its launches may be at work."""
        for kind, made in reversed(self._made):
            self._device.unmake(kind, made)
        for pool in self._pools:
            self._device.unmake("DescriptorPool", pool)
        self._made.clear()
        self._pools.clear()
        self._idle.clear()

    def take_set(self, ranges: tuple[Range, ...]) -> DescriptorSet | None:
        """A set that names these buffers; launches with the same ones share it.

        None for a kernel that takes none and cannot fail.
        """
        if not self.buffers and not self.can_fail:
            return None
        found = self._sets.get(ranges)
        if found is not None:
            return found
        try:
            native = self._idle.popleft()
        except IndexError:
            self._add_pool()
            native = self._idle.popleft()
        self._write(native, ranges)
        made = DescriptorSet(native, self._idle, self._device.vulkan)
        self._sets[ranges] = made
        return made

    def _make(self, payload: bytes) -> None:
        vulkan, lib = self._device.vulkan, self._device.vulkan.lib
        stage = lib.VK_SHADER_STAGE_COMPUTE_BIT
        bindings = [
            vulkan.struct(
                "VkDescriptorSetLayoutBinding",
                binding=index,
                descriptorType=kind,
                descriptorCount=1,
                stageFlags=stage,
            )
            for index, kind in enumerate(self._kinds())
        ]
        info = vulkan.struct(
            "VkDescriptorSetLayoutCreateInfo",
            bindingCount=len(bindings),
            pBindings=vulkan.array("VkDescriptorSetLayoutBinding", bindings),
        )
        self._set_layout = self._keep("DescriptorSetLayout", info)
        pushed = vulkan.struct(
            "VkPushConstantRange", stageFlags=stage, size=self.push_bytes
        )
        info = vulkan.struct(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=vulkan.array("VkDescriptorSetLayout", [self._set_layout]),
            pushConstantRangeCount=int(self.push_bytes > 0),
            pPushConstantRanges=pushed,
        )
        self.layout = self._keep("PipelineLayout", info)
        code = vulkan.ffi.new("uint32_t[]", len(payload) // 4)
        vulkan.ffi.memmove(code, payload, len(payload))
        info = vulkan.struct(
            "VkShaderModuleCreateInfo", codeSize=len(payload), pCode=code
        )
        module = self._device.make("ShaderModule", info)
        try:
            self.pipeline = self._make_pipeline(module)
        finally:
            self._device.unmake("ShaderModule", module)

    def _make_pipeline(self, module: Any) -> Any:  # noqa: ANN401
        vulkan, native = self._device.vulkan, self._device.native
        info = vulkan.struct("VkComputePipelineCreateInfo", layout=self.layout)
        entry = vulkan.ffi.new("char[]", self.name.encode())
        info.stage.sType = (
            vulkan.lib.VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO
        )
        info.stage.stage = vulkan.lib.VK_SHADER_STAGE_COMPUTE_BIT
        info.stage.module = module
        info.stage.pName = entry
        pipeline = vulkan.get(
            "vkCreateComputePipelines",
            "VkPipeline",
            native,
            vulkan.ffi.cast("VkPipelineCache", 0),
            1,
            info,
            vulkan.null,
        )
        self._device.keep("Pipeline", pipeline)
        self._made.append(("Pipeline", pipeline))
        return pipeline

    def _keep(self, kind: str, info: Any) -> Any:  # noqa: ANN401
        made = self._device.make(kind, info)
        self._made.append((kind, made))
        return made

    def _kinds(self) -> list[int]:
        """The kinds of its descriptors, by binding; its word's place is dynamic."""
        lib = self._device.vulkan.lib
        kinds = [lib.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER] * self.buffers
        if self.can_fail:
            kinds.append(lib.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER_DYNAMIC)
        return kinds

    def _add_pool(self) -> None:
        vulkan, native = self._device.vulkan, self._device.native
        kinds = self._kinds()
        sizes = [
            vulkan.struct(
                "VkDescriptorPoolSize",
                type=kind,
                descriptorCount=_SETS * kinds.count(kind),
            )
            for kind in dict.fromkeys(kinds)
        ]
        info = vulkan.struct(
            "VkDescriptorPoolCreateInfo",
            maxSets=_SETS,
            poolSizeCount=len(sizes),
            pPoolSizes=vulkan.array("VkDescriptorPoolSize", sizes),
        )
        pool = self._device.make("DescriptorPool", info)
        self._pools.append(pool)
        info = vulkan.struct(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=pool,
            descriptorSetCount=_SETS,
            pSetLayouts=vulkan.array(
                "VkDescriptorSetLayout", [self._set_layout] * _SETS
            ),
        )
        sets = vulkan.ffi.new("VkDescriptorSet[]", _SETS)
        vulkan.call("vkAllocateDescriptorSets", native, info, sets)
        self._idle.extend(sets[index] for index in range(_SETS))

    def _write(self, native: Any, ranges: tuple[Range, ...]) -> None:  # noqa: ANN401
        vulkan = self._device.vulkan
        if self.can_fail:
            ranges = (*ranges, self._words.range)
        writes = [
            vulkan.struct(
                "VkWriteDescriptorSet",
                dstSet=native,
                dstBinding=index,
                descriptorCount=1,
                descriptorType=kind,
                pBufferInfo=vulkan.struct(
                    "VkDescriptorBufferInfo",
                    buffer=block.buffer,
                    offset=offset,
                    range=size,
                ),
            )
            for index, (kind, (block, offset, size)) in enumerate(
                zip(self._kinds(), ranges, strict=True)
            )
        ]
        vulkan.lib.vkUpdateDescriptorSets(
            self._device.native,
            len(writes),
            vulkan.array("VkWriteDescriptorSet", writes),
            0,
            vulkan.null,
        )


class DescriptorSet:
    """A set in use; once nobody has it any more its kernel uses it again.

    Attributes:
        pointer: to the driver's handle, as binding takes it.
    """

    __slots__ = ("__weakref__", "pointer")

    def __init__(self, native: Any, idle: deque[Any], vulkan: Any) -> None:  # noqa: ANN401
        self.pointer = vulkan.ffi.new("VkDescriptorSet*", native)
        weakref.finalize(self, idle.append, native).atexit = False
