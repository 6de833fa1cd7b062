"""A kernel that says what it was given."""

from __future__ import annotations

from accy_async.compiler.form import Kernel, KernelBuilder
from accy_async.dtypes import DType

__all__ = ["echo_kernel"]


def echo_kernel(dtype: DType) -> Kernel:
    """It writes its scalar of the dtype to its buffer's first element."""
    k = KernelBuilder(f"echo_{dtype}", threadgroup=(1, 1, 1))
    out = k.buffer("out", dtype, "write_only")
    value = k.scalar("value", dtype)
    with k.region():
        out[k.thread] = value
    return k.build()
