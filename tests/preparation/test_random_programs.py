"""Random programs: their plans are sound, and give what the reference gives."""

from __future__ import annotations

from typing import Any

import attrs
import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, given, settings

from accy_async.artifact.planned import ArtifactPlan
from accy_async.artifact.slots import SlotRole
from accy_async.compiler.preparation import (
    MathTier,
    PreparedJob,
    compile_plan,
    prepare,
)
from accy_async.compiler.semantic import Builder, Module
from tests.preparation.harness import (
    CPU,
    CUDA,
    METAL,
    VULKAN,
    arguments_of,
    runs_like_the_reference,
)
from tests.preparation.programs import programs
from tests.preparation.soundness import check_soundness


@given(programs(most=40), st.sampled_from([CPU, CUDA, VULKAN, METAL]))
@settings(max_examples=150, deadline=None)
def test_every_plan_is_sound(module: Module, profile: Any) -> None:
    check_soundness(prepare(module, profile))


@given(programs(), st.integers(0, 2**31), st.sampled_from(MathTier))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_plan_gives_what_the_reference_gives(
    module: Module, seed: int, tier: MathTier
) -> None:
    runs_like_the_reference(
        module,
        arguments=arguments_of(module, seed),
        tolerance=1e-4,
        profile=attrs.evolve(CPU, math_tier=tier),
    )


@given(programs(most=30))
@settings(max_examples=25, deadline=None)
def test_preparing_twice_gives_the_same_plan(module: Module) -> None:
    jobs: list[PreparedJob] = [prepare(module, CUDA) for _ in range(2)]
    slots = [job.target.plan.slots for job in jobs]
    assert slots[0] == slots[1]
    codes = [[kernel.code for kernel in job.target.kernels] for job in jobs]
    assert codes[0] == codes[1]


def test_scratch_is_used_again_along_a_chain() -> None:
    builder = Builder()
    f = builder.begin_function("chain", [builder.tensor("f32", (16, 16))])
    value = f.parameters[0]
    for _ in range(6):
        # A sum between two elementwise kernels, each of which others read too.
        total = f.reduce(value, "sum", [0])
        value = f.sub(f.reverse(value, [1]), f.broadcast(total, (16, 16), [1]))
        value = f.reshape(f.transpose(value, [1, 0]), (16, 16))
    f.return_([value])
    f.finish()
    job = prepare(builder.finish(), CPU)
    plan: ArtifactPlan = compile_plan(job, cache=False)
    scratch = [s for s in plan.slots if s.role is SlotRole.SCRATCH]
    assert len(scratch) < len(plan.kernels)
    assert np.sum([s.byte_size for s in scratch]) < 6 * 16 * 16 * 4
