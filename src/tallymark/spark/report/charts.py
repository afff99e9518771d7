"""Plots as inline SVG, drawn by hand: no library, nothing loaded, colours from the page's style."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from tallymark.spark.report import words

WIDTH: Final = 1040
LETTER: Final = 6.7
"""Pixels of a letter of the plots' text, about."""
MARKS_MS: Final = (
    1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000, 86_400_000,
    7 * 86_400_000, 28 * 86_400_000,
)  # fmt: skip
"""Positions of ticks on the axis of durations, in milliseconds."""
SERIES: Final = ("s1", "s2", "s3", "s4", "s5")
"""Classes of the style: a colour each."""


def lines(points: Sequence[Mapping[str, Any]], names: Mapping[str, str], bucket_ms: int) -> str:
    """Counts over time, a line for each of `names` (key -> label) that is not 0 throughout; points
    have `at_ms`. A gap in time is a gap of zeros."""
    shown = [key for key in names if any(point[key] for point in points)]
    if not points or not shown:
        return ""
    left, right, top, height = 64, 24, 16, 240
    first = int(points[0]["at_ms"])
    last = int(points[-1]["at_ms"]) + bucket_ms
    most = max(point[key] for point in points for key in shown)
    ceiling, step = _scale(most)
    across = (WIDTH - left - right) / max(last - first, 1)

    def x(at: float) -> float:
        return left + (at - first) * across

    def y(value: float) -> float:
        return top + height - value / ceiling * height

    grid = [_grid(ceiling, step, y, left, WIDTH - right)]
    ticks = _times(first, last, x, top + height)
    out: list[str] = []
    filled = {point["at_ms"]: point for point in points}
    for number, key in enumerate(shown):
        path, at = [f"M{x(first):.1f},{y(0):.1f}"], first
        while at < last:
            value = filled[at][key] if at in filled else 0
            path.append(f"V{y(value):.1f}H{x(min(at + bucket_ms, last)):.1f}")
            at += bucket_ms
        path.append(f"V{y(0):.1f}")
        area = " area" if number == 0 else ""
        out.append(f'<path class="line {SERIES[number]}{area}" d="{"".join(path)}"/>')
    for point in points:  # tooltips
        said = ", ".join(f"{names[key].lower()} {words.count(point[key])}" for key in shown)
        out.append(
            f'<rect class="hover" x="{x(point["at_ms"]):.1f}" y="{top}" height="{height}" '
            f'width="{max(bucket_ms * across, 1):.1f}"><title>{_moment(point["at_ms"])}: {said}'
            "</title></rect>"
        )
    plot = _svg(
        WIDTH, top + height + 30, [*grid, _ticks(ticks), _pane(out)], "plot time",
        _window(first, last, left, WIDTH - right, top, top + height),
    )  # fmt: skip
    return _legend([names[key] for key in shown]) + plot


def _window(first: int, last: int, left: float, right: float, top: float, bottom: float) -> str:
    """Attributes by which script.py knows the time that a plot shows, and where."""
    values = {"first": first, "last": last, "left": left, "right": right, "top": top}
    given = {**values, "bottom": bottom}
    return "".join(f' data-{name}="{value:g}"' if isinstance(value, float)
                   else f' data-{name}="{value}"' for name, value in given.items())  # fmt: skip


def _pane(parts: Sequence[str]) -> str:
    """Return a group that moves when a part of the time is looked at."""
    return f'<g class="pane">{"".join(parts)}</g>'


def _ticks(parts: Sequence[str]) -> str:
    return f'<g class="ticks">{"".join(parts)}</g>'


def durations(points: Sequence[Mapping[str, Any]], names: Mapping[str, str], bucket_ms: int) -> str:
    """Durations over time on a logarithmic axis, a line for each of `names` (key -> label); points
    have `at_ms`. Where nothing was settled there is a gap."""
    if not points:
        return ""
    left, right, top, height = 72, 24, 16, 220
    first, last = int(points[0]["at_ms"]), int(points[-1]["at_ms"]) + bucket_ms
    values = [point[key] for point in points for key in names]
    marks = [m for m in MARKS_MS if min(values) / 10 < m < max(values) * 10] or list(MARKS_MS[:2])
    low, high = math.log(marks[0]), math.log(max(marks[-1], *values, marks[0] * 10))
    across = (WIDTH - left - right) / max(last - first, 1)

    def x(at: float) -> float:
        return left + (at - first) * across

    def y(ms: float) -> float:
        share = (math.log(ms) - low) / (high - low) if ms > 0 else 0.0
        return top + height - min(max(share, 0.0), 1.0) * height

    grid = []
    for mark in marks:
        at = y(mark)
        grid.append(
            f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        label = words.duration(mark)
        grid.append(f'<text class="label" x="{left - 10}" y="{at + 4:.1f}">{label}</text>')
    out = []
    for number, key in enumerate(names):
        path, before = [], None
        for point in points:
            at = int(point["at_ms"])
            step = "V" if at == before else f"M{x(at):.1f},"
            path.append(f"{step}{y(point[key]):.1f}H{x(at + bucket_ms):.1f}")
            before = at + bucket_ms
        out.append(f'<path class="line {SERIES[number]}" d="{"".join(path)}"/>')
    for point in points:
        said = ", ".join(f"{names[key]} {words.duration(point[key])}" for key in names)
        out.append(
            f'<rect class="hover" x="{x(point["at_ms"]):.1f}" y="{top}" height="{height}" '
            f'width="{max(bucket_ms * across, 1):.1f}"><title>{_moment(point["at_ms"])}: {said}, '
            f"{words.count(point['count'])} messages</title></rect>"
        )
    plot = _svg(
        WIDTH, top + height + 30,
        [*grid, _ticks(_times(first, last, x, top + height)), _pane(out)], "plot time",
        _window(first, last, left, WIDTH - right, top, top + height),
    )  # fmt: skip
    return _legend(list(names.values())) + plot


def ranges(rows: Sequence[Mapping[str, Any]]) -> str:
    """Percentiles of each queue on one logarithmic axis: a bar from p50 to p99, thin from there to
    the longest. What took no millisecond stands at the left end."""
    if not rows:
        return ""
    names = [str(row["queue"]) for row in rows]
    left, right, row_height, top = _room(names), 70, 30, 12
    bottom = top + row_height * len(rows)
    least = min((row["p50_ms"] for row in rows if row["p50_ms"] > 0), default=MARKS_MS[0])
    most_ms = max(row["longest_ms"] for row in rows)
    marks = [mark for mark in MARKS_MS if least / 10 < mark < most_ms * 10] or MARKS_MS[:2]
    low, high = math.log(min(marks[0], least)), math.log(max(marks[-1], most_ms, marks[0] * 10))

    def x(ms: float) -> float:
        share = (math.log(ms) - low) / (high - low) if ms > 0 else 0.0
        return left + min(max(share, 0.0), 1.0) * (WIDTH - left - right)

    out = []
    for mark in marks:
        at = x(mark)
        out.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>')
        label = words.duration(mark)
        out.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 18}">{label}</text>')
    for i, row in enumerate(rows):
        y = top + row_height * i + row_height / 2
        p50, p90, p99, most = (x(row[key]) for key in ("p50_ms", "p90_ms", "p99_ms", "longest_ms"))
        said = ", ".join(
            f"{key.removesuffix('_ms')} {words.duration(row[key])}"
            for key in ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "longest_ms")
        )
        out.append(f"<g><title>{escape(names[i])}: {said}</title>")
        out.append(_label(names[i], left - 12, y))
        out.append(f'<line class="whisker" x1="{p99:.1f}" x2="{most:.1f}" y1="{y}" y2="{y}"/>')
        out.append(f'<circle class="longest" cx="{most:.1f}" cy="{y}" r="3"/>')
        out.append(_bar("p99", p50, p99, y, 10))
        out.append(_bar("p90", p50, p90, y, 10))
        out.append(f'<circle class="p50" cx="{p50:.1f}" cy="{y}" r="5.5"/></g>')
    legend = (
        '<p class="legend"><span class="k dot"></span>p50<span class="k b90"></span>to p90'
        '<span class="k b99"></span>to p99<span class="k dot small"></span>longest</p>'
    )
    return legend + _svg(WIDTH, bottom + 28, out)


def bars(rows: Sequence[tuple[str, Sequence[float], str]], legend: Sequence[str] = ()) -> str:
    """Horizontal bars: (label, lengths of its parts, text behind it); legend: of the parts."""
    if not rows:
        return ""
    left = _room([label for label, _, _ in rows])
    right = 16 + LETTER * max(len(text) for _, _, text in rows)
    most = max(sum(parts) for _, parts, _ in rows) or 1
    row_height, top = 28, 4
    out = []
    for i, (label, parts, text) in enumerate(rows):
        y = top + row_height * i + row_height / 2
        out.append(
            f"<g><title>{escape(label)}: {escape(text)}</title>{_label(label, left - 12, y)}"
        )
        at = float(left)
        for number, part in enumerate(parts):
            wide = part / most * (WIDTH - left - right)
            if wide > 0:
                out.append(
                    f'<rect class="bar {SERIES[number]}" x="{at:.1f}" y="{y - 8}" '
                    f'width="{max(wide, 1.5):.1f}" height="16" rx="2"/>'
                )
            at += wide
        out.append(f'<text class="value" x="{at + 8:.1f}" y="{y + 4}">{escape(text)}</text></g>')
    return (_legend(legend) if legend else "") + _svg(WIDTH, top + row_height * len(rows), out)


def depth(points: Sequence[Sequence[int]], first: int, last: int, bucket_ms: int) -> str:
    """A small area of (time, ..., depth): between two points a depth stays what it was."""
    held, filled = 0, []
    depths = {int(point[0]): int(point[-1]) for point in points}
    held = int(points[0][-1] - points[0][1] + points[0][2]) if points else 0
    for at in range(first, last + 1, bucket_ms):
        held = depths.get(at, held)
        filled.append((at, held))
    return spark(filled, first, last, bucket_ms, "s1", "depth at most")


def spark(
    points: Sequence[Sequence[int]],
    first: int,
    last: int,
    bucket_ms: int,
    colour: str = "s2",
    title: str = "",
) -> str:
    """A small area of one series of (time, count); first, last: of all series beside it."""
    width, height = 320, 64
    most = max((count for _, count in points), default=0) or 1
    across = width / max(last + bucket_ms - first, 1)
    path, end = [f"M0,{height}"], 0.0
    for at, count in points:
        x = (at - first) * across
        if x > end + 0.01:
            path.append(f"V{height}H{x:.1f}")
        end = x + bucket_ms * across
        path.append(f"V{height - count / most * (height - 4):.1f}H{end:.1f}")
    path.append(f"V{height}")
    said = f"{title or 'at most'} {words.count(most)} in {words.duration(bucket_ms)}"
    shape = _pane([f'<path class="line {colour} area" d="{"".join(path)}"/>'])
    base = f'<line class="axis" x1="0" x2="{width}" y1="{height}" y2="{height}"/>'
    window = _window(first, last + bucket_ms, 0, width, 0, height)
    return _svg(width, height + 1, [f"<title>{said}</title>", shape, base], "spark time", window)


# -- parts


def _svg(
    width: float, height: float, parts: Sequence[str], kind: str = "plot", more: str = ""
) -> str:
    return (
        f'<svg class="{kind}"{more} viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'preserveAspectRatio="xMinYMin meet">{"".join(parts)}</svg>'
    )


def _legend(names: Sequence[str]) -> str:
    keys = (f'<span class="k {SERIES[i]}"></span>{escape(name)}' for i, name in enumerate(names))
    return f'<p class="legend">{"".join(keys)}</p>'


def _bar(kind: str, low: float, high: float, y: float, thick: float) -> str:
    wide = max(high - low, 2)
    return (
        f'<rect class="{kind}" x="{low:.1f}" y="{y - thick / 2}" width="{wide:.1f}" '
        f'height="{thick}" rx="{thick / 2}"/>'
    )


def _label(text: str, x: float, y: float) -> str:
    return f'<text class="label" x="{x:.1f}" y="{y + 4}">{escape(words.short(text))}</text>'


def _room(names: Sequence[str]) -> int:
    """Return the pixels needed for labels at the left."""
    return round(28 + LETTER * max(len(words.short(name)) for name in names))


def _grid(ceiling: float, step: float, y: Any, left: float, right: float) -> str:
    out, value = [], 0.0
    while value <= ceiling + step / 2:
        at = y(value)
        kind = "axis" if value == 0 else "grid"
        out.append(f'<line class="{kind}" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        text = words.brief(value)
        out.append(f'<text class="label" x="{left - 10}" y="{at + 4:.1f}">{text}</text>')
        value += step
    return "".join(out)


def _times(first: int, last: int, x: Any, bottom: float) -> list[str]:
    """Marks at round times, six or so."""
    out = []
    step = next((s for s in STEPS_MS if (last - first) / s <= 9), STEPS_MS[-1])
    at = -(-first // step) * step
    while at <= last:
        out.append(
            f'<text class="tick" x="{x(at):.1f}" y="{bottom + 20}">{_clock(at, step)}</text>'
        )
        out.append(
            f'<line class="axis" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{bottom}" '
            f'y2="{bottom + 5}"/>'
        )
        at += step
    return out


STEPS_MS: Final = (
    100, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 1_800_000, 3_600_000,
    10_800_000, 21_600_000, 86_400_000, 7 * 86_400_000, 28 * 86_400_000,
)  # fmt: skip


def _clock(at_ms: int, step_ms: int) -> str:
    time = datetime.fromtimestamp(at_ms / 1000, UTC)
    if step_ms >= 86_400_000:
        return f"{time:%d %b}"
    if step_ms >= 60_000:
        return f"{time:%H:%M}"
    return f"{time:%H:%M:%S}" if step_ms >= 1_000 else f"{time:%M:%S}.{time.microsecond // 100_000}"


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _scale(most: float) -> tuple[float, float]:
    """Return the end of an axis and the step of its ticks: 1, 2 or 5 times a power of ten.

    >>> _scale(37), _scale(1)
    ((40, 10), (1.0, 0.5))
    """
    rough = most / 4
    power = 10 ** math.floor(math.log10(rough)) if rough > 0 else 1
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    return math.ceil(most / step) * step, step
