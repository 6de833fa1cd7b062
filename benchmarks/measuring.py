"""Taking times in rounds, and showing them as a table with ratios.

In a round every candidate has its turn, so that whatever the machine does
meanwhile hits them alike; a candidate's figure is the median of its rounds.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence

import attrs

from accy_async.artifact.native.host import core_count, host_architecture, host_level

__all__ = ["Figure", "in_rounds", "machine", "per_call", "show"]

Sample = Callable[[], float]


@attrs.frozen
class Figure:
    """Some samples of one thing.

    Attributes:
        name: what was measured.
        samples: in the unit of the table.
    """

    name: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle sample."""
        ordered = sorted(self.samples)
        middle = len(ordered) // 2
        return (ordered[middle] + ordered[-1 - middle]) / 2


def in_rounds(candidates: Mapping[str, Sample], rounds: int = 15) -> list[Figure]:
    """Let every candidate take a sample in each round; the first is thrown away."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        gc.collect()
        for name, sample in candidates.items():
            value = sample()
            if number:
                taken[name].append(value)
    return [Figure(name, tuple(samples)) for name, samples in taken.items()]


def per_call(call: Callable[[], object], count: int) -> float:
    """Microseconds that one of so many calls takes."""
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count * 1e6


def show(
    title: str,
    figures: Sequence[Figure],
    *,
    unit: str,
    baseline: str | None = None,
    more_is_better: bool = False,
) -> None:
    """Print a table.

    Args:
        title: above it.
        figures: a row each.
        unit: of the samples.
        baseline: whose median the ratios are to; the first row's if left out.
        more_is_better: True for rates, False for times.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("what")
    for heading in (unit, "least", "greatest", "samples", "ratio"):
        table.add_column(heading, justify="right")
    base = next(f for f in figures if baseline is None or f.name == baseline).median
    for figure in figures:
        ratio = figure.median / base if base else float("nan")
        table.add_row(
            figure.name,
            _number(figure.median),
            _number(min(figure.samples)),
            _number(max(figure.samples)),
            str(len(figure.samples)),
            f"{ratio:.2f}",
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 110
    console.print(table)
    word = "more" if more_is_better else "less"
    console.print(f"{machine()}; {word} is better\n")


def machine() -> str:
    """The machine in general terms."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{core_count()} cores, {host_architecture()} {host_level()}, "
        f"Python {platform.python_version()}{load}"
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
