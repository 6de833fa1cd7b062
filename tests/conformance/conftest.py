"""Each conformance test runs on every backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.devices import DEVICES, Device
from tests.vulkan import harness

_MARKS = {"cuda": [pytest.mark.gpu], "vulkan": [pytest.mark.vulkan]}


def _named(*names: str) -> list[object]:
    return [pytest.param(name, marks=_MARKS.get(name, [])) for name in names]


def _opened(request: pytest.FixtureRequest) -> Iterator[Device]:
    name: str = request.param
    if name == "vulkan":
        if reason := harness.unavailable():
            pytest.skip(f"no Vulkan: {reason}")
        request.getfixturevalue("kept_vulkan_devices")
    device = DEVICES[name]()
    yield device
    device.close()


@pytest.fixture(params=_named(*sorted(DEVICES)))
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A fresh backend with its levers; closed, and its threads ended, afterwards."""
    yield from _opened(request)


@pytest.fixture(params=_named("cuda", "vulkan"))
def graphs(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The same, of those that have device graphs and run them."""
    yield from _opened(request)
