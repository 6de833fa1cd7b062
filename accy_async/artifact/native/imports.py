"""The functions of the C library that native kernels may call.

The list is closed: a payload that names anything else is refused, so that a
kernel reaches nothing but arithmetic and memory it was given. It holds what
compilers emit for mathematics (also for rounding, where the instruction set has
no instruction for it) and for moving memory, with the conversions of 16-bit
floats from the compiler's runtime library.

Source: ISO C17 7.12 and 7.24; GCC internals, Routines for floating point
emulation.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
import threading

from accy_async.errors import InvalidArtifact, RuntimeUnavailable

__all__ = ["IMPORTABLE", "resolve_import"]

# fmt: off
_MATH = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil",
    "copysign", "cos", "cosh", "erf", "erfc", "exp", "exp10", "exp2", "expm1", "fabs",
    "fdim", "floor", "fma", "fmax", "fmin", "fmod", "hypot", "ldexp", "log", "log10",
    "log1p", "log2", "nearbyint", "pow", "rint", "round", "roundeven", "sin",
    "sincos", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc",
]
# fmt: on
_MEMORY = ["bcmp", "memcmp", "memcpy", "memmove", "memset"]
_CONVERSION = [
    "__extendhfsf2",
    "__truncdfbf2",
    "__truncdfhf2",
    "__truncsfbf2",
    "__truncsfhf2",
]

IMPORTABLE = frozenset(
    [*_MATH, *(f"{name}f" for name in _MATH), *_MEMORY, *_CONVERSION]
)

# Tried in order after what the process has loaded already. Where none is there,
# ctypes.util asks the system, which may start a process and is slow.
_LIBRARIES = {
    "linux": ("libm.so.6", "libgcc_s.so.1"),
    "darwin": ("/usr/lib/libSystem.B.dylib",),
}

_lock = threading.Lock()
_libraries: list[ctypes.CDLL] = []
_addresses: dict[str, int] = {}


def resolve_import(name: str) -> int:
    """The address of an importable function in this process.

    Raises:
        InvalidArtifact: the name is not importable.
        RuntimeUnavailable: no library of this system has it.
    """
    if name not in IMPORTABLE:
        raise InvalidArtifact(f"{name!r} is no function that a native kernel may call")
    with _lock:
        if name not in _addresses:
            _addresses[name] = _find(name)
        return _addresses[name]


def _find(name: str) -> int:
    if not _libraries:
        _libraries.extend(_open_libraries())
    for library in _libraries:
        try:
            function = library[name]
        except AttributeError:
            continue
        address = ctypes.cast(function, ctypes.c_void_p).value
        if address:
            return address
    raise RuntimeUnavailable(
        f"a native kernel needs {name}, which neither the C library, the mathematics "
        "library nor the compiler's runtime library of this system offers"
    )


def _open_libraries() -> list[ctypes.CDLL]:
    # Handles are kept for the life of the process: addresses come from them.
    opened = [ctypes.CDLL(None)]
    for name in _LIBRARIES.get(sys.platform, ()):
        try:
            opened.append(ctypes.CDLL(name))
        except OSError:
            continue
    if len(opened) == 1:
        found = ctypes.util.find_library("m")
        if found is not None:
            opened.append(ctypes.CDLL(found))
    return opened
