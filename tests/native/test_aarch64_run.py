"""Running linked AArch64 images on any machine, through an emulator.

Imports are replaced by a function that doubles its argument, so that what a
call returns says that it went through the right slot.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from accy_async.artifact.native import MachineImage, decode_image, link_object
from tests.native.arm_words import arm
from tests.native.objects import BODY, KERNELS, compile_ir

unicorn = pytest.importorskip("unicorn", reason="the emulator is not installed")
arm64 = pytest.importorskip("unicorn.arm64_const")

BASE, MEMORY, STACK, OUTSIDE = 0x7F00_0000, 0x2000_0000, 0x3000_0000, 0x4000_0000
DOUBLE, HALVE, STOP = OUTSIDE, OUTSIDE + 64, OUTSIDE + 128


def start(image: MachineImage) -> Any:
    """An emulator with the image laid out as the loader does it."""
    machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    machine.reg_write(arm64.UC_ARM64_REG_CPACR_EL1, 3 << 20)
    protections = (
        (0, image.text, unicorn.UC_PROT_READ | unicorn.UC_PROT_EXEC),
        (image.rodata_offset, image.rodata, unicorn.UC_PROT_READ),
        (image.data_offset, image.data, unicorn.UC_PROT_READ | unicorn.UC_PROT_WRITE),
    )
    machine.mem_map(BASE, image.memory_bytes, unicorn.UC_PROT_ALL)
    for offset, data, _ in protections:
        machine.mem_write(BASE + offset, data)
    for place in image.base_relocations:
        word = struct.unpack("<Q", machine.mem_read(BASE + place, 8))[0]
        machine.mem_write(BASE + place, struct.pack("<Q", word + BASE))
    for number, name in enumerate(image.imports):
        function = HALVE if name == "tanhf" else DOUBLE
        slot = BASE + image.got_offset + 8 * number
        machine.mem_write(slot, struct.pack("<Q", function))
    ends = (image.rodata_offset, image.data_offset, image.memory_bytes)
    for (offset, _, protection), end in zip(protections, ends, strict=True):
        if end > offset:
            machine.mem_protect(BASE + offset, end - offset, protection)
    machine.mem_map(OUTSIDE, 4096)
    machine.mem_write(DOUBLE, arm("fadd s0, s0, s0\nret"))
    halve = "fmov s1, #0.5\nfmul s0, s0, s1\nret"
    machine.mem_write(HALVE, arm(halve))
    for place in (MEMORY, STACK):
        machine.mem_map(place, 65536)
    return machine


def call(machine: Any, address: int, begin: int, end: int) -> int:
    launch = struct.pack("<6I5Q", end, 1, 1, 1, 1, 1, begin, end, 0, 0, 0)
    machine.mem_write(MEMORY + 256, launch)
    machine.reg_write(arm64.UC_ARM64_REG_X0, MEMORY)
    machine.reg_write(arm64.UC_ARM64_REG_X1, MEMORY + 256)
    machine.reg_write(arm64.UC_ARM64_REG_LR, STOP)
    machine.reg_write(arm64.UC_ARM64_REG_SP, STACK + 32768)
    machine.emu_start(address, STOP, count=100_000)
    return int(machine.reg_read(arm64.UC_ARM64_REG_X0)) & 0xFFFFFFFF


@pytest.mark.parametrize("optimize", [0, 2])
def test_aarch64_image_runs(optimize: int) -> None:
    image = decode_image(
        link_object(compile_ir(BODY, KERNELS, "aarch64", optimize=optimize))
    )
    entries = dict(image.exports)
    machine = start(image)
    x = np.linspace(-2, 2, 16, dtype=np.float32)
    x_at, y_at = MEMORY + 1024, MEMORY + 4096
    scalar = int(np.float32(0.5).view(np.uint32))
    machine.mem_write(x_at, x.tobytes())
    machine.mem_write(MEMORY, struct.pack("<3Q", x_at, y_at, scalar))

    assert call(machine, BASE + entries["transform"], 0, 16) == 0
    y = np.frombuffer(machine.mem_read(y_at, 64), np.float32)
    np.testing.assert_allclose(y, x + (np.arange(16) % 8 + 1), rtol=1e-6)

    assert call(machine, BASE + entries["dispatch"], 2, 3) == 5
    assert call(machine, BASE + entries["dispatch"], 3, 4) == 5
    y = np.frombuffer(machine.mem_read(y_at, 64), np.float32)
    np.testing.assert_array_equal(y[2:4], [2 * x[2], x[3] / 2])

    assert call(machine, BASE + entries["vectors"], 0, 1) == 0
    y = np.frombuffer(machine.mem_read(y_at, 16), np.float32)
    wanted = x[:4] * [1, 2, 3, 4] + [0.5, 0.25, 0.125, 2]
    np.testing.assert_allclose(y, wanted, rtol=1e-6)

    machine.mem_write(MEMORY, struct.pack("<Q", y_at))
    for count in (1, 2):
        assert call(machine, BASE + entries["count"], 0, 1) == 0
        y = np.frombuffer(machine.mem_read(y_at, 8), np.float32)
        np.testing.assert_array_equal(y, [40 + count, count])
