"""The cache in folders that are not as they should be, and numbers that are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accy_async.artifact.fingerprint import digest
from accy_async.artifact.store import ArtifactStore
from accy_async.errors import InvalidType, InvalidValue

KEY = digest("k")


@pytest.mark.skipif(os.name == "nt", reason="the modes of folders are POSIX's")
def test_every_folder_that_is_made_is_the_owners_alone(tmp_path: Path) -> None:
    """Whatever the process lets others do with its files otherwise."""
    store = ArtifactStore(tmp_path / "shared" / "cache")
    before = os.umask(0)
    try:
        assert store.put("bytes-1", KEY, b"payload")
    finally:
        os.umask(before)
    folders = [store.folder, *(f for f in store.folder.rglob("*") if f.is_dir())]
    assert [f.stat().st_mode & 0o777 for f in folders] == 3 * [0o700]


def test_a_folder_whose_name_no_disk_takes_is_empty(tmp_path: Path) -> None:
    """Nothing is kept there, and nothing raises."""
    store = ArtifactStore(tmp_path / ("long" * 100))
    assert not store.put("bytes-1", KEY, b"payload")
    assert store.get("bytes-1", KEY) is None
    assert store.entries() == ()
    assert store.prune().removed == store.clear().removed == 0
    with pytest.raises(InvalidValue, match="without NUL"):
        ArtifactStore("with\0nul")


def test_what_is_no_file_is_no_entry(tmp_path: Path) -> None:
    """It counts for nothing, and nobody tries to remove it."""
    store = ArtifactStore(tmp_path)
    (tmp_path / "bytes-1" / KEY[:2] / f"{KEY}.sealed").mkdir(parents=True)
    assert store.entries() == ()
    assert store.clear().kept == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_in_place_of_an_entry_is_not_waited_for(tmp_path: Path) -> None:
    """It is as good as none, and is replaced."""
    store = ArtifactStore(tmp_path)
    store.put("bytes-1", KEY, b"payload")
    (entry,) = tmp_path.glob("bytes-1/*/*")
    entry.unlink()
    os.mkfifo(entry)
    assert store.get("bytes-1", KEY) is None
    store.put("bytes-1", KEY, b"payload")
    assert store.get("bytes-1", KEY) == b"payload"


@pytest.mark.parametrize("field", ["max_bytes", "max_age_s"])
def test_limits_that_are_no_numbers(tmp_path: Path, field: str) -> None:
    """Refused before anything is removed."""
    store = ArtifactStore(tmp_path)
    store.put("bytes-1", KEY, b"payload")
    wrong: list[object] = ["1", True, [1]]
    for value in wrong:
        with pytest.raises(InvalidType, match=field):
            store.prune(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match=field):
        store.prune(**{field: -1})
    with pytest.raises(InvalidValue, match="max_age_s"):
        store.prune(max_age_s=float("nan"))
    assert len(store.entries()) == 1
