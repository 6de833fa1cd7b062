"""What the tests of CUDA C++ share: a cache of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from accy_async.artifact.store import CACHE_FOLDER_VARIABLE, ArtifactStore


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    """The user's cache, empty."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, str(folder))
    return ArtifactStore(folder)
