"""16-bit floats to f32 and back, in integer and f32 instructions.

For levels without conversion instructions, and for bf16 on all of them: LLVM
would call its runtime library, which not every system has. All round to nearest,
ties to even, keep subnormals, and turn a NaN into a quiet NaN.

Source: F. Giesen, "half-to-float done quick" and "float->half variants",
fgiesen.wordpress.com, 2012 (public domain code).
"""

from __future__ import annotations

from accy_async.compiler.emit.writer import FunctionWriter
from accy_async.dtypes import DType

__all__ = ["from_f32", "to_f32"]


def to_f32(writer: FunctionWriter, source: DType, bits: str, *, native: bool) -> str:
    """The f32 of an f16's or bf16's bits; exact."""
    if source is DType.BF16:
        wide = writer.value(f"zext i16 {bits} to i32")
        return _as_float(writer, writer.value(f"shl i32 {wide}, 16"))
    if native:
        half = writer.value(f"bitcast i16 {bits} to half")
        return writer.value(f"fpext half {half} to float")
    return _f16_to_f32(writer, bits)


def from_f32(writer: FunctionWriter, target: DType, value: str, *, native: bool) -> str:
    """The bits of the f16 or bf16 nearest to an f32."""
    if target is DType.F16 and native:
        half = writer.value(f"fptrunc float {value} to half")
        return writer.value(f"bitcast half {half} to i16")
    bits = writer.value(f"bitcast float {value} to i32")
    if target is DType.BF16:
        return _f32_to_bf16(writer, bits)
    return _f32_to_f16(writer, bits)


def _as_float(writer: FunctionWriter, bits: str) -> str:
    return writer.value(f"bitcast i32 {bits} to float")


def _f32_to_bf16(writer: FunctionWriter, bits: str) -> str:
    op = writer.value
    high = op(f"lshr i32 {bits}, 16")
    odd = op(f"and i32 {high}, 1")
    biased = op(f"add i32 {bits}, 32767")
    rounded = op(f"lshr i32 {op(f'add i32 {biased}, {odd}')}, 16")
    magnitude = op(f"and i32 {bits}, {0x7FFFFFFF}")
    is_nan = op(f"icmp ugt i32 {magnitude}, {0x7F800000}")
    quiet = op(f"or i32 {high}, 64")
    return op(
        f"trunc i32 {op(f'select i1 {is_nan}, i32 {quiet}, i32 {rounded}')} to i16"
    )


def _f32_to_f16(writer: FunctionWriter, bits: str) -> str:
    op = writer.value
    infinity, first_too_large = 255 << 23, (127 + 16) << 23
    first_normal, magic = 113 << 23, ((127 - 15) + (23 - 10) + 1) << 23
    magnitude = op(f"and i32 {bits}, {0x7FFFFFFF}")
    is_nan = op(f"icmp ugt i32 {magnitude}, {infinity}")
    special = op(f"select i1 {is_nan}, i32 {0x7E00}, i32 {0x7C00}")
    # Adding the magic number lets the f32 adder align and round the subnormal.
    scale = _as_float(writer, str(magic))
    small = _as_float(writer, magnitude)
    aligned = op(f"bitcast float {op(f'fadd float {small}, {scale}')} to i32")
    subnormal = op(f"sub i32 {aligned}, {magic}")
    odd = op(f"and i32 {op(f'lshr i32 {magnitude}, 13')}, 1")
    rebiased = op(f"add i32 {magnitude}, {((15 - 127) << 23) + 0xFFF}")
    normal = op(f"lshr i32 {op(f'add i32 {rebiased}, {odd}')}, 13")
    is_small = op(f"icmp ult i32 {magnitude}, {first_normal}")
    finite = op(f"select i1 {is_small}, i32 {subnormal}, i32 {normal}")
    is_large = op(f"icmp uge i32 {magnitude}, {first_too_large}")
    unsigned = op(f"select i1 {is_large}, i32 {special}, i32 {finite}")
    sign = op(f"and i32 {op(f'lshr i32 {bits}, 16')}, {0x8000}")
    return op(f"trunc i32 {op(f'or i32 {unsigned}, {sign}')} to i16")


def _f16_to_f32(writer: FunctionWriter, half: str) -> str:
    op = writer.value
    exponent_mask = 0x7C00 << 13
    bits = op(f"zext i16 {half} to i32")
    shifted = op(f"shl i32 {op(f'and i32 {bits}, {0x7FFF}')}, 13")
    exponent = op(f"and i32 {shifted}, {exponent_mask}")
    normal = op(f"add i32 {shifted}, {(127 - 15) << 23}")
    special = op(f"add i32 {normal}, {(128 - 16) << 23}")
    raised = _as_float(writer, op(f"add i32 {normal}, {1 << 23}"))
    magic = _as_float(writer, str(113 << 23))
    subnormal = op(f"bitcast float {op(f'fsub float {raised}, {magic}')} to i32")
    is_special = op(f"icmp eq i32 {exponent}, {exponent_mask}")
    is_small = op(f"icmp eq i32 {exponent}, 0")
    finite = op(f"select i1 {is_small}, i32 {subnormal}, i32 {normal}")
    unsigned = op(f"select i1 {is_special}, i32 {special}, i32 {finite}")
    sign = op(f"shl i32 {op(f'and i32 {bits}, {0x8000}')}, 16")
    return _as_float(writer, op(f"or i32 {unsigned}, {sign}"))
