from __future__ import annotations

import pytest

from accy_async.artifact.native import host_architecture


@pytest.fixture
def host() -> str:
    """The architecture of this machine, which must be one kernels run on."""
    architecture = host_architecture()
    if architecture not in ("x86_64", "aarch64"):
        pytest.skip(f"native kernels do not run on {architecture}")
    return architecture
