"""Records of a store, each decoded when it is asked for, and only then."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import attrs
import pytest

from accy_async.artifact.sealed import seal, unseal
from accy_async.artifact.store import ArtifactStore
from accy_async.backends.capabilities import Capabilities
from accy_async.errors import InvalidArtifact, InvalidType
from accy_async.tuning import (
    LaunchCandidateMeasurement,
    LaunchTuningCache,
    LaunchTuningCacheKey,
    LaunchTuningCacheRecord,
    TuningStore,
)
from accy_async.tuning.launches.records import LAUNCH_CODEC
from accy_async.tuning.records import StoredRecords
from accy_async.tuning.records.codec import RecordCodec
from accy_async.tuning.records.stored import file_key
from accy_async.tuning.store import CODECS
from tests.tuning.samples import (
    CAPABILITIES,
    REDUCTION_TILE,
    cache_record,
    kernel,
    measurement,
)
from tests.tuning.test_records import FAMILY_RECORD, RECORD

KIND = "launch_tuning"
LAUNCH_RECORD = LaunchTuningCacheRecord(
    key=LaunchTuningCacheKey(
        backend="cuda",
        device=0x1234567890ABCDEF,
        driver="570.86",
        format="cuda_ptx",
        kernel_fingerprint=1,
        output_layout_fingerprint=2,
        input_layout_fingerprint=3,
        element_count=8192,
        tile=REDUCTION_TILE,
        candidate_count=3,
        launch_resource_fingerprint=4,
    ),
    selection=LaunchCandidateMeasurement(
        kernel_id=5, candidate_index=1, median_ns=200, sample_count=30
    ),
)
SAMPLES = {
    KIND: LAUNCH_RECORD,
    "family_tuning": FAMILY_RECORD,
    "matrix_product_schedule_tuning": RECORD,
}
FIRST_STORE = Path(__file__).parent / "first_store"
"""A store of these as the first version wrote it."""


@pytest.fixture
def store(tmp_path: Path) -> TuningStore:
    return TuningStore(ArtifactStore(tmp_path / "store"))


def on_driver(driver: str) -> Capabilities:
    identity = attrs.evolve(CAPABILITIES.identity, driver=driver)
    return attrs.evolve(CAPABILITIES, identity=identity)


def numbered(number: int, median_ns: int = 200) -> LaunchTuningCacheRecord:
    return cache_record(kernel(element_count=number), 1, median_ns)


def contents(folder: Path) -> dict[Path, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder): file.read_bytes() for file in files}


def put_payload(store: TuningStore, key: str, payload: bytes) -> None:
    """Keep something in a record's place that is sealed as it should be."""
    store.files.put(f"{KIND}-1", key, seal(KIND, "1", payload))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The payloads that are decoded from now on."""
    found: list[bytes] = []
    whole: Callable[..., Any] = RecordCodec.decode_payload

    def decode_payload(codec: RecordCodec[Any], payload: bytes) -> object:
        found.append(payload)
        return whole(codec, payload)

    monkeypatch.setattr(RecordCodec, "decode_payload", decode_payload)
    return found


# ---------------------------------------------------------------- files


def test_a_store_of_the_first_version_is_read(tmp_path: Path) -> None:
    shutil.copytree(FIRST_STORE, tmp_path / "store")
    store = TuningStore(ArtifactStore(tmp_path / "store"))
    for kind, record in SAMPLES.items():
        assert store.load(kind) == (record,)
        assert store.open(kind).find(record.identity) == record
    assert store.prune() == 0
    assert contents(store.folder) == contents(FIRST_STORE)


def test_the_first_version_reads_a_store_of_this_one(store: TuningStore) -> None:
    """The same files under the same names, and no others beside them."""
    for kind, record in SAMPLES.items():
        store.keep(kind, [record])
        store.open(kind)
    assert contents(store.folder) == contents(FIRST_STORE)


# ---------------------------------------------------------------- looking up


@pytest.mark.parametrize("kind", SAMPLES)
def test_what_a_record_is_looked_up_by_is_found_without_decoding(
    kind: str, decoded: list[bytes]
) -> None:
    """And a cut anywhere before its end is found out."""
    codec, record = CODECS[kind], SAMPLES[kind]
    artifact = codec.encode([record])
    index, payload = codec.glance(artifact)
    assert index == codec.index_of(record.identity)
    assert decoded == []
    assert codec.decode_payload(payload) == (record,)
    refused = 0
    for size in range(len(payload)):
        cut = seal(kind, "1", payload[:size])
        try:
            assert codec.glance(cut)[0] == index  # the measurement alone is missing
        except InvalidArtifact:
            refused += 1
        with pytest.raises(InvalidArtifact):
            codec.decode(cut)
    assert refused >= codec.least_bytes - 20


def test_opening_decodes_nothing_and_a_look_up_one(
    store: TuningStore, decoded: list[bytes]
) -> None:
    store.keep(KIND, [numbered(number) for number in range(9)])
    opened = store.open(KIND)
    assert isinstance(opened, StoredRecords)
    assert len(opened) == 9
    assert decoded == []
    assert opened.find(numbered(5).identity) == numbered(5)
    assert len(decoded) == 1
    assert opened.find(numbered(99).identity) is None
    assert len(decoded) == 1
    assert set(opened) == {numbered(number) for number in range(9)}
    assert tuple(opened) == store.load(KIND)


def test_what_was_opened_stays_as_it_was(store: TuningStore) -> None:
    store.keep(KIND, [numbered(1)])
    opened = store.open(KIND)
    store.keep(KIND, [numbered(2)])
    store.forget(KIND, numbered(1))
    assert tuple(opened) == (numbered(1),)
    assert store.load(KIND) == (numbered(2),)


def test_other_drivers_records_are_related_and_found_apart(store: TuningStore) -> None:
    old, new = (
        cache_record(kernel(), index, 200, capabilities=on_driver(driver))
        for index, driver in enumerate(("1", "2"))
    )
    store.keep(KIND, [old, new, numbered(3)])
    opened = store.open(KIND)
    assert set(opened.related(new.identity)) == {old, new}
    assert opened.find(old.identity) == old
    assert opened.find(new.identity) == new
    assert opened.find(new.identity.on_driver("3")) is None
    assert len(opened) == len(store.load(KIND)) == 3


@pytest.mark.parametrize("order", list(permutations([500, 200, 300])))
def test_the_best_of_several_is_found_and_the_others_files_go(
    store: TuningStore, order: tuple[int, ...]
) -> None:
    for median in order:
        store.keep(KIND, [numbered(1, median)])
    opened = store.open(KIND)
    assert opened.find(numbered(1).identity) == numbered(1, 200)
    assert set(opened.worse) == {file_key(numbered(1, ns)) for ns in (300, 500)}
    assert store.files.keys(f"{KIND}-1") == {file_key(numbered(1, 200))}


# ---------------------------------------------------------------- what is broken

PAYLOAD = unseal(LAUNCH_CODEC.encode([numbered(1, 100)]), KIND, "1")
KEY = file_key(numbered(1, 100))
BROKEN = {
    "no sample": (KEY, PAYLOAD[:-4] + bytes(4), "sample_count"),
    "more behind it": (KEY, PAYLOAD + b"\0", "1 bytes after the last record"),
    "none": (KEY, bytes(4), "no record"),
    "two": (KEY, b"\2" + PAYLOAD[1:] + PAYLOAD[4:], "2 records, a file has one"),
    "another's name": ("0" * 64, PAYLOAD, "named after another record"),
    "cut": (KEY, PAYLOAD[:50], "cut short"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_sealed_and_still_no_record_is_told_and_passed_over(
    store: TuningStore, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Told once; the next best is given instead, and no file is touched by opening."""
    key, payload, words = BROKEN[case]
    put_payload(store, key, payload)
    store.keep(KIND, [numbered(1, 300), numbered(2)])
    with caplog.at_level(logging.WARNING, "accy_async.tuning"):
        for _ in range(2):
            opened = store.open(KIND)
            assert opened.find(numbered(1).identity) == numbered(1, 300)
            assert set(opened) == {numbered(1, 300), numbered(2)}
        assert store.counts() == {KIND: 2}
    (told,) = caplog.messages
    assert key in told
    assert words in told
    assert len(store.files.keys(f"{KIND}-1")) == 3
    assert store.prune() == 1
    assert key not in store.files.keys(f"{KIND}-1")


# ---------------------------------------------------------------- kernels' winners


def test_kernels_are_looked_up_where_they_are_asked_for(
    store: TuningStore, decoded: list[bytes]
) -> None:
    store.keep(KIND, [numbered(number) for number in range(9)])
    cache = LaunchTuningCache(CAPABILITIES)
    cache.look_in(store.open(KIND))
    of = kernel(element_count=4)
    for _ in range(2):
        assert cache.selection(of) == measurement(1, 200)
        assert cache.selection(kernel(element_count=77)) is None
    assert len(decoded) == 1
    assert len(cache) == 9
    assert cache.records == LaunchTuningCache(CAPABILITIES, store.load(KIND)).records
    with pytest.raises(InvalidType, match="look_in"):
        cache.look_in([numbered(1)])  # type: ignore[arg-type]


def test_of_what_is_stored_and_what_is_learnt_the_better_counts(
    store: TuningStore,
) -> None:
    store.keep(KIND, [numbered(1, 200), numbered(2, 200)])
    cache = LaunchTuningCache(CAPABILITIES, [numbered(1, 100), numbered(2, 300)])
    cache.look_in(store.open(KIND))
    found = [cache.selection(kernel(element_count=number)) for number in (1, 2)]
    assert found == [measurement(1, 100), measurement(1, 200)]


def test_what_is_forgotten_is_not_found_in_the_store_again(store: TuningStore) -> None:
    store.keep(KIND, [numbered(1), numbered(2)])
    cache = LaunchTuningCache(CAPABILITIES)
    cache.look_in(store.open(KIND))
    assert cache.forget(kernel(element_count=1))
    assert not cache.forget(kernel(element_count=1))
    assert cache.selection(kernel(element_count=1)) is None
    assert cache.records == (numbered(2),)
    cache.look_in(store.open(KIND))  # it is still there, and was asked for anew
    assert cache.selection(kernel(element_count=1)) is not None
    assert cache.replace_artifact(b"") == 0
    assert len(cache) == 0


def test_a_stored_record_of_another_driver_is_told_of(
    store: TuningStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.keep(KIND, [cache_record(kernel(), 1, 200, capabilities=on_driver("1"))])
    cache = LaunchTuningCache(on_driver("2"))
    cache.look_in(store.open(KIND))
    with caplog.at_level(logging.INFO, "accy_async.tuning"):
        assert cache.selection(kernel()) is None
    assert caplog.messages == [
        "kernel add_0 was tuned on driver '1', this is '2': measure again"
    ]
