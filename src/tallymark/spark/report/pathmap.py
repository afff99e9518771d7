"""Map of dead-letter paths: queues in columns, arrows whose width is the number of messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from tallymark.spark.report import words
from tallymark.spark.report.charts import LETTER, WIDTH
from tallymark.spark.report.graph import layers

BOX: Final = 40
GAP: Final = 44
BEND: Final = 26
MARKERS: Final = (
    "<defs>"
    + "".join(
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerUnits="userSpaceOnUse" '
        f'markerWidth="12" markerHeight="12" orient="auto"><path class="tip {name}" '
        'd="M0,0L10,5L0,10z"/></marker>'
        for name in ("way", "round")
    )
    + "</defs>"
)
Point = tuple[float, float]


def draw(paths: Mapping[str, Any]) -> str:
    """Draw the graph of `paths` (see findings.collect): edges with their causes, cycles in another
    colour, the drops under each queue."""
    ways = _ways(paths["edges"])
    if not ways:
        return ""
    columns = layers(ways)
    round_ = {name: i for i, group in enumerate(paths["cycles"]) for name in group}
    wide = 24 + LETTER * max(len(words.short(name)) for column in columns for name in column)
    wide = max(wide, 110)
    apart = (WIDTH - 40 - wide) / max(len(columns) - 1, 1)
    deepest = max(len(column) for column in columns)
    top, lane = 46, BOX + GAP
    places: dict[str, Point] = {}
    for i, column in enumerate(columns):
        slack = (deepest - len(column)) * lane / 2
        for j, name in enumerate(column):
            places[name] = (20 + i * apart, top + slack + j * lane)
    most = max(sum(by.values()) for by in ways.values())
    out = [MARKERS]
    labels: list[str] = []
    begun: dict[str, int] = {}
    for (source, target), causes in sorted(ways.items()):
        nth = begun[source] = begun.get(source, -1) + 1
        turns = source in round_ and round_.get(source) == round_.get(target)
        line, at = _arrow(places[source], places[target], wide, (source, target), ways, nth)
        thick = 1.5 + 4.5 * math.sqrt(sum(causes.values()) / most)
        kind = "round" if turns else "way"
        said = ", ".join(f"{words.count(n)} {cause}" for cause, n in causes.items())
        out.append(
            f'<path class="{kind}" d="{line}" stroke-width="{thick:.1f}" '
            f'marker-end="url(#{kind})"><title>{escape(source)} to {escape(target)}: '
            f"{escape(said)}</title></path>"
        )
        first, *more = [f"{words.brief(n)} {cause}" for cause, n in causes.items()]
        text = f"{first} +{len(more)}" if more else first
        labels.append(_flag(text, at, kind))
    drops: dict[str, int] = {}
    for one in paths["drops"]:
        drops[one["queue"]] = drops.get(one["queue"], 0) + one["count"]
    for name, (x, y) in places.items():
        labels.append(_box(name, x, y, wide, name in round_, drops.get(name, 0)))
    height = top + deepest * lane
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
        + "".join(out + labels)
        + "</svg>"
    )


def _ways(edges: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, int]]:
    """Counts by cause of each pair of queues, the largest first."""
    ways: dict[tuple[str, str], dict[str, int]] = {}
    for edge in sorted(edges, key=lambda one: -one["count"]):
        by = ways.setdefault((edge["source"], edge["target"]), {})
        by[edge["cause"]] = by.get(edge["cause"], 0) + edge["count"]
    return ways


def _arrow(
    a: Point,
    b: Point,
    wide: float,
    pair: tuple[str, str],
    ways: Mapping[tuple[str, str], Any],
    nth: int,
) -> tuple[str, Point]:
    """Return the line of an arrow, and the position of its label: near its source, which has others
    before it (nth)."""
    source, target = pair
    if source == target:
        x, y = a[0] + wide / 2, a[1]
        line = f"M{x - 22:.1f},{y:.1f}C{x - 40:.1f},{y - 40:.1f} {x + 40:.1f},{y - 40:.1f} "
        return line + f"{x + 22:.1f},{y - 2:.1f}", (x, y - 32)
    if b[0] > a[0] + 1:  # on to the right
        shift = -8 if (target, source) in ways else 0
        x1, y1, x2, y2 = a[0] + wide, a[1] + BOX / 2 + shift, b[0] - 2, b[1] + BOX / 2 + shift
        half = (x2 - x1) / 2
        line = f"M{x1:.1f},{y1:.1f}C{x1 + half:.1f},{y1:.1f} {x2 - half:.1f},{y2:.1f} "
        t = 0.3 + 0.2 * (nth % 3)
        rest = 1 - t
        begin, end = rest**3 + 3 * rest * rest * t, 3 * rest * t * t + t**3
        ahead = 1.5 * rest * rest * t + 1.5 * rest * t * t + t**3
        return line + f"{x2:.1f},{y2:.1f}", (x1 + (x2 - x1) * ahead, y1 * begin + y2 * end)
    if a[0] > b[0] + 1:  # back: below
        x1, y1 = a[0] + wide * 0.8, a[1] + BOX
        x2, y2 = b[0] + wide * 0.8, b[1] + BOX + 2
        low = max(y1, y2) + BEND
        line = f"M{x1:.1f},{y1:.1f}C{x1:.1f},{low:.1f} {x2:.1f},{low:.1f} {x2:.1f},{y2:.1f}"
        return line, ((x1 + x2) / 2, (y1 + y2) / 8 + low * 0.75)
    x1, x2 = a[0] + wide, b[0] + wide + 2  # in the same column: around at the right
    y1, y2 = a[1] + BOX / 2, b[1] + BOX / 2
    line = f"M{x1:.1f},{y1:.1f}C{x1 + 50:.1f},{y1:.1f} {x2 + 50:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
    return line, (x1 + 40, (y1 + y2) / 2)


def _box(name: str, x: float, y: float, wide: float, turns: bool, dropped: int) -> str:
    kind = "node round" if turns else "node"
    out = (
        f'<g><title>{escape(name)}</title><rect class="{kind}" x="{x:.1f}" y="{y:.1f}" '
        f'width="{wide:.1f}" height="{BOX}" rx="8"/>'
        f'<text class="name" x="{x + wide / 2:.1f}" y="{y + BOX / 2 + 4.5:.1f}">'
        f"{escape(words.short(name))}</text>"
    )
    if dropped:
        out += (
            f'<text class="dropped" x="{x + 4:.1f}" y="{y + BOX + 15:.1f}">'
            f"{words.brief(dropped)} dropped</text>"
        )
    return out + "</g>"


def _flag(text: str, at: Point, kind: str) -> str:
    half = 6 + LETTER * len(text) / 2
    x, y = at
    return (
        f'<g class="flag {kind}"><rect x="{x - half:.1f}" y="{y - 10:.1f}" width="{2 * half:.1f}" '
        f'height="20" rx="10"/><text x="{x:.1f}" y="{y + 4:.1f}">{escape(text)}</text></g>'
    )
