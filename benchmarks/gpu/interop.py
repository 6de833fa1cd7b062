"""What it costs to take an array and to give one, beside PyTorch and CuPy.

Each figure is a median over rounds in which all take turns, so that a neighbour's
load falls on all alike. Arrays are made beforehand; what is timed is one call, and
letting go of what it gave in another column.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from accy_async.backends.adopting import adopt_array
from accy_async.backends.array import DeviceArray
from accy_async.backends.cuda import CudaBackend

_ROUNDS, _CALLS = 40, 50

Call = Callable[[], object]


class Interface:
    """Shows only the CUDA array interface of an array."""

    def __init__(self, array: object) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> object:
        return self.array.__cuda_array_interface__  # type: ignore[attr-defined]


def calls(backend: CudaBackend) -> dict[str, Call]:
    """What is measured, by name."""
    import cupy
    import torch

    tensor = torch.zeros(1 << 16, device="cuda")
    array = cupy.zeros(1 << 16, dtype=cupy.float32)
    ours = DeviceArray.allocate(backend, (1 << 16,), adopt_array(backend, array).dtype)
    shown = Interface(array)
    torch.cuda.synchronize()
    return {
        "accy_async from torch (DLPack)": lambda: adopt_array(backend, tensor),
        "accy_async from cupy (DLPack)": lambda: adopt_array(backend, array),
        "accy_async from cupy (interface)": lambda: adopt_array(backend, shown),
        "torch from accy_async (DLPack)": lambda: torch.from_dlpack(ours),
        "cupy from accy_async (DLPack)": lambda: cupy.from_dlpack(ours),
        "cupy from accy_async (interface)": lambda: cupy.asarray(ours),
        "cupy from torch (DLPack)": lambda: cupy.from_dlpack(tensor),
        "torch from cupy (DLPack)": lambda: torch.from_dlpack(array),
        "torch from cupy (interface)": lambda: torch.as_tensor(shown, device="cuda"),
    }


def measure(call: Call) -> tuple[float, float]:
    """Microseconds of a call, and of letting go of what it gave."""
    started = time.perf_counter_ns()
    kept = [call() for _ in range(_CALLS)]
    made = time.perf_counter_ns()
    del kept
    ended = time.perf_counter_ns()
    return (made - started) / 1e3 / _CALLS, (ended - made) / 1e3 / _CALLS


def main() -> None:
    """Print a table."""
    backend = CudaBackend()
    found: dict[str, list[tuple[float, float]]] = {}
    named = calls(backend)
    for _ in range(_ROUNDS):
        for name, call in named.items():
            found.setdefault(name, []).append(measure(call))
    print(f"{'':36}{'take, us':>10}{'let go, us':>12}")
    for name, pairs in found.items():
        take, let_go = (statistics.median(column) for column in np.transpose(pairs))
        print(f"{name:36}{take:10.2f}{let_go:12.2f}")
    named.clear()
    backend.close()


if __name__ == "__main__":
    sys.exit(main())
