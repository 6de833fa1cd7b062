"""The calling convention of native CPU kernels, version 1.

Every kernel in a ``cpu_object`` or ``cpu_machine_code`` payload is a C function

    int32_t entry(const uint64_t *arguments, const struct launch *launch);

that runs the blocks ``launch->block_begin <= b < launch->block_end`` of its
grid, where ``b = x + grid[0] * (y + grid[1] * z)``, and returns 0, or the
positive code of the assertion that failed first. Blocks are independent: the
caller may run disjoint ranges at the same time on several threads.

``arguments`` holds one 64-bit slot per argument, buffers first, then scalars: a
buffer's slot is its address; a scalar's slot holds its bytes little-endian in
the low bytes, the others zero. Both pointers are valid during the call only.

``launch->dynamic_shared`` points to ``dynamic_shared_bytes`` bytes, 64-byte
aligned, private to the call and undefined at its start; statically sized
block-shared arrays are the kernel's own affair.

An object describes its kernels in a section named `SIGNATURE_SECTION`: UTF-8
JSON, as `accy_async.artifact.native.signature` reads and writes it.
"""

from __future__ import annotations

import ctypes

__all__ = [
    "ABI_VERSION",
    "MAX_ARGUMENTS",
    "SIGNATURE_SECTION",
    "SIGNATURE_SYMBOL",
    "KernelFunction",
    "LaunchBlock",
]

ABI_VERSION = 1
SIGNATURE_SECTION = ".accy.kernels"
SIGNATURE_SYMBOL = "accy_kernel_signatures"
MAX_ARGUMENTS = 256


class LaunchBlock(ctypes.Structure):
    """``struct launch``: 64 bytes, natural alignment, little-endian."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("threadgroup", ctypes.c_uint32 * 3),
        ("block_begin", ctypes.c_uint64),
        ("block_end", ctypes.c_uint64),
        ("dynamic_shared", ctypes.c_uint64),
        ("dynamic_shared_bytes", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
    )


# CFUNCTYPE releases the interpreter lock around the call.
KernelFunction = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(LaunchBlock)
)
