"""Plans as values: looked up, compared, fingerprinted, and large."""

from __future__ import annotations

import functools
import random
import subprocess
import sys

import attrs
import pytest

from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import GraphError
from accy_async.graph.dataflow import dataflow_dependencies
from accy_async.graph.nodes import (
    BufferSlot,
    BufferUse,
    Fill,
    HostCall,
    HostSlot,
    KernelCall,
    LaunchGraphLoop,
    LaunchGraphNode,
    RuntimeScalar,
)
from accy_async.graph.plan import LaunchGraphPlan, function_name
from tests.graph.graphs import (
    edges,
    graph,
    host,
    host_function,
    idle,
    kernel,
    kernel_entry,
    slots,
)

ENTRY = kernel_entry(1, runtime_scalar_argument_count=1)


def base() -> LaunchGraphPlan:
    return LaunchGraphPlan(
        nodes=[
            LaunchGraphNode(
                name="k",
                operation=KernelCall(entry=ENTRY, buffers=(BufferUse("x"),)),
                runtime_scalars=(RuntimeScalar(0),),
            ),
            LaunchGraphNode(
                name="f", operation=Fill(target="y", value=ScalarArgument.f32(1.0))
            ),
            host("h"),
        ],
        dependencies=edges("k>f f>h"),
        loops=[LaunchGraphLoop(name="L", first="k", last="k", count=2)],
        slots=slots("xy"),
        runtime_scalar_count=1,
        external_events=("e",),
    )


def node(plan: LaunchGraphPlan, index: int, **fields: object) -> dict[str, object]:
    nodes = list(plan.nodes)
    nodes[index] = attrs.evolve(nodes[index], **fields)  # type: ignore[arg-type]
    return {"nodes": nodes}


BASE = base()
OTHER_ENTRY = kernel_entry(1, runtime_scalar_argument_count=1, payload="other code")
CHANGES: dict[str, dict[str, object]] = {
    "label": node(BASE, 0, stream="s"),
    "priority": node(BASE, 0, priority=1),
    "wait": node(BASE, 0, wait_events=("e",)),
    "signal": node(BASE, 0, signal_event="e"),
    "scalar": node(BASE, 0, runtime_scalars=(ScalarArgument.u32(1),)),
    "kernel": node(
        BASE, 0, operation=KernelCall(entry=OTHER_ENTRY, buffers=(BufferUse("x"),))
    ),
    "buffer": node(
        BASE, 0, operation=KernelCall(entry=ENTRY, buffers=(BufferUse("y"),))
    ),
    "access": node(
        BASE,
        0,
        operation=KernelCall(entry=ENTRY, buffers=(BufferUse("x", "read_only"),)),
    ),
    "value": node(BASE, 1, operation=Fill(target="y", value=ScalarArgument.f32(2.0))),
    "function": node(BASE, 2, operation=HostCall(function=print)),
    "reads": node(BASE, 2, operation=HostCall(function=host_function, reads=("y",))),
    "edge": {"dependencies": edges("k>f f>h k>h")},
    "count": {"loops": [LaunchGraphLoop(name="L", first="k", last="k", count=3)]},
    "no loop": {"loops": ()},
    "slot": {"slots": [*slots("xy"), *slots("z")]},
    "shape": {"slots": slots("xy", 5)},
    "scalars": {"runtime_scalar_count": 2},
    "events": {"external_events": ("e", "f")},
}


def test_fingerprint_is_the_same_for_equal_plans() -> None:
    """Made twice from the same parts, plans are equal, with one hash."""
    assert base() == BASE
    assert base().fingerprint == BASE.fingerprint
    assert hash(base()) == hash(BASE)
    assert 0 <= BASE.fingerprint < 2**64


@pytest.mark.parametrize("change", CHANGES)
def test_fingerprint_notices(change: str) -> None:
    """Whatever changes the plan changes the fingerprint."""
    changed = attrs.evolve(BASE, **CHANGES[change])  # type: ignore[arg-type]
    assert changed != BASE
    assert changed.fingerprint != BASE.fingerprint


def test_fingerprint_is_the_same_in_another_process() -> None:
    """It depends on nothing that a process makes up, like addresses or hash seeds."""
    code = "from tests.graph.test_plan import BASE; print(BASE.fingerprint)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert int(result.stdout) == BASE.fingerprint


class Callable:
    def __call__(self) -> None:
        """Nothing."""


def test_function_name_of_whatever_can_be_called() -> None:
    module = __name__
    assert function_name(host_function) == "tests.graph.graphs.host_function"
    assert function_name(functools.partial(host_function)) == (
        "tests.graph.graphs.host_function"
    )
    assert function_name(Callable()) == f"{module}.Callable"


def test_lookup_by_name() -> None:
    """Every part is found by its name, and a wrong name says what there is."""
    assert BASE.node("f") is BASE.nodes[1]
    assert BASE.slot("y") is BASE.slots[1]
    assert BASE.loop("L") is BASE.loops[0]
    assert (BASE.node_index["h"], BASE.slot_index["x"], BASE.loop_index["L"]) == (
        2,
        0,
        0,
    )
    with pytest.raises(GraphError, match="the plan has no node 'z'; it has 'k', 'f'"):
        BASE.node("z")
    with pytest.raises(GraphError, match="no slot 'z'"):
        BASE.slot("z")
    with pytest.raises(GraphError, match="no loop 'z'; it has none"):
        graph("a").loop("z")
    many = graph(" ".join(f"n{i}" for i in range(10)))
    with pytest.raises(GraphError, match=r"'n7', \.\.\.$"):
        many.node("z")
    assert repr(BASE) == (
        "<LaunchGraphPlan: 3 nodes, 2 dependencies, 1 loops, 2 slots>"
    )


def test_precedes_sees_through_loops() -> None:
    plan = graph(
        "a b c d",
        "a>b c>d",
        loops=[LaunchGraphLoop(name="L", first="b", last="c", count=1)],
    )
    assert plan.precedes("a", "c")
    assert plan.precedes("b", "d")
    assert not plan.precedes("b", "c")
    assert not plan.precedes("a", "a")


def test_empty_plan_is_a_plan() -> None:
    plan = LaunchGraphPlan()
    layout = plan.layout()
    assert (len(layout), layout.stream_count, layout.ends) == (0, 0, ())
    assert layout.is_static
    assert plan.explain()
    assert plan.to_dot()
    assert plan.to_svg()


def test_plans_take_lists_and_empty_slots() -> None:
    plan = LaunchGraphPlan(nodes=[idle("a")], slots=[HostSlot("h", DType.F32, 0)])
    assert plan.nodes == (idle("a"),)
    assert plan.slots[0].byte_size == 0


@pytest.mark.slow
def test_hundred_thousand_nodes() -> None:
    """A random dataflow graph of that size is built, validated and laid out."""
    chance = random.Random(1)
    names = [f"s{i}" for i in range(64)]
    every = [BufferSlot(name, DType.F32, 4) for name in names]
    entry = kernel_entry(2)
    nodes = []
    for i in range(100_000):
        one, two = chance.sample(names, 2)
        uses = (BufferUse(one, "read_only"), BufferUse(two))
        nodes.append(
            LaunchGraphNode(
                name=f"n{i}", operation=KernelCall(entry=entry, buffers=uses)
            )
        )
    found = dataflow_dependencies(nodes, every)
    plan = LaunchGraphPlan(nodes=nodes, dependencies=found, slots=every)
    layout = plan.layout(8)
    assert layout.stream_count == 8
    assert len(layout.order) == 100_000
    assert plan.fingerprint
    assert len(plan.explain().splitlines()) < 200
    assert len(plan.to_dot().splitlines()) < 4000
    assert "99800 more nodes" in plan.to_svg()


@pytest.mark.slow
def test_long_chain_over_one_slot() -> None:
    """Neither a long path nor many edges to one node take more than linear time."""
    nodes = [kernel(f"n{i}", "x", "x") for i in range(50_000)]
    plan = LaunchGraphPlan(
        nodes=nodes,
        dependencies=dataflow_dependencies(nodes, slots("x")),
        slots=slots("x"),
    )
    assert plan.layout(8).stream_count == 1
    nodes = [kernel(f"n{i}", "x") for i in range(20_000)]
    nodes.append(kernel("last", "x", "x"))
    plan = LaunchGraphPlan(
        nodes=nodes,
        dependencies=dataflow_dependencies(nodes, slots("x")),
        slots=slots("x"),
    )
    layout = plan.layout(8)
    assert layout.stream_count == 8
    assert len(layout.waits[-1]) == 7


@pytest.mark.slow
def test_order_found_far_away() -> None:
    """Hazards whose order is a long path do not take its length each to find."""
    count = 50_000
    nodes = [idle(f"n{i}") for i in range(count)]
    half = count // 2
    for i in range(0, half, 25):
        nodes[i] = kernel(f"n{i}", "", "x")
        nodes[i + half] = kernel(f"n{i + half}", "y", "y")
    arrows = " ".join(f"n{i}>n{i + 1}" for i in range(count - 1))
    plan = LaunchGraphPlan(nodes=nodes, dependencies=edges(arrows), slots=slots("xy"))
    assert plan.precedes("n0", f"n{count - 1}")
