"""Generated kernels on one core against numpy on one core.

Each kernel is what `accy_async.compiler.kernelization` makes for the CPU, called as the
backend calls it, over its whole grid by one thread: what a launch and a wait cost on
top is in `launch_cost`. numpy runs in the same process, in turns with it, and its BLAS
is held to one thread too.
"""

from __future__ import annotations

import ctypes
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

__all__ = ["CASES", "Case", "main"]

_ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1"
)
_LENGTH = 10_000_000

Make = Callable[..., Value]


@attrs.frozen
class Case:
    """One function, as a work item and in numpy."""

    name: str
    kind: str
    types: tuple[str, ...]
    make: Make
    numpy: Callable[..., object]


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
    ),
    Case(
        "exp of 10M",
        "elementwise",
        (f"f32[{_LENGTH}]",),
        lambda f, a: f.exp(a),
        np.exp,
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
    ),
    Case(
        "sum of each row of 3000 x 3000",
        "reduction",
        ("f32[3000,3000]",),
        lambda f, a: f.reduce(a, "sum", [1]),
        lambda a: a.sum(1),
    ),
    Case(
        "sum of each column of 3000 x 3000",
        "reduction",
        ("f32[3000,3000]",),
        lambda f, a: f.reduce(a, "sum", [0]),
        lambda a: a.sum(0),
    ),
    Case(
        "softmax of each row of 4096 x 1024",
        "row_pipeline",
        ("f32[4096,1024]",),
        lambda f, a: f.softmax(a),
        _softmax,
    ),
    Case(
        "layer norm of each row of 4096 x 1024",
        "row_pipeline",
        ("f32[4096,1024]",),
        _layer_norm,
        _numpy_layer_norm,
    ),
    Case(
        "cumulative sum of 10M",
        "scan",
        (f"f32[{_LENGTH}]",),
        lambda f, a: f.scan(a, "sum", 0),
        np.cumsum,
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


def _profile() -> TargetProfile:
    format = ArtifactFormat.CPU_MACHINE_CODE
    identity = DeviceIdentity(backend=BackendKind.CPU, name="one core")
    return TargetProfile(
        capabilities=Capabilities(identity=identity, formats=frozenset({format})),
        format=format,
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
    work = kernelize(
        WorkItem(work_item_id=0, kind=CompileLaunch(case.kind), function=function),
        _profile(),
    )
    with ExitStack() as stack:
        native = _native(stack, work, function, arguments)
        expected = np.asarray(case.numpy(*arguments))
        if not np.allclose(native(), expected, rtol=1e-2, atol=1e-2):
            raise AssertionError(f"{case.name}: the results differ from numpy's")
        return in_rounds(
            {
                "numpy": _milliseconds(lambda: case.numpy(*arguments)),
                "generated": _milliseconds(native),
            },
            rounds,
        )


def main(rounds: int = 9) -> None:
    if any(os.environ.get(name) != value for name, value in _ONE_THREAD.items()):
        # A BLAS reads these when it is loaded, which in this process it may have been.
        command = [sys.executable, "-m", "benchmarks.fragments"]
        subprocess.run(command, env={**os.environ, **_ONE_THREAD}, check=True)
        return
    print(f"{'what':<45}{'numpy ms':>10}{'generated':>11}{'times as fast':>15}")
    for case in CASES:
        theirs, ours = (min(figure.samples) for figure in _measured(case, rounds))
        print(f"{case.name:<45}{theirs:>10.3g}{ours:>11.3g}{theirs / ours:>15.2f}")
    print(f"{machine()}; least of {rounds} rounds\n")


if __name__ == "__main__":
    main()
