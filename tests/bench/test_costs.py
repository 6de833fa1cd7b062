"""What a program moves and computes, counted by hand for known ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accy_async.bench.costs import flops_of_function
from accy_async.compiler import tensor, trace

N = 8 * 16


@pytest.mark.parametrize(
    ("function", "types", "flops"),
    [
        (lambda x: x + x * 2, ["f32[8,16]"], 2 * N),
        (lambda x: np.exp(x), ["f32[8,16]"], N),
        (lambda x, y: x @ y, ["f32[8,16]", "f32[16,4]"], 2 * 8 * 16 * 4),
        (lambda x: np.sum(x, axis=1), ["f32[8,16]"], N),
        (lambda x: np.where(x > 0, x, 0), ["f32[8,16]"], 0),
        (lambda x: x.T, ["f32[8,16]"], 0),
        (lambda x: x + x, ["i32[8,16]"], 0),
        (
            lambda x: tensor.repeat(10, lambda v: v * 2.0, x),
            ["f32[8,16]"],
            10 * N,
        ),
        # The greatest, the differences, their exponentials, the sum, the quotients.
        (lambda x: tensor.softmax(x), ["f32[8,16]"], 5 * N),
    ],
)
def test_flops_are_those_of_the_program(
    function: Callable[..., Any], types: list[str], flops: int
) -> None:
    assert flops_of_function(trace(function, *types).entry) == flops


def test_a_loop_that_values_end_is_not_counted() -> None:
    module = trace(
        lambda x: tensor.iterate(10, lambda v: (np.sum(v) < 9.0, v * 2.0), x),
        "f32[8]",
    )
    assert flops_of_function(module.entry) is None
