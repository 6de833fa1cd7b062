"""What is wrong with a graph is found when its plan is made, and named."""

from __future__ import annotations

import re

import pytest

from accy_async.backends.handles import BufferAccess
from accy_async.errors import GraphError, InvalidType
from accy_async.graph.nodes import (
    BufferUse,
    EventSignal,
    EventWait,
    KernelCall,
)
from accy_async.graph.plan import LaunchGraphPlan
from tests.graph.graphs import (
    edges,
    graph,
    idle,
    kernel,
    kernel_entry,
    slots,
)
from tests.graph.wrong_orders import WRONG_ORDERS
from tests.graph.wrong_parts import SLOTS, WRONG_PARTS, does, loop

WRONG = WRONG_PARTS | WRONG_ORDERS


@pytest.mark.parametrize("case", WRONG)
def test_wrong_graph_is_refused(case: str) -> None:
    """The error is a GraphError that names what is wrong."""
    fields, message = WRONG[case]
    with pytest.raises(GraphError, match=re.escape(message)):
        LaunchGraphPlan(**fields)


def test_wrong_type_is_refused() -> None:
    with pytest.raises(InvalidType, match=r"LaunchGraphPlan\.nodes\[0\]"):
        LaunchGraphPlan(nodes=["a"])
    with pytest.raises(InvalidType, match=r"LaunchGraphPlan\.external_events"):
        LaunchGraphPlan(external_events="event")


def test_duplicate_edges_count_once() -> None:
    """An edge given three times is one, and a graph with it is no cycle."""
    nodes = [
        kernel("A", "", "a"),
        kernel("B", "a", "b"),
        kernel("C", "a", "c"),
        kernel("D", "bc", "d"),
    ]
    plan = LaunchGraphPlan(
        nodes=nodes,
        dependencies=edges("A>B A>B A>C B>D C>D A>B"),
        slots=slots("abcd"),
    )
    assert plan.dependencies == edges("A>B A>C B>D C>D")
    assert plan.layout().preds == ((), (0,), (0,), (1, 2))


def test_edges_into_a_loop_count_once() -> None:
    """Edges to two nodes of a loop are one edge of the loop."""
    plan = graph("x a b", "x>a x>b", loops=[loop()])
    assert plan.layout().preds == ((), (0,))


def test_transitive_order_is_order_enough() -> None:
    """A hazard needs no edge of its own, whatever way around the order goes."""
    nodes = [kernel("late", "x"), idle("m"), idle("n"), kernel("early", "", "x")]
    plan = LaunchGraphPlan(
        nodes=nodes, dependencies=edges("early>n n>m m>late"), slots=SLOTS
    )
    assert plan.precedes("early", "late")
    assert not plan.precedes("late", "early")


def test_labels_and_events_are_order_enough() -> None:
    LaunchGraphPlan(
        nodes=[
            kernel("a", "", "x", stream="s"),
            kernel("b", "x", stream="s", signal_event="e"),
            kernel("c", "", "x", wait_events=("e",)),
        ],
        slots=SLOTS,
    )


def test_kernel_may_use_a_slot_twice() -> None:
    """A slot given to a kernel twice is used once, in the stronger way."""
    node = kernel("k", "xx", "")
    plan = LaunchGraphPlan(nodes=[node, kernel("l", "x")], slots=SLOTS)
    assert plan.uses == [((0, 1),), ((0, 1),)]
    uses = (BufferUse("x", BufferAccess.READ_ONLY), BufferUse("x", "write_only"))
    twice = does("k", KernelCall(entry=kernel_entry(2), buffers=uses))
    assert LaunchGraphPlan(nodes=[twice], slots=SLOTS).uses == [((0, 3),)]
    with pytest.raises(GraphError, match="slot 'x': 'k' writes it and 'l' reads it"):
        LaunchGraphPlan(nodes=[twice, kernel("l", "x")], slots=SLOTS)


def test_wait_declared_before_its_signal_still_waits() -> None:
    """Who waits comes after who signals, whatever the plan lists first."""
    plan = graph([idle("w", wait_events=("e",)), idle("s", signal_event="e")])
    assert plan.layout().order == (1, 0)
    assert plan.precedes("s", "w")


def test_wait_is_for_the_latest_signal_before_it() -> None:
    """Of several signals of an event, each waiter's is the last listed before it."""
    nodes = [
        idle("s1", signal_event="e"),
        idle("w1", wait_events=("e",)),
        idle("s2", signal_event="e"),
        does("w2", EventWait("e")),
    ]
    plan = graph(nodes, "s1>s2")
    assert plan.layout().preds == ((), (0,), (0,), (2,))
    assert [edge.why for edge in plan.order_edges] == ["event 'e'"] * 2


def test_external_event_orders_nothing_until_signalled() -> None:
    """It is the caller's; but a signal of ours may not overtake a wait for it."""
    nodes = [idle("w", wait_events=("e",)), idle("x"), does("s", EventSignal("e"))]
    plan = graph(nodes, external_events=("e",))
    assert plan.layout().preds == ((), (), (0,))
    alone = graph([idle("w", wait_events=("e",))], external_events=("e",))
    assert alone.order_edges == []
