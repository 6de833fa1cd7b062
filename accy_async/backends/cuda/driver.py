"""The one module that imports the CUDA driver, and checks what it answers.

Every driver call of the package is made through `check`, with its name, so that
an error says which call failed and what the driver says of it. Importing this
module initialises nothing; `load_driver` does.
"""

from __future__ import annotations

import ctypes
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

__all__ = ["STICKY_CODES", "DriverError", "check", "driver_error", "load_driver"]

OUT_OF_MEMORY = 2
_INVALID_IMAGE = frozenset({200, 209, 218, 222, 300, 301, 500})
"""Codes of a module that cannot be loaded: CUDA Driver API, enum CUresult."""

STICKY_CODES = frozenset({214, 220, 226, 700, 702, 709, *range(710, 721), 999})
"""Codes after which a context is gone: CUDA Driver API, enum CUresult ("leaves
the process in an inconsistent state")."""


_NO_LIBRARY = "cuda: no NVIDIA driver is installed here (libcuda was not found)"


class DriverError(DeviceError):
    """The CUDA driver refused a call; ``code`` is its CUresult."""


def load_driver() -> ModuleType:
    """The driver's bindings, with the driver initialised.

    Raises:
        BackendUnavailable: the bindings or the driver are missing, or there is no
            device; the message says what to do.
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
    try:
        (result,) = driver.cuInit(0)
    except RuntimeError as error:
        raise BackendUnavailable(_NO_LIBRARY) from error
    if int(result) == 100:
        raise BackendUnavailable("cuda: the driver finds no device")
    if int(result) != 0:
        raise BackendUnavailable(f"cuda: {_describe(driver, result)}")
    module: ModuleType = driver
    return module


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
