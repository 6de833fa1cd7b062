"""What a device is, and what it can do."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.fingerprint import fingerprint
from accy_async.artifact.formats import ArtifactFormat, BackendKind, backend_kind
from accy_async.artifact.geometry import Dim3, FixedLaunch
from accy_async.artifact.kernel import ArtifactRequest
from accy_async.artifact.requirements import DeviceFeatures, SubgroupFeatures
from accy_async.dtypes import DType
from accy_async.errors import (
    CapabilityMismatch,
    InvalidType,
    InvalidValue,
    UnsupportedOperation,
)
from accy_async.values import (
    U32_MAX,
    enum,
    frozenset_of,
    instances,
    integer,
    integers,
    number,
    text,
)

__all__ = ["Capabilities", "DeviceIdentity"]

_COUNT = integer(0, 2**63 - 1)
_DIM3 = integers(1, U32_MAX, length=3)


@attrs.frozen(kw_only=True)
class DeviceIdentity:
    """Which device this is.

    Attributes:
        backend: the kind of backend that drives it.
        name: the product's name, for people; no part of the fingerprint, as one
            chip is sold under many.
        vendor: who made it.
        architecture: the instruction set or compute capability, exactly enough
            that equal ones run the same binaries.
        compute_units: multiprocessors, or cores.
        memory_bytes: memory of the device, 0 if unknown.
        driver: the driver's or system's version; no part of the fingerprint.
        index: its number among the devices of its kind.
        is_software: True where a processor pretends to be a GPU.
    """

    backend: BackendKind = attrs.field(
        converter=backend_kind, validator=enum(BackendKind)
    )
    name: str = attrs.field(validator=text())
    vendor: str = attrs.field(default="", validator=text(empty=True))
    architecture: str = attrs.field(default="", validator=text(empty=True))
    compute_units: int = attrs.field(default=1, validator=_COUNT)
    memory_bytes: int = attrs.field(default=0, validator=_COUNT)
    driver: str = attrs.field(default="", validator=text(empty=True))
    index: int = attrs.field(default=0, validator=integer())
    is_software: bool = attrs.field(default=False, validator=instances(bool))

    @property
    def device(self) -> str:
        """Names the device among those of this machine, e.g. ``cuda:1``."""
        return f"{self.backend}:{self.index}"

    @property
    def fingerprint(self) -> int:
        """64 bits that equal devices share: backend, vendor, architecture, units."""
        return fingerprint(
            (self.backend, self.vendor, self.architecture, self.compute_units)
        )


@attrs.frozen(kw_only=True)
class Capabilities:
    """What a device can do; a backend answers with one that never changes.

    Attributes:
        identity: which device it is.
        formats: artifact formats it loads.
        dtypes: element types its kernels may use.
        features: optional features it has.
        subgroup: subgroup features it has.
        max_threads_per_block: greatest product of a threadgroup's extents.
        max_threadgroup: greatest extent of a threadgroup in x, y, z.
        max_grid: greatest extent of a grid in x, y, z.
        max_shared_memory_bytes: block-shared memory, static and dynamic.
        max_cluster_blocks: most blocks of a cluster, where the device has clusters;
            a kernel that takes much of a multiprocessor may get fewer.
        max_push_constant_bytes: scalars beside buffers, where that is how
            scalars travel; else 0.
        priorities: the least and the most urgent stream priority; lower numbers
            are more urgent.
        max_streams: streams worth opening; more add no parallelism.
        timing_resolution_ns: of event timing; 0 where the device has none.
        device_graphs: whether it can be given a graph once and launch it as a whole.
        device_loops: whether a loop within such a graph can be decided on the device.
    """

    identity: DeviceIdentity = attrs.field(validator=instances(DeviceIdentity))
    formats: frozenset[ArtifactFormat] = attrs.field(
        validator=frozenset_of(ArtifactFormat)
    )
    dtypes: frozenset[DType] = attrs.field(
        default=frozenset(DType), validator=frozenset_of(DType)
    )
    features: DeviceFeatures = attrs.field(
        factory=DeviceFeatures, validator=instances(DeviceFeatures)
    )
    subgroup: SubgroupFeatures = attrs.field(
        factory=SubgroupFeatures, validator=instances(SubgroupFeatures)
    )
    max_threads_per_block: int = attrs.field(default=1024, validator=integer(1))
    max_threadgroup: Dim3 = attrs.field(default=(1024, 1024, 64), validator=_DIM3)
    max_grid: Dim3 = attrs.field(default=(2**31 - 1, 65535, 65535), validator=_DIM3)
    max_shared_memory_bytes: int = attrs.field(default=48 << 10, validator=_COUNT)
    max_cluster_blocks: int = attrs.field(default=8, validator=integer(1))
    max_push_constant_bytes: int = attrs.field(default=0, validator=integer())
    priorities: tuple[int, int] = attrs.field(
        default=(0, 0), validator=integers(-(2**31), 2**31 - 1, length=2)
    )
    max_streams: int = attrs.field(default=16, validator=integer(1, U32_MAX))
    timing_resolution_ns: float = attrs.field(default=0.0, validator=number(0.0, 1e12))
    device_graphs: bool = attrs.field(default=False, validator=instances(bool))
    device_loops: bool = attrs.field(default=False, validator=instances(bool))

    def __attrs_post_init__(self) -> None:
        least, greatest = self.priorities
        if least < greatest:
            raise InvalidValue(
                "Capabilities.priorities",
                self.priorities,
                "the least urgent first, which has the higher number",
            )

    @property
    def fingerprint(self) -> int:
        """64 bits that devices share where measurements carry over."""
        return self.identity.fingerprint

    def clamp_priority(self, priority: int) -> int:
        """The nearest priority that the device has.

        Raises:
            InvalidType: it is no integer.
        """
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidType("priority", priority, "an integer: 0 is normal")
        least, greatest = self.priorities
        return max(min(priority, least), greatest)

    def check_request(self, request: ArtifactRequest) -> None:
        """Refuse a kernel the device cannot take.

        Raises:
            UnsupportedOperation: the device does not load the format.
            CapabilityMismatch: it lacks a dtype, feature or limit.
        """
        where = f"kernel {request.kernel_name!r} on {self.identity.name}"
        if request.requested_format not in self.formats:
            raise UnsupportedOperation(
                f"{where}: format {request.requested_format} is not one of "
                f"{_names(self.formats)}"
            )
        lacking = [f"dtype {d}" for d in sorted(request.required_dtypes - self.dtypes)]
        lacking += request.required_features.missing(self.features)
        lacking += [
            f"subgroup {name}"
            for name in request.required_subgroup.missing(self.subgroup)
        ]
        push = request.push_constants
        if push is not None and push.byte_size > self.max_push_constant_bytes > 0:
            lacking.append(
                f"{push.byte_size} push constant bytes "
                f"(at most {self.max_push_constant_bytes})"
            )
        if lacking:
            raise CapabilityMismatch(f"{where}: the device lacks {', '.join(lacking)}")

    def check_geometry(self, geometry: FixedLaunch, kernel: str) -> None:
        """Refuse a launch geometry beyond the device's limits.

        Raises:
            CapabilityMismatch: naming the kernel, the limit and the value.
        """
        if geometry.threads_per_block > self.max_threads_per_block:
            raise CapabilityMismatch(
                f"kernel {kernel!r}: threadgroup {geometry.threadgroup} has "
                f"{geometry.threads_per_block} threads, the device takes "
                f"{self.max_threads_per_block}"
            )
        _check_extents(
            kernel, "threadgroup", geometry.threadgroup, self.max_threadgroup
        )
        _check_extents(kernel, "grid", geometry.grid, self.max_grid)
        if geometry.dynamic_shared_memory_bytes > self.max_shared_memory_bytes:
            raise CapabilityMismatch(
                f"kernel {kernel!r}: {geometry.dynamic_shared_memory_bytes} bytes of "
                f"dynamic shared memory, the device takes "
                f"{self.max_shared_memory_bytes}"
            )
        if geometry.cluster is not None:
            if not self.features.clusters:
                raise CapabilityMismatch(
                    f"kernel {kernel!r}: cluster {geometry.cluster}, the device has no "
                    "clusters"
                )
            if geometry.blocks_per_cluster > self.max_cluster_blocks:
                raise CapabilityMismatch(
                    f"kernel {kernel!r}: cluster {geometry.cluster} has "
                    f"{geometry.blocks_per_cluster} blocks, the device takes "
                    f"{self.max_cluster_blocks}"
                )
        if geometry.cooperative and not self.features.cooperative_launch:
            raise CapabilityMismatch(
                f"kernel {kernel!r}: a cooperative launch, the device has none"
            )


def _check_extents(kernel: str, what: str, got: Dim3, limit: Dim3) -> None:
    if got[0] <= limit[0] and got[1] <= limit[1] and got[2] <= limit[2]:
        return  # as every launch that is not kept asks for this
    for axis, extent, maximum in zip("xyz", got, limit, strict=True):
        if extent > maximum:
            raise CapabilityMismatch(
                f"kernel {kernel!r}: {what} {axis} is {extent}, the device takes "
                f"{maximum}"
            )


def _names(formats: Sequence[ArtifactFormat] | frozenset[ArtifactFormat]) -> str:
    return ", ".join(sorted(format.value for format in formats)) or "none"
