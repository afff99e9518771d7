"""Beginning: what a broker had when a ledger begins whose first part is deleted.

Nothing says so in as many words; it follows from what is kept. A message was there if it ended, or
is still there by the checkpoint at the end, and did not enter meanwhile. A queue was there if it is
there at the end, or was deleted, and was not declared meanwhile. A consumer was there that did
something before it came. All of it is told as one block in front of the ledger.

Messages get sequences from 1 on, without gaps, since the engine gives such to those that it is told
of: Numbers says which.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tallymark.stored import records
from tallymark.whatif.rows import (
    COUNT,
    FIRST,
    KIND,
    LO,
    OTHER,
    OWNER,
    PAYLOAD,
    QUEUE,
    REASON,
    TIME,
    Headers,
    Row,
    Told,
)  # fmt: skip

TOUCHES: Final = (
    records.ACQUIRED, records.SETTLED, records.RETURNED, records.DROPPED, records.DEAD_LETTERED,
    records.PENDING, records.DEFERRED, records.LEASED, records.STAGED,
)  # fmt: skip
"""Kinds of rows whose messages are there."""
ANSWERS: Final = (records.SETTLED, records.RETURNED, records.DEFERRED, records.DEAD_LETTERED)
"""Kinds of rows by which a consumer answers what it holds."""
STILL_THERE: Final = (records.LIVE, records.PENDING)
_ENDS: Final = {"unbind": "binding", "delete_queue": "queue", "delete_exchange": "exchange",
                "delete_policy": "policy", "delete_operator_policy": "operator_policy",
                "delete_vhost": "vhost"}  # fmt: skip
_ORDER: Final = ("vhost", "exchange", "queue", "binding", "policy", "operator_policy",
                 "pause_queue")  # fmt: skip
_BEYOND: Final = 1 << 62


@dataclass(slots=True)
class Numbers:
    """Sequences of one queue: those of the ledger, and those that are told."""

    entered: int = _BEYOND
    """The first that entered in this ledger."""
    there: list[int] = field(default_factory=list)
    """Sequences of the messages that were there, ascending."""

    def of(self, sequence: int) -> int:
        """Return the sequence that is told."""
        if sequence < self.entered:
            return bisect_left(self.there, sequence) + 1
        return sequence - self.entered + len(self.there) + 1


@dataclass(frozen=True, slots=True)
class Initial:
    """A message that was there."""

    arrived_ms: int
    """-1: not known."""
    size: int
    """0: not known."""
    priority: int
    persistent: bool


class Beginning:
    """Findings out of a ledger, block by block."""

    def __init__(self) -> None:
        self.numbers: dict[int, Numbers] = {}
        self.messages: dict[tuple[int, int], Initial] = {}
        """Messages by queue and sequence that is told."""
        self.lease_shift: dict[int, int] = {}
        """Lease sequence before the first one, by the epoch of a subscription."""
        self.lacks: dict[str, int] = {}
        self._touched: dict[int, set[int]] = {}
        self._held: dict[tuple[int, int], int] = {}
        """Consumer that held a message, by queue and sequence."""
        self._ended: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._live: dict[tuple[int, int], Initial] = {}
        self._changes: list[dict[str, Any]] = []
        self._state: list[dict[str, Any]] = []
        self._subscribed: set[int] = set()
        """Epochs of subscriptions that were defined in this ledger so far."""
        self._readers: set[int] = set()
        """Epochs of those that were there."""
        self._before: dict[tuple[int, int], int] = {}
        """Number of deliveries that messages had before, by queue and sequence."""
        self._came: dict[int, Row] = {}
        self._terms: dict[int, tuple[int, bytes]] = {}
        self._begin_ms = -1

    # -- what the ledger tells

    def read(self, block: Told) -> None:
        """Read a block of the journal."""
        for row in block.rows:
            kind = row[KIND]
            if self._begin_ms < 0 and kind != records.PAYLOAD:
                self._begin_ms = row[TIME]
            if kind == records.ENTERED:
                numbers = self.numbers.setdefault(row[QUEUE], Numbers())
                numbers.entered = min(numbers.entered, row[FIRST])
            elif kind in TOUCHES:
                self._touch(row)
                if kind == records.LEASED:
                    self._lease(row)
            elif kind == records.DEFINITION:
                said = json.loads(block.blob(row))
                self._changes.append(said)
                if said["op"] == "subscription":
                    self._subscribed.add(said["epoch"])
            elif kind in (records.LEASE_SETTLED, records.VERDICTS):
                self._read_by(row[OWNER])
            elif kind == records.CONSUMER:
                self._consumer(row, block)

    def _touch(self, row: Row) -> None:
        queue, first = row[QUEUE], row[FIRST]
        numbers = self.numbers.setdefault(queue, Numbers())
        if first >= numbers.entered:
            return
        touched = self._touched.setdefault(queue, set())
        owner, kind = row[OWNER], row[KIND]
        for sequence in range(first, min(first + row[COUNT], numbers.entered)):
            if kind == records.ACQUIRED:
                given = 1 if (queue, sequence) in self._held else 0
                self._before.setdefault((queue, sequence), row[OTHER] - given)
            if sequence not in touched:
                touched.add(sequence)
                if kind in ANSWERS and owner and _is_answer(row):
                    self._held[queue, sequence] = owner
            if kind in (records.DROPPED, records.DEAD_LETTERED):
                self._ended[queue, sequence] = kind, row[REASON], row[TIME]

    def _lease(self, row: Row) -> None:
        self._read_by(row[OWNER])
        if row[OWNER] not in self.lease_shift:
            self.lease_shift[row[OWNER]] = (row[OTHER] & records.LEASE_BITS) - 1

    def _read_by(self, epoch: int) -> None:
        if epoch not in self._subscribed:
            self._readers.add(epoch)

    def _consumer(self, row: Row, block: Told) -> None:
        owner = row[OWNER]
        if row[REASON] == records.CONSUMER_STARTED:
            self._came.setdefault(owner, row)
        elif owner not in self._came and owner not in self._terms:
            blob = block.blob(row)
            if "session" in json.loads(blob):
                self._terms[owner] = row[QUEUE], blob

    def read_state(self, block: Told) -> None:
        """Read a block of the checkpoint at the end."""
        sizes: dict[int, list[int]] = {}
        for row in block.rows:
            kind = row[KIND]
            if kind == records.PAYLOAD:
                sizes[row[PAYLOAD]] = block.sizes(row)
            elif kind == records.DEFINITION:
                self._state.append(json.loads(block.blob(row)))
            elif kind in STILL_THERE and row[COUNT]:
                self._still_there(row, sizes.get(row[PAYLOAD], []))

    def _still_there(self, row: Row, sizes: Sequence[int]) -> None:
        queue, first, lo = row[QUEUE], row[FIRST], row[LO]
        numbers = self.numbers.setdefault(queue, Numbers())
        touched = self._touched.setdefault(queue, set())
        priority = row[REASON] if row[KIND] == records.LIVE else 0
        for i in range(row[COUNT]):
            if first + i < numbers.entered:
                touched.add(first + i)
                size = sizes[lo + i] if lo + i < len(sizes) else 0
                self._live[queue, first + i] = Initial(row[TIME], size, priority, True)

    # -- what is told

    def block(self, position: int) -> Told:
        """Return what was there as one block in front of the ledger, whose first block is at a
        position."""
        out = _Block()
        time_ms = max(self._begin_ms, 0)
        queues = {}
        for said in self._topology():
            out.add((records.DEFINITION, 0, 0), 0, 0, time_ms, blob=json.dumps(said).encode())
            if said["op"] == "queue":
                queues[said["id"]] = said
        unknown = 0
        for queue, touched in sorted(self._touched.items()):
            numbers = self.numbers[queue]
            numbers.there = sorted(touched)
            if numbers.entered == _BEYOND:
                numbers.entered = numbers.there[-1] + 1 if numbers.there else 1
            ttl_ms = _ttl_of(queues.get(queue))
            for i, sequence in enumerate(numbers.there, 1):
                found = self._live.get((queue, sequence)) or self._gone(queue, sequence, ttl_ms)
                unknown += not found.size
                self.messages[queue, i] = found
            if numbers.there:
                count = len(numbers.there)
                out.add((records.ENTERED, 0, 0), queue, 1, time_ms, count)
        for owner, (queue, blob) in sorted(self._terms.items()):
            came = (records.CONSUMER, 0, records.CONSUMER_STARTED)
            out.add(came, queue, 0, time_ms, 0, owner, blob=blob)
        for (queue, sequence), owner in sorted(self._held.items()):
            first = self.numbers[queue].of(sequence)
            out.add((records.ACQUIRED, 0, 0), queue, first, time_ms, 1, owner)
        self._lack("messages that were there at the beginning: their times and routes",
                   len(self.messages))  # fmt: skip
        self._lack("messages that were there at the beginning: their sizes", unknown)
        strangers = set(self._held.values()) - set(self._terms)
        self._lack("consumers that were there at the beginning: their credit", len(strangers))
        out.position = position - len(out.rows) - 1
        out.synced = position
        return out

    def _gone(self, queue: int, sequence: int, ttl_ms: int) -> Initial:
        """Return a message that ended. When it came is known of one whose time to live ran out."""
        kind, reason, ended_ms = self._ended.get((queue, sequence), (0, 0, 0))
        expired = (kind, reason) in (
            (records.DROPPED, records.DROPPED_EXPIRED),
            (records.DEAD_LETTERED, records.DEAD_EXPIRED),
        )
        arrived = ended_ms - ttl_ms if expired and ttl_ms >= 0 else -1
        lost = (kind, reason) == (records.DROPPED, records.DROPPED_TRANSIENT)
        return Initial(arrived, 0, 0, not lost)

    def _topology(self) -> Iterator[dict[str, Any]]:
        """Yield the definitions of what was there: of what is there at the end, what was not made
        meanwhile, and what was deleted."""
        first: dict[tuple[object, ...], dict[str, Any]] = {}
        for said in self._changes:
            first.setdefault(_key(said), said)
        found = [
            said
            for said in self._state
            if "vhost" in said and (_key(said) not in first or first[_key(said)]["op"] in _ENDS)
        ]
        known = {_key(said) for said in found}
        for key, said in first.items():
            op = said["op"]
            if op not in _ENDS or key in known:
                continue
            if op == "unbind":
                found.append({**said, "op": "binding"})
            elif op == "delete_queue":
                found.append({
                    "op": "queue", "vhost": said["vhost"], "id": said["id"], "name": said["name"],
                    "durable": True, "auto_delete": False, "arguments": {},
                })  # fmt: skip
                self._lack("queues that were deleted: their arguments and bindings", 1)
            elif op == "delete_vhost":
                found.append({"op": "vhost", "vhost": said["vhost"]})
            else:
                self._lack("exchanges and policies that were deleted: what they were", 1)
        found = [said for said in found if said["op"] in _ORDER]
        readers = {
            said["epoch"]: said
            for said in [*self._changes, *self._state]
            if said["op"] == "subscription" and said["epoch"] in self._readers
        }
        found += readers.values()
        yield from sorted(found, key=_rank)

    def _lack(self, what: str, count: int) -> None:
        if count:
            self.lacks[what] = self.lacks.get(what, 0) + count

    # -- the ledger's rows, in the sequences that are told

    def renumbered(self, rows: Iterable[Row]) -> list[Row]:
        """Return rows with the sequences that are told."""
        return [self._renumbered(row) for row in rows]

    def _renumbered(self, row: Row) -> Row:
        kind = row[KIND]
        if kind == records.LEASE_SETTLED:
            return (*row[:OTHER], row[OTHER] - self.lease_shift.get(row[OWNER], 0),
                    *row[OTHER + 1 :])  # type: ignore[return-value]  # fmt: skip
        if kind not in TOUCHES and kind not in (records.ENTERED, records.MARK):
            return row
        numbers = self.numbers.get(row[QUEUE])
        if numbers is not None:
            first = numbers.of(row[FIRST])
            before = (
                self._before.get((row[QUEUE], row[FIRST]), 0) if kind == records.ACQUIRED else 0
            )
            row = (*row[:FIRST], first, *row[FIRST + 1 :])  # type: ignore[assignment]
            if before:
                other = max(row[OTHER] - before, 0)
                row = (*row[:OTHER], other, *row[OTHER + 1 :])  # type: ignore[assignment]
        if kind == records.ENTERED and row[OWNER]:
            source = self.numbers.get(row[OWNER])
            if source is not None:
                other = source.of(row[OTHER])
                row = (*row[:OTHER], other, *row[OTHER + 1 :])  # type: ignore[assignment]
        return row


class _Block:
    """A block that is made up."""

    def __init__(self) -> None:
        self.position = self.synced = 0
        self.made: list[Row] = []
        self.rows: Sequence[Row] = self.made
        self._blobs: list[bytes] = []

    def add(
        self, what: tuple[int, int, int], queue: int, first: int, time_ms: int, count: int = 0,
        owner: int = 0, *, blob: bytes = b"",
    ) -> None:  # fmt: skip
        """Add a row. what: its kind, flags and reason."""
        at = len(self._blobs)
        self._blobs.append(blob)
        self.made.append((*what, 0, queue, first, time_ms, count, 0, owner, 0, -1, at, len(blob)))

    def blob(self, row: Row) -> bytes:
        return self._blobs[row[-2]]

    def sizes(self, row: Row) -> list[int]:
        return []

    def bodies(self, row: Row) -> list[int] | None:
        return None

    def routes(self, row: Row) -> list[tuple[bytes, bytes]]:
        return []

    def headers(self, row: Row, names: frozenset[str]) -> list[Headers] | None:
        return None


class Renumbered:
    """A block of the ledger in the sequences that are told."""

    def __init__(self, block: Told, beginning: Beginning) -> None:
        self.position, self.synced = block.position, block.synced
        self.rows: Sequence[Row] = beginning.renumbered(block.rows)
        self.blob, self.sizes, self.bodies = block.blob, block.sizes, block.bodies
        self.routes, self.headers = block.routes, block.headers


def _is_answer(row: Row) -> bool:
    """Return whether a row says that a consumer had these messages."""
    kind, reason = row[KIND], row[REASON]
    if kind == records.SETTLED:
        return reason not in (
            records.SETTLED_ON_SEND, records.SETTLED_BY_TRANSFER, records.SETTLED_BY_REDRIVE,
        )  # fmt: skip
    if kind == records.DEAD_LETTERED:
        return reason == records.DEAD_REJECTED
    return True


def _rank(said: dict[str, Any]) -> int:
    """Return the place of a definition among those of other kinds."""
    return _ORDER.index(said["op"]) if said["op"] in _ORDER else len(_ORDER)


def _key(said: dict[str, Any]) -> tuple[object, ...]:
    """Return what tells a thing from another: its kind and its name, or all of a binding."""
    op = _ENDS.get(said["op"], said["op"])
    if op == "binding":
        names = ("vhost", "source", "kind", "destination", "key")
        return op, *(said.get(name) for name in names), json.dumps(said.get("arguments"))
    return op, said.get("vhost"), said.get("id"), said.get("name")


def _ttl_of(queue: dict[str, Any] | None) -> int:
    """Return the time to live that a queue's own arguments give, ms; -1: none."""
    ttl = (queue or {}).get("arguments", {}).get("x-message-ttl")
    return ttl if isinstance(ttl, int) else -1
