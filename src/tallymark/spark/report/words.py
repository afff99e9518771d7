"""Numbers as people read them."""

from __future__ import annotations

from typing import Final

LONGEST_NAME: Final = 30


def count(n: float) -> str:
    """
    >>> count(1234567), count(0.5)
    ('1,234,567', '0.5')
    """
    return f"{n:,.0f}" if n == int(n) else f"{n:,.1f}"


def brief(n: float) -> str:
    """A number of three digits or so.

    >>> brief(1234567), brief(20000), brief(999), brief(0.25)
    ('1.2 M', '20 k', '999', '0.25')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            scaled = n / size
            return f"{scaled:.0f} {unit}" if scaled == int(scaled) else f"{scaled:.1f} {unit}"
    return f"{n:.0f}" if n == int(n) else f"{n:g}"


def duration(ms: float | None) -> str:
    """
    >>> [duration(ms) for ms in (None, 0, 0.4, 12, 1500, 90_000, 7_200_000, 200_000_000)]
    ['-', '0 ms', '0.4 ms', '12 ms', '1.5 s', '1.5 min', '2 h', '2.3 d']
    """
    if ms is None:
        return "-"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= size:
            return f"{_three(ms / size)} {unit}"
    return f"{_three(ms)} ms"


def percent(share: float) -> str:
    """
    >>> percent(0), percent(0.12345), percent(0.00004), percent(1)
    ('0 %', '12.3 %', '< 0.01 %', '100 %')
    """
    if 0 < share < 0.0001:
        return "< 0.01 %"
    return f"{_three(share * 100)} %"


def rate(per_second: float | None) -> str:
    """
    >>> rate(1234.5), rate(0.05), rate(None)
    ('1,234/s', '3/min', '-')
    """
    if per_second is None:
        return "-"
    if per_second >= 1:
        return f"{per_second:,.0f}/s" if per_second >= 10 else f"{_three(per_second)}/s"
    return f"{_three(per_second * 60)}/min"


def short(name: str) -> str:
    """A name that fits beside a plot; the whole one is in the table and under the mouse."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _three(n: float) -> str:
    """Three digits at most, and no zeros behind the point."""
    digits = 0 if n >= 100 else 1 if n >= 10 else 1 if n >= 1 else 2
    text = f"{n:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
