"""Memory on a Vulkan device: blocks, limits, what is kept and what is given back."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pytest

from accy_async.backends.vulkan import VulkanBackend
from accy_async.errors import OutOfMemory
from tests.vulkan import harness

pytestmark = [pytest.mark.vulkan, pytest.mark.anyio]

MIB = 1 << 20


@pytest.fixture
def backend() -> Iterator[VulkanBackend]:
    backend = VulkanBackend(
        memory_limit_bytes=256 * MIB, validation=harness.has_validation()
    )
    yield backend
    backend.close()
    assert backend.validation_messages == ()


def test_small_buffers_share_an_allocation(backend: VulkanBackend) -> None:
    before = backend.memory_statistics()["allocations"]
    buffers = [backend.allocate_buffer(1000) for _ in range(500)]
    found = backend.memory_statistics()
    assert found["allocations"] == before + 1
    assert found["used_bytes"] == 500_000
    for buffer in buffers:
        backend.destroy(buffer)
    assert backend.memory_statistics()["used_bytes"] == 0


def test_large_buffers_have_their_own_and_give_it_back(backend: VulkanBackend) -> None:
    before = backend.memory_statistics()
    buffer = backend.allocate_buffer(100 * MIB)
    assert backend.memory_statistics()["reserved_bytes"] == 100 * MIB
    backend.destroy(buffer)
    assert backend.memory_statistics() == before


def test_trim_gives_back_what_nothing_is_in(backend: VulkanBackend) -> None:
    backend.destroy(backend.allocate_buffer(10))
    assert backend.memory_statistics()["reserved_bytes"] > 0
    backend.trim()
    assert backend.memory_statistics()["reserved_bytes"] == 0


def test_limit_is_kept_and_named(backend: VulkanBackend) -> None:
    buffer = backend.allocate_buffer(200 * MIB)
    with pytest.raises(OutOfMemory, match=f"of at most {256 * MIB}") as caught:
        backend.allocate_buffer(100 * MIB)
    assert caught.value.requested_bytes == 100 * MIB
    backend.destroy(buffer)
    backend.destroy(backend.allocate_buffer(100 * MIB))


def test_more_than_the_device_allocates_at_once_is_refused(
    backend: VulkanBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    least = attrs.evolve(backend._device.limits, max_allocation_bytes=64 * MIB)
    monkeypatch.setattr(backend._device, "limits", least)
    words = f"maxMemoryAllocationSize is {64 * MIB}"
    with pytest.raises(OutOfMemory, match=words) as caught:
        backend.allocate_buffer(65 * MIB)
    assert caught.value.requested_bytes == 65 * MIB
    backend.destroy(backend.allocate_buffer(MIB))


@pytest.mark.parametrize("alignment", [1, 256, 4096, 65536])
def test_alignment_is_kept(backend: VulkanBackend, alignment: int) -> None:
    for size in (1, 300, 5000):
        buffer = backend.allocate_buffer(size, alignment=alignment)
        memory = backend._table.get(buffer).payload
        assert memory.offset % alignment == 0  # type: ignore[attr-defined]


async def test_staging_is_used_again(backend: VulkanBackend) -> None:
    buffer = backend.allocate_buffer(MIB)
    data, out = np.ones(MIB, np.uint8), np.zeros(MIB, np.uint8)
    for _ in range(200):
        backend.write_buffer(buffer, data)
        backend.read_buffer(buffer, out)
        await backend.wait_default_stream()
    found = backend.memory_statistics()
    assert found["staging_reserved_bytes"] <= 128 * MIB
    assert out.all()


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        (pattern, size)
        for pattern in (b"\7", b"\1\2", b"\1\2\3\4", b"12345678")
        for size in (1, 3, 4, 6, 7, 8, 4099 * 8, 65536 * 3 + 8)
        if not size % len(pattern)
    ],
)
async def test_fills_of_every_size(
    backend: VulkanBackend, pattern: bytes, size: int
) -> None:
    buffer = backend.allocate_buffer(size + 8)
    out = np.zeros(size + 8, np.uint8)
    backend.fill_buffer(buffer, b"\xff")
    backend.fill_buffer(buffer, pattern, byte_size=size)
    backend.read_buffer(buffer, out)
    await backend.wait_default_stream()
    assert out.tobytes() == pattern * (size // len(pattern)) + b"\xff" * 8
