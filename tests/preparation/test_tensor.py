"""The tensor phase: loops, products, means, and what need not be computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accy_async.compiler.preparation import PreparedJob
from accy_async.compiler.semantic import ContextLimits
from accy_async.errors import OutOfMemory, UnsupportedOperation
from tests.preparation.calls import REFERENCES, registry
from tests.preparation.harness import (
    Make,
    module_of,
    opcodes,
    prepared,
    runs_like_the_reference,
)


def ops(types: str, make: Make) -> list[str]:
    """The operations that a program has after the phase."""
    return list(opcodes(prepared(types, make)))


def halving(f: Any, x: Any, least: Any) -> Any:
    half = f.mul(x, 0.5)
    total = f.reduce(half, "sum", [0])
    return [half, f.compare(total, least, "gt")]


def test_a_counted_loop_is_written_out() -> None:
    def program(f: Any, x: Any) -> Any:
        return f.loop(3, [x], lambda f, x: [f.add(f.mul(x, x), 1.0)])

    assert ops("f32[4]", program).count("multiply") == 3
    runs_like_the_reference(module_of("f32[4]", program))


@pytest.mark.parametrize("least", [100.0, 3.0, 0.4, -1.0])
def test_a_conditional_loop_stops_where_the_reference_does(least: float) -> None:
    module = module_of(
        "f32[4] f32[]",
        lambda f, x, y: f.loop(5, [x], halving, captures=[y], conditional=True),
    )
    given = [np.full(4, 2.0, np.float32), np.array(least, np.float32)]
    runs_like_the_reference(module, arguments=given)


def test_loops_within_loops_and_loops_of_no_turn() -> None:
    def inner(f: Any, x: Any) -> Any:
        return [f.add(x, 1.0)]

    module = module_of(
        "f32[4]",
        lambda f, x: f.loop(
            2, f.loop(0, [x], inner), lambda f, x: f.loop(3, [x], inner)
        ),
    )
    runs_like_the_reference(module)


def test_a_loop_that_is_too_long_is_refused_with_its_size() -> None:
    with pytest.raises(UnsupportedOperation, match="30000 times 2 operations"):
        prepared(
            "f32[4]",
            lambda f, x: f.loop(30000, [x], lambda f, x: [f.add(x, 1.0)]),
        )


@pytest.mark.parametrize("target", ["test.double", "test.add_into"])
def test_calls_in_a_conditional_loop_change_nothing_once_it_has_ended(
    target: str,
) -> None:
    def body(f: Any, x: Any, least: Any) -> Any:
        operands = [x] if target == "test.double" else [x, f.mul(x, 0.5)]
        effects = ["read_write", "read"] if len(operands) == 2 else ["read"]
        (called,) = f.kernel_call(
            operands,
            [x.type],
            target=target,
            operand_effects=effects,
            result_aliases=[0 if len(operands) == 2 else None],
        )
        return halving(f, f.mul(called, 0.25), least)

    module = module_of(
        "f32[4] f32[]",
        lambda f, x, y: f.loop(5, [x], body, captures=[y], conditional=True),
    )
    runs_like_the_reference(
        module,
        arguments=[np.full(4, 2.0, np.float32), np.array(0.3, np.float32)],
        kernels=REFERENCES,
        kernel_call_registry=registry(),
    )


def test_what_outgrows_the_limits_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match=r"ContextLimits\.operations"):
        prepared(
            "f32[4]",
            lambda f, x: f.loop(50, [x], lambda f, x: [f.add(x, 1.0)]),
            semantic_context_limits=ContextLimits(operations=20),
        )


def test_an_einsum_becomes_products_one_after_the_other() -> None:
    def program(f: Any, a: Any, b: Any, c: Any) -> Any:
        return f.einsum([a, b, c], "mk,kn,np->mp")

    assert ops("f32[3,4] f32[4,5] f32[5,2]", program) == ["dot_general"] * 2
    runs_like_the_reference(module_of("f32[3,4] f32[4,5] f32[5,2]", program))


def test_operands_of_products_are_read_as_they_were_before_they_were_transposed() -> (
    None
):
    def program(f: Any, x: Any, y: Any) -> Any:
        return f.matmul(f.transpose(x, [1, 0]), f.transpose(y, [1, 0]))

    assert ops("f32[3,4] f32[5,3]", program) == ["dot_general"]
    runs_like_the_reference(module_of("f32[3,4] f32[5,3]", program))


@pytest.mark.parametrize("dtype", ["f16", "f32", "i32"])
@pytest.mark.parametrize(
    "make",
    [
        lambda f, x, y: f.einsum([x, y], "abc,bad->acbd"),
        lambda f, x, y: f.einsum([x, y], "abc,dea->abcde"),
        lambda f, x, y: f.dot_general(x, y, [], [], [1, 0], [0, 1]),
        lambda f, x, y: f.dot_general(x, y, [], []),
    ],
)
def test_a_product_that_sums_nothing_is_elementwise(make: Make, dtype: str) -> None:
    """So that it joins other kernels, and needs no sums of the dtype."""
    types = f"{dtype}[3,4,2] {dtype}[4,3,3]"

    def program(f: Any, x: Any, y: Any) -> Any:
        return f.add(f.neg(make(f, x, y)), 1 if dtype == "i32" else 1.0)

    found = ops(types, program)
    assert "dot_general" not in found
    assert found.count("multiply") == 1
    assert len(prepared(types, program).dispatch.items) == 1
    runs_like_the_reference(module_of(types, program))


def test_a_transposition_stays_where_the_result_would_come_in_another_order() -> None:
    def program(f: Any, x: Any, y: Any) -> Any:
        return f.dot_general(f.transpose(x, [1, 0, 2]), y, [2], [0])

    assert "transpose" in ops("f32[2,3,4] f32[4,5]", program)
    runs_like_the_reference(module_of("f32[2,3,4] f32[4,5]", program))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda f, x: f.transpose(f.transpose(x, [1, 0]), [1, 0]), []),
        (lambda f, x: f.reshape(f.reshape(x, (12,)), (3, 4)), []),
        (lambda f, x: f.slice(x, [0, 0], [3, 4], [1, 1]), []),
        (lambda f, x: f.mul(x, 1.0), []),
        (lambda f, x: f.div(x, 1.0), []),
        (lambda f, x: f.div(x, 0.0), ["constant", "multiply"]),
        (
            lambda f, x: f.select(
                f.compare(f.constant(1.0, x.type), 2.0, "lt"), x, 0.0
            ),
            [],
        ),
        (
            lambda f, x: f.reduce(f.broadcast(x, (1, 3, 4)), "sum", [0]),
            ["broadcast", "reshape"],
        ),
        (
            lambda f, x: f.add(x, f.mul(f.constant(2.0, x.type), 3.0)),
            ["constant", "add"],
        ),
        # These do change something: the sign of a zero, or the last bit.
        (lambda f, x: f.sub(x, 0.0), ["constant", "subtract"]),
        (lambda f, x: f.add(x, 0.0), ["constant", "add"]),
        (lambda f, x: f.exp(f.constant(1.0, x.type)), ["constant", "exp"]),
    ],
)
def test_what_need_not_be_computed_is_not(make: Make, expected: list[str]) -> None:
    assert ops("f32[3,4]", make) == expected
    runs_like_the_reference(module_of("f32[3,4]", make))


def test_folded_numbers_are_the_devices_to_the_bit() -> None:
    def program(f: Any, x: Any) -> Any:
        third = f.div(f.constant(1.0, x.type), 3.0)
        small = f.convert(f.convert(third, "f16"), "f32")
        return f.add(x, f.mul(small, third))

    module = module_of("f32[4]", program)
    assert list(opcodes(prepared("f32[4]", program))) == ["constant", "add"]
    runs_like_the_reference(module, tolerance=0)


def test_rows_of_one_element_are_elementwise() -> None:
    def program(f: Any, x: Any) -> Any:
        return f.softmax(x), f.reduce(x, "mean", [1])

    job: PreparedJob = prepared("f32[3,1]", program)
    assert "softmax" not in opcodes(job)
    module = module_of("f32[3,1]", program)
    given = [np.array([[1.0], [np.inf], [np.nan]], np.float32)]
    runs_like_the_reference(module, arguments=given)
