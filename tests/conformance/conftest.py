"""Each conformance test runs on every backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.devices import DEVICES, Device


@pytest.fixture(params=sorted(DEVICES))
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A fresh backend with its levers; closed, and its threads ended, afterwards."""
    device = DEVICES[request.param]()
    yield device
    device.close()
