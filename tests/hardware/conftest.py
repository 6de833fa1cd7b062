"""Tests are given a kind of device as ``hardware``, and run on each that is here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accy_async.backends import Backend
from accy_async.backends.guards import Guard
from accy_async.backends.hooks import StreamState
from accy_async.backends.launch import LaunchRequest, PreparedLaunch
from tests.hardware.kinds import CUDA, VULKAN, Hardware, on


@pytest.fixture
def anyio_backend() -> str:
    """One loop, unless a test asks for both: these are about the device."""
    return "asyncio"


@pytest.fixture(params=on(CUDA, VULKAN))
def hardware(request: pytest.FixtureRequest) -> Hardware:
    """A kind of device."""
    kind: Hardware = request.param
    if reason := kind.missing():
        pytest.skip(reason)
    if kind is VULKAN:
        request.getfixturevalue("kept_vulkan_devices")
    return kind


@pytest.fixture
def backend(hardware: Hardware) -> Iterator[Backend]:
    """One of that kind, on which nothing may be left."""
    backend = hardware.open()
    yield backend
    hardware.close(backend)


@pytest.fixture
def launches(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> list[LaunchRequest]:
    """What is launched on it."""
    found: list[LaunchRequest] = []
    launch = backend._launch

    def noted(
        stream: StreamState,
        position: int,
        prepared: PreparedLaunch,
        guard: Guard | None,
    ) -> None:
        found.append(prepared.request)
        launch(stream, position, prepared, guard)

    monkeypatch.setattr(backend, "_launch", noted)
    return found
