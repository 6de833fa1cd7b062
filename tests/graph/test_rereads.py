"""Which copies from host memory wait on the host for the copies that write it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from accy_async.dtypes import DType
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.graph.rereads import HostCopies
from accy_async.graph.whereabouts import Whereabouts

PROCESSOR = SimpleNamespace(writes_block=False, pulls_in_order=False, is_processor=True)
GPU = SimpleNamespace(writes_block=True, pulls_in_order=False, is_processor=False)
PATIENT = SimpleNamespace(writes_block=True, pulls_in_order=True, is_processor=False)


def named(
    plan: LaunchGraphPlan,
    *devices: Any,
    places: object = None,
    bound: Mapping[str, np.ndarray] | None = None,
) -> dict[str, set[str]]:
    """What is found, by the nodes' names."""
    copies = HostCopies(
        plan, lambda number: devices[number], cast("Whereabouts | None", places)
    )
    found = copies.rereads(bound or {})
    names = [node.name for node in plan.nodes]
    return {names[i]: {names[one] for one in copies} for i, copies in found.items()}


def through_host_memory() -> LaunchGraphPlan:
    b = LaunchGraphBuilder()
    x, y = (b.scratch(name, DType.U32, 4) for name in "xy")
    h, other = (b.host(name, DType.U32, 4) for name in ("h", "other"))
    b.copy_in(other, x, name="first")
    b.copy_out(x, h, name="out")
    b.copy_in(h, y, name="in")
    b.copy_out(y, h, name="again")
    return b.build()


def test_a_copy_waits_for_those_that_write_what_it_reads() -> None:
    """The later one of them has not begun then, but in a loop."""
    assert named(through_host_memory(), GPU) == {"in": {"out", "again"}}


def test_slots_of_one_memory_are_one() -> None:
    memory = np.zeros(8, np.uint32)
    bound = {"h": memory[:4], "other": memory[2:6]}
    assert named(through_host_memory(), GPU, bound=bound) == {
        "first": {"out", "again"},
        "in": {"out", "again"},
    }


def test_streams_of_the_processor_come_to_host_memory_in_order() -> None:
    assert named(through_host_memory(), PROCESSOR) == {}


@pytest.mark.parametrize(
    ("device", "expected"), [(GPU, {"back": {"there"}}), (PATIENT, {})]
)
def test_memory_of_the_processor_as_another_device_counts_too(
    device: object, expected: dict[str, set[str]]
) -> None:
    b = LaunchGraphBuilder()
    x, z = (b.scratch(name, DType.U32, 4, device="cuda:0") for name in "xz")
    y = b.scratch("y", DType.U32, 4, device="cpu")
    b.fill(x, 1)
    b.copy(x, y, name="there")
    b.copy(y, z, name="back")
    b.copy(z, x, name="within")
    plan = b.build()
    where = {"x": 0, "y": 1, "z": 0}
    places = SimpleNamespace(
        nodes=(0, 0, 0, 0), slots=[where[slot.name] for slot in plan.slots]
    )
    assert named(plan, device, PROCESSOR, places=places) == expected
