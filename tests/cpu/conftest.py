"""The CPU backend with the levers of the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.devices import CpuDevice


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    """A backend with as many workers as there are cores, two at least."""
    device = CpuDevice(workers=None)
    yield device
    device.close()


@pytest.fixture
def one_worker() -> Iterator[CpuDevice]:
    """A backend that runs the blocks of one split kernel at a time."""
    device = CpuDevice(workers=1)
    yield device
    device.close()
