"""Which of the devices there are is meant: by number, by name, or the best one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import attrs

from accy_async.errors import BackendUnavailable, InvalidType, InvalidValue
from accy_async.values import to_integer

__all__ = ["DeviceType", "FoundDevice", "choose_device"]


class DeviceType(IntEnum):
    """What a device is: VkPhysicalDeviceType."""

    OTHER = 0
    INTEGRATED_GPU = 1
    DISCRETE_GPU = 2
    VIRTUAL_GPU = 3
    CPU = 4


_BEST_FIRST = (
    DeviceType.DISCRETE_GPU,
    DeviceType.INTEGRATED_GPU,
    DeviceType.VIRTUAL_GPU,
    DeviceType.OTHER,
    DeviceType.CPU,
)


@attrs.frozen(kw_only=True)
class FoundDevice:
    """A device as it can be chosen.

    Attributes:
        index: its number in the driver's order.
        name: the product's name.
        driver: the driver's name; other names that it goes by behind it.
        kind: what it is.
        unusable: why it cannot be used; empty if it can.
    """

    index: int
    name: str
    driver: str
    kind: DeviceType
    unusable: str = ""

    @property
    def is_software(self) -> bool:
        """True where a processor pretends to be a GPU."""
        return self.kind is DeviceType.CPU

    @property
    def title(self) -> str:
        """How messages list it."""
        return f"{self.index}: {self.name}" + (
            f" ({self.unusable})" if self.unusable else ""
        )

    def is_called(self, name: str) -> bool:
        """Whether its name or its driver's has these letters in it."""
        return name.casefold() in f"{self.name}\n{self.driver}".casefold()


def choose_device(
    found: Sequence[FoundDevice],
    wanted: int | str | None,
    *,
    hardware_only: bool = False,
) -> FoundDevice:
    """The device that is meant.

    Args:
        found: all there are.
        wanted: its number; part of its or its driver's name; or None for the best:
            a software device only where there is nothing else.
        hardware_only: True to take no software device for the best one.

    Raises:
        InvalidType: it is neither a number nor a name.
        InvalidValue: there is none of that number or name.
        BackendUnavailable: there is none at all, or it cannot be used.
    """
    listed = "; ".join(one.title for one in found)
    if not found:
        raise BackendUnavailable(
            "vulkan: no device was found; install your GPU's driver, or "
            "mesa-vulkan-drivers for a software one; a container needs NVIDIA's "
            "'graphics' capability, as by NVIDIA_DRIVER_CAPABILITIES=all"
        )
    if wanted is None:
        usable = [one for one in found if not one.unusable]
        if hardware_only:
            usable = [one for one in usable if not one.is_software]
        if not usable:
            what = "no hardware device" if hardware_only else "no device"
            raise BackendUnavailable(f"vulkan: {what} can be used; found {listed}")
        return min(usable, key=lambda one: (_BEST_FIRST.index(one.kind), one.index))
    number = to_integer(wanted)
    if isinstance(wanted, str):
        matching = [one for one in found if wanted and one.is_called(wanted)]
    elif isinstance(number, bool) or not isinstance(number, int):
        expected = "a device's number, or a part of its name"
        raise InvalidType("VulkanBackend.device", wanted, expected)
    else:
        matching = [one for one in found if one.index == number]
    if not matching:
        raise InvalidValue(
            "VulkanBackend.device", wanted, f"a number or name of {listed}"
        )
    # Usable ones first: a name may be shared.
    chosen = min(matching, key=lambda one: (bool(one.unusable), one.index))
    if chosen.unusable:
        raise BackendUnavailable(f"vulkan: {chosen.title}")
    return chosen
