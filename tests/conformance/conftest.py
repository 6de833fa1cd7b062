"""Each conformance test runs on every backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.devices import DEVICES, Device
from tests.vulkan import harness

_MARKS = {"cuda": [pytest.mark.gpu], "vulkan": [pytest.mark.vulkan]}


def _named(*names: str) -> list[object]:
    return [pytest.param(name, marks=_MARKS.get(name, [])) for name in names]


def _opened(name: str) -> Iterator[Device]:
    if name == "vulkan" and (reason := harness.unavailable()):
        pytest.skip(f"no Vulkan: {reason}")
    device = DEVICES[name]()
    yield device
    device.close()


@pytest.fixture(params=_named(*sorted(DEVICES)))
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A fresh backend with its levers; closed, and its threads ended, afterwards."""
    yield from _opened(request.param)


@pytest.fixture(params=_named("cuda", "vulkan"))
def graphs(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The same, of those that have device graphs and run them."""
    yield from _opened(request.param)
