"""Indices that begin again within a block are read as they say.

LLVM's vectoriser took some of them for indices that rise without end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accy_async.compiler.emit.wrapping import Wrapping
from accy_async.compiler.form import KernelBuilder, Let
from accy_async.compiler.form.traversal import every_statement
from accy_async.dtypes import DType
from tests.compiler.harness import compiled

LENGTH, GRID, N = 4096, 3, 5

Rule = Callable[[Any, Any, Any], Any]

RULES: dict[str, Rule] = {
    "ring": lambda t, b, n: b * 128 + (t + 1) % 128,
    "ring of other blocks": lambda t, b, n: b * 96 + (t + 1) % 128,
    "mask and scalar": lambda t, b, n: (t & 15) + n,
    "stride": lambda t, b, n: (t * 3) % 64 + n,
    "two masks": lambda t, b, n: (t & 3) + (t & 31) + n,
    "falling": lambda t, b, n: n + 100 - t % 64,
    "rows": lambda t, b, n: (t + 1) % 64 + b,
}


def check(dtype: DType, threads: int, index: Any, expected: Any) -> None:
    """Read an array at an index, given a builder's names, and compare."""
    k = KernelBuilder("read", threadgroup=(threads, 1, 1))
    out = k.buffer("out", DType.U32, "write_only")
    array = k.buffer("array", DType.U32, "read_only")
    n = k.scalar("n", DType.U32)
    with k.region():
        names = [name.cast(dtype) for name in (k.thread, k.block_x, n)]
        out[k.block_x * threads + k.thread] = array[index(*names)]
    values = np.random.default_rng(1).integers(0, 1 << 32, LENGTH, np.uint32)
    got = np.zeros(GRID * threads, np.uint32)
    with compiled(k.build()) as runner:
        runner.run("read", [got, values], [N], grid=GRID)
    np.testing.assert_array_equal(got.reshape(GRID, threads), values[expected])


@pytest.mark.parametrize("dtype", [DType.U32, DType.I32, DType.U64])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_index_that_wraps_is_read_as_it_says(rule: Rule, dtype: DType) -> None:
    thread, block = np.arange(128)[None, :], np.arange(GRID)[:, None]
    expected = np.broadcast_to(rule(thread, block, N), (GRID, 128))
    check(dtype, 128, rule, expected)


def grow(r: random.Random, depth: int, names: tuple[Any, Any, Any]) -> Any:
    """An index of random operations; the same ones for the same seed."""
    if depth == 0:
        return r.choice([names[0], names[1], names[0]])
    operation = r.choice(["add", "mod", "and", "mul", "scalar", "div"])
    value = grow(r, depth - 1, names)
    by = r.choice([1, 3, 7, 16, 32, 64, 100, 128])
    match operation:
        case "add":
            return value + grow(r, depth - 1, names)
        case "mod":
            return value % by
        case "and":
            return value & r.choice([1, 3, 15, 31, 63, 127])
        case "mul":
            return value * r.choice([1, 2, 3, 5])
        case "scalar":
            return value + names[2]
        case _:
            return value // by if isinstance(value, np.ndarray) else value / by


@pytest.mark.parametrize("seed", range(60))
def test_random_index_is_read_as_it_says(seed: int) -> None:
    threads = random.Random(seed).choice([64, 128, 256])
    shape = (GRID, threads)
    thread, block = np.indices(shape)[1], np.indices(shape)[0]

    def index(*names: Any) -> Any:
        return grow(random.Random(seed), 3, (names[0], names[1], names[2])) % LENGTH

    check(
        random.Random(seed).choice([DType.U32, DType.U64]),
        threads,
        index,
        index(thread, block, np.full(shape, N)),
    )


def test_what_wraps_is_found_behind_names_and_variables() -> None:
    k = KernelBuilder("names", threadgroup=(64, 1, 1))
    array = k.buffer("array", DType.U32, "read_write")
    n = k.scalar("n", DType.U32)
    k.let("uniform", (k.block_x / 4) * 64 + n % 32)
    with k.region():
        masked = k.let("masked", k.thread & 15)
        k.let("above", masked * 2 + n)
        k.let("loaded", array[masked])
        k.let("plain", k.block_x * 64 + k.thread)
        k.let("narrow", k.thread.cast(DType.U8))
        array[k.thread] = n
    kernel = k.build()
    wrapping = Wrapping(kernel)
    found = {
        statement.name: wrapping.wraps(statement.value)
        for statement in every_statement(kernel.body)
        if isinstance(statement, Let) and not statement.name.startswith("_")
    }
    assert found == {
        "uniform": False,
        "masked": True,
        "above": True,
        "loaded": False,
        "plain": False,
        "narrow": True,
    }
