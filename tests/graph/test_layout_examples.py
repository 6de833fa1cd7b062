"""Layouts of known graphs, number by number."""

from __future__ import annotations

import pytest

from accy_async.dtypes import DType
from accy_async.errors import GraphError
from accy_async.graph.nodes import BufferSlot, LaunchGraphLoop, RuntimeScalar
from accy_async.graph.placing import CONTINUES, OPENS, SHARES
from tests.graph.graphs import blocks, graph, host, idle


def wavefront(size: int) -> tuple[str, str]:
    cells = [(i, j) for i in range(size) for j in range(size)]
    names = " ".join(f"c{i}_{j}" for i, j in cells)
    down = [f"c{i}_{j}>c{i + 1}_{j}" for i, j in cells if i + 1 < size]
    right = [f"c{i}_{j}>c{i}_{j + 1}" for i, j in cells if j + 1 < size]
    return names, " ".join(down + right)


FAN = "a>b a>c a>d b>e c>e d>e e>f e>g e>h f>i g>i h>i"


@pytest.mark.parametrize(
    ("names", "arrows", "streams", "events", "waits"),
    [
        ("", "", 0, 0, 0),
        ("a", "", 1, 0, 0),
        ("a b c", "a>b b>c a>c", 1, 0, 0),
        ("c b a", "a>b b>c", 1, 0, 0),
        ("a b c d", "a>b a>c b>d c>d", 2, 2, 2),
        ("a b c d", "a>b a>c b>d c>d a>d", 2, 2, 2),
        ("a b c d", "a>c a>d b>c b>d", 2, 2, 2),
        ("a b c d", "a>b c>d", 2, 0, 0),
        ("a b c d e f g h i", FAN, 3, 6, 8),
        ("a b c d e", "a>c b>c c>d c>e", 2, 2, 2),
        (*wavefront(2), 2, 2, 2),
        (*wavefront(5), 5, 20, 20),
        (" ".join(f"n{i}" for i in range(6)), "", 6, 0, 0),
    ],
)
def test_streams_of_known_graphs(
    names: str, arrows: str, streams: int, events: int, waits: int
) -> None:
    """Chains, diamonds, forks and wavefronts take exactly what they need."""
    layout = graph(names, arrows).layout(32)
    got = (layout.stream_count, layout.event_count, layout.wait_count)
    assert got == (streams, events, waits)


def test_diamond_in_full() -> None:
    """The whole layout of the smallest graph with something to decide."""
    layout = graph("a b c d", "a>b a>c b>d c>d").layout(4)
    assert layout.order == (0, 1, 2, 3)
    assert layout.stream == (0, 0, 1, 0)
    assert layout.waits == ((), (), (0,), (2,))
    assert layout.records == (True, False, True, False)
    assert layout.follows == (-1, 0, -1, 1)
    assert layout.choice == (OPENS, CONTINUES, OPENS, CONTINUES)
    assert layout.ends == (3,)
    assert layout.priority == (3, 2, 2, 1)
    assert layout.is_static
    assert layout.most_streams == 2


def test_critical_path_goes_first() -> None:
    """The chain that decides how long it all takes is submitted before the rest."""
    plan = graph("short x y z", "x>y y>z")
    layout = plan.layout(2)
    names = [plan.nodes[item].name for item in layout.order]
    assert names == ["x", "y", "short", "z"]
    assert layout.priority == (1, 3, 2, 1)


def test_one_event_serves_all_waiters() -> None:
    """Whoever waits for a node waits for the same event of it."""
    layout = graph("a b c d", "a>b a>c a>d").layout(4)
    assert layout.event_count == 1
    assert layout.wait_count == 2


def test_streams_shared_when_there_are_no_more() -> None:
    """Six free nodes on two streams are three on each."""
    layout = graph("a b c d e f").layout(2)
    assert layout.stream == (0, 1, 0, 1, 0, 1)
    assert layout.wait_count == 0
    assert layout.choice[2:] == (SHARES,) * 4


def test_label_is_not_held_up_by_others() -> None:
    """A node without a label goes on in a labelled stream only where it may."""
    nodes = [idle("a", stream="s"), idle("b"), idle("c", stream="s")]
    layout = graph(nodes, "a>b").layout(4)
    assert layout.stream[0] == layout.stream[2] != layout.stream[1]
    assert layout.stream_labels[layout.stream[0]] == ("s",)
    through = graph(nodes, "a>b b>c").layout(4)
    assert through.stream_count == 1


def test_more_labels_than_streams_share() -> None:
    """Labels beyond the streams there are share them, in submission order."""
    nodes = [idle(f"n{i}", stream=f"s{i % 3}") for i in range(6)]
    assert graph(nodes).layout(2).stream_count == 2
    layout = graph([*nodes, idle("free")]).layout(1)
    assert layout.stream_count == 1
    assert layout.stream_labels == (("s0", "s1", "s2"),)


def test_priority_takes_a_stream_of_its_own() -> None:
    """An urgent node does not queue behind an ordinary one, nor drag it along."""
    nodes = [idle("a"), idle("b", priority=0), idle("c", priority=-5)]
    layout = graph(nodes, "a>b b>c").layout(4)
    assert layout.stream == (0, 0, 1)
    assert layout.stream_priorities == (0, -5)


def test_host_calls_need_no_events() -> None:
    """Edges to and from the host are the host's; what it awaited is known done."""
    nodes = [idle("a"), idle("b"), host("h"), idle("c")]
    layout = graph(nodes, "a>h b>h h>c a>c b>c").layout(4)
    assert layout.event_count == layout.wait_count == 0
    assert layout.awaits == {2: (1, 0)}
    assert layout.stream[2] == -1
    assert not layout.is_static
    assert layout.is_host == (False, False, True, False)


def test_host_call_knows_only_what_it_waited_for() -> None:
    """An item's own other edges still need events."""
    nodes = [idle("a"), idle("b"), host("h"), idle("c")]
    layout = graph(nodes, "a>h h>c b>c a>b").layout(4)
    assert layout.stream[3] == layout.stream[1]
    apart = graph(
        [idle("a"), idle("b"), host("h"), idle("c"), idle("d")], "a>h h>c b>c b>d h>d"
    ).layout(4)
    assert sum(map(len, apart.waits)) == 1


def test_nothing_free_is_taken_to_wait_for_a_host_call() -> None:
    """On one stream, what waits for the host may be submitted last."""
    nodes = [host("h"), idle("a"), idle("b"), idle("c"), idle("free")]
    layout = graph(nodes, "h>a a>b b>c").layout(1)
    free = 4
    assert layout.follows[free] == -1
    assert layout.stream[free] == layout.stream[1] == 0
    assert layout.ends  # both lanes' ends, whichever comes last
    assert set(layout.ends) == {3, free}


def test_loop_is_one_item() -> None:
    """Edges into and out of a loop are the loop's; its body has its own layout."""
    plan = graph(
        "a b c d e",
        "a>c b>c c>e d>e b>d",
        loops=[LaunchGraphLoop(name="L", first="b", last="d", count=10)],
    )
    layout = plan.layout(4)
    assert [item.kind for item in layout.items] == [0, 2, 0]
    assert layout.stream_count == 1
    assert layout.priority == (22, 21, 1)
    body = layout.items[1].body
    assert body is not None
    assert body.loop == 0
    assert body.stream == (0, 0, 1)
    assert body.ends == (2, 1)
    assert body.records == (True, False, True)  # d's stream is joined to the loop's
    assert layout.is_static
    assert layout.most_streams == 2


def test_loops_nest() -> None:
    """Each loop's body is laid out by itself, and weighs its count."""
    loops = [
        LaunchGraphLoop(name="inner", first="b", last="c", count=5),
        LaunchGraphLoop(name="outer", first="a", last="d", count=2),
        LaunchGraphLoop(name="same", first="b", last="c", count=RuntimeScalar(0)),
    ]
    layout = graph(
        "a b c d", "a>b b>c c>d", loops=loops, runtime_scalar_count=1
    ).layout()
    assert [block.loop for block in blocks(layout)] == [-1, 1, 0, 2]
    assert layout.priority == (2 * (1 + 5 * 2 + 1),)


def test_loop_stepped_on_the_host_gates_what_follows() -> None:
    """A loop with a condition, or a call within it, is the host's to resolve."""
    plan = graph(
        "a b",
        "a>b",
        loops=[LaunchGraphLoop(name="L", first="a", last="a", condition="go")],
        slots=[BufferSlot("go", DType.I32, ())],
    )
    layout = plan.layout()
    assert layout.is_host == (True, False)
    assert layout.stream == (0, 0)
    called = graph(
        [host("h"), idle("b")],
        "h>b",
        loops=[LaunchGraphLoop(name="L", first="h", last="h", count=2)],
    ).layout()
    assert called.is_host == (True, False)
    assert called.items[0].body is not None
    assert not called.items[0].body.is_static


def test_loop_of_one_label_has_its_stream() -> None:
    """Where all of a loop has one label, the loop has it."""
    nodes = [idle("a", stream="s"), idle("b", stream="s"), idle("c")]
    loops = [LaunchGraphLoop(name="L", first="b", last="b", count=2)]
    layout = graph(nodes, loops=loops).layout()
    assert layout.stream[0] == layout.stream[1]
    body = layout.items[1].body
    assert body is not None
    assert body.stream == (0,)
    assert body.stream_labels == (("s",),)


def test_layout_refuses_no_streams() -> None:
    with pytest.raises(GraphError, match="max_streams: got 0, expected at least 1"):
        graph("a").layout(0)


def test_layout_is_immutable() -> None:
    layout = graph("a").layout()
    with pytest.raises(AttributeError, match="immutable"):
        layout.stream = ()
