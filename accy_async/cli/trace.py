"""``accy-async trace``: what a saved trace holds, and whether it is sound."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from accy_async.cli.exits import ExitCode, UsageError
from accy_async.cli.options import Json, Traceback
from accy_async.cli.terminal import console, write_json
from accy_async.errors import InvalidValue
from accy_async.observe import Trace, draw_trace, read_trace, validate_trace
from accy_async.observe.files import read_file, replace_file
from accy_async.observe.protocol import STATES
from accy_async.observe.reading import decode_document
from accy_async.observe.trace import Span, stream_name

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["TraceReport", "show", "trace", "trace_document"]

_PROBLEMS_SHOWN = 20
_LONGEST_SHOWN = 5
_TRACK = re.compile(r"(overlap on|no slice of) (track (\d+))\b")
VIEWER = "https://ui.perfetto.dev"


@attrs.frozen(kw_only=True)
class TraceReport:
    """What was found in a file.

    Attributes:
        path: the file.
        trace: what it holds; None where it cannot be read.
        problems: what is wrong with it.
        runs, phases: how many of them began in it.
    """

    path: Path
    trace: Trace | None
    problems: tuple[str, ...]
    runs: int = 0
    phases: int = 0


def trace(
    file: Path,
    *,
    svg: Path | None = None,
    json: Json = False,
    traceback: Traceback = False,
) -> int:
    """Check a saved trace, say what it holds, and how to look at it.

    Parameters
    ----------
    file: Path
        The trace, as save_trace writes it.
    svg: Path
        A file to draw its timeline to.
    """
    del traceback
    report = read_report(file)
    if svg is not None:
        if report.trace is None:
            raise UsageError(
                f"--svg: {report.path} cannot be drawn: {report.problems[0]}"
            )
        try:
            replace_file(svg, draw_trace(report.trace).encode())
        except OSError as error:
            raise UsageError(f"--svg {svg}: {error.strerror or error}") from error
    if json:
        write_json(trace_document(report))
    else:
        console().print(show(report))
    return ExitCode.CHECK_FAILED if report.problems else ExitCode.OK


def read_report(path: Path) -> TraceReport:
    """Read and check a file.

    Raises:
        UsageError: it cannot be read, is no JSON, or is JSON of something else.
    """
    try:
        data = read_file(path)
        document = decode_document(data)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except InvalidValue as error:
        raise UsageError(f"{path}: {error}") from error
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise UsageError(f"{path}: it is no trace; save_trace writes one")
    names = _track_names(events)
    problems = [_with_names(problem, names) for problem in validate_trace(document)]
    try:
        found = read_trace(data)
    except InvalidValue as error:
        problems.append(str(error))
        return TraceReport(path=path, trace=None, problems=tuple(problems))
    begun = Counter(
        event.get("cat")
        for event in events
        if isinstance(event, dict) and event.get("ph") == "b"
    )
    return TraceReport(
        path=path,
        trace=found,
        problems=tuple(problems),
        runs=begun["run"],
        phases=begun["phase"],
    )


def _track_names(events: list[object]) -> dict[str, str]:
    """What tracks are called in the file, by their number."""
    names = {}
    for event in events:
        match event:
            case {"name": "thread_name", "tid": int(tid), "args": {"name": str(name)}}:
                names[str(tid)] = name
            case _:
                pass
    return names


def _with_names(problem: str, names: dict[str, str]) -> str:
    """A problem that calls tracks as the table does: by their streams' names."""
    return _TRACK.sub(lambda m: f"{m[1]} {names.get(m[3], m[2])}", problem)


def trace_document(report: TraceReport) -> dict[str, object]:
    """The report for ``--json``."""
    found = report.trace or Trace()
    busy = found.busy_ns()
    return {
        "file": str(report.path),
        "is_sound": not report.problems,
        "problems": list(report.problems),
        "nodes": len(found.spans),
        "states": _states(found),
        "edges": sum(1 for _ in found.linked_edges()),
        "wall_ns": found.wall_ns,
        "runs": report.runs,
        "phases": report.phases,
        "streams": [
            {
                "stream": stream_name(stream),
                "nodes": len(spans),
                "busy_ns": busy[stream],
            }
            for stream, spans in found.by_stream().items()
        ],
        "open_spans": found.open_spans,
        "dropped_spans": found.dropped_spans,
        "dropped_edges": found.dropped_edges,
        "dropped_others": found.dropped_others,
        "unmatched_events": found.unmatched_events,
        "repaired_times": found.repaired_times,
    }


def show(report: TraceReport) -> RenderableType:
    """The report for people."""
    from rich.console import Group as Lines
    from rich.text import Text

    parts: list[RenderableType] = []
    if report.trace is not None:
        if report.trace.spans:
            parts.append(_table(report.path, report.trace))
        parts += [Text(line) for line in _lines(report.trace)]
        runs, phases = report.runs, report.phases
        if runs or phases:
            text = (
                f"besides: {runs:,} run{'s' * (runs != 1)}, "
                f"{phases:,} phase{'s' * (phases != 1)} of the host"
            )
            parts.append(Text(text))
    count = len(report.problems)
    if count:
        parts.append(Text(f"{count:,} problem{'s' * (count != 1)}:", "bold red"))
        shown = report.problems[:_PROBLEMS_SHOWN]
        parts += [Text(f"  {_plain(problem)}") for problem in shown]
        if count > len(shown):
            parts.append(Text(f"  and {count - len(shown):,} more"))
    else:
        parts.append(Text("The trace is sound.", "bold green"))
    if report.trace is not None:
        parts.append(Text(f"To look at it: {VIEWER}, Open trace file, {report.path}"))
    return Lines(*parts)


def _table(path: Path, found: Trace) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(_plain(path.name)), title_justify="left")
    for heading in ("stream", "nodes", "busy ms", "of the wall time"):
        table.add_column(heading, justify="left" if heading == "stream" else "right")
    busy = found.busy_ns()
    for stream, spans in found.by_stream().items():
        share = busy[stream] / found.wall_ns if found.wall_ns else 0.0
        table.add_row(
            stream_name(stream),
            f"{len(spans):,}",
            f"{busy[stream] / 1e6:,.3f}",
            f"{share:.0%}",
        )
    return table


def _states(found: Trace) -> dict[str, int]:
    counts = Counter(span.state for span in found.spans)
    return {state: counts[state] for state in STATES if counts[state]}


def _lines(found: Trace) -> list[str]:
    states = ", ".join(f"{count:,} {state}" for state, count in _states(found).items())
    nodes, edges = len(found.spans), sum(1 for _ in found.linked_edges())
    lines = [
        f"{nodes:,} node{'s' * (nodes != 1)} ({states or 'none'}), "
        f"{edges:,} edge{'s' * (edges != 1)}, "
        f"{found.wall_ns / 1e6:.3f} ms from the first start to the last end"
    ]
    for count, what in (
        (found.dropped_spans, "nodes dropped for want of room"),
        (found.dropped_edges, "edges dropped for want of room"),
        (found.open_spans, "still open when it was saved"),
        (found.unmatched_events, "events about nothing that had begun"),
        (found.repaired_times, "nodes said to end before they started"),
    ):
        if count:
            lines.append(f"{count} {what}")
    longest = sorted(found.spans, key=lambda span: -span.duration_ns)[:_LONGEST_SHOWN]
    if longest:
        lines.append("longest: " + ", ".join(map(_brief, longest)))
    return lines


def _brief(span: Span) -> str:
    return f"{_plain(span.name)} {span.duration_ns / 1e6:.3f} ms"


def _plain(text: str) -> str:
    """Text from a file, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
