"""A timeline of a trace as an SVG picture, for documents.

One row for each stream, as in the viewers; a box for each node, coloured by how
it ended; a curve for each edge. Written by hand, as text, and the same for the
same trace.
"""

from __future__ import annotations

from accy_async.errors import InvalidValue
from accy_async.observe.drawing import (
    CHARACTER_PX,
    STYLE,
    duration,
    round_step,
    safe_text,
)
from accy_async.observe.protocol import State
from accy_async.observe.trace import Span, Trace, lanes, stream_name

__all__ = ["draw_trace"]

_MARGIN = 12
_ROW = 30
_BOX = 22
_AXIS = 26
_CHARACTER = CHARACTER_PX
_LABEL = 50
_NARROWEST = 0.8

_FILLS: dict[State, str] = {
    "ok": "#4c8ed9",
    "failed": "#d64545",
    "cancelled": "#d99a2b",
    "skipped": "#9aa0a6",
}
_STYLE = f"""\
{STYLE}
.name {{ fill: #ffffff; }}
.edge {{ stroke: #8b949e; fill: none; }}
.box {{ stroke: #ffffff; stroke-opacity: 0.6; stroke-width: 0.6; }}"""


def draw_trace(
    trace: Trace, *, width: int = 900, edges: bool = True, title: str = ""
) -> str:
    """Draw the nodes of a trace.

    Args:
        trace: what to draw.
        width: of the picture, in pixels; at least 200.
        edges: False to leave the curves out.
        title: what readers that show no picture are told.

    Returns:
        An SVG document.

    Raises:
        InvalidValue: too narrow.
    """
    if isinstance(width, bool) or not width >= 200:
        raise InvalidValue("draw_trace.width", width, "200 or more")
    return _Drawing(trace, width).document(edges=edges, title=title)


class _Drawing:
    def __init__(self, trace: Trace, width: int) -> None:
        self.trace = trace
        self.width = width
        self.rows: list[tuple[str, list[Span]]] = []
        for stream, spans in trace.by_stream().items():
            laid = lanes((span.start_ns, span.finished_ns, span) for span in spans)
            for lane, row in enumerate(laid):
                self.rows.append(
                    (stream_name(stream, lane), [span for _, _, span in row])
                )
        longest = max((len(name) for name, _ in self.rows), default=0)
        self.left = _MARGIN + longest * _CHARACTER + 8
        self.scale = (width - _MARGIN - self.left) / max(trace.wall_ns, 1)
        self.bottom = _MARGIN + len(self.rows) * _ROW

    def x(self, ns: int) -> float:
        return self.left + (ns - self.trace.start_ns) * self.scale

    def document(self, *, edges: bool, title: str) -> str:
        height = self.bottom + _AXIS
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {self.width} {height}" '
            f'width="{self.width}" height="{height}">',
            f"<title>{safe_text(title or self._summary())}</title>",
            f"<style>\n{_STYLE}\n</style>",
            *self._axis(),
        ]
        middles: dict[tuple[int, int], float] = {}
        boxes: list[str] = []
        for index, (name, spans) in enumerate(self.rows):
            top = _MARGIN + index * _ROW
            middle = top + _BOX / 2
            parts.append(
                f'<text x="{_MARGIN}" y="{middle + 4:.1f}">{safe_text(name)}</text>'
            )
            for span in spans:
                middles[span.run_id, span.node_id] = middle
                boxes.append(self._box(span, top))
        if edges:
            parts.extend(self._edges(middles))
        return "\n".join([*parts, *boxes, "</svg>", ""])

    def _summary(self) -> str:
        return (
            f"{len(self.trace.spans)} nodes on {len(self.rows)} rows in "
            f"{duration(self.trace.wall_ns)}"
        )

    def _axis(self) -> list[str]:
        step = round_step(self.trace.wall_ns)
        parts = []
        for at in range(0, max(self.trace.wall_ns, 1), step):
            x = self.x(self.trace.start_ns + at)
            anchor = "end" if x > self.width - _LABEL else "start"
            parts.append(
                f'<line class="grid" x1="{x:.2f}" y1="{_MARGIN - 4}" '
                f'x2="{x:.2f}" y2="{self.bottom}"/>'
                f'<text x="{x:.2f}" y="{self.bottom + 16}" text-anchor="{anchor}">'
                f"{duration(at)}</text>"
            )
        return parts

    def _box(self, span: Span, top: float) -> str:
        wide = max(span.duration_ns * self.scale, _NARROWEST)
        x = self.x(span.start_ns)
        told = f"{span.name}: {span.kind}, {span.state}, {duration(span.duration_ns)}"
        if span.error is not None:
            told += f", {span.error}"
        parts = [
            f"<g><title>{safe_text(told)}</title>"
            f'<rect class="box" x="{x:.2f}" y="{top}" '
            f'width="{wide:.2f}" height="{_BOX}" rx="2" fill="{_FILLS[span.state]}"/>'
        ]
        room = int((wide - 6) / _CHARACTER)
        if room >= min(len(span.name), 3):
            name = span.name if len(span.name) <= room else f"{span.name[: room - 1]}…"
            parts.append(
                f'<text class="name" x="{x + 3:.2f}" y="{top + _BOX / 2 + 4:.1f}">'
                f"{safe_text(name)}</text>"
            )
        return "".join([*parts, "</g>"])

    def _edges(self, middles: dict[tuple[int, int], float]) -> list[str]:
        parts = []
        for run, before, after in self.trace.linked_edges():
            x1, y1 = self.x(before.finished_ns), middles[run, before.node_id]
            x2, y2 = self.x(after.start_ns), middles[run, after.node_id]
            bend = max((x2 - x1) / 2, 8)
            parts.append(
                f'<path class="edge" d="M{x1:.2f} {y1:.1f}C{x1 + bend:.2f} {y1:.1f} '
                f'{x2 - bend:.2f} {y2:.1f} {x2:.2f} {y2:.1f}"/>'
            )
        return parts
