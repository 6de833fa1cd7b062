"""A benchmark's samples as an SVG picture, for documents.

One row for each candidate: each sample a dot, its median a line with its bounds, and
dashed lines where the device's ceilings are: no way to do it is to their left, unless
caches hold what is moved. Written by hand, as text, and the same for the same report.
"""

from __future__ import annotations

import attrs

from accy_async.bench.report import BenchmarkReport, CandidateReport, Ceiling
from accy_async.observe.drawing import (
    CHARACTER_PX,
    STYLE,
    duration,
    round_step,
    safe_text,
)

__all__ = ["draw_benchmark"]

_WIDTH = 900
_MARGIN = 12
_HEAD = 34
_ROW = 34
_AXIS = 26
_LABEL = 60
_MOST_DOTS = 300
_LATE = 0.97
"""Samples later than this part of all are beyond the picture, and counted;"""

_WILD_MADS = 15.0
"""so are those so many median deviations beyond the median."""

_STYLE = f"""\
{STYLE}
.title {{ font-weight: 600; }}
.dot {{ fill: #4c8ed9; fill-opacity: 0.35; }}
.best .dot {{ fill: #2f9e6e; fill-opacity: 0.4; }}
.median {{ stroke: #444c56; stroke-width: 2; }}
.bounds {{ fill: #8b949e; fill-opacity: 0.35; }}
.ceiling {{ stroke: #d99a2b; stroke-dasharray: 4 3; }}
.refused {{ fill: #d64545; }}
@media (prefers-color-scheme: dark) {{ .median {{ stroke: #e6edf3; }} }}"""


def draw_benchmark(report: BenchmarkReport, ceilings: tuple[Ceiling, ...] = ()) -> str:
    """Draw one benchmark; an SVG document.

    Args:
        report: what was found.
        ceilings: what the device does at most; those that the benchmark has to do with
            are drawn.
    """
    return _Drawing(report, ceilings).document()


@attrs.frozen
class _Limit:
    name: str
    ns: float


class _Drawing:
    def __init__(self, report: BenchmarkReport, ceilings: tuple[Ceiling, ...]) -> None:
        self.report = report
        self.limits = _limits(report, ceilings)
        known = [one for one in report.candidates if one.times_ns]
        first = min((min(one.times_ns) for one in known), default=0.0)
        last = max((_late_bound(one) for one in known), default=1.0)
        near = [one.ns for one in self.limits if first / 3.0 < one.ns < last]
        first = min([first, *near])
        room = max(last - first, 0.02 * last, 1e-3)
        self.low = max(0.0, first - 0.05 * room)
        self.high = last + 0.05 * room
        longest = max((len(one.name) for one in report.candidates), default=0)
        self.left = _MARGIN + min(longest, 40) * CHARACTER_PX + 10
        self.scale = (_WIDTH - _MARGIN - self.left) / (self.high - self.low)
        self.bottom = _HEAD + _ROW * max(1, len(report.candidates))

    def x(self, ns: float) -> float:
        return self.left + (ns - self.low) * self.scale

    def document(self) -> str:
        height = self.bottom + _AXIS
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">',
            f"<title>{safe_text(self._summary())}</title>",
            f"<style>\n{_STYLE}\n</style>",
            f'<text class="title" x="{_MARGIN}" y="20">'
            f"{safe_text(self._head())}</text>",
            *self._axis(),
            *self._ceilings(),
        ]
        for index, one in enumerate(self.report.candidates):
            parts.append(self._row(one, _HEAD + index * _ROW))
        return "\n".join([*parts, "</svg>", ""])

    def _summary(self) -> str:
        told = [
            f"{one.name} {duration(one.median_ns)}"
            if one.median_ns is not None
            else f"{one.name} {one.status}"
            for one in self.report.candidates
        ]
        return f"{self.report.name}: {', '.join(told)}"

    def _head(self) -> str:
        away = [
            f"{one.name} ceiling at {duration(one.ns)}"
            for one in self.limits
            if not self.low <= one.ns <= self.high
        ]
        return ", ".join([self.report.name, *away])

    def _axis(self) -> list[str]:
        # In picoseconds, so that a step below a nanosecond is a whole number too.
        step = round_step(max(1, round((self.high - self.low) * 1000))) / 1000.0
        parts = []
        for number in range(int(self.low / step) + 1, int(self.high / step) + 1):
            x = self.x(number * step)
            anchor = "end" if x > _WIDTH - _LABEL else "start"
            parts.append(
                f'<line class="grid" x1="{x:.2f}" y1="{_HEAD - 4}" x2="{x:.2f}" '
                f'y2="{self.bottom}"/><text x="{x:.2f}" y="{self.bottom + 16}" '
                f'text-anchor="{anchor}">{duration(number * step)}</text>'
            )
        return parts

    def _ceilings(self) -> list[str]:
        return [
            f"<g><title>{safe_text(f'{one.name} ceiling: {duration(one.ns)}')}</title>"
            f'<line class="ceiling" x1="{self.x(one.ns):.2f}" y1="{_HEAD - 4}" '
            f'x2="{self.x(one.ns):.2f}" y2="{self.bottom}"/>'
            f'<text x="{self.x(one.ns) + 3:.2f}" y="{_HEAD + 5}">{one.name}</text></g>'
            for one in self.limits
            if self.low <= one.ns <= self.high
        ]

    def _row(self, one: CandidateReport, top: float) -> str:
        middle = top + _ROW / 2
        name = one.name if len(one.name) <= 40 else f"{one.name[:39]}…"
        label = f'<text x="{_MARGIN}" y="{middle + 4:.1f}">{safe_text(name)}</text>'
        if one.median_ns is None or one.low_ns is None or one.high_ns is None:
            told = f"{one.status}: {one.reason}" if one.reason else one.status
            return (
                f'<g>{label}<text class="refused" x="{self.left:.1f}" '
                f'y="{middle + 4:.1f}">{safe_text(told[:110])}</text></g>'
            )
        told = (
            f"{one.name}: {duration(one.median_ns)}, between {duration(one.low_ns)} "
            f"and {duration(one.high_ns)}, {len(one.times_ns)} samples"
        )
        kind = "best" if one.name == self.report.winner else "other"
        parts = [f'<g class="{kind}"><title>{safe_text(told)}</title>{label}']
        step = max(1, len(one.times_ns) // _MOST_DOTS)
        late = 0
        for place, ns in enumerate(one.times_ns[::step]):
            if ns > self.high:
                late += 1
                continue
            # Side by side in the order of the rounds, so that a drift is seen.
            y = middle - 9 + 18 * place * step / len(one.times_ns)
            parts.append(
                f'<circle class="dot" cx="{self.x(ns):.2f}" cy="{y:.2f}" r="2"/>'
            )
        begin, end = self.x(one.low_ns), self.x(min(one.high_ns, self.high))
        at = self.x(min(one.median_ns, self.high))
        parts.append(
            f'<rect class="bounds" x="{begin:.2f}" y="{middle - 11:.1f}" '
            f'width="{max(end - begin, 0.8):.2f}" height="22" rx="2"/>'
            f'<line class="median" x1="{at:.2f}" y1="{middle - 11:.1f}" '
            f'x2="{at:.2f}" y2="{middle + 11:.1f}"/>'
        )
        if late:
            parts.append(
                f'<text x="{_WIDTH - _MARGIN}" y="{middle - 4:.1f}" '
                f'text-anchor="end">{late} later</text>'
            )
        return "".join([*parts, "</g>"])


def _limits(
    report: BenchmarkReport, ceilings: tuple[Ceiling, ...]
) -> tuple[_Limit, ...]:
    """How long the benchmark takes at the device's best."""
    amounts = {"copy": report.bytes_moved, "fma": report.flops}
    found = []
    for one in ceilings:
        amount = amounts.get(one.name)
        if amount and one.value > 0.0:
            found.append(_Limit(one.name, amount / one.value * 1e9))
    return tuple(found)


def _late_bound(one: CandidateReport) -> float:
    """What lies beyond it is wild: a few of those must not squeeze all others."""
    ordered = sorted(one.times_ns)
    bound = ordered[min(len(ordered) - 1, int(_LATE * len(ordered)))]
    middle = ordered[len(ordered) // 2]
    spread = max(_WILD_MADS * (one.mad_ns or 0.0), 0.01 * middle)
    return max(min(bound, middle + spread), one.high_ns or middle)
