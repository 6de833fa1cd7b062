"""The one module that imports the CUDA driver, and checks what it answers.

Every driver call of the package is made through `check`, with its name, so that
an error says which call failed and what the driver says of it. Importing this
module initialises nothing; `load_driver` does.
"""

from __future__ import annotations

import ctypes
import os
import sys
from types import ModuleType
from typing import Any

from accy_async.errors import (
    AccyError,
    BackendUnavailable,
    CapabilityMismatch,
    DeviceError,
    InvalidArtifact,
    OutOfMemory,
)

__all__ = [
    "OUT_OF_MEMORY",
    "STICKY_CODES",
    "DriverError",
    "check",
    "device_count",
    "driver_error",
    "load_driver",
    "outputs",
]

OUT_OF_MEMORY = 2
_INVALID_IMAGE = frozenset({200, 209, 218, 222, 300, 301, 500})
"""Codes of a module that cannot be loaded: CUDA Driver API, enum CUresult."""

STICKY_CODES = frozenset(
    {214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721, 810, 999}
)
"""Codes after which a context is gone: CUDA Driver API, enum CUresult ("leaves
the process in an inconsistent state"; 711 to 713 and 720 only refuse a call)."""


LEAST_DRIVER = 12000
"""The oldest driver that will do, as it counts itself: CUDA 12.0."""

_NO_LIBRARY = (
    "cuda: no NVIDIA driver is installed here (libcuda was not found); install one, or "
    "start the container with access to the GPU, as by docker run --gpus all"
)

_ADVICE = {
    3: "this process was forked from one that uses CUDA; start workers with spawn",
    34: "the libcuda found is the toolkit's stub; take its stubs folder out of the "
    "library path",
    46: "another process has the device for itself; nvidia-smi -q -d COMPUTE shows how",
    802: "on machines with NVSwitch, start nvidia-fabricmanager",
    803: "libcuda and the kernel's module are of two versions; restart the machine, or "
    "install the driver again",
    804: "the libcuda found is of CUDA's compatibility package, which this device is "
    "not for; take it out of the library path",
    805: "the MPS daemon cannot be reached; start it, or unset CUDA_MPS_PIPE_DIRECTORY",
    807: "the MPS server is not ready; try again, or look at its log",
    999: "the driver cannot start; see that the module nvidia_uvm is loaded, and that "
    "this user may open /dev/nvidia*",
}
"""What to do about codes of the first calls: CUDA Driver API, enum CUresult."""


class DriverError(DeviceError):
    """The CUDA driver refused a call; ``code`` is its CUresult."""


def load_driver() -> ModuleType:
    """The driver's bindings, with the driver initialised.

    Raises:
        BackendUnavailable: the bindings or the driver are missing or too old, or there
            is no device; the message says what to do.
    """
    # Looked for first: importing the bindings takes longer than all the rest.
    if not _has_library():
        raise BackendUnavailable(_NO_LIBRARY)
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise BackendUnavailable(
            "cuda: the package cuda-bindings is not installed; install cuda-python"
        ) from error
    module: ModuleType = driver
    try:
        (result,) = driver.cuInit(0)
        if result == 0:
            result, *found = driver.cuDriverGetVersion()
    except RuntimeError as error:  # the library, or a function in it, is not there
        raise BackendUnavailable(f"{_NO_LIBRARY} ({error})") from error
    if result != 0:
        raise unavailable(module, result)
    version = int(found[0])
    if version < LEAST_DRIVER:
        raise BackendUnavailable(
            f"cuda: the driver is of CUDA {_cuda(version)}, expected at least "
            f"{_cuda(LEAST_DRIVER)}; update it to 525 or newer"
        )
    return module


def device_count() -> int:
    """How many GPUs there are, which is one at least.

    Raises:
        BackendUnavailable: no driver, or no device; the message says what to do.
    """
    driver: Any = load_driver()
    result, *found = driver.cuDeviceGetCount()
    if result != 0 or not found[0]:
        raise unavailable(driver, result if result != 0 else 100)
    return int(found[0])


def unavailable(driver: Any, result: Any) -> BackendUnavailable:  # noqa: ANN401
    """The error of a device that cannot be had, saying what to do."""
    code = int(result)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if code in (100, 101):
        what = "cuda: the driver finds no device"
        if visible is not None:
            what += f", as CUDA_VISIBLE_DEVICES={visible!r} names none; unset it"
        else:
            what += "; nvidia-smi lists those that there are"
        return BackendUnavailable(what)
    advice = f"; {_ADVICE[code]}" if code in _ADVICE else ""
    return BackendUnavailable(f"cuda: {_describe(driver, result)}{advice}")


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _has_library() -> bool:
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def check(driver: Any, answer: tuple[Any, ...], call: str) -> Any:  # noqa: ANN401 - bindings are untyped
    """What a driver call gave besides its result code.

    Args:
        driver: the bindings.
        answer: what the call returned: its CUresult, then its outputs.
        call: its name.

    Raises:
        OutOfMemory, InvalidArtifact, CapabilityMismatch, DriverError: by the code.
    """
    if answer[0] != 0:
        raise driver_error(driver, answer[0], call)
    return outputs(answer)


def outputs(answer: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """A call's outputs: the one there is, several as a tuple, or None."""
    if len(answer) == 2:
        return answer[1]
    return answer[1:] if len(answer) > 2 else None


def driver_error(driver: Any, result: Any, call: str) -> AccyError:  # noqa: ANN401
    """The error of a result code that is not success."""
    code = int(result)
    what = f"{call}: {_describe(driver, result)}"
    if code == OUT_OF_MEMORY:
        return OutOfMemory(what)
    if code in _INVALID_IMAGE:
        return InvalidArtifact(what)
    if code == 801:
        return CapabilityMismatch(what)
    return DriverError(what, code=code, call=call)


def _describe(driver: Any, result: Any) -> str:  # noqa: ANN401
    _, name = driver.cuGetErrorName(result)
    _, text = driver.cuGetErrorString(result)
    return f"{_text(name)} ({int(result)}): {_text(text)}"


def _text(value: bytes | str | None) -> str:
    if value is None:
        return "an unknown error"
    return value.decode() if isinstance(value, bytes) else value
