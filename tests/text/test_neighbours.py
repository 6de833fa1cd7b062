"""Stores of neighbours that CUDA C++ has in one access, where buffers begin so."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from accy_async.compiler.emit.text import emit_cuda
from accy_async.compiler.form import Kernel, KernelBuilder
from accy_async.dtypes import DType
from tests.text.host import COMPILER, HostRunner


def copying(dtype: DType, *, takes_neighbours: bool = True) -> Kernel:
    """Four elements a thread."""
    k = KernelBuilder("copy", threadgroup=(8, 1, 1))
    k.takes_neighbours = takes_neighbours
    out = k.buffer("out", dtype, "write_only")
    given = k.buffer("given", dtype, "read_only")
    with k.region():
        first = k.let("first", (k.block_x * 8 + k.thread) * 4)
        places = [k.let(None, first + i) for i in range(4)]
        for place, value in zip(places, [given[at] for at in places], strict=True):
            out[place] = value
    return k.build()


@pytest.mark.parametrize(
    ("dtype", "word"),
    [(DType.F16, "uint "), (DType.I16, "uint "), (DType.F32, "uint64 ")],
    ids=str,
)
def test_pairs_are_one_word(dtype: DType, word: str) -> None:
    text = emit_cuda([copying(dtype)])
    assert text.count(f"*({word}*)&out_[") == 2
    assert text.count("out_[") == 2 + 4  # and where the buffer begins elsewhere


def test_what_is_no_pair() -> None:
    for kernel in (
        copying(DType.F32, takes_neighbours=False),
        copying(DType.F64),
        copying(DType.U8),
    ):
        assert emit_cuda([kernel]).count("out_[") == 4


@pytest.mark.skipif(COMPILER is None, reason="there is no g++")
def test_both_ways_store_the_same() -> None:
    for dtype in (DType.I16, DType.F32, DType.U32):
        values = np.arange(-30, 34).astype(dtype.numpy)
        with closing(HostRunner([copying(dtype)], "cuda")) as runner:
            for begin in (0, 1):
                out = np.zeros(len(values) + 16, dtype.numpy)
                begin += (-out.ctypes.data // out.itemsize) % (16 // out.itemsize)
                mine = out[begin : begin + len(values)]
                assert runner.run("copy", [mine, values], (), 2) == 0
                np.testing.assert_array_equal(mine, values)
