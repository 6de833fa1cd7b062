"""What a plan says of itself: explained, and drawn for Graphviz and notebooks."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given, settings

from accy_async.artifact import ArtifactFormat
from accy_async.artifact.formats import BackendKind
from accy_async.backends.capabilities import Capabilities, DeviceIdentity
from accy_async.backends.cpu.identity import cpu_capabilities
from accy_async.dtypes import DType
from accy_async.graph import LaunchGraphBuilder
from accy_async.graph.lowering import lowering_report
from accy_async.graph.nodes import (
    BufferSlot,
    LaunchGraphLoop,
    LaunchGraphLoopCarry,
    RuntimeScalar,
)
from accy_async.graph.plan import LaunchGraphPlan
from tests.graph.graphs import (
    graph,
    host,
    idle,
    kernel,
    kernel_entry,
    random_plans,
    slots,
)

SVG = "{http://www.w3.org/2000/svg}"


def diamond() -> LaunchGraphPlan:
    """A diamond, its left side shorter, with an edge that others imply."""
    nodes = [
        kernel("top", "", "a"),
        kernel("left", "a", "b"),
        kernel("left2", "ab", "c"),
        kernel("right", "a", "d"),
        kernel("right2", "d", "e"),
        kernel("right3", "e", "f"),
        kernel("bottom", "cf", "a"),
        host("tell"),
    ]
    arrows = (
        "top>left top>right left>left2 top>left2 right>right2 right2>right3 "
        "left2>bottom right3>bottom bottom>tell"
    )
    return graph(nodes, arrows, slots=slots("abcdef"))


def looped() -> LaunchGraphPlan:
    nodes = [
        idle("first", stream="s", signal_event="go"),
        kernel("step", "x", "yf"),
        host("peek", wait_events=("go",)),
    ]
    return graph(
        nodes,
        "first>step step>peek",
        loops=[
            LaunchGraphLoop(
                name="solve",
                first="step",
                last="step",
                condition="f",
                max_iterations=7,
                carries=[LaunchGraphLoopCarry("x", "y")],
            ),
            LaunchGraphLoop(
                name="twice", first="step", last="step", count=RuntimeScalar(0)
            ),
        ],
        slots=[*slots("xy"), BufferSlot("f", DType.U32, 1)],
        runtime_scalar_count=1,
    )


def test_explain_diamond() -> None:
    """Counts, streams and why, events and which edges needed none."""
    expected = """\
8 nodes (1 HostCall, 7 KernelCall), 9 dependencies, 0 loops, 6 slots
  streams: 2, of at most 8
  edges: 9, of which 5 by stream order, 2 by waiting (events: 2), 1 implied by \
those, 1 by the host
  critical path, 6 long: top → right → right2 → right3 → bottom → tell
  resolved on the host: tell
  top: stream 0, opens it; records an event
  right: stream 0, goes on from top
  left: stream 1, opens it; waits for top
  right2: stream 0, goes on from right
  left2: stream 1, goes on from left; records an event
  right3: stream 0, goes on from right2
  bottom: stream 0, goes on from right3; waits for left2
  tell: on the host, when these are done: bottom
cannot be lowered to a device graph:
  its parts between calls on the host are too small for graphs to save time
slot a: written by top, read by left, read by left2, read by right, written by bottom
slot b: written by left, read by left2
slot c: written by left2, read by bottom
slot d: written by right, read by right2
slot e: written by right2, read by right3
slot f: written by right3, read by bottom
"""
    assert diamond().explain() == expected


def test_explain_loops() -> None:
    """Each loop with how often it runs, what it carries, and why the host steps it."""
    expected = """\
3 nodes (1 EventSignal, 1 HostCall, 1 KernelCall), 2 dependencies, 2 loops, 3 slots
  streams: 1, of at most 8
  stream 0 of label s, priority 0
  edges: 3, of which 1 by stream order, 0 by waiting (events: 0), 0 implied by \
those, 2 by the host
  critical path, 3 long: first → solve → peek
  resolved on the host: solve, peek
    loop solve: its condition f may be read back before each iteration
  first: stream 0, as its label says
  solve: stream 0, goes on from first
  peek: on the host, when these are done: solve
  loop solve, while f is not 0, at most 7 times; carries y → x
    streams: 1, of at most 8
    edges: none
    critical path, 1 long: twice
    static: nothing is resolved on the host
    twice: stream 0, opens it
    loop twice, as often as runtime scalar 0 says
      streams: 1, of at most 8
      edges: none
      critical path, 1 long: step
      static: nothing is resolved on the host
      step: stream 0, opens it
cannot be lowered to a device graph:
  its parts between calls on the host are too small for graphs to save time
edges besides the dependencies: 1
  first → peek by event 'go'
slot x: read by step
slot y: written by step
slot f: written by step
"""
    assert looped().explain() == expected


def test_loops_that_not_every_device_decides_on_are_told() -> None:
    b = LaunchGraphBuilder()
    flag = b.scratch("flag", DType.U32, 1)
    b.fill(flag, 1)
    with b.loop(while_=flag, name="down"):
        b.fill(flag, 0)
    assert lowering_report(b.build(), 9) == [
        "can be lowered: to one device graph of 2 nodes, 1 of them loops",
        "  not on a device that knows no loops, such as Vulkan's:",
        "    down: a value decides on its end, and this device knows no loops",
    ]


def on(*, graphs: bool, loops: bool = False) -> Capabilities:
    """What a device can do that was named for this test."""
    identity = DeviceIdentity(
        backend=BackendKind.VULKAN, name="Some device", architecture="some"
    )
    return Capabilities(
        identity=identity,
        formats=frozenset({ArtifactFormat.VULKAN_SPIRV}),
        device_graphs=graphs,
        device_loops=loops,
    )


def test_device_without_graphs_is_told_and_what_happens() -> None:
    """Whatever the plan, even one that no device lowers."""
    expected = (
        "\nis not lowered: Some device has no device graphs, so each run submits its "
        "nodes one by one\n  lowering='always', and submit() of the prepared plan, "
        "raise GraphError\n"
    )
    for plan in (diamond(), looped()):
        text = plan.explain(capabilities=on(graphs=False))
        assert expected in text
        assert "can be lowered" not in text
        assert "cannot be lowered" not in text


def test_plan_for_the_cpu_is_not_said_to_be_lowered() -> None:
    """Its kernels say which device it is for, where nobody does."""
    entry = kernel_entry(1, format="cpu_object", payload=b"code")
    b = LaunchGraphBuilder()
    b.kernel(entry, [b.buffer("x", DType.F32, 4).write])
    report = lowering_report(b.build(), 9)
    assert report[0] == (
        "is not lowered: its kernels are for the CPU, which has no device graphs, so "
        "each run submits its nodes one by one"
    )
    assert not cpu_capabilities(2, None).device_graphs


def test_reports_for_a_device_speak_of_it_alone() -> None:
    """Whether it decides on loops; nothing of what others would do."""
    b = LaunchGraphBuilder()
    flag = b.scratch("flag", DType.U32, 1)
    b.fill(flag, 1)
    with b.loop(while_=flag, name="down"):
        b.fill(flag, 0)
    plan = b.build()
    assert lowering_report(plan, 9, capabilities=on(graphs=True, loops=True)) == [
        "can be lowered: to one device graph of 2 nodes, 1 of them loops"
    ]
    assert lowering_report(plan, 9, capabilities=on(graphs=True)) == [
        "cannot be lowered to a device graph:",
        "  down: a value decides on its end, and this device knows no loops",
    ]


def test_reports_are_bounded() -> None:
    """However large the plan, they stay readable, and say what they leave out."""
    plan = graph(" ".join(f"n{i}" for i in range(3000)))
    text = plan.explain(limit=5)
    assert len(text.splitlines()) == 12
    assert "  ... 2995 more\n" in text
    assert '"... 2990 more nodes"' in plan.to_dot(limit=10)
    assert "... 2990 more nodes</text>" in plan.to_svg(limit=10)
    assert len(plan.to_dot(limit=10).splitlines()) == 15


def test_dot_of_diamond() -> None:
    """Colours are streams; solid is stream order, dashed events, dotted implied."""
    expected = """\
digraph plan {
  compound=true;
  node [shape=box, style=filled];
  n0 [label="top\\nt.kernel", fillcolor="#a6cee3"];
  n1 [label="left\\nt.kernel", fillcolor="#b2df8a"];
  n2 [label="left2\\nt.kernel", fillcolor="#b2df8a"];
  n3 [label="right\\nt.kernel", fillcolor="#a6cee3"];
  n4 [label="right2\\nt.kernel", fillcolor="#a6cee3"];
  n5 [label="right3\\nt.kernel", fillcolor="#a6cee3"];
  n6 [label="bottom\\nt.kernel", fillcolor="#a6cee3"];
  n7 [label="tell\\nHostCall", fillcolor="#ffffff"];
  n0 -> n1 [style=dashed];
  n1 -> n2 [style=solid];
  n0 -> n2 [style=dotted];
  n0 -> n3 [style=solid];
  n3 -> n4 [style=solid];
  n4 -> n5 [style=solid];
  n2 -> n6 [style=dashed];
  n5 -> n6 [style=solid];
  n6 -> n7 [style=dotted];
}
"""
    assert diamond().to_dot() == expected


def test_dot_of_loops() -> None:
    """Loops are clusters, and edges of theirs end at them."""
    dot = looped().to_dot()
    assert 'label="solve, while f is not 0, at most 7 times"' in dot
    assert 'label="twice, as often as runtime scalar 0 says"' in dot
    assert "n0 -> n1 [style=solid, lhead=cluster_0];" in dot
    assert "n1 -> n2 [style=dotted, ltail=cluster_0];" in dot


def test_dot_quotes_names() -> None:
    assert (
        '[label="say \\"a\\\\b\\"\\nEventSignal"'
        in graph([idle('say "a\\b"')]).to_dot()
    )


def test_svg_of_diamond() -> None:
    """A box for each node in its stream's colour, below all that it waits for."""
    root = ElementTree.fromstring(diamond()._repr_svg_())
    boxes = root.findall(f"{SVG}rect")
    names = [text.text for text in root.findall(f"{SVG}text")]
    assert names == [node.name for node in diamond().nodes]
    tops = dict(zip(names, [int(box.get("y", "")) for box in boxes], strict=True))
    assert tops["top"] < tops["left"] == tops["right"] < tops["left2"]
    assert tops["right3"] < tops["bottom"] < tops["tell"]
    first, second, on_host = "#a6cee3", "#b2df8a", "#ffffff"
    fills = [box.get("fill") for box in boxes]
    assert fills == [first, *[second] * 2, *[first] * 4, on_host]
    dashes = [path.get("stroke-dasharray") for path in root.findall(f"{SVG}path")]
    counts = {dash: dashes.count(dash) for dash in set(dashes)}
    assert counts == {None: 5, "6 3": 2, "1 3": 2}


def test_svg_escapes_names() -> None:
    root = ElementTree.fromstring(graph([idle("<a & b>")]).to_svg())
    assert [text.text for text in root.findall(f"{SVG}text")] == ["<a & b>"]


@settings(max_examples=100, deadline=None)
@given(random_plans())
def test_reports_of_any_plan(plan: LaunchGraphPlan) -> None:
    """They never fail, name every node, and boxes lie within the picture."""
    text, dot, svg = plan.explain(), plan.to_dot(), plan.to_svg()
    root = ElementTree.fromstring(svg)
    width, height = int(root.get("width", "")), int(root.get("height", ""))
    for node in plan.nodes:
        assert f"{node.name}: " in text
        assert f'"{node.name}\\n' in dot
    for box in root.iter(f"{SVG}rect"):
        assert int(box.get("x", "")) + int(box.get("width", "")) <= width
        assert int(box.get("y", "")) + int(box.get("height", "")) <= height
    assert len(root.findall(f"{SVG}rect")) == len(plan.nodes) + len(plan.loops)
