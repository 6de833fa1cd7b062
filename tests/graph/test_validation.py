"""What is wrong with a graph is found when its plan is made, and named."""

from __future__ import annotations

import re
from typing import Any

import pytest

from accy_async.artifact.geometry import (
    DerivedLaunch,
    Fixed,
    FixedLaunch,
    RuntimeCeilDiv,
)
from accy_async.artifact.resources import (
    LaunchResourceCandidate,
    LaunchResourceClass,
    LaunchResourcePlan,
)
from accy_async.backends.handles import BufferAccess
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import GraphError, InvalidType
from accy_async.graph.nodes import (
    BufferSlot,
    BufferUse,
    CopyBuffer,
    CopyFromDevice,
    CopyToDevice,
    EventSignal,
    EventWait,
    Fill,
    HostCall,
    HostSlot,
    KernelCall,
    LaunchGraphLoop,
    LaunchGraphLoopCarry,
    LaunchGraphNode,
    Operation,
    RuntimeScalar,
)
from accy_async.graph.order import MAX_LOOP_DEPTH
from accy_async.graph.plan import LaunchGraphPlan
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

U32, F32 = ScalarArgument.u32, ScalarArgument.f32
SLOTS = (
    BufferSlot("x", DType.F32, 4),
    BufferSlot("y", DType.F32, 4),
    BufferSlot("flat", DType.F32, (2, 2)),
    BufferSlot("ints", DType.I32, 4),
    BufferSlot("long", DType.F32, 5),
    BufferSlot("flag", DType.U32, 1),
    HostSlot("h", DType.F32, 4),
)


def does(name: str, operation: Operation, **fields: Any) -> LaunchGraphNode:
    return LaunchGraphNode(name=name, operation=operation, **fields)


def loop(
    name: str = "L", first: str = "a", last: str = "b", **how: Any
) -> LaunchGraphLoop:
    given = how if "condition" in how or "count" in how else {"count": 2, **how}
    return LaunchGraphLoop(name=name, first=first, last=last, **given)


def carry(*pairs: tuple[str, str]) -> tuple[LaunchGraphLoopCarry, ...]:
    return tuple(LaunchGraphLoopCarry(*pair) for pair in pairs)


def launches(entry: Any, **fields: Any) -> LaunchGraphNode:
    return does("k", KernelCall(entry=entry), **fields)


DERIVED = kernel_entry(
    0,
    runtime_scalar_argument_count=2,
    launch=DerivedLaunch(
        grid=(RuntimeCeilDiv(argument_index=0, divisor=4), Fixed(1), Fixed(1)),
        threadgroup=(4, 1, 1),
    ),
)
DEFAULTED = kernel_entry(
    0, runtime_scalar_argument_count=1, runtime_scalar_defaults=(F32(1.0),)
)
TUNED = kernel_entry(
    0,
    launch_resources=LaunchResourcePlan(
        candidates=(
            LaunchResourceCandidate(
                geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1))
            ),
        ),
        resource_class=LaunchResourceClass.ELEMENTWISE,
    ),
)

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "two nodes of one name": (
        {"nodes": [idle("a"), idle("b"), idle("a")]},
        "nodes 0 and 2 are both named 'a'",
    ),
    "two slots of one name": (
        {"slots": slots("xyx")},
        "slots 0 and 2 are both named 'x'",
    ),
    "two loops of one name": (
        {"nodes": [idle("a"), idle("b")], "loops": [loop(), loop()]},
        "loops 0 and 1 are both named 'L'",
    ),
    "a loop named like a node": (
        {"nodes": [idle("a"), idle("b")], "loops": [loop("a")]},
        "a loop and a node are both named 'a'",
    ),
    "unknown node before": (
        {"nodes": [idle("a")], "dependencies": edges("b>a")},
        "LaunchGraphDependency(before='b', after='a'): node 'b' is unknown",
    ),
    "unknown node after": (
        {"nodes": [idle("a")], "dependencies": edges("a>b")},
        "node 'b' is unknown",
    ),
    "unknown slot": (
        {"nodes": [kernel("k", "z")], "slots": SLOTS},
        "node 'k' uses slot 'z', which is unknown",
    ),
    "unknown slot of a host call": (
        {"nodes": [does("k", HostCall(function=host_function, reads=("z",)))]},
        "node 'k' uses slot 'z', which is unknown",
    ),
    "unknown first node": (
        {"nodes": [idle("b")], "loops": [loop()]},
        "loop 'L': its first node 'a' is unknown",
    ),
    "unknown last node": (
        {"nodes": [idle("a")], "loops": [loop()]},
        "loop 'L': its last node 'b' is unknown",
    ),
    "first after last": (
        {"nodes": [idle("b"), idle("a")], "loops": [loop()]},
        "loop 'L': its first node 'a' comes after its last, 'b'",
    ),
    "crossing loops": (
        {
            "nodes": [idle("a"), idle("b"), idle("c")],
            "loops": [loop("L", "a", "b"), loop("M", "b", "c")],
        },
        "loops 'L' and 'M' cross",
    ),
    "loops too deep": (
        {
            "nodes": [idle("a"), idle("b")],
            "loops": [loop(f"L{i}") for i in range(MAX_LOOP_DEPTH + 1)],
        },
        "loop 'L64' lies within 64 others",
    ),
    "a node after itself": (
        {"nodes": [idle("a")], "dependencies": edges("a>a")},
        "the graph has a cycle: a → a",
    ),
    "two nodes after each other": (
        {"nodes": [idle("b"), idle("a")], "dependencies": edges("a>b b>a")},
        "the graph has a cycle: b → a → b",
    ),
    "a cycle behind other nodes": (
        {
            "nodes": [idle(n) for n in "pabcq"],
            "dependencies": edges("p>a a>b b>c c>a c>q"),
        },
        "the graph has a cycle: a → b → c → a",
    ),
    "a long cycle": (
        {
            "nodes": [idle(f"n{i}") for i in range(1000)],
            "dependencies": edges(
                " ".join(f"n{i}>n{(i + 1) % 1000}" for i in range(1000))
            ),
        },
        "n0 → n1 → n2 → n3 → n4 → n5 → ... 989 more ... → n995 → n996 → n997 → n998 → "
        "n999 → n0",
    ),
    "a loop that waits for itself through a node outside": (
        {
            "nodes": [idle("a"), idle("b"), idle("x")],
            "dependencies": edges("a>x x>b"),
            "loops": [loop()],
        },
        "the graph has a cycle: L → x → L",
    ),
    "a cycle within a loop": (
        {
            "nodes": [idle("a"), idle("b")],
            "dependencies": edges("a>b b>a"),
            "loops": [loop()],
        },
        "the graph has a cycle in L: a → b → a",
    ),
    "a loop before one of its nodes through its parent": (
        {
            "nodes": [idle("a"), idle("b"), idle("c")],
            "dependencies": edges("a>c c>b"),
            "loops": [loop("M", "a", "b"), loop("L", "a", "c")],
        },
        "the graph has a cycle in L: M → c → M",
    ),
    "an event nobody signals": (
        {"nodes": [idle("a", wait_events=("go",))]},
        "node 'a' waits for event 'go', which nobody signals",
    ),
    "an event node for what nobody signals": (
        {"nodes": [does("a", EventWait("go"))]},
        "node 'a' waits for event 'go', which nobody signals",
    ),
    "an event signalled twice": (
        {"nodes": [idle("a", signal_event="e"), idle("b", signal_event="e")]},
        "nodes 'a' and 'b' both signal event 'e' without an order between them; add "
        "LaunchGraphDependency('a', 'b'), or use two events",
    ),
    "a wait before the signal": (
        {
            "nodes": [idle("a", wait_events=("e",)), idle("b", signal_event="e")],
            "dependencies": edges("a>b"),
        },
        "the graph has a cycle: a → b → a (b → a by event 'e')",
    ),
    "a wait for one's own signal": (
        {"nodes": [idle("a", wait_events=("e",), signal_event="e")]},
        "the graph has a cycle: a → a (a → a by event 'e')",
    ),
    "a loop that waits for what comes after it": (
        {
            "nodes": [
                idle("a", wait_events=("e",)),
                idle("b"),
                does("c", EventSignal("e")),
            ],
            "dependencies": edges("b>c"),
            "loops": [loop()],
        },
        "the graph has a cycle: L → c → L (c → L by event 'e')",
    ),
    "a label against the edges": (
        {
            "nodes": [idle("a", stream="s"), idle("b", stream="s")],
            "dependencies": edges("b>a"),
        },
        "the graph has a cycle: a → b → a (a → b by stream 's')",
    ),
    "two priorities of a label": (
        {
            "nodes": [
                idle("a", stream="s", priority=1),
                idle("b", stream="s", priority=2),
            ]
        },
        "stream 's' has one priority: node 'a' asks for 1 and node 'b' for 2",
    ),
    "a host call with a label": (
        {"nodes": [host("a", stream="s")]},
        "node 'a' calls a function on the host, which runs on no stream, but has a "
        "stream label",
    ),
    "a host call with a priority": (
        {"nodes": [host("a", priority=1)]},
        "but has a priority",
    ),
    "a host slot as a kernel's buffer": (
        {"nodes": [kernel("k", "h")], "slots": SLOTS},
        "node 'k' uses host slot 'h' as a buffer",
    ),
    "a buffer slot as host memory": (
        {"nodes": [does("c", CopyToDevice(source="x", target="y"))], "slots": SLOTS},
        "node 'c' uses buffer slot 'x' as host memory",
    ),
    "a host slot as a copy's target": (
        {"nodes": [does("c", CopyBuffer(source="x", target="h"))], "slots": SLOTS},
        "node 'c' uses host slot 'h' as a buffer",
    ),
    "a copy from a buffer to a buffer as host memory": (
        {"nodes": [does("c", CopyFromDevice(source="x", target="y"))], "slots": SLOTS},
        "node 'c' uses buffer slot 'y' as host memory",
    ),
    "a copy of the wrong size": (
        {"nodes": [does("c", CopyBuffer(source="x", target="long"))], "slots": SLOTS},
        "node 'c' copies slot 'x' of 16 bytes to slot 'long' of 20",
    ),
    "a copy to itself": (
        {"nodes": [does("c", CopyBuffer(source="x", target="x"))], "slots": SLOTS},
        "node 'c' copies slot 'x' to itself",
    ),
    "a fill of the wrong dtype": (
        {"nodes": [does("f", Fill(target="x", value=U32(1)))], "slots": SLOTS},
        "node 'f' fills slot 'x' of f32 with u32(1); expected f32",
    ),
    "scalars for a fill": (
        {
            "nodes": [
                does("f", Fill(target="x", value=F32(1)), runtime_scalars=(U32(1),))
            ],
            "slots": SLOTS,
        },
        "node 'f' has runtime scalars, but launches no kernel: Fill",
    ),
    "a candidate for a host call": (
        {"nodes": [host("a", tuning_candidate=0)]},
        "node 'a' has a tuning candidate, but launches no kernel: HostCall",
    ),
    "too few scalars": (
        {"nodes": [launches(DERIVED, runtime_scalars=(U32(1),))]},
        "node 'k', kernel 't.kernel': got 1 runtime scalars, expected 2",
    ),
    "no scalars and no defaults": (
        {"nodes": [launches(DERIVED)]},
        "got no runtime scalars, expected 2; the kernel has no defaults for them",
    ),
    "a scalar that geometry needs as u32": (
        {"nodes": [launches(DERIVED, runtime_scalars=(F32(1), U32(1)))]},
        "scalar 0 is f32(1.0), expected u32",
    ),
    "a scalar unlike its default": (
        {"nodes": [launches(DEFAULTED, runtime_scalars=(U32(1),))]},
        "scalar 0 is u32(1), expected f32",
    ),
    "a runtime scalar there is not": (
        {
            "nodes": [launches(DEFAULTED, runtime_scalars=(RuntimeScalar(2),))],
            "runtime_scalar_count": 2,
        },
        "scalar 0 is RuntimeScalar(index=2), but the plan has runtime_scalar_count=2",
    ),
    "a candidate there is not": (
        {"nodes": [launches(TUNED, tuning_candidate=1)]},
        "tuning candidate 1, but it has 1 launch candidates",
    ),
    "a candidate of an untuned kernel": (
        {"nodes": [launches(kernel_entry(0), tuning_candidate=0)]},
        "tuning candidate 0, but it has 0 launch candidates",
    ),
    "a count there is not": (
        {
            "nodes": [idle("a"), idle("b")],
            "loops": [loop(count=RuntimeScalar(0))],
        },
        "loop 'L': its count is RuntimeScalar(index=0)",
    ),
    "a condition there is not": (
        {"nodes": [idle("a"), idle("b")], "loops": [loop(condition="c")]},
        "loop 'L': its condition 'c' is no known slot",
    ),
    "a condition of the wrong dtype": (
        {
            "nodes": [idle("a"), idle("b")],
            "loops": [loop(condition="x")],
            "slots": SLOTS,
        },
        "loop 'L': its condition 'x' is f32 [4], expected one i32 or u32",
    ),
    "a condition of several": (
        {
            "nodes": [idle("a"), idle("b")],
            "loops": [loop(condition="ints")],
            "slots": SLOTS,
        },
        "its condition 'ints' is i32 [4], expected one i32 or u32",
    ),
    "a condition on the host": (
        {
            "nodes": [idle("a"), idle("b")],
            "loops": [loop(condition="h")],
            "slots": SLOTS,
        },
        "its condition 'h' is a host slot; expected a buffer slot",
    ),
    "a carry there is not": (
        {
            "nodes": [idle("a"), idle("b")],
            "loops": [loop(carries=carry(("x", "z")))],
            "slots": SLOTS,
        },
        "loop 'L': its carry 'z' is no known slot",
    ),
    "a carry on the host": (
        {
            "nodes": [idle("a"), idle("b")],
            "loops": [loop(carries=carry(("x", "h")))],
            "slots": SLOTS,
        },
        "its carry 'h' is a host slot",
    ),
    "a carry to itself": (
        {
            "nodes": [idle("a"), idle("b")],
            "loops": [loop(carries=carry(("x", "x")))],
            "slots": SLOTS,
        },
        "slot 'x' is carried to itself",
    ),
    "a carry between shapes": (
        {
            "nodes": [idle("a"), idle("b")],
            "loops": [loop(carries=carry(("x", "flat")))],
            "slots": SLOTS,
        },
        "loop 'L': carry from 'flat', f32 [2x2], to 'x', f32 [4]; expected the same",
    ),
    "a carry between dtypes": (
        {
            "nodes": [idle("a"), idle("b")],
            "loops": [loop(carries=carry(("x", "ints")))],
            "slots": SLOTS,
        },
        "carry from 'ints', i32 [4], to 'x', f32 [4]",
    ),
    "a slot carried twice": (
        {
            "nodes": [idle("a"), idle("b")],
            "loops": [loop(carries=carry(("x", "y"), ("y", "x")))],
            "slots": SLOTS,
        },
        "loop 'L': slot 'y' is carried twice",
    ),
    "an external event twice": (
        {"external_events": ("e", "f", "e")},
        "external event 'e' is listed twice",
    ),
    "two writers": (
        {"nodes": [kernel("a", "", "x"), kernel("b", "", "x")], "slots": SLOTS},
        "slot 'x': 'a' writes it and 'b' writes it without an order between them; add "
        "LaunchGraphDependency('a', 'b'), or the other way round",
    ),
    "a reader beside a writer": (
        {
            "nodes": [kernel("a", "", "x"), kernel("b", "x"), kernel("c", "x", "x")],
            "dependencies": edges("a>b a>c"),
            "slots": SLOTS,
        },
        "slot 'x': 'b' reads it and 'c' writes it",
    ),
    "a loop beside a writer": (
        {
            "nodes": [kernel("a", "", "x"), idle("b"), kernel("c", "x")],
            "loops": [loop()],
            "slots": SLOTS,
        },
        "slot 'x': 'L' writes it and 'c' reads it",
    ),
    "two writers within a loop": (
        {
            "nodes": [kernel("a", "", "x"), kernel("b", "", "x")],
            "loops": [loop()],
            "slots": SLOTS,
        },
        "slot 'x': 'a' writes it and 'b' writes it",
    ),
    "a carry beside a reader": (
        {
            "nodes": [idle("a"), idle("b"), kernel("c", "y")],
            "loops": [loop(carries=carry(("x", "y")))],
            "slots": SLOTS,
        },
        "slot 'y': 'L' writes it and 'c' reads it",
    ),
    "a condition beside a writer": (
        {
            "nodes": [
                idle("a"),
                idle("b"),
                does("f", Fill(target="flag", value=U32(0))),
            ],
            "loops": [loop(condition="flag")],
            "slots": SLOTS,
        },
        "slot 'flag': 'L' reads it and 'f' writes it",
    ),
    "a host call beside a copy": (
        {
            "nodes": [
                does("c", CopyFromDevice(source="x", target="h")),
                does("p", HostCall(function=host_function, reads=("h",))),
            ],
            "slots": SLOTS,
        },
        "slot 'h': 'c' writes it and 'p' reads it",
    ),
}


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
