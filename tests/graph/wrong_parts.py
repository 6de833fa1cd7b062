"""Graphs whose parts are wrong, and what is said of each."""

from __future__ import annotations

from typing import Any

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
from accy_async.dtypes import DType, ScalarArgument
from accy_async.graph.nodes import (
    BufferSlot,
    CopyBuffer,
    CopyFromDevice,
    CopyToDevice,
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
from tests.graph.graphs import (
    edges,
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

WRONG_PARTS: dict[str, tuple[dict[str, Any], str]] = {
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
}
