"""Benchmarks for ``accy-async bench examples/bench_softmax.py``.

Softmax of rows in two ways, and a kernel that doubles numbers with blocks of three
sizes. Run as a program it only says what it declares.
"""

import os
from collections.abc import Callable

import numpy as np

from accy_async import Capabilities, DType
from accy_async.bench import (
    KernelBenchmark,
    Output,
    Variant,
    compile_variant,
    fragment_benchmark,
)
from accy_async.compiler import tensor
from accy_async.compiler.form import KernelBuilder

ROWS = int(os.environ.get("BENCH_ROWS", "4096"))
COLUMNS = 512


def rows() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(size=(ROWS, COLUMNS)).astype(np.float32)]


def step_by_step(x: np.ndarray) -> np.ndarray:
    grown = np.exp(x - np.max(x, axis=1, keepdims=True))
    return grown / np.sum(grown, axis=1, keepdims=True)


@fragment_benchmark(inputs=rows, also={"step by step": step_by_step})
def softmax(x: np.ndarray) -> np.ndarray:
    return tensor.softmax(x)


def doubling(threads: int) -> Callable[[Capabilities], Variant]:
    """A candidate: how a device's kernel is made, with so many threads a block."""

    def make(capabilities: Capabilities) -> Variant:
        k = KernelBuilder("double", threadgroup=(threads, 1, 1))
        out = k.buffer("out", DType.F32, "write_only")
        x = k.buffer("x", DType.F32, "read_only")
        first = k.let("first", k.block_x.cast(DType.U64) * threads)
        with k.region():
            i = first + k.thread.cast(DType.U64)
            out[i] = x[i] + x[i]
        blocks = ROWS * COLUMNS // threads
        return compile_variant(k.build(), capabilities, grid=(blocks, 1, 1))

    return make


double = KernelBenchmark(
    name="double",
    candidates={f"{n} threads": doubling(n) for n in (64, 256, 512)},
    arguments=lambda: [Output((ROWS, COLUMNS)), *rows()],
    flops=ROWS * COLUMNS,
)

if __name__ == "__main__":
    print(f"{softmax.name}: {', '.join(softmax.candidates)}")
    print(f"{double.name}: {', '.join(double.candidates)}")
