"""The journey of a message: everything that happened to it, in every queue it came to.

A message is found by what is in it, or by the number that the broker gave it; what happened to it
is read from the journal's rows. Files are read from the newest back, until they have had as many
rows as the caller allows, so that the time it takes is bounded. Neither the broker nor a JVM takes
part: this reads the data folder, and so is for whoever may read it.

A text is looked for in the bytes of the messages as they were published, and then compared with
what the decoder makes of them. Bodies that were let go of, once all messages of their segment were
settled, cannot be searched; the rows of such messages are there as long as the ledger is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from tallymark.spark.blocks import ROW, Block, block_at
from tallymark.spark.decode import decode_payload
from tallymark.spark.ledger_files import (
    LedgerLetGo,
    checkpoints,
    journal_folder,
    ledger_files,
    read_whole,
)
from tallymark.stored import layout, records, segment
from tallymark.stored.records import REASONS

MOST_ROWS: Final = 1_000_000
"""Rows of the journal that are looked at. A row speaks of one message or of many."""
MOST_FOUND: Final = 100
"""Messages that are shown."""
MOST_LOOKED_AT: Final = 10_000
"""Messages with the text somewhere in their bytes that are decoded and compared."""
PLACES: Final = ("message-id", "correlation-id", "header", "body")
EVENTS: Final = (
    records.ENTERED, records.ACQUIRED, records.LEASED, records.STAGED, records.SETTLED,
    records.RETURNED, records.DEFERRED, records.PENDING, records.DEAD_LETTERED, records.DROPPED,
)  # fmt: skip
_COLUMNS: Final = (
    "broker_message_id", "timestamp", "exchange", "routing_key", "message_id", "correlation_id",
    "headers", "body",
)  # fmt: skip
_BY_CONSUMER: Final = (records.ACQUIRED, records.SETTLED, records.RETURNED, records.DEFERRED)
_NAMED: Final = (records.DEFINITION, records.CONSUMER)
_ENDS: Final = {
    records.SETTLED: "settled",
    records.DEAD_LETTERED: "dead-lettered",
    records.DROPPED: "dropped",
}
_RESTS: Final = {
    records.ENTERED: "ready",
    records.RETURNED: "ready",
    records.ACQUIRED: "acquired",
    records.LEASED: "leased",
    records.STAGED: "staged",
    records.DEFERRED: "deferred",
    records.PENDING: "dead-letter-pending",
}


class TooMany(Exception):
    """The text is in so many messages that it names none."""


@dataclass(frozen=True, slots=True)
class Sought:
    """Criterion for messages: a text in one of `places`, or the number of one message."""

    text: str = ""
    places: tuple[str, ...] = ("message-id", "correlation-id", "header")
    number: int | None = None
    """Broker's own id of the message, equal in all its queues."""


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a message in one queue."""

    time: datetime
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
    """A message, and what happened to it in the order in which it happened."""

    number: int
    properties: dict[str, Any] = field(default_factory=dict)
    """Columns of the message as Spark's source has them, but for the body; empty if its bytes were
    not looked at."""
    body_bytes: int | None = None
    steps: list[Step] = field(default_factory=list)
    now: list[tuple[str, str, str]] = field(default_factory=list)
    """(virtual host, queue, state) of each queue it came to: ready, acquired, leased, staged,
    deferred, dead-letter-pending, or how it ended there."""


@dataclass(frozen=True, slots=True)
class Traced:
    """The answer."""

    journeys: list[Journey]
    rows: int
    """Rows of the journal that were looked at."""
    since: datetime | None
    """Time of the oldest of them; None: there is no row."""
    is_all: bool
    """True if these are all rows that the folder has."""


def trace(folder: Path, sought: Sought, most_rows: int = MOST_ROWS) -> Traced:
    """Find messages and tell their journeys, the newest first, at most MOST_FOUND.

    Raises FileNotFoundError where no journal is; TooMany for a text that too many messages have.
    """
    rows = _Rows()
    found: dict[int, dict[str, Any]] = {}
    looked_at = 0
    files = ledger_files(journal_folder(folder))
    while files and rows.count < most_rows:
        file = files.pop()
        try:
            data = read_whole(file)
        except LedgerLetGo:
            break
        headers, _, _ = segment.scan(data, file.number, file.salt)
        blocks = [block_at(data, header) for header in headers if header.rows]
        rows.prepend(blocks)
        if sought.number is None:
            for message in _messages_with(blocks, data, sought):
                looked_at += 1
                if looked_at > MOST_LOOKED_AT:
                    raise TooMany(
                        f"{sought.text!r} is in the bytes of more than {MOST_LOOKED_AT:,} "
                        "messages; give a longer text"
                    )
                if _is_meant(message, sought):
                    found.setdefault(message["broker_message_id"], message)
    rows.name(folder)
    numbers = [sought.number] if sought.number is not None else sorted(found, reverse=True)
    journeys = [rows.journey(number) for number in numbers[:MOST_FOUND]]
    for journey in journeys:
        message = found.get(journey.number, {})
        body = message.pop("body", None)
        journey.body_bytes = None if body is None else len(body)
        journey.properties = {key: value for key, value in message.items() if value is not None}
    return Traced(
        [journey for journey in journeys if journey.steps or journey.properties],
        rows.count,
        rows.since,
        not files,
    )


def _messages_with(
    blocks: Sequence[Block], data: bytes, sought: Sought
) -> Iterator[dict[str, Any]]:
    """Yield the messages of a segment's blocks in whose bytes the text is, decoded."""
    needle = sought.text.encode()
    for block in blocks:
        rows = block.rows
        stored = (rows["kind"] == records.PAYLOAD) & (rows["at"] > 0)
        for index in np.flatnonzero(stored & (rows["flags"] & layout.ELSEWHERE == 0)).tolist():
            row = rows[index]
            begin = block.header.at + int(row["at"])
            end = begin + int(row["other"])
            at = data.find(needle, begin, end)
            if at < 0:
                continue
            low = int(row["lo"])
            bounds = block.bounds[low : low + int(row["count"]) + 1].astype(np.int64) + begin
            which = []
            while at >= 0:
                message = int(np.searchsorted(bounds, at, "right")) - 1
                which.append(message)
                at = data.find(needle, int(bounds[message + 1]), end)
            for batch in decode_payload(block, index, np.array(which, np.int64), _COLUMNS):
                yield from batch.to_pylist()


def _is_meant(message: dict[str, Any], sought: Sought) -> bool:
    text = sought.text
    return (
        ("message-id" in sought.places and message["message_id"] == text)
        or ("correlation-id" in sought.places and message["correlation_id"] == text)
        or ("header" in sought.places and text in dict(message["headers"] or ()).values())
        or ("body" in sought.places and text.encode() in (message["body"] or b""))
    )


class _Rows:
    """The journal's rows, in its order, and the names of what they speak of."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        """Arrays of ROW, the newest first."""
        self._queues: dict[int, tuple[str, str]] = {}
        self._consumers: dict[int, str] = {}
        self._joined: Any = None
        self.count = 0

    def prepend(self, blocks: Sequence[Block]) -> None:
        """Take the rows of an older file."""
        for block in reversed(blocks):
            self._read_names(block)
        if blocks:
            part = np.concatenate([block.rows for block in blocks])
            self._parts.append(part)
            self.count += len(part)

    def name(self, folder: Path) -> None:
        """Take the names of queues that the newest checkpoint knows, and end the reading."""
        for file in checkpoints(folder)[:1]:
            data = read_whole(file)
            for header in segment.scan(data, salt=0)[0]:
                self._read_names(block_at(data, header))
        self._joined = np.concatenate(self._parts[::-1]) if self._parts else np.empty(0, ROW)

    def _read_names(self, block: Block) -> None:
        """Note names, of which the newest is read first."""
        for row in block.rows[np.isin(block.rows["kind"], _NAMED)]:
            said = json.loads(block.blob(row))
            if row["kind"] == records.CONSUMER:
                name = f"{said.get('tag', '')} of {said.get('connection', '')}"
                self._consumers.setdefault(int(row["owner"]), name)
            elif said.get("op") == "queue":
                self._queues.setdefault(int(said["id"]), (said["vhost"], said["name"]))

    @property
    def since(self) -> datetime | None:
        return _time(int(self._joined["time"][0])) if len(self._joined) else None

    def journey(self, number: int) -> Journey:
        """Return the journey of a message: from where it was published along all its moves."""
        rows = self._joined
        entered = rows["kind"] == records.ENTERED
        journey = Journey(number)
        places = dict.fromkeys(self._published(number, rows, entered))
        events: list[tuple[int, int, int]] = []  # index of the row, queue, sequence
        waiting = list(places)
        while waiting:
            queue, sequence = waiting.pop()
            behind = (rows["first"] <= sequence) & (sequence < rows["first"] + rows["count"])
            mine = np.flatnonzero(behind & (rows["queue"] == queue) & np.isin(rows["kind"], EVENTS))
            events += [(index, queue, sequence) for index in mine.tolist()]
            from_here = entered & (rows["owner"] == queue) & (rows["other"] <= sequence)
            for index in np.flatnonzero(
                from_here & (sequence < rows["other"] + rows["count"])
            ).tolist():
                row = rows[index]
                place = (int(row["queue"]), int(row["first"]) + sequence - int(row["other"]))
                if place not in places:
                    places[place] = None
                    waiting.append(place)
        last: dict[tuple[int, int], int] = {}
        for index, queue, sequence in sorted(events):
            row = rows[index]
            vhost, name = self._name_of(queue)
            about = self._about(row)
            kind = records.KINDS[int(row["kind"])]
            journey.steps.append(Step(_time(int(row["time"])), vhost, name, sequence, kind, about))
            last[queue, sequence] = int(row["kind"])
        for (queue, _), ended in last.items():
            journey.now.append((*self._name_of(queue), _ENDS.get(ended) or _RESTS[ended]))
        return journey

    def _published(self, number: int, rows: Any, entered: Any) -> Iterator[tuple[int, int]]:
        """Yield the places (queue id and sequence) that the message entered when it came."""
        has_it = (rows["first"] <= number) & (number < rows["first"] + rows["count"])
        alone = rows["flags"] & layout.COLUMNS == 0
        payloads = rows[(rows["kind"] == records.PAYLOAD) & has_it & alone]
        for payload in payloads:
            place = number - int(payload["first"])
            mine = entered & (rows["payload"] == payload["payload"]) & (rows["lo"] <= place)
            for row in rows[mine & (place < rows["lo"].astype(np.int64) + rows["count"])]:
                yield int(row["queue"]), int(row["first"]) + place - int(row["lo"])

    def _name_of(self, queue: int) -> tuple[str, str]:
        return self._queues.get(queue, ("", f"queue {queue}"))

    def _about(self, row: Any) -> str:
        kind, owner, other = int(row["kind"]), int(row["owner"]), int(row["other"])
        words = []
        if kind == records.ENTERED:
            words.append(f"from {self._name_of(owner)[1]}" if owner > 0 else "published")
        elif kind == records.ACQUIRED:
            words.append(f"attempt {other + 1}")
        elif kind == records.LEASED:
            words.append(f"attempt {int(row['flags']) + 1}, subscription {owner}")
        reason = REASONS.get(kind, {}).get(int(row["reason"]))
        if reason is not None:
            words.append(reason)
        if kind == records.DEFERRED:
            words.append(f"until {_time(other).isoformat(timespec='milliseconds')}")
        came_back = kind in (records.RETURNED, records.DEFERRED)
        if came_back and int(row["flags"]) & records.RETURNED_FAILED:
            words.append("failed")
        if kind in _BY_CONSUMER and owner > 0:
            words.append(f"consumer {self._consumers.get(owner) or owner}")
        return ", ".join(words)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
