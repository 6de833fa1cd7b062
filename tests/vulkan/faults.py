"""A loader whose calls fail on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accy_async.backends.vulkan import device as device_module
from accy_async.backends.vulkan.binding import Vulkan, load_vulkan

__all__ = ["FaultyLibrary", "faulty_vulkan"]

_RETURN_NOTHING = ("vkCmd", "vkDestroy", "vkFree", "vkGet", "vkUpdate", "vkUnmap")


class FaultyLibrary:
    """The loaded library, with a fault to come.

    Attributes:
        calls: the calls so far that can fail, by name and in order.
        is_kept: whether devices that outlive tests may call it (see `kept`); False
            where making one is to fail.
        fault: told the number and name of each before it is made; what it returns
            is the result in its place, None to make it.
    """

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self.calls: list[str] = []
        self.is_kept = True
        self.fault: Callable[[int, str], int | None] = lambda number, name: None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._lib, name)
        can_fail = name.startswith("vk") and (
            not name.startswith(_RETURN_NOTHING)
            or name in ("vkGetSemaphoreCounterValue", "vkGetQueryPoolResults")
        )
        if not can_fail:
            return found

        def call(*arguments: object) -> object:
            self.calls.append(name)
            result = self.fault(len(self.calls), name)
            return found(*arguments) if result is None else result

        return call

    def settle(self) -> None:
        """Nothing: destroying cannot fail."""

    def made(self) -> dict[str, int]:
        """Nothing: the device counts for itself."""
        return {}


def faulty_vulkan(monkeypatch: Any) -> FaultyLibrary:
    """Have the devices opened from now on call such a library."""
    plain = load_vulkan()
    library = FaultyLibrary(plain.lib)
    monkeypatch.setattr(
        device_module, "load_vulkan", lambda: Vulkan(plain.ffi, library)
    )
    return library
