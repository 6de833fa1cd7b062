"""Schedules tuned: each choice compiled, measured, recorded, and compiled by again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import attrs
import numpy as np
import pytest

from accy_async import open_session
from accy_async.artifact.kernel import ArtifactRequest, KernelArtifact
from accy_async.artifact.store import ArtifactStore
from accy_async.backends import LaunchRequest
from accy_async.compiler.kernels.linalg import (
    MatrixProduct,
    OwnedCatalogDescriptor,
    matrix_product_candidates,
)
from accy_async.compiler.kernels.linalg import (
    create_owned_kernel_call_artifact_registry as registry_of,
)
from accy_async.errors import CapabilityMismatch, InvalidType, SessionClosed
from accy_async.fragment import FragmentCompilerOptions, compile_fragment
from accy_async.fragment.compiling import target_profile
from accy_async.fragment.scheduling import tune_schedules
from accy_async.tuning import MeasureOptions, RaceRules, TuningBudget, TuningStore
from accy_async.tuning.records import (
    decode_family_tuning_artifact,
    decode_schedule_tuning_artifact,
)
from tests.tuning.devices import ScriptedDevice, cancelling_at

pytestmark = pytest.mark.anyio

ALL = TuningBudget(share=1.0)
QUICK = MeasureOptions(rules=RaceRules(min_rounds=8, max_rounds=16, repeats=0))
F32 = "f32[64,64]"
Dim3 = tuple[int, int, int]


def product(x: Any, y: Any) -> Any:
    return x @ y


def summed(x: Any) -> Any:
    return np.cumsum(x, axis=-1)


def normalised(x: Any) -> Any:
    return x / np.sum(np.exp(x), axis=-1, keepdims=True)


def fastest(threads: Dim3, second: Dim3 | None = None) -> ScriptedDevice:
    """A device on which a block of so many threads is the fastest, and one the next."""

    def duration(request: LaunchRequest) -> float:
        times = {threads: 3e5, second: 4e5}
        return times.get(request.geometry.threadgroup, 5e5)

    return ScriptedDevice(duration)


async def test_a_products_winner_is_recorded_and_compiled_by() -> None:
    device = fastest((8, 8, 1), (32, 8, 1))
    outcome = await tune_schedules(device, product, F32, F32, options=QUICK)
    (result,) = outcome.results
    assert result.extents == (64, 64, 64, 1)
    assert result.choice == (8, 8)
    assert outcome.is_complete
    assert not result.not_built
    options = outcome.options()
    (record,) = decode_schedule_tuning_artifact(
        "matrix_product", options.matrix_product_schedule_tuning_artifact
    )
    assert record == result.record
    assert record.choice == (8, 8)
    assert (record.winner_median_ns, record.runner_up_median_ns) == (300000, 400000)
    assert record.sample_count >= 8
    tuned = await compile_fragment(device, product, F32, F32, options=options)
    untuned = await compile_fragment(device, product, F32, F32)
    assert tuned.plan.kernels[0].launch_resources.geometry.threadgroup == (8, 8, 1)
    assert untuned.plan.kernels[0].launch_resources.geometry.threadgroup == (16, 16, 1)
    assert device.left() == {}


@pytest.mark.parametrize(
    ("program", "choice", "field"),
    [
        (summed, (32, 1), "generated_scan_schedule_tuning_artifact"),
        (normalised, (64,), "generated_row_pipeline_schedule_tuning_artifact"),
    ],
)
async def test_scans_and_pipelines_over_rows_likewise(
    program: Callable[[Any], Any], choice: tuple[int, ...], field: str
) -> None:
    device = fastest((choice[0], 1, 1))
    outcome = await tune_schedules(device, program, "f32[64,1024]", options=QUICK)
    (result,) = outcome.results
    assert result.choice == choice
    options = outcome.options()
    assert getattr(options, field)
    tuned = await compile_fragment(device, program, "f32[64,1024]", options=options)
    threads = [k.launch_resources.geometry.threadgroup for k in tuned.plan.kernels]
    assert (choice[0], 1, 1) in threads
    assert device.left() == {}


async def test_a_familys_ready_made_kernel_is_chosen_likewise() -> None:
    """The same measurement says which of a registry's kernels is called."""
    device = fastest((8, 8, 1))
    profile = target_profile(device)
    family = matrix_product_candidates(MatrixProduct(m=64, n=64, k=64))
    registry = registry_of(
        profile, [OwnedCatalogDescriptor(product=one) for one in family]
    )
    options = FragmentCompilerOptions(kernel_call_registry=registry)
    outcome = await tune_schedules(
        device, product, F32, F32, compiler_options=options, options=QUICK
    )
    (record,) = outcome.family_records
    assert record.target.endswith(".t8x8")
    assert (record.winner_median_ns, record.runner_up_median_ns) == (300000, 500000)
    by_family = attrs.evolve(
        outcome.options(options), matrix_product_schedule_tuning_artifact=b""
    )
    assert decode_family_tuning_artifact(by_family.family_tuning_artifact) == (record,)
    tuned = await compile_fragment(device, product, F32, F32, options=by_family)
    assert tuned.plan.kernels[0].entry_name.endswith("t8x8")


async def test_where_choices_do_not_differ_the_usual_one_is_recorded() -> None:
    outcome = await tune_schedules(fastest((1, 1, 1)), product, F32, F32, options=QUICK)
    (result,) = outcome.results
    assert result.record is not None
    assert result.choice == (16, 16)
    assert result.record.runner_up_median_ns == result.record.winner_median_ns


async def test_choices_without_a_kernel_are_passed_over_with_their_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = fastest((8, 8, 1))
    made = iter([CapabilityMismatch("too many registers")])
    create = device.create_artifact

    def refusing(request: ArtifactRequest) -> KernelArtifact:
        for error in made:
            raise error
        return create(request)

    monkeypatch.setattr(device, "create_artifact", refusing)
    outcome = await tune_schedules(device, product, F32, F32, options=QUICK)
    (result,) = outcome.results
    assert "too many registers" in result.not_built[(16, 16)]
    assert result.record is None
    assert result.why_not == "there are no two kernels to choose from"
    assert device.left() == {}


# In a session


@pytest.fixture
def store(tmp_path: Path) -> TuningStore:
    return TuningStore(ArtifactStore(tmp_path))


async def test_the_next_start_compiles_by_what_was_found(store: TuningStore) -> None:
    async with open_session(fastest((8, 8, 1))) as session:
        async with session.tuning(budget=ALL, store=store) as tuner:
            await tuner.tune_schedules(product, F32, F32, options=QUICK)
            again = await tuner.tune_schedules(product, F32, F32, options=QUICK)
            assert again.results == ()
        with pytest.raises(SessionClosed):
            await tuner.tune_schedules(product, F32, F32)
    assert set(store.counts()) == {"matrix_product_schedule_tuning", "family_tuning"}
    async with open_session(fastest((8, 8, 1))) as session:
        compiled = await session.compile_fragment(product, F32, F32, tuning=store)
        assert compiled.plan.kernels[0].launch_resources.geometry.threadgroup == (
            8,
            8,
            1,
        )
        function = await session.load_fragment(product, tuning=store)
        loaded = await function.specialise(*[np.ones((64, 64), np.float32)] * 2)
        assert loaded.plan.kernels == compiled.plan.kernels
        async with session.tuning(budget=ALL, store=store) as tuner:
            again = await tuner.tune_schedules(product, F32, F32, options=QUICK)
            assert again.results == ()
        untuned = await session.compile_fragment(product, F32, F32, tuning=None)
        assert untuned.plan.kernels != compiled.plan.kernels
        with pytest.raises(InvalidType, match=r"compile_fragment\.tuning"):
            await session.compile_fragment(product, F32, F32, tuning="here")  # type: ignore[arg-type]


async def test_a_spent_budget_keeps_what_is_done(store: TuningStore) -> None:
    async with open_session(fastest((8, 8, 1))) as session:
        budget = attrs.evolve(ALL, total_s=1e-3)
        async with session.tuning(budget=budget, store=store) as tuner:
            outcome = await tuner.tune_schedules(product, F32, F32, options=QUICK)
        assert not outcome.is_complete
        assert outcome.results == ()
        short = attrs.evolve(ALL, most_delay_s=1e-4)
        async with session.tuning(budget=short, store=store) as tuner:
            outcome = await tuner.tune_schedules(product, F32, F32, options=QUICK)
        (result,) = outcome.results
        assert result.why_not.startswith("a sample holds the device for")
    assert store.counts() == {}


async def test_cancelled_at_any_wait_it_leaves_nothing() -> None:
    options = attrs.evolve(
        QUICK, rules=RaceRules(min_rounds=4, max_rounds=4, repeats=0), warmup=0
    )
    place = 0
    while True:
        device = fastest((8, 8, 1))
        with anyio.CancelScope() as scope:
            device.on_call = cancelling_at(place, scope, "wait_")
            await tune_schedules(device, product, F32, F32, options=options)
        device.on_call = None
        assert device.left() == {}
        if not scope.cancelled_caught:
            break
        place += 5
    assert place > 10


async def test_each_failing_call_leaves_nothing() -> None:
    options = attrs.evolve(
        QUICK, rules=RaceRules(min_rounds=4, max_rounds=4, repeats=0), warmup=0
    )
    nth = 1
    while True:
        device = fastest((8, 8, 1))
        device.fail("*", nth)
        try:
            await tune_schedules(device, product, F32, F32, options=options)
        except Exception:  # noqa: BLE001 - which error is told by the parts' own tests
            pass
        assert device.left() == {}, nth
        if device.has_planned_failures:
            break
        nth += 3
    assert nth > 20


async def test_on_this_machine_it_finds_a_schedule_that_computes_right() -> None:
    async with open_session("cpu") as session:
        x = np.linspace(0, 1, 64 * 128, dtype=np.float32).reshape(64, 128)
        async with session.tuning(budget=ALL, store=None) as tuner:
            outcome = await tuner.tune_schedules(normalised, x, options=QUICK)
            assert len(outcome.results) == 1
        fragment = await session.load_fragment(normalised, x, tuning=None)
        np.testing.assert_allclose(await fragment(x), normalised(x), rtol=1e-5)
