"""Who publishes and consumes: connections, sessions, consumers, and what they hold.

A session is an AMQP 0-9-1 channel, an AMQP 1.0 session, an NSQ connection. Every message handed to
it gets the next *tag* of the session (the acquisition number of LC-2: AMQP 0-9-1's delivery tag);
tags are never reused, so a late settlement cannot hit a later delivery of the same message.

In flight is a deque of tag ranges. Settling in order shortens the first range; settling out of
order finds its range by bisection and marks a lazily made bitmap.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, final

from tallymark.engine.deadlines import Timed
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.filters import Filter
from tallymark.engine.message import Slice
from tallymark.engine.pace import Pace
from tallymark.engine.queue import Queue

UNLIMITED: Final = 1 << 62
MERGE_MS: Final = 20
"""Messages handed out within so long share an entry and its time: how late a time-out may be."""
CONSUMER_TIMEOUT_MS: Final = 30 * 60 * 1000
"""How long a delivery may stay unsettled where nobody says otherwise [LC-4]."""

ACCEPTED: Final = 1
"""Outcome: done with. [amqp-0.9.1 basic.ack]"""
REJECTED: Final = 2
"""Outcome: refused for good, a failed delivery. [amqp-0.9.1 basic.reject, requeue=false]"""
RETURNED: Final = 3
"""Outcome: given back, not counted as a failure. [amqp-1.0 §3.4.4 released]"""
FAILED: Final = 4
"""Outcome: given back, counted as a failure. [amqp-0.9.1 basic.reject, requeue=true]"""
DISCARDED: Final = 5
"""Outcome: refused for good, not counted as a failure [DL-5]. [basic.nack, requeue=false]"""
NACKED: Final = 6
"""Outcome: given back, counted as a failure where the queue reads it so [DL-5]. [amqp-0.9.1
basic.nack, requeue=true]"""

STOPS: Final = 0
"""A consumer that holds a message for too long is stopped [LC-4]."""
REQUEUES: Final = 1
"""What it holds for too long goes to the tail, and it goes on [NQ-14]."""
RELEASES: Final = 2
"""What it holds for too long returns to its old position, and it gets nothing more until it has
settled that in vain [FC-18, LC-4]."""


@final
class Connection:
    """One client connection, as far as the engine cares."""

    __slots__ = (
        "allowance",
        "exclusive_queues",
        "gated",
        "handle",
        "holds_output",
        "id",
        "name",
        "paused",
        "room",
        "sessions",
        "user",
        "vhost",
    )

    def __init__(self, id: int, vhost: str, user: str, name: str) -> None:
        self.id = id
        self.vhost = vhost
        self.user = user
        self.name = name
        self.paused = False
        """Its socket takes no more: nothing is taken from a queue for it [SC-D6]."""
        self.gated = False
        """Its output waits for the disk: as if it were paused."""
        self.holds_output = False
        """Whether its owner holds a delivery back, and what follows it, that `waits` for the
        disk."""
        self.allowance = 0
        """Bytes that may be handed to it in a turn, above 0: the message that reaches it is the
        last. The owner changes it between turns, of those in Dispatcher.spent only."""
        self.room = 0
        """What is left of that in this turn."""
        self.handle: object = None
        """The bridge's own."""
        self.sessions: list[Session] = []
        self.exclusive_queues: list[Queue] = []


@final
class InFlight:
    """Tags first..last of one session: one slice, one consumer."""

    __slots__ = (
        "consumer",
        "done",
        "first",
        "given_ms",
        "is_late",
        "last",
        "left",
        "queue",
        "since_ms",
        "slice",
        "void",
    )

    def __init__(
        self,
        first: int,
        last: int,
        slice: Slice,
        queue: Queue,
        consumer: Consumer | None,
        since_ms: int,
    ) -> None:
        self.first = first
        self.last = last
        self.slice = slice
        """Its messages are those of the tags, from first on."""
        self.queue = queue
        self.consumer = consumer
        """None where the client asked for the message itself [amqp-0.9.1 basic.get]."""
        self.given_ms = since_ms
        """When the first of them was handed out; the others within MERGE_MS after it."""
        self.since_ms = since_ms
        """From when their time counts: later than given_ms where they were touched [NQ-13]."""
        self.void = False
        """Their queue has them no longer in this session's hands: settling them does nothing."""
        self.is_late = False
        """They are void for having taken too long."""
        self.done: bytearray | None = None
        """One byte per tag from `first`, 1 = settled; None while none was out of order."""
        self.left = last - first + 1

    def cut(self, low: int, high: int) -> InFlight | None:
        """Tags low..high as an entry of its own; None where none of them is outstanding."""
        stretches = self.pieces(low, high) if low <= high else []
        if not stretches:
            return None
        low, high = stretches[0][0], stretches[-1][1]
        part = InFlight(low, high, self.part(low, high), self.queue, self.consumer, self.since_ms)
        part.given_ms = self.given_ms
        part.void = self.void
        part.is_late = self.is_late
        if self.done is not None:
            part.done = self.done[low - self.first : high - self.first + 1]
            part.left = part.done.count(0)
        return part

    def pieces(self, low: int, high: int) -> list[tuple[int, int]]:
        """The unsettled stretches (first tag, last tag) among low..high, ascending."""
        done = self.done
        if done is None:
            return [(low, high)]
        found = []
        end = high - self.first + 1
        at = done.find(0, low - self.first, end)
        while at >= 0:
            stop = done.find(1, at, end)
            if stop < 0:
                stop = end
            found.append((self.first + at, self.first + stop - 1))
            at = done.find(0, stop, end)
        return found

    def part(self, low: int, high: int) -> Slice:
        """The messages of tags low..high as a slice of their own."""
        whole = self.slice
        return whole.part(low - self.first, high + 1 - self.first)


@final
class Consumer:
    """Someone who is sent a queue's messages as long as credit lasts [LC-3]."""

    __slots__ = (
        "active",
        "browses",
        "by_link",
        "cursors",
        "delivered",
        "draining",
        "exclusive",
        "filter",
        "handle",
        "id",
        "in_line",
        "last_ms",
        "limit",
        "no_ack",
        "on_timeout",
        "overdue",
        "pace",
        "priority",
        "queue",
        "session",
        "share",
        "since_ms",
        "tag",
        "timeout_ms",
        "told",
        "unacked",
    )

    def __init__(
        self,
        id: int,
        session: Session,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        limit: int,
        timeout_ms: int,
        since_ms: int = 0,
    ) -> None:
        self.id = id
        """Broker-wide; the owner in the ledger."""
        self.session = session
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.limit = limit
        """How many unsettled messages it may hold [amqp-0.9.1 basic.qos]; `by_link`: how many it
        may still be sent [amqp-1.0 §2.6.7]."""
        self.timeout_ms = timeout_ms
        """How long it may hold one; 0: without limit, OFF: what the queue says [LC-4]."""
        self.on_timeout = STOPS
        """What happens when it holds a message for too long: STOPS, REQUEUES or RELEASES."""
        self.overdue = 0
        """How many messages were released from it and it has not settled since."""
        self.by_link = False
        """Its limit is spent on sending and granted anew by the client [LC-3]."""
        self.draining = False
        """What is left of its limit is void once nothing is there for it now [FC-5]."""
        self.browses = False
        """It is shown copies: each ready message once, and takes none."""
        self.filter: Filter | None = None
        """It wants only messages that match; None: all."""
        self.cursors: list[int] = []
        """Where it browses or filters: per lane, the place from which it has not looked yet. Empty:
        it takes what is at the head."""
        self.unacked = 0
        self.in_line = False
        """Whether it waits, in its session's line, for what its consumers share."""
        self.share = 0
        """What is reserved for it of the limit that its session's consumers share: for one turn, or
        as long as it waits for the disk's word."""
        self.delivered = 0
        """Messages it was sent."""
        self.last_ms = 0
        """When it was last sent something; engine time; 0: never."""
        self.since_ms = since_ms
        """When it began."""
        self.pace = Pace(since_ms)
        """Of what it settled, whatever it said of it; where nothing is to be settled, of what it
        was sent."""
        self.told = 0
        """`progress` when the ledger was told of it last."""
        self.active = True
        self.handle: object = None
        """The bridge's own."""

    def wanted(self) -> int:
        """How many messages it is willing and able to take, as soon as the broker may send them.
        One that browses or filters may want none of those that are there."""
        session = self.session
        if not session.flow or session.connection.paused or self.cursors:
            return 0
        if self.by_link:
            return 0 if self.overdue else self.limit
        return max(0, self._left())

    @property
    def progress(self) -> int:
        """Greater whenever it was sent or settled something."""
        return self.delivered + self.pace.done

    def sent(self, n: int, now_ms: int) -> None:
        """It was sent n messages."""
        self.delivered += n
        self.last_ms = now_ms
        if self.no_ack:
            self.pace.add(n, now_ms)
        if self.by_link:
            self.limit -= n
        elif self.share and not self.no_ack:
            used = min(n, self.share)
            self.share -= used
            self.session.reserved -= used

    def credit(self) -> int:
        """How many messages from the queue's head may be sent now."""
        return 0 if self.cursors else self.room()

    def room(self) -> int:
        """How many messages may be sent now."""
        session = self.session
        connection = session.connection
        if not session.flow or connection.paused or connection.gated or connection.room <= 0:
            return 0
        if self.by_link:
            return 0 if self.overdue else self.limit
        if session.limit == UNLIMITED:
            return UNLIMITED if self.no_ack else self.limit - self.unacked
        return self._left()

    def _left(self) -> int:
        """What its own limit and the one it shares leave it. Without acknowledgements it uses up
        neither, and gets nothing while the shared one is full [rabbitmq basic.qos global]."""
        session = self.session
        own = UNLIMITED if self.no_ack else self.limit - self.unacked
        if session.limit == UNLIMITED:
            return own
        shared = session.left_for(self)
        return own if own < shared or (self.no_ack and shared > 0) else shared

    def is_waiting(self) -> bool:
        """Whether its queue has something, and its own limit lets it have more [LC-3]."""
        if not self.active or not self.queue.ready or self.by_link:
            return False
        return self.no_ack or self.limit > self.unacked


def timeout_of(consumer: Consumer | None, queue: Queue) -> int:
    """How long a delivery may stay unsettled, milliseconds; 0: without limit [LC-4]."""
    if consumer is not None and consumer.timeout_ms >= 0:
        return consumer.timeout_ms
    given = queue.settings.consumer_timeout_ms
    return given if given >= 0 else CONSUMER_TIMEOUT_MS


@final
class Session(Timed):
    """Publishes, consumes and settles, with numbers of its own for both directions."""

    __slots__ = (
        "closed",
        "confirm_asked",
        "confirming",
        "connection",
        "consumer_limit",
        "consumers",
        "flow",
        "got",
        "handle",
        "id",
        "inflight",
        "is_offered",
        "limit",
        "line",
        "next_tag",
        "published",
        "reserved",
        "unacked",
    )

    def __init__(self, id: int, connection: Connection) -> None:
        super().__init__()
        self.id = id
        self.connection = connection
        self.handle: object = None
        """The bridge's own."""
        self.closed = False
        self.flow = True
        """False: the client wants no deliveries for now [TX-10]."""
        self.confirming = False
        self.published = 0
        """Publishes since confirms were asked for; the number of the last one."""
        self.confirm_asked = 0
        """Up to which publish a confirm has been requested."""
        self.consumers: dict[str, Consumer] = {}
        self.limit = UNLIMITED
        """Unsettled messages all consumers together may hold. [basic.qos, global=true]"""
        self.consumer_limit = UNLIMITED
        """Limit that consumers made from now on get. [basic.qos, global=false]"""
        self.line: OrderedDict[int, Consumer] = OrderedDict()
        """By id, in the order of their turns: consumers for which nothing of that limit was left,
        and whose queues have something, as far as was seen."""
        self.reserved = 0
        """How much of that limit is reserved for single consumers."""
        self.is_offered = False
        """Whether what is free of that limit is to be shared out in the coming turn."""
        self.next_tag = 1
        self.inflight: deque[InFlight] = deque()
        self.unacked = 0
        self.got = 0
        """Of the unacked: those that the client asked for itself, which no prefetch limits
        [amqp-0.9.1 basic.get]."""

    def free(self) -> int:
        """How much of the limit that its consumers share is neither used nor reserved."""
        return self.limit - self.unacked + self.got - self.reserved

    def left_for(self, consumer: Consumer) -> int:
        """How much of that limit one consumer may use now: while others wait in line, what is
        reserved for it."""
        return consumer.share if self.line else self.free() + consumer.share

    def step_in(self, consumer: Consumer) -> None:
        """The consumer waits in line, behind the others."""
        consumer.in_line = True
        self.line[consumer.id] = consumer

    def step_out(self, consumer: Consumer) -> None:
        """The consumer waits in line no longer."""
        if consumer.in_line:
            consumer.in_line = False
            del self.line[consumer.id]

    def give_share_back(self, consumer: Consumer) -> None:
        """What was reserved for the consumer is free again."""
        self.reserved -= consumer.share
        consumer.share = 0

    def take_tag(self) -> int:
        """A tag for a message that comes from no queue: nothing is held under it."""
        tag = self.next_tag
        self.next_tag = tag + 1
        return tag

    def held(self, queue: Queue, into: list[Slice]) -> int:
        """Append what it holds of a queue, unsettled; returns how many messages that is."""
        count = 0
        for entry in self.inflight:
            if entry.queue is queue and not entry.void:
                count += entry.left
                for low, high in entry.pieces(entry.first, entry.last):
                    into.append(entry.part(low, high))
        return count

    def find(self, tag: int) -> int:
        """Index of the in-flight range that holds the tag.

        Raises:
            PreconditionFailed: the tag was never given out or is settled already.
        """
        inflight = self.inflight
        low = 0
        high = len(inflight)
        while low < high:
            middle = (low + high) >> 1
            if inflight[middle].last < tag:
                low = middle + 1
            else:
                high = middle
        if low < len(inflight):
            entry = inflight[low]
            if entry.first <= tag and (entry.done is None or not entry.done[tag - entry.first]):
                return low
        raise PreconditionFailed(f"unknown delivery tag {tag}")

    def forget(self, at: int, low: int, high: int) -> None:
        """Tags low..high of the range at index `at` (all unsettled) are settled."""
        inflight = self.inflight
        entry = inflight[at]
        entry.left -= high - low + 1
        if entry.left == 0:
            del inflight[at]
            return
        if low == entry.first:
            self.shorten(entry, high + 1 - entry.first)
            return
        if entry.done is None:
            if high == entry.last:
                entry.last = low - 1
                return
            entry.done = bytearray(entry.last - entry.first + 1)
        start = low - entry.first
        size = high - low + 1
        entry.done[start : start + size] = b"\x01" * size

    def isolate(self, at: int, tag: int) -> InFlight:
        """An entry of its own for one outstanding tag of the range at index `at`."""
        entry = self.inflight[at]
        if entry.first == entry.last:
            return entry
        parts = [
            part
            for part in (
                entry.cut(entry.first, tag - 1),
                entry.cut(tag, tag),
                entry.cut(tag + 1, entry.last),
            )
            if part is not None
        ]
        del self.inflight[at]
        found = entry
        for part in reversed(parts):
            self.inflight.insert(at, part)
            if part.first == tag:
                found = part
        return found

    def shorten(self, entry: InFlight, n: int) -> None:
        """Drop the first n tags of a range, and settled ones right behind them; some are left."""
        done = entry.done
        if done is not None:
            n = done.find(0, n)
            del done[:n]
        entry.first += n
        entry.slice = entry.slice.part(n, len(entry.slice))
