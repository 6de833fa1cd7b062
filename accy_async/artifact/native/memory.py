"""Placing a checked image in memory, so that it can run.

The image is written while its pages are readable and writable; then text becomes
executable and read-only, rodata read-only, and only data stays writable. No page
is ever writable and executable at once. Nothing is freed by the garbage
collector, since another thread may be running the code: whoever maps, unmaps.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys

from accy_async.artifact.native.image import (
    PAGE_BYTES,
    SLOT_BYTES,
    MachineImage,
    align_up,
)
from accy_async.artifact.native.imports import resolve_import
from accy_async.errors import OutOfMemory, RuntimeUnavailable

__all__ = ["map_image", "require_native_code", "unmap_image"]

_FAILED = ctypes.c_void_p(-1).value


def require_native_code() -> None:
    """Raise unless this system can run native kernels.

    Raises:
        RuntimeUnavailable: the system has another calling convention than the
            kernels', or does not let memory become executable.
    """
    if os.name != "posix":
        raise RuntimeUnavailable(
            f"native kernels follow the System V calling convention, {sys.platform} "
            "has another"
        )
    if sys.platform == "darwin" and os.uname().machine == "arm64":
        raise RuntimeUnavailable(
            "native kernels may use the register x18, which macOS on Apple silicon "
            "keeps for itself"
        )


def map_image(image: MachineImage) -> int:
    """Copy an image into memory of its own, ready to run; returns its base.

    The image must have passed ``check_image``, as linked and decoded ones have.

    Raises:
        RuntimeUnavailable: an import is missing here, the pages are larger than
            the image provides for, or memory may not become executable.
        OutOfMemory: there is no memory for the image.
    """
    require_native_code()
    page = PAGE_BYTES[image.machine]
    if page % mmap.PAGESIZE:
        raise RuntimeUnavailable(
            f"pages of {mmap.PAGESIZE} bytes; native kernels are laid out for pages "
            f"of at most {page}"
        )
    imports = [resolve_import(name) for name in image.imports]
    # An image without bytes still gets a page: a mapping can't be empty.
    size = max(image.memory_bytes, mmap.PAGESIZE)
    base = _allocate(size)
    try:
        _fill(image, base, imports)
        _seal(image, base)
    except BaseException:
        unmap_image(base, size)
        raise
    return base


def unmap_image(base: int, byte_size: int) -> None:
    """Return an image's memory to the system; nobody may be running it."""
    if _libc().munmap(base, max(byte_size, mmap.PAGESIZE)):
        raise RuntimeUnavailable(
            f"munmap of {byte_size} bytes: {os.strerror(ctypes.get_errno())}"
        )


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


def _allocate(size: int) -> int:
    base: int | None = _libc().mmap(
        None,
        size,
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_PRIVATE | mmap.MAP_ANON,
        -1,
        0,
    )
    if base is None or base == _FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise OutOfMemory(
            f"no {size} bytes of memory for native code: {reason}", requested_bytes=size
        )
    return base


def _fill(image: MachineImage, base: int, imports: list[int]) -> None:
    for offset, data in (
        (0, image.text),
        (image.rodata_offset, image.rodata),
        (image.data_offset, image.data),
    ):
        ctypes.memmove(base + offset, data, len(data))
    for number, address in enumerate(imports):
        slot = base + image.got_offset + SLOT_BYTES * number
        ctypes.memmove(slot, address.to_bytes(SLOT_BYTES, "little"), SLOT_BYTES)
    for offset in image.base_relocations:
        word = int.from_bytes(ctypes.string_at(base + offset, SLOT_BYTES), "little")
        moved = (word + base) & 0xFFFF_FFFF_FFFF_FFFF
        ctypes.memmove(base + offset, moved.to_bytes(SLOT_BYTES, "little"), SLOT_BYTES)


def _seal(image: MachineImage, base: int) -> None:
    if image.text:
        _flush_instructions(image, base, len(image.text))
        text_bytes = align_up(len(image.text), mmap.PAGESIZE)
        _protect(base, text_bytes, mmap.PROT_READ | mmap.PROT_EXEC)
    if image.rodata:
        rodata_bytes = align_up(len(image.rodata), mmap.PAGESIZE)
        _protect(base + image.rodata_offset, rodata_bytes, mmap.PROT_READ)


def _protect(address: int, size: int, protection: int) -> None:
    if _libc().mprotect(address, size, protection):
        reason = os.strerror(ctypes.get_errno())
        what = "executable" if protection & mmap.PROT_EXEC else "read-only"
        raise RuntimeUnavailable(
            f"the system does not let memory become {what} ({reason}), so native "
            "kernels cannot run here"
        )


def _flush_instructions(image: MachineImage, base: int, size: int) -> None:
    """Make written instructions visible to instruction fetch.

    x86 keeps its caches coherent; AArch64 asks for it (Arm ARM, B2.7.4), through
    the compiler's runtime function because user code needs the line sizes.
    """
    if image.architecture != "aarch64":
        return
    clear = _cache_flusher()
    clear(base, base + size)


@functools.cache
def _cache_flusher() -> ctypes._NamedFuncPointer:
    for name in (None, "libgcc_s.so.1", "libclang_rt.builtins.so"):
        try:
            function = ctypes.CDLL(name)["__clear_cache"]
        except (OSError, AttributeError):
            continue
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        function.restype = None
        return function
    raise RuntimeUnavailable(
        "__clear_cache is in no library of this system; install libgcc_s"
    )
