"""What the tests on Vulkan devices share: they are skipped, saying why, without."""

from __future__ import annotations

import pytest

from tests.vulkan import harness


@pytest.fixture(scope="session", autouse=True)
def needs_a_device(request: pytest.FixtureRequest) -> None:
    reason = harness.unavailable()
    if reason:
        pytest.skip(f"no Vulkan: {reason}")
    request.getfixturevalue("kept_vulkan_devices")
