"""Mapping images, and the systems that do not let it happen."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from accy_async.artifact.native import (
    MachineImage,
    decode_image,
    host_architecture,
    link_object,
    memory,
)
from accy_async.artifact.native.imports import resolve_import
from accy_async.errors import InvalidArtifact, OutOfMemory, RuntimeUnavailable
from tests.native.objects import BODY, KERNELS, compile_ir

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs mmap of POSIX")


def arm_image() -> MachineImage:
    return decode_image(link_object(compile_ir(BODY, KERNELS, "aarch64")))


def test_mapped_image_holds_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots hold the imports' addresses, and pointers have the base added.

    The image is for AArch64, so that the instruction cache is flushed; mapping it
    runs nothing.
    """
    flushed = []
    monkeypatch.setattr(
        memory,
        "_cache_flusher",
        lambda: lambda begin, end: flushed.append((begin, end)),
    )
    image = arm_image()
    base = memory.map_image(image)
    try:
        assert base % mmap.PAGESIZE == 0
        assert ctypes.string_at(base, len(image.text)) == image.text
        count = len(image.imports)
        slots = struct.unpack(
            f"<{count}Q", ctypes.string_at(base + image.got_offset, 8 * count)
        )
        assert slots == tuple(map(resolve_import, image.imports))
        assert image.base_relocations
        for offset in image.base_relocations:
            word = struct.unpack("<Q", ctypes.string_at(base + offset, 8))[0]
            start = offset - image.rodata_offset
            stored = struct.unpack_from("<Q", image.rodata, start)[0]
            assert word == stored + base
        data = ctypes.string_at(base + image.data_offset, len(image.data))
        assert data == image.data
        assert flushed == [(base, base + len(image.text))]
    finally:
        memory.unmap_image(base, image.memory_bytes)


def test_instruction_cache_is_flushed_by_the_compilers_runtime() -> None:
    try:
        flush = memory._cache_flusher()
    except RuntimeUnavailable:
        if host_architecture() == "aarch64":
            raise
        pytest.skip("there is no libgcc_s here, nor a need for it")
    buffer = ctypes.create_string_buffer(64)
    flush(ctypes.addressof(buffer), ctypes.addressof(buffer) + 64)


def test_no_memory_for_an_image() -> None:
    with pytest.raises(OutOfMemory) as caught:
        memory._allocate(1 << 62)
    assert caught.value.requested_bytes == 1 << 62


def test_pages_larger_than_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "PAGESIZE", 1 << 20)
    with pytest.raises(RuntimeUnavailable, match="pages of 1048576 bytes"):
        memory.map_image(arm_image())


def test_system_with_another_calling_convention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "name", "nt")
    try:
        with pytest.raises(RuntimeUnavailable, match="System V calling convention"):
            memory.require_native_code()
    finally:
        monkeypatch.undo()


def test_system_that_keeps_a_register(monkeypatch: pytest.MonkeyPatch) -> None:
    class Machine:
        machine = "arm64"

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "uname", Machine)
    try:
        with pytest.raises(RuntimeUnavailable, match="register x18"):
            memory.require_native_code()
    finally:
        monkeypatch.undo()


SEALED = """
import ctypes, sys
from accy_async.artifact.native import load_object
from accy_async.errors import RuntimeUnavailable
from tests.native.objects import host_object
from accy_async.artifact.native import host_architecture
payload = host_object(host_architecture())
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
    sys.exit(77)
try:
    load_object(payload, "count")
except RuntimeUnavailable as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is Linux's")
def test_system_that_denies_executable_memory(host: str) -> None:
    """A kernel that forbids it for real is met with words, not a crash."""
    result = subprocess.run(
        [sys.executable, "-c", SEALED],
        cwd=Path(__file__).parents[2],
        check=False,
        capture_output=True,
        text=True,
    )
    if result.returncode == 77:
        pytest.skip("this Linux cannot deny executable memory (before 6.3)")
    assert result.stderr == ""
    assert "does not let memory become executable (Permission denied)" in result.stdout


def test_failed_unmapping_is_told() -> None:
    with pytest.raises(RuntimeUnavailable, match="munmap of 4096 bytes"):
        memory.unmap_image(1, 4096)


def test_image_that_was_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports are looked up before memory is mapped, and by the same list."""
    image = arm_image()
    object.__setattr__(image, "imports", ("system",))
    monkeypatch.setattr(memory, "_allocate", lambda size: pytest.fail("mapped"))
    with pytest.raises(InvalidArtifact, match="'system' is no function"):
        memory.map_image(image)
