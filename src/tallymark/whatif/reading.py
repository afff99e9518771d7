"""From the ledger's blocks to a recording: which rows tell of what came from outside, and which of
what the broker made of it."""

from __future__ import annotations

import json
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tallymark.spark.blocks import Block
from tallymark.spark.ledger import CHECKPOINT, blocks_of, plan
from tallymark.stored import layout, records
from tallymark.stored.annotations import Annotations
from tallymark.stored.formats import AMQP091
from tallymark.whatif.fates import Fates, QueueName, fate_of
from tallymark.whatif.past import Past
from tallymark.whatif.recording import (
    ACCEPTS,
    CANCELLED,
    CLOSED,
    COME,
    CRASH,
    CREDIT,
    DEFERS,
    DEFINE,
    FAILS,
    FOREVER,
    GO,
    HOLDS,
    LOST,
    PURGE,
    REJECTS,
    REQUEUES,
    RETURNS,
    TAKE,
    Recording,
    Taken,
    Terms,
    attempt_of,
)
from tallymark.wire.amqp091.frames import section_at

Row = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int]
"""A row of the ledger, as layout.ROW_DTYPE names its fields."""
(
    KIND, FLAGS, REASON, _, QUEUE, FIRST, TIME, COUNT, LO, OWNER, OTHER, PAYLOAD, AT, SIZE,
) = range(14)  # fmt: skip
_WORN: Final = {
    records.DEAD_LETTERED: (records.DEAD_REJECTED, records.DEAD_DELIVERY_LIMIT),
    records.PENDING: (records.DEAD_REJECTED, records.DEAD_DELIVERY_LIMIT),
    records.DROPPED: (records.DROPPED_REJECTED, records.DROPPED_DELIVERY_LIMIT),
}
"""Reasons for which a message ends by a consumer's answer: that it was rejected, or given back too
often."""
_OF_TURNS: Final = (records.ACQUIRED, records.SETTLED, records.MARK)
_REASONS_OF_TURNS: Final = {
    records.DEAD_LETTERED: (records.DEAD_EXPIRED, records.DEAD_MAXLEN),
    records.PENDING: (records.DEAD_EXPIRED, records.DEAD_MAXLEN),
    records.DROPPED: (records.DROPPED_EXPIRED, records.DROPPED_MAXLEN),
}
"""Kinds and reasons of rows that the broker writes in a turn, not while it is told something."""
_UNKNOWN_DEATH: Final = (
    records.DROPPED_CYCLE, records.DROPPED_UNROUTABLE, records.DROPPED_HOP_LIMIT,
    records.DROPPED_REFUSED,
)  # fmt: skip
"""Reasons of drops of letters: of those that a consumer held it was rejected."""


LATEST_MS: Final = 100
"""Most by which a broker is taken to be late."""


class NotEnough(Exception):
    """The ledger does not reach back far enough to be played."""


def read_recording(folder: Path) -> Recording:
    """Read a data folder; a broker may be running on it. Raises LedgerIncomplete, NotEnough."""
    reader = Reader()
    parts = [part for part in plan(folder, is_unbroken=True) if part.source != CHECKPOINT]
    if parts and parts[0].file.number > 1:
        raise NotEnough(
            f"{folder}: the ledger begins with segment {parts[0].file.number}, expected 1: what "
            "the broker held then is not known. A longer ledger_retention keeps more"
        )
    for part in parts:
        for block in blocks_of(part):
            reader.read(block)
    return reader.finish()


class Reader:
    """Reads blocks one after the other, oldest first."""

    def __init__(self) -> None:
        self.recording = Recording()
        self._time_ms = 0
        self._synced = 0
        self._waits: list[int] = []
        """Times for which deliveries waited for the disk, ms."""
        self._order = 0
        self._names: dict[int, QueueName] = {}
        self._declared: dict[tuple[str, str], int] = {}
        self._pasts: dict[int, Past] = {}
        self._payloads: dict[int, tuple[int, int]] = {}
        """First message id, and index in the sizes, by position."""
        self._places: dict[tuple[bytes, bytes], int] = {}
        self._known: dict[bytes, int] = {}
        self._vhosts: dict[str, str] = {}
        """Virtual host by the exchange that was published to last there."""
        self._terms: dict[int, Terms] = {}
        self._last_ms: dict[int, int] = {}
        """Time at which each consumer settled last."""
        self._answered: dict[int, list[int]] = {}
        """Answers of each consumer, and how many of them came out of order."""
        self._latest: dict[int, tuple[int, int]] = {}
        self._staged: dict[int, tuple[Row, list[int]]] = {}
        """Payloads that a sink may publish later, and their routes."""
        self._anonymous = -1
        """The next id for a message whose id is not stored."""
        self._kinds = {
            records.PAYLOAD: self._payload,
            records.ENTERED: self._entered,
            records.ACQUIRED: self._acquired,
            records.LEASED: self._acquired,
            records.SETTLED: self._ended,
            records.DEAD_LETTERED: self._ended,
            records.DROPPED: self._ended,
            records.PENDING: self._pending,
            records.MARK: self._mark,
            records.RETURNED: self._returned,
            records.DEFERRED: self._returned,
            records.DEFINITION: self._defined,
            records.CONSUMER: self._consumer,
        }

    def read(self, block: Block) -> None:
        """Read the rows of one block."""
        rows: list[Row] = block.rows.tolist()
        self._order = block.header.position
        self._block = block
        self._routes: list[bytes] | None = None
        self._fresh: dict[int, Row] = {}
        """Payloads of this block that nothing in it says the meaning of, so far."""
        for row in rows:
            if row[KIND] == records.PAYLOAD:
                self._fresh[row[PAYLOAD]] = row
            elif row[KIND] == records.SINK_STAGED:
                staged = self._fresh.pop(row[PAYLOAD], None)
                if staged is not None:
                    self._staged[row[PAYLOAD]] = (staged, self._own_places(staged))
            if row[KIND] != records.PAYLOAD:
                self._turn(row[TIME])
            if row[KIND] in _OF_TURNS or row[REASON] in _REASONS_OF_TURNS.get(row[KIND], ()):
                self.recording.turn_ends[-1] = 1
            kind = self._kinds.get(row[KIND])
            if kind is not None:
                kind(row)
        self._turn(self._time_ms)
        for row in self._fresh.values():
            if row[FLAGS] & layout.PERSISTENT and not row[FLAGS] & layout.RELOCATED:
                self._publish(row, "", -1)

    def _turn(self, time_ms: int) -> None:
        """Note that something happened at a time, or after what happened before."""
        made = self.recording
        is_new = not made.turn_order or made.turn_order[-1] != self._order
        if time_ms > self._time_ms or is_new:
            self._time_ms = max(self._time_ms, time_ms)
            made.turn_ms.append(self._time_ms)
            made.turn_order.append(self._order)
            self._synced = max(self._synced, self._block.header.known_synced)
            made.turn_synced.append(self._synced)
            if is_new and made.turn_ends:
                made.turn_ends[-1] = 1
            made.turn_ends.append(0)

    def finish(self) -> Recording:
        """Return the recording."""
        made = self.recording
        made.end_ms = self._time_ms
        waits = sorted(self._waits)
        if made.turn_ends:
            made.turn_ends[-1] = 1
        if waits:
            made.sync_ms, made.late_ms = waits[0], min(3 * waits[-1], LATEST_MS)
        for past in self._pasts.values():
            for given in past.held():
                past.answer(given, FOREVER, 0, HOLDS, 0, 0)
            for attempt, answers in past.answers.items():
                answers.sort()
                made.answers[past.name, attempt] = answers
        for owner, (count, late) in self._answered.items():
            if late * 20 <= count:
                made.serial.add(owner)
        for at, (time_ms, order, kind, said) in enumerate(made.inputs):
            if kind == GO and isinstance(said, tuple) and self._last_ms.get(said[0], 0) > time_ms:
                made.inputs[at] = (time_ms, order, kind, (said[0], CANCELLED))
        first = min((past.fates.entered_ms[0] for past in self._pasts.values() if past.fates.ids),
                    default=self._time_ms)  # fmt: skip
        made.begin_ms = min([first, *(one[0] for one in made.inputs[:1])])
        return made

    # -- messages that came in

    def _payload(self, row: Row) -> None:
        publishes = self.recording.publishes
        count, lo = row[COUNT], row[LO]
        bounds = self._block.bounds[lo : lo + count + 1].tolist()
        self._payloads[row[PAYLOAD]] = (row[FIRST], len(publishes.sizes))
        sizes = [high - low for low, high in pairwise(bounds)]
        publishes.sizes.extend(sizes)
        publishes.bodies.extend(self._bodies(row, bounds, sizes))

    def _bodies(self, row: Row, bounds: list[int], sizes: list[int]) -> list[int]:
        """Return the bytes of the bodies, of messages that are not here those of their frames."""
        if row[REASON] != AMQP091 or not row[AT]:
            return sizes
        data, start = self._block.data, self._block.header.at + row[AT]
        found = []
        for low in bounds[:-1]:
            at = section_at(data, start + low)
            found.append(int.from_bytes(data[at - 8 : at], "big"))
        return found

    def _publish(self, row: Row, vhost: str, known: int, own: list[int] | None = None) -> None:
        """Add a payload to the publishes, as its PAYLOAD row has it. own: its routes, where that
        row is of another block."""
        made = self.recording.publishes
        first_id, at = self._payloads[row[PAYLOAD]]
        own = own or self._own_places(row)
        place = own[0] if len(set(own)) == 1 else -1
        exchange = made.places[own[0]][0]
        if vhost:
            self._vhosts[exchange] = vhost
        if place < 0:
            made.own_places[len(made)] = own
        made.time_ms.append(self._time_ms)
        made.order.append(self._order)
        made.first_id.append(first_id)
        made.arrived_ms.append(row[TIME])
        made.vhost.append(vhost or self._vhosts.get(exchange, "/"))
        made.place.append(place)
        made.known.append(known)
        made.persistent.append(1)
        made.start.append(at)
        made.count.append(row[COUNT])

    def _own_places(self, row: Row) -> list[int]:
        """Return the route of each message, or the one of all of them."""
        if self._routes is None:
            self._routes = self._block.routes().to_pylist()
        if row[FLAGS] & layout.ROUTE_COLUMN:
            at = row[OWNER]
            numbers = self._block.bounds[at : at + row[COUNT]].tolist()
        else:
            numbers = [row[OWNER]]
        return [self._place(self._routes[2 * n], self._routes[2 * n + 1]) for n in numbers]

    def _place(self, exchange: bytes, key: bytes) -> int:
        found = self._places.get((exchange, key))
        if found is None:
            places = self.recording.publishes.places
            found = self._places[exchange, key] = len(places)
            places.append((_text(exchange), _text(key)))
        return found

    def _entered(self, row: Row) -> None:
        past = self._pasts.get(row[QUEUE])
        if past is None:
            return
        blob = self._blob(row)
        known = Annotations.from_bytes(blob) if blob else None
        count, time_ms = row[COUNT], row[TIME]
        if row[FLAGS] & records.TRANSIENT or row[PAYLOAD] < 0:
            first_id = self._anonymous - count + 1
            self._anonymous -= count
            sizes = array("I", bytes(4 * count))
            if not row[OWNER]:
                self._publish_unstored(past, first_id, row)
        else:
            first_id, at = self._payloads[row[PAYLOAD]]
            first_id += row[LO]
            at += row[LO]
            sizes = self.recording.publishes.sizes[at : at + count]
            fresh, own = self._fresh.pop(row[PAYLOAD], None), None
            if fresh is None and not row[OWNER]:
                fresh, own = self._staged.pop(row[PAYLOAD], (None, None))
            if fresh is not None and not row[OWNER]:
                known_as = self._annotations(blob)
                self._publish(fresh, past.name[0], known_as, own)
            if row[REASON] and not row[OWNER]:
                self._prioritise(row)
        if row[OWNER]:
            past.wait_for_letters(row[FIRST] + count, self._order)
        past.enter(row[FIRST], count, time_ms, first_id, sizes, attempt_of(known, past.name[1], 0))

    def _annotations(self, blob: bytes) -> int:
        if not blob:
            return -1
        found = self._known.get(blob)
        if found is None:
            found = self._known[blob] = len(self.recording.publishes.annotations)
            self.recording.publishes.annotations.append(blob)
        return found

    def _prioritise(self, row: Row) -> None:
        """Note the priority of messages, which rows of queues with priorities have."""
        made = self.recording.publishes
        first_id, _ = self._payloads[row[PAYLOAD]]
        known = made.priorities.setdefault(first_id, {})
        for i in range(row[LO], row[LO] + row[COUNT]):
            known[i] = max(known.get(i, 0), row[REASON])

    def _publish_unstored(self, past: Past, first_id: int, row: Row) -> None:
        """Add messages whose bytes, and with them their routes, are not stored: they are published
        to the queue that they entered."""
        made = self.recording.publishes
        self._lack("messages that are not stored: their routes and sizes", row[COUNT])
        start = len(made.sizes)
        made.sizes.extend(bytes(row[COUNT]))
        made.bodies.extend(bytes(row[COUNT]))
        made.time_ms.append(self._time_ms)
        made.order.append(self._order)
        made.first_id.append(first_id)
        made.arrived_ms.append(row[TIME])
        made.vhost.append(past.name[0])
        made.place.append(self._place(b"", past.name[1].encode()))
        made.known.append(-1)
        made.persistent.append(0)
        made.start.append(start)
        made.count.append(row[COUNT])

    # -- what consumers did

    def _mark(self, row: Row) -> None:
        past = self._pasts.get(row[QUEUE])
        if past is not None:
            past.wait(row[FIRST], self._order, row[TIME])

    def _acquired(self, row: Row) -> None:
        past = self._pasts.get(row[QUEUE])
        if past is None:
            return
        owner, count = row[OWNER], row[COUNT]
        is_lease = row[KIND] == records.LEASED
        before = row[FLAGS] if is_lease else row[OTHER]
        past.give(row[FIRST], count, row[TIME], owner, before)
        synced, waited_ms = past.waited_for(row[FIRST] + count - 1, row[TIME])
        if 0 <= waited_ms <= LATEST_MS:
            self._waits.append(waited_ms)
        if synced > self._synced:
            self._synced = self.recording.turn_synced[-1] = synced
        if is_lease or owner not in self._terms:
            self._input(TAKE, Taken(past.name, owner, count, True))

    def _ended(self, row: Row) -> None:
        past = self._pasts.get(row[QUEUE])
        if past is None:
            return
        kind, reason = row[KIND], row[REASON]
        first, count = row[FIRST], row[COUNT]
        if kind == records.SETTLED:
            if reason == records.SETTLED_ON_SEND and row[OWNER] not in self._terms:
                self._input(TAKE, Taken(past.name, row[OWNER], count, False))
            elif reason in (records.SETTLED_BY_TRANSFER, records.SETTLED_BY_REDRIVE):
                self._lack("messages that were moved to other queues by hand", count)
            answer = ACCEPTS
        elif reason in _WORN[kind]:
            answer = REJECTS if reason == _WORN[kind][0] else FAILS
        elif kind == records.DROPPED and reason in _UNKNOWN_DEATH:
            answer = REJECTS
        else:
            answer = HOLDS
            if kind == records.DROPPED and reason == records.DROPPED_PURGED:
                self._input(PURGE, (past.name, past.is_held(first)))
        self._answer(past, row, answer, 0)
        past.fates.end(first, count, row[TIME], fate_of(kind, reason))

    def _pending(self, row: Row) -> None:
        past = self._pasts.get(row[QUEUE])
        if past is not None and row[REASON] in _WORN[records.PENDING]:
            is_rejected = row[REASON] == records.DEAD_REJECTED
            self._answer(past, row, REJECTS if is_rejected else FAILS, 0)

    def _returned(self, row: Row) -> None:
        past = self._pasts.get(row[QUEUE])
        if past is None:
            return
        reason, flags = row[REASON], row[FLAGS]
        delay = max(0, row[OTHER] - row[TIME]) if row[KIND] == records.DEFERRED else 0
        answer = FAILS if flags & records.RETURNED_FAILED else RETURNS
        if flags & records.TO_TAIL:
            answer = REQUEUES
        elif delay:
            answer = DEFERS
        if reason not in (records.RETURNED_BY_CLIENT, records.RETURNED_BY_RELEASE):
            answer = HOLDS
            if not row[OWNER]:
                self._crash()
        if reason == records.RETURNED_BY_LOSS:
            self._closing(past, row, LOST)
        elif reason == records.RETURNED_BY_CLOSE:
            self._closing(past, row, CLOSED)
        self._answer(past, row, answer, delay)

    def _answer(self, past: Past, row: Row, answer: int, delay_ms: int) -> None:
        for given in past.take_back(row[FIRST], row[COUNT]):
            if answer == HOLDS:
                past.answer(given, FOREVER, self._order, HOLDS, 0, 0)
                continue
            last = self._last_ms.get(given.owner, 0)
            self._last_ms[given.owner] = row[TIME]
            work = row[TIME] - max(given.given_ms, last)
            past.answer(given, row[TIME], self._order, answer, delay_ms, work)
            seen = self._answered.setdefault(given.owner, [0, 0])
            place = (given.given_ms, given.first)
            seen[0] += 1
            seen[1] += place < self._latest.get(given.owner, (0, 0))
            self._latest[given.owner] = max(place, self._latest.get(given.owner, (0, 0)))

    # -- topology and consumers

    def _defined(self, row: Row) -> None:
        blob = self._blob(row)
        said = json.loads(blob)
        op = said["op"]
        if "vhost" not in said or op in ("subscription", "drop_subscription", "sink", "drop_sink"):
            return
        if op == "queue" and said["id"] not in self._names:
            place = said["vhost"], said["name"]
            again = self._declared.get(place, -1) + 1
            self._declared[place] = again
            name = self._names[said["id"]] = (*place, again)
            fates = self.recording.fates[name] = Fates(name)
            self._pasts[said["id"]] = Past(name, fates)
        self._input(DEFINE, blob)

    def _consumer(self, row: Row) -> None:
        owner, reason = row[OWNER], row[REASON]
        if reason == records.CONSUMER_ENDED:
            self._input(GO, (owner, CLOSED))
        if reason not in (records.CONSUMER_STARTED, records.CONSUMER_CREDIT):
            return
        terms = self._terms[owner] = terms_of(owner, json.loads(self._blob(row)))
        self._input(COME if reason == records.CONSUMER_STARTED else CREDIT, terms)

    def _closing(self, past: Past, row: Row, how: int) -> None:
        """Note how the consumers of this block that went have gone: what they held is in its rows,
        behind them."""
        inputs = self.recording.inputs
        at = len(inputs) - 1
        while at >= 0 and inputs[at][1] == self._order:
            time_ms, order, kind, said = inputs[at]
            if kind == GO and isinstance(said, tuple):
                inputs[at] = (time_ms, order, kind, (said[0], how))
            at -= 1

    def _crash(self) -> None:
        inputs = self.recording.inputs
        if not inputs or inputs[-1][2] != CRASH or inputs[-1][1] != self._order:
            self._input(CRASH, None)

    def _input(self, kind: int, said: object) -> None:
        self.recording.inputs.append((self._time_ms, self._order, kind, said))

    def _lack(self, what: str, count: int) -> None:
        lacks = self.recording.lacks
        lacks[what] = lacks.get(what, 0) + count

    def _blob(self, row: Row) -> bytes:
        start = self._block.header.at + row[AT]
        return self._block.data[start : start + row[SIZE]] if row[SIZE] else b""


def terms_of(consumer: int, said: dict[str, Any]) -> Terms:
    """Return the terms that a CONSUMER row gives."""
    window, shared = said["window"], said["shared"]
    return Terms(
        consumer, said["session"], said["vhost"], said["queue"], said["connection"],
        -1 if window is None else window, -1 if shared is None else shared, said["acknowledges"],
        said["exclusive"], said["priority"], said["timeout_ms"], said["on_timeout"],
    )  # fmt: skip


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
