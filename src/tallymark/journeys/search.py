"""Search for messages, and their journeys: everything that happened to them, in every queue.

A message is found by what is in it, or by the number that the broker gave it; what happened to it
is read from the journal's rows. Files are read from the newest back, until they have had as many
rows or bytes as the caller allows, so that the time it takes is bounded. It reads the data folder,
and so is for whoever may read that: neither a JVM nor numpy takes part.

A text is looked for in the bytes of the messages as they were published, and then compared with
what is decoded of them. Bodies that were let go of, once all messages of their segment were
settled, cannot be searched; the rows of such messages are there as long as the ledger is kept.
Neither can those of messages that were not stored, and a text that lies in two frames of a body.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tallymark.journeys.messages import PROPERTIES, Described, described_if
from tallymark.journeys.reading import blocks_of, files_of, messages_with, newest_checkpoint, read
from tallymark.journeys.rows import Follower, Journey, Names, Part, shown_time

MOST_ROWS: Final = 1_000_000
"""Rows of the journal that are looked at. A row speaks of one message or of many."""
MOST_BYTES: Final = 2 << 30
"""Bytes of files that are read, unless the caller says how many rows it wants."""
ANY_BYTES: Final = 1 << 62
MOST_FOUND: Final = 100
"""Messages that are shown."""
MOST_LOOKED_AT: Final = 10_000
"""Messages with the text somewhere in their bytes that are decoded and compared."""
MOST_STEPS: Final = 1000
"""Steps that are shown of one journey: the first tenth of them, and the last."""
END_OF_TIME_MS: Final = 1 << 62


class TooMany(Exception):
    """The text is in so many messages that it names none."""


@dataclass(frozen=True, slots=True)
class Sought:
    """Criterion for messages: a text in one of `places`, or the number of one message."""

    text: str = ""
    places: tuple[str, ...] = PROPERTIES
    number: int | None = None
    """Broker's own id of the message, equal in all its queues."""
    since_ms: int = 0
    """Earliest arrival, ms since 1970; with a number of no effect, as the next."""
    until_ms: int = END_OF_TIME_MS
    """Latest arrival."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one search."""

    rows: int = MOST_ROWS
    bytes: int = MOST_BYTES
    messages: int = MOST_LOOKED_AT


@dataclass(frozen=True, slots=True)
class Found:
    """The answer."""

    journeys: list[tuple[Journey, Described | None]]
    """Each message with what it is; None: its bytes were not looked at. The newest first."""
    rows: int
    """Rows of the journal that were looked at."""
    since_ms: int | None
    """Time of the oldest of them; None: there is no row."""
    is_all: bool
    """True if these are all rows that the folder has."""


def search(folder: Path, sought: Sought, limits: Limits | None = None) -> Found:
    """Find messages and tell their journeys, the newest first, at most MOST_FOUND.

    Raises FileNotFoundError where no journal is; TooMany for a text that too many messages have.
    """
    limits = limits or Limits()
    names = Names()
    parts: list[Part] = []
    found: dict[int, Described] = {}
    rows = size = looked_at = 0
    is_reached = False
    files = files_of(folder)
    while files and not is_reached and rows < limits.rows and size < limits.bytes:
        file = files.pop()
        data = read(file)
        if data is None:
            break
        size += len(data)
        blocks = blocks_of(data, file.number, file.salt)
        names.read(data, blocks)
        part = Part(data, blocks)
        if part.count:
            parts.append(part)
            rows += part.count
            is_reached = part.first_time_ms < sought.since_ms
        if sought.number is not None:
            continue
        for message in messages_with(data, blocks, sought.text.encode()):
            if not sought.since_ms <= message.arrived_ms <= sought.until_ms:
                continue
            looked_at += 1
            if looked_at > limits.messages:
                raise TooMany(
                    f"{sought.text!r} is in the bytes of more than {limits.messages:,} "
                    "messages; give a longer text, or a shorter time"
                )
            described = described_if(message, sought.text, sought.places)
            if described is not None:
                found.setdefault(message.number, described)
    _read_checkpoint(folder, names)
    numbers = [sought.number] if sought.number is not None else sorted(found, reverse=True)
    follower = Follower(numbers[:MOST_FOUND])
    for part in reversed(parts):
        follower.follow(part)
    journeys = [(follower.journey(one, names), found.get(one)) for one in numbers[:MOST_FOUND]]
    return Found(
        [(journey, described) for journey, described in journeys if journey.steps or described],
        rows,
        parts[-1].first_time_ms if parts else None,
        not files,
    )


def _read_checkpoint(folder: Path, names: Names) -> None:
    data = newest_checkpoint(folder)
    names.read(data, blocks_of(data))


def as_json(found: Found) -> dict[str, Any]:
    """Return the answer as the command and the HTTP interface show it."""
    return {
        "journeys": [_journey(journey, described) for journey, described in found.journeys],
        "rows": found.rows,
        "since": None if found.since_ms is None else shown_time(found.since_ms),
        "is_all": found.is_all,
    }


def _journey(journey: Journey, described: Described | None) -> dict[str, Any]:
    about: dict[str, Any] = {"broker_message_id": journey.number}
    if described is not None:
        said = asdict(described)
        del said["number"]
        about["timestamp"] = shown_time(said.pop("arrived_ms"))
        about |= {name: value for name, value in said.items() if value is not None}
    told = journey.steps
    if left_out := max(len(told) - MOST_STEPS, 0):
        told = told[: MOST_STEPS // 10] + told[left_out + MOST_STEPS // 10 :]
    steps = [
        {
            "time": shown_time(step.time_ms),
            "vhost": step.vhost,
            "queue": step.queue,
            "sequence": step.sequence,
            "event": step.event,
            "about": step.about,
        }
        for step in told
    ]
    now = [{"vhost": vhost, "queue": queue, "state": state} for vhost, queue, state in journey.now]
    return about | {"steps": steps, "left_out": left_out, "now": now}
