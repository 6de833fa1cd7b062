"""``accy-async tune``: records are shown, exported, taken in and pruned."""

from __future__ import annotations

from pathlib import Path

import pytest

from accy_async.artifact.sealed import seal
from accy_async.artifact.store import CACHE_FOLDER_VARIABLE
from accy_async.cli.exits import ExitCode
from accy_async.tuning.store import TuningStore, default_tuning_store
from tests.cli.conftest import Run
from tests.tuning.test_store import KIND, files, numbered


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuningStore:
    """The user's records: three, of launches."""
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, str(tmp_path / "cache"))
    store = default_tuning_store()
    assert store is not None
    store.keep(KIND, [numbered(number, 100 * number) for number in (1, 2, 3)])
    return store


def test_show_tells_what_won(run: Run, store: TuningStore) -> None:
    document = run("tune", "show", "--json").document
    assert document["folder"] == str(store.folder)
    assert document["records"] == {KIND: 3}
    assert {row["median_ns"] for row in document["launches"]} == {100, 200, 300}
    assert all(row["candidate"] == 1 for row in document["launches"])
    text = run("tune", "show").out
    assert f"{store.folder}: 3 records" in text
    assert "candidate 1 of 3, 200 ns in 8 samples" in text


def test_export_and_import_hand_records_on(
    run: Run, store: TuningStore, tmp_path: Path
) -> None:
    file, other = tmp_path / "records", tmp_path / "other"
    ended = run("tune", "export", file, "--json")
    assert ended.code == 0
    assert ended.document == {"file": str(file), "kind": KIND, "records": 3}
    assert "3 records" in run("tune", "export", file).out
    assert "took in 3 records" in run("tune", "import", file, "--folder", other).out
    assert run("tune", "import", file, "--folder", other, "--json").document == {
        "file": str(file),
        "kind": KIND,
        "records": 3,
    }
    shown = run("tune", "show", "--folder", other, "--json").document
    assert shown["records"] == {KIND: 3}
    assert list(tmp_path.glob(".new-*")) == []


def test_what_is_no_artifact_is_refused_in_one_line(
    run: Run, store: TuningStore, tmp_path: Path
) -> None:
    file = tmp_path / "records"
    for wrong in (b"junk", seal(KIND, "2", b"")):
        file.write_bytes(wrong)
        ended = run("tune", "import", file)
        assert ended.code == ExitCode.USAGE
        assert str(file) in ended.err
    assert "version 2" in ended.err
    assert run("tune", "import", tmp_path / "none").code == ExitCode.USAGE
    assert run("tune", "export", tmp_path / "no" / "file").code == ExitCode.USAGE
    assert run("tune", "export", file, "--kind", "x").code == ExitCode.USAGE
    assert len(files(store)) == 3


def test_prune_removes_what_is_damaged_or_all(run: Run, store: TuningStore) -> None:
    files(store)[0].write_bytes(b"damaged")
    ended = run("tune", "prune", "--json")
    assert ended.document == {"removed": 1, "records": {KIND: 2}}
    assert "removed 0 files, left 2 records" in run("tune", "prune").out
    assert run("tune", "prune", "--kind", "x").code == ExitCode.USAGE
    assert "removed 2 files" in run("tune", "prune", "--everything").out
    assert files(store) == []


def test_no_cache_at_all_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, "")
    ended = run("tune", "show")
    assert ended.code == ExitCode.USAGE
    assert CACHE_FOLDER_VARIABLE in ended.err
