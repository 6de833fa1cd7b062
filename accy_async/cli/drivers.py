"""What is installed for devices that cannot be driven here.

Only files are looked at: loading a driver's library, let alone starting it, may
take seconds, or wake a sleeping device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

__all__ = ["cuda_findings", "vulkan_findings"]

_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/lib/wsl/lib",
)
_VULKAN_FOLDERS = (
    "/etc/vulkan/icd.d",
    "/usr/share/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
)


def cuda_findings(root: Path = Path("/")) -> tuple[str, ...]:
    """What there is of CUDA here, in words; empty if nothing.

    Args:
        root: where the system's files are.
    """
    found = []
    version = root / "proc/driver/nvidia/version"
    try:
        first = version.read_text(errors="replace").partition("\n")[0]
        found.append("kernel driver: " + " ".join(first.split()))
    except OSError:  # there is none, or it is not for us to see
        pass
    devices = sorted(
        path.name
        for path in (root / "dev").glob("nvidia*")
        if path.name.removeprefix("nvidia").isdigit()
    )
    if devices:
        found.append("devices: " + ", ".join(devices))
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    found += _library(name, root)
    found += _distributions(("cuda-python", "cuda-bindings"))
    return tuple(found)


def vulkan_findings(root: Path = Path("/")) -> tuple[str, ...]:
    """What there is of Vulkan here, in words; empty if nothing.

    Args:
        root: where the system's files are.
    """
    name = "vulkan-1.dll" if sys.platform == "win32" else "libvulkan.so.1"
    found = _library(name, root)
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    if named:
        drivers = [Path(part).name for part in named.split(os.pathsep) if part]
    else:
        drivers = sorted(
            {
                path.name
                for folder in _VULKAN_FOLDERS
                for path in (root / folder.lstrip("/")).glob("*.json")
            }
        )
    if drivers:
        found.append("drivers: " + ", ".join(drivers))
    found += _distributions(("vulkan",))
    return tuple(found)


def _library(name: str, root: Path) -> list[str]:
    for folder in _folders():
        path = root / folder.lstrip("/") / name
        if path.exists():
            return [f"library: {path}"]
    cache = root / "etc/ld.so.cache"
    try:
        if name.encode() in cache.read_bytes():
            return [f"library: {name}"]
    except OSError:
        return []
    return []


def _folders() -> Iterable[str]:
    extra = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return (*[folder for folder in extra if folder], *_LIBRARY_FOLDERS)


def _distributions(names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        try:
            found.append(f"Python package: {name} {version_of(name)}")
        except PackageNotFoundError:
            continue
    return found
