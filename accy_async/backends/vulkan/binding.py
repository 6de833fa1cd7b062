"""The one module that knows the Vulkan binding: another one can take its place here.

The rest of the package sees `Vulkan`: the entry points of the loader by their names,
structures made of keywords, and results checked. The binding is that of the package
``vulkan``, of which only the declarations and the loaded library are used: its own
wrappers cost several microseconds a call.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import Any

from accy_async.backends.vulkan.results import VkResult, result_error
from accy_async.errors import BackendUnavailable

__all__ = ["Vulkan", "load_vulkan", "version_number"]

_NO_BINDING = "vulkan: the package vulkan is not installed; install accy-async[vulkan]"
_NO_LOADER = (
    "vulkan: no Vulkan loader is installed here (libvulkan was not found); install "
    "your GPU's driver, or mesa-vulkan-drivers for a software one"
)
_TYPE_NAMES = {
    "VkPhysicalDeviceVulkan11Features": "PHYSICAL_DEVICE_VULKAN_1_1_FEATURES",
    "VkPhysicalDeviceVulkan12Features": "PHYSICAL_DEVICE_VULKAN_1_2_FEATURES",
    "VkPhysicalDeviceMaintenance3Properties": (
        "PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES"
    ),
    "VkPhysicalDeviceShaderSMBuiltinsPropertiesNV": (
        "PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV"
    ),
}
"""Structures whose type is not called as they are."""


def version_number(major: int, minor: int) -> int:
    """A version as Vulkan counts them: VK_MAKE_API_VERSION."""
    return major << 22 | minor << 12


def load_vulkan() -> Vulkan:
    """The binding, with the loader's library.

    Raises:
        BackendUnavailable: one of both is missing; the message says what to do.
    """
    try:
        from vulkan import _vulkan as binding
    except ImportError as error:
        raise BackendUnavailable(_NO_BINDING) from error
    except OSError as error:  # it loads the library when it is imported
        raise BackendUnavailable(f"{_NO_LOADER} ({error})") from error
    return Vulkan(binding.ffi, binding.lib)


class Vulkan:
    """The loader's entry points, and what goes in and out of them.

    Attributes:
        ffi: makes and reads C values.
        lib: has the entry points and the enumerations' members by name.
        null: the null pointer.
    """

    def __init__(self, ffi: Any, lib: Any) -> None:  # noqa: ANN401 - untyped
        self.ffi = ffi
        self.lib = lib
        self.null = ffi.NULL
        # What structures point to has to live as long as they do.
        self._kept: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()
        self._types: dict[str, tuple[str, int | None]] = {}

    def struct(self, name: str, **fields: object) -> Any:  # noqa: ANN401
        """A pointer to a new structure, which keeps alive what it points to.

        Its ``sType`` is set. Lists become arrays, and set the count beside them where
        the caller does not: by ``xCount`` for ``pXs``.
        """
        known = self._types.get(name)
        if known is None:
            known = self._types[name] = self._describe(name)
        pointer, kind = known
        made = self.ffi.new(pointer)
        if kind is not None:
            made.sType = kind
        for field, value in fields.items():
            setattr(made, field, value)
        self._kept[made] = tuple(fields.values())
        return made

    def array(self, kind: str, values: Sequence[object]) -> Any:  # noqa: ANN401
        """A new array; structures are copied into it, and kept for what they have."""
        if values and self.ffi.typeof(kind).kind == "struct":
            made = self.ffi.new(f"{kind}[]", len(values))
            for index, value in enumerate(values):
                made[index] = value[0]  # type: ignore[index]
        else:
            made = self.ffi.new(f"{kind}[]", list(values))
        self._kept[made] = tuple(values)
        return made

    def texts(self, values: Sequence[str]) -> Any:  # noqa: ANN401
        """A new array of C strings."""
        return self.array(
            "char*", [self.ffi.new("char[]", value.encode()) for value in values]
        )

    def check(self, result: int, call: str) -> None:
        """Raise what a result code stands for, unless it is success.

        Raises:
            OutOfMemory, CapabilityMismatch, VulkanError: by the code.
        """
        if result < 0:
            raise result_error(result, call)

    def call(self, name: str, *arguments: object) -> int:
        """Call an entry point whose result is checked; returns the result."""
        result: int = getattr(self.lib, name)(*arguments)
        if result < 0:
            raise result_error(result, name)
        return result

    def get(self, name: str, kind: str, *arguments: object) -> Any:  # noqa: ANN401
        """What an entry point gives through its last parameter."""
        out = self.ffi.new(f"{kind}*")
        self.call(name, *arguments, out)
        return out[0]

    def list(self, name: str, kind: str, *arguments: object) -> list[Any]:
        """What an entry point enumerates: asked how many, and for that many."""
        count = self.ffi.new("uint32_t*")
        function = getattr(self.lib, name)
        while True:
            self._check_listing(function(*arguments, count, self.null), name)
            made = self.ffi.new(f"{kind}[]", count[0])
            result = function(*arguments, count, made)
            self._check_listing(result, name)
            if result != VkResult.INCOMPLETE:
                found = [made[index] for index in range(count[0])]
                if self.ffi.typeof(kind).kind == "struct":
                    self._kept[count] = made
                    found = [_Owned(item, made) for item in found]
                return found

    def _check_listing(self, result: int | None, name: str) -> None:
        if result is not None:  # some return nothing
            self.check(result, name)

    def text(self, value: Any) -> str:  # noqa: ANN401
        """A C string's text."""
        return str(self.ffi.string(value).decode(errors="replace"))

    def _describe(self, name: str) -> tuple[str, int | None]:
        names = {field for field, _ in self.ffi.typeof(name).fields}
        if "sType" not in names:
            return f"{name}*", None
        upper = _TYPE_NAMES.get(name)
        if upper is None:
            words = re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "_", name.removeprefix("Vk"))
            upper = words.upper()
        return f"{name}*", int(getattr(self.lib, f"VK_STRUCTURE_TYPE_{upper}"))


class _Owned:
    """A structure of an array, which it keeps alive."""

    __slots__ = ("_array", "_item")

    def __init__(self, item: Any, array: object) -> None:  # noqa: ANN401
        self._item = item
        self._array = array

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._item, name)
