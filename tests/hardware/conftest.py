"""Tests are given a kind of device as ``hardware``, and run on each that is here."""

from __future__ import annotations

import pytest

from tests.hardware.kinds import CUDA, VULKAN, Hardware, on


@pytest.fixture(params=on(CUDA, VULKAN))
def hardware(request: pytest.FixtureRequest) -> Hardware:
    """A kind of device."""
    kind: Hardware = request.param
    if reason := kind.missing():
        pytest.skip(reason)
    return kind
