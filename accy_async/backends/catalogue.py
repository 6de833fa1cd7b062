"""The backends there are, which of them can run here, and opening one by name."""

from __future__ import annotations

import attrs

from accy_async.artifact.formats import BackendKind
from accy_async.backends.base import DEFAULT_GRACE_S, Backend
from accy_async.backends.capabilities import Capabilities
from accy_async.errors import AccyError, BackendUnavailable, InvalidValue

__all__ = [
    "BACKEND_NAMES",
    "BackendStatus",
    "backend_statuses",
    "is_backend_name",
    "open_backend",
]

_PREFERENCE = ("cuda", "vulkan", "cpu")
"""What ``auto`` tries, best first; of Vulkan no software device."""

BACKEND_NAMES = ("auto", *_PREFERENCE, "recording")
"""What `open_backend` takes; and ``"vulkan:"`` with a device's number or name."""

_VULKAN = "vulkan:"
_CUDA_UUIDS = ("cuda:GPU-", "cuda:MIG-")
_INDEXED = frozenset({"cpu", "cuda"})


@attrs.frozen(kw_only=True)
class BackendStatus:
    """Whether a backend can run here.

    Attributes:
        name: what `open_backend` calls it.
        capabilities: its device and what that can do; None if it cannot run.
        reason: why it cannot run, and what to do about it; empty if it can.
    """

    name: str
    capabilities: Capabilities | None
    reason: str = ""

    @property
    def is_available(self) -> bool:
        """True where `open_backend` would succeed."""
        return self.capabilities is not None

    @property
    def is_for_auto(self) -> bool:
        """True where ``auto`` may take it: no software device is taken unasked."""
        return (
            self.capabilities is not None and not self.capabilities.identity.is_software
        )


def open_backend(
    name: str = "auto", *, grace_s: float = DEFAULT_GRACE_S, debug: bool = False
) -> Backend:
    """Open a backend by name; ``auto`` takes the best that runs here.

    Args:
        name: one of `BACKEND_NAMES`; or a device, as ``"cuda:1"``, ``"cuda:GPU-..."``
            by its UUID, ``"vulkan:1"`` or ``"vulkan:lavapipe"``; ``"cpu:1"`` is a
            second backend on the processor.
        grace_s: how long cleanup waits for the device, in seconds.
        debug: True to have a GPU wait for each launch, so that an error names the one
            that caused it; other backends always know.

    Raises:
        InvalidValue: there is no backend of that name.
        BackendUnavailable: it cannot run here; the message says why and what to
            do.
    """
    kind, index = _indexed(str(name))
    if kind == "recording":
        from accy_async.backends.recording import RecordingBackend

        return RecordingBackend(BackendKind.CPU, grace_s=grace_s)
    if kind == "cpu":
        from accy_async.backends.cpu import CpuBackend

        return CpuBackend(grace_s=grace_s, index=index)
    if kind == "cuda" or name.startswith(_CUDA_UUIDS):
        from accy_async.backends.cuda import CudaBackend

        device = index if kind == "cuda" else name.removeprefix("cuda:")
        return CudaBackend(device, grace_s=grace_s, debug=debug)
    if name == "vulkan" or name.startswith(_VULKAN):
        return _open_vulkan(name, grace_s, debug=debug)
    if name == "auto":
        reasons = []
        for candidate in _PREFERENCE:
            try:
                if candidate == "vulkan":
                    return _open_vulkan(
                        candidate, grace_s, debug=debug, hardware_only=True
                    )
                return open_backend(candidate, grace_s=grace_s, debug=debug)
            except AccyError as error:
                reasons.append(f"{candidate}: {error}")
        raise BackendUnavailable("no backend can run here; " + "; ".join(reasons))
    raise _no_such(name)


def gpu_names() -> tuple[str, ...]:
    """The names of all GPUs that CUDA has here: ``cuda:0`` and so on.

    Raises:
        BackendUnavailable: there is none; the message says why.
    """
    from accy_async.backends.cuda.driver import device_count

    return tuple(f"cuda:{index}" for index in range(device_count()))


def _indexed(name: str) -> tuple[str, int]:
    """A name as its kind and its index, where it is one of a kind that has indices."""
    kind, _, number = name.partition(":")
    is_index = number.isascii() and number.isdigit() and len(number) < 10
    is_index = is_index and str(int(number)) == number
    return (kind, int(number)) if kind in _INDEXED and is_index else (name, 0)


def _no_such(name: object) -> InvalidValue:
    names = ", ".join(map(repr, BACKEND_NAMES))
    return InvalidValue(
        "open_backend.name", name, f"one of {names}, or a device's name like 'cuda:1'"
    )


def is_backend_name(name: str) -> bool:
    """True for what `open_backend` takes, whether it can run here or not."""
    is_device = name.startswith((_VULKAN, *_CUDA_UUIDS))
    return is_device or _indexed(name)[0] in BACKEND_NAMES


def _open_vulkan(
    name: str, grace_s: float, *, debug: bool, hardware_only: bool = False
) -> Backend:
    from accy_async.backends.vulkan import VulkanBackend

    wanted = name.removeprefix(_VULKAN) if name.startswith(_VULKAN) else None
    return VulkanBackend(
        int(wanted) if wanted is not None and wanted.isdecimal() else wanted,
        grace_s=grace_s,
        hardware_only=hardware_only,
        debug=debug,
    )


def backend_statuses() -> tuple[BackendStatus, ...]:
    """Every backend that drives a device, in the order ``auto`` prefers them."""
    statuses = []
    for name in _PREFERENCE:
        try:
            backend = open_backend(name)
        except AccyError as error:
            statuses.append(
                BackendStatus(name=name, capabilities=None, reason=str(error))
            )
        else:
            statuses.append(BackendStatus(name=name, capabilities=backend.capabilities))
            backend.close()
    return tuple(statuses)
