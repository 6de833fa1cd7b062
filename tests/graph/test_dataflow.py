"""Edges from dataflow, against a model that compares every two nodes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.errors import GraphError
from accy_async.graph.dataflow import dataflow_dependencies
from accy_async.graph.nodes import (
    LaunchGraphDependency,
    LaunchGraphLoop,
    LaunchGraphLoopCarry,
    LaunchGraphNode,
)
from accy_async.graph.plan import LaunchGraphPlan
from tests.graph.graphs import edges, kernel, random_loops, slots

SLOTS = slots("abc")
EXAMPLES = settings(max_examples=400, deadline=None)


@st.composite
def users(draw: st.DrawFn, count: int) -> list[LaunchGraphNode]:
    some = st.sets(st.sampled_from("abc"), max_size=2).map(sorted).map("".join)
    return [kernel(f"n{i}", draw(some), draw(some)) for i in range(count)]


def conflict(one: LaunchGraphNode, two: LaunchGraphNode) -> bool:
    """Whether both use a slot that one of them writes: said the plain way."""
    return any(
        slot == other and (access.writes or another.writes)
        for slot, access in one.uses()
        for other, another in two.uses()
    )


@EXAMPLES
@given(st.integers(1, 10).flatmap(users))
def test_dataflow_orders_exactly_what_conflicts(nodes: list[LaunchGraphNode]) -> None:
    """Edges join conflicting pairs only, and together give every such pair order."""
    names = {node.name: index for index, node in enumerate(nodes)}
    found = {
        (names[d.before], names[d.after]) for d in dataflow_dependencies(nodes, SLOTS)
    }
    wanted = {
        (one, two)
        for one, two in itertools.combinations(range(len(nodes)), 2)
        if conflict(nodes[one], nodes[two])
    }
    assert found <= wanted
    assert closed(found, len(nodes)) == closed(wanted, len(nodes))


def closed(pairs: set[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    reach = set(pairs)
    for middle, one, two in itertools.product(range(count), repeat=3):
        if (one, middle) in reach and (middle, two) in reach:
            reach.add((one, two))
    return reach


@EXAMPLES
@given(st.data(), st.integers(1, 10))
def test_dataflow_passes_validation(data: st.DataObject, count: int) -> None:
    """With loops too, no hazard is left and no cycle made."""
    nodes = data.draw(users(count))
    swap = [LaunchGraphLoopCarry("a", "b")]
    loops = [
        LaunchGraphLoop(
            name=loop.name,
            first=loop.first,
            last=loop.last,
            count=3,
            carries=swap if data.draw(st.booleans()) else (),
        )
        for loop in data.draw(random_loops(count))
    ]
    found = dataflow_dependencies(nodes, SLOTS, loops)
    plan = LaunchGraphPlan(nodes=nodes, dependencies=found, loops=loops, slots=SLOTS)
    assert plan.dependencies == found


@EXAMPLES
@given(st.data(), st.integers(2, 8))
def test_validation_finds_every_hazard(data: st.DataObject, count: int) -> None:
    """A plan is refused exactly where a conflicting pair has no order."""
    nodes = data.draw(users(count))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    given_edges = {p for p in data.draw(st.lists(pairs)) if p[0] < p[1]}
    reach = closed(given_edges, count)
    unordered = {
        (one, two)
        for one, two in itertools.combinations(range(count), 2)
        if conflict(nodes[one], nodes[two]) and (one, two) not in reach
    }
    dependencies = [LaunchGraphDependency(f"n{a}", f"n{b}") for a, b in given_edges]
    if unordered:
        with pytest.raises(GraphError, match="without an order between them"):
            LaunchGraphPlan(nodes=nodes, dependencies=dependencies, slots=SLOTS)
    else:
        LaunchGraphPlan(nodes=nodes, dependencies=dependencies, slots=SLOTS)


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ("a: >x b: x> c: x>", "a>b a>c"),
        ("a: >x b: x> c: x> d: >x", "a>b a>c b>d c>d"),
        ("a: >x b: >x c: x>", "a>b b>c"),
        ("a: >x b: x>x c: x>x", "a>b b>c"),
        ("a: x> b: x> c: x>", ""),
        ("a: >x b: x>y c: y>x", "a>b b>c"),
        ("a: >xy b: xy>", "a>b"),
    ],
)
def test_dataflow_of_small_graphs(uses: str, expected: str) -> None:
    """The last writer, and the readers since: no edge more."""
    words = uses.split()
    nodes = [
        kernel(name.rstrip(":"), *use.split(">"))
        for name, use in zip(words[::2], words[1::2], strict=True)
    ]
    assert dataflow_dependencies(nodes, slots("xy")) == edges(expected)


def test_declared_order_decides_between_a_reader_and_an_in_place_writer() -> None:
    """Whoever is listed first has the buffer first; nobody sees a mix."""
    made, five, total = kernel("x", "", "x"), kernel("P", "x", "x"), kernel("Q", "x")
    reader_first = dataflow_dependencies([made, total, five], slots("x"))
    assert reader_first == edges("x>Q Q>P")
    writer_first = dataflow_dependencies([made, five, total], slots("x"))
    assert writer_first == edges("x>P P>Q")
    with pytest.raises(GraphError, match="slot 'x': 'P' writes it and 'Q' reads it"):
        LaunchGraphPlan(
            nodes=[made, five, total],
            dependencies=edges("x>P x>Q"),
            slots=slots("x"),
        )


def test_edges_of_loops_name_their_first_and_last_nodes() -> None:
    nodes = [
        kernel("make", "", "x"),
        kernel("one", "x", "y"),
        kernel("two", "y", "y"),
        kernel("use", "y"),
    ]
    loop = LaunchGraphLoop(name="L", first="one", last="two", count=2)
    assert dataflow_dependencies(nodes, slots("xy"), [loop]) == edges(
        "make>one one>two two>use"
    )


@pytest.mark.parametrize(
    ("nodes", "loops", "message"),
    [
        ([kernel("a", "z")], [], "node 'a' uses slot 'z', which is unknown"),
        ([kernel("a"), kernel("a")], [], "two nodes are named 'a'"),
        (
            [kernel("a")],
            [LaunchGraphLoop(name="L", first="a", last="a", condition="z")],
            "loop 'L' uses slot 'z', which is unknown",
        ),
        (
            [kernel("a"), kernel("b"), kernel("c")],
            [
                LaunchGraphLoop(name="L", first="a", last="b", count=1),
                LaunchGraphLoop(name="M", first="b", last="c", count=1),
            ],
            "loops 'L' and 'M' cross",
        ),
    ],
)
def test_dataflow_refuses_what_it_cannot_follow(
    nodes: list[LaunchGraphNode], loops: list[LaunchGraphLoop], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        dataflow_dependencies(nodes, SLOTS, loops)
