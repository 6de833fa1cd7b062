"""Each conformance test runs on every backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.devices import DEVICES, Device
from tests.vulkan import harness

_MARKS = {"cuda": [pytest.mark.gpu], "vulkan": [pytest.mark.vulkan]}


@pytest.fixture(
    params=[pytest.param(name, marks=_MARKS.get(name, [])) for name in sorted(DEVICES)]
)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A fresh backend with its levers; closed, and its threads ended, afterwards."""
    if request.param == "vulkan" and (reason := harness.unavailable()):
        pytest.skip(f"no Vulkan: {reason}")
    device = DEVICES[request.param]()
    yield device
    device.close()
