"""Compiling by what is known: a program's own records are looked up, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import attrs
import pytest

from accy_async import open_session
from accy_async.artifact.planned import ArtifactPlan
from accy_async.artifact.store import ArtifactStore
from accy_async.compiler.kernels.linalg import (
    MatrixProduct,
    OwnedCatalogDescriptor,
    matrix_product_candidates,
)
from accy_async.compiler.kernels.linalg import (
    create_owned_kernel_call_artifact_registry as registry_of,
)
from accy_async.compiler.preparation import (
    Recipe,
    TargetProfile,
    matrix_product_tuning_key,
)
from accy_async.compiler.semantic import Module
from accy_async.compiler.tracing import Fragment
from accy_async.errors import InvalidType
from accy_async.fragment import FragmentCompilerOptions
from accy_async.fragment.compiling import target_profile
from accy_async.fragment.schedules import with_known, with_records
from accy_async.fragment.scheduling import tune_schedules
from accy_async.tuning import TuningStore
from accy_async.tuning.records import (
    FAMILY_CODEC,
    FamilyTuningRecord,
    KnownRecords,
    ScheduleFamily,
    ScheduleTuningRecord,
    StoredRecords,
    codec,
)
from accy_async.tuning.records.codec import RecordCodec
from accy_async.tuning.records.stored import file_key
from accy_async.tuning.store import CODECS
from tests.tuning.test_records import RECORD
from tests.tuning.test_schedule_tuning import F32, QUICK, fastest, product

PRODUCTS = "matrix_product_schedule_tuning"
MANY = 10_000
TILE = (8, 8, 1)


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: how the loop waits does not matter here."""
    return "asyncio"


class MemoryStore(TuningStore):
    """A store that holds what it was given, sealed as in files."""

    def __init__(self, folder: Path, **given: list[tuple[str, bytes]]) -> None:
        super().__init__(ArtifactStore(folder))
        self._given = given

    def open(self, kind: str) -> StoredRecords[Any]:
        files = iter(self._given.get(kind, ()))
        return stored(kind, files, str(self.folder))


def stored(
    kind: str, files: Iterable[tuple[str, bytes]], source: str = "here"
) -> StoredRecords[Any]:
    def tell(key: str, error: Exception) -> None:
        raise AssertionError(f"{key}: {error}")

    return StoredRecords(CODECS[kind], iter(files), source=source, tell=tell)


def file_of(kind: str, record: Any) -> tuple[str, bytes]:
    return file_key(record), CODECS[kind].encode([record])


def unrelated(device: int) -> list[tuple[str, bytes]]:
    """Files of this device's records of products that nothing here computes."""

    def numbered(number: int) -> ScheduleTuningRecord:
        key = attrs.evolve(RECORD.key, device=device, extents=(number, 7, 3, 1))
        return attrs.evolve(RECORD, key=key)

    # Under any names: what is never decoded is not held against its file's.
    encode = CODECS[PRODUCTS].encode
    return [(f"{number:064x}", encode([numbered(number)])) for number in range(MANY)]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The artifacts that are decoded or encoded from now on."""
    calls: list[str] = []
    for name in ("decode", "decode_payload", "encode"):
        whole = getattr(RecordCodec, name)

        def tell(self: Any, what: Any, *, _of: Any = whole, _name: str = name) -> Any:
            calls.append(_name)
            return _of(self, what)

        monkeypatch.setattr(RecordCodec, name, tell)
    return calls


def code_of(cache: ArtifactStore) -> frozenset[str]:
    return frozenset(file.name for file in cache.folder.rglob("*") if file.is_file())


def geometry(plan: ArtifactPlan) -> tuple[int, int, int]:
    return plan.kernels[0].launch_resources.geometry.threadgroup


async def winner() -> ScheduleTuningRecord:
    outcome = await tune_schedules(fastest(TILE), product, F32, F32, options=QUICK)
    (record,) = outcome.records("matrix_product")
    return record


@pytest.mark.anyio
async def test_a_compilation_decodes_its_own_records_among_any_number(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels and the names of their code are those of a store without the others.

    An artifact of so many would be refused here: there is none.
    """
    device = fastest(TILE)
    mine = [file_of(PRODUCTS, await winner())]
    others = unrelated(device.capabilities.fingerprint)
    monkeypatch.setattr(codec, "MAX_ARTIFACT_BYTES", 1 << 10)
    found = {}
    for name, files in {
        "none": [],
        "others": others,
        "one": mine,
        "all": others + mine,
    }.items():
        store = MemoryStore(tmp_path / f"{name}-store", **{PRODUCTS: files})
        cache = ArtifactStore(tmp_path / f"{name}-code")
        async with open_session(fastest(TILE)) as session:
            for _ in range(2):  # the first one opens the store
                counted.clear()
                compiled = await session.compile_fragment(
                    product, F32, F32, tuning=store, cache=cache
                )
        found[name] = compiled.plan.kernels, code_of(cache), list(counted)
        assert geometry(compiled.plan) == (TILE if mine[0] in files else (16, 16, 1))
    assert found["others"] == found["none"]
    assert found["none"][2] == []
    assert found["all"] == found["one"]
    assert found["one"][2] == ["decode_payload"]
    assert found["one"][1]
    assert found["none"][1]
    assert found["one"][1].isdisjoint(found["none"][1])


@pytest.mark.anyio
async def test_a_ready_made_kernel_is_looked_up_likewise(tmp_path: Path) -> None:
    device = fastest(TILE)
    profile = target_profile(device)
    asked = MatrixProduct(m=64, n=64, k=64)
    family = matrix_product_candidates(asked)
    registry = registry_of(
        profile, [OwnedCatalogDescriptor(product=one) for one in family]
    )
    key = matrix_product_tuning_key(profile, asked)
    target = next(e.target for e in registry if e.target.endswith("t8x8"))
    record = FamilyTuningRecord(key=key, target=target, winner_median_ns=1)
    store = MemoryStore(tmp_path, family_tuning=[file_of(FAMILY_CODEC.schema, record)])
    options = FragmentCompilerOptions(kernel_call_registry=registry)
    async with open_session(device) as session:
        for tuning, ending in ((None, "t16x16"), (store, "t8x8")):
            compiled = await session.compile_fragment(
                product, F32, F32, options=options, tuning=tuning
            )
            assert compiled.plan.kernels[0].entry_name.endswith(ending)


@pytest.mark.anyio
async def test_what_the_options_choose_goes_before_what_is_known() -> None:
    record = await winner()
    known: KnownRecords[Any] = KnownRecords()
    known.import_records([record])
    device = record.key.device
    chosen = with_known(FragmentCompilerOptions(), device, {PRODUCTS: known})
    assert chosen.matrix_product_schedule_tuning is not None
    by_artifact = with_records(
        FragmentCompilerOptions(), {ScheduleFamily.MATRIX_PRODUCT: [record]}
    )
    for options in (by_artifact, chosen):
        assert with_known(options, device, {PRODUCTS: known}) == options
    assert with_known(
        FragmentCompilerOptions(), device, {PRODUCTS: KnownRecords()}
    ) == (FragmentCompilerOptions())


@pytest.mark.anyio
async def test_a_recipe_of_what_is_looked_up_is_that_of_the_artifact() -> None:
    record = await winner()
    known: KnownRecords[Any] = KnownRecords()
    known.look_in(stored(PRODUCTS, [file_of(PRODUCTS, record)]))
    profile: TargetProfile = target_profile(fastest(TILE))
    module: Module = Fragment(product).trace(F32, F32).module
    options = FragmentCompilerOptions()
    looked_up = with_known(options, record.key.device, {PRODUCTS: known})
    listed = with_records(options, {ScheduleFamily.MATRIX_PRODUCT: [record]})
    recipe = Recipe.of(module, profile, looked_up)
    assert recipe == Recipe.of(module, profile, listed)
    assert recipe.records == (record,)


# ---------------------------------------------------------------- several places


FAST, SLOW, SLOWEST = (
    attrs.evolve(RECORD, winner_median_ns=ns, runner_up_median_ns=0)
    for ns in (100, 200, 300)
)


@pytest.mark.parametrize("order", list(permutations((FAST, SLOW, SLOWEST))))
def test_of_what_several_places_say_the_best_counts(
    order: tuple[ScheduleTuningRecord, ...],
) -> None:
    known: KnownRecords[ScheduleTuningRecord] = KnownRecords()
    assert not known
    assert RECORD.identity not in known
    learnt, *kept = order
    known.import_records([learnt])
    for number, record in enumerate(kept):
        known.look_in(stored(PRODUCTS, [file_of(PRODUCTS, record)], str(number)))
    assert known
    assert known.find(RECORD.identity) == FAST
    assert RECORD.identity in known
    assert tuple(known) == (FAST,)


def test_a_store_opened_again_takes_its_own_place() -> None:
    known: KnownRecords[ScheduleTuningRecord] = KnownRecords()
    known.look_in(stored(PRODUCTS, [file_of(PRODUCTS, FAST)]))
    known.look_in(stored(PRODUCTS, [file_of(PRODUCTS, SLOW)]))
    assert known.find(RECORD.identity) == SLOW
    known.look_in(stored(PRODUCTS, []))
    assert not known


def test_what_was_looked_up_once_stays_as_it_was() -> None:
    """A compilation asks for one problem more than once, on another thread."""
    known: KnownRecords[ScheduleTuningRecord] = KnownRecords()
    other = attrs.evolve(RECORD.key, device=1)
    one = known.look_up()
    assert one.find(RECORD.identity) is None
    known.import_records([FAST, attrs.evolve(FAST, key=other)])
    assert one.find(RECORD.identity) is None
    assert one.find(other) is not None
    assert known.look_up().find(RECORD.identity) == FAST


def test_what_is_no_record_is_not_learnt() -> None:
    known: KnownRecords[Any] = KnownRecords()
    with pytest.raises(InvalidType, match=r"records\[1\]"):
        known.import_records([FAST, "fast"])
    assert not known
