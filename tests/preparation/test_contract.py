"""The contract phase: what the target cannot take is refused before anything else."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from accy_async.compiler.preparation import (
    FragmentCompilerOptions,
    TargetProfile,
    prepare,
)
from accy_async.compiler.semantic import TensorType
from accy_async.dtypes import DType
from accy_async.errors import (
    CapabilityMismatch,
    InvalidArtifact,
    InvalidType,
    KernelEntryMissing,
    PassFailed,
    UnsupportedOperation,
)
from tests.preparation.calls import registry
from tests.preparation.harness import CPU, CUDA, module_of, prepared

VECTOR = TensorType(DType.F32, (8,))


def without(dtype: DType) -> TargetProfile:
    lacking = attrs.evolve(CPU.capabilities, dtypes=CPU.capabilities.dtypes - {dtype})
    return attrs.evolve(CPU, capabilities=lacking)


def test_a_parameter_of_a_dtype_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(
        CapabilityMismatch, match=r"parameter p1 is f64\[2\].*lacks f64"
    ):
        prepared("f32[2] f64[2]", lambda f, x, y: x, without(DType.F64))


def test_an_operation_that_gives_such_a_dtype_is_refused() -> None:
    with pytest.raises(CapabilityMismatch, match=r"convert: the result is f64\[2\]"):
        prepared("f32[2]", lambda f, x: f.convert(x, "f64"), without(DType.F64))


def test_a_kernel_that_the_registry_lacks_is_named_with_what_there_is() -> None:
    def program(f: Any, x: Any) -> Any:
        return f.kernel_call([x], [VECTOR], target="test.double", version=7)

    with pytest.raises(KernelEntryMissing, match=r"version 7.*has version 1"):
        prepared("f32[8]", program, kernel_call_registry=registry())
    with pytest.raises(KernelEntryMissing, match="nothing of that name"):
        prepared("f32[8]", program)


def test_calls_within_loops_are_checked_too() -> None:
    def program(f: Any, x: Any) -> Any:
        return f.loop(
            2, [x], lambda f, x: f.kernel_call([x], [VECTOR], target="missing")
        )

    with pytest.raises(KernelEntryMissing):
        prepared("f32[8]", program, kernel_call_registry=registry())


@pytest.mark.parametrize(
    ("types", "operands", "message"),
    [
        ("f32[8]", 2, "takes 2 buffers, the call has 1 results and 2 operands"),
        ("i32[8]", 1, r"takes f32 for buffer 0, the call has i32\[8\]"),
    ],
)
def test_a_call_that_does_not_fit_its_kernel_fails_in_its_pass(
    types: str, operands: int, message: str
) -> None:
    def program(f: Any, x: Any) -> Any:
        return f.kernel_call([x] * operands, [x.type], target="test.double")

    with pytest.raises(PassFailed, match=message) as caught:
        prepared(types, program, kernel_call_registry=registry())
    assert caught.value.pipeline == "contract"
    assert caught.value.pass_name == "kernel_calls"
    assert caught.value.target_op == "kernel_call"


def test_options_for_another_target_are_refused() -> None:
    module = module_of("f32[2]", lambda f, x: f.neg(x))
    with pytest.raises(UnsupportedOperation, match="ask for cuda_ptx"):
        prepare(module, CPU, FragmentCompilerOptions(artifact_format="cuda_ptx"))
    with pytest.raises(UnsupportedOperation, match="mathematics"):
        prepare(module, CPU, FragmentCompilerOptions(math_tier="fused"))
    with pytest.raises(InvalidType, match=r"prepare\.module"):
        prepare(module.entry, CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "option",
    [
        "generated_scan_schedule_tuning_artifact",
        "generated_row_pipeline_schedule_tuning_artifact",
        "matrix_product_schedule_tuning_artifact",
        "family_tuning_artifact",
    ],
)
def test_a_damaged_artifact_is_refused_before_the_program_is_looked_at(
    option: str,
) -> None:
    with pytest.raises(InvalidArtifact) as caught:
        prepared("f32[2]", lambda f, x: f.neg(x), CUDA, **{option: b"\1\2\3"})
    assert caught.value.offset is not None
