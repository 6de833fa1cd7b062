"""Whole programs traced: they give what the same functions give under numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accy_async.compiler import trace_program
from accy_async.compiler.semantic import canonical, evaluate, expand
from tests.semantic import programs
from tests.semantic.samples import Array


def normal(rng: np.random.Generator, *shape: int) -> Array:
    values: Array = rng.normal(size=shape) / np.sqrt(shape[0])
    return values.astype(np.float32)


def block_weights(rng: np.random.Generator, width: int) -> dict[str, Array]:
    names = ("query", "key", "value", "out")
    weights = {name: normal(rng, width, width) for name in names}
    weights |= {name: np.ones(width, np.float32) for name in ("norm1", "norm2")}
    weights["up"] = normal(rng, width, 4 * width)
    weights["down"] = normal(rng, 4 * width, width)
    return weights


def test_transformer_block() -> None:
    rng = np.random.default_rng(0)
    x, weights = normal(rng, 6, 8), block_weights(rng, 8)
    program = trace_program(programs.transformer_block, x, weights)
    expected = programs.transformer_block(x, weights)
    np.testing.assert_allclose(program.evaluate(x, weights), expected, 1e-4, 1e-5)
    function = program.module.entry
    arrays = program.flatten(x, weights)
    (wide,) = evaluate(function, arrays, precision="float64")
    np.testing.assert_allclose(wide, expected, 1e-3, 1e-5)
    (simple,) = evaluate(expand(function), arrays, precision="float64")
    np.testing.assert_allclose(simple, wide, 1e-12, 1e-12)
    assert canonical(function) is function
    assert sum(entry.op.opcode == "dot_general" for entry in function.operations) == 8


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_transformer_block_in_half_precision(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, weights = normal(rng, 6, 8), block_weights(rng, 8)
    types = {
        name: f"{dtype}[{','.join(map(str, w.shape))}]" for name, w in weights.items()
    }
    program = trace_program(programs.transformer_block, f"{dtype}[6,8]", types)
    (result,) = program.module.entry.result_types
    assert str(result) == f"{dtype}[6,8]"
    held = np.float16 if dtype == "f16" else np.float32
    arrays = [array.astype(held) for array in program.flatten(x, weights)]
    (narrow,) = evaluate(program.module, arrays)
    np.testing.assert_allclose(
        narrow.astype(float), programs.transformer_block(x, weights), 0.1, 0.1
    )


def test_mlp_with_gradients_by_hand() -> None:
    """They are the loss's slopes, and a step along them lowers it."""
    rng = np.random.default_rng(1)
    weights: dict[str, Any] = {
        "w1": rng.normal(size=(5, 7)),
        "b1": rng.normal(size=7),
        "w2": rng.normal(size=(7, 3)),
        "b2": rng.normal(size=3),
    }
    x, labels = rng.normal(size=(11, 5)), rng.integers(0, 3, 11)
    program = trace_program(programs.mlp_step, weights, x, labels)
    loss, gradients, updated = program.evaluate(weights, x, labels)
    for name, gradient in gradients.items():
        place = tuple(extent // 2 for extent in weights[name].shape)
        moved = {key: array.copy() for key, array in weights.items()}
        moved[name][place] += 1e-6
        slope = (program.evaluate(moved, x, labels)[0] - loss) / 1e-6
        np.testing.assert_allclose(gradient[place], slope, rtol=1e-4, atol=1e-6)
    assert program.evaluate(updated, x, labels)[0] < loss
    plain = programs.mlp_step(weights, x, labels)
    np.testing.assert_allclose(plain[2]["w1"], updated["w1"], rtol=1e-9)


def test_kmeans_step() -> None:
    rng = np.random.default_rng(2)
    points, centres = rng.normal(size=(50, 3)), rng.normal(size=(4, 3))
    centres[3] = 1e6  # nobody's nearest: it stays
    program = trace_program(programs.kmeans_step, points, centres)
    moved, nearest = program.evaluate(points, centres)
    distance = np.linalg.norm(points[:, None] - centres, axis=-1)
    assert nearest.tolist() == distance.argmin(1).tolist()
    for index in range(3):
        mean = points[nearest == index].mean(0)
        np.testing.assert_allclose(moved[index], mean)
    assert moved[3].tolist() == centres[3].tolist()


def test_pagerank() -> None:
    rng = np.random.default_rng(3)
    pages = 12
    sources = rng.integers(0, pages - 1, 40)  # the last page leads nowhere
    targets = rng.integers(0, pages, 40)
    program = trace_program(programs.pagerank, sources, targets, pages)
    ranks = program.evaluate(sources, targets, pages)
    matrix = np.zeros((pages, pages))
    np.add.at(matrix, (targets, sources), 1)
    degree = matrix.sum(0)
    matrix = np.where(degree > 0, matrix / np.maximum(degree, 1), 1 / pages)
    expected = np.full(pages, 1 / pages)
    for _ in range(30):
        expected = 0.15 / pages + 0.85 * matrix @ expected
    np.testing.assert_allclose(ranks, expected)
    assert ranks.sum() == pytest.approx(1)
