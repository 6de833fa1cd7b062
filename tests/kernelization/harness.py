"""Work items run on this host's CPU and compared with the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from accy_async.artifact.entry import ElementCountArgument
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.planned import CompileLaunch
from accy_async.backends.capabilities import Capabilities, DeviceIdentity
from accy_async.compiler.kernelization import (
    KernelizedWork,
    KernelStep,
    MathTier,
    TargetProfile,
    WorkItem,
    kernelize,
)
from accy_async.compiler.kernelization.schedules import Schedule
from accy_async.compiler.semantic import (
    Builder,
    Function,
    FunctionBuilder,
    TensorType,
    Value,
    evaluate,
)
from accy_async.compiler.semantic.numbers import decode, encode
from accy_async.dtypes import DType
from tests.compiler.harness import compiled

Array = np.ndarray[Any, Any]
Make = Callable[..., Value | Sequence[Value]]

FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
UNIT = {
    DType.F16: 2.0**-11,
    DType.BF16: 2.0**-8,
    DType.F32: 2.0**-24,
    DType.F64: 2.0**-53,
}
"""Half a unit in the last place of 1: the error of one rounding."""


def profile(
    format: ArtifactFormat = ArtifactFormat.CPU_MACHINE_CODE,
    tier: MathTier = MathTier.EXACT,
) -> TargetProfile:
    identity = DeviceIdentity(backend=format.backend, name="test", compute_units=4)
    capabilities = Capabilities(identity=identity, formats=frozenset({format}))
    return TargetProfile(capabilities=capabilities, format=format, math_tier=tier)


CPU = profile()
CUDA = profile(ArtifactFormat.CUDA_PTX)
VULKAN = profile(ArtifactFormat.VULKAN_SPIRV)
METAL = profile(ArtifactFormat.METAL_MSL)


def function(types: Sequence[TensorType | str], make: Make) -> Function:
    """A function of values of these types; ``make`` takes its builder and them."""
    builder = Builder("test")
    settled = [t if isinstance(t, TensorType) else TensorType.parse(t) for t in types]
    f: FunctionBuilder = builder.begin_function("f", settled)
    made = make(f, *f.parameters)
    f.return_([made] if isinstance(made, Value) else list(made))
    f.finish()
    return builder.finish().entry


def item(kind: str, of: Function) -> WorkItem:
    return WorkItem(
        work_item_id=0,
        kind=CompileLaunch(kind),
        function=of,
        op_count=max(1, len(of.operations)),
    )


def samples(types: Sequence[TensorType], seed: int = 0) -> list[Array]:
    """Arguments of every kind of number, small enough not to overflow sums."""
    generator = np.random.default_rng(seed)
    arrays: list[Array] = []
    for type in types:
        dtype = type.dtype
        if dtype is DType.BOOL:
            arrays.append(generator.random(type.shape) < 0.5)
        elif dtype.is_float:
            values = generator.standard_normal(type.shape)
            arrays.append(decode(encode(np.asarray(values), type), type))
        else:
            low = -50 if dtype.is_signed else 0
            arrays.append(generator.integers(low, 50, type.shape).astype(dtype.numpy))
    return arrays


def memory(array: Array, type: TensorType) -> Array:
    """The array as its bytes lie in a buffer."""
    data = np.frombuffer(encode_all(array, type), np.uint8)
    return data.copy()


def encode_all(array: Array, type: TensorType) -> bytes:
    if type.dtype is DType.BF16:
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint16).tobytes()
    return np.ascontiguousarray(array, type.dtype.numpy).tobytes()


def run(
    work: KernelizedWork, of: Function, arguments: Sequence[Array], candidate: int = 0
) -> list[Array]:
    """Launch the steps in order; the results."""
    buffers = {
        "result": [np.full(t.byte_size, 0xA5, np.uint8) for t in of.result_types],
        "operand": [
            memory(a, t) for a, t in zip(arguments, of.parameter_types, strict=True)
        ],
        "scratch": [np.full(t.byte_size, 0xA5, np.uint8) for t in work.scratch],
    }
    for step in work.steps:
        launch(step, buffers, candidate)
    return [
        decode(data.tobytes(), type)
        for data, type in zip(buffers["result"], of.result_types, strict=True)
    ]


def launch(step: KernelStep, buffers: dict[str, list[Array]], candidate: int) -> None:
    arrays = [buffers[str(b.origin)][b.index] for b in step.arguments]
    if step.element_count_argument is ElementCountArgument.BUFFER_U32:
        arrays.append(np.array([step.element_count], np.uint32))
    candidates = step.launch_resources.candidates
    grid = candidates[min(candidate, len(candidates) - 1)].geometry.grid
    if 0 in grid:
        return
    with compiled(step.kernel) as runner:
        assert runner.run(step.kernel.name, arrays, (), grid) == 0


def check(
    kind: str,
    types: Sequence[TensorType | str],
    make: Make,
    *,
    roundings: float = 0,
    scale: Callable[..., Array] | None = None,
    arguments: Sequence[Array] | None = None,
    target: TargetProfile = CPU,
    schedule: Schedule | None = None,
    candidate: int = 0,
) -> KernelizedWork:
    """Run a work item; its results must be the reference's within an error.

    The error of a float may be ``roundings`` roundings of a number as large as the
    result, or as ``scale`` gives for the arguments: sums have errors in proportion to
    the sum of magnitudes. Integers, truth values and NaNs must be the reference's.
    Targets other than the CPU run on it too: the form means the same everywhere.
    """
    of = function(types, make)
    given = list(samples(of.parameter_types) if arguments is None else arguments)
    work = kernelize(item(kind, of), target, schedule)
    actual = run(work, of, given, candidate)
    expected = evaluate(of, given)
    exact = evaluate(of, given, precision="float64")
    for index, type in enumerate(of.result_types):
        if not type.dtype.is_float:
            np.testing.assert_array_equal(actual[index], expected[index])
            continue
        compare(actual[index], exact[index], type.dtype, roundings, scale, given)
        if not roundings:
            np.testing.assert_array_equal(actual[index], expected[index])
    return work


def compare(
    actual: Array,
    exact: Array,
    dtype: DType,
    roundings: float,
    scale: Callable[..., Array] | None,
    given: Sequence[Array],
) -> None:
    if not roundings:
        return
    with np.errstate(all="ignore"):
        wide = actual.astype(np.float64)
        size = np.abs(exact) if scale is None else scale(*given)
        bound = roundings * UNIT[dtype] * size + float(np.finfo(np.float32).tiny)
        if dtype is DType.F16:
            bound = bound + 2.0**-24
        finite = np.isfinite(exact) & np.isfinite(wide)
        np.testing.assert_array_equal(np.isnan(wide), np.isnan(exact))
        wrong = finite & (np.abs(wide - exact) > bound)
    assert not wrong.any(), (
        f"{np.count_nonzero(wrong)} of {wrong.size} are off by up to "
        f"{np.max(np.abs(wide - exact)[wrong])}"
    )
