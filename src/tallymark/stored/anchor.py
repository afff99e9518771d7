"""Anchor: the known end of the journal, stored outside of it in the file `tail.json`.

A newest segment that is missing or cut off looks like a crash before it was written. So a small
file records, at intervals, a position up to which everything was on disk, and the state there: the
count of messages that had entered each queue, and the floor of each durable subscription. A start
that finds less reports what is missing.

    {"position": 17179871456, "time_ms": 1700000000000,
     "queues": [[id, vhost, name, entered]], "subscriptions": [[epoch, text, floor]],
     "crc": CRC-32C of the object without it}

The anchor never claims more than the journal has: it is written after everything below its position
is on disk.
"""

from __future__ import annotations

import json
from typing import Final, final

from tallymark.stored.layout import crc32c

FILE: Final = "tail.json"


@final
class Anchor:
    """The state of the journal on disk at one moment."""

    __slots__ = ("position", "queues", "subscriptions", "time_ms")

    def __init__(
        self,
        position: int = 0,
        time_ms: int = 0,
        queues: list[tuple[int, str, str, int]] | None = None,
        subscriptions: list[tuple[int, str, int]] | None = None,
    ) -> None:
        self.position = position
        """Position below which everything was on disk; 0: no anchor was ever written."""
        self.time_ms = time_ms
        """Wall time at which that was so."""
        self.queues: list[tuple[int, str, str, int]] = queues or []
        """Stored queues: id, virtual host, name and count of messages that had entered."""
        self.subscriptions: list[tuple[int, str, int]] = subscriptions or []
        """Durable subscriptions: epoch, description and floor."""

    @property
    def last_segment(self) -> int:
        """Return the number of the segment that has the last byte before the position. At the begin
        of a segment that is the one before: nothing is said of what follows."""
        return (self.position - 1) >> 32

    def lacks(self, newest: int) -> str:
        """Return a text about the segments that were on disk and are missing where `newest` is the
        highest number of those that are there; empty: none is."""
        last = self.last_segment
        if last <= newest:
            return ""
        first = newest + 1
        what = f"segment {last} is" if last == first else f"segments {first} to {last} are"
        return (
            f"{what} missing at the end of the journal: {FILE} says that everything up to position "
            f"{self.position:#x} was on disk at {self.time_ms} ms"
        )

    def encoded(self) -> bytes:
        said = self._said()
        crc = crc32c(_compact(said))
        return _compact({**said, "crc": crc}) + b"\n"

    def _said(self) -> dict[str, object]:
        return {
            "position": self.position,
            "time_ms": self.time_ms,
            "queues": [list(one) for one in self.queues],
            "subscriptions": [list(one) for one in self.subscriptions],
        }


def decode_anchor(data: bytes) -> tuple[Anchor, str]:
    """Return the anchor that a file contains and an error text about the file. The anchor is empty
    if the file cannot be believed."""
    try:
        said = json.loads(data)
        crc = said.pop("crc")
        if crc32c(_compact(said)) != crc:
            return Anchor(), f"{FILE} is damaged: its checksum does not match"
        return Anchor(
            int(said["position"]),
            int(said["time_ms"]),
            [(int(a), str(b), str(c), int(d)) for a, b, c, d in said["queues"]],
            [(int(a), str(b), int(c)) for a, b, c in said["subscriptions"]],
        ), ""
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Anchor(), f"{FILE} is damaged: {error!r}"


def _compact(said: dict[str, object]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()
