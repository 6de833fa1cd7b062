"""Other libraries with a GPU, where they are installed."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")
