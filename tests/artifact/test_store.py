"""The cache on disk: whole entries or none, from any number of processes."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accy_async.artifact.fingerprint import digest
from accy_async.artifact.store import (
    CACHE_FOLDER_VARIABLE,
    ArtifactStore,
    default_store,
)
from accy_async.errors import InvalidType, InvalidValue

SCHEMA = "bytes-1"


def path_of(store: ArtifactStore, key: str, schema: str = SCHEMA) -> Path:
    return store.folder / schema / key[:2] / f"{key}.sealed"


def put_all(store: ArtifactStore, count: int, size: int = 1000) -> list[str]:
    """Entries used one after the other, by their files' times."""
    keys = [digest(number) for number in range(count)]
    for number, key in enumerate(keys):
        assert store.put(SCHEMA, key, bytes([number]) * size)
        os.utime(path_of(store, key), (number, number))
    return keys


def test_entry_is_found_by_another_store_and_under_its_schema_only(
    tmp_path: Path,
) -> None:
    key = digest("k")
    assert ArtifactStore(tmp_path).put(SCHEMA, key, b"payload")
    store = ArtifactStore(tmp_path)
    assert store.get(SCHEMA, key) == b"payload"
    assert store.get("bytes-2", key) is None
    assert store.get(SCHEMA, digest("other")) is None
    assert store.put(SCHEMA, key, b"changed")
    assert store.get(SCHEMA, key) == b"changed"
    assert store.remove(SCHEMA, key)
    assert not store.remove(SCHEMA, key)
    assert store.get(SCHEMA, key) is None


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "longer", "folder"])
def test_damaged_entry_is_a_miss_with_one_warning_and_is_replaced(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, key = ArtifactStore(tmp_path), digest("k")
    store.put(SCHEMA, key, b"payload")
    path = path_of(store, key)
    record = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(
            {
                "cut": record[:-1],
                "flip": bytes([*record[:-1], record[-1] ^ 1]),
                "empty": b"",
                "longer": record + b"\0",
            }[damage]
        )
    with caplog.at_level(logging.WARNING):
        assert store.get(SCHEMA, key) is None
        assert store.get(SCHEMA, key) is None
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]
    if damage == "folder":
        path.rmdir()
    assert store.put(SCHEMA, key, b"payload")
    assert store.get(SCHEMA, key) == b"payload"


def test_every_truncation_and_bit_flip_of_a_file_is_a_miss(tmp_path: Path) -> None:
    store, key = ArtifactStore(tmp_path), digest("k")
    store.put(SCHEMA, key, b"small")
    path = path_of(store, key)
    record = path.read_bytes()
    damaged = [record[:length] for length in range(len(record))]
    for bit in range(8 * len(record)):
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(changed))
    for given in damaged:
        path.write_bytes(given)
        assert store.get(SCHEMA, key) is None
    path.write_bytes(record)
    assert store.get(SCHEMA, key) == b"small"


@pytest.mark.parametrize("at_once", [1, 5, 64])
def test_all_of_a_schema_is_read_at_once_but_for_what_is_damaged(
    tmp_path: Path,
    at_once: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one by one, however many are open together; other files are not told of."""
    monkeypatch.setattr("accy_async.artifact.store._AT_ONCE", at_once)
    store = ArtifactStore(tmp_path)
    keys = put_all(store, 12)
    store.put("other-1", digest("other"), b"other")
    damaged = path_of(store, keys[3])
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for name in ("notes.txt", ".new-part", "AB.sealed"):
        damaged.with_name(name).write_text("none of ours")
    (tmp_path / SCHEMA / "notes.txt").write_text("none of ours")
    with caplog.at_level(logging.WARNING):
        found = dict(store.items(SCHEMA))
    whole = [key for key in keys if key != keys[3]]
    assert found == {key: store.get(SCHEMA, key) for key in whole}
    assert [str(damaged) in told for told in caplog.messages] == [True]
    assert store.keys(SCHEMA) == set(keys)
    assert dict(store.items("nothing-1")) == {}
    assert store.keys("nothing-1") == frozenset()
    for ask in (store.keys, lambda schema: dict(store.items(schema))):
        with pytest.raises(InvalidValue, match="schema"):
            ask("../other-1")


def test_a_process_that_may_open_few_files_reads_a_schema_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be opened ahead is opened at its turn; each file is closed again."""
    store = ArtifactStore(tmp_path)
    keys = put_all(store, 9)
    opened: set[int] = set()
    open_file, close_file = os.open, os.close

    def open_one(path: str, flags: int) -> int:
        if len(opened) == 3:
            raise OSError(errno.EMFILE, "Too many open files", path)
        descriptor = open_file(path, flags)
        opened.add(descriptor)
        return descriptor

    def close_one(descriptor: int) -> None:
        opened.remove(descriptor)
        close_file(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_one)
        patched.setattr(os, "close", close_one)
        found = dict(store.items(SCHEMA))
    assert found.keys() == set(keys)
    assert opened == set()
    assert not caplog.records


def test_what_goes_while_a_schema_is_read_is_none_of_it(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An entry that another process removed after it was listed is not told of."""
    monkeypatch.setattr("accy_async.artifact.store._AT_ONCE", 1)
    store = ArtifactStore(tmp_path)
    keys = put_all(store, 3)
    found = []
    for key, _ in store.items(SCHEMA):
        found.append(key)
        for other in keys:
            ArtifactStore(tmp_path).remove(SCHEMA, other)
    assert len(found) == 1
    assert not caplog.records


def test_reading_all_of_a_schema_counts_as_use_to_within_the_hour(
    tmp_path: Path,
) -> None:
    store = ArtifactStore(tmp_path)
    old, recent = put_all(store, 2)
    lately = time.time() - 1800
    os.utime(path_of(store, recent), (lately, lately))
    assert len(dict(store.items(SCHEMA))) == 2
    assert path_of(store, recent).stat().st_mtime == pytest.approx(lately)
    assert path_of(store, old).stat().st_mtime > lately
    store.get(SCHEMA, recent)
    assert path_of(store, recent).stat().st_mtime > lately + 1000


def test_size_is_bounded_and_what_was_used_longest_ago_goes_first(
    tmp_path: Path,
) -> None:
    store = ArtifactStore(tmp_path)
    keys = put_all(store, 10)
    assert store.get(SCHEMA, keys[0]) is not None  # now the one used last
    size = store.entries()[0].byte_size
    small = ArtifactStore(tmp_path, max_bytes=5 * size)
    assert small.put(SCHEMA, digest("new"), bytes(1000))
    left = {entry.key for entry in small.entries()}
    assert left == {keys[8], keys[9], keys[0], digest("new")}  # nine tenths of it
    assert sum(entry.byte_size for entry in small.entries()) <= 5 * size


def test_entry_larger_than_the_store_is_not_kept(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path, max_bytes=1000)
    assert not store.put(SCHEMA, digest("k"), bytes(1000))
    assert store.entries() == ()


def test_prune_by_size_and_age_reports_what_it_did(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    keys = put_all(store, 6)
    size = store.entries()[0].byte_size
    report = store.prune(4 * size)
    assert (report.removed, report.kept) == (2, 4)
    assert (report.removed_bytes, report.kept_bytes) == (2 * size, 4 * size)
    assert store.get(SCHEMA, keys[5]) is not None
    report = store.prune(max_age_s=3600)
    assert (report.removed, report.kept) == (3, 1)
    assert [entry.key for entry in store.entries()] == [keys[5]]
    assert store.prune() == store.prune()


def test_clear_leaves_files_that_are_not_the_stores(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    put_all(store, 3)
    others = [
        tmp_path / "notes.txt",
        tmp_path / SCHEMA / "00" / "notes.txt",
        tmp_path / SCHEMA / "00" / "notes.sealed",
    ]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_text("mine")
    assert store.clear().removed == 3
    assert store.entries() == ()
    assert all(other.exists() for other in others)


def test_what_killed_writers_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    [key] = put_all(store, 1)
    old, new = (path_of(store, key).with_name(f".new-{age}") for age in ("old", "new"))
    old.write_bytes(b"part")
    new.write_bytes(b"part")
    os.utime(old, (0, 0))
    store.prune()
    assert not old.exists()
    assert new.exists()
    assert store.get(SCHEMA, key) is not None


def test_folder_that_cannot_be_written_costs_the_entry_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("no folder")
    store, key = ArtifactStore(blocker / "cache"), digest("k")
    with caplog.at_level(logging.WARNING):
        assert not store.put(SCHEMA, key, b"payload")
        assert not store.put(SCHEMA, key, b"payload")
    assert len(caplog.records) == 1
    assert store.get(SCHEMA, key) is None
    assert store.clear().removed == 0


@pytest.mark.parametrize("name", ["", "..", "a/b", "UPPER", "a-b", "1", "a\0"])
def test_names_that_would_leave_the_folder_are_refused(
    tmp_path: Path, name: str
) -> None:
    store = ArtifactStore(tmp_path)
    with pytest.raises(InvalidValue):
        store.get(name, digest("k"))
    with pytest.raises(InvalidValue):
        store.put(SCHEMA, name, b"")


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidType):
        ArtifactStore(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidType):
        ArtifactStore(tmp_path, max_bytes=True)
    with pytest.raises(InvalidValue):
        ArtifactStore(tmp_path, max_bytes=-1)
    with pytest.raises(InvalidType):
        ArtifactStore(tmp_path).put(SCHEMA, digest("k"), "text")  # type: ignore[arg-type]


def test_variable_names_the_folder_or_turns_the_cache_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, str(tmp_path))
    store = default_store()
    assert store is not None
    assert store.folder == tmp_path
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, "")
    assert default_store() is None
    monkeypatch.delenv(CACHE_FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    store = default_store()
    assert store is not None
    assert "accy_async" in str(store.folder)


# A process that writes and reads for some seconds; it prints how many it wrote.
_WORKER = """
import sys, time
from accy_async.artifact import ArtifactStore, digest
folder, worker, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
store = ArtifactStore(folder)
until = time.monotonic() + seconds
count = 0
while time.monotonic() < until:
    own, shared = digest((worker, count)), digest(("shared", count % 50))
    assert store.put("bytes-1", own, repr((worker, count)).encode() * 50)
    assert store.put("bytes-1", shared, repr(count % 50).encode() * 500)
    found = store.get("bytes-1", shared)
    assert found == repr(count % 50).encode() * 500, (worker, count, found)
    if count % 97 == 0:
        store.prune()
    count += 1
print(count)
"""


def _start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WORKER, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    workers = [_start(tmp_path, worker, 0.5) for worker in range(8)]
    counts = []
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert worker.returncode == 0, err
        assert err == ""
        counts.append(int(out))
    assert min(counts) > 0
    store = ArtifactStore(tmp_path)
    for writer, count in enumerate(counts):
        for number in range(count):
            payload = store.get(SCHEMA, digest((writer, number)))
            assert payload == repr((writer, number)).encode() * 50
    assert not list(tmp_path.glob("*/*/.new-*"))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_writer_that_is_killed_leaves_whole_entries_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10):
        writer = _start(tmp_path, number, 60)
        while not list(tmp_path.glob("bytes-1/*/*.sealed")):
            assert writer.poll() is None
            time.sleep(0.01)
        time.sleep(0.02 * number)
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=60)
    store = ArtifactStore(tmp_path)
    entries = store.entries()
    assert entries
    for entry in entries:
        assert store.get(entry.schema, entry.key) is not None
    assert not caplog.records
