"""What the CPU is, and what it can do as a device."""

from __future__ import annotations

import os
import platform
import time

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.native.host import (
    core_count,
    cpu_model,
    host_architecture,
    host_level,
)
from accy_async.backends.capabilities import Capabilities, DeviceIdentity
from accy_async.values import U32_MAX

__all__ = ["MAX_BLOCKS", "cpu_capabilities", "describe"]

MAX_BLOCKS = 2**63 - 1
"""Blocks of one launch: what fits the launch structure with a bit to spare."""

_MAX_THREADS = 1024
_MAX_SHARED_BYTES = 256 << 10
_LEAST_URGENT, _MOST_URGENT = 2, -2


def describe(workers: int | None = None, index: int = 0) -> DeviceIdentity:
    """Which CPU this is. Starts nothing and costs a reading of /proc.

    Args:
        workers: cores that kernels are split over; all this process may use if
            left out. They count as the device's compute units, since a
            measurement with fewer says nothing about more.
        index: tells several backends of one processor apart.
    """
    return DeviceIdentity(
        backend=BackendKind.CPU,
        name=cpu_model(),
        architecture=f"{host_architecture()} {host_level()}",
        compute_units=core_count() if workers is None else workers,
        memory_bytes=_physical_memory_bytes(),
        driver=f"{platform.system()} {platform.release()}".strip(),
        index=index,
    )


def cpu_capabilities(
    workers: int, max_streams: int | None, index: int = 0
) -> Capabilities:
    """What a backend with so many workers can do."""
    return Capabilities(
        identity=describe(workers, index),
        formats=frozenset({ArtifactFormat.CPU_MACHINE_CODE, ArtifactFormat.CPU_OBJECT}),
        max_threads_per_block=_MAX_THREADS,
        max_threadgroup=(_MAX_THREADS, _MAX_THREADS, _MAX_THREADS),
        max_grid=(U32_MAX, U32_MAX, U32_MAX),
        max_shared_memory_bytes=_MAX_SHARED_BYTES,
        priorities=(_LEAST_URGENT, _MOST_URGENT),
        max_streams=max(4, 2 * workers) if max_streams is None else max_streams,
        timing_resolution_ns=time.get_clock_info("perf_counter").resolution * 1e9,
    )


def _physical_memory_bytes() -> int:
    """The machine's memory, 0 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
