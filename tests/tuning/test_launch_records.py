"""Launch tuning records: keys, artifacts, the cache, and what each refuses."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.sealed import seal, unseal
from accy_async.artifact.tiles import (
    LaunchReduction,
    LaunchReductionKind,
    LaunchTile,
    LaunchTileKind,
)
from accy_async.backends.capabilities import Capabilities
from accy_async.dtypes import DType
from accy_async.errors import (
    InvalidArtifact,
    InvalidType,
    InvalidValue,
    LaunchArgumentMismatch,
)
from accy_async.graph.options import LaunchOptions
from accy_async.tuning.choice import LaunchCandidateMeasurement
from accy_async.tuning.launches import (
    LAUNCH_CODEC,
    LaunchCandidateBenchmarkOptions,
    LaunchTuningCache,
    LaunchTuningCacheKey,
    LaunchTuningCacheRecord,
    best_measurement,
    decode_launch_tuning_artifact,
    encode_launch_tuning_artifact,
    launch_candidate_record,
)
from accy_async.tuning.records import decode_family_tuning_artifact
from tests.tuning.samples import (
    CAPABILITIES,
    REDUCTION_TILE,
    cache_record,
    candidate_record,
    kernel,
    measurement,
)

RECORD = cache_record(kernel(tile=REDUCTION_TILE), 1, 200)


def device(**more: Any) -> Capabilities:
    """The recording device with something changed."""
    return attrs.evolve(
        CAPABILITIES, identity=attrs.evolve(CAPABILITIES.identity, **more)
    )


def test_a_key_names_the_tile_and_the_candidates() -> None:
    key = LaunchTuningCacheKey.of(CAPABILITIES, kernel(tile=REDUCTION_TILE))
    assert key.format is ArtifactFormat.CUDA_PTX
    assert key.tile_kind is LaunchTileKind.REDUCTION
    assert (key.tile_m, key.tile_n, key.tile_k, key.tile_batch) == (32, 256, 0, 1)
    assert key.tile_has_input_dtype
    assert key.tile_input_dtype is DType.F32
    assert key.tile_has_output_dtype
    assert key.tile_output_dtype is DType.F32
    assert key.tile_input_tile_bytes == 32768
    assert key.tile_output_tile_bytes == 128
    assert key.tile_scratch_memory_bytes == 0
    assert key.tile_reduction_kind is LaunchReductionKind.SUM
    assert (key.tile_reduction_rank, key.tile_reduction_axis) == (1, 0)
    assert key.tile_reduction_extent == 256
    assert key.launch_resource_fingerprint != 0
    bare = LaunchTuningCacheKey.of(CAPABILITIES, kernel())
    assert not bare.tile_has_input_dtype
    assert bare.tile_output_dtype is None
    assert bare.tile_reduction_kind is None
    assert bare.tile_reduction_extent == 0


@pytest.mark.parametrize(
    "other",
    [
        kernel(payload="other code"),
        kernel(widths=(32, 64)),
        kernel(widths=(64, 32, 128)),
        kernel(output_layout_fingerprint=9),
        kernel(input_layout_fingerprint=9),
        kernel(element_count=9),
        kernel(tile=REDUCTION_TILE),
        kernel(required_dtypes=frozenset({DType.F64})),
    ],
)
def test_whatever_differs_in_a_kernel_is_another_key(other: Any) -> None:
    cache = LaunchTuningCache(CAPABILITIES, [cache_record(kernel(), 1, 200)])
    assert cache.selection(kernel()) is not None
    assert cache.selection(other) is None


def test_a_kernel_is_found_under_another_number() -> None:
    cache = LaunchTuningCache(CAPABILITIES, [cache_record(kernel(), 1, 200)])
    again = attrs.evolve(kernel(), kernel_id=5, work_item_id=3)
    assert cache.selection(again) == measurement(1, 200, kernel_id=5)


def test_another_device_misses_and_is_told_once_while_nothing_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two devices of one backend and one of another, then the first one again."""
    tuned = LaunchTuningCache(CAPABILITIES, [cache_record(kernel(), 1, 200)])
    artifact = tuned.export_artifact()
    for other in (
        device(compute_units=7),
        device(architecture="other"),
        device(backend=BackendKind.VULKAN),
    ):
        caplog.clear()
        cache = LaunchTuningCache(other)
        with caplog.at_level(logging.INFO, "accy_async.tuning"):
            cache.import_artifact(artifact)
            assert cache.selection(kernel()) is None
        assert len(caplog.records) == 1
        assert "of other devices" in caplog.text
        assert cache.export_artifact() == artifact
    back = LaunchTuningCache(device(name="the same chip, relabelled", index=3))
    back.import_artifact(artifact)
    assert back.selection(kernel()) == measurement(1, 200)


def test_another_driver_misses_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    cache = LaunchTuningCache(device(driver="2"))
    cache.import_records(
        [cache_record(kernel(), 1, 200, capabilities=device(driver="1"))]
    )
    with caplog.at_level(logging.INFO, "accy_async.tuning"):
        assert cache.selection(kernel()) is None
        assert cache.selection(kernel()) is None
    assert [record.getMessage() for record in caplog.records] == [
        "kernel add_0 was tuned on driver '1', this is '2': measure again"
    ]


def test_the_better_of_two_stays_and_of_equals_the_better_known() -> None:
    slow, fast = cache_record(kernel(), 0, 500), cache_record(kernel(), 1, 200, 4)
    sure = cache_record(kernel(), 2, 200, 9)
    for order in ([slow, fast, sure], [sure, fast, slow], [fast, sure, slow]):
        cache = LaunchTuningCache(CAPABILITIES)
        for record in order:
            cache.import_records([record])
        assert cache.records == (sure,)
    assert best_measurement([]) is None
    assert best_measurement([measurement(1, 5), measurement(0, 5)]) == measurement(0, 5)


def test_the_best_of_measured_candidates_is_kept() -> None:
    cache = LaunchTuningCache(CAPABILITIES)
    records = [candidate_record(kernel(), 0, 500), candidate_record(kernel(), 1, 200)]
    found = cache.record_all([kernel()], records)
    assert len(cache) == 1
    assert found == cache.records
    assert cache.selection(kernel()) == measurement(1, 200)
    assert cache.record_candidates(kernel(), []) is None


def test_a_kernel_without_choice_or_without_work_is_not_tuned() -> None:
    cache = LaunchTuningCache(CAPABILITIES)
    fixed = kernel(widths=(32,))
    assert cache.record_all([fixed], [candidate_record(fixed, 0, 5)]) == ()
    assert cache.selection(fixed) is None
    assert len(cache) == 0


def test_records_of_no_kernel_given_are_refused_all_together() -> None:
    cache = LaunchTuningCache(CAPABILITIES)
    good, stray = candidate_record(kernel(), 0, 5), candidate_record(kernel(4), 0, 5)
    with pytest.raises(LaunchArgumentMismatch, match="kernel 4"):
        cache.record_all([kernel()], [good, stray])
    assert len(cache) == 0


def test_a_record_of_another_candidate_is_refused() -> None:
    resources = kernel().launch_resources
    with pytest.raises(LaunchArgumentMismatch, match="candidate 0"):
        launch_candidate_record(kernel(), resources.candidate(1), measurement(0, 5))
    with pytest.raises(LaunchArgumentMismatch, match="kernel 3"):
        launch_candidate_record(
            kernel(), resources.candidate(0), measurement(0, 5, kernel_id=3)
        )
    with pytest.raises(LaunchArgumentMismatch, match="expected 0 to 2"):
        launch_candidate_record(kernel(), resources.candidate(0), measurement(3, 5))


def test_a_winner_that_fails_to_launch_can_be_forgotten() -> None:
    other = kernel(1)
    cache = LaunchTuningCache(
        CAPABILITIES, [cache_record(kernel(), 1, 200), cache_record(other, 2, 300)]
    )
    assert cache.forget(kernel())
    assert not cache.forget(kernel())
    assert cache.selection(kernel()) is None
    assert cache.selection(other) is not None


def test_artifacts_are_taken_in_replaced_and_given_back() -> None:
    artifact = encode_launch_tuning_artifact([RECORD])
    assert decode_launch_tuning_artifact(artifact) == (RECORD,)
    cache = LaunchTuningCache(CAPABILITIES)
    assert cache.import_artifact(artifact) == 1
    assert cache.export_artifact() == artifact
    assert cache.replace_artifact(b"") == 0
    assert len(cache) == 0
    assert cache.replace_artifact(artifact) == 1


def test_a_newer_version_is_refused_by_name_and_changes_nothing() -> None:
    cache = LaunchTuningCache(CAPABILITIES, [RECORD])
    newer = seal("launch_tuning", "12", b"whatever it may hold")
    for take in (cache.import_artifact, cache.replace_artifact):
        with pytest.raises(InvalidArtifact, match="launch_tuning of version 12"):
            take(newer)
    assert cache.records == (RECORD,)


def test_an_artifact_of_another_kind_is_refused_by_name() -> None:
    artifact = encode_launch_tuning_artifact([RECORD])
    with pytest.raises(
        InvalidArtifact, match="family_tuning: this is launch_tuning of version 1"
    ):
        decode_family_tuning_artifact(artifact)


def test_every_flipped_bit_and_every_missing_byte_is_refused() -> None:
    artifact = encode_launch_tuning_artifact([RECORD, cache_record(kernel(), 0, 9)])
    cache = LaunchTuningCache(CAPABILITIES, [RECORD])
    for bit in range(8 * len(artifact)):
        damaged = bytearray(artifact)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidArtifact):
            cache.import_artifact(bytes(damaged))
    for size in range(len(artifact)):
        with pytest.raises(InvalidArtifact):
            cache.import_artifact(artifact[:size])
    with pytest.raises(InvalidArtifact):
        cache.import_artifact(artifact + b"\0")
    assert cache.records == (RECORD,)


def test_what_was_read_before_hides_no_change_of_what_is_read_now() -> None:
    """Tiles are read once: one that differs in a bit is another one, or refused."""
    payload = unseal(encode_launch_tuning_artifact([RECORD]), "launch_tuning", "1")
    assert LAUNCH_CODEC.decode_payload(payload) == (RECORD,)
    read, refused = set[LaunchTuningCacheRecord](), 0
    for bit in range(8 * len(payload)):
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            records = LAUNCH_CODEC.decode_payload(bytes(changed))
        except InvalidArtifact:
            refused += 1
        else:
            read.update(records)
            sealed = seal("launch_tuning", "1", bytes(changed))
            assert LAUNCH_CODEC.encode(records) == sealed
        (again,) = LAUNCH_CODEC.decode_payload(payload)
        assert again == RECORD
        assert again.key.tile.reduction == REDUCTION_TILE.reduction
    assert RECORD not in read
    assert len(read) + refused == 8 * len(payload)
    assert len({record.key.tile for record in read}) > 300


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 2**32 - 1))
def test_sealed_nonsense_is_refused_or_read(junk: bytes, count: int) -> None:
    """A checksum that is right makes no record of what is none."""
    artifact = seal("launch_tuning", "1", count.to_bytes(4, "little") + junk)
    try:
        records = decode_launch_tuning_artifact(artifact)
    except InvalidArtifact:
        return
    assert len(records) == count
    assert encode_launch_tuning_artifact(records) == artifact


_u32 = st.integers(0, 2**32 - 1)
_u64 = st.integers(0, 2**64 - 1)
_text = st.text(max_size=20).filter(lambda text: text.isprintable())
tiles = st.builds(
    LaunchTile,
    kind=st.sampled_from(LaunchTileKind),
    m=_u32,
    n=_u32,
    k=_u32,
    batch=st.integers(1, 2**32 - 1),
    input_dtype=st.none() | st.sampled_from(DType),
    output_dtype=st.none() | st.sampled_from(DType),
    input_tile_bytes=_u64,
    output_tile_bytes=_u64,
    scratch_memory_bytes=_u64,
    reduction=st.none()
    | st.builds(
        LaunchReduction,
        kind=st.sampled_from(LaunchReductionKind),
        rank=_u32,
        axis=_u32,
        extent=_u64,
    ),
)
keys = st.builds(
    LaunchTuningCacheKey,
    backend=st.sampled_from(BackendKind),
    device=_u64,
    driver=_text,
    format=st.sampled_from(ArtifactFormat),
    kernel_fingerprint=_u64,
    output_layout_fingerprint=_u64,
    input_layout_fingerprint=_u64,
    element_count=_u64,
    tile=tiles,
    candidate_count=st.integers(8, 2**32 - 1),
    launch_resource_fingerprint=_u64,
)
records = st.builds(
    LaunchTuningCacheRecord,
    key=keys,
    selection=st.builds(
        LaunchCandidateMeasurement,
        kernel_id=_u32,
        candidate_index=st.integers(0, 7),
        median_ns=_u64,
        sample_count=st.integers(1, 2**32 - 1),
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(records, max_size=4), st.data())
def test_any_records_come_back_and_no_damage_is_read(
    given: list[LaunchTuningCacheRecord], data: st.DataObject
) -> None:
    artifact = encode_launch_tuning_artifact(given)
    assert decode_launch_tuning_artifact(artifact) == tuple(given)
    damaged = bytearray(artifact)
    damaged[data.draw(st.integers(0, len(artifact) - 1))] ^= data.draw(
        st.integers(1, 255)
    )
    with pytest.raises(InvalidArtifact):
        decode_launch_tuning_artifact(bytes(damaged))


@settings(max_examples=50, deadline=None)
@given(st.lists(records, max_size=6), st.randoms(use_true_random=False))
def test_caches_depend_on_their_records_and_not_on_their_order(
    given: list[LaunchTuningCacheRecord], random: Any
) -> None:
    first = LaunchTuningCache(CAPABILITIES, given)
    random.shuffle(given)
    assert LaunchTuningCache(CAPABILITIES, given).records == first.records


def test_the_least_size_of_a_record_is_right() -> None:
    """A count is refused where not even the smallest records would fit."""
    smallest = cache_record(kernel(), 0, 1)
    bare = attrs.evolve(
        smallest,
        key=attrs.evolve(
            smallest.key,
            backend=BackendKind.CPU,
            driver="",
            format=min(ArtifactFormat, key=lambda one: len(one.value)),
            tile=LaunchTile(kind=min(LaunchTileKind, key=lambda one: len(one.value))),
        ),
    )
    empty = len(encode_launch_tuning_artifact([]))
    assert len(encode_launch_tuning_artifact([bare])) - empty == (
        LAUNCH_CODEC.least_bytes
    )


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(InvalidType):
        encode_launch_tuning_artifact([object()])  # type: ignore[list-item]
    with pytest.raises(InvalidType):
        decode_launch_tuning_artifact("text")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="one of 3 candidates"):
        cache_record(kernel(), 3, 5)


def test_options_that_mean_nothing_for_one_kernel_are_refused() -> None:
    with pytest.raises(LaunchArgumentMismatch, match="base_options"):
        LaunchCandidateBenchmarkOptions(base_options=LaunchOptions(tuning={"a": 1}))
    with pytest.raises(InvalidValue, match="samples"):
        LaunchCandidateBenchmarkOptions(samples=0)
    with pytest.raises(InvalidValue, match="synchronize"):
        LaunchCandidateBenchmarkOptions(synchronize="never")
