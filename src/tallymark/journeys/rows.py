"""The rows of a journal that were read, oldest first, and the journeys that they tell.

One pass over the rows in their order finds all journeys at once: a message enters a queue before
anything happens to it there, and before it enters another queue from there.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from tallymark.journeys.reading import ids_of
from tallymark.stored import layout, records
from tallymark.stored.layout import HEADER, IS_LITTLE, ROW, ROW_STRUCT, Header
from tallymark.stored.records import (
    ACQUIRED,
    CONSUMER,
    DEFERRED,
    DEFINITION,
    ENTERED,
    LEASED,
    PAYLOAD,
    REASONS,
    RETURNED,
    SETTLED,
)

EVENTS: Final = frozenset((
    ENTERED, ACQUIRED, LEASED, records.STAGED, SETTLED, RETURNED, DEFERRED, records.PENDING,
    records.DEAD_LETTERED, records.DROPPED,
))  # fmt: skip
"""Kinds of rows that are steps of a journey."""
STATES: Final = {
    SETTLED: "settled",
    records.DEAD_LETTERED: "dead-lettered",
    records.DROPPED: "dropped",
    ENTERED: "ready",
    RETURNED: "ready",
    ACQUIRED: "acquired",
    LEASED: "leased",
    records.STAGED: "staged",
    DEFERRED: "deferred",
    records.PENDING: "dead-letter-pending",
}
"""State of a message in a queue after a row of each of these kinds."""
_BY_CONSUMER: Final = (ACQUIRED, SETTLED, RETURNED, DEFERRED)


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a message in one queue."""

    time_ms: int
    vhost: str
    queue: str
    sequence: int
    """Place in the queue."""
    event: str
    """Kind of row: entered, acquired, settled and so on."""
    about: str
    """The rest in words: how it came, which attempt, by whom, why."""


@dataclass(slots=True)
class Journey:
    """Events of a message, in the order in which it happened."""

    number: int
    steps: list[Step] = field(default_factory=list)
    now: list[tuple[str, str, str]] = field(default_factory=list)
    """(virtual host, queue, state) of each queue it came to: ready, acquired, leased, staged,
    deferred, dead-letter-pending, or how it ended there."""


class Names:
    """Names of the queues and consumers that rows speak of by number. The newest is told first."""

    def __init__(self) -> None:
        self._queues: dict[int, tuple[str, str]] = {}
        self._consumers: dict[int, bytes] = {}

    def read(self, data: bytes, blocks: Sequence[Header]) -> None:
        """Take the names in blocks older than those read before."""
        for header in reversed(blocks):
            first = header.at + HEADER
            kinds = data[first : first + ROW * header.rows : ROW]
            for kind, take in ((DEFINITION, self._define), (CONSUMER, self._consume)):
                number = kinds.rfind(kind)
                while number >= 0:
                    row = ROW_STRUCT.unpack_from(data, first + ROW * number)
                    at = header.at + row[12]
                    take(row[9], data[at : at + row[13]])
                    number = kinds.rfind(kind, 0, number)

    def _define(self, _: int, blob: bytes) -> None:
        said = json.loads(blob)
        if said.get("op") == "queue":
            self._queues.setdefault(int(said["id"]), (said["vhost"], said["name"]))

    def _consume(self, owner: int, blob: bytes) -> None:
        self._consumers.setdefault(owner, blob)

    def queue(self, number: int) -> tuple[str, str]:
        """Return virtual host and name of a queue; "" and its number: nothing names it."""
        return self._queues.get(number, ("", f"queue {number}"))

    def consumer(self, number: int) -> str:
        blob = self._consumers.get(number)
        if blob is None:
            return str(number)
        said = json.loads(blob)
        return f"{said.get('tag', '')} of {said.get('connection', '')}"


class Part:
    """Rows of one file, by columns."""

    def __init__(self, data: bytes, blocks: Sequence[Header]) -> None:
        self.rows = b"".join([
            data[one.at + HEADER : one.at + HEADER + ROW * one.rows] for one in blocks
        ])  # fmt: skip
        self.count = len(self.rows) // ROW
        self.ids: dict[int, list[int]] = {}
        """Ids of the messages of payloads whose messages arrived one by one, by row."""
        kinds = self.kinds()
        flags = self.rows[1::ROW]
        if any(flag & layout.COLUMNS for flag in set(flags)):
            self._read_ids(data, blocks, kinds, flags)

    def _read_ids(self, data: bytes, blocks: Sequence[Header], kinds: bytes, flags: bytes) -> None:
        number = 0
        for header in blocks:
            for row in range(header.rows):
                if kinds[number] == PAYLOAD and flags[number] & layout.COLUMNS:
                    row_at = header.at + HEADER + ROW * row
                    self.ids[number] = ids_of(data, header, row_at)
                number += 1

    def kinds(self) -> bytes:
        return self.rows[::ROW]

    def narrow(self, offset: int) -> array[int]:
        """Return the column of four bytes at this offset of a row."""
        return _column("I", self.rows, offset // 4, ROW // 4)

    def wide(self, offset: int) -> array[int]:
        """Return the column of eight bytes at this offset of a row."""
        return _column("q", self.rows, offset // 8, ROW // 8)

    def row(self, number: int) -> tuple[int, ...]:
        return ROW_STRUCT.unpack_from(self.rows, ROW * number)

    @property
    def first_time_ms(self) -> int:
        return self.row(0)[6]


def _column(kind: str, rows: bytes, index: int, step: int) -> array[int]:
    found = array(kind, rows)[index::step]
    if not IS_LITTLE:
        found.byteswap()
    return found


class Follower:
    """Finds the rows of messages, in one pass over all rows in their order."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = sorted(set(numbers))
        self._payloads: dict[int, list[tuple[int, int]]] = {}
        """(number of the message, its index) of the payloads with messages looked for, by
        position."""
        self._places: dict[int, list[int]] = {}
        """Sequences of these messages, sorted, by queue."""
        self._whose: dict[tuple[int, int], int] = {}
        """Number of the message at (queue, sequence)."""
        self.events: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {
            number: [] for number in self._numbers
        }
        """(queue, sequence, row) of each message, by its number."""

    def follow(self, part: Part) -> None:
        """Go on with the rows of the next file."""
        if not self._numbers:
            return
        lowest, highest = self._numbers[0], self._numbers[-1]
        kinds = part.kinds()
        queues, counts = part.narrow(4), part.narrow(24)
        firsts, owners, payloads = part.wide(8), part.wide(32), part.wide(48)
        places, wanted = self._places, self._payloads
        for at, kind in enumerate(kinds):
            if kind == PAYLOAD:
                first = firsts[at]
                if at in part.ids or (first <= highest and lowest < first + counts[at]):
                    self._stored(part, at)
                continue
            if kind == ENTERED:
                if payloads[at] in wanted:
                    self._entered(part.row(at))
                if owners[at] > 0 and owners[at] in places:
                    self._moved(part.row(at))
            queue = queues[at]
            if queue in places and kind in EVENTS:
                sequences, first = places[queue], firsts[at]
                low = bisect_left(sequences, first)
                high = bisect_left(sequences, first + counts[at])
                for sequence in sequences[low:high]:
                    number = self._whose[queue, sequence]
                    self.events[number].append((queue, sequence, part.row(at)))

    def _stored(self, part: Part, at: int) -> None:
        """Note which of the messages a payload has."""
        row = part.row(at)
        ids = part.ids.get(at)
        if ids is not None:
            found = [(one, index) for index, one in enumerate(ids) if one in self.events]
        else:
            low = bisect_left(self._numbers, row[5])
            high = bisect_left(self._numbers, row[5] + row[7])
            found = [(one, one - row[5]) for one in self._numbers[low:high]]
        if found:
            self._payloads[row[11]] = found

    def _entered(self, row: tuple[int, ...]) -> None:
        """Note the places of a payload's messages in a queue."""
        for number, index in self._payloads[row[11]]:
            if row[8] <= index < row[8] + row[7]:
                self._place(row[4], row[5] + index - row[8], number)

    def _moved(self, row: tuple[int, ...]) -> None:
        """Note the places of messages that came from another queue."""
        sequences = self._places[row[9]]
        low, high = bisect_left(sequences, row[10]), bisect_left(sequences, row[10] + row[7])
        for sequence in sequences[low:high]:
            number = self._whose[row[9], sequence]
            self._place(row[4], row[5] + sequence - row[10], number)

    def _place(self, queue: int, sequence: int, number: int) -> None:
        if self._whose.setdefault((queue, sequence), number) == number:
            sequences = self._places.setdefault(queue, [])
            at = bisect_left(sequences, sequence)
            if at == len(sequences) or sequences[at] != sequence:
                insort(sequences, sequence)

    def journey(self, number: int, names: Names) -> Journey:
        """Return the journey of a message."""
        journey = Journey(number)
        last: dict[tuple[int, int], int] = {}
        for queue, sequence, row in self.events[number]:
            vhost, name = names.queue(queue)
            kind = row[0]
            about = _about(row, names)
            journey.steps.append(Step(row[6], vhost, name, sequence, records.KINDS[kind], about))
            last[queue, sequence] = kind
        for (queue, _), kind in last.items():
            journey.now.append((*names.queue(queue), STATES[kind]))
        return journey


def _about(row: tuple[int, ...], names: Names) -> str:
    kind, flags, reason, owner, other = row[0], row[1], row[2], row[9], row[10]
    words = []
    if kind == ENTERED:
        words.append(f"from {names.queue(owner)[1]}" if owner > 0 else "published")
    elif kind == ACQUIRED:
        words.append(f"attempt {other + 1}")
    elif kind == LEASED:
        words.append(f"attempt {flags + 1}, subscription {owner}")
    said = REASONS.get(kind, {}).get(reason)
    if said is not None:
        words.append(said)
    if kind == DEFERRED:
        words.append(f"until {shown_time(other)}")
    if kind in (RETURNED, DEFERRED) and flags & records.RETURNED_FAILED:
        words.append("failed")
    if kind in _BY_CONSUMER and owner > 0:
        words.append(f"consumer {names.consumer(owner)}")
    return ", ".join(words)


def shown_time(ms: int) -> str:
    """Return a time in ms since 1970 as ISO 8601."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
