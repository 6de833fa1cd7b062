"""A kernel at the limits of the form: deep expressions, deep branches, many names."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from accy_async.compiler.form import Expression, Kernel, KernelBuilder
from accy_async.dtypes import DType
from tests.compiler.harness import Array

__all__ = ["DEPTH", "deep_kernel", "deep_result"]

DEPTH = 30
_NEGATIONS = 120


def deep_kernel() -> Kernel:
    k = KernelBuilder("deep", threadgroup=(1024, 1, 1))
    out = k.buffer("out", DType.I64, "write_only")
    a = k.buffer("a", DType.I32, "read_only")
    shared = k.shared("shared", DType.I32, 2048)
    kept = [k.thread_variable(f"v{i}", DType.I64) for i in range(32)]
    with k.region():
        value: Expression = a.at(k.thread)
        for index in range(_NEGATIONS):
            value = -value if index % 2 else value - 1
        shared[k.thread] = value
        for index, variable in enumerate(kept):
            variable.set(k.thread.cast(DType.I64) + index)
    with k.region():
        out[k.thread] = 0
        with ExitStack() as stack:
            for level in range(DEPTH):
                stack.enter_context(k.when(k.thread >= level))
            total = shared.at(k.thread).cast(DType.I64)
            for variable in kept:
                total = total + variable.value
            out[k.thread] = total
    return k.build()


def deep_result(a: Array) -> Array:
    value = a.astype(np.int64)
    for index in range(_NEGATIONS):
        value = -value if index % 2 else value - 1
    ids = np.arange(1024, dtype=np.int64)
    total = value.astype(np.int32).astype(np.int64) + 32 * ids + 496
    return np.where(ids >= DEPTH - 1, total, 0)
