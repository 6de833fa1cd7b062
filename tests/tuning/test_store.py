"""Records on disk: many writers lose none, damage is a miss, the best one stays."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import attrs
import pytest

from accy_async.artifact.sealed import seal
from accy_async.artifact.store import CACHE_FOLDER_VARIABLE, ArtifactStore
from accy_async.errors import InvalidArtifact, InvalidType, InvalidValue
from accy_async.tuning.launches import LaunchTuningCacheRecord
from accy_async.tuning.records import encode_family_tuning_artifact
from accy_async.tuning.store import (
    CODECS,
    TuningStore,
    codec_of_artifact,
    default_tuning_store,
)
from tests.tuning.samples import cache_record, kernel
from tests.tuning.test_records import FAMILY_RECORD, RECORD

KIND = "launch_tuning"


@pytest.fixture
def store(tmp_path: Path) -> TuningStore:
    return TuningStore(ArtifactStore(tmp_path))


def numbered(number: int, median_ns: int = 200) -> LaunchTuningCacheRecord:
    """A record of its own for every number."""
    return cache_record(kernel(element_count=number), 1, median_ns)


def files(store: TuningStore) -> list[Path]:
    return sorted(store.folder.glob("*/??/*.sealed"))


def test_every_kind_comes_back(store: TuningStore) -> None:
    launches = [numbered(number) for number in range(20)]
    assert store.keep(KIND, launches) == 20
    store.keep("family_tuning", [FAMILY_RECORD])
    store.keep("matrix_product_schedule_tuning", [RECORD])
    again = TuningStore(ArtifactStore(store.folder))
    assert set(again.load(KIND)) == set(launches)
    assert again.load("family_tuning") == (FAMILY_RECORD,)
    assert again.load("matrix_product_schedule_tuning") == (RECORD,)
    assert again.counts() == {
        KIND: 20,
        "family_tuning": 1,
        "matrix_product_schedule_tuning": 1,
    }


def test_the_best_stays_and_the_others_files_go(store: TuningStore) -> None:
    for median in (500, 200, 300):
        store.keep(KIND, [numbered(1, median)])
    store.keep(KIND, [numbered(2, 900)])
    assert set(store.load(KIND)) == {numbered(1, 200), numbered(2, 900)}
    assert len(files(store)) == 2


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_damaged_files_are_a_miss_and_are_pruned(
    store: TuningStore, damage: str
) -> None:
    """C26: cut or changed anywhere, a file costs its own record and no exception."""
    store.keep(KIND, [numbered(number) for number in range(5)])
    victim = files(store)[2]
    whole = victim.read_bytes()
    for place in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        victim.write_bytes(
            {"cut": whole[:place], "changed": bytes(changed), "empty": b""}[damage]
        )
        assert len(store.load(KIND)) == 4
    assert store.prune() == 1
    assert len(files(store)) == 4
    assert store.prune() == 0


def test_an_artifact_is_exported_and_taken_in_elsewhere(
    store: TuningStore, tmp_path: Path
) -> None:
    store.keep(KIND, [numbered(1), numbered(2)])
    other = TuningStore(ArtifactStore(tmp_path / "other"))
    assert other.import_artifact(store.export(KIND)) == (KIND, 2)
    assert set(other.load(KIND)) == set(store.load(KIND))
    assert (
        codec_of_artifact(encode_family_tuning_artifact([]))
        is (CODECS["family_tuning"])
    )


def test_what_cannot_be_read_is_refused_and_changes_nothing(
    store: TuningStore,
) -> None:
    store.keep(KIND, [numbered(1)])
    artifact = store.export(KIND)
    for wrong, words in (
        (b"", "no tuning artifact: cut short"),
        (b"junk", "no tuning artifact: cut short"),
        (bytes(100), "no tuning artifact: no sealed record"),
        (seal("other", "3", b""), "no tuning artifact: this is other of version 3$"),
        (artifact[:-1], f"^{KIND}: "),
        (artifact + b"\0", f"^{KIND}: "),
        (seal(KIND, "1", b"\1\0\0\0"), f"^{KIND}: 1 records in 0 bytes"),
        (seal(KIND, "9", b""), f"^{KIND}: this is {KIND} of version 9, {KIND} of"),
    ):
        with pytest.raises(InvalidArtifact, match=words):
            store.import_artifact(wrong)
    with pytest.raises(InvalidValue, match="kind"):
        store.load("nothing")
    with pytest.raises(InvalidType):
        store.keep("family_tuning", [numbered(1)])
    assert len(files(store)) == 1


def test_a_winner_that_fails_is_forgotten_on_disk_too(store: TuningStore) -> None:
    """C28: a kept choice that cannot be launched is dropped, and only that."""
    store.keep(KIND, [numbered(1), numbered(2)])
    assert store.forget(KIND, numbered(1))
    assert not store.forget(KIND, numbered(1))
    assert store.load(KIND) == (numbered(2),)


def test_clearing_removes_one_kind_or_all(store: TuningStore) -> None:
    store.keep(KIND, [numbered(1), numbered(2)])
    store.keep("family_tuning", [FAMILY_RECORD])
    assert store.clear(KIND) == 2
    assert store.counts() == {"family_tuning": 1}
    assert store.clear() == 1
    assert files(store) == []


def test_the_users_own_store_is_beside_the_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, str(tmp_path))
    store = default_tuning_store()
    assert store is not None
    store.keep(KIND, [numbered(1)])
    code = ArtifactStore(tmp_path)
    code.clear()
    assert len(store.load(KIND)) == 1
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, "")
    assert default_tuning_store() is None


def test_a_folder_that_takes_no_files_costs_the_records_and_nothing_else(
    tmp_path: Path,
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder would be")
    store = TuningStore(ArtifactStore(blocked))
    assert store.keep(KIND, [numbered(1)]) == 0
    assert store.load(KIND) == ()


WRITER = """
import multiprocessing, sys, time
from pathlib import Path
from accy_async.artifact.store import ArtifactStore
from accy_async.tuning.store import TuningStore
from tests.tuning.test_store import KIND, numbered

def write(me, folder, ends):
    store, number = TuningStore(ArtifactStore(Path(folder))), 0
    while not number or time.monotonic() < ends:
        # One that only this process writes, and one that all write, each better.
        store.keep(KIND, [numbered(10_000_000 * me + number)])
        store.keep(KIND, [numbered(999_999, 10**6 - 10 * number - me)])
        print(f"{me}\\n", end="", flush=True)
        number += 1

folder, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ends = time.monotonic() + float(sys.argv[4])
# Imported once for all of them, which then write at the same time.
context = multiprocessing.get_context("fork")
writers = [
    context.Process(target=write, args=(me, folder, ends)) for me in range(first, last)
]
for writer in writers[1:]:
    writer.start()
write(first, folder, ends)
for writer in writers[1:]:
    writer.join()
    assert writer.exitcode == 0
"""

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def write(folder: Path, writers: range, seconds: float) -> subprocess.Popen[str]:
    """Start processes that write for a while; each prints its number at each record."""
    first, last = str(writers.start), str(writers.stop)
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), first, last, str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


@needs_fork
def test_eight_writers_lose_no_record(store: TuningStore) -> None:
    together = write(store.folder, range(1, 9), 1.0)
    out, _ = together.communicate(timeout=60)
    assert together.returncode == 0
    counts = Counter(int(line) for line in out.split())
    assert set(counts) == set(range(1, 9))
    kept = {record.key.element_count: record for record in store.load(KIND)}
    expected = {
        10_000_000 * me + number
        for me, count in counts.items()
        for number in range(count)
    }
    assert set(kept) == expected | {999_999}
    best = min(10**6 - 10 * (count - 1) - me for me, count in counts.items())
    assert kept[999_999].selection.median_ns == best


@needs_fork
def test_killed_writers_leave_a_store_that_loads(store: TuningStore) -> None:
    """C26: a kill in the midst of a write leaves whole files only."""
    random_source = random.Random(5)
    writers = [write(store.folder, range(me, me + 1), 60.0) for me in range(1, 4)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()  # it writes
        for writer in writers:
            time.sleep(random_source.random() / 10)
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait(timeout=60)
            for record in store.load(KIND):
                assert record == attrs.evolve(record)
        assert store.keep(KIND, [numbered(7)]) == 1
        assert numbered(7) in store.load(KIND)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait(timeout=60)
            assert writer.stdout is not None
            writer.stdout.close()
