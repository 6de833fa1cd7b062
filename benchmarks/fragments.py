"""Generated kernels on one core against numpy and Numba on one core.

Each kernel is what `accy_async.compiler.kernelization` makes for the CPU, called as the
backend calls it, over its whole grid by one thread: what a launch and a wait cost on
top is in `launch_cost`, whole calls are in `fragment_calls`. numpy and, where it is
installed, Numba run in the same process, in turns with it, and numpy's BLAS is held to
one thread too. Numba has the loops that one would write, compiled beforehand; its
``fastmath`` stands beside the fast tier.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import attrs
import numpy as np

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.native.abi import LaunchBlock
from accy_async.artifact.native.loader import load_machine_code
from accy_async.artifact.planned import CompileLaunch
from accy_async.backends.capabilities import Capabilities, DeviceIdentity
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.kernelization import (
    KernelizedWork,
    MathTier,
    TargetProfile,
    WorkItem,
    kernelize,
)
from accy_async.compiler.semantic import (
    Builder,
    Function,
    FunctionBuilder,
    TensorType,
    Value,
)
from benchmarks.measuring import Figure, in_rounds, machine
from benchmarks.numba_loops import loops

__all__ = ["CASES", "Case", "main"]

_ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1"
)
_LENGTH = 10_000_000

Make = Callable[..., Value]


@attrs.frozen
class Case:
    """One function, as a work item, in numpy and, by its name, in `numba_loops`."""

    name: str
    kind: str
    types: tuple[str, ...]
    make: Make
    numpy: Callable[..., object]
    numba: str = ""


def _chain(f: FunctionBuilder, a: Value, b: Value) -> Value:
    return f.sqrt(f.abs(f.mul(f.add(a, b), f.sub(a, b))))


def _softmax(a: np.ndarray) -> np.ndarray:
    powers = np.exp(a - a.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _layer_norm(f: FunctionBuilder, x: Value) -> Value:
    mean = f.reduce(x, "mean", [1], keepdims=True)
    centred = f.sub(x, f.broadcast(mean, x.shape))
    variance = f.reduce(f.mul(centred, centred), "mean", [1], keepdims=True)
    root = f.sqrt(f.add(variance, 1e-5))
    return f.div(centred, f.broadcast(root, x.shape))


def _numpy_layer_norm(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(1, keepdims=True)
    variance = (centred * centred).mean(1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + np.float32(1e-5)))


def _scattered(x: np.ndarray, i: np.ndarray, u: np.ndarray) -> np.ndarray:
    result = x.copy()
    np.add.at(result, i, u)
    return result


CASES = (
    Case(
        "add, subtract, multiply, abs, sqrt of 10M",
        "elementwise",
        (f"f32[{_LENGTH}]",) * 2,
        _chain,
        lambda a, b: np.sqrt(np.abs((a + b) * (a - b))),
        "chain",
    ),
    Case(
        "exp of 10M",
        "elementwise",
        (f"f32[{_LENGTH}]",),
        lambda f, a: f.exp(a),
        np.exp,
        "exp",
    ),
    Case(
        "add a row to 2048 x 2048",
        "elementwise",
        ("f32[2048,2048]", "f32[2048]"),
        lambda f, a, b: f.add(a, f.broadcast(b, a.shape)),
        np.add,
    ),
    Case(
        "transpose 2048 x 2048",
        "elementwise",
        ("f32[2048,2048]",),
        lambda f, a: f.transpose(a),
        lambda a: np.ascontiguousarray(a.T),
    ),
    Case(
        "sum of 10M",
        "reduction",
        (f"f32[{_LENGTH}]",),
        lambda f, a: f.reduce(a, "sum", [0]),
        np.sum,
        "total",
    ),
    Case(
        "sum of each row of 3000 x 3000",
        "reduction",
        ("f32[3000,3000]",),
        lambda f, a: f.reduce(a, "sum", [1]),
        lambda a: a.sum(1),
        "row_sums",
    ),
    Case(
        "sum of each column of 3000 x 3000",
        "reduction",
        ("f32[3000,3000]",),
        lambda f, a: f.reduce(a, "sum", [0]),
        lambda a: a.sum(0),
        "column_sums",
    ),
    Case(
        "softmax of each row of 4096 x 1024",
        "row_pipeline",
        ("f32[4096,1024]",),
        lambda f, a: f.softmax(a),
        _softmax,
        "softmax",
    ),
    Case(
        "layer norm of each row of 4096 x 1024",
        "row_pipeline",
        ("f32[4096,1024]",),
        _layer_norm,
        _numpy_layer_norm,
        "layer_norm",
    ),
    Case(
        "cumulative sum of 10M",
        "scan",
        (f"f32[{_LENGTH}]",),
        lambda f, a: f.scan(a, "sum", 0),
        np.cumsum,
        "cumulative",
    ),
    Case(
        "64K rows of 50000 x 128 gathered",
        "gather",
        ("f32[50000,128]", "u16[65536]"),
        lambda f, a, i: f.gather(a, i, 0),
        lambda a, i: a[i],
    ),
    Case(
        "4096 rows added to 10000 x 128",
        "scatter",
        ("f32[10000,128]", "u16[4096]", "f32[4096,128]"),
        lambda f, a, i, u: f.scatter_add(a, i, u, 0),
        _scattered,
    ),
    Case(
        "product of 512 x 512",
        "dot_general",
        ("f32[512,512]",) * 2,
        lambda f, a, b: f.matmul(a, b),
        np.matmul,
    ),
    Case(
        "product of 1024 x 1024",
        "dot_general",
        ("f32[1024,1024]",) * 2,
        lambda f, a, b: f.matmul(a, b),
        np.matmul,
    ),
)


def _profile(tier: MathTier) -> TargetProfile:
    format = ArtifactFormat.CPU_MACHINE_CODE
    identity = DeviceIdentity(backend=BackendKind.CPU, name="one core")
    return TargetProfile(
        capabilities=Capabilities(identity=identity, formats=frozenset({format})),
        format=format,
        math_tier=tier,
    )


def _function(case: Case) -> Function:
    builder = Builder("benchmark")
    types = [TensorType.parse(text) for text in case.types]
    f = builder.begin_function("benchmark", types)
    f.return_([case.make(f, *f.parameters)])
    f.finish()
    return builder.finish().entry


def _arguments(function: Function) -> list[np.ndarray]:
    generator = np.random.default_rng(0)

    def drawn(type: TensorType) -> np.ndarray:
        if type.dtype.is_float:
            return generator.standard_normal(type.shape, np.float32)
        return generator.integers(0, 10000, type.shape).astype(type.dtype.numpy)

    return [drawn(type) for type in function.parameter_types]


def _native(
    stack: ExitStack,
    work: KernelizedWork,
    function: Function,
    arguments: Sequence[np.ndarray],
) -> Callable[[], np.ndarray]:
    """A call that launches the steps on this thread, and gives the result."""
    buffers = {
        "result": [np.empty(t.shape, t.dtype.numpy) for t in function.result_types],
        "operand": list(arguments),
        "scratch": [np.empty(t.shape, t.dtype.numpy) for t in work.scratch],
    }
    calls = []
    for step in work.steps:
        payload = compile_cpu([step.kernel], format="cpu_machine_code")
        loaded = load_machine_code(payload, step.kernel.name)
        stack.callback(loaded.close)
        slots = [buffers[str(b.origin)][b.index].ctypes.data for b in step.arguments]
        packed = (ctypes.c_uint64 * len(slots))(*slots)
        geometry = step.launch
        block = LaunchBlock(
            grid=geometry.grid,
            threadgroup=geometry.threadgroup,
            block_begin=0,
            block_end=geometry.block_count,
        )
        calls.append((loaded.function, packed, block))

    def run() -> np.ndarray:
        for function, packed, block in calls:
            if function(ctypes.addressof(packed), ctypes.byref(block)):
                raise AssertionError("a generated kernel failed")
        return buffers["result"][0]

    return run


def _milliseconds(call: Callable[[], object]) -> Callable[[], float]:
    def sample() -> float:
        started = time.perf_counter()
        call()
        return (time.perf_counter() - started) * 1e3

    return sample


def _measured(case: Case, rounds: int) -> list[Figure]:
    function = _function(case)
    arguments = _arguments(function)
    item = WorkItem(work_item_id=0, kind=CompileLaunch(case.kind), function=function)
    expected = np.asarray(case.numpy(*arguments))
    calls: dict[str, Callable[[], object]] = {"numpy": lambda: case.numpy(*arguments)}
    with ExitStack() as stack:
        for tier in (MathTier.EXACT, MathTier.FAST):
            work = kernelize(item, _profile(tier))
            native = calls[tier.value] = _native(stack, work, function, arguments)
            if not np.allclose(native(), expected, rtol=1e-2, atol=1e-2):
                raise AssertionError(f"{case.name}: the results differ from numpy's")
        for name, made in loops(case.numba).items():
            calls[name] = functools.partial(made, *arguments)
            calls[name]()
        samples = {name: _milliseconds(call) for name, call in calls.items()}
        return in_rounds(samples, rounds)


def main(rounds: int = 9, names: Sequence[str] = ()) -> None:
    if any(os.environ.get(name) != value for name, value in _ONE_THREAD.items()):
        # A BLAS reads these when it is loaded, which in this process it may have been.
        command = [sys.executable, "-m", "benchmarks.fragments", *names]
        subprocess.run(command, env={**os.environ, **_ONE_THREAD}, check=True)
        return
    chosen = [case for case in CASES if not names or any(n in case.name for n in names)]
    columns = ("numpy", "exact", "fast", "numba", "numba fast")
    print(f"{'milliseconds':<42}" + "".join(f"{name:>12}" for name in columns))
    for case in chosen:
        least = {f.name: min(f.samples) for f in _measured(case, rounds)}
        shown = [f"{least[name]:>12.3g}" if name in least else "" for name in columns]
        print(f"{case.name:<42}{''.join(shown)}", flush=True)
        ratios = [f"{least['numpy'] / least[n]:>12.2f}" for n in columns if n in least]
        print(f"{'  times as fast as numpy':<42}{''.join(ratios)}", flush=True)
    print(f"{machine()}; least of {rounds} rounds\n")


if __name__ == "__main__":
    main(names=sys.argv[1:])
