"""A plot of rows on a logarithmic axis as SVG: a dot for each broker, a line from least to most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = {
    "tallymark": "#0072b2",
    "rabbitmq": "#d55e00",
    "lavinmq": "#009e73",
    "nsqd": "#cc79a7",
    "nats": "#555555",
}
"""Told apart by readers who see few colours, too."""
LEFT, RIGHT, TOP, LINE = 110, 40, 60, 22
WIDTH = 900
DOT = 5


@dataclass(frozen=True, slots=True)
class Spread:
    """Some runs of one broker in one row."""

    least: float
    middle: float
    most: float


def plot(title: str, unit: str, rows: Sequence[tuple[str, Mapping[str, Spread]]]) -> str:
    """The drawing. rows: a name and what each broker had there; values above zero."""
    values = [
        value
        for _, brokers in rows
        for spread in brokers.values()
        for value in (spread.least, spread.most)
    ]
    low = math.floor(math.log10(min(values, default=1)))
    high = max(low + 1, math.ceil(math.log10(max(values, default=10))))
    step = (WIDTH - LEFT - RIGHT) / (high - low)

    def across(value: float) -> float:
        return LEFT + (math.log10(value) - low) * step

    height = TOP + LINE * len(rows) + 40
    names = list(dict.fromkeys(name for _, brokers in rows for name in brokers))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}, {escape(unit)}</text>',
    ]
    for number, name in enumerate(names):
        at = LEFT + number * 120
        parts.append(f'<circle cx="{at}" cy="34" r="{DOT}" fill="{_colour(name)}"/>')
        parts.append(f'<text x="{at + 10}" y="38">{escape(name)}</text>')
    bottom = TOP + LINE * len(rows)
    for power in range(low, high + 1):
        at = across(10.0**power)
        parts.append(f'<path d="M{at:.1f} {TOP - 8}V{bottom}" stroke="#dddddd"/>')
        label = f"{10.0**power:,g}"
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
    for number, (row, brokers) in enumerate(rows):
        y = TOP + LINE * number + LINE / 2
        parts.append(f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(row)}</text>')
        parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#f0f0f0"/>')
        for name, spread in brokers.items():
            ends = [across(value) for value in (spread.least, spread.middle, spread.most)]
            parts += _mark(f"{name}: {_told(spread)} {unit}", _colour(name), ends, y)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _mark(told: str, colour: str, ends: list[float], y: float) -> list[str]:
    least, middle, most = ends
    return [
        f'<path d="M{least:.1f} {y}H{most:.1f}" stroke="{colour}" stroke-width="2"/>',
        f'<circle cx="{middle:.1f}" cy="{y}" r="{DOT}" fill="{colour}">'
        f"<title>{escape(told)}</title></circle>",
    ]


def _told(spread: Spread) -> str:
    return f"{spread.middle:,.3g} ({spread.least:,.3g} to {spread.most:,.3g})"


def _colour(name: str) -> str:
    return COLOURS.get(name, "#000000")
