"""Artifact plans: what they refuse, and what follows from their parts."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from accy_async.artifact import (
    ArtifactFormat,
    ArtifactPlan,
    CompileLaunch,
    FixedLaunch,
    KernelArtifact,
    KernelSource,
    LaunchResourceCandidate,
    LaunchResourcePlan,
    PlannedArgument,
    PlannedKernel,
    PlannedSlot,
    SlotRole,
)
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import InvalidArtifact, InvalidValue

GEOMETRY = FixedLaunch(grid=(1, 1, 1), threadgroup=(32, 1, 1))


def slot(number: int, role: SlotRole, **more: Any) -> PlannedSlot:
    more.setdefault("shape", (2, 4))
    return PlannedSlot(slot_id=number, role=role, dtype=DType.F32, **more)


def kernel(number: int, *slots: tuple[int, str], **more: Any) -> PlannedKernel:
    arguments = [PlannedArgument(slot_id=s, access=access) for s, access in slots]
    scalars = len(more.get("static_arguments", ()))
    counted = more.get("element_count_argument", "none") != "none"
    return PlannedKernel(
        kernel_id=number,
        work_item_id=10 + number,
        source=KernelSource.TENSOR,
        compile_launch=CompileLaunch.ELEMENTWISE,
        artifact=KernelArtifact(
            kernel_name=f"k{number}",
            format=ArtifactFormat.CUDA_PTX,
            argument_count=len(slots) + scalars + int(counted),
            scalar_argument_count=scalars,
            payload="code",
        ),
        arguments=arguments,
        launch=GEOMETRY,
        launch_resources=LaunchResourcePlan(
            candidates=(LaunchResourceCandidate(geometry=GEOMETRY),)
        ),
        **more,
    )


def plan(**more: Any) -> ArtifactPlan:
    fields: dict[str, Any] = {
        "name": "program",
        "format": ArtifactFormat.CUDA_PTX,
        "slots": (
            slot(0, SlotRole.INPUT),
            slot(1, SlotRole.SCRATCH),
            slot(2, SlotRole.OUTPUT),
        ),
        "kernels": (
            kernel(0, (1, "write_only"), (0, "read_only")),
            kernel(1, (2, "write_only"), (1, "read_only")),
        ),
        "input_slot_ids": (0,),
        "output_slot_ids": (2,),
    }
    return ArtifactPlan(**{**fields, **more})


def test_kernels_and_slots_are_found() -> None:
    made = plan()
    assert made.kernel_count == 2
    assert made.kernel(1) is made.kernel_for_work(11)
    assert made.slot(2).byte_size == 32
    for missing in (made.kernel, made.slot, made.kernel_for_work):
        with pytest.raises(InvalidArtifact, match="program"):
            missing(7)


def test_arguments_are_counted_with_count_and_statics() -> None:
    statics = (ScalarArgument.u32(7),)
    with_buffer = kernel(
        0,
        (1, "write_only"),
        (0, "read_only"),
        element_count_argument="buffer_u32",
        static_arguments=statics,
    )
    assert with_buffer.buffer_argument_count == 3
    assert with_buffer.scalar_argument_count == 1
    assert with_buffer.output_slot_ids == (1,)
    assert with_buffer.input_slot_ids == (0,)
    with pytest.raises(InvalidValue, match="2 buffers and 2 scalars"):
        attrs.evolve(
            with_buffer,
            element_count_argument="scalar_u32",
            artifact=attrs.evolve(with_buffer.artifact, argument_count=3),
        )


def test_an_aliased_result_is_written_and_read() -> None:
    updated = kernel(0, (0, "read_write"), (0, "read_only"))
    assert updated.output_slot_ids == (0,)
    assert updated.input_slot_ids == (0, 0)


def test_scratch_is_written_before_it_is_read() -> None:
    made = plan()
    first, second = made.kernels
    swapped = (attrs.evolve(second, kernel_id=0), attrs.evolve(first, kernel_id=1))
    with pytest.raises(InvalidValue, match="a kernel before it writes"):
        plan(kernels=swapped)


@pytest.mark.parametrize("field", ["input_slot_ids", "output_slot_ids"])
def test_slots_named_are_there(field: str) -> None:
    with pytest.raises(InvalidValue, match=rf"{field}.*below 3"):
        plan(**{field: (3,)})


def test_ids_count_up() -> None:
    with pytest.raises(InvalidValue, match="ids count up from 0"):
        plan(kernels=plan().kernels[1:])


def test_constants_have_their_bytes_and_nothing_else_does() -> None:
    constant = slot(0, SlotRole.CONSTANT, data=bytes(32), is_bound=False)
    assert constant.element_count == 8
    with pytest.raises(InvalidValue, match="a constant's 32 bytes"):
        slot(0, SlotRole.CONSTANT, data=bytes(31))
    with pytest.raises(InvalidValue, match="a constant's 32 bytes"):
        slot(0, SlotRole.CONSTANT)
    with pytest.raises(InvalidValue, match="None but for a constant"):
        slot(0, SlotRole.INPUT, data=bytes(32))
    with pytest.raises(InvalidValue, match="is_bound"):
        slot(0, SlotRole.INPUT, is_bound=False)


def test_layouts_and_plans_are_fingerprinted_by_content() -> None:
    made = plan()
    assert made.fingerprint == plan(name="another").fingerprint
    assert made.fingerprint != plan(output_slot_ids=(1,)).fingerprint
    flat = slot(0, SlotRole.INPUT, shape=(8,))
    assert flat.layout_fingerprint != made.slots[0].layout_fingerprint
