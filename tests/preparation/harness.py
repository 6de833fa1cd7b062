"""Programs prepared for targets, and plans run on this host's CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from accy_async.artifact.entry import ElementCountArgument
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.native.abi import LaunchBlock
from accy_async.artifact.native.loader import load_machine_code
from accy_async.artifact.planned import ArtifactPlan, PlannedKernel
from accy_async.artifact.slots import SlotRole
from accy_async.compiler.kernelization import TargetProfile
from accy_async.compiler.preparation import (
    FragmentCompilerOptions,
    PreparedJob,
    compile_plan,
    prepare,
)
from accy_async.compiler.semantic import (
    Builder,
    FunctionBuilder,
    Module,
    TensorType,
    Value,
    evaluate,
)
from accy_async.compiler.semantic.numbers import decode
from tests.kernelization.harness import CPU, CUDA, METAL, VULKAN, memory
from tests.preparation.soundness import check_soundness
from tests.semantic.samples import array_of

Array = np.ndarray[Any, np.dtype[Any]]
Make = Callable[..., Value | Sequence[Value]]

__all__ = [
    "CPU",
    "CUDA",
    "METAL",
    "VULKAN",
    "module_of",
    "prepared",
    "run_plan",
    "runs_like_the_reference",
]

POISON = 0xA5


def module_of(types: str, make: Make, name: str = "program") -> Module:
    """A module of one function, of parameters of these types."""
    builder = Builder("module")
    f: FunctionBuilder = builder.begin_function(
        name, [TensorType.parse(text) for text in types.split()]
    )
    made = make(f, *f.parameters)
    f.return_([made] if isinstance(made, Value) else list(made))
    f.finish()
    return builder.finish()


def prepared(
    types: str, make: Make, profile: TargetProfile = CPU, **options: Any
) -> PreparedJob:
    """A program prepared with options."""
    return prepare(module_of(types, make), profile, FragmentCompilerOptions(**options))


def buffers_of(plan: ArtifactPlan, arguments: Sequence[Array]) -> list[Array]:
    """A buffer for each slot: arguments and constants as they are, the rest poison."""
    buffers = []
    for slot in plan.slots:
        data = np.full(slot.byte_size, POISON, np.uint8)
        if slot.role is SlotRole.CONSTANT and slot.is_bound:
            assert slot.data is not None
            data = np.frombuffer(slot.data, np.uint8).copy()
        buffers.append(data)
    for slot_id, array in zip(plan.input_slot_ids, arguments, strict=True):
        slot = plan.slots[slot_id]
        buffers[slot_id] = memory(array, TensorType(slot.dtype, slot.shape))
    return buffers


def run_plan(plan: ArtifactPlan, arguments: Sequence[Array]) -> list[Array]:
    """The results of a plan of machine code, its kernels run one after the other."""
    assert plan.format is ArtifactFormat.CPU_MACHINE_CODE
    buffers = buffers_of(plan, arguments)
    with ExitStack() as stack:
        for kernel in plan.kernels:
            payload = kernel.artifact.payload
            assert isinstance(payload, bytes)
            loaded = load_machine_code(payload, kernel.entry_name)
            stack.callback(loaded.close)
            launch(kernel, buffers, loaded.function)
    return [
        decode(
            buffers[slot_id].tobytes(),
            TensorType(plan.slots[slot_id].dtype, plan.slots[slot_id].shape),
        )
        for slot_id in plan.output_slot_ids
    ]


def launch(kernel: PlannedKernel, buffers: Sequence[Array], function: Any) -> None:
    """Run one kernel over its grid."""
    arrays = [buffers[argument.slot_id] for argument in kernel.arguments]
    if kernel.element_count_argument is ElementCountArgument.BUFFER_U32:
        arrays.append(np.array([kernel.element_count], np.uint32))
    scalars = [
        scalar.slot
        for scalar in (*kernel.runtime_scalar_defaults, *kernel.static_arguments)
    ]
    geometry = kernel.launch.geometry(kernel.runtime_scalar_defaults)
    slots = [array.ctypes.data for array in arrays] + scalars
    packed = (ctypes.c_uint64 * len(slots))(*slots)
    block = LaunchBlock(
        grid=geometry.grid,
        threadgroup=geometry.threadgroup,
        block_begin=0,
        block_end=geometry.block_count,
    )
    assert function(ctypes.addressof(packed), ctypes.byref(block)) == 0


def arguments_of(module: Module, seed: int = 0) -> list[Array]:
    """Random arguments for a module's entry."""
    rng = np.random.default_rng(seed)
    return [array_of(type, rng) for type in module.entry.parameter_types]


def runs_like_the_reference(
    module: Module,
    *,
    arguments: Sequence[Array] | None = None,
    tolerance: float = 1e-5,
    kernels: Any = None,
    profile: TargetProfile = CPU,
    **options: Any,
) -> ArtifactPlan:
    """The module's plan for this CPU, which gave what the reference gives."""
    given = arguments_of(module) if arguments is None else arguments
    settled = FragmentCompilerOptions(math_tier=profile.math_tier, **options)
    job = prepare(module, profile, settled)
    check_soundness(job)
    plan = compile_plan(job, cache=False)
    actual, expected = run_plan(plan, given), evaluate(module, given, kernels=kernels)
    for mine, reference, type in zip(
        actual, expected, module.entry.result_types, strict=True
    ):
        assert mine.shape == reference.shape
        if type.dtype.is_float:
            np.testing.assert_allclose(
                mine.astype(np.float64),
                reference.astype(np.float64),
                rtol=tolerance,
                atol=tolerance,
            )
        else:
            np.testing.assert_array_equal(mine, reference)
    return plan


def opcodes(job: PreparedJob) -> Iterator[str]:
    """The operations of the program after the tensor phase."""
    return (entry.op.opcode for entry in job.function.operations)
