"""The timeline as a picture: well-formed, complete, the same each time."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from accy_async.errors import InvalidValue
from accy_async.observe import SpanRecorder, Trace, draw_trace
from tests.observe.samples import START_NS, Clock, cancelled_run, diamond

SVG = "{http://www.w3.org/2000/svg}"


def picture(trace: Trace, **options: object) -> ET.Element:
    return ET.fromstring(draw_trace(trace, **options))  # type: ignore[arg-type]


def boxes(root: ET.Element) -> list[dict[str, float]]:
    return [
        {key: float(box.attrib[key]) for key in ("x", "y", "width", "height")}
        for box in root.iter(f"{SVG}rect")
    ]


def test_diamond_is_drawn_to_scale() -> None:
    """A row for each stream, a box for each node, its width its duration."""
    root = picture(diamond())
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[-4:] == ["split", "left", "join", "right"]
    assert {"stream 1", "stream 2"} <= set(texts)
    split, left, join, right = boxes(root)
    assert split["y"] == left["y"] == join["y"] != right["y"]
    assert left["width"] == pytest.approx(2 * split["width"], abs=0.02)
    assert left["x"] == pytest.approx(split["x"] + split["width"], abs=0.02)
    assert len(list(root.iter(f"{SVG}path"))) == 4
    assert list(picture(diamond(), edges=False).iter(f"{SVG}path")) == []
    assert draw_trace(diamond()) == draw_trace(diamond())


def test_boxes_stay_inside_the_picture() -> None:
    trace, _ = cancelled_run()
    root = picture(trace, width=400)
    assert len(boxes(root)) == 100
    for box in boxes(root):
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 401
    colours = {box.attrib["fill"] for box in root.iter(f"{SVG}rect")}
    assert len(colours) == 3


@pytest.mark.parametrize("name", ["<b>&\"'", "\x00\x1b[31m\n", "\ud800", "µ" * 300])
def test_any_name_can_be_drawn(name: str) -> None:
    """What XML cannot hold is replaced; the picture stays well-formed."""
    recorder = SpanRecorder(clock=Clock())
    recorder.node_submitted(1, 0, name, "kernel", 1, START_NS + 1)
    recorder.node_finished(1, 0, START_NS + 9_000, "failed", ValueError(name))
    assert len(boxes(picture(recorder.trace(), title=name))) == 1


def test_empty_trace_is_a_picture_too() -> None:
    assert boxes(picture(Trace())) == []
    assert picture(Trace(), title="none").findtext(f"{SVG}title") == "none"


def test_too_narrow_a_picture_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"draw_trace\.width"):
        draw_trace(diamond(), width=100)
