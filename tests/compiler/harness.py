"""Runs kernels of the kernel form on this host's CPU, on numpy arrays.

`KernelRunner` is what runs them anywhere: tests/kernels says where.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any, Protocol

import numpy as np

from accy_async.artifact.native.abi import LaunchBlock
from accy_async.artifact.native.loader import load_machine_code, load_object
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.form import Expression, Kernel, KernelBuilder
from accy_async.dtypes import DType, ScalarArgument

Array = np.ndarray[Any, Any]
Grid = tuple[int, int, int]
Outputs = Mapping[str, tuple[DType, Any]]
"""Dtypes, and what makes an expression of the inputs' elements, by name."""

BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Runs(Protocol):
    """A place that compiles and runs kernels."""

    def compiled(self, *kernels: Kernel) -> AbstractContextManager[KernelRunner]: ...


class KernelRunner(ABC):
    """Kernels made ready for one place; `run` launches one over a grid."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.kernels = {kernel.name: kernel for kernel in kernels}

    def run(
        self,
        name: str,
        buffers: Sequence[Array],
        scalars: Sequence[object] = (),
        grid: Grid | int = 1,
    ) -> int:
        """Launch, and wait for what it writes to the arrays; the kernel's status."""
        kernel = self.kernels[name]
        assert len(buffers) == len(kernel.buffers)
        given = [
            ScalarArgument.of(parameter.dtype, value)
            for parameter, value in zip(kernel.scalars, scalars, strict=True)
        ]
        grid = (grid, 1, 1) if isinstance(grid, int) else grid
        return self._launch(kernel, buffers, given, grid)

    @abstractmethod
    def _launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Array],
        scalars: Sequence[ScalarArgument],
        grid: Grid,
    ) -> int: ...

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what was loaded."""


class CpuRunner(KernelRunner):
    """Kernels of one payload, on this host's CPU."""

    def __init__(
        self,
        kernels: Sequence[Kernel],
        format: str = "cpu_machine_code",
        level: str | None = None,
    ) -> None:
        super().__init__(kernels)
        payload = compile_cpu(kernels, format=format, level=level)
        load = load_object if format == "cpu_object" else load_machine_code
        self._loaded = {name: load(payload, name) for name in self.kernels}

    def close(self) -> None:
        for loaded in self._loaded.values():
            loaded.close()

    def _launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Array],
        scalars: Sequence[ScalarArgument],
        grid: Grid,
    ) -> int:
        blocks = 0, grid[0] * grid[1] * grid[2]
        return self.run_blocks(kernel.name, buffers, scalars, grid, blocks)

    def run_blocks(
        self,
        name: str,
        buffers: Sequence[Array],
        scalars: Sequence[ScalarArgument],
        grid: Grid,
        blocks: tuple[int, int],
    ) -> int:
        """Run the blocks of a grid from the first to before the second."""
        slots = [array.ctypes.data for array in buffers]
        slots += [scalar.slot for scalar in scalars]
        packed = (ctypes.c_uint64 * max(len(slots), 1))(*slots)
        launch = LaunchBlock(
            grid=grid,
            threadgroup=self.kernels[name].threadgroup,
            block_begin=blocks[0],
            block_end=blocks[1],
        )
        function = self._loaded[name].function
        return function(ctypes.addressof(packed), ctypes.byref(launch))


def compiled(*kernels: Kernel, level: str | None = None) -> closing[CpuRunner]:
    """Kernels on this host's CPU, or for this level of it, for a ``with``."""
    return closing(CpuRunner(kernels, level=level))


def elementwise(
    name: str, inputs: Sequence[DType], output: DType, make: Any, threads: int = 64
) -> Kernel:
    """``out[i] = make(inputs[0][i], ...)`` for the n elements of a launch."""
    return _elementwise(name, inputs, {"out": (output, make)}, threads)


def compute(
    place: Runs, inputs: Mapping[DType, Sequence[Array]], outputs: Outputs
) -> dict[str, Array]:
    """What each expression of the inputs' elements gives, all from one kernel.

    Args:
        place: where the kernel is compiled and run.
        inputs: arrays of one length, by their dtype, in order.
        outputs: a dtype and an expression for each name.
    """
    arrays = [array for same in inputs.values() for array in same]
    dtypes = [dtype for dtype, same in inputs.items() for _ in same]
    count = len(arrays[0])
    results = {name: np.zeros(count, storage(d)) for name, (d, _) in outputs.items()}
    kernel = _elementwise("compute", dtypes, outputs, 64)
    with place.compiled(kernel) as runner:
        runner.run("compute", [*results.values(), *arrays], [count], -(-count // 64))
    return results


def _elementwise(
    name: str, inputs: Sequence[DType], outputs: Outputs, threads: int
) -> Kernel:
    k = KernelBuilder(name, threadgroup=(threads, 1, 1))
    targets = [
        k.buffer(f"out{i}" if i else "out", dtype, "write_only")
        for i, (dtype, _) in enumerate(outputs.values())
    ]
    sources = [k.buffer(f"in{i}", dtype, "read_only") for i, dtype in enumerate(inputs)]
    n = k.scalar("n", DType.U32)
    base = k.block_x * threads
    with k.region(limit=n.cast(DType.I64) - base.cast(DType.I64)):
        at = base + k.thread
        for target, (_, make) in zip(targets, outputs.values(), strict=True):
            result: Expression = make(*(source[at] for source in sources))
            target[at] = result
    return k.build()


def storage(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype of a buffer's elements; bf16 as its bits."""
    return np.dtype(np.uint16) if dtype is DType.BF16 else dtype.numpy


def bits(array: Array) -> Array:
    """The bits of an array, all NaNs made one."""
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.view(BITS[array.dtype.itemsize])


def assert_same_bits(actual: Array, expected: Array) -> None:
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(bits(actual), bits(expected))


def flushed(array: Array) -> Array:
    """An array whose subnormals are zeros of their signs."""
    if array.dtype.kind != "f":
        return array
    is_subnormal = (array != 0) & (np.abs(array) < np.finfo(array.dtype).tiny)
    return np.where(is_subnormal, np.copysign(array.dtype.type(0), array), array)


def samples(dtype: DType, count: int = 200) -> Array:
    """Edge values of a dtype, and random ones of all magnitudes."""
    random = np.random.default_rng(7)
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.is_integer:
        edges = {0, 1, 2, 3, 5, 7, 100, dtype.maximum, dtype.maximum - 1}
        edges |= {dtype.minimum, dtype.minimum + 1, dtype.maximum // 2}
        edges |= {-1, -2, -7} if dtype.is_signed else set()
        some = random.integers(
            int(dtype.minimum), int(dtype.maximum), count, dtype.numpy, endpoint=True
        )
        return np.concatenate([np.array(sorted(edges), dtype.numpy), some])
    kind = storage(dtype)
    special = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan]
    raw = random.integers(0, 256, count * kind.itemsize, np.uint8).view(kind)
    near = random.normal(0, 100, count).astype(kind)
    tiny = [np.finfo(kind).tiny, np.finfo(kind).max, np.finfo(kind).smallest_subnormal]
    return np.concatenate([np.array([*special, *tiny], kind), raw, near])
