"""Tables of figures, with targets beside them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import attrs

__all__ = ["Row", "Target", "show", "verdict"]


@attrs.frozen
class Target:
    """What a row's figure is held against.

    Attributes:
        row: whose figure is the measure.
        factor: how many times that it may be at most; at least, where more is better.
    """

    row: str
    factor: float


@attrs.frozen
class Row:
    """A row of a table.

    Attributes:
        name: what was measured.
        samples: what was found; none where it could not be measured.
        note: said beside it, for instance why there are no samples.
        targets: what the row is held against.
    """

    name: str
    samples: Sequence[float] = ()
    note: str = ""
    targets: tuple[Target, ...] = ()

    @property
    def median(self) -> float:
        """The middle sample; not a number where there is none."""
        return statistics.median(self.samples) if self.samples else float("nan")


def show(
    title: str,
    rows: Sequence[Row],
    *,
    unit: str,
    ratio_to: str | None = None,
    more_is_better: bool = False,
) -> None:
    """Print a table.

    Args:
        title: above it.
        rows: in their order.
        unit: of the samples.
        ratio_to: the row that all are compared with; no ratios if left out.
        more_is_better: True for rates.
    """
    from rich.console import Console
    from rich.table import Table

    by_name = {row.name: row for row in rows}
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    for heading in (unit, "least", "greatest"):
        table.add_column(heading, justify="right")
    if ratio_to is not None:
        table.add_column("ratio", justify="right")
    table.add_column("target, and whether it is met")
    for row in rows:
        cells = [row.name, "", "", ""]
        if row.samples:
            found = (row.median, min(row.samples), max(row.samples))
            cells[1:] = [_number(value) for value in found]
        if ratio_to is not None:
            ratio = row.median / by_name[ratio_to].median
            cells.append(f"{ratio:.2f}" if row.samples else "")
        notes = [_judge(row, t, by_name, more_is_better) for t in row.targets]
        cells.append("; ".join(filter(None, [*notes, row.note])))
        table.add_row(*cells)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 118
    console.print(table)
    word = "more" if more_is_better else "less"
    console.print(f"medians; {word} is better\n")


def verdict(
    found: float,
    bound: float,
    unit: str = "",
    *,
    digits: int = 2,
    more_is_better: bool = False,
) -> str:
    """A bound, what was found, and whether it is met.

    Args:
        found: the figure.
        bound: what it may be at most; at least, where more is better.
        unit: said behind the bound.
        digits: of the figure, behind the point.
        more_is_better: True for rates.
    """
    is_met = found >= bound if more_is_better else found <= bound
    sign = ">=" if more_is_better else "<="
    unit = f" {unit}" if unit else ""
    word = "met" if is_met else "MISSED"
    return f"{sign} {bound:g}{unit}: {found:.{digits}f}, {word}"


def _judge(
    row: Row, target: Target, rows: Mapping[str, Row], more_is_better: bool
) -> str:
    other = rows.get(target.row)
    if other is None or not other.samples or not row.samples:
        return ""
    return verdict(
        row.median / other.median,
        target.factor,
        f"x {target.row}",
        more_is_better=more_is_better,
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
