"""Native devices that outlive the backends of tests, for those of the next tests.

Making a device takes NVIDIA's driver some tenths of a second, and ending it as long;
most tests want one backend each. So a closed backend's device, which has been waited
for and of which nothing is left, is not ended but given to the next backend that would
have made the same one. Devices whose driver is told to fail have none of that, but
where their test says so.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from accy_async.backends.vulkan import device as device_module
from accy_async.backends.vulkan import memory as memory_module
from accy_async.backends.vulkan.binding import Vulkan, load_vulkan
from accy_async.backends.vulkan.device import VulkanDevice
from accy_async.backends.vulkan.instance import VulkanInstance
from tests.vulkan.faults import FaultyLibrary

__all__ = ["keeping"]

BLOCK_BYTES = 4 << 20


class _Keeper:
    """Connections that no backend has, and of each the devices that it has none for.

    A connection is one backend's at a time, so that what validation says of it is.
    """

    def __init__(self) -> None:
        self._lib = load_vulkan().lib
        self._idle: dict[bool, list[VulkanInstance]] = {False: [], True: []}
        self._natives: dict[VulkanInstance, dict[Hashable, Any]] = {}
        self._validates: dict[VulkanInstance, bool] = {}
        self._keys: dict[VulkanDevice, Hashable] = {}
        self._create = VulkanDevice._create
        self._end_native = VulkanDevice._end_native

    def connect(self, vulkan: Vulkan, *, validation: bool = False) -> VulkanInstance:
        """In place of making a `VulkanInstance`."""
        lib = vulkan.lib
        if lib is not self._lib and not (
            isinstance(lib, FaultyLibrary) and lib.is_kept
        ):
            return VulkanInstance(vulkan, validation=validation)
        if self._idle[validation]:
            instance = self._idle[validation].pop()
            instance.messages = []
            return instance
        instance = VulkanInstance(load_vulkan(), validation=validation)
        self._natives[instance] = {}
        self._validates[instance] = validation
        return instance

    def create(self, device: VulkanDevice) -> None:
        """In place of `VulkanDevice._create`."""
        kept = self._natives.get(device.instance)
        if kept is None:
            self._create(device)
            return
        key = device.chosen, device.family, device.copying
        device.native = kept.pop(key, None)
        if device.native is None:
            self._create(device)
        self._keys[device] = key

    def end(self, device: VulkanDevice) -> None:
        """In place of `VulkanDevice._end_native`."""
        kept = self._natives.get(device.instance)
        if kept is None:
            self._end_native(device)
            return
        if device.native is not None:
            kept[self._keys.pop(device)] = device.native
        self._idle[self._validates[device.instance]].append(device.instance)

    def close(self) -> None:
        """End all of them; whoever validates has nothing to say against that."""
        said: list[str] = []
        for idle in self._idle.values():
            for instance in idle:
                instance.messages = said
                vulkan = instance.vulkan
                for native in self._natives.pop(instance).values():
                    vulkan.lib.vkDestroyDevice(native, vulkan.null)
                instance.destroy()
        assert not said, said


@contextmanager
def keeping() -> Iterator[None]:
    """Keep devices, in every backend that is opened within."""
    keeper = _Keeper()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_module, "VulkanInstance", keeper.connect)
        patch.setattr(VulkanDevice, "_create", lambda device: keeper.create(device))
        patch.setattr(memory_module, "_BLOCK_BYTES", BLOCK_BYTES)
        patch.setattr(VulkanDevice, "_end_native", lambda device: keeper.end(device))
        yield
        keeper.close()
