"""The connection to Vulkan, with the validation layer where it is asked for."""

from __future__ import annotations

from typing import Any

from accy_async.backends.vulkan.binding import Vulkan, version_number
from accy_async.errors import AccyError, BackendUnavailable

__all__ = ["LEAST_VERSION", "VulkanInstance"]

LEAST_VERSION = version_number(1, 2)
"""Timeline semaphores are part of Vulkan from 1.2 on."""

_LAYER = "VK_LAYER_KHRONOS_validation"
_MESSENGER = "VK_EXT_debug_utils"
_NO_LAYER = (
    "vulkan: the validation layer is not installed; install vulkan-validationlayers"
)


class VulkanInstance:
    """One VkInstance.

    Args:
        vulkan: the binding.
        validation: True for the validation layer, with its checks of
            synchronisation.

    Raises:
        BackendUnavailable: no driver answers, or the layer is not there.

    Attributes:
        messages: what the validation layer has reported, in order.
    """

    def __init__(self, vulkan: Vulkan, *, validation: bool = False) -> None:
        self.vulkan = vulkan
        self.messages: list[str] = []
        self._messenger: Any = None
        layers, extensions = ([_LAYER], [_MESSENGER]) if validation else ([], [])
        if validation and not self._has_layer():
            raise BackendUnavailable(_NO_LAYER)
        following = self._validation() if validation else vulkan.null
        application = vulkan.struct(
            "VkApplicationInfo",
            pApplicationName=vulkan.ffi.new("char[]", b"accy_async"),
            apiVersion=LEAST_VERSION,
        )
        info = vulkan.struct(
            "VkInstanceCreateInfo",
            pNext=following,
            pApplicationInfo=application,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=vulkan.texts(layers),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=vulkan.texts(extensions),
        )
        try:
            self.native: Any = vulkan.get(
                "vkCreateInstance", "VkInstance", info, vulkan.null
            )
        except AccyError as error:
            raise BackendUnavailable(
                f"vulkan: no driver answers ({error}); install your GPU's driver, or "
                "mesa-vulkan-drivers for a software one"
            ) from error
        if validation:
            self._listen()

    def physical_devices(self) -> list[Any]:
        """The driver's handles of all devices, in the driver's order."""
        return self.vulkan.list(
            "vkEnumeratePhysicalDevices", "VkPhysicalDevice", self.native
        )

    def destroy(self) -> None:
        """End the connection; nothing that was made of it may be left."""
        vulkan = self.vulkan
        if self._messenger is not None:
            end = self._extension("vkDestroyDebugUtilsMessengerEXT")
            end(self.native, self._messenger, vulkan.null)
        vulkan.lib.vkDestroyInstance(self.native, vulkan.null)

    def _has_layer(self) -> bool:
        vulkan = self.vulkan
        layers = vulkan.list("vkEnumerateInstanceLayerProperties", "VkLayerProperties")
        return any(vulkan.text(layer.layerName) == _LAYER for layer in layers)

    def _validation(self) -> Any:  # noqa: ANN401
        """What has the layer check synchronisation too, and report to us."""
        vulkan, lib = self.vulkan, self.vulkan.lib
        wanted = [
            lib.VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT,
        ]
        features = vulkan.struct(
            "VkValidationFeaturesEXT",
            enabledValidationFeatureCount=len(wanted),
            pEnabledValidationFeatures=vulkan.array(
                "VkValidationFeatureEnableEXT", wanted
            ),
        )
        # The messenger in the chain hears of the instance's own making and end.
        self._listener = self._make_listener(features)
        return self._listener

    def _make_listener(self, following: Any) -> Any:  # noqa: ANN401
        vulkan, lib = self.vulkan, self.vulkan.lib
        signature = vulkan.ffi.typeof("VkDebugUtilsMessengerCreateInfoEXT").fields
        kind = dict(signature)["pfnUserCallback"].type
        self._callback = vulkan.ffi.callback(kind, self._hear)
        return vulkan.struct(
            "VkDebugUtilsMessengerCreateInfoEXT",
            pNext=following,
            messageSeverity=lib.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
            | lib.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
            messageType=lib.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
            pfnUserCallback=self._callback,
        )

    def _hear(self, severity: int, kinds: int, data: Any, user: Any) -> int:  # noqa: ANN401
        del severity, kinds, user
        self.messages.append(self.vulkan.text(data.pMessage))
        return 0

    def _listen(self) -> None:
        vulkan = self.vulkan
        made = vulkan.ffi.new("VkDebugUtilsMessengerEXT*")
        info = self._make_listener(vulkan.null)
        begin = self._extension("vkCreateDebugUtilsMessengerEXT")
        vulkan.check(
            begin(self.native, info, vulkan.null, made),
            "vkCreateDebugUtilsMessengerEXT",
        )
        self._messenger = made[0]

    def _extension(self, name: str) -> Any:  # noqa: ANN401
        vulkan = self.vulkan
        found = vulkan.lib.vkGetInstanceProcAddr(self.native, name.encode())
        return vulkan.ffi.cast(f"PFN_{name}", found)
