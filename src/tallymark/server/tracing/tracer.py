"""Following traced messages: from the rows of the journal and the deliveries to spans.

The rows of a block say all that happens to stored messages, for every protocol alike. So a turn
asks for nothing but what it has made anyway, and a broker that traces nothing pays for one
comparison in a turn. A message is followed if its publisher's trace is recorded (the flag
`sampled` of its `traceparent`), and it enters a queue with its bytes stored:

    EXCHANGE publish        from the turn that took it until it is on disk; child of the publisher's
      QUEUE deliver         from a delivery until it is settled or given back; one for each
      QUEUE dead-letter     a death; the deliveries of the letter are its children, linked to the
                            publish

At most MOST messages are followed at a time. More are counted, and not followed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tallymark.engine.effects import Deliver
from tallymark.engine.ledger import Ledger
from tallymark.engine.message import Format, Payload
from tallymark.engine.queue import Queue
from tallymark.engine.record import Record
from tallymark.server.tracing.span import HEADER, Context, Span, context_of
from tallymark.stored import records
from tallymark.units import Position

MOST: Final = 10_000
"""Messages that are followed at a time, and deliveries that wait for their block."""
RAW_HEADER: Final = HEADER.encode()
MOVED: Final = "moved"
_ENDS: Final = (records.SETTLED, records.DEAD_LETTERED, records.DROPPED)
"""Kinds of rows behind which a message is not in its queue any more."""
_BACK: Final = (records.RETURNED, records.DEFERRED, records.PENDING)
"""Kinds of rows that end a delivery, while the message stays."""
_OUTCOMES: Final = {
    records.SETTLED: "accepted",
    records.DEAD_LETTERED: "dead-lettered",
    records.DROPPED: "dropped",
    records.RETURNED: "returned",
    records.DEFERRED: "deferred",
    records.PENDING: "dead-lettered",
}


class Handed(NamedTuple):
    """Messages that were handed to a consumer."""

    at_ns: int
    queue: int
    first: int
    size: int
    number: int
    """Number of this delivery; 1: the messages were never delivered before."""
    consumer: str
    after: int
    """Number of rows of the coming block that were there before."""


class Followed:
    """A message in a queue."""

    __slots__ = ("consumer", "context", "deliveries", "delivered_ns", "link_id", "reason")

    def __init__(self, context: Context, link_id: int = 0) -> None:
        self.context = context
        """Trace, and span that its deliveries are children of."""
        self.link_id = link_id
        self.deliveries = 0
        """Number of the newest delivery."""
        self.delivered_ns = 0
        """Time at which it was handed out; 0: it is not."""
        self.consumer = ""
        self.reason = ""
        """Reason of its death, as soon as it has died."""

    def hand_out(self, number: int, at_ns: int, consumer: str) -> None:
        """Note a delivery. A row and an effect say it, in whichever order."""
        if number > self.deliveries:
            self.deliveries = number
            self.delivered_ns = at_ns
        if consumer and number == self.deliveries:
            self.consumer = consumer


class Tracer:
    """The traced messages of one node. Everything here happens on the loop's thread."""

    def __init__(
        self,
        queues: Mapping[int, Queue],
        formats: Mapping[int, Format],
        ledger: Ledger,
        emit: Callable[[Span], None],
        wall_ns: Callable[[], int],
    ) -> None:
        """emit: function that takes a span that is over. wall_ns: the wall clock."""
        self._ledger = ledger
        self._queues = queues
        self._formats = formats
        self._emit = emit
        self._wall_ns = wall_ns
        self._followed: dict[int, dict[int, Followed]] = {}
        """Messages by queue and sequence."""
        self._publishing: deque[tuple[Position, list[Span]]] = deque()
        """Blocks that are not on disk yet, with the publishes in them."""
        self._delivered: list[Handed] = []
        """Deliveries since the last block: a message may be handed out before the block in which it
        enters."""
        self.count = 0
        """Number of messages that are followed."""
        self.passed_over = 0
        """Number of traced messages and deliveries that were one too many."""

    # -- what the turn says

    def delivered(self, effect: Deliver) -> None:
        """Note that messages are handed to a consumer."""
        if len(self._delivered) < MOST:
            piece, consumer = effect.slice, effect.consumer
            self._delivered.append(
                Handed(
                    self._wall_ns(), consumer.queue.id, piece.first, len(piece),
                    piece.acquired + 1, consumer.tag, len(self._ledger.rows),
                )
            )  # fmt: skip
        else:
            self.passed_over += 1

    def committed(self, rows: list[Record], position: Position) -> None:
        """Look at the rows of a block that ends at `position`, and at the deliveries before it."""
        now = self._wall_ns()
        published: dict[tuple[int, int], Span] = {}
        if self.count:
            self._note_deaths(rows)
        for row in rows:
            if row.kind == records.ENTERED and row.payload is not None:
                self._enter(row, row.payload, published, now)
        if published:
            self._publishing.append((position, [*published.values()]))
        delivered, self._delivered = self._delivered, []
        if not self.count:
            return
        at = 0
        for before, row in enumerate(rows):
            while at < len(delivered) and delivered[at].after <= before:
                self._hand_out(delivered[at])
                at += 1
            if row.kind in _OUTCOMES:
                self._end(row, now)
            elif row.kind == records.ACQUIRED:
                for _, one in self._of(row.queue, row.first, row.count):
                    one.hand_out(row.other + 1, now, "")
        for handed in delivered[at:]:
            self._hand_out(handed)

    def synced(self, position: Position) -> None:
        """End the publishes that are on disk now."""
        publishing = self._publishing
        while publishing and publishing[0][0] <= position:
            for span in publishing.popleft()[1]:
                self._emit(span._replace(end_ns=self._wall_ns()))

    # -- messages

    def _of(self, queue: int, first: int, count: int) -> list[tuple[int, Followed]]:
        """Return the followed messages of a range, with their sequences."""
        mine = self._followed.get(queue)
        if not mine:
            return []
        end = first + count
        if count < len(mine):
            return [(at, mine[at]) for at in range(first, end) if at in mine]
        return [(at, one) for at, one in mine.items() if first <= at < end]

    def _note_deaths(self, rows: Iterable[Record]) -> None:
        for row in rows:
            if row.kind == records.DEAD_LETTERED:
                for _, one in self._of(row.queue, row.first, row.count):
                    one.reason = records.DEATHS[row.reason]

    def _enter(
        self,
        row: Record,
        payload: Payload,
        published: dict[tuple[int, int], Span],
        now: int,
    ) -> None:
        if row.owner:
            self._enter_from(row, now)
            return
        raw = payload.raw
        if raw is None or RAW_HEADER not in raw:
            return
        cuts, reads = payload.cuts, self._formats[payload.format]
        for at in range(row.lo, row.lo + row.count):
            if raw.find(RAW_HEADER, cuts[at], cuts[at + 1]) < 0:
                continue
            span = published.get((id(payload), at))
            if span is None:
                context = context_of(reads.headers(payload, at).get(HEADER))
                if context is None:
                    continue
                route = payload.route if payload.routes is None else payload.routes[at]
                span = Span(
                    f"{route.exchange or '(default)'} publish", context.trace_id, _new_id(),
                    context.span_id, now, now,
                    {
                        "messaging.operation.name": "publish",
                        "messaging.destination.name": route.exchange,
                        "messaging.rabbitmq.destination.routing_key": route.key,
                    },
                )  # fmt: skip
                published[id(payload), at] = span
            self._follow(
                row.queue, row.first + at - row.lo, Followed(Context(span.trace_id, span.span_id))
            )

    def _enter_from(self, row: Record, now: int) -> None:
        """Follow messages on into the queue that they came to from another one."""
        source = self._followed.get(row.owner)
        if not source:
            return
        for at in range(row.count):
            before = source.get(row.other + at)
            if before is None:
                continue
            word = "dead-letter" if before.reason else "move"
            span = Span(
                f"{self._name(row.owner)} {word}", before.context.trace_id, _new_id(),
                before.context.span_id, now, now,
                {
                    "messaging.operation.name": word,
                    "messaging.destination.name": self._name(row.queue),
                    "tallymark.source": self._name(row.owner),
                    "tallymark.reason": before.reason or MOVED,
                },
            )  # fmt: skip
            self._emit(span)
            follower = Followed(Context(span.trace_id, span.span_id), before.context.span_id)
            self._follow(row.queue, row.first + at, follower)

    def _follow(self, queue: int, sequence: int, one: Followed) -> None:
        """Follow a message in a queue. In a stream its readers leave no rows, and it would be
        followed for as long as the stream keeps it."""
        found = self._queues.get(queue)
        if found is not None and found.settings.is_stream:
            return
        if self.count >= MOST:
            self.passed_over += 1
            return
        self.count += 1
        self._followed.setdefault(queue, {})[sequence] = one

    def _hand_out(self, handed: Handed) -> None:
        for _, one in self._of(handed.queue, handed.first, handed.size):
            one.hand_out(handed.number, handed.at_ns, handed.consumer)

    def _end(self, row: Record, now: int) -> None:
        for sequence, one in self._of(row.queue, row.first, row.count):
            if one.delivered_ns or row.kind == records.SETTLED:
                name = self._name(row.queue)
                attributes: dict[str, str | int] = {
                    "messaging.operation.name": "deliver",
                    "messaging.destination.name": name,
                    "messaging.consumer.group.name": one.consumer,
                    "tallymark.sequence": sequence,
                    "tallymark.delivery": max(one.deliveries, 1),
                    "tallymark.outcome": _OUTCOMES[row.kind],
                }
                self._emit(
                    Span(
                        f"{name} deliver", one.context.trace_id, _new_id(), one.context.span_id,
                        one.delivered_ns or now, now, attributes, one.link_id,
                    )
                )  # fmt: skip
                one.delivered_ns = 0
            if row.kind in _ENDS:
                self._forget(row.queue, sequence)

    def _forget(self, queue: int, sequence: int) -> None:
        mine = self._followed[queue]
        del mine[sequence]
        self.count -= 1
        if not mine:
            del self._followed[queue]

    def _name(self, queue: int) -> str:
        found = self._queues.get(queue)
        return f"queue {queue}" if found is None else found.name


def _new_id() -> int:
    """Return an id that no other span has."""
    return random.getrandbits(64) or 1
