"""A report of benchmarks for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from accy_async.observe.drawing import duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from accy_async.bench import BenchmarkReport, CandidateReport, Change, Report

__all__ = ["show"]

_SIZES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def show(
    report: Report, changes: tuple[Change, ...] = (), earlier: Report | None = None
) -> RenderableType:
    """The report, and how it compares with an earlier one."""
    from rich.console import Group as Lines
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(_plain(f"{report.device.backend}: {report.device.name}"), "bold"),
        Text(_ceilings(report)),
    ]
    if report.device.name.startswith("recording"):
        parts.append(Text("It executes nothing: its times mean nothing.", "yellow"))
    for one in report.benchmarks:
        parts.append(Text(""))
        if one.candidates:
            parts.append(_table(one, report))
        parts += [Text(line, style) for line, style in _notes(one)]
    if changes:
        parts += [Text(""), _changes(changes)]
    if earlier is not None:
        parts += [Text(line) for line in _since(report, earlier)]
    if not report.is_complete:
        parts.append(Text("Broken off: this is what was measured until then.", "bold"))
    return Lines(*parts)


def _ceilings(report: Report) -> str:
    named = {"copy": "copies", "fma": "multiply-adds (f32)"}
    found = [
        f"{named.get(one.name, one.name)} at {_rate(one.value, one.unit)}"
        for one in report.ceilings
    ]
    return f"at most: {', '.join(found)}" if found else "its ceilings are not known"


def _table(one: BenchmarkReport, report: Report) -> Table:
    from rich.table import Table
    from rich.text import Text

    where = f"{Path(one.declared).name}" if one.declared else ""
    title = Text.assemble((_plain(one.name), "bold"), f"  {one.kind}, {_plain(where)}")
    table = Table(title=title, title_justify="left", title_style="")
    for heading in ("candidate", "median", "between", "of the first"):
        table.add_column(heading, justify="left" if heading == "candidate" else "right")
    has_bytes = one.bytes_moved is not None
    has_flops = one.flops is not None
    if has_bytes:
        table.add_column("moves", justify="right")
    if has_flops:
        table.add_column("computes", justify="right")
    for candidate in one.candidates:
        style = "green" if candidate.name == one.winner else ""
        cells = [_plain(candidate.name), *_times(candidate)]
        if has_bytes:
            cells.append(_share(candidate.bytes_per_s, "B/s", report, "copy"))
        if has_flops:
            cells.append(_share(candidate.flops_per_s, "FLOP/s", report, "fma"))
        table.add_row(*map(Text, cells), style=style)
    return table


def _times(one: CandidateReport) -> tuple[str, str, str]:
    if one.median_ns is None or one.low_ns is None or one.high_ns is None:
        return one.status, "", ""
    compared = ""
    if one.speedup is not None:
        low, estimate, high = one.speedup
        compared = f"{estimate:.2f}x ({low:.2f}–{high:.2f})"
    elif one.standing is None:
        compared = "first"
    return duration(one.median_ns), _between(one.low_ns, one.high_ns), compared


def _between(low: float, high: float) -> str:
    """Two times, the unit said once where it is the same."""
    first, last = duration(low).split(), duration(high).split()
    begin = first[0] if first[1:] == last[1:] else " ".join(first)
    return f"{begin}–{' '.join(last)}"


def _share(value: float | None, unit: str, report: Report, name: str) -> str:
    """A rate, and what part of the ceiling it is."""
    if value is None:
        return ""
    ceiling = report.ceiling(name)
    if ceiling is None or not ceiling.value > 0.0:
        return _rate(value, unit)
    return f"{_rate(value, unit)} ({value / ceiling.value:.0%})"


def _notes(one: BenchmarkReport) -> list[tuple[str, str]]:
    notes = []
    if one.error:
        notes.append((f"{_plain(one.name)}: {_plain(one.error)}", "bold red"))
    for candidate in one.candidates:
        if candidate.reason:
            told = f"{candidate.name}: {candidate.status}: {candidate.reason}"
            notes.append((_plain(told), "red"))
    if one.winner is not None and len(one.candidates) > 1:
        standings = {"no difference": "none is faster"}
        told = standings.get(one.standing, one.standing)
        notes.append((f"use {_plain(one.winner)}: {told}", ""))
    if not one.is_steady:
        notes.append((f"the machine did not hold still: {one.conditions}", "yellow"))
    if one.source == "host":
        notes.append(("by the host's clock, as the device has none", ""))
    return notes


def _changes(changes: tuple[Change, ...]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text("Since the earlier report", "bold"), title_justify="left")
    for heading in ("benchmark", "candidate", "time", "between", ""):
        is_text = heading in ("benchmark", "candidate", "")
        table.add_column(heading, justify="left" if is_text else "right")
    styles = {"faster": "green", "slower": "red"}
    for one in changes:
        cells = (
            _plain(one.benchmark),
            _plain(one.candidate),
            f"{one.ratio:.3f}x",
            f"{one.low:.3f}–{one.high:.3f}",
            str(one.standing),
        )
        table.add_row(*map(Text, cells), style=styles.get(str(one.standing), ""))
    return table


def _since(report: Report, earlier: Report) -> list[str]:
    """What else is another than then: to be looked at before code is blamed."""
    lines = []
    for one in report.ceilings:
        before = earlier.ceiling(one.name)
        if before is not None and before.value > 0.0:
            ratio = one.value / before.value
            lines.append(f"{one.name} ceiling: {ratio:.2f}x of what it was then")
    versions = {**report.versions, "driver": report.device.driver}
    old = {**earlier.versions, "driver": earlier.device.driver}
    lines += [
        f"{name}: {old[name] or 'unknown'} then, {value or 'unknown'} now"
        for name, value in versions.items()
        if name in old and old[name] != value
    ]
    return [_plain(line) for line in lines]


def _rate(value: float, unit: str) -> str:
    for size, letter in _SIZES:
        if value >= size:
            return f"{value / size:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}"


def _plain(text: str) -> str:
    """Text from a file, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
