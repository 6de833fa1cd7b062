"""The memory phase: slots, what shares them, and what has to be copied."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from accy_async.artifact.planned import ArtifactPlan
from accy_async.artifact.slots import SlotRole
from accy_async.compiler.preparation import PreparedJob
from accy_async.compiler.preparation.memory import ScratchPool
from accy_async.compiler.semantic import (
    Builder,
    FunctionBuilder,
    Module,
    TensorType,
    Value,
)
from accy_async.dtypes import DType
from tests.preparation.calls import REFERENCES, registry
from tests.preparation.harness import (
    Make,
    arguments_of,
    module_of,
    prepared,
    runs_like_the_reference,
)
from tests.preparation.soundness import check_soundness


def doubled(f: Any, x: Any, *, in_place: bool = True) -> Any:
    """A call that doubles, in the operand's memory or not."""
    (result,) = f.kernel_call(
        [x],
        [x.type],
        target="test.double",
        operand_effects=["read"],
        result_aliases=[0 if in_place else None],
    )
    return result


def job_of(types: str, make: Make) -> PreparedJob:
    """A prepared program with calls, which is sound and gives what it should."""
    job = prepared(types, make, kernel_call_registry=registry())
    check_soundness(job)
    runs_like_the_reference(
        module_of(types, make), kernels=REFERENCES, kernel_call_registry=registry()
    )
    return job


def copies(job: PreparedJob) -> int:
    """How many launches only copy."""
    return sum(p.item.opcode == "copy" for p in job.target.plan.memory.items)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # A parameter that is not needed afterwards is taken over.
        (doubled, 0),
        # So is scratch, once and again.
        (lambda f, x: doubled(f, doubled(f, f.tanh(x))), 0),
        # What reads it goes first.
        (lambda f, x: (doubled(f, x), f.tanh(x)), 0),
        # What is a result stays what it is.
        (lambda f, x: (doubled(f, x), x), 1),
        # What reads both goes after the call.
        (lambda f, x: f.add(doubled(f, x), x), 1),
        # Each of two calls takes a value over: one has to have a copy.
        (lambda f, x: (doubled(f, x), f.tanh(doubled(f, x))), 1),
        # A constant is the same at every run.
        (lambda f, x: (x, doubled(f, f.constant(1.5, x.type))), 1),
        # A view is the same memory.
        (lambda f, x: (doubled(f, f.reshape(x, (2, 4))), f.neg(x)), 1),
    ],
)
def test_a_value_that_is_taken_over_is_copied_where_it_is_needed_afterwards(
    make: Make, expected: int
) -> None:
    assert copies(job_of("f32[8]", make)) == expected


def test_an_operand_that_is_given_twice_is_taken_over_from_a_copy() -> None:
    def program(f: Any, x: Any) -> Any:
        (total,) = f.kernel_call(
            [x, x], [x.type], target="test.add_into", result_aliases=[0]
        )
        return total

    assert copies(job_of("f32[8]", program)) == 1


def test_a_result_in_place_shares_the_slot_and_is_read_and_written() -> None:
    job = job_of("f32[8]", doubled)
    (kernel,) = job.target.kernels
    result, operand = kernel.prepared.arguments
    assert result.slot_id == operand.slot_id == job.target.plan.memory.input_slot_ids[0]
    assert (result.access, operand.access) == ("read_write", "read_only")
    memory = job.target.plan.memory
    assert memory.output_slot_ids == memory.input_slot_ids


def test_results_may_be_parameters_and_stand_twice() -> None:
    def program(f: Any, x: Any, y: Any) -> Any:
        total = f.add(x, y)
        return x, total, total, y

    memory = job_of("f32[8] f32[8]", program).target.plan.memory
    first, second = memory.input_slot_ids
    assert memory.output_slot_ids[0] == first
    assert memory.output_slot_ids[3] == second
    assert memory.output_slot_ids[1] == memory.output_slot_ids[2]
    assert len(memory.items) == 1


def test_a_result_that_is_a_parameter_in_another_shape_is_a_copy() -> None:
    job = job_of("f32[8]", lambda f, x: (x, f.reshape(x, (2, 4))))
    slots = job.target.plan.slots
    shapes = [slots[i].shape for i in job.target.plan.memory.output_slot_ids]
    assert shapes == [(8,), (2, 4)]
    assert copies(job) == 1


def test_a_value_that_is_a_result_in_two_shapes_is_written_once_and_copied() -> None:
    def program(f: Any, x: Any, m: Any) -> Any:
        product = f.matmul(x, m)
        return f.reshape(product, (16,)), product

    assert copies(job_of("f32[4,4] f32[4,4]", program)) == 1


def test_a_constant_may_be_a_result() -> None:
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    job = job_of("f32[8]", lambda f, x: (f.neg(x), f.constant(table)))
    slot = job.target.plan.slots[job.target.plan.memory.output_slot_ids[1]]
    assert (slot.role, slot.data) == (SlotRole.CONSTANT, table.tobytes())


def test_parameters_that_nothing_reads_have_slots() -> None:
    memory = job_of("f32[8] f32[3]", lambda f, x, y: f.neg(x)).target.plan.memory
    assert len(set(memory.input_slot_ids)) == 2


def test_numbers_in_the_code_are_slots_without_a_buffer() -> None:
    job = job_of("f32[8]", lambda f, x: f.reduce(f.mul(x, 2.5), "maximum", [0]))
    folded = [s for s in job.target.plan.slots if not s.is_bound]
    numbers = {np.frombuffer(s.data or b"", np.float32).item() for s in folded}
    assert numbers == {2.5, -np.inf}


# Scratch

BYTES = DType.U8


def vector(count: int) -> TensorType:
    return TensorType(BYTES, (count,))


def test_scratch_is_free_once_all_that_used_it_come_before() -> None:
    pool = ScratchPool()
    first = pool.take(vector(8), before=0, users=0b011)
    assert pool.take(vector(8), before=0b001, users=0b100) != first
    assert pool.take(vector(8), before=0b111, users=0b1000) == first
    assert len(pool.types) == 2


def test_the_smallest_that_is_large_enough_is_taken_and_the_largest_grows() -> None:
    pool = ScratchPool()
    sizes = [pool.take(vector(size), 0, 1 << i) for i, size in enumerate((4, 16, 8))]
    assert pool.take(vector(7), before=0b111, users=1 << 3) == sizes[2]
    assert pool.take(vector(20), before=0b111, users=1 << 4) == sizes[1]
    assert pool.types == (vector(4), vector(20), vector(8))


def test_scratch_is_used_again_along_a_chain() -> None:
    def program(f: Any, x: Any, m: Any) -> Any:
        for _ in range(8):
            x = f.matmul(x, m)
        return x

    job = job_of("f32[16,16] f32[16,16]", program)
    scratch = [s for s in job.target.plan.slots if s.role is SlotRole.SCRATCH]
    assert len(scratch) == 2
    assert job.target.plan.memory.scratch_bytes == 2 * 16 * 16 * 4


def test_branches_that_may_run_together_share_no_scratch() -> None:
    def program(f: Any, x: Any, m: Any) -> Any:
        branches = []
        for i in range(3):
            y = f.matmul(f.matmul(x, m), f.add(m, float(i)))
            branches.append(f.matmul(y, m))
        return branches

    job = job_of("f32[4,4] f32[4,4]", program)
    scratch = [s for s in job.target.plan.slots if s.role is SlotRole.SCRATCH]
    # The first product and each sum are shared or read at once; nothing else is free.
    assert len(scratch) >= 4


# Random programs with calls


def step(draw: Any, f: FunctionBuilder, values: list[Value]) -> Value:
    value = values[-1 - draw(st.integers(0, min(len(values) - 1, 4)))]
    same = [other for other in values if other.type == value.type]
    other = same[draw(st.integers(0, len(same) - 1))]
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return f.add(value, other)
    if kind == 1:
        return f.reshape(value, (value.type.element_count,))
    if kind == 2:
        return f.reshape(value, (2, value.type.element_count // 2))
    if kind == 3:
        return f.reverse(value, [value.rank - 1])
    if kind == 4:
        result: Value = doubled(f, value, in_place=draw(st.booleans()))
        return result
    (total,) = f.kernel_call(
        [value, other],
        [value.type],
        target="test.add_into",
        result_aliases=[draw(st.sampled_from([None, 0, 1]))],
    )
    return total


@st.composite
def programs(draw: Any) -> Module:
    builder = Builder()
    f = builder.begin_function("program", [builder.tensor("f32", (8,))] * 2)
    values = list(f.parameters)
    for _ in range(draw(st.integers(1, 12))):
        values.append(step(draw, f, values))
    count = draw(st.integers(1, 4))
    f.return_([values[draw(st.integers(0, len(values) - 1))] for _ in range(count)])
    f.finish()
    return builder.finish()


@given(programs(), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_calls_in_place_lose_no_value_that_is_needed(module: Module, seed: int) -> None:
    plan: ArtifactPlan = runs_like_the_reference(
        module,
        arguments=arguments_of(module, seed),
        kernels=REFERENCES,
        kernel_call_registry=registry(),
    )
    assert plan.kernel_count >= 0
