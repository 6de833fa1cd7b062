"""What becomes of kernels that are not for this device, and times without a clock."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pytest

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.kernel import ArtifactRequest, KernelArtifact
from accy_async.backends.vulkan.device import VulkanDevice as NativeDevice
from accy_async.backends.vulkan.limits import VulkanLimits
from accy_async.dtypes import ScalarArgument
from accy_async.errors import (
    AccyError,
    CapabilityMismatch,
    InvalidArtifact,
    KernelEntryMissing,
    LaunchArgumentMismatch,
    UnsupportedOperation,
)
from tests.conformance.devices import VulkanDevice
from tests.vulkan import native

pytestmark = [pytest.mark.vulkan, pytest.mark.anyio]


@pytest.fixture
def device() -> Iterator[VulkanDevice]:
    device = VulkanDevice()
    yield device
    device.close()


def artifact(payload: str | bytes, **changes: object) -> KernelArtifact:
    return attrs.evolve(native.artifact("count"), payload=payload, **changes)  # type: ignore[arg-type]


async def test_every_wrong_kernel_has_its_own_error(device: VulkanDevice) -> None:
    """C69: and the device goes on."""
    right = native.artifact("count").payload
    assert isinstance(right, bytes)
    wrong: list[tuple[KernelArtifact, type[AccyError], str]] = [
        (
            artifact(".version 7.0", format=ArtifactFormat.CUDA_PTX),
            UnsupportedOperation,
            "does not load cuda_ptx",
        ),
        (artifact(b"\x7fELF" * 9), InvalidArtifact, "magic number"),
        (artifact(right[: len(right) // 8 * 4]), InvalidArtifact, "SPIR-V: "),
        (artifact(right, kernel_name="other"), KernelEntryMissing, "'count'"),
        (
            artifact(native.artifact("combine").payload, kernel_name="combine"),
            InvalidArtifact,
            "takes 0",
        ),
    ]
    wrong[-1] = (
        attrs.evolve(wrong[-1][0], argument_count=0, scalar_argument_count=0),
        *wrong[-1][1:],
    )
    messages = set()
    for given, error, words in wrong:
        with pytest.raises(error, match=words) as caught:
            device.backend.load_artifact(given)
        messages.add(str(caught.value))
    assert len(messages) == len(wrong)
    with pytest.raises(UnsupportedOperation, match="cuda_ptx is not one of"):
        device.backend.create_artifact(
            ArtifactRequest(
                kernel_name="k",
                requested_format="cuda_ptx",
                argument_count=0,
                payload=".version 7.0",
            )
        )
    buffer = device.write([1])
    device.mix(buffer, 1)
    assert await device.read(buffer) == [32]


async def test_launches_that_are_not_the_modules_are_refused(
    device: VulkanDevice,
) -> None:
    buffer = device.write([1])
    request = device.request("mix", [buffer], [ScalarArgument.u32(1)])
    changes: list[tuple[dict[str, object], type[AccyError], str]] = [
        (
            {"geometry": FixedLaunch(grid=(1, 1, 1), threadgroup=(2, 1, 1))},
            LaunchArgumentMismatch,
            r"threadgroup is \(2, 1, 1\), expected \(1, 1, 1\)",
        ),
        (
            {"scalars": (ScalarArgument.u64(1),)},
            LaunchArgumentMismatch,
            "takes 4 bytes of scalars, the launch gives 8",
        ),
        (
            {
                "geometry": FixedLaunch(
                    grid=(1, 1, 1),
                    threadgroup=(1, 1, 1),
                    dynamic_shared_memory_bytes=64,
                )
            },
            CapabilityMismatch,
            "64 bytes of dynamic shared memory",
        ),
    ]
    for change, error, words in changes:
        with pytest.raises(error, match=words):
            device.backend.launch(attrs.evolve(request, **change))  # type: ignore[arg-type]
    assert await device.read(buffer) == [1]


async def test_buffers_beyond_the_storage_range_are_refused(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    least = attrs.evolve(device.vulkan._device.limits, max_storage_bytes=1024)
    monkeypatch.setattr(device.vulkan._device, "limits", least)
    buffer = device.backend.allocate_buffer(1028)
    with pytest.raises(CapabilityMismatch, match=r"1028 bytes, .*Range is 1024"):
        device.backend.launch(device.request("count", [buffer]))


async def test_the_least_device_refuses_a_larger_workgroup(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C81, on a device that pretends to have nothing but what is required."""
    monkeypatch.setattr(device.vulkan._device, "limits", VulkanLimits())
    text = "#version 460\nlayout(local_size_x=256) in;\nvoid main() {}\n"
    large = artifact(native.shader(text, "count"))
    words = r"256 maxComputeWorkGroupInvocations \(it has 128\)"
    with pytest.raises(CapabilityMismatch, match=words):
        device.backend.load_artifact(large)


CONSTANT_SIZE = """#version 460
layout(local_size_x={size}, local_size_x_id=0) in;
layout(set=0, binding=0, std430) buffer Words {{ uint w[]; }};
void main() {{ if (gl_LocalInvocationID.x == 0) w[0] += gl_WorkGroupSize.x; }}
"""


async def test_workgroups_whose_size_is_a_constant(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C81: it counts as the size that it is, for the limit and for the launch."""
    sizes = {
        size: artifact(
            native.shader(CONSTANT_SIZE.format(size=size), f"sized{size}"),
            kernel_name=f"sized{size}",
        )
        for size in (128, 129)
    }
    buffer = device.write([1])
    request = device.request(sizes[128], [buffer])
    with pytest.raises(LaunchArgumentMismatch, match=r"expected \(\d+, 1, 1\)"):
        device.backend.launch(
            attrs.evolve(
                request, geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(7, 1, 1))
            )
        )
    geometry = FixedLaunch(grid=(1, 1, 1), threadgroup=(128, 1, 1))
    device.backend.launch(attrs.evolve(request, geometry=geometry))
    assert await device.read(buffer) == [129]
    monkeypatch.setattr(device.vulkan._device, "limits", VulkanLimits())
    words = r"129 maxComputeWorkGroupInvocations \(it has 128\)"
    with pytest.raises(CapabilityMismatch, match=words):
        device.backend.load_artifact(sizes[129])


@pytest.mark.parametrize("lacking", ["bits", "period"])
async def test_without_a_clock_the_hosts_is_read(
    monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    """C79: no query is made then, and the event says whose time it has."""
    create = NativeDevice._create

    def create_without(device: NativeDevice) -> None:
        create(device)
        if lacking == "bits":
            device.family = attrs.evolve(device.family, timestamp_bits=0)
        else:
            device.tick_ns = 0.0

    monkeypatch.setattr(NativeDevice, "_create", create_without)
    device = VulkanDevice()
    backend = device.backend
    start, end = (backend.create_event(timing=True) for _ in range(2))
    backend.record_event(start)
    buffer = backend.allocate_buffer(1 << 20)
    backend.fill_buffer(buffer, b"\1")
    backend.record_event(end)
    await backend.wait_default_stream()
    assert backend.elapsed_ns(start, end) >= 0
    assert "QueryPool" not in device.vulkan._device.made()
    assert backend._table.get(start).payload.source == "host"  # type: ignore[attr-defined]
    device.close()


async def test_times_are_the_devices(device: VulkanDevice) -> None:
    backend = device.backend
    start, end = (backend.create_event(timing=True) for _ in range(2))
    buffer = backend.allocate_buffer(16 << 20)
    for _ in range(3):  # the queries are used again
        backend.record_event(start)
        backend.fill_buffer(buffer, b"\1")
        backend.record_event(end)
        await backend.wait_default_stream()
        assert backend.elapsed_ns(start, end) > 0
    assert device.vulkan._device.made()["QueryPool"] == 1
    assert backend._table.get(start).payload.source == "device"  # type: ignore[attr-defined]


async def test_sets_go_back_when_nobody_has_the_launch(device: VulkanDevice) -> None:
    buffer = device.write([0])
    request = device.request("count", [buffer])
    for _ in range(500):
        device.backend.launch(request)
    await device.backend.wait_default_stream()
    out = np.zeros(1, np.uint32)
    device.backend.read_buffer(buffer, out)
    await device.backend.wait_default_stream()
    assert out.tolist() == [500]
    prepared = [device.backend.prepare_launch(request) for _ in range(100)]
    pools = device.vulkan._device.made()["DescriptorPool"]
    del prepared
    prepared = [device.backend.prepare_launch(request) for _ in range(100)]
    assert len(prepared) == 100
    assert device.vulkan._device.made()["DescriptorPool"] == pools
