"""What the tests of kernels on NVIDIA GPUs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gpu import harness


@pytest.fixture(scope="session", autouse=True)
def close_shared_backend() -> Iterator[None]:
    """Close the backend that the kernels' tests share; nothing may be left on it."""
    yield
    if harness.shared_backend.cache_info().currsize:
        backend = harness.shared_backend()
        left = backend.live_objects()
        backend.close()
        assert not any(left.values()), left
