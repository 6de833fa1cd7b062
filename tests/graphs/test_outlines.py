"""Outlines: what a plan is as a graph of the device, its loops unrolled or kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.dtypes import DType
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.graph.lowering import Obstacle, Outline, OutlineNode, outline
from accy_async.graph.lowering.parts import Parting, part_plan
from accy_async.graph.order import LOOP
from tests.graph.graphs import kernel_entry
from tests.graphs.limits import LIMIT, around_calls, limited, nested
from tests.graphs.parts import diamond
from tests.graphs.programs import Program, named_kernels

pytestmark = pytest.mark.anyio

U32 = DType.U32


ONE, TWO = kernel_entry(1), kernel_entry(2)
SEEDS = st.integers(0, 2**32 - 1)


def plan_with_loop(
    count: int | None = None, *, body: int = 1, carries: bool = False
) -> LaunchGraphPlan:
    """``before``, a loop of ``step<i>`` that may swap ``x`` and ``y``, ``after``."""
    b = LaunchGraphBuilder()
    x, y, flag = (b.scratch(name, U32, 1) for name in ("x", "y", "flag"))
    b.kernel(ONE, [x], name="before")
    if count is None:
        b.fill(flag, 0, name="flag")
    pairs = [(x, y)] if carries else []
    loop = (
        b.loop(while_=flag, carries=pairs, name="loop")
        if count is None
        else b.loop(count=count, carries=pairs, name="loop")
    )
    with loop:
        for number in range(body):
            b.kernel(TWO, [x.read, y.write], name=f"step{number}")
    b.kernel(ONE, [x], name="after")
    return b.build()


def outlined(plan: LaunchGraphPlan, *, has_loops: bool = True) -> Outline:
    found = outline(plan, has_loops=has_loops)
    assert isinstance(found, Outline), found
    return found


def test_a_plan_without_loops_keeps_its_nodes_and_edges() -> None:
    """One node each, after those that the plan's edges say."""
    found = outlined(diamond())
    assert [node.index for node in found.body] == [0, 1, 2, 3]
    assert [node.after for node in found.body] == [(), (0,), (0,), (1, 2)]
    assert found.ends == ((0,), (1,), (2,), (3,))


def test_a_short_loop_is_unrolled_its_buffers_swapped() -> None:
    """Each iteration comes after the one before, on the buffers that it finds."""
    found = outlined(plan_with_loop(3, body=2, carries=True))
    assert [node.index for node in found.body] == [0, 1, 2, 1, 2, 1, 2, 3]
    assert [node.after for node in found.body[1:]] == [(i,) for i in range(7)]
    swapped = [node.where[0] for node in found.body]
    assert swapped == [0, 0, 0, 1, 1, 0, 0, 1]
    assert found.where[:2] == (1, 0)


def test_a_long_loop_stays_one_with_a_turn_for_each_arrangement() -> None:
    """Two turns where buffers are swapped; after it they are where it left them."""
    for count, after in ((1000, 0), (1001, 1)):
        found = outlined(plan_with_loop(count, carries=True))
        before, loop, last = found.body
        assert (before.turns, loop.count) == ((), count)
        assert [turn[0].where[0] for turn in loop.turns] == [0, 1]
        assert last.where[0] == after
    assert len(outlined(plan_with_loop(1000)).body[1].turns) == 1


def test_a_loop_without_iterations_leaves_its_edges() -> None:
    """What follows it comes after what it comes after."""
    found = outlined(plan_with_loop(0, carries=True))
    assert [(node.index, node.after) for node in found.body] == [(0, ()), (2, (0,))]


def test_nested_loops_swap_in_each_other() -> None:
    """Thirty times thirty, with a swap in each turn of either."""
    b = LaunchGraphBuilder()
    x, y, z = (b.scratch(name, U32, 1) for name in "xyz")
    outer_loop = b.loop(count=30, carries=[(y, z)], name="outer")
    with outer_loop, b.loop(count=31, carries=[(x, y)], name="inner"):
        b.kernel(TWO, [x.read, y.write], name="step")
    (outer,) = outlined(b.build()).body
    # Each turn leaves x and y swapped, then y and z: three come round.
    assert [turn[0].where[:3] for turn in outer.turns] == [
        (0, 1, 2),
        (1, 2, 0),
        (2, 0, 1),
    ]
    for turn in outer.turns:
        assert sum(len(node.turns) or 1 for node in turn) in (1, 2, 31)


def refusals(plan: LaunchGraphPlan, *, has_loops: bool = True) -> dict[str, str]:
    found = outline(plan, has_loops=has_loops)
    assert not isinstance(found, Outline)
    assert all(isinstance(one, Obstacle) for one in found)
    return {one.name: one.reason for one in found}


def test_what_is_in_the_way_is_told_by_name() -> None:
    """Every host call, loop and event that keeps a plan from being lowered."""
    b = LaunchGraphBuilder()
    x, y, flag = (b.scratch(name, U32, 1) for name in ("x", "y", "flag"))
    b.external_event("go")
    b.host_call(lambda: None, name="call")
    b.kernel(ONE, [x], name="first")
    b.fill(flag, 0)
    with b.loop(count=2, name="twice"):
        b.kernel(ONE, [x], name="within", wait="go")
    with b.loop(while_=flag, carries=[(x, y)], name="carrying"):
        b.kernel(ONE, [x], name="again")
    found = refusals(b.build())
    assert set(found) == {"call", "go"}
    assert "interpreter lock" in found["call"]
    assert "within a loop" in found["go"]


def test_what_comes_after_the_same_limits_is_one_branch() -> None:
    """In the order of the plan's edges; a verdict is told behind its loop."""
    plan = limited(named_kernels(), 1, second=1)
    found = outlined(plan)
    names = [node.name for node in plan.nodes]
    branches = {node.unless: node for node in found.body if node.branch}
    assert set(branches) == {(0,), (1,), (0, 1)}
    within = {
        loops: [names[one.index] for one in node.branch]
        for loops, node in branches.items()
    }
    assert within[0,][:2] == ["after", "x to host"]
    assert within[1,] == ["more to host"]
    assert "both" in within[0, 1]
    for place, node in enumerate(found.body):
        assert all(before < place for before in node.after)
        if node.tells:
            (loop,) = node.after
            assert found.body[loop].limit == LIMIT
    assert found.limits == (0, 1)
    items = [plan.order.item_of[names.index(name)] for name in ("after", "beside")]
    assert [item in found.limited for item in items] == [True, False]
    assert found.node_count == len(plan.order.top)


def test_a_loop_around_one_with_a_limit_asks_for_its_verdict() -> None:
    """It is not unrolled; a turn has a branch, and what follows it all is one, too."""
    plan = nested(named_kernels(), "counted", 2, 1)
    found = outlined(plan)
    names = [node.name for node in plan.nodes]
    bounded = plan.loop_index["bounded"]
    (outer,) = [node for node in found.body if node.turns]
    assert (outer.count, outer.limits, outer.may_fail) == (2, (bounded,), (bounded,))
    for number, turn in enumerate(outer.turns):
        (inner,) = [node for node in turn if node.limit]
        assert (inner.limit, inner.may_fail) == (LIMIT, (bounded,))
        (branch,) = [node for node in turn if node.branch]
        assert branch.unless == (bounded,)
        assert [names[node.index] for node in branch.branch] == ["sum", "late", "late"]
        assert not any(node.tells for node in (*turn, *branch.branch))
        # Where it fails after an odd number of turns, two arrays are swapped back.
        swapped = [plan.slot_index[name] for name in ("next", "total")]
        assert [sorted(pair) for pair in outer.exchanges[number]] == (
            [] if number else [sorted(swapped)]
        )
    (telling,) = [node for node in found.body if node.tells]
    assert found.body[telling.after[0]] is outer
    (behind,) = [node for node in found.body if node.branch]
    assert behind.unless == found.limits == (bounded,)
    item = plan.order.by_loop[plan.loop_index["outer"]].parent_item
    assert item in found.limited


def test_parts_ask_for_the_verdicts_of_those_before_them() -> None:
    """Not of those that calls come after, which are skipped, and parts with them."""
    plan = around_calls(named_kernels(), (1, 1), lambda _: lambda: None)
    found = part_plan(plan)
    assert isinstance(found, Parting)
    names = [node.name for node in plan.nodes]
    first, second = (plan.loop_index[name] for name in ("first", "second"))
    branches = [
        {
            node.unless: [names[one.index] for one in node.branch]
            for node in part.outline.body
            if node.branch
        }
        for part in found.parts
    ]
    assert branches == [
        {},
        {(first, second): ["both", "both to host"]},
        {(first,): ["left", "left to host"]},
    ]
    assert [part.outline.limits for part in found.parts] == [(first,), (second,), ()]
    awaited = [[plan.order.top.indices[i] for i in one.awaited] for one in found.parts]
    assert [[names[i] for i in mine] for mine in awaited] == [["beside", "n"], [], []]


Path = tuple[tuple[int, int], ...]
"""Where a node is: its place in each body from the outermost on, and which body."""


def paths(
    body: Sequence[OutlineNode], within: Path = ()
) -> Iterator[tuple[OutlineNode, Path]]:
    """Each node and loop of a body, and of those in it."""
    for place, node in enumerate(body):
        for number, turn in enumerate(node.turns):
            yield from paths(turn, (*within, (place, number)))
        if node.branch:
            yield from paths(node.branch, (*within, (place, 0)))
        elif not node.tells:
            yield node, (*within, (place, 0))


def comes_after(outer: Sequence[OutlineNode], one: Path, other: Path) -> bool:
    """True where a node begins only when another has ended."""
    body = outer
    for (its_place, turn), (place, other_turn) in zip(one, other, strict=False):
        if its_place != place:
            todo, seen = [its_place], {its_place}
            for at in todo:
                todo += [before for before in body[at].after if before not in seen]
                seen.update(todo)
            return place in seen
        if turn != other_turn:
            return turn > other_turn
        body = body[place].branch or (body[place].turns or (body,))[turn]
    return False


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=SEEDS, length=st.integers(1, 40))
def test_every_edge_is_kept_around_branches(seed: int, length: int) -> None:
    """At the top, in the turns of loops and in branches."""
    program = Program(seed, length, named_kernels(), has_hosts=False, may_fail=True)
    plan = program.plan
    if program.has_external:
        return
    found = outlined(plan)
    at: dict[tuple[bool, int], list[Path]] = {}
    for node, path in paths(found.body):
        at.setdefault((bool(node.turns), node.index), []).append(path)
    for block in plan.order.blocks:
        for item, preds in enumerate(block.preds):
            mine = at.get((block.kinds[item] == LOOP, block.indices[item]), [])
            for pred in preds:
                before = at.get((block.kinds[pred] == LOOP, block.indices[pred]), [])
                if len(mine) == len(before):  # else one is a loop that is unrolled
                    assert all(
                        comes_after(found.body, one, other)
                        for one, other in zip(mine, before, strict=True)
                    )


def test_external_events_are_not_signalled_where_a_limit_is_reached() -> None:
    """Node by node they are not, and in a graph they would be."""
    b = LaunchGraphBuilder()
    x, flag = b.scratch("x", U32, 1), b.scratch("flag", U32, 1)
    b.external_event("done")
    b.fill(flag, 1)
    with b.loop(while_=flag, max_iterations=3, name="bounded"):
        b.kernel(ONE, [flag], name="down")
    b.fill(x, 1, name="after", after=("bounded",), signal="done")
    assert "signalled" in refusals(b.build())["bounded"]


@pytest.mark.parametrize("carries", [False, True])
def test_a_loop_that_a_value_ends_comes_out_as_it_went_in(carries: bool) -> None:
    """With what is exchanged where it ends on the other arrangement."""
    found = outlined(plan_with_loop(carries=carries))
    *_, loop, after = found.body
    assert loop.count is None
    assert loop.where == after.where == found.where
    assert loop.conditions == (2,) * len(loop.turns)
    assert loop.exchanges == ((((1, 0),),) if carries else ())


def test_a_device_without_loops_takes_those_that_can_be_unrolled() -> None:
    """Up to a bound; a loop that a value decides is refused."""
    assert len(outlined(plan_with_loop(1000), has_loops=False).body) == 1002
    assert "4096" in refusals(plan_with_loop(5000), has_loops=False)["loop"]
    assert "value" in refusals(plan_with_loop(), has_loops=False)["loop"]


def replayed(nodes: tuple[OutlineNode, ...]) -> list[tuple[int, tuple[int, ...]]]:
    """The order that an outline's nodes run in, loops at length."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for node in nodes:
        for turn in range(node.count or 0):
            found += replayed(node.turns[turn % len(node.turns)])
        if not node.turns:
            found.append((node.index, node.where))
    return found


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=SEEDS, length=st.integers(1, 40))
def test_a_loop_and_its_unrolling_are_the_same(seed: int, length: int) -> None:
    """Of every plan, the same nodes on the same buffers, as often, in an order kept."""
    program = Program(seed, length, named_kernels(), has_hosts=False, has_while=False)
    if program.has_external:
        return
    looped = outline(program.plan, program.scalars)
    unrolled = outline(program.plan, program.scalars, has_loops=False)
    assert isinstance(looped, Outline)
    assert isinstance(unrolled, Outline)
    assert looped.where == unrolled.where
    assert replayed(looped.body) == replayed(unrolled.body)
    for body in (looped.body, unrolled.body):
        assert all(place < at for at, node in enumerate(body) for place in node.after)
