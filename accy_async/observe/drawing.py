"""What our SVG pictures have in common: letters, grid, round ticks, units."""

from __future__ import annotations

from html import escape

__all__ = ["CHARACTER_PX", "STYLE", "duration", "round_step", "safe_text"]

CHARACTER_PX = 6.4
"""The width of a letter, about."""

STYLE = """\
text { font: 11px ui-sans-serif, system-ui, sans-serif; fill: #444c56; }
.grid { stroke: #8b949e; stroke-opacity: 0.3; }
@media (prefers-color-scheme: dark) { text { fill: #c9d1d9; } }"""
"""Readable on light and dark pages alike."""

_TICKS = 6


def round_step(span: int) -> int:
    """A round distance (1, 2 or 5 and zeros) that gives some `_TICKS` ticks."""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if span <= step * factor * _TICKS:
                return step * factor
        step *= 10


def duration(ns: float) -> str:
    """A time in the unit that fits it, to four digits."""
    for size, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")):
        if ns >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns:.4g} ns" if ns else "0"


def safe_text(text: str) -> str:
    """Text for XML: escaped, and without what XML cannot hold."""
    kept = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )
    return escape(kept)
