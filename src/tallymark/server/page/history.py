"""History for charts: what the broker's samples say of the last minutes, the hour and the day.

The samples are bounded: five seconds apart for an hour, five minutes apart for a day
(server/samples.py). What a chart shows is of the virtual hosts that the user sees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tallymark.engine.clock import Clock
from tallymark.server.samples import BROKER, LONG, MESSAGES, OF_BROKER, SLOT_MS, At, Samples, total

SLOT_S: Final = SLOT_MS / 1000
PUBLISH: Final = MESSAGES.index("publish")
ACK: Final = MESSAGES.index("ack")
READY: Final = MESSAGES.index("messages_ready")
IN_FLIGHT: Final = MESSAGES.index("messages_unacknowledged")
CONFIRMED: Final = OF_BROKER.index("confirm")
MEMORY: Final = OF_BROKER.index("memory")
DISK: Final = OF_BROKER.index("disk_free")
SYNCS: Final = OF_BROKER.index("syncs")
SYNC_US: Final = OF_BROKER.index("sync_us")


@dataclass(frozen=True, slots=True)
class Span:
    """A time up to now. steps: points of a chart, each of so many long or short slots."""

    title: str
    seconds: int
    is_long: bool
    step: int


SPANS: Final = {
    "minutes": Span("5 minutes", 300, False, 1),
    "hour": Span("1 hour", 3600, False, 4),
    "day": Span("24 hours", 86_400, True, 1),
}


def span_of(name: str) -> Span:
    """Return the span of that name; the hour for any other."""
    return SPANS.get(name, SPANS["hour"])


class History:
    """One span of a broker's samples."""

    def __init__(self, samples: Samples, clock: Clock, vhosts: Iterable[str], span: Span) -> None:
        """clock: the engine's."""
        of_vhosts = samples.vhosts_by_day if span.is_long else samples.vhosts
        of_broker = samples.broker_by_day if span.is_long else samples.broker
        self.messages: At | None = total(of_vhosts.at(name) for name in vhosts)
        self.broker: At | None = of_broker.at(BROKER)
        slots = LONG if span.is_long else 1
        self._slot_s = SLOT_S * slots
        newest = samples.newest(clock.now_ms) // slots
        count = round(span.seconds / self._slot_s) // span.step
        self._step = span.step
        self._slots = [newest - span.step * back for back in range(count, -1, -1)]
        self._first = samples.first // slots
        self._ahead_s = clock.ahead_ms / 1000

    @property
    def times(self) -> list[float]:
        """Wall times of the points' ends, in seconds."""
        return [(slot + 1) * self._slot_s + self._ahead_s for slot in self._slots]

    def counts(self, at: At | None, column: int) -> list[int | None]:
        """Return the count of each point."""
        if at is None:
            return [None for _ in self._slots]
        return [at(slot)[column] if slot >= self._first else None for slot in self._slots]

    def rates(self, at: At | None, column: int) -> list[float | None]:
        """Return the growth of a count up to each point, per second. What was counted anew has no
        negative rate, and what was before this process none at all."""
        if at is None:
            return [None for _ in self._slots]
        seconds = self._step * self._slot_s
        return [
            max(0, at(slot)[column] - at(slot - self._step)[column]) / seconds
            if slot >= self._first
            else None
            for slot in self._slots
        ]

    def means(self, at: At | None, total: int, count: int) -> list[float | None]:
        """Return the growth of a total up to each point for each one that was counted meanwhile;
        None where nothing was."""
        sums, counts = self.rates(at, total), self.rates(at, count)
        return [
            whole / number if whole is not None and number else None
            for whole, number in zip(sums, counts, strict=True)
        ]

    def chart(
        self, unit: str, *lines: tuple[str, list[int | None] | list[float | None]]
    ) -> dict[str, Any]:
        """Return a chart as the page's script reads it."""
        return {
            "unit": unit,
            "names": [name for name, _ in lines],
            "times": self.times,
            "values": [values for _, values in lines],
        }


def newest_rates(at: At | None, slot: int, columns: Iterable[int]) -> list[float]:
    """Return what was counted in the newest slot, per second."""
    if at is None:
        return [0.0 for _ in columns]
    now, before = at(slot), at(slot - 1)
    return [max(0, now[column] - before[column]) / SLOT_S for column in columns]
