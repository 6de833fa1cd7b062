"""The CPU as a device: native kernels on real streams, split over the cores."""

from accy_async.backends.cpu.backend import CpuBackend
from accy_async.backends.cpu.identity import describe

__all__ = ["CpuBackend", "describe"]
