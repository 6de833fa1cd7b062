"""``accy-async tune``: records are shown, exported, taken in and pruned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accy_async.artifact.sealed import seal
from accy_async.artifact.store import CACHE_FOLDER_VARIABLE
from accy_async.cli.exits import ExitCode
from accy_async.dtypes import DType
from accy_async.tuning.records import (
    FamilyTuningKey,
    FamilyTuningRecord,
    ScheduleTuningKey,
    ScheduleTuningRecord,
)
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
    assert list(tmp_path.glob(".*")) == []


def test_show_tells_of_schedules_and_families_too(run: Run, store: TuningStore) -> None:
    schedule = ScheduleTuningRecord(
        key=ScheduleTuningKey(
            device=7,
            family="matrix_product",
            format="cuda_ptx",
            extents=(64, 32, 16, 1),
            dtypes=(DType.F32, DType.F32, DType.F32),
            version=1,
            candidates=5,
        ),
        choice=(16, 8),
        winner_median_ns=900,
        runner_up_median_ns=1000,
        sample_count=12,
    )
    family = FamilyTuningRecord(
        key=FamilyTuningKey(
            device=7, format="cuda_ptx", family="products", version=1, problem="[4]"
        ),
        target="products.fast",
        winner_median_ns=800,
    )
    store.keep("matrix_product_schedule_tuning", [schedule])
    store.keep("family_tuning", [family])
    document = run("tune", "show", "--json").document
    (row,), (other,) = document["schedules"], document["families"]
    assert (row["family"], row["choice"], row["extents"]) == (
        "matrix_product",
        [16, 8],
        [64, 32, 16, 1],
    )
    assert (row["median_ns"], row["runner_up_median_ns"]) == (900, 1000)
    assert (other["target"], other["problem"]) == ("products.fast", "[4]")
    assert len(document["launches"]) == 3
    text = run("tune", "show").out
    assert "matrix_product of 64 x 32 x 16 x 1: 16 x 8, 900 ns in 12 samples" in text
    assert "products for [4]: products.fast, 800 ns in 1 samples" in text


def test_export_writes_through_what_is_no_file(
    run: Run, store: TuningStore, tmp_path: Path
) -> None:
    """A device stays one, and a link."""
    assert run("tune", "export", os.devnull).code == 0
    assert not Path(os.devnull).is_file()
    file, link = tmp_path / "records", tmp_path / "link"
    file.write_bytes(b"old")
    link.symlink_to(file)
    assert run("tune", "export", link).code == 0
    assert link.is_symlink()
    assert file.read_bytes() == store.export(KIND)


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
