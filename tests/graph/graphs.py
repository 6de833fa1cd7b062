"""Small parts for graphs under test, and random ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hypothesis import strategies as st

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.dtypes import DType
from accy_async.graph.layout import BlockLayout
from accy_async.graph.nodes import (
    BufferSlot,
    BufferUse,
    EventSignal,
    HostCall,
    HostSlot,
    KernelCall,
    LaunchGraphDependency,
    LaunchGraphLoop,
    LaunchGraphNode,
)
from accy_async.graph.plan import LaunchGraphPlan


def host_function() -> None:
    """What host calls under test call."""


def kernel_entry(
    buffers: int, target: str = "t.kernel", **fields: object
) -> KernelCallArtifact:
    scalars = fields.get("runtime_scalar_argument_count", 0)
    assert isinstance(scalars, int)
    given: dict[str, object] = {
        "target": target,
        "version": 1,
        "format": ArtifactFormat.CUDA_PTX,
        "entry_name": "k",
        "argument_count": buffers + scalars,
        "payload": "code",
        "launch": FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
        **fields,
    }
    return KernelCallArtifact(**given)  # type: ignore[arg-type]


ENTRIES = [kernel_entry(buffers) for buffers in range(5)]


def idle(name: str, **fields: object) -> LaunchGraphNode:
    """A node on the device that uses no slot."""
    operation = EventSignal(f"signal of {name}")
    return LaunchGraphNode(name=name, operation=operation, **fields)  # type: ignore[arg-type]


def host(name: str, **fields: object) -> LaunchGraphNode:
    operation = HostCall(function=host_function)
    return LaunchGraphNode(name=name, operation=operation, **fields)  # type: ignore[arg-type]


def kernel(
    name: str, reads: str = "", writes: str = "", **fields: object
) -> LaunchGraphNode:
    """A kernel that uses slots of one letter each; one in both is read-write."""
    uses = [
        BufferUse(slot, "read_write" if slot in writes else "read_only")
        for slot in reads
    ]
    uses += [BufferUse(s, "write_only") for s in writes if s not in reads]
    operation = KernelCall(entry=ENTRIES[len(uses)], buffers=tuple(uses))
    return LaunchGraphNode(name=name, operation=operation, **fields)  # type: ignore[arg-type]


def edges(text: str) -> tuple[LaunchGraphDependency, ...]:
    """Edges from text like ``a>b b>c``."""
    pairs = (pair.split(">") for pair in text.split())
    return tuple(LaunchGraphDependency(before, after) for before, after in pairs)


def slots(names: str, shape: int = 4) -> tuple[BufferSlot | HostSlot, ...]:
    return tuple(BufferSlot(name, DType.F32, shape) for name in names)


def graph(
    names: str | Iterable[LaunchGraphNode], arrows: str = "", **fields: object
) -> LaunchGraphPlan:
    """A plan of idle nodes named in a text, or of given ones."""
    nodes = [idle(n) for n in names.split()] if isinstance(names, str) else names
    return LaunchGraphPlan(nodes=tuple(nodes), dependencies=edges(arrows), **fields)  # type: ignore[arg-type]


def blocks(layout: BlockLayout) -> Iterator[BlockLayout]:
    """A layout and all those within it."""
    yield layout
    for item in layout.items:
        if item.body is not None:
            yield from blocks(item.body)


def ancestors(preds: Sequence[Sequence[int]]) -> list[set[int]]:
    """Of each item, all that come before it; found the slow way."""
    found: list[set[int]] = [set(before) for before in preds]
    changed = True
    while changed:
        changed = False
        for mine in found:
            more = set().union(*(found[p] for p in mine)) - mine
            if more:
                mine |= more
                changed = True
    return found


@st.composite
def random_loops(draw: st.DrawFn, count: int) -> list[LaunchGraphLoop]:
    """Up to three loops over nodes ``n0``, ``n1``..., nested or apart."""
    loops: list[LaunchGraphLoop] = []
    ranges: list[tuple[int, int]] = []
    for number in range(draw(st.integers(0, 3))):
        first = draw(st.integers(0, count - 1))
        last = draw(st.integers(first, count - 1))
        if any(
            not (last < a or b < first or a <= first <= last <= b)
            and not first <= a <= b <= last
            for a, b in ranges
        ):
            continue
        ranges.append((first, last))
        how: dict[str, object] = {"count": 2}
        if draw(st.booleans()):
            how = {"condition": "condition"}
        loops.append(
            LaunchGraphLoop(
                name=f"loop{number}",
                first=f"n{first}",
                last=f"n{last}",
                **how,  # type: ignore[arg-type]
            )
        )
    return loops


@st.composite
def random_plans(
    draw: st.DrawFn,
    *,
    most_nodes: int = 14,
    with_hosts: bool = True,
    with_labels: bool = True,
    with_loops: bool = True,
) -> LaunchGraphPlan:
    """A random plan: host calls, labels, priorities, loops, nodes in any order."""
    count = draw(st.integers(1, most_nodes))
    pairs = draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)))
    )
    arrows = {(min(p), max(p)) for p in pairs if p[0] != p[1]}
    is_host = [with_hosts and draw(st.integers(0, 4)) == 0 for _ in range(count)]
    loops = draw(random_loops(count)) if with_loops else []
    labels: list[str | None] = [None] * count
    priorities: list[int | None] = [None] * count
    if with_labels and draw(st.booleans()):
        for node in range(count):
            if not is_host[node]:
                labels[node] = draw(st.sampled_from([None, None, "A", "B"]))
                if labels[node] is None:
                    priorities[node] = draw(st.sampled_from([None, None, 0, -1]))
    nodes = [
        host(f"n{i}")
        if is_host[i]
        else idle(f"n{i}", stream=labels[i], priority=priorities[i])
        for i in range(count)
    ]
    if not loops and not any(labels):
        nodes = draw(st.permutations(nodes))
    return LaunchGraphPlan(
        nodes=nodes,
        dependencies=[LaunchGraphDependency(f"n{a}", f"n{b}") for a, b in arrows],
        loops=loops,
        slots=[BufferSlot("condition", DType.U32, 1)],
    )
