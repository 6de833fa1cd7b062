"""SPIR-V modules written by hand, so that each rule has a module that breaks it."""

from __future__ import annotations

import struct
from collections.abc import Iterable

__all__ = ["ADD", "assemble", "name", "without"]

Words = tuple[int, ...]


def name(text: str) -> Words:
    """A literal string as words."""
    raw = text.encode() + b"\0"
    raw += b"\0" * (-len(raw) % 4)
    return struct.unpack(f"<{len(raw) // 4}I", raw)


def assemble(
    instructions: Iterable[Words],
    *,
    magic: int = 0x07230203,
    version: int = 0x00010500,
    bound: int = 64,
    schema: int = 0,
) -> bytes:
    """Instructions, each an opcode and its operands, behind a header."""
    words = [magic, version, 0, bound, schema]
    for opcode, *operands in instructions:
        words += [(len(operands) + 1) << 16 | opcode, *operands]
    return struct.pack(f"<{len(words)}I", *words)


def without(*opcodes: int) -> list[Words]:
    """The instructions of `ADD` but for some."""
    return [instruction for instruction in ADD if instruction[0] not in opcodes]


ADD: list[Words] = [
    (17, 1),  # OpCapability Shader
    (17, 11),  # Int64
    (10, *name("SPV_KHR_float_controls")),
    (11, 1, *name("GLSL.std.450")),
    (14, 0, 1),  # OpMemoryModel Logical GLSL450
    (15, 5, 2, *name("add"), 3, 4),  # OpEntryPoint GLCompute
    (16, 2, 17, 64, 2, 1),  # LocalSize
    (16, 2, 4462, 32),  # RoundingModeRTE
    (71, 10, 6, 4),  # ArrayStride
    (72, 11, 0, 24),  # member NonWritable
    (72, 11, 0, 35, 0),  # member Offset
    (71, 11, 2),  # Block
    (71, 3, 34, 0),  # DescriptorSet
    (71, 3, 33, 1),  # Binding
    (72, 13, 0, 35, 0),
    (72, 13, 1, 35, 8),
    (71, 13, 2),
    (19, 20),  # OpTypeVoid
    (33, 21, 20),  # OpTypeFunction
    (22, 9, 32),  # OpTypeFloat
    (21, 8, 32, 0),  # OpTypeInt
    (21, 7, 64, 0),
    (29, 10, 9),  # OpTypeRuntimeArray
    (30, 11, 10),  # OpTypeStruct
    (32, 12, 12, 11),  # OpTypePointer StorageBuffer
    (30, 13, 8, 7),
    (32, 14, 9, 13),  # OpTypePointer PushConstant
    (59, 12, 3, 12),  # OpVariable
    (59, 14, 4, 9),
    (54, 20, 2, 0, 21),  # OpFunction
    (248, 22),  # OpLabel
    (253,),  # OpReturn
    (56,),  # OpFunctionEnd
]
"""A kernel named add: one buffer at set 0, binding 1, and 16 push constant bytes."""
