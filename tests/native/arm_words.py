"""AArch64 instructions and their words, as LLVM 14's llvm-mc encodes them.

Recorded, because llvmlite offers no assembler and few systems have one for another
architecture: what the linker writes is compared with an assembler's own encoding of
the final distances.
"""

from __future__ import annotations

import struct

WORDS = {
    "nop": 0xD503201F,
    "ret": 0xD65F03C0,
    "bti c": 0xD503245F,
    "b #0": 0x14000000,
    "bl #0": 0x94000000,
    "b #12": 0x14000003,
    "bl #12": 0x94000003,
    "b #-8": 0x17FFFFFE,
    "bl #-8": 0x97FFFFFE,
    "bl #8": 0x94000002,
    "br x17": 0xD61F0220,
    "adrp x0, #0": 0x90000000,
    "adrp x3, #0": 0x90000003,
    "adrp x7, #0": 0x90000007,
    "adrp x3, #65536": 0x90000083,
    "adrp x7, #65536": 0x90000087,
    "adrp x7, #86016": 0xB00000A7,
    "adrp x7, #61440": 0xF0000067,
    "adrp x16, #65536": 0x90000090,
    "ldr x3, [x3]": 0xF9400063,
    "ldr x3, [x3, #8]": 0xF9400463,
    "ldr x17, [x16]": 0xF9400211,
    "ldrb w0, [x1]": 0x39400020,
    "ldrb w0, [x1, #0x123]": 0x39448C20,
    "ldrh w0, [x1]": 0x79400020,
    "ldrh w0, [x1, #0x122]": 0x79424420,
    "str w0, [x1]": 0xB9000020,
    "str w0, [x1, #0x124]": 0xB9012420,
    "ldr x0, [x1]": 0xF9400020,
    "ldr x0, [x1, #0x128]": 0xF9409420,
    "ldr q0, [x1]": 0x3DC00020,
    "ldr q0, [x1, #0x120]": 0x3DC04820,
    "add x0, x1, #0": 0x91000020,
    "add x0, x1, #0x123": 0x91048C20,
    "fadd s0, s0, s0": 0x1E202800,
    "fmov s1, #0.5": 0x1E2C1001,
    "fmul s0, s0, s1": 0x1E210800,
}


def arm(code: str) -> bytes:
    """The machine code of recorded instructions, one a line."""
    lines = [line.strip() for line in code.strip().splitlines()]
    return struct.pack(f"<{len(lines)}I", *(WORDS[line] for line in lines))
