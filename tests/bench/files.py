"""Benchmark files and reports for tests."""

from __future__ import annotations

import attrs
import numpy as np

from accy_async.backends import Capabilities
from accy_async.bench import (
    BenchmarkReport,
    CandidateReport,
    Ceiling,
    DeviceReport,
    KernelBenchmark,
    Output,
    Report,
    Variant,
    compile_variant,
)
from accy_async.compiler.form import KernelBuilder
from accy_async.dtypes import DType

__all__ = ["DEVICE", "candidate", "doubling", "report"]

DEVICE = DeviceReport(
    backend="cuda",
    name="a card",
    architecture="sm_90",
    compute_units=132,
    driver="13.0",
    fingerprint="00ff00ff00ff00ff",
)


def candidate(name: str, median_ns: float, seed: int = 0) -> CandidateReport:
    """Sixteen samples around a time."""
    noise = np.random.default_rng(seed).normal(0.0, 0.002, 16)
    times = tuple(float(one) for one in median_ns * np.exp(noise))
    return CandidateReport(
        name=name,
        status="measured",
        times_ns=times,
        median_ns=median_ns,
        low_ns=0.99 * median_ns,
        high_ns=1.01 * median_ns,
        mad_ns=0.001 * median_ns,
        bytes_per_s=1e6 / median_ns * 1e9,
    )


def report(*candidates: CandidateReport) -> Report:
    """A report of one benchmark."""
    return Report(
        file="bench.py",
        started="2026-01-01T00:00:00+00:00",
        device=DEVICE,
        versions={"accy-async": "0.1.0"},
        options={"samples": "16"},
        ceilings=(
            Ceiling(name="copy", unit="B/s", value=2e12, low=1.9e12, high=2.1e12),
        ),
        benchmarks=(
            BenchmarkReport(
                name="softmax",
                kind="kernel",
                declared="bench.py:3",
                bytes_moved=1_000_000,
                candidates=candidates,
                winner=candidates[0].name if candidates else None,
            ),
        ),
        is_complete=True,
    )


@attrs.frozen
class doubling:  # noqa: N801 - a function with a name
    """A candidate that multiplies 256 numbers by a factor."""

    factor: float

    def __call__(self, capabilities: Capabilities) -> Variant:
        k = KernelBuilder("scaled", threadgroup=(64, 1, 1))
        out = k.buffer("out", DType.F32, "write_only")
        x = k.buffer("x", DType.F32, "read_only")
        first = k.let("first", k.block_x.cast(DType.U64) * 64)
        with k.region():
            i = first + k.thread.cast(DType.U64)
            out[i] = x[i] * self.factor
        return compile_variant(k.build(), capabilities, grid=(4, 1, 1))


def kernel_benchmark(name: str = "scaled", **candidates: float) -> KernelBenchmark:
    """A benchmark of such candidates, by their factors."""
    return KernelBenchmark(
        name=name,
        candidates={key: doubling(factor) for key, factor in candidates.items()},
        arguments=lambda: [Output((256,)), np.ones(256, np.float32)],
    )
