"""What holds of every prepared job, found without a look at how it was made."""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.artifact.slots import PlannedSlot, SlotRole
from accy_async.compiler.preparation import PreparedJob
from accy_async.compiler.preparation.kernel import PreparedKernel

__all__ = ["check_soundness"]


def check_soundness(job: PreparedJob) -> None:
    """Run the plan on names instead of numbers, in every order that its slots allow.

    Each buffer holds the name of what was last written into it. A kernel must find in
    its operands what dispatch says that it reads, whichever kernels that need not wait
    for each other went first: for that the plan is run forwards, and with each kernel
    as late and as early as the order between writers and readers lets it.
    """
    plan = job.target.plan
    slots, kernels = plan.slots, [kernel.prepared for kernel in job.target.kernels]
    needs = orders(kernels)
    forward = list(range(len(kernels)))
    late = sorted(forward, key=lambda k: (depth(needs)[k], -k))
    for order in (forward, late, eager(needs)):
        expected, actual = (
            run(job, slots, kernels, order),
            run(job, slots, kernels, forward),
        )
        assert expected == actual
    check_values(job, slots)
    check_no_new_waits(job)


def orders(kernels: Sequence[PreparedKernel]) -> list[set[int]]:
    """What each kernel waits for: writers of what it reads, users of what it writes."""
    writer: dict[int, int] = {}
    users: dict[int, set[int]] = {}
    needs: list[set[int]] = []
    for number, kernel in enumerate(kernels):
        waits: set[int] = set()
        for argument in kernel.arguments:
            if argument.slot_id in writer:
                waits.add(writer[argument.slot_id])
            if argument.is_written:
                waits |= users.get(argument.slot_id, set())
        waits.discard(number)
        for argument in kernel.arguments:
            users.setdefault(argument.slot_id, set()).add(number)
            if argument.is_written:
                writer[argument.slot_id] = number
        needs.append(waits)
    return needs


def depth(needs: Sequence[set[int]]) -> list[int]:
    """Kernels on the longest way to each."""
    found: list[int] = []
    for waits in needs:
        found.append(max((found[other] + 1 for other in waits), default=0))
    return found


def eager(needs: Sequence[set[int]]) -> list[int]:
    """An order that takes the last kernel that may run."""
    done: list[int] = []
    while len(done) < len(needs):
        ready = [
            number
            for number, waits in enumerate(needs)
            if number not in done and waits <= set(done)
        ]
        done.append(ready[-1])
    return done


def run(
    job: PreparedJob,
    slots: Sequence[PlannedSlot],
    kernels: Sequence[PreparedKernel],
    order: Sequence[int],
) -> list[object]:
    """What is in each output at last, as the kernel and the names it was made of."""
    held: dict[int, object] = {}
    for slot in slots:
        if slot.role in (SlotRole.INPUT, SlotRole.CONSTANT):
            held[slot.slot_id] = hash(("given", slot.slot_id))
    for number in order:
        kernel = kernels[number]
        read = []
        for argument in kernel.arguments:
            if argument.access == "read_only":
                assert argument.slot_id in held, "read before it was written"
                read.append(held[argument.slot_id])
        for place, argument in enumerate(kernel.arguments):
            if argument.is_written:
                role = slots[argument.slot_id].role
                assert role is not SlotRole.CONSTANT, "a constant is written"
                held[argument.slot_id] = hash((number, place, tuple(read)))
    return [held[slot_id] for slot_id in job.target.plan.memory.output_slot_ids]


def check_values(job: PreparedJob, slots: Sequence[PlannedSlot]) -> None:
    """Each launch finds in its operands just the values that dispatch named."""
    memory, dispatched = job.target.plan.memory, job.dispatch
    held: dict[int, object] = dict(
        zip(memory.input_slot_ids, dispatched.function.parameters, strict=True)
    )
    items = iter(dispatched.items)
    copies = {}
    for slot in slots:
        if slot.role is SlotRole.CONSTANT and slot.is_bound:
            held[slot.slot_id] = None
    for placed in memory.items:
        if placed.item.opcode == "copy":
            (source,), (target,) = placed.operand_slot_ids, placed.result_slot_ids
            held[target] = held[source]
            copies[target] = True
            continue
        item = next(items)
        for slot_id, value in zip(placed.operand_slot_ids, item.operands, strict=True):
            base = dispatched.base(value)
            if base in dispatched.constants:
                continue
            assert held[slot_id] == base, f"{value!r} is not in slot {slot_id}"
            assert slots[slot_id].byte_size >= value.type.byte_size
        for slot_id, value in zip(placed.result_slot_ids, item.results, strict=True):
            held[slot_id] = value
            assert slots[slot_id].byte_size >= value.type.byte_size
    results = dispatched.function.results
    for slot_id, value in zip(memory.output_slot_ids, results, strict=True):
        base = dispatched.base(value)
        assert base in dispatched.constants or held[slot_id] == base
        slot = slots[slot_id]
        assert (slot.dtype, slot.shape) == (value.dtype, value.shape)
        assert slot.role is not SlotRole.SCRATCH


def check_no_new_waits(job: PreparedJob) -> None:
    """Sharing scratch orders no two work items that were not ordered before."""
    memory = job.target.plan.memory
    needs: list[set[int]] = []
    writer: dict[int, int] = {}
    users: dict[int, set[int]] = {}
    for number, placed in enumerate(memory.items):
        waits: set[int] = set()
        for slot_id in (*placed.operand_slot_ids, *placed.result_slot_ids):
            if slot_id in writer:
                waits.add(writer[slot_id])
        for slot_id in placed.result_slot_ids:
            waits |= users.get(slot_id, set())
        for slot_id in (*placed.operand_slot_ids, *placed.result_slot_ids):
            users.setdefault(slot_id, set()).add(number)
        for slot_id in placed.result_slot_ids:
            writer[slot_id] = number
        waits.discard(number)
        assert all(placed.before >> other & 1 for other in waits)
        needs.append(waits)
