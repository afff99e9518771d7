"""The verdict on growth: a figure at the beginning against the same figure at the end.

A figure is flat when the two differ by no more than a tenth of the first, or by no more than an
absolute floor. The floor is there for short runs and small figures: an allocator takes memory by
the arena, and one descriptor of ten is a tenth.

Figures are compared like with like. A broker that is killed every minute begins anew every minute,
so each *life* (from its ready line to its kill) is one row: its memory at a fixed age and the most
of it, and the medians of its descriptors, threads and disk, which go up and down with load and
checkpoints. Of the rows in the first quarter, at least two, and of those in the last the
medians are compared: one life in which the machine was busy with something else decides nothing.
The first life fills what all later ones find full (streams up to their retention, spare files,
ledgers), and counts in neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

SHARE = 0.10
"""Of the first figure, by which the last may differ."""
MIB = 1 << 20
HEAD = ("", "at first", "at the end", "difference", "allowed", "")


@dataclass(frozen=True, slots=True)
class Rule:
    """A figure, how it is shown, and the floor below which a difference says nothing."""

    name: str
    floor: float
    unit: str = ""
    scale: float = 1.0
    """What the figure is divided by to be shown in the unit."""
    share: float = SHARE

    def shown(self, value: float) -> str:
        return f"{value / self.scale:,.1f}{self.unit}".replace(".0", "") if value else "0"


@dataclass(frozen=True, slots=True)
class Compared:
    """A rule's figure at both ends."""

    rule: Rule
    first: float
    last: float

    @property
    def difference(self) -> float:
        return self.last - self.first

    @property
    def allowed(self) -> float:
        return max(self.rule.share * self.first, self.rule.floor)

    @property
    def is_flat(self) -> bool:
        return abs(self.difference) <= self.allowed

    def cells(self) -> tuple[str, ...]:
        """Its row of the table."""
        shown = self.rule.shown
        share = f" ({self.difference / self.first:+.1%})" if self.first else ""
        sign = "-" if self.difference < 0 else "+"
        return (
            self.rule.name, shown(self.first), shown(self.last),
            f"{sign}{shown(abs(self.difference))}{share}", shown(self.allowed),
            "flat" if self.is_flat else "NOT FLAT",
        )  # fmt: skip

    def __str__(self) -> str:
        name, first, last, difference, allowed, said = self.cells()
        return f"{said}: {name} {first} -> {last}: {difference}, allowed {allowed}"


def table(compared: Sequence[Compared]) -> str:
    """All of them, one a line."""
    rows = [HEAD, *(one.cells() for one in compared)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def quarters(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the first and the last quarter, at least two of four; the first value counts in
    neither.

    Raises ValueError when there is nothing to compare.
    """
    counted = values[1:]
    if len(counted) < 2:
        raise ValueError(f"{len(values)} lives, expected at least 3: the first counts in neither")
    size = max(1 if len(counted) < 4 else 2, len(counted) // 4)
    return median(counted[:size]), median(counted[-size:])


def compare(rule: Rule, values: Sequence[float]) -> Compared:
    """A figure of every life, the first and last quarter of them."""
    return Compared(rule, *quarters(values))
