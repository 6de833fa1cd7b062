"""Recipes: all that a preparation follows from, as bytes and back."""

from __future__ import annotations

from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from accy_async.artifact.sealed import seal
from accy_async.compiler.form import ProductTile
from accy_async.compiler.kernelization.schedules import (
    GatherSchedule,
    GeneratedScanSchedule,
    MatrixProductSchedule,
    ScatterAddSchedule,
    ScatterSchedule,
    Threads2D,
)
from accy_async.compiler.preparation import (
    FragmentCompilerOptions,
    Recipe,
    decode_recipe,
    encode_recipe,
    scan_problem,
)
from accy_async.compiler.semantic import ContextLimits, Scan, TensorType
from accy_async.dtypes import DType
from accy_async.errors import InvalidArtifact, InvalidType, InvalidValue
from accy_async.tuning.records import (
    FamilyTuningKey,
    FamilyTuningRecord,
    ScheduleFamily,
    ScheduleTuningKey,
    ScheduleTuningRecord,
    encode_family_tuning_artifact,
    encode_schedule_tuning_artifact,
)
from tests.preparation.calls import registry
from tests.preparation.harness import CPU, CUDA, module_of

MODULE = module_of("f32[8]", lambda f, x: f.neg(x))
PROBLEM = scan_problem(CUDA, Scan("sum", 0, DType.F32), TensorType(DType.F32, (5000,)))
RECORD = ScheduleTuningRecord(
    key=ScheduleTuningKey.of(CUDA.capabilities.fingerprint, PROBLEM),
    choice=PROBLEM.candidates[1],
    winner_median_ns=5,
)
FAMILY = FamilyTuningRecord(
    key=FamilyTuningKey(
        device=CUDA.capabilities.fingerprint,
        format=CUDA.format,
        family="family",
        version=1,
        problem="p",
    ),
    target="t",
    winner_median_ns=5,
)
OPTIONS = FragmentCompilerOptions(
    semantic_context_limits=ContextLimits(operations=500),
    kernel_call_registry=registry(),
    matrix_product_schedule=MatrixProductSchedule(thread_blocks=Threads2D(8, 4)),
    gather_schedule=GatherSchedule(threads=64),
    scatter_schedule=ScatterSchedule(threads=64, by_update=True),
    scatter_add_schedule=ScatterAddSchedule(threads=64, segments=3),
    generated_scan_schedule_tuning_artifact=encode_schedule_tuning_artifact(
        "generated_scan", [RECORD]
    ),
    family_tuning_artifact=encode_family_tuning_artifact([FAMILY]),
)
RECIPE = Recipe.of(MODULE, CUDA, OPTIONS)
TILED = MatrixProductSchedule(
    tile=ProductTile(m=64, n=64, depth=32, warps_m=2, warps_n=2, stages=2)
)


def test_bytes_give_the_recipe_back() -> None:
    assert decode_recipe(encode_recipe(RECIPE)) == RECIPE
    assert RECIPE.reader(ScheduleFamily.SCAN).resolve(PROBLEM) == RECORD.choice
    assert RECIPE.family_reader().resolve(FAMILY.key) == "t"
    tiled = Recipe.of(
        MODULE, CUDA, FragmentCompilerOptions(matrix_product_schedule=TILED)
    )
    assert decode_recipe(encode_recipe(tiled)) == tiled
    plain = Recipe.of(MODULE, CPU)
    assert decode_recipe(encode_recipe(plain)) == plain
    assert plain.fingerprint != RECIPE.fingerprint


def test_a_recipe_gives_options_that_give_it_again() -> None:
    options = decode_recipe(encode_recipe(RECIPE)).options(registry())
    assert Recipe.of(MODULE, CUDA, options) == RECIPE
    with pytest.raises(InvalidValue, match=r"registry.*2 entries"):
        RECIPE.options()


@pytest.mark.parametrize(
    "change",
    [
        {"gather_schedule": None},
        {"matrix_product_schedule": None},
        {"matrix_product_schedule": TILED},
        {"semantic_context_limits": ContextLimits()},
        {"kernel_call_registry": None},
        {"family_tuning_artifact": b""},
        {"generated_scan_schedule_tuning_artifact": b""},
        {"generated_scan_schedule": GeneratedScanSchedule(threads=64)},
    ],
)
def test_whatever_has_a_say_is_in_the_recipe(change: dict[str, Any]) -> None:
    other = Recipe.of(MODULE, CUDA, attrs.evolve(OPTIONS, **change))
    assert encode_recipe(other) != encode_recipe(RECIPE)


def test_another_program_or_target_is_another_recipe() -> None:
    other = module_of("f32[8]", lambda f, x: f.abs(x))
    renamed = module_of("f32[8]", lambda f, x: f.neg(x), name="another")
    assert Recipe.of(other, CUDA, OPTIONS) != RECIPE
    assert Recipe.of(renamed, CUDA, OPTIONS) == RECIPE
    assert Recipe.of(MODULE, attrs.evolve(CUDA, math_tier="fused")) != Recipe.of(
        MODULE, CUDA
    )


def test_an_artifact_beside_an_explicit_schedule_has_no_say() -> None:
    explicit = GeneratedScanSchedule(threads=64)
    both = attrs.evolve(OPTIONS, generated_scan_schedule=explicit)
    alone = attrs.evolve(both, generated_scan_schedule_tuning_artifact=b"")
    assert Recipe.of(MODULE, CUDA, both) == Recipe.of(MODULE, CUDA, alone)


def test_every_changed_and_missing_byte_is_noticed() -> None:
    data = encode_recipe(RECIPE)
    for place in range(0, len(data), 3):
        with pytest.raises(InvalidArtifact):
            decode_recipe(data[:place])
        damaged = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        with pytest.raises(InvalidArtifact):
            decode_recipe(damaged)
    with pytest.raises(InvalidType):
        decode_recipe(bytearray(data))  # type: ignore[arg-type]


@given(st.binary(max_size=400))
def test_sealed_nonsense_is_refused(junk: bytes) -> None:
    with pytest.raises(InvalidArtifact):
        decode_recipe(seal("preparation_recipe", "1", junk))


@given(st.data())
def test_a_recipe_with_other_bytes_within_is_another_or_refused(data: Any) -> None:
    """Whatever passes the checksum is either refused or a recipe that is written so."""
    good = encode_recipe(RECIPE)
    payload = bytearray(good[good.index(b"preparation_recipe") + 19 : -32])
    place = data.draw(st.integers(0, len(payload) - 1))
    payload[place] = data.draw(st.integers(0, 255))
    altered = seal("preparation_recipe", "1", bytes(payload))
    try:
        recipe = decode_recipe(altered)
    except InvalidArtifact:
        return
    assert encode_recipe(recipe) == altered or recipe == RECIPE


def test_schedules_by_other_names_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"Recipe\.schedules"):
        attrs.evolve(RECIPE, schedules={"gather": GatherSchedule(threads=64)})
    with pytest.raises(InvalidValue, match=r"Recipe\.schedules"):
        attrs.evolve(RECIPE, schedules={"scan": ScatterAddSchedule(threads=64)})
