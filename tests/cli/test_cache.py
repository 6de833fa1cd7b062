"""``accy-async cache``: what is kept on disk is shown, pruned and cleared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accy_async.artifact import ArtifactStore, digest
from accy_async.artifact.store import CACHE_FOLDER_VARIABLE
from accy_async.cli.exits import ExitCode
from tests.cli.conftest import Run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    """The user's cache, with four entries of two schemas; two are old."""
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, str(tmp_path))
    store = ArtifactStore(tmp_path)
    for number in range(4):
        schema = "cubin-1" if number % 2 else "fragment-3"
        store.put(schema, digest(number), bytes(2**20))
    for file in tmp_path.glob("fragment-3/*/*"):
        os.utime(file, (0, 0))
    return store


def test_show_counts_by_schema(run: Run, store: ArtifactStore) -> None:
    ended = run("cache", "show", "--json")
    assert ended.code == 0
    document = ended.document
    assert document["folder"] == str(store.folder)
    assert document["limit_bytes"] == store.max_bytes
    assert set(document["schemas"]) == {"cubin-1", "fragment-3"}
    assert document["schemas"]["cubin-1"]["entries"] == 2
    assert document["bytes"] == sum(entry.byte_size for entry in store.entries())
    text = run("cache", "show").out
    assert str(store.folder) in text
    assert "cubin-1: 2 entries, 2.0 MiB" in text


def test_prune_by_size_and_by_age(run: Run, store: ArtifactStore) -> None:
    ended = run("cache", "prune", "--max-mib", "3.5", "--json")
    assert ended.code == 0
    assert (ended.document["removed"], ended.document["kept"]) == (1, 3)
    ended = run("cache", "prune", "--unused-days", "1")
    assert ended.out.startswith("removed 1 entry (1.0 MiB), left 2 entries")
    assert {entry.schema for entry in store.entries()} == {"cubin-1"}


def test_clear_removes_everything(run: Run, store: ArtifactStore) -> None:
    assert "removed 4 entries" in run("cache", "clear").out
    assert store.entries() == ()
    assert run("cache", "clear", "--json").document["removed"] == 0


def test_another_folder_can_be_named(
    run: Run, store: ArtifactStore, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    assert run("cache", "show", "--folder", other, "--json").document["bytes"] == 0
    assert len(store.entries()) == 4


def test_no_cache_at_all_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, "")
    ended = run("cache", "show")
    assert ended.code == ExitCode.USAGE
    assert CACHE_FOLDER_VARIABLE in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("frob",),
        ("prune", "--max-mib", "-1"),
        ("prune", "--max-mib", "inf"),
        ("show", "--frob"),
    ],
)
def test_what_is_not_understood_is_one_line(
    run: Run, arguments: tuple[str, ...]
) -> None:
    ended = run("cache", *arguments)
    assert ended.code == ExitCode.USAGE
    assert "accy-async cache --help says more" in ended.err
    assert ended.out == ""


def test_help_names_the_three(run: Run) -> None:
    ended = run("cache", "--help")
    assert ended.code == 0
    for name in ("show", "prune", "clear"):
        assert name in ended.out
    assert "cache" in run("--help").out
