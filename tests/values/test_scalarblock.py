"""Scalars lie in their block as GLSL's std430 and C++ would lay them out."""

from __future__ import annotations

import ctypes
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accy_async.artifact.scalarblock import ScalarBlock
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import LaunchArgumentMismatch

_C = {
    DType.I64: ctypes.c_int64,
    DType.U64: ctypes.c_uint64,
    DType.F64: ctypes.c_double,
}


@given(st.lists(st.sampled_from(list(DType)), max_size=20))
def test_offsets_are_those_of_a_c_struct(dtypes: list[DType]) -> None:
    fields = [(f"f{i}", _C.get(d, ctypes.c_uint32)) for i, d in enumerate(dtypes)]
    struct_ = type("S", (ctypes.Structure,), {"_fields_": fields})
    block = ScalarBlock(dtypes)
    assert block.offsets == tuple(getattr(struct_, n).offset for n, _ in fields)
    assert block.byte_size <= ctypes.sizeof(struct_) < block.byte_size + 8
    pushed = block.push_constants
    assert (pushed.byte_size if pushed else 0) == block.byte_size


def test_narrow_scalars_are_words_with_high_bytes_of_zero() -> None:
    block = ScalarBlock([DType.I8, DType.BOOL, DType.BF16, DType.F64, DType.U32])
    packed = block.pack(
        [
            ScalarArgument.i8(-1),
            ScalarArgument.bool_(True),
            ScalarArgument.bf16(1.0),
            ScalarArgument.f64(2.5),
            ScalarArgument.u32(7),
        ]
    )
    assert packed == struct.pack("<III4xdI", 0xFF, 1, 0x3F80, 2.5, 7)
    assert ScalarBlock([]).pack([]) == b""
    assert ScalarBlock([]).push_constants is None


def test_other_scalars_than_the_kernels_are_refused() -> None:
    block = ScalarBlock([DType.U32])
    with pytest.raises(LaunchArgumentMismatch, match="i32, the kernel takes u32"):
        block.pack([ScalarArgument.i32(1)])
    with pytest.raises(LaunchArgumentMismatch, match="scalars of none"):
        block.pack([])
