"""Launch geometry as the driver takes it, and whether a kernel fits the device so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accy_async.errors import CapabilityMismatch

if TYPE_CHECKING:
    from accy_async.artifact.geometry import FixedLaunch
    from accy_async.backends.cuda.context import CudaContext
    from accy_async.backends.cuda.modules import CudaKernel

__all__ = ["allow_geometry", "launch_attributes", "launch_config"]

_PORTABLE_CLUSTER = 8
"""Blocks of a cluster that every device with clusters takes: CUDA C++ Programming
Guide, "Thread Block Clusters"."""


def launch_config(driver: Any, geometry: FixedLaunch) -> Any:  # noqa: ANN401
    """The ``CUlaunchConfig`` of a geometry; its stream is still to be named."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = geometry.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = geometry.threadgroup
    config.sharedMemBytes = geometry.dynamic_shared_memory_bytes
    attributes = launch_attributes(driver, geometry)
    if attributes:
        config.attrs = attributes
        config.numAttrs = len(attributes)
    return config


def launch_attributes(driver: Any, geometry: FixedLaunch) -> list[Any]:  # noqa: ANN401
    """The ``CUlaunchAttribute`` values of a geometry; most have none."""
    kinds = driver.CUlaunchAttributeID
    attributes = []
    if geometry.cluster is not None:
        cluster = driver.CUlaunchAttribute()
        cluster.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = cluster.value.clusterDim
        size.x, size.y, size.z = geometry.cluster
        attributes.append(cluster)
    if geometry.cooperative:
        cooperative = driver.CUlaunchAttribute()
        cooperative.id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        cooperative.value.cooperative = 1
        attributes.append(cooperative)
    return attributes


def allow_geometry(
    context: CudaContext,
    kernel: CudaKernel,
    name: str,
    geometry: FixedLaunch,
) -> None:
    """Have the driver allow a kernel what its geometry needs, if the device has it.

    Args:
        context: the device.
        kernel: the kernel.
        name: its name, for messages.
        geometry: what it is to be launched with.

    Raises:
        CapabilityMismatch: a block needs more shared memory than there is; or a
            cluster's blocks, or all blocks of a cooperative launch, cannot run at
            the same time.
        DriverError: the driver refused it.
    """
    wanted = geometry.dynamic_shared_memory_bytes
    if wanted > kernel.shared_limit:
        most = context.capabilities.max_shared_memory_bytes
        if wanted + kernel.shared_bytes > most:
            raise CapabilityMismatch(
                f"kernel {name!r}: {wanted} bytes of dynamic shared memory beside "
                f"{kernel.shared_bytes} static ones, the device takes {most}"
            )
        _set(context, kernel, "MAX_DYNAMIC_SHARED_SIZE_BYTES", wanted)
        kernel.shared_limit = wanted
    if not geometry.block_count:
        return
    if geometry.cluster is not None:
        _allow_clusters(context, kernel, name, geometry)
    elif geometry.cooperative:
        at_once = _blocks_at_once(context, kernel, geometry)
        _check_cooperative(name, geometry, at_once)


def _allow_clusters(
    context: CudaContext,
    kernel: CudaKernel,
    name: str,
    geometry: FixedLaunch,
) -> None:
    size = geometry.blocks_per_cluster
    if size > _PORTABLE_CLUSTER and not kernel.has_large_clusters:
        _set(context, kernel, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
        kernel.has_large_clusters = True
    context.make_current()
    driver = context.driver
    config = launch_config(driver, geometry)
    answer = driver.cuOccupancyMaxActiveClusters(kernel.function, config)
    clusters = int(context.check(answer, "cuOccupancyMaxActiveClusters"))
    if not clusters:
        raise CapabilityMismatch(
            f"kernel {name!r}: no cluster of {size} blocks fits the device with "
            f"{geometry.threads_per_block} threads and "
            f"{geometry.dynamic_shared_memory_bytes} bytes of dynamic shared memory "
            "a block"
        )
    if geometry.cooperative:
        _check_cooperative(name, geometry, clusters * size)


def _blocks_at_once(
    context: CudaContext, kernel: CudaKernel, geometry: FixedLaunch
) -> int:
    context.make_current()
    driver = context.driver
    answer = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
        kernel.function,
        geometry.threads_per_block,
        geometry.dynamic_shared_memory_bytes,
    )
    call = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    blocks = int(context.check(answer, call))
    return blocks * context.capabilities.identity.compute_units


def _check_cooperative(name: str, geometry: FixedLaunch, at_once: int) -> None:
    if geometry.block_count > at_once:
        raise CapabilityMismatch(
            f"kernel {name!r}: a cooperative launch of {geometry.block_count} blocks, "
            f"the device runs {at_once} of them at the same time"
        )


def _set(context: CudaContext, kernel: CudaKernel, name: str, value: int) -> None:
    context.make_current()
    driver = context.driver
    attribute = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
    answer = driver.cuFuncSetAttribute(kernel.function, attribute, value)
    context.check(answer, f"cuFuncSetAttribute({name})")
