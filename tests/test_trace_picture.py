"""The picture of the diamond in the documentation shows what its example does."""

from __future__ import annotations

import importlib.util
import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import attrs
import pytest

import accy_async
from accy_async.observe import Trace, draw_trace, read_trace, validate_trace

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "_static" / "diamond.svg"
SVG = "{http://www.w3.org/2000/svg}"

BRANCHES = ["grow 2.8", "grow 3.2", "grow 3.5", "grow 3.9"]
NAMES = ["split", *BRANCHES, "join", "answer"]


@attrs.frozen
class Box:
    """A node as it is drawn."""

    name: str
    state: str
    row: float
    begin: float
    end: float


def boxes(picture: str) -> list[Box]:
    """The nodes of a timeline, from left to right."""
    found = []
    for group in ET.fromstring(picture).iter(f"{SVG}g"):
        title, rectangle = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None
        assert title.text is not None
        assert rectangle is not None
        name, told = title.text.split(": ")
        x, y, width = (float(rectangle.attrib[key]) for key in ("x", "y", "width"))
        found.append(Box(name, told.split(", ")[1], y, x, x + width))
    return sorted(found, key=lambda box: box.begin)


def streams(picture: str) -> int:
    texts = [text.text or "" for text in ET.fromstring(picture).iter(f"{SVG}text")]
    return sum(text.startswith("stream ") for text in texts)


def edges(picture: str) -> int:
    return sum(
        path.attrib.get("class") == "edge"
        for path in ET.fromstring(picture).iter(f"{SVG}path")
    )


def check_diamond(picture: str) -> None:
    """Every node once, on four streams, none over another, in an order that holds."""
    found = boxes(picture)
    assert sorted(box.name for box in found) == sorted(NAMES)
    assert {box.state for box in found} == {"ok"}
    assert streams(picture) == 4
    assert edges(picture) == 9
    by_name = {box.name: box for box in found}
    assert len({by_name[name].row for name in BRANCHES}) == 4
    for row in {box.row for box in found}:
        line = [box for box in found if box.row == row]
        for one, two in itertools.pairwise(line):
            assert one.end <= two.begin + 0.02, f"{one.name} and {two.name} overlap"
    assert all(box.end > box.begin for box in found)
    for name in BRANCHES:
        assert by_name["split"].end <= by_name[name].begin + 0.02
        assert by_name[name].end <= by_name["join"].begin + 0.02
    assert by_name["join"].end <= by_name["answer"].begin + 0.02


def example() -> ModuleType:
    path = ROOT / "examples" / "graph_diamond.py"
    spec = importlib.util.spec_from_file_location("graph_diamond", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the example leaves in the folder that it is given."""
    made = tmp_path_factory.mktemp("diamond")
    accy_async.run(example().main, made)
    return made


def test_picture_of_the_documentation_is_the_diamond() -> None:
    check_diamond(PICTURE.read_text("utf-8"))


def test_fresh_picture_has_the_same_structure(folder: Path) -> None:
    """So a change of the example, the layout or the drawing asks for a new one."""
    fresh = (folder / "diamond.svg").read_text("utf-8")
    kept = PICTURE.read_text("utf-8")
    check_diamond(fresh)
    assert sorted(b.name for b in boxes(fresh)) == sorted(b.name for b in boxes(kept))
    assert [streams(fresh), edges(fresh)] == [streams(kept), edges(kept)]


def test_fresh_trace_is_whole(folder: Path) -> None:
    """No span is missing, empty, or over another on its stream."""
    text = (folder / "diamond.json").read_bytes()
    assert validate_trace(text) == []
    trace: Trace = read_trace(text)
    assert sorted(span.name for span in trace.spans) == sorted(NAMES)
    assert all(span.duration_ns > 0 and span.byte_count > 0 for span in trace.spans)
    assert all(not span.is_start_inferred for span in trace.spans)
    assert [trace.dropped_spans, trace.open_spans, trace.repaired_times] == [0, 0, 0]
    rows = trace.by_stream()
    assert len(rows) == 4
    assert {len(spans) for spans in rows.values()} == {1, 4}
    for spans in rows.values():
        for one, two in itertools.pairwise(spans):
            assert one.finished_ns <= two.start_ns
    ends = {span.name: span for span in trace.spans}
    kernels = [ends[name] for name in (*BRANCHES, "join")]
    assert all(span.grid and span.threadgroup == (256, 1, 1) for span in kernels)
    assert {(a.name, b.name) for _, a, b in trace.linked_edges()} == {
        *(("split", name) for name in BRANCHES),
        *((name, "join") for name in BRANCHES),
        ("join", "answer"),
    }


def test_trace_is_found_broken_where_spans_overlap(folder: Path) -> None:
    """The check sees what it promises: a span moved onto the one before it."""
    document = json.loads((folder / "diamond.json").read_bytes())
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    by_name = {event["name"]: event for event in slices}
    by_name["join"]["ts"] = by_name["grow 2.8"]["ts"]
    assert any("overlap" in problem for problem in validate_trace(document))


def test_picture_of_the_documentation_is_the_drawing_of_a_trace(folder: Path) -> None:
    """It is drawn by ``draw_trace`` as it stands, not touched up by hand."""
    text = (folder / "diamond.json").read_bytes()
    fresh = draw_trace(read_trace(text)).splitlines()
    kept = PICTURE.read_text("utf-8").splitlines()
    style = slice(fresh.index("<style>"), fresh.index("</style>"))
    assert kept[style] == fresh[style]
