"""The three C-like languages, as far as they differ in words.

A value is held in a *register* type of at least 32 bits: i8 and i16 in an int, u8
and u16 in an unsigned one, wrapped to their width by the operations that may leave
it; f16 and bf16 as the bits that they are stored as. Only memory has narrow types.
So no language needs arithmetic on them, and C's promotions change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from accy_async.compiler.form import BinaryOperation, BuiltinKind, UnaryOperation
from accy_async.dtypes import DType

__all__ = [
    "CUDA",
    "FAST_CUDA",
    "FAST_GLSL",
    "FAST_MSL",
    "GLSL",
    "MSL",
    "Dialect",
    "unsigned",
]

_B, _U = BinaryOperation, UnaryOperation
_NARROW_INTS = (DType.I8, DType.I16)
_WORDS = (DType.U8, DType.U16, DType.F16, DType.BF16)


def unsigned(dtype: DType) -> DType:
    """The unsigned integer whose register has the size of the dtype's."""
    return DType.U64 if dtype.bits == 64 else DType.U32


@attrs.frozen(kw_only=True)
class Dialect:
    """The words of one language.

    Attributes:
        name: the language's.
        wide: the types of i32, u32, i64, u64, f32 and f64.
        stored: the types of narrow elements in buffers: i8, i16, u8 and u16.
        suffixes: what follows a number of a type.
        function: what a helper function's definition starts with.
        scope: what the name of a helper is called with.
        precise: what keeps a float variable's operations as they are written.
        to_bits, from_bits: functions between floats and integers of their size.
        calls: operations that are functions of the language, or have operators that
            keep the form's promises; the others are helpers of ours.
        builtins: where a thread is.
        signed_wraps: whether signed integers wrap rather than be undefined.
        wide_indices: whether an index may have 64 bits.
        widens_shared: whether block-shared arrays hold registers.
        native_halves: whether f16 is converted by an instruction of PTX.
    """

    name: str
    wide: Mapping[DType, str]
    stored: Mapping[DType, str]
    suffixes: Mapping[DType, str]
    function: str
    scope: str
    precise: str
    to_bits: Mapping[DType, str]
    from_bits: Mapping[DType, str]
    calls: Mapping[tuple[BinaryOperation | UnaryOperation, DType], str]
    builtins: Mapping[BuiltinKind, str]
    signed_wraps: bool
    wide_indices: bool
    widens_shared: bool
    native_halves: bool

    def register(self, dtype: DType) -> str:
        """The type that a value is held in."""
        if dtype is DType.BOOL:
            return "bool"
        if dtype in _NARROW_INTS:
            dtype = DType.I32
        elif dtype in _WORDS:
            dtype = DType.U32
        return self.wide[dtype]

    def element(self, dtype: DType, *, shared: bool = False) -> str:
        """The type of an array's elements; a bool's takes a byte."""
        if shared and self.widens_shared:
            return self.register(DType.U32 if dtype is DType.BOOL else dtype)
        if dtype is DType.BOOL:
            dtype = DType.U8
        elif dtype in (DType.F16, DType.BF16):
            dtype = DType.U16
        return self.stored[dtype] if dtype in self.stored else self.wide[dtype]


def _roundings(
    dtype: DType, floor: str, ceiling: str, truncate: str, round_even: str
) -> dict[tuple[BinaryOperation | UnaryOperation, DType], str]:
    return {
        (_U.FLOOR, dtype): floor + "({})",
        (_U.CEILING, dtype): ceiling + "({})",
        (_U.TRUNCATE, dtype): truncate + "({})",
        (_U.ROUND_EVEN, dtype): round_even + "({})",
    }


GLSL = Dialect(
    name="GLSL",
    wide={
        DType.I32: "int",
        DType.U32: "uint",
        DType.I64: "int64_t",
        DType.U64: "uint64_t",
        DType.F32: "float",
        DType.F64: "double",
    },
    stored={
        DType.I8: "int8_t",
        DType.I16: "int16_t",
        DType.U8: "uint8_t",
        DType.U16: "uint16_t",
    },
    suffixes={DType.U32: "u", DType.I64: "L", DType.U64: "UL", DType.F64: "lf"},
    function="",
    scope="",
    precise="precise ",
    to_bits={DType.F32: "floatBitsToUint", DType.F64: "doubleBitsToUint64"},
    from_bits={DType.F32: "uintBitsToFloat", DType.F64: "uint64BitsToDouble"},
    calls={
        (_U.ABSOLUTE, DType.F32): "abs({})",
        (_U.ABSOLUTE, DType.F64): "abs({})",
        (_B.DIVIDE, DType.F64): "({} / {})",
        (_U.SQRT, DType.F64): "sqrt({})",
        **_roundings(DType.F32, "floor", "ceil", "trunc", "roundEven"),
        **_roundings(DType.F64, "floor", "ceil", "trunc", "roundEven"),
    },
    builtins={
        BuiltinKind.THREAD: "thread_index",
        **{BuiltinKind(f"thread_{a}"): f"gl_LocalInvocationID.{a}" for a in "xyz"},
        **{BuiltinKind(f"block_{a}"): f"gl_WorkGroupID.{a}" for a in "xyz"},
        **{BuiltinKind(f"grid_{a}"): f"gl_NumWorkGroups.{a}" for a in "xyz"},
    },
    signed_wraps=True,
    wide_indices=False,
    widens_shared=True,
    native_halves=False,
)

MSL = Dialect(
    name="MSL",
    wide={
        DType.I32: "int",
        DType.U32: "uint",
        DType.I64: "long",
        DType.U64: "ulong",
        DType.F32: "float",
    },
    stored={
        DType.I8: "char",
        DType.I16: "short",
        DType.U8: "uchar",
        DType.U16: "ushort",
    },
    suffixes={DType.U32: "u", DType.I64: "L", DType.U64: "UL", DType.F32: "f"},
    function="static inline ",
    scope="accy::",
    precise="",
    to_bits={DType.F32: "as_type<uint>"},
    from_bits={DType.F32: "as_type<float>"},
    calls={
        (_B.ADD, DType.F32): "({} + {})",
        (_B.SUBTRACT, DType.F32): "({} - {})",
        (_B.MULTIPLY, DType.F32): "({} * {})",
        (_B.DIVIDE, DType.F32): "({} / {})",
        (_U.ABSOLUTE, DType.F32): "fabs({})",
        (_U.SQRT, DType.F32): "precise::sqrt({})",
        (_U.EXP, DType.F32): "precise::exp({})",
        (_U.LOG, DType.F32): "precise::log({})",
        (_U.TANH, DType.F32): "precise::tanh({})",
        **_roundings(DType.F32, "floor", "ceil", "trunc", "rint"),
    },
    builtins={
        BuiltinKind.THREAD: "thread_index",
        **{BuiltinKind(f"thread_{a}"): f"thread_id.{a}" for a in "xyz"},
        **{BuiltinKind(f"block_{a}"): f"block_id.{a}" for a in "xyz"},
        **{BuiltinKind(f"grid_{a}"): f"grid_size.{a}" for a in "xyz"},
    },
    signed_wraps=False,
    wide_indices=True,
    widens_shared=False,
    native_halves=False,
)

CUDA = Dialect(
    name="CUDA C++",
    wide={
        DType.I32: "int",
        DType.U32: "uint",
        DType.I64: "int64",
        DType.U64: "uint64",
        DType.F32: "float",
        DType.F64: "double",
    },
    stored={
        DType.I8: "int8",
        DType.I16: "int16",
        DType.U8: "uint8",
        DType.U16: "uint16",
    },
    suffixes={DType.U32: "u", DType.I64: "LL", DType.U64: "ULL", DType.F32: "f"},
    function="static __device__ inline ",
    scope="accy::",
    precise="",
    to_bits={DType.F32: "__float_as_uint", DType.F64: "__double_as_longlong"},
    from_bits={DType.F32: "__uint_as_float", DType.F64: "__longlong_as_double"},
    calls={
        (_B.ADD, DType.F32): "__fadd_rn({}, {})",
        (_B.SUBTRACT, DType.F32): "__fsub_rn({}, {})",
        (_B.MULTIPLY, DType.F32): "__fmul_rn({}, {})",
        (_B.DIVIDE, DType.F32): "__fdiv_rn({}, {})",
        (_B.MINIMUM, DType.F32): "fminf({}, {})",
        (_B.MAXIMUM, DType.F32): "fmaxf({}, {})",
        (_U.ABSOLUTE, DType.F32): "fabsf({})",
        (_U.SQRT, DType.F32): "__fsqrt_rn({})",
        (_U.EXP, DType.F32): "expf({})",
        (_U.LOG, DType.F32): "logf({})",
        (_U.TANH, DType.F32): "tanhf({})",
        (_B.ADD, DType.F64): "__dadd_rn({}, {})",
        (_B.SUBTRACT, DType.F64): "__dsub_rn({}, {})",
        (_B.MULTIPLY, DType.F64): "__dmul_rn({}, {})",
        (_B.DIVIDE, DType.F64): "__ddiv_rn({}, {})",
        (_B.MINIMUM, DType.F64): "fmin({}, {})",
        (_B.MAXIMUM, DType.F64): "fmax({}, {})",
        (_U.ABSOLUTE, DType.F64): "fabs({})",
        (_U.SQRT, DType.F64): "__dsqrt_rn({})",
        (_U.EXP, DType.F64): "exp({})",
        (_U.LOG, DType.F64): "log({})",
        (_U.TANH, DType.F64): "tanh({})",
        **_roundings(DType.F32, "floorf", "ceilf", "truncf", "rintf"),
        **_roundings(DType.F64, "floor", "ceil", "trunc", "rint"),
    },
    builtins={
        BuiltinKind.THREAD: "thread_index",
        **{BuiltinKind(f"thread_{a}"): f"threadIdx.{a}" for a in "xyz"},
        **{BuiltinKind(f"block_{a}"): f"blockIdx.{a}" for a in "xyz"},
        **{BuiltinKind(f"grid_{a}"): f"gridDim.{a}" for a in "xyz"},
    },
    signed_wraps=False,
    wide_indices=True,
    widens_shared=False,
    native_halves=True,
)


def _fast(dialect: Dialect, **functions: str) -> Dialect:
    """A dialect whose operations the compiler may fuse, with these of f32."""
    operators: dict[tuple[BinaryOperation | UnaryOperation, DType], str] = {
        (op, dtype): f"({{}} {sign} {{}})"
        for op, sign in ((_B.ADD, "+"), (_B.SUBTRACT, "-"), (_B.MULTIPLY, "*"))
        for dtype in (DType.F32, DType.F64)
    }
    named = {
        (_B.DIVIDE if word == "divide" else _U(word), DType.F32): call
        for word, call in functions.items()
    }
    return attrs.evolve(
        dialect, precise="", calls={**dialect.calls, **operators, **named}
    )


FAST_GLSL = _fast(
    GLSL, divide="({} / {})", sqrt="sqrt({})", exp="exp({})", log="log({})"
)
"""Vulkan's own functions; tanh is ours, whose errors near 0 Vulkan does not bound."""

FAST_MSL = _fast(
    MSL,
    divide="fast::divide({}, {})",
    sqrt="fast::sqrt({})",
    exp="fast::exp({})",
    log="fast::log({})",
)
FAST_CUDA = _fast(
    CUDA, divide="({} / {})", sqrt="sqrtf({})", exp="__expf({})", log="__logf({})"
)
"""To be compiled with ``--prec-div=false --prec-sqrt=false``."""
