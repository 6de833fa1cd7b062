"""What a device can do, and how it refuses what it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from accy_async.artifact import (
    ArtifactFormat,
    ArtifactRequest,
    BackendKind,
    DeviceFeatures,
    DType,
    FixedLaunch,
    PushConstants,
    SubgroupFeatures,
)
from accy_async.backends import Capabilities, DeviceIdentity, RecordingBackend
from accy_async.backends.cpu import CpuBackend
from accy_async.backends.cuda import CudaBackend
from accy_async.backends.vulkan import VulkanBackend
from accy_async.errors import (
    CapabilityMismatch,
    InvalidType,
    InvalidValue,
    UnsupportedOperation,
)

IDENTITY = DeviceIdentity(
    backend=BackendKind.CUDA,
    name="NVIDIA H200",
    vendor="NVIDIA",
    architecture="sm_90",
    compute_units=132,
    memory_bytes=141 << 30,
    driver="550.54",
    index=1,
)
DEVICE = Capabilities(
    identity=IDENTITY,
    formats=frozenset({ArtifactFormat.CUDA_PTX, ArtifactFormat.CUDA_CUBIN}),
    dtypes=frozenset({DType.F32, DType.U32}),
    features=DeviceFeatures(async_copy=True),
    subgroup=SubgroupFeatures(supported=True, shuffle=True, size=32),
    max_threads_per_block=1024,
    max_threadgroup=(1024, 1024, 64),
    max_grid=(2**31 - 1, 65535, 65535),
    max_shared_memory_bytes=48 << 10,
    max_push_constant_bytes=128,
    priorities=(0, -5),
)
REQUEST = ArtifactRequest(
    kernel_name="scan",
    requested_format=ArtifactFormat.CUDA_PTX,
    argument_count=2,
    payload="ptx",
    required_dtypes={DType.F32},
    required_features=DeviceFeatures(async_copy=True),
    required_subgroup=SubgroupFeatures(supported=True, shuffle=True, size=32),
    push_constants=PushConstants(byte_size=128),
)


def test_request_within_the_device_is_taken() -> None:
    """A request for exactly what the device has passes."""
    DEVICE.check_request(REQUEST)


def test_foreign_format_is_refused() -> None:
    """The message names kernel, device, format, and the formats there are."""
    request = attrs.evolve(REQUEST, requested_format=ArtifactFormat.VULKAN_SPIRV)
    with pytest.raises(UnsupportedOperation) as caught:
        DEVICE.check_request(request)
    assert str(caught.value) == (
        "kernel 'scan' on NVIDIA H200: format vulkan_spirv is not one of cuda_cubin, "
        "cuda_ptx"
    )
    none = attrs.evolve(DEVICE, formats=frozenset())
    with pytest.raises(UnsupportedOperation, match=r"is not one of none$"):
        none.check_request(REQUEST)


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({"required_dtypes": {DType.F64, DType.BF16}}, "dtype bf16, dtype f64"),
        (
            {"required_features": DeviceFeatures(clusters=True, tensor_cores=True)},
            "tensor_cores, clusters",
        ),
        (
            {"required_subgroup": SubgroupFeatures(supported=True, vote=True, size=64)},
            "subgroup vote, subgroup size 64",
        ),
        (
            {"push_constants": PushConstants(byte_size=132)},
            "132 push constant bytes (at most 128)",
        ),
        (
            {
                "required_dtypes": {DType.I8},
                "required_features": DeviceFeatures(clusters=True),
                "push_constants": PushConstants(byte_size=256),
            },
            "dtype i8, clusters, 256 push constant bytes (at most 128)",
        ),
    ],
)
def test_everything_lacking_is_named_at_once(
    changes: dict[str, Any], lacking: str
) -> None:
    """One error lists all that the device lacks, in a fixed order."""
    with pytest.raises(CapabilityMismatch) as caught:
        DEVICE.check_request(attrs.evolve(REQUEST, **changes))
    assert isinstance(caught.value, UnsupportedOperation)
    assert str(caught.value) == (
        f"kernel 'scan' on NVIDIA H200: the device lacks {lacking}"
    )


def test_device_without_push_constants_takes_any() -> None:
    """Where scalars travel otherwise, a push constant range means nothing."""
    device = attrs.evolve(DEVICE, max_push_constant_bytes=0)
    device.check_request(
        attrs.evolve(REQUEST, push_constants=PushConstants(byte_size=512))
    )


def launch(
    grid: tuple[int, int, int] = (1, 1, 1),
    threadgroup: tuple[int, int, int] = (64, 1, 1),
    shared: int = 0,
) -> FixedLaunch:
    return FixedLaunch(
        grid=grid, threadgroup=threadgroup, dynamic_shared_memory_bytes=shared
    )


@pytest.mark.parametrize(
    "geometry",
    [
        launch(grid=(2**31 - 1, 65535, 65535)),
        launch(grid=(0, 0, 0)),
        launch(threadgroup=(1024, 1, 1)),
        launch(threadgroup=(4, 4, 64)),
        launch(shared=48 << 10),
    ],
)
def test_geometry_at_the_limits_is_taken(geometry: FixedLaunch) -> None:
    """Each limit is itself allowed."""
    DEVICE.check_geometry(geometry, "scan")


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        (
            launch(threadgroup=(1024, 2, 1)),
            "threadgroup (1024, 2, 1) has 2048 threads, the device takes 1024",
        ),
        (
            FixedLaunch(grid=(2, 1, 1), threadgroup=(1, 1, 1), cluster=(2, 1, 1)),
            "cluster (2, 1, 1), the device has no clusters",
        ),
        (
            FixedLaunch(grid=(2, 1, 1), threadgroup=(1, 1, 1), cooperative=True),
            "a cooperative launch, the device has none",
        ),
        (launch(threadgroup=(1, 1, 65)), "threadgroup z is 65, the device takes 64"),
        (
            launch(grid=(2**31, 1, 1)),
            "grid x is 2147483648, the device takes 2147483647",
        ),
        (launch(grid=(1, 65536, 1)), "grid y is 65536, the device takes 65535"),
        (launch(grid=(1, 1, 65536)), "grid z is 65536, the device takes 65535"),
        (
            launch(shared=(48 << 10) + 1),
            "49153 bytes of dynamic shared memory, the device takes 49152",
        ),
    ],
)
def test_geometry_beyond_a_limit_is_refused(
    geometry: FixedLaunch, message: str
) -> None:
    """The message names kernel, limit and value."""
    with pytest.raises(CapabilityMismatch) as caught:
        DEVICE.check_geometry(geometry, "scan")
    assert str(caught.value) == f"kernel 'scan': {message}"


def test_priority_is_the_nearest_the_device_has() -> None:
    """Lower is more urgent; beyond either end the end itself is taken."""
    assert [DEVICE.clamp_priority(p) for p in (9, 1, 0, -1, -5, -6)] == [
        *(0, 0, 0, -1, -5, -5)
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "NVIDIA H200 NVL"),
        ("driver", "560.10"),
        ("index", 0),
        ("memory_bytes", 0),
    ],
)
def test_fingerprint_ignores_labels(field: str, value: Any) -> None:
    """One chip under another product label, driver or number is the same (C28)."""
    other = attrs.evolve(IDENTITY, **{field: value})
    assert other != IDENTITY
    assert other.fingerprint == IDENTITY.fingerprint
    assert attrs.evolve(DEVICE, identity=other).fingerprint == DEVICE.fingerprint


def test_fingerprint_tells_unlike_devices_apart() -> None:
    """Backend, vendor, architecture and units each make another device (C28)."""
    others = [
        attrs.evolve(IDENTITY, backend=BackendKind.VULKAN),
        attrs.evolve(IDENTITY, vendor="other"),
        attrs.evolve(IDENTITY, architecture="sm_80"),
        attrs.evolve(IDENTITY, compute_units=131),
    ]
    assert len({one.fingerprint for one in (IDENTITY, *others)}) == 5
    assert DEVICE.fingerprint == IDENTITY.fingerprint


@pytest.mark.parametrize(
    "kind", [RecordingBackend, CpuBackend, CudaBackend, VulkanBackend]
)
@pytest.mark.parametrize("limit", [-1, 2**63, True, 1.5, "1 GiB"])
def test_what_is_no_limit_of_memory_is_refused_by_name(
    kind: Callable[..., object], limit: object
) -> None:
    """Before a driver is looked for."""
    with pytest.raises(InvalidValue, match=r"Backend\.memory_limit_bytes") as refused:
        kind(memory_limit_bytes=limit)
    assert isinstance(refused.value, InvalidType) == (type(limit) is not int)
