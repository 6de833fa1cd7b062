"""What the figures were taken on."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from accy_async.artifact.native.host import core_count
from accy_async.backends.cuda import CudaBackend

__all__ = ["describe"]

_LIBRARIES = (
    *("accy-async", "cuda-bindings", "cuda-core", "cupy-cuda13x", "cupy-cuda12x"),
    *("torch", "numba", "numba-cuda", "triton", "warp-lang", "anyio", "trio", "uvloop"),
)


def describe() -> str:
    """The date, the device, the driver, and the libraries with their versions."""
    backend = CudaBackend()
    try:
        identity = backend.capabilities.identity
    finally:
        backend.close()
    # What is imported: with some numpy a peer cannot do what it does with another.
    found = [f"numpy {np.__version__}"]
    for name in _LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return (
        f"{today}: {identity.name} ({identity.architecture}, {identity.compute_units} "
        f"multiprocessors), CUDA {identity.driver}, {core_count()} cores, Python "
        f"{platform.python_version()}\n{', '.join(found)}"
    )
