"""The dispatch phase: which operations become one launch, and in which order."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from accy_async.artifact.planned import CompileLaunch
from accy_async.artifact.slots import SlotRole
from accy_async.compiler.preparation.dispatch import DispatchItem
from accy_async.compiler.preparation.groups import (
    MAX_GROUP_BUFFERS,
    MAX_GROUP_OPERATIONS,
)
from accy_async.compiler.semantic import TensorType
from accy_async.dtypes import DType
from tests.preparation.calls import registry
from tests.preparation.harness import (
    CUDA,
    Make,
    module_of,
    prepared,
    runs_like_the_reference,
)

E, R, P, D = (
    CompileLaunch.ELEMENTWISE,
    CompileLaunch.REDUCTION,
    CompileLaunch.ROW_PIPELINE,
    CompileLaunch.DOT_GENERAL,
)


def items(types: str, make: Make, **options: Any) -> tuple[DispatchItem, ...]:
    return prepared(types, make, **options).dispatch.items


def kinds(types: str, make: Make) -> list[CompileLaunch]:
    """The kinds of a program's launches, which gave what the reference gives."""
    runs_like_the_reference(module_of(types, make))
    return [item.kind for item in items(types, make)]


def test_elementwise_operations_in_a_row_are_one_launch() -> None:
    (item,) = items("f32[8] f32[8]", lambda f, x, y: f.mul(f.add(x, y), y))
    assert (item.kind, item.op_count) == (E, 2)
    assert [value.index for value in item.operands] == [0, 1]


def test_numbers_are_in_the_code_and_count_as_no_operation() -> None:
    (item,) = items("f32[8]", lambda f, x: f.mul(f.add(x, 2.0), 3.0))
    assert (item.op_count, len(item.operands)) == (2, 1)


def test_what_is_needed_twice_is_written_beside() -> None:
    def program(f: Any, x: Any) -> Any:
        y = f.tanh(x)
        return y, f.mul(y, 2.0)

    (item,) = items("f32[8]", program)
    assert len(item.results) == 2
    assert kinds("f32[8]", program) == [E]


def test_no_group_comes_to_wait_for_itself() -> None:
    """``y`` cannot be written by the kernel that needs its sum."""

    def program(f: Any, x: Any, m: Any) -> Any:
        y = f.tanh(x)
        product = f.matmul(y, m)
        return f.add(y, product)

    assert kinds("f32[4,4] f32[4,4]", program) == [E, D]


def test_broadcasts_are_read_where_they_are_used() -> None:
    def program(f: Any, x: Any, bias: Any) -> Any:
        wide = f.broadcast(bias, x.shape, [1])
        return f.add(x, wide), f.reduce(f.mul(x, wide), "sum", [0])

    for item in items("f32[8,4] f32[4]", program):
        assert {value.index for value in item.operands} == {0, 1}
    runs_like_the_reference(module_of("f32[8,4] f32[4]", program))


def test_what_is_costly_is_not_computed_again_and_again() -> None:
    def program(f: Any, x: Any, row: Any) -> Any:
        return f.add(x, f.broadcast(f.exp(row), x.shape, [1]))

    assert kinds("f32[64,4] f32[4]", program) == [E, E]
    assert kinds("f32[2,4] f32[4]", program) == [E]


def test_turning_a_sum_again_and_again_does_not_grow_without_bound() -> None:
    def program(f: Any, x: Any) -> Any:
        for _ in range(20):
            x = f.add(x, f.transpose(x, [1, 0]))
        return x

    found = items("f32[4,4]", program)
    assert 4 <= len(found) < 20


def test_reshapes_between_launches_cost_nothing() -> None:
    def program(f: Any, x: Any, m: Any) -> Any:
        flat = f.reshape(f.matmul(x, m), (2, 8))
        return f.reduce(flat, "maximum", [0])

    assert kinds("f32[4,4] f32[4,4]", program) == [D, R]


def test_a_launch_reads_no_view_of_what_it_writes_itself() -> None:
    def program(f: Any, x: Any) -> Any:
        total = f.reduce(x, "sum", [1], keepdims=True)
        flat = f.reshape(total, (4,))
        least = f.minimum(flat, 0.5)
        return least, flat, f.concatenate([least, flat], 0)

    assert kinds("f32[4,3]", program) == [R, E]


def test_layer_normalisation_is_one_launch() -> None:
    def program(f: Any, x: Any, scale: Any, shift: Any) -> Any:
        mean = f.reduce(x, "mean", [1], keepdims=True)
        apart = f.sub(x, f.broadcast(mean, x.shape))
        spread = f.reduce(f.mul(apart, apart), "mean", [1], keepdims=True)
        settled = f.div(apart, f.broadcast(f.sqrt(f.add(spread, 1e-5)), x.shape))
        scaled = f.mul(settled, f.broadcast(scale, x.shape, [1]))
        return f.add(scaled, f.broadcast(shift, x.shape, [1]))

    assert kinds("f32[8,64] f32[64] f32[64]", program) == [P]


def test_a_long_row_by_itself_is_not_one_blocks_work() -> None:
    def program(f: Any, x: Any) -> Any:
        return f.sub(x, f.broadcast(f.reduce(x, "mean", [0]), x.shape))

    assert [item.kind for item in items("f32[100000]", program)] == [R, E]
    assert [item.kind for item in items("f32[1000]", program)] == [P]


def test_long_columns_are_not_one_threads_work_each() -> None:
    def program(f: Any, x: Any) -> Any:
        mean = f.reduce(x, "mean", [0])
        return f.sub(x, f.broadcast(mean, x.shape, [1]))

    assert [item.kind for item in items("f32[4096,64]", program)] == [R, E]
    assert [item.kind for item in items("f32[64,4096]", program)] == [P]


def test_sums_of_the_same_rows_are_one_launch() -> None:
    def program(f: Any, x: Any) -> Any:
        total = f.reduce(x, "sum", [1])
        squares = f.reduce(f.mul(x, x), "sum", [1])
        return f.div(total, 2.0), f.sqrt(squares)

    assert kinds("f32[8,64]", program) == [R]


def test_a_product_goes_on_with_what_is_done_to_it() -> None:
    def program(f: Any, x: Any, m: Any, bias: Any) -> Any:
        product = f.matmul(x, m)
        return f.tanh(f.add(product, f.broadcast(bias, product.shape, [1])))

    assert kinds("f32[8,4] f32[4,6] f32[6]", program) == [D]


def test_two_products_stay_two() -> None:
    def program(f: Any, x: Any, m: Any) -> Any:
        return f.add(f.matmul(x, m), f.matmul(m, x))

    assert kinds("f32[4,4] f32[4,4]", program) == [D, D]


def test_groups_keep_within_their_bounds() -> None:
    def sums(f: Any, *values: Any) -> Any:
        total = values[0]
        for value in values[1:]:
            total = f.add(total, value)
        return total

    def chain(f: Any, x: Any) -> Any:
        for _ in range(3 * MAX_GROUP_OPERATIONS):
            x = f.tanh(x)
        return x

    for item in items(" ".join(["f32[8]"] * 60), sums):
        assert len(item.operands) + len(item.results) + 1 <= MAX_GROUP_BUFFERS
    assert [item.op_count for item in items("f32[8]", chain)] == [
        MAX_GROUP_OPERATIONS
    ] * 3
    runs_like_the_reference(module_of(" ".join(["f32[8]"] * 60), sums))


def test_constants_lie_in_memory_where_code_has_no_room() -> None:
    table = np.arange(64, dtype=np.float32)

    def program(f: Any, x: Any) -> Any:
        return f.add(x, f.constant(table))

    plan = runs_like_the_reference(module_of("f32[64]", program))
    (slot,) = (s for s in plan.slots if s.role is SlotRole.CONSTANT)
    assert slot.is_bound
    assert slot.data == table.tobytes()


def test_numbers_that_a_product_takes_are_in_its_code() -> None:
    def program(f: Any, x: Any) -> Any:
        return f.matmul(x, f.constant(0.5, x.type))

    assert kinds("f32[4,4]", program) == [D]


def test_a_large_constant_of_one_number_is_filled_in_by_a_kernel() -> None:
    def program(f: Any, x: Any) -> Any:
        return f.neg(x), f.constant(1.5, TensorType(DType.F32, (300, 100)))

    found = items("f32[4]", program)
    assert sorted(len(item.operands) for item in found) == [0, 1]
    plan = runs_like_the_reference(module_of("f32[4]", program))
    assert sum(len(slot.data or b"") for slot in plan.slots) < 100


def test_a_call_comes_after_what_only_reads_what_it_takes_over() -> None:
    def program(f: Any, x: Any) -> Any:
        (doubled,) = f.kernel_call(
            [x],
            [x.type],
            target="test.double",
            operand_effects=["read_write"],
            result_aliases=[0],
        )
        return doubled, f.tanh(x)

    found = prepared("f32[8]", program, kernel_call_registry=registry())
    launches = [item.kind for item in found.dispatch.items]
    assert launches == [E, CompileLaunch.KERNEL_CALL]
    assert len(found.target.kernels) == 2


def test_calls_keep_their_order() -> None:
    def program(f: Any, x: Any, y: Any) -> Any:
        (first,) = f.kernel_call([x], [x.type], target="test.double")
        (second,) = f.kernel_call([y], [y.type], target="test.double")
        return second, first

    found = items("f32[8] f32[4]", program, kernel_call_registry=registry())
    assert [item.operands[0].index for item in found] == [0, 1]


@pytest.mark.parametrize("seed", range(3))
def test_the_same_program_is_dispatched_alike_in_every_process(seed: int) -> None:
    text = "from tests.preparation.test_dispatch import described; print(described())"
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    told = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert told.stdout.strip() == described()


def described() -> str:
    """A program's kernels and arguments, as one line."""

    def program(f: Any, x: Any, m: Any) -> Any:
        hidden = f.tanh(f.matmul(x, m))
        rows = f.softmax(f.add(hidden, x))
        total = f.reduce(rows, "sum", [0])
        return f.mul(rows, f.broadcast(total, rows.shape, [1])), f.reduce(
            x, "sum", [0, 1]
        )

    job = prepared("f32[4,4] f32[4,4]", program, CUDA)
    return " ".join(
        f"{k.entry_name}{[(a.slot_id, a.access) for a in k.prepared.arguments]}"
        for k in job.target.kernels
    ).replace("\n", "")
