"""Drawing a plan: for Graphviz, and as an SVG of our own for notebooks.

Both show what the streams make of the graph: a colour for each stream, solid
edges where stream order does the waiting, dashed ones for events, dotted ones
for edges that others imply or the host resolves. Large plans are drawn up to a
limit of nodes, in the plan's order, and say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

import attrs

from accy_async.graph.explain import item_name, iterations, operation_name
from accy_async.graph.order import LOOP

if TYPE_CHECKING:
    from accy_async.graph.layout import BlockLayout
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["to_dot", "to_svg"]

_COLOURS = [
    "#a6cee3",
    "#b2df8a",
    "#fdbf6f",
    "#cab2d6",
    "#fb9a99",
    "#ffff99",
    "#8dd3c7",
    "#fccde5",
]
_HOST_COLOUR = "#ffffff"
_STYLES = {"stream": "solid", "event": "dashed", "implied": "dotted"}


def _colour(stream: int) -> str:
    return _HOST_COLOUR if stream < 0 else _COLOURS[stream % len(_COLOURS)]


def _edge_kind(block: BlockLayout, before: int, after: int) -> str:
    if before in block.waits[after]:
        return "event"
    is_same = block.stream[before] == block.stream[after] >= 0
    return "stream" if is_same else "implied"


# ---------------------------------------------------------------- Graphviz


def to_dot(plan: LaunchGraphPlan, max_streams: int, limit: int) -> str:
    """The plan in Graphviz's language; loops are clusters."""
    lines = ["digraph plan {", "  compound=true;", "  node [shape=box, style=filled];"]
    lines += _dot_block(plan, plan.layout(max_streams), limit, "  ")
    if len(plan.nodes) > limit:
        lines.append(f'  more [label="... {len(plan.nodes) - limit} more nodes"];')
    lines.append("}")
    return "\n".join(lines) + "\n"


def _dot_block(
    plan: LaunchGraphPlan, block: BlockLayout, limit: int, indent: str
) -> Iterator[str]:
    for number, item in enumerate(block.items):
        if item.body is None:
            if item.index < limit:
                label = f"{item_name(plan, item)}\n{operation_name(plan, item.index)}"
                colour = _colour(block.stream[number])
                yield f"{indent}n{item.index} [label={_quoted(label)}, " + (
                    f'fillcolor="{colour}"];'
                )
        elif _first(item.body) < limit:
            loop = plan.loops[item.index]
            yield f"{indent}subgraph cluster_{item.index} {{"
            label = _quoted(f"{loop.name}, {iterations(loop)}")
            yield f"{indent}  label={label};"
            yield from _dot_block(plan, item.body, limit, indent + "  ")
            yield f"{indent}}}"
    for after, preds in enumerate(block.preds):
        for before in preds:
            one, two = _dot_end(block, before), _dot_end(block, after)
            if one[0] < limit and two[0] < limit:
                style = _STYLES[_edge_kind(block, before, after)]
                ends = f", ltail={one[1]}" if one[1] else ""
                ends += f", lhead={two[1]}" if two[1] else ""
                yield f"{indent}n{one[0]} -> n{two[0]} [style={style}{ends}];"


def _dot_end(block: BlockLayout, item: int) -> tuple[int, str]:
    """The node to draw an edge to, and the cluster to end it at, if it is one."""
    _, index, body = block.items[item]
    return (index, "") if body is None else (_first(body), f"cluster_{index}")


def _first(block: BlockLayout) -> int:
    """The first node of a loop."""
    item = block.items[0]
    while item.body is not None:
        item = item.body.items[0]
    return item.index


def _quoted(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


# ---------------------------------------------------------------- SVG

_GAP, _PAD, _HEIGHT, _TITLE, _LETTER = 16, 10, 30, 18, 7


@attrs.define(eq=False)
class _Box:
    """A rectangle to draw; a loop's holds the drawing of its body."""

    title: str
    hint: str
    colour: str
    width: int
    height: int
    inner: _Drawing | None = None
    x: int = 0
    y: int = 0


@attrs.define(eq=False)
class _Drawing:
    """One block's boxes, by item, placed within ``width`` and ``height``."""

    block: BlockLayout
    boxes: dict[int, _Box]
    width: int
    height: int


def to_svg(plan: LaunchGraphPlan, max_streams: int, limit: int) -> str:
    """The plan as an SVG image: layers from top to bottom, loops as frames."""
    drawing = _arrange(plan, plan.layout(max_streams), limit)
    left_out = len(plan.nodes) - limit
    height = drawing.height + (_TITLE if left_out > 0 else 0)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        '<defs><marker id="accy-tip" markerWidth="7" markerHeight="7" refX="6" '
        'refY="3" orient="auto"><path d="M0,0 L7,3 L0,6 z"/></marker></defs>',
        *_svg_block(drawing, 0, 0),
    ]
    if left_out > 0:
        lines.append(
            f'<text x="{_PAD}" y="{height - 5}">... {left_out} more nodes</text>'
        )
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def _arrange(plan: LaunchGraphPlan, block: BlockLayout, limit: int) -> _Drawing:
    boxes: dict[int, _Box] = {}
    for number, item in enumerate(block.items):
        first = item.index if item.body is None else _first(item.body)
        if first >= limit:
            break  # items are in the plan's order
        name = item_name(plan, item)
        colour = _colour(block.stream[number])
        if item.body is None:
            width = max(44, _LETTER * len(name) + 2 * _PAD)
            hint = operation_name(plan, item.index)
            boxes[number] = _Box(name, hint, colour, width, _HEIGHT)
        else:
            inner = _arrange(plan, item.body, limit)
            hint = iterations(plan.loops[item.index])
            title = f"{name}, {hint}"
            width = max(inner.width, _LETTER * len(title) + 2 * _PAD)
            height = inner.height + _TITLE
            boxes[number] = _Box(title, hint, colour, width, height, inner)
    layers: dict[int, list[int]] = {}
    level: dict[int, int] = {}
    for item_number in block.order:
        if item_number in boxes:
            before = [level[p] for p in block.preds[item_number] if p in level]
            level[item_number] = max(before, default=-1) + 1
            layers.setdefault(level[item_number], []).append(item_number)
    rows = [
        sorted(layers[depth], key=lambda i: (block.stream[i], i))
        for depth in range(len(layers))
    ]
    widths = [sum(boxes[i].width + _GAP for i in row) - _GAP for row in rows]
    width = max(widths, default=0) + 2 * _PAD
    y = _PAD
    for row, row_width in zip(rows, widths, strict=True):
        x = (width - row_width) // 2
        for i in row:
            boxes[i].x, boxes[i].y = x, y
            x += boxes[i].width + _GAP
        y += max(boxes[i].height for i in row) + 2 * _GAP
    return _Drawing(block, boxes, width, max(y - 2 * _GAP, 0) + _PAD)


def _svg_block(drawing: _Drawing, dx: int, dy: int) -> Iterator[str]:
    block, boxes = drawing.block, drawing.boxes
    dashes = {"stream": "", "event": ' stroke-dasharray="6 3"'}
    for after, two in boxes.items():
        for before in block.preds[after]:
            one = boxes.get(before)
            if one is None:
                continue
            x1, y1 = dx + one.x + one.width // 2, dy + one.y + one.height
            x2, y2 = dx + two.x + two.width // 2, dy + two.y
            bend = max(_GAP, (y2 - y1) // 2)
            kind = _edge_kind(block, before, after)
            dash = dashes.get(kind, ' stroke-dasharray="1 3"')
            yield (
                f'<path d="M{x1},{y1} C{x1},{y1 + bend} {x2},{y2 - bend} {x2},{y2}" '
                f'fill="none" stroke="black"{dash} marker-end="url(#accy-tip)"/>'
            )
    for number, box in boxes.items():
        x, y = dx + box.x, dy + box.y
        is_loop = block.items[number].kind == LOOP
        opacity = ' fill-opacity="0.35"' if is_loop else ""
        yield (
            f'<rect x="{x}" y="{y}" width="{box.width}" height="{box.height}" rx="4" '
            f'fill="{box.colour}"{opacity} stroke="black"><title>{escape(box.hint)}'
            "</title></rect>"
        )
        if is_loop:
            yield f'<text x="{x + _PAD}" y="{y + 14}">{escape(box.title)}</text>'
        else:
            yield (
                f'<text x="{x + box.width // 2}" y="{y + 19}" text-anchor="middle">'
                f"{escape(box.title)}</text>"
            )
        if box.inner is not None:
            yield from _svg_block(box.inner, x, y + _TITLE)
