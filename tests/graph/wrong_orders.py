"""Graphs whose order is wrong, and what is said of each."""

from __future__ import annotations

from typing import Any

from accy_async.dtypes import DType
from accy_async.graph.nodes import (
    BufferSlot,
    CopyFromDevice,
    EventSignal,
    EventWait,
    Fill,
    HostCall,
)
from accy_async.graph.order import MAX_LOOP_DEPTH
from tests.graph.graphs import (
    edges,
    host,
    host_function,
    idle,
    kernel,
)
from tests.graph.wrong_parts import SLOTS, U32, carry, does, loop

SCRATCH = (
    BufferSlot("s", DType.F32, 4, is_scratch=True),
    BufferSlot("t", DType.F32, 4, is_scratch=True),
    BufferSlot("flag", DType.U32, 1, is_scratch=True),
)

WRONG_ORDERS: dict[str, tuple[dict[str, Any], str]] = {
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
    "two writers": (
        {"nodes": [kernel("a", "", "x"), kernel("b", "", "x")], "slots": SLOTS},
        "slot 'x': 'a' writes it and 'b' writes it without an order between them; add "
        "LaunchGraphDependency('a', 'b'), or the other way round",
    ),
    "scratch that nobody writes": (
        {"nodes": [kernel("a", "s")], "slots": SCRATCH},
        "node 'a' reads scratch slot 's', which no node writes",
    ),
    "scratch that is the condition, and nobody writes": (
        {
            "nodes": [kernel("a", "", "s")],
            "loops": [loop("L", "a", "a", condition="flag")],
            "slots": SCRATCH,
        },
        "loop 'L' reads scratch slot 'flag', which no node writes",
    ),
    "carried scratch that nobody writes": (
        {
            "nodes": [kernel("a", "s")],
            "loops": [loop("L", "a", "a", carries=carry(("s", "t")))],
            "slots": SCRATCH,
        },
        "node 'a' reads scratch slot 's', which no node writes",
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
