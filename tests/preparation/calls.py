"""Kernels that tests call from programs: compiled for this CPU, and in numpy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from accy_async.artifact.entry import KernelCallArtifact, KernelCallRegistry
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import DerivedLaunch, Fixed, RuntimeCeilDiv
from accy_async.artifact.parameters import KernelBuffer
from accy_async.artifact.shapes import ShapeBounds, ShapeDimension, ShapeProfile
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.form import KernelBuilder
from accy_async.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]

REFERENCES = {
    "test.double": lambda x: x * np.float32(2),
    "test.add_into": lambda x, y: x + y,
}
"""What the kernels compute, for `evaluate`."""

_THREADS = 8


@functools.cache
def registry() -> KernelCallRegistry:
    """``test.double`` (out, x) and ``test.add_into`` (out, x, y), of n elements each.

    Results may lie in an operand's memory.
    """
    return KernelCallRegistry(
        [
            _entry("test.double", 1, lambda x: x * 2.0),
            _entry("test.add_into", 2, lambda x, y: x + y),
        ]
    )


def _entry(target: str, operands: int, make: Any) -> KernelCallArtifact:
    name = target.replace(".", "_")
    k = KernelBuilder(name, threadgroup=(_THREADS, 1, 1))
    out = k.buffer("out", DType.F32, "write_only")
    given = [k.buffer(f"in{i}", DType.F32, "read_only") for i in range(operands)]
    n = k.scalar("n", DType.U32)
    base = k.block_x * _THREADS
    with k.region(limit=n.cast(DType.I64) - base.cast(DType.I64)):
        at = base + k.thread
        out[at] = make(*(buffer[at] for buffer in given))
    kernel = k.build()
    return KernelCallArtifact(
        target=target,
        version=1,
        format=ArtifactFormat.CPU_MACHINE_CODE,
        entry_name=name,
        argument_count=operands + 2,
        payload=compile_cpu([kernel], format="cpu_machine_code"),
        launch=DerivedLaunch(
            grid=(RuntimeCeilDiv(argument_index=0, divisor=8), Fixed(1), Fixed(1)),
            threadgroup=(_THREADS, 1, 1),
        ),
        runtime_scalar_argument_count=1,
        required_dtypes=frozenset({DType.F32}),
        buffers=(
            *(KernelBuffer(dtype=b.dtype, access=b.access) for b in kernel.buffers),
        ),
        shape_profile=ShapeProfile(
            name="elements",
            dimensions=(
                ShapeDimension(
                    name="n",
                    runtime_scalar_argument_index=0,
                    bounds=ShapeBounds(max=1 << 20),
                ),
            ),
        ),
    )
