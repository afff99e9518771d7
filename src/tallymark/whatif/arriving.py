"""Arrivals: payloads that were published, as the ledger's rows tell of them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Sequence
from typing import Final

from tallymark.stored import layout, records
from tallymark.whatif.beginning import Initial
from tallymark.whatif.past import Past
from tallymark.whatif.recording import Publishes
from tallymark.whatif.rows import (
    COUNT,
    FIRST,
    FLAGS,
    FORMATS,
    KIND,
    LO,
    OWNER,
    PAYLOAD,
    QUEUE,
    REASON,
    TIME,
    Here,
    Row,
)  # fmt: skip

_MEANING: Final = (records.ENTERED, records.SINK_STAGED)
"""Kinds of rows that say what became of a payload that was published."""


class Arrivals:
    """Reads what was published into the columns of a recording."""

    def __init__(self, made: Publishes, here: Here, headers: Collection[str] = ()) -> None:
        self._made = made
        self._here = here
        self._payloads: dict[int, tuple[int, int]] = {}
        """First message id, and index in the sizes, by position."""
        self._places: dict[tuple[bytes, bytes], int] = {}
        self._known: dict[bytes, int] = {}
        self._vhosts: dict[str, str] = {}
        """Virtual host by the exchange that was published to last there."""
        self._fresh: dict[int, Row] = {}
        """Payloads of this block that a later row of it says the meaning of."""
        self._meant: set[int] = set()
        self._staged: dict[int, tuple[Row, list[int]]] = {}
        """Payloads that a sink may publish later, and their routes."""
        self._seen: dict[int, list[str]] = {}
        """Publisher-given ids of messages that are about to enter a queue, the next one last."""
        self._last_seen: dict[int, str] = {}
        self.deduplicating: set[int] = set()
        """Queues that deduplicate by an argument of their own."""
        self.header_names = set(headers)
        """Headers that bindings ask for, or a change does."""
        self.without_headers = 0
        """Messages whose headers were asked for and are not there."""
        self._tables: dict[str, dict[str, object]] = {}
        """Tables of headers, equal ones once."""
        self._anonymous = -1
        """The next id for a message whose id is not stored."""

    def begin(self, rows: Sequence[Row]) -> None:
        """Begin a block."""
        self._seen.clear()
        self._fresh.clear()
        self._meant = {row[PAYLOAD] for row in rows if row[KIND] in _MEANING}

    def stage(self, row: Row) -> None:
        """Note that a sink staged a payload of this block."""
        staged = self._fresh.pop(row[PAYLOAD], None)
        if staged is not None:
            self._staged[row[PAYLOAD]] = (staged, self._own_places(staged))

    def enter(self, past: Past, row: Row) -> tuple[int, array[int]]:
        """Add what a row says that was published; return the first message id and the sizes."""
        count = row[COUNT]
        first_id, at = self._payloads[row[PAYLOAD]]
        first_id += row[LO]
        at += row[LO]
        if not row[OWNER]:
            fresh, own = self._fresh.pop(row[PAYLOAD], None), None
            if fresh is None:
                fresh, own = self._staged.pop(row[PAYLOAD], (None, None))
            if fresh is not None:
                self._publish(fresh, past.name[0], self._annotations(self._here.blob(row)), own)
            if row[REASON]:
                self._prioritise(row)
            self._name(row)
        return first_id, self._made.sizes[at : at + count]

    def has(self, row: Row) -> bool:
        """Return whether the bytes of a row's messages are in the ledger that is read."""
        return row[PAYLOAD] in self._payloads

    def enter_initial(
        self, past: Past, row: Row, initial: Sequence[Initial]
    ) -> tuple[int, array[int]]:
        """Add messages that were there when the ledger begins, as enter does."""
        first_id = self._anonymous - len(initial) + 1
        self._anonymous -= len(initial)
        lo = 0
        for hi in range(1, len(initial) + 1):
            one = initial[lo]
            alike = (one.arrived_ms, one.persistent)
            if hi < len(initial) and (initial[hi].arrived_ms, initial[hi].persistent) == alike:
                continue
            some = initial[lo:hi]
            priorities = {i: each.priority for i, each in enumerate(some) if each.priority}
            if priorities:
                self._made.priorities[first_id + lo] = priorities
            arrived = one.arrived_ms if one.arrived_ms >= 0 else row[TIME]
            sizes = array("I", [each.size for each in some])
            self._publish_to(past, first_id + lo, sizes, arrived, one.persistent)
            lo = hi
        return first_id, array("I", [one.size for one in initial])

    def enter_unstored(self, past: Past, row: Row) -> tuple[int, array[int]]:
        """Add messages of which only their number is stored, as enter does."""
        first_id = self._anonymous - row[COUNT] + 1
        self._anonymous -= row[COUNT]
        self._publish_unstored(past, first_id, row)
        return first_id, array("I", bytes(4 * row[COUNT]))

    def payload(self, row: Row) -> None:
        """Read a PAYLOAD row."""
        publishes = self._made
        block = self._here.block
        if row[PAYLOAD] in self._meant:
            self._fresh[row[PAYLOAD]] = row
        self._payloads[row[PAYLOAD]] = (row[FIRST], len(publishes.sizes))
        sizes = block.sizes(row)
        bodies = block.bodies(row)
        publishes.sizes.extend(sizes)
        publishes.bodies.extend(sizes if bodies is None else bodies)
        if self.header_names:
            self._read_headers(row)
        is_lone = row[PAYLOAD] not in self._fresh and not row[FLAGS] & layout.RELOCATED
        if is_lone and row[FLAGS] & layout.PERSISTENT:
            self._publish(row, "", -1)  # no queue took it

    def _read_headers(self, row: Row) -> None:
        """Note the headers that messages are routed by."""
        found = self._here.block.headers(row, frozenset(self.header_names))
        if found is None:
            self.without_headers += row[COUNT] if row[REASON] in FORMATS else 0
            return
        known = {}
        for i, said in enumerate(found):
            if said:
                known[i] = self._tables.setdefault(repr(said), said)
        if known:
            self._made.headers[row[FIRST]] = known

    def _publish(self, row: Row, vhost: str, known: int, own: list[int] | None = None) -> None:
        """Add a payload to the publishes, as its PAYLOAD row has it. own: its routes, where that
        row is of another block."""
        made = self._made
        first_id, at = self._payloads[row[PAYLOAD]]
        own = own or self._own_places(row)
        place = own[0] if len(set(own)) == 1 else -1
        exchange = made.places[own[0]][0]
        if vhost:
            self._vhosts[exchange] = vhost
        if place < 0:
            made.own_places[len(made)] = own
        made.time_ms.append(self._here.time_ms)
        made.order.append(self._here.order)
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
        return [self._place(exchange, key) for exchange, key in self._here.block.routes(row)]

    def _place(self, exchange: bytes, key: bytes) -> int:
        found = self._places.get((exchange, key))
        if found is None:
            places = self._made.places
            found = self._places[exchange, key] = len(places)
            places.append((_text(exchange), _text(key)))
        return found

    def _annotations(self, blob: bytes) -> int:
        if not blob:
            return -1
        found = self._known.get(blob)
        if found is None:
            found = self._known[blob] = len(self._made.annotations)
            self._made.annotations.append(blob)
        return found

    def _prioritise(self, row: Row) -> None:
        """Note the priority of messages, which rows of queues with priorities have."""
        made = self._made
        first_id, _ = self._payloads[row[PAYLOAD]]
        known = made.priorities.setdefault(first_id, {})
        for i in range(row[LO], row[LO] + row[COUNT]):
            known[i] = max(known.get(i, 0), row[REASON])

    def ids_seen(self, row: Row) -> None:
        """Read a SEEN row."""
        self._seen[row[QUEUE]] = json.loads(self._here.blob(row))[::-1]

    def _name(self, row: Row) -> None:
        """Note the ids that messages have, which a queue that deduplicates took or refused. Of a
        refused one no row says which: the last that the queue took."""
        queue, ids = row[QUEUE], self._seen.get(row[QUEUE])
        refused = self._is_refused(row)
        if not ids and not refused:
            return
        first_id, _ = self._payloads[row[PAYLOAD]]
        known = self._made.ids.setdefault(first_id, {})
        for i in range(row[LO], row[LO] + row[COUNT]):
            if ids and not refused:
                self._last_seen[queue] = ids.pop()
            known[i] = self._last_seen.get(queue, "")

    def _is_refused(self, row: Row) -> bool:
        """Return whether messages that entered were dropped at once as repeated."""
        after = self._here.next
        return (
            after is not None
            and (after[KIND], after[REASON]) == (records.DROPPED, records.DROPPED_DUPLICATE)
            and (after[QUEUE], after[FIRST]) == (row[QUEUE], row[FIRST])
        )

    def _publish_unstored(self, past: Past, first_id: int, row: Row) -> None:
        """Add messages whose bytes, and with them their routes, are not stored: they are published
        to the queue that they entered."""
        made = self._made
        if self._is_refused(row):
            made.ids[first_id] = dict.fromkeys(
                range(row[COUNT]), self._last_seen.get(row[QUEUE], "")
            )
        elif row[QUEUE] in self.deduplicating:
            known = made.ids[first_id] = {i: f"{first_id + i}" for i in range(row[COUNT])}
            self._last_seen[row[QUEUE]] = known[row[COUNT] - 1]
        if row[REASON]:
            made.priorities[first_id] = dict.fromkeys(range(row[COUNT]), row[REASON])
        self._publish_to(past, first_id, array("I", bytes(4 * row[COUNT])), row[TIME], False)

    def _publish_to(
        self, past: Past, first_id: int, sizes: array[int], arrived_ms: int, persistent: bool
    ) -> None:
        """Add messages that are published to a queue."""
        made = self._made
        start = len(made.sizes)
        made.sizes.extend(sizes)
        made.bodies.extend(sizes)
        made.time_ms.append(self._here.time_ms)
        made.order.append(self._here.order)
        made.first_id.append(first_id)
        made.arrived_ms.append(arrived_ms)
        made.vhost.append(past.name[0])
        made.place.append(self._place(b"", past.name[1].encode()))
        made.known.append(-1)
        made.persistent.append(persistent)
        made.start.append(start)
        made.count.append(len(sizes))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
