"""Kernels that work on each element by itself.

All take ``n``, the number of elements, as their first scalar (u32) and are
launched over ``ceil(n / TILE)`` blocks along x. Results come before operands.
A result may be one of the operands (the same memory, not a shifted overlap).
"""

from __future__ import annotations

from accy_async.compiler.form import Expression, KernelBuilder
from accy_async.compiler.kernels.library import TILE, LibraryKernel
from accy_async.dtypes import DType
from accy_async.errors import InvalidType

__all__ = ["ARITHMETIC_DTYPES", "add", "axpy", "copy", "fill", "tile_elements"]

ARITHMETIC_DTYPES = tuple(dtype for dtype in DType if dtype is not DType.BOOL)
"""The dtypes that `add` and `axpy` exist for: all but bool."""

_HALVES = (DType.F16, DType.BF16)


def add(dtype: DType) -> LibraryKernel:
    """``out[i] = a[i] + b[i]``: ``(out, a, b; n: u32)``.

    Integers wrap. f16 and bf16 are added in f32 and rounded once.

    Raises:
        InvalidType: bool.
    """
    k = _builder("add", dtype, ARITHMETIC_DTYPES)
    out = k.buffer("out", dtype, "write_only")
    a = k.buffer("a", dtype, "read_only")
    b = k.buffer("b", dtype, "read_only")
    base, count = tile_elements(k)
    with k.region(limit=count):
        i = base + k.thread.cast(DType.U64)
        out[i] = (_wide(a[i]) + _wide(b[i])).cast(dtype)
    return LibraryKernel("accy.kernel.add", k.build())


def axpy(dtype: DType) -> LibraryKernel:
    """``out[i] = a * x[i] + y[i]``: ``(out, x, y; n: u32, a: dtype)``.

    Pass ``y`` as ``out`` too for the update in place. The product is rounded
    before the sum, so the result is numpy's ``a * x + y`` to the bit; f16 and
    bf16 are computed so in f32, and rounded to the dtype at the end.

    Raises:
        InvalidType: bool.
    """
    k = _builder("axpy", dtype, ARITHMETIC_DTYPES)
    out = k.buffer("out", dtype, "write_only")
    x = k.buffer("x", dtype, "read_only")
    y = k.buffer("y", dtype, "read_only")
    base, count = tile_elements(k)
    a = _wide(k.scalar("a", dtype))
    with k.region(limit=count):
        i = base + k.thread.cast(DType.U64)
        out[i] = (a * _wide(x[i]) + _wide(y[i])).cast(dtype)
    return LibraryKernel("accy.kernel.axpy", k.build())


def fill(dtype: DType) -> LibraryKernel:
    """``out[i] = value``: ``(out; n: u32, value: dtype)``, for every dtype."""
    k = _builder("fill", dtype, tuple(DType))
    out = k.buffer("out", dtype, "write_only")
    base, count = tile_elements(k)
    value = k.scalar("value", dtype)
    with k.region(limit=count):
        out[base + k.thread.cast(DType.U64)] = value
    return LibraryKernel("accy.kernel.fill", k.build())


def copy(dtype: DType) -> LibraryKernel:
    """``out[i] = source[i]``: ``(out, source; n: u32)``, for every dtype.

    Floats keep their bits, NaNs too. A bool that is stored as another byte than
    0 becomes 1.
    """
    k = _builder("copy", dtype, tuple(DType))
    out = k.buffer("out", dtype, "write_only")
    source = k.buffer("source", dtype, "read_only")
    base, count = tile_elements(k)
    with k.region(limit=count):
        i = base + k.thread.cast(DType.U64)
        out[i] = source[i]
    return LibraryKernel("accy.kernel.copy", k.build())


def tile_elements(k: KernelBuilder) -> tuple[Expression, Expression]:
    """Declare ``n``; a block's first element (u64) and how many are left (i64).

    64 bits, since the last block may end beyond what u32 holds.
    """
    n = k.scalar("n", DType.U32)
    base = k.let("base", k.block_x.cast(DType.U64) * TILE)
    count = k.let("count", n.cast(DType.I64) - base.cast(DType.I64))
    return base, count


def _builder(name: str, dtype: DType, dtypes: tuple[DType, ...]) -> KernelBuilder:
    if dtype not in dtypes:
        raise InvalidType(
            f"accy.kernel.{name}", dtype, "one of " + ", ".join(map(str, dtypes))
        )
    return KernelBuilder(f"accy_{name}_{dtype}", threadgroup=(TILE, 1, 1))


def _wide(value: Expression) -> Expression:
    """The value in the dtype it is computed in."""
    return value.cast(DType.F32) if value.dtype in _HALVES else value
