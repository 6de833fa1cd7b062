"""Showing what the demo found: for people, and for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from accy_async import __version__
from accy_async.cli.devices import capabilities_document
from accy_async.cli.exits import ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from accy_async.cli.demo.check import Distance
    from accy_async.cli.demo.outcome import DemoOutcome, Spread

__all__ = ["demo_document", "demo_lines", "show"]


def demo_document(outcome: DemoOutcome) -> dict[str, object]:
    """The report for ``--json``."""
    timing, check = outcome.timing, outcome.check
    cancel = attrs.asdict(outcome.cancel)
    cancel["is_clean"] = outcome.cancel.is_clean
    checked = attrs.asdict(check)
    checked["is_right"] = check.is_right
    if check.distance is not None:
        checked["distance"]["is_within_bound"] = check.distance.is_within_bound
    return {
        "version": __version__,
        "passed": outcome.is_passed,
        "exit_code": int(exit_code(outcome)),
        "backend": outcome.backend,
        "executes": outcome.executes,
        "loop": outcome.loop,
        "device": capabilities_document(outcome.capabilities),
        "input": attrs.asdict(outcome.input),
        "prepare_s": outcome.prepare_s,
        "streams": outcome.streams,
        "launches": {
            **attrs.asdict(timing),
            "launches_per_s": timing.launches_per_s,
            "gigabytes_per_s": timing.gigabytes_per_s,
            "ratio_to_numpy": timing.ratio_to_numpy,
        },
        "check": checked,
        "cancel": cancel,
        "live_at_end": outcome.live_at_end,
        "total_s": outcome.total_s,
    }


def exit_code(outcome: DemoOutcome) -> ExitCode:
    """What the shell is told."""
    return ExitCode.OK if outcome.is_passed else ExitCode.CHECK_FAILED


def demo_lines(outcome: DemoOutcome) -> list[tuple[str, str]]:
    """The report as headings and texts."""
    given = outcome.input
    prepared = ", ".join(
        f"{what} {_time(seconds)}" for what, seconds in outcome.prepare_s.items()
    )
    return [
        ("device", _device(outcome)),
        (
            "input",
            f"{_count(given.length, f'{given.dtype} value')} "
            f"({_bytes(given.byte_size)}, CRC-32 {given.checksum}): "
            f"{given.description}",
        ),
        (
            "pipeline",
            "inclusive scan: sums of the tiles, scan of the sums, scan of the tiles",
        ),
        ("prepared", prepared),
        *_timing_lines(outcome),
        ("check", _check(outcome)),
        ("cancellation", _cancel(outcome)),
        ("live objects", f"at the end: {_objects(outcome.live_at_end)}"),
        ("took", f"{outcome.total_s:.1f} s in all, on {outcome.loop}"),
    ]


def show(outcome: DemoOutcome) -> RenderableType:
    """The report for people."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for heading, text in demo_lines(outcome):
        table.add_row(heading, Text(text))
    if not outcome.is_passed:
        verdict = Text("FAILED: a result is wrong or something was left", "bold red")
    elif outcome.executes:
        verdict = Text("PASSED", "bold green")
    else:
        verdict = Text("PASSED, as far as nothing was executed", "bold yellow")
    return Group(Text("accy-async demo", "bold"), table, verdict)


def _device(outcome: DemoOutcome) -> str:
    identity = outcome.capabilities.identity
    if not outcome.executes:
        return (
            "recording: it executes nothing and reads zeros; the times below are the "
            "host's cost of submitting"
        )
    cores = _count(identity.compute_units, "core")
    return f"{outcome.backend}: {identity.name}, {identity.architecture}, {cores}"


def _timing_lines(outcome: DemoOutcome) -> list[tuple[str, str]]:
    timing = outcome.timing
    lines = [
        (
            "launches",
            f"{timing.launches:,} from one loaded pool on "
            f"{_count(outcome.streams, 'stream')}, "
            f"in {_count(timing.rounds, 'round')}; "
            f"at the peak {timing.peak_in_flight:,} in flight",
        ),
    ]
    if not outcome.executes:
        lines.append(("submission", f"{timing.submit_us:.1f} us a launch of 3 kernels"))
    if timing.numpy is None or timing.ratio_to_numpy is None:
        return lines
    ratio = f"{timing.ratio_to_numpy:.2g} times as fast as numpy"
    if timing.ratio_to_numpy < 1:
        ratio += "; so few values take less time than launching and waking do"
    return [
        *lines,
        (
            "throughput",
            f"{timing.gigabytes_per_s:.3g} GB/s, counting each value read once and "
            f"each result written once; {timing.launches_per_s:,.0f} launches/s",
        ),
        (
            "a launch",
            f"{_spread(timing.launch)} over the rounds; {timing.submit_us:.0f} us of "
            "it to submit",
        ),
        (
            "numpy.cumsum",
            f"{_spread(timing.numpy)}, on one core, in the same run between the rounds",
        ),
        ("ratio", ratio),
    ]


def _check(outcome: DemoOutcome) -> str:
    check = outcome.check
    if check.skipped:
        return f"skipped: {check.skipped}"
    if check.wrong:
        results = _count(check.checked, "result")
        return f"WRONG: {check.wrong:,} of {results}; {check.first_wrong}"
    if check.checked == 1:
        text = "the 1 result has the bits of the documented order of summation"
    else:
        text = (
            f"all {check.checked:,} results have the bits of the documented order of "
            "summation"
        )
    be = "is" if check.checked == 1 else "are"
    distance = check.distance
    if distance is None:
        return text
    if outcome.input.dtype != "f32":
        far = f"and {be}" if distance.is_within_bound else f"and {be} NOT"
        them = "it does" if check.checked == 1 else "they do"
        return f"{text}, {far} numpy.cumsum's, which wraps as {them}"
    if not outcome.input.length:
        return f"{text}; there is no value to judge"
    judged = ""
    if distance.values != outcome.input.length:
        judged = (
            f" (judged for the {_count(distance.values, 'value')} before the first "
            "NaN, infinity or overflow)"
        )
    verb = "within" if distance.is_within_bound else "BEYOND"
    return (
        f"{text}, and {be} {verb} Higham's bound of a float64 numpy.cumsum{judged}: "
        f"with at most {_count(distance.additions, 'addition')} to a sum, "
        f"{_share(distance)} (numpy's own in float32: {distance.numpy_error:.2g}) "
        f"where sums reach {distance.largest_sum:.2g}"
    )


def _share(distance: Distance) -> str:
    if not distance.largest_error:
        return "no result is off at all"
    share = distance.largest_share
    part = "0.01%" if share < 1e-4 else f"{share:.2%}"
    return (
        f"no error takes more than {part} of its bound; the largest is "
        f"{distance.largest_error:.2g}"
    )


def _cancel(outcome: DemoOutcome) -> str:
    cancel = outcome.cancel
    if cancel.skipped:
        return f"skipped: {cancel.skipped}"
    before = _count(cancel.queued_before, "other")
    if cancel.copied_before_bytes:
        before += f" and {_bytes(cancel.copied_before_bytes)} of copies"
    state = "in flight" if cancel.was_in_flight else "not in flight any more"
    ended = "returned" if cancel.was_cancelled else "was done before; it returned"
    counts = [
        f"{live.get('buffers', 0)} {when}"
        for live, when in (
            (cancel.live_before, "before"),
            (cancel.live_during, "during"),
            (cancel.live_after, "after"),
        )
    ]
    left = "nothing of it is left" if cancel.is_clean else "SOMETHING OF IT IS LEFT"
    return (
        f"one launch with scratch of its own, {state} behind {before}, cancelled after "
        f"{_time(cancel.after_s)}: {ended} within {_time(cancel.took_s)}, when all "
        f"that was submitted had ended; live buffers {', '.join(counts)}: {left}"
    )


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _objects(counts: dict[str, int]) -> str:
    return ", ".join(
        _count(count, kind.removesuffix("s")) for kind, count in counts.items()
    )


def _spread(spread: Spread) -> str:
    return (
        f"median {_time(spread.median_s)} ({_time(spread.least_s)} to "
        f"{_time(spread.greatest_s)}, {_count(spread.samples, 'sample')})"
    )


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size:,} bytes"
