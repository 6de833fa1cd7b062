"""Streams and events: every edge honoured, nothing redundant, as few as can be."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.graph.layout import BlockLayout
from accy_async.graph.placing import LABELLED, SHARES
from accy_async.graph.plan import LaunchGraphPlan
from tests.graph.graphs import ancestors, blocks, random_plans

EXAMPLES = settings(max_examples=400, deadline=None)
MAX_STREAMS = st.sampled_from([1, 2, 3, 8, 32])


def direct(layout: BlockLayout, item: int, *, without: int = -1) -> set[int]:
    """What an item starts after by stream order, waits or calls on the host."""
    if layout.stream[item] < 0:
        return set(layout.awaits[item])
    found = {layout.follows[item], *layout.waits[item]} - {-1, without}
    for pred in layout.preds[item]:
        if layout.stream[pred] in (-1, layout.stream[item]):
            found.add(pred)
    return found


def closure(layout: BlockLayout) -> list[set[int]]:
    """Of each item, everything that is sure to be done before it."""
    done: list[set[int]] = [set() for _ in layout.items]
    for item in layout.order:
        for before in direct(layout, item):
            done[item] |= {before} | done[before]
    return done


@EXAMPLES
@given(random_plans(), MAX_STREAMS)
def test_layout_honours_every_edge(plan: LaunchGraphPlan, max_streams: int) -> None:
    """Stream order, waits and host calls together imply each edge of the graph."""
    for layout in blocks(plan.layout(max_streams)):
        done = closure(layout)
        for item, preds in enumerate(layout.preds):
            assert set(preds) <= done[item]


@EXAMPLES
@given(random_plans(), MAX_STREAMS)
def test_layout_has_no_redundant_wait(plan: LaunchGraphPlan, max_streams: int) -> None:
    """Leaving out any single wait leaves its edge without a reason to hold."""
    for layout in blocks(plan.layout(max_streams)):
        done = closure(layout)
        for item, waits in enumerate(layout.waits):
            for wait in waits:
                others = direct(layout, item, without=wait)
                assert wait not in set().union(*(done[o] | {o} for o in others))
                assert layout.stream[wait] not in (-1, layout.stream[item])
        for awaits in layout.awaits.values():
            for one in awaits:
                others = set(awaits) - {one}
                is_call = layout.stream[one] < 0
                assert is_call or not any(one in done[other] for other in others)


@EXAMPLES
@given(random_plans(), MAX_STREAMS)
def test_layout_records_an_event_once_for_who_waits(
    plan: LaunchGraphPlan, max_streams: int
) -> None:
    """Exactly what is waited for is recorded, and what ends an iteration elsewhere."""
    for layout in blocks(plan.layout(max_streams)):
        wanted = {wait for waits in layout.waits for wait in waits}
        if layout.loop >= 0:
            wanted |= {end for end in layout.ends if layout.stream[end] > 0}
        recorded = {item for item, does in enumerate(layout.records) if does}
        assert recorded == wanted


@EXAMPLES
@given(random_plans(), MAX_STREAMS)
def test_layout_submits_in_order(plan: LaunchGraphPlan, max_streams: int) -> None:
    """All that an item waits for comes earlier; the longest way to go comes first."""
    for layout in blocks(plan.layout(max_streams)):
        place = {item: number for number, item in enumerate(layout.order)}
        assert sorted(layout.order) == list(range(len(layout)))
        for item, preds in enumerate(layout.preds):
            assert all(place[pred] < place[item] for pred in preds)
        ways = [layout.priority[item] for item in layout.order]
        assert ways == sorted(ways, reverse=True)


@EXAMPLES
@given(random_plans(), MAX_STREAMS)
def test_layout_keeps_to_the_streams_allowed(
    plan: LaunchGraphPlan, max_streams: int
) -> None:
    """Never more, none empty but a loop's own, and none for calls on the host."""
    for layout in blocks(plan.layout(max_streams)):
        assert layout.stream_count <= max_streams
        assert len(layout.stream_labels) == len(layout.stream_priorities)
        used = {stream for stream in layout.stream if stream >= 0}
        used |= {0} if layout.loop >= 0 else set()
        assert used == set(range(layout.stream_count))
        for item, entry in zip(layout.stream, layout.items, strict=True):
            assert (item < 0) == (entry.kind == 1)


@EXAMPLES
@given(random_plans(with_labels=False))
def test_layout_with_streams_enough_orders_nothing_else(plan: LaunchGraphPlan) -> None:
    """Parallelism is kept: what follows in a stream had to come later anyway."""
    for layout in blocks(plan.layout(64)):
        assert SHARES not in layout.choice
        done, before = closure(layout), ancestors(layout.preds)
        assert done == before


@EXAMPLES
@given(random_plans(), MAX_STREAMS)
def test_ends_imply_everything(plan: LaunchGraphPlan, max_streams: int) -> None:
    """When the ends are done all is, and each of them is needed for that."""
    for layout in blocks(plan.layout(max_streams)):
        done = closure(layout)
        reached = set().union(*(done[end] | {end} for end in layout.ends))
        assert reached == set(range(len(layout)))
        for end in layout.ends:
            others = set(layout.ends) - {end}
            if layout.stream[end] >= 0:
                assert end not in set().union(*(done[o] for o in others), set())


@EXAMPLES
@given(random_plans(), MAX_STREAMS, st.randoms(use_true_random=False))
def test_follows_holds_whenever_host_calls_return(
    plan: LaunchGraphPlan, max_streams: int, chance: random.Random
) -> None:
    """Submitting what is ready by rank keeps the order that clocks rely on."""
    for layout in blocks(plan.layout(max_streams)):
        place = {item: number for number, item in enumerate(layout.order)}
        missing = [len(preds) for preds in layout.preds]
        ready = {item for item, count in enumerate(missing) if not count}
        running: set[int] = set()
        begun: set[int] = set()
        while ready or running:
            if ready and (not running or chance.random() < 0.7):
                item = min(ready, key=place.__getitem__)
                ready.discard(item)
                begun.add(item)
                follows = layout.follows[item]
                assert follows < 0 or follows in begun
                if layout.is_host[item]:
                    running.add(item)
                    continue
            else:
                item = chance.choice(sorted(running))
                running.discard(item)
            for after in layout.succs[item]:
                missing[after] -= 1
                if not missing[after]:
                    ready.add(after)
        assert len(begun) == len(layout)


@EXAMPLES
@given(random_plans(with_loops=False), MAX_STREAMS)
def test_labels_have_one_stream_each(plan: LaunchGraphPlan, max_streams: int) -> None:
    """Nodes of a label share a stream, in the plan's order; two have two."""
    layout = plan.layout(max_streams)
    nodes = plan.nodes
    done = closure(layout)
    streams: dict[str, int] = {}
    for label in ("A", "B"):
        mine = [i for i, node in enumerate(nodes) if node.stream == label]
        assert len({layout.stream[i] for i in mine}) <= 1
        for one, two in itertools.pairwise(mine):
            assert one in done[two]
        for i in mine:
            streams[label] = layout.stream[i]
            assert label in layout.stream_labels[layout.stream[i]]
            assert layout.choice[i] == LABELLED
    if max_streams >= 3:
        assert len(set(streams.values())) == len(streams)


@EXAMPLES
@given(random_plans())
def test_priorities_are_honoured(plan: LaunchGraphPlan) -> None:
    """With streams enough, a node's priority is its stream's."""
    for layout in blocks(plan.layout(64)):
        for item, stream in zip(layout.items, layout.stream, strict=True):
            if stream >= 0 and item.body is None:
                wanted = plan.nodes[item.index].priority
                assert wanted in (None, layout.stream_priorities[stream])


@EXAMPLES
@given(random_plans(), MAX_STREAMS)
def test_layout_is_deterministic_and_kept(
    plan: LaunchGraphPlan, max_streams: int
) -> None:
    """The same plan is laid out the same way, and only once."""
    layout = plan.layout(max_streams)
    assert plan.layout(max_streams) is layout
    again = type(plan)(
        nodes=plan.nodes,
        dependencies=plan.dependencies,
        loops=plan.loops,
        slots=plan.slots,
    ).layout(max_streams)
    for name in ("order", "stream", "waits", "records", "follows", "ends", "choice"):
        assert getattr(again, name) == getattr(layout, name)
