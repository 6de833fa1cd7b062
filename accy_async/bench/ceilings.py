"""What a device can do at most, as measured: copying memory, and multiply-adds.

Both are kernels of our own, made by the emitters that make everything else. A copy
reads each of its bytes once and writes it once. A multiply-add counts as two
operations; eight independent chains of them keep the units busy, with nothing to load.
They are ceilings of ordinary kernels, in f32: matrix units may be faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from accy_async.artifact.formats import BackendKind
from accy_async.backends.handles import BufferBinding
from accy_async.bench.making import compile_variant
from accy_async.bench.report import Ceiling
from accy_async.compiler.form import Kernel, KernelBuilder, multiply_add
from accy_async.dtypes import DType
from accy_async.tuning.search import Variant

if TYPE_CHECKING:
    from accy_async.backends.capabilities import Capabilities

__all__ = ["CeilingKernel", "ceiling_kernels", "ceiling_of"]

_THREADS = 256
_EACH = 8
"""Elements that a thread of a GPU copies, a block's width apart: enough of them under
way at once, in grids that every device takes. A processor copies one run at a time."""

_CHAINS = 8
_STEPS = 64


@attrs.frozen(kw_only=True)
class CeilingKernel:
    """A kernel that does one thing as fast as it goes.

    Attributes:
        name: what it measures: ``copy`` or ``fma``.
        unit: of what, each second.
        amount: how much of it one launch does.
        elements: of each of its two buffers, in f32.
    """

    name: str
    unit: str
    amount: float
    elements: int

    def variant(self, capabilities: Capabilities) -> Variant:
        """Its code for a device; blocks for some tens of ms.

        Raises:
            CapabilityMismatch: nothing that the emitters make is loaded there.
        """
        is_copy = self.name == "copy"
        each = 1
        if is_copy and capabilities.identity.backend is not BackendKind.CPU:
            each = _EACH
        kernel = _copy(each) if is_copy else _fma()
        blocks = self.elements // (_THREADS * each)
        return compile_variant(kernel, capabilities, grid=(blocks, 1, 1))

    @property
    def byte_size(self) -> int:
        """Of each of its buffers."""
        return 4 * self.elements

    def bindings(
        self, out: BufferBinding, source: BufferBinding
    ) -> list[BufferBinding]:
        """Its arguments."""
        return [
            attrs.evolve(out, access="write_only"),
            attrs.evolve(source, access="read_only"),
        ]


def ceiling_kernels(capabilities: Capabilities) -> tuple[CeilingKernel, CeilingKernel]:
    """The copy and the multiply-adds, large enough for this device."""
    identity = capabilities.identity
    is_small = identity.backend is BackendKind.CPU or identity.is_software
    copied = (1 << 26) if is_small else (1 << 28)
    if identity.memory_bytes:
        copied = min(copied, identity.memory_bytes // 16)
    block = _THREADS * _EACH
    words = max(1, copied // 4 // block) * block
    threads = (1 << 16) if is_small else (1 << 22)
    return (
        CeilingKernel(name="copy", unit="B/s", amount=8.0 * words, elements=words),
        CeilingKernel(
            name="fma",
            unit="FLOP/s",
            amount=2.0 * _CHAINS * _STEPS * threads,
            elements=threads,
        ),
    )


def ceiling_of(
    kernel: CeilingKernel, median_ns: float, low_ns: float, high_ns: float
) -> Ceiling:
    """What a measured launch of it means each second."""
    value, low, high = (kernel.amount / ns * 1e9 for ns in (median_ns, high_ns, low_ns))
    return Ceiling(name=kernel.name, unit=kernel.unit, value=value, low=low, high=high)


def _copy(each: int) -> Kernel:
    k = KernelBuilder("accy_bench_copy", threadgroup=(_THREADS, 1, 1))
    out = k.buffer("out", DType.F32, "write_only")
    source = k.buffer("source", DType.F32, "read_only")
    base = k.let("base", k.block_x.cast(DType.U64) * (_THREADS * each))
    with k.region():
        first = base + k.thread.cast(DType.U64)
        places = [k.let(f"i{n}", first + n * _THREADS) for n in range(each)]
        values = [k.let(f"v{n}", source[i]) for n, i in enumerate(places)]
        for i, value in zip(places, values, strict=True):
            out[i] = value
    return k.build()


def _fma() -> Kernel:
    k = KernelBuilder("accy_bench_fma", threadgroup=(_THREADS, 1, 1))
    out = k.buffer("out", DType.F32, "write_only")
    source = k.buffer("source", DType.F32, "read_only")
    base = k.let("base", k.block_x.cast(DType.U64) * _THREADS)
    with k.region():
        i = base + k.thread.cast(DType.U64)
        # Bounded for ever: each step brings a value nearer to x / (1 - factor).
        x = k.let("x", source[i])
        chains = [k.variable(f"c{n}", x * (0.5 + 0.125 * n)) for n in range(_CHAINS)]
        for _ in range(_STEPS):
            for n, chain in enumerate(chains):
                chain.set(multiply_add(chain.value, 0.5 + 0.0625 * n, x))
        total = chains[0].value
        for chain in chains[1:]:
            total = total + chain.value
        out[i] = total
    return k.build()
