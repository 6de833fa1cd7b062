"""Tuning records: values, artifacts, and the better of two."""

from __future__ import annotations

import random
from itertools import permutations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.sealed import seal
from accy_async.dtypes import DType
from accy_async.errors import InvalidArtifact, InvalidType, InvalidValue
from accy_async.tuning.records import (
    MAX_ARTIFACT_BYTES,
    FamilyTuningKey,
    FamilyTuningReader,
    FamilyTuningRecord,
    RecordCache,
    ScheduleFamily,
    ScheduleReader,
    ScheduleTuningKey,
    ScheduleTuningProblem,
    ScheduleTuningRecord,
    decode_family_tuning_artifact,
    decode_schedule_tuning_artifact,
    encode_family_tuning_artifact,
    encode_schedule_tuning_artifact,
)

PRODUCT = ScheduleFamily.MATRIX_PRODUCT
DEVICE = 0x1234567890ABCDEF
PROBLEM = ScheduleTuningProblem(
    family=PRODUCT,
    format=ArtifactFormat.CUDA_PTX,
    extents=(5, 7, 3, 1),
    dtypes=(DType.F32, DType.F32),
    candidates=((16, 16), (8, 8), (32, 8)),
)
RECORD = ScheduleTuningRecord(
    key=ScheduleTuningKey.of(DEVICE, PROBLEM),
    choice=(8, 8),
    winner_median_ns=800,
    runner_up_median_ns=1200,
    sample_count=30,
)
FAMILY_RECORD = FamilyTuningRecord(
    key=FamilyTuningKey(
        device=DEVICE,
        format=ArtifactFormat.CUDA_PTX,
        family="accy.kernel.matrix_product",
        version=1,
        problem="f32.5x7x3",
    ),
    target="accy.kernel.matrix_product.f32.5x7x3.t8x8",
    winner_median_ns=800,
)


def test_artifacts_give_back_their_records() -> None:
    other = attrs.evolve(RECORD, key=attrs.evolve(RECORD.key, device=1), choice=())
    artifact = encode_schedule_tuning_artifact(PRODUCT, [RECORD, other])
    assert decode_schedule_tuning_artifact(PRODUCT, artifact) == (RECORD, other)
    family = encode_family_tuning_artifact([FAMILY_RECORD])
    assert decode_family_tuning_artifact(family) == (FAMILY_RECORD,)
    assert decode_family_tuning_artifact(encode_family_tuning_artifact([])) == ()


def test_artifact_of_another_family_is_refused() -> None:
    artifact = encode_schedule_tuning_artifact(PRODUCT, [RECORD])
    with pytest.raises(InvalidArtifact, match=r"generated_scan_schedule_tuning: .*"):
        decode_schedule_tuning_artifact(ScheduleFamily.SCAN, artifact)
    with pytest.raises(InvalidValue, match="family"):
        encode_schedule_tuning_artifact(ScheduleFamily.SCAN, [RECORD])


@pytest.mark.parametrize("artifact", [b"", b"\1\2\3", bytes(200), b"\x89accy\r\n\x1a"])
def test_bytes_that_are_none_are_refused_with_their_offset(artifact: bytes) -> None:
    """C26: what was cut short or is none of ours is told apart from an empty cache."""
    with pytest.raises(InvalidArtifact) as caught:
        decode_schedule_tuning_artifact(PRODUCT, artifact)
    assert caught.value.offset is not None


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_sealed_nonsense_is_refused(junk: bytes, count: int) -> None:
    """What passes the checksum is not believed either."""
    payload = count.to_bytes(4, "little") + junk
    artifact = seal("family_tuning", "1", payload)
    try:
        records = decode_family_tuning_artifact(artifact)
    except InvalidArtifact:
        return
    assert len(records) == count


def test_too_large_an_artifact_is_refused_unread() -> None:
    with pytest.raises(InvalidArtifact, match="at most"):
        decode_family_tuning_artifact(bytes(MAX_ARTIFACT_BYTES + 1))
    with pytest.raises(InvalidType):
        decode_family_tuning_artifact("text")  # type: ignore[arg-type]


def test_the_faster_record_wins_and_of_equals_the_better_known() -> None:
    fast = attrs.evolve(RECORD, winner_median_ns=700, sample_count=5)
    sure = attrs.evolve(fast, sample_count=50, choice=(16, 16))
    for order in permutations([RECORD, fast, sure]):
        assert RecordCache(order).export_records() == (sure,)


def test_caches_depend_on_their_records_and_not_on_their_order() -> None:
    records = [
        attrs.evolve(
            RECORD,
            key=attrs.evolve(RECORD.key, extents=(m, 7, 3, 1)),
            choice=choice,
            winner_median_ns=100,
            runner_up_median_ns=0,
        )
        for m in range(4)
        for choice in ((16, 16), (8, 8), (32, 8))
    ]
    expected = RecordCache(records).export_records()
    assert len(expected) == 4
    for seed in range(10):
        shuffled = [*records, *records]
        random.Random(seed).shuffle(shuffled)
        assert RecordCache(shuffled).export_records() == expected


def test_a_refused_import_changes_nothing() -> None:
    cache = RecordCache([RECORD])
    better = attrs.evolve(RECORD, winner_median_ns=1, runner_up_median_ns=0)
    with pytest.raises(InvalidType):
        cache.import_records([better, "no record"])  # type: ignore[list-item]
    assert cache.export_records() == (RECORD,)
    assert len(cache) == 1


def test_a_reader_answers_for_just_what_was_measured() -> None:
    """C28: another device, format or version is a miss, and no error."""
    reader = ScheduleReader(DEVICE, [RECORD])
    assert reader.resolve(PROBLEM) == (8, 8)
    for other in (
        attrs.evolve(PROBLEM, extents=(5, 7, 4, 1)),
        attrs.evolve(PROBLEM, format=ArtifactFormat.VULKAN_SPIRV),
        attrs.evolve(PROBLEM, dtypes=(DType.F64, DType.F64)),
        attrs.evolve(PROBLEM, version=2),
        attrs.evolve(PROBLEM, candidates=((8, 8), (16, 16), (32, 8))),
    ):
        assert reader.resolve(other) is None
    assert ScheduleReader(1, [RECORD]).resolve(PROBLEM) is None


def test_a_winner_that_is_no_candidate_is_refused() -> None:
    reader = ScheduleReader(DEVICE, [attrs.evolve(RECORD, choice=(99, 99))])
    with pytest.raises(InvalidArtifact, match=r"\(99, 99\) is none of"):
        reader.resolve(PROBLEM)


def test_a_family_reader_answers_for_just_what_was_measured() -> None:
    """C28: the same for families of kernels."""
    reader = FamilyTuningReader(DEVICE, [FAMILY_RECORD])
    key = FAMILY_RECORD.key
    assert reader.resolve(key) == FAMILY_RECORD.target
    assert reader.resolve(attrs.evolve(key, version=2)) is None
    assert FamilyTuningReader(1, [FAMILY_RECORD]).resolve(key) is None
    assert reader.records == (FAMILY_RECORD,)


def test_records_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(InvalidValue, match="runner_up"):
        attrs.evolve(RECORD, runner_up_median_ns=1)
    with pytest.raises(InvalidValue, match="candidates"):
        attrs.evolve(PROBLEM, candidates=((1,), (1,)))
    with pytest.raises(InvalidValue):
        attrs.evolve(PROBLEM, extents=tuple(range(300)))


def test_a_cache_gives_back_what_it_holds_after_every_change() -> None:
    other = attrs.evolve(RECORD, key=attrs.evolve(RECORD.key, device=1))
    faster = attrs.evolve(RECORD, winner_median_ns=1)
    cache = RecordCache([RECORD])
    assert cache.export_records() is cache.export_records()
    for learnt in (other, attrs.evolve(other), faster):
        cache.import_records([learnt])
        assert cache.export_records() == RecordCache(list(cache)).export_records()
        assert len(cache.export_records()) == 2
    assert set(cache) == {other, faster}
    assert cache.forget(RECORD.key)
    assert not cache.forget(RECORD.key)
    assert cache.export_records() == (other,)
    cache.replace_records([faster])
    assert cache.export_records() == (faster,)
