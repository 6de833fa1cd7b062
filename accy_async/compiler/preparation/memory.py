"""The fourth phase: slots for values, and each launch's arguments.

Parameters, results and constants have slots of their own. Scratch is used again, but
never so that a launch would have to wait for one that it need not wait for anyway:
a slot is free for a launch if all that used it before come before the launch in any
case. So sharing memory costs no parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.slots import PlannedArgument, PlannedSlot, SlotRole
from accy_async.compiler.preparation.dispatch import DispatchItem, DispatchPlan
from accy_async.compiler.preparation.passes import Pipeline
from accy_async.compiler.preparation.tenants import Launch, Tenancy, Tenant, ancestors
from accy_async.compiler.semantic import (
    Constant,
    Reduce,
    ReductionKind,
    Scan,
    TensorType,
)
from accy_async.dtypes import DType, ScalarArgument

__all__ = ["MEMORY_PASSES", "MemoryItem", "MemoryPlan", "ScratchPool", "plan_memory"]

MEMORY_PASSES = ("aliasing", "slots", "arguments")
"""The passes of the phase."""


@attrs.frozen(kw_only=True, eq=False)
class MemoryItem:
    """A work item with the slots that it works on.

    Attributes:
        work_item_id: its number, from 0.
        item: what it computes.
        result_slot_ids: the slots written, in the order of the kernel's arguments.
        operand_slot_ids: the slots read, in that order.
        taken: for a kernel call, the results whose memory was an operand's.
        before: a number whose bits are the launches that come before in any case.
    """

    work_item_id: int
    item: DispatchItem
    result_slot_ids: tuple[int, ...]
    operand_slot_ids: tuple[int, ...]
    taken: frozenset[int]
    before: int

    def arguments(self) -> tuple[PlannedArgument, ...]:
        """The arguments of a kernel of one step: results, then operands."""
        return tuple(
            PlannedArgument(
                slot_id=slot_id,
                access="read_write" if number in self.taken else "write_only",
            )
            for number, slot_id in enumerate(self.result_slot_ids)
        ) + tuple(
            PlannedArgument(slot_id=slot_id, access="read_only")
            for slot_id in self.operand_slot_ids
        )


@attrs.frozen(kw_only=True, eq=False)
class MemoryPlan:
    """Where everything lies.

    Attributes:
        slots: all buffers so far; kernels of several steps add theirs.
        items: the launches, in an order in which they can run.
        input_slot_ids: the slots of the parameters.
        output_slot_ids: the slots of the results.
    """

    slots: tuple[PlannedSlot, ...]
    items: tuple[MemoryItem, ...]
    input_slot_ids: tuple[int, ...]
    output_slot_ids: tuple[int, ...]

    @property
    def scratch_bytes(self) -> int:
        """Bytes of all scratch."""
        scratch = (slot for slot in self.slots if slot.role is SlotRole.SCRATCH)
        return sum(slot.byte_size for slot in scratch)


@attrs.define
class _Scratch:
    number: int
    type: TensorType
    users: int
    """A bit for each launch that used it so far."""


class ScratchPool:
    """Scratch buffers, each used again as soon as that delays nobody.

    What a launch takes it must take in the launches' order.
    """

    def __init__(self) -> None:
        self._buffers: list[_Scratch] = []

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The type of each buffer: of the largest that was ever in it."""
        return tuple(buffer.type for buffer in self._buffers)

    def take(self, type: TensorType, before: int, users: int) -> int:
        """The number of a buffer for a value.

        Of those that are free the smallest that is large enough, else the largest,
        which grows.

        Args:
            type: the value's.
            before: the launches that come before its first writer in any case.
            users: the launches that write or read it.
        """
        free = [b for b in self._buffers if b.users & ~before == 0]
        fitting = [b for b in free if b.type.byte_size >= type.byte_size]
        if fitting:
            chosen = min(fitting, key=lambda b: (b.type.byte_size, b.number))
        elif free:
            chosen = max(free, key=lambda b: (b.type.byte_size, -b.number))
            chosen.type = type
        else:
            chosen = _Scratch(len(self._buffers), type, 0)
            self._buffers.append(chosen)
        chosen.users |= users
        return chosen.number


def plan_memory(plan: DispatchPlan, pipeline: Pipeline) -> MemoryPlan:
    """Slots for the values of a program, and which launch works on which."""
    tenancy = pipeline.run("aliasing", Tenancy, plan)
    before = ancestors(tenancy.launches)
    slots, numbers = pipeline.run("slots", _slots, tenancy, before)
    items = pipeline.run("arguments", _items, tenancy.launches, numbers, before)
    return MemoryPlan(
        slots=slots,
        items=items,
        input_slot_ids=tuple(numbers[id(t)] for t in tenancy.parameters),
        output_slot_ids=tuple(numbers[id(t)] for t in tenancy.results),
    )


def _items(
    launches: Sequence[Launch], numbers: dict[int, int], before: Sequence[int]
) -> tuple[MemoryItem, ...]:
    return tuple(
        MemoryItem(
            work_item_id=number,
            item=launch.item,
            result_slot_ids=tuple(numbers[id(t)] for t in launch.results),
            operand_slot_ids=tuple(numbers[id(t)] for t in launch.operands),
            taken=launch.taken,
            before=before[number],
        )
        for number, launch in enumerate(launches)
    )


def _slots(
    tenancy: Tenancy, before: Sequence[int]
) -> tuple[tuple[PlannedSlot, ...], dict[int, int]]:
    """All slots, and the slot of each tenant by its identity."""
    slots: list[PlannedSlot] = []
    numbers: dict[int, int] = {}
    pool = ScratchPool()
    in_pool: dict[int, int] = {}
    for tenant in tenancy.tenants:
        if tenant.is_scratch:
            users = sum(1 << number for number in tenant.users)
            first = before[tenant.writers[0]]
            in_pool[id(tenant)] = pool.take(tenant.type, first, users)
        else:
            numbers[id(tenant)] = len(slots)
            slots.append(_slot(tenant, len(slots)))
    folded = _folded(tenancy.launches)
    slots += [_unbound(op, slot_id) for slot_id, op in enumerate(folded, len(slots))]
    begin = len(slots)
    slots += [scratch_slot(type, i) for i, type in enumerate(pool.types, begin)]
    numbers.update((tenant, begin + number) for tenant, number in in_pool.items())
    return tuple(slots), numbers


def scratch_slot(type: TensorType, slot_id: int) -> PlannedSlot:
    """A scratch slot."""
    return PlannedSlot(
        slot_id=slot_id, role=SlotRole.SCRATCH, dtype=type.dtype, shape=type.shape
    )


def _slot(tenant: Tenant, slot_id: int) -> PlannedSlot:
    role = SlotRole.OUTPUT
    data = None
    if tenant.parameter is not None:
        role = SlotRole.INPUT
    elif tenant.constant is not None:
        role = SlotRole.CONSTANT
        data = tenant.constant.data
        if tenant.constant.is_splat:
            data *= tenant.type.element_count
    return PlannedSlot(
        slot_id=slot_id,
        role=role,
        dtype=tenant.type.dtype,
        shape=tenant.type.shape,
        data=data,
    )


def _unbound(op: Constant, slot_id: int) -> PlannedSlot:
    return PlannedSlot(
        slot_id=slot_id,
        role=SlotRole.CONSTANT,
        dtype=op.type.dtype,
        shape=op.type.shape,
        data=op.data,
        is_bound=False,
    )


def _folded(launches: Sequence[Launch]) -> list[Constant]:
    """The constants that kernels have in their code, each once; splats as one element.

    The number that a reduction starts from is one of them.
    """
    found: dict[Constant, None] = {}
    for launch in launches:
        function = launch.item.function
        if function is None:
            continue
        for entry in function.operations:
            match entry.op:
                case Constant() as op if op.data:
                    type = TensorType(op.type.dtype, ()) if op.is_splat else op.type
                    found[Constant(type, op.data)] = None
                case Reduce(kind=kind, accumulate=accumulate):
                    found[_start(ReductionKind(kind), accumulate)] = None
                case Scan(kind=scan, accumulate=accumulate):
                    found[_start(ReductionKind(scan.value), accumulate)] = None
                case _:
                    pass
    return list(found)


def _start(kind: ReductionKind, dtype: DType) -> Constant:
    """What changes nothing in a reduction."""
    value: bool | float
    if kind in (ReductionKind.SUM, ReductionKind.MEAN):
        value = 0
    elif kind is ReductionKind.PRODUCT:
        value = 1
    elif dtype is DType.BOOL:
        value = kind is ReductionKind.MINIMUM
    elif dtype.is_float:
        value = float("inf") if kind is ReductionKind.MINIMUM else float("-inf")
    else:
        value = dtype.maximum if kind is ReductionKind.MINIMUM else dtype.minimum
    data = ScalarArgument.of(dtype, value).to_bytes()
    return Constant(TensorType(dtype, ()), data)
