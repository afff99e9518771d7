"""Clients as the engine sees them: connections, their sessions, the consumers of these, and the
messages that they hold.

A session is an AMQP 0-9-1 channel, an AMQP 1.0 session, an NSQ connection. Every message handed to
it gets the next *tag* of the session (the acquisition number of LC-2: AMQP 0-9-1's delivery tag);
tags are never reused, so a late settlement cannot hit a later delivery of the same message. What it
holds unsettled is in ranges of tags.

A consumer is given as many messages as it has *credit* for [LC-3]: what is left of its own limit
and of the limit that its session's consumers share [amqp-0.9.1 basic.qos]. Consumers for which
nothing is left of a shared limit stand in the session's *line*: what becomes free is given to them
in turn (delivery.py).

All of these know each other, so they are in one file. What is done with a session's ranges is in
inflight.py, what is done with a queue's consumers in queue_consumers.py.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, final

from tallymark.engine.clock import Timed
from tallymark.engine.message import Filter, Slice
from tallymark.engine.queue import Queue, QueueConsumer
from tallymark.engine.quotas import Pace
from tallymark.units import UNLIMITED, EngineMs, Ms, PublishNumber, Tag

STOPS: Final = 0
"""Time-out action: stop a consumer that holds a message for too long [LC-4]."""
REQUEUES: Final = 1
"""Time-out action: requeue the overdue messages at the tail; the consumer continues [NQ-14]."""
RELEASES: Final = 2
"""Time-out action: return the overdue messages to their old position. The consumer gets nothing
more until it has settled them, which then has no effect [FC-18, LC-4]."""
NOBODY: Final = 0
"""Id of a connection that is no client's: it owns nothing and can be told nothing."""


@final
class Connection:
    """One client connection."""

    def __init__(self, id: int, vhost: str, user: str, name: str) -> None:
        self.id = id
        self.vhost = vhost
        self.user = user
        self.name = name
        self.paused = False
        """True while the socket accepts no more output: no message is taken from a queue for this
        connection [SC-D6]."""
        self.gated = False
        """True while the connection's output waits for the disk; deliveries stop as if it were
        paused."""
        self.holds_output = False
        """True while the connection's owner delays a delivery that waits for the disk, and all
        output behind it."""
        self.allowance = 0
        """Bytes that may be delivered to the connection in a turn, above 0. The message that
        reaches the limit is the last one. The owner changes it between turns, for connections in
        Agenda.spent only."""
        self.room = 0
        """Bytes of the allowance that are unused in this turn."""
        self.handle: object = None
        """Object of the bridge; the engine only passes it through."""
        self.sessions: list[Session] = []
        self.exclusive_queues: dict[int, Queue] = {}
        """Queues that only this connection may use, by id."""


@final
class InFlight:
    """A range of messages in flight: tags first..last of one session, of one slice and one
    consumer."""

    __slots__ = (
        "consumer", "done", "first", "given_ms", "is_late", "last", "left", "queue", "since_ms",
        "slice", "void",
    )  # fmt: skip

    def __init__(
        self,
        first: Tag,
        last: Tag,
        slice: Slice,
        queue: Queue,
        consumer: Consumer | None,
        since_ms: EngineMs,
    ) -> None:
        self.first = first
        self.last = last
        self.slice = slice
        """Messages of the tags, in order, beginning with that of `first`."""
        self.queue = queue
        self.consumer = consumer
        """Consumer that received the messages; None for messages fetched by the client
        [amqp-0.9.1 basic.get]."""
        self.given_ms = since_ms
        """Time at which the first message was delivered, engine time, ms. The others followed
        within MERGE_MS."""
        self.since_ms = since_ms
        """Start of the consumer timeout, engine time, ms. Later than given_ms if the messages were
        touched [NQ-13]."""
        self.void = False
        """True if the queue has taken the messages back from this session, or they have ended with
        it: settling them has no effect."""
        self.is_late = False
        """True if the messages are void because they exceeded the consumer timeout."""
        self.done: bytearray | None = None
        """One byte per tag from `first`, 1 = settled; None while no tag was settled out of
        order."""
        self.left = last - first + 1

    def cut(self, low: Tag, high: Tag) -> InFlight | None:
        """Return tags low..high as a range of their own; None if none of them is unsettled."""
        if low > high:
            return None
        if self.done is not None:
            at, end = low - self.first, high - self.first + 1
            begin = self.done.find(0, at, end)
            if begin < 0:
                return None
            low, high = Tag(self.first + begin), Tag(self.first + self.done.rfind(0, begin, end))
        part = InFlight(low, high, self.part(low, high), self.queue, self.consumer, self.since_ms)
        part.given_ms = self.given_ms
        part.void = self.void
        part.is_late = self.is_late
        if self.done is not None:
            part.done = self.done[low - self.first : high - self.first + 1]
            part.left = part.done.count(0)
        return part

    def pieces(self, low: Tag, high: Tag) -> list[tuple[Tag, Tag]]:
        """Return the unsettled stretches (first tag, last tag) among low..high, ascending."""
        done = self.done
        if done is None:
            return [(low, high)]
        found: list[tuple[Tag, Tag]] = []
        end = high - self.first + 1
        at = done.find(0, low - self.first, end)
        while at >= 0:
            stop = done.find(1, at, end)
            if stop < 0:
                stop = end
            found.append((Tag(self.first + at), Tag(self.first + stop - 1)))
            at = done.find(0, stop, end)
        return found

    def part(self, low: Tag, high: Tag) -> Slice:
        """Return the messages of tags low..high as a slice of their own."""
        whole = self.slice
        return whole.part(low - self.first, high + 1 - self.first)

    def shorten(self, n: int) -> None:
        """Drop the first n tags, and the settled ones directly behind them. At least one tag
        remains."""
        done = self.done
        if done is not None:
            n = done.find(0, n)
            del done[:n]
        self.first = Tag(self.first + n)
        self.slice = self.slice.part(n, len(self.slice))

    def cut_away(self, part: InFlight) -> InFlight | None:
        """Remove a part that `cut` returned, not the whole. The range keeps what is before the
        part, or else what is behind it. Returns what is behind it if there is something on either
        side."""
        self.left -= part.left
        if part.first == self.first:
            self.shorten(part.last + 1 - self.first)
            return None
        after = self.cut(Tag(part.last + 1), self.last)
        if after is not None:
            self.left -= after.left
        self.last = Tag(part.first - 1)
        self.slice = self.slice.part(0, part.first - self.first)
        if self.done is not None:
            del self.done[part.first - self.first :]
        return after

    def followed_by(self, other: InFlight) -> bool:
        """Return whether `other`, of the same session, continues this range, so that the two can be
        merged."""
        return (
            self.last + 1 == other.first
            and self.done is None
            and other.done is None
            and self.consumer is other.consumer
            and self.queue is other.queue
            and self.since_ms == other.since_ms
            and self.given_ms == other.given_ms
            and self.void == other.void
            and self.is_late == other.is_late
            and self.slice.followed_by(other.slice)
        )

    def extend(self, other: InFlight) -> None:
        """Take in a range that continues this one. The slice may be shared, so this range gets one
        of its own."""
        whole = self.slice.part(0, len(self.slice))
        whole.hi = other.slice.hi
        self.slice = whole
        self.last = other.last
        self.left += other.left


@final
class Consumer(QueueConsumer):
    """A consumer: receives a queue's messages as long as it has credit [LC-3]."""

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
        timeout_ms: Ms,
        since_ms: EngineMs = EngineMs(0),
    ) -> None:
        super().__init__(exclusive, priority)
        self.id = id
        """Broker-wide number of the consumer, and its owner number in the ledger."""
        self.session = session
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.limit = limit
        """Maximum of unsettled messages [amqp-0.9.1 basic.qos]; with `by_link`, the number of
        messages that may still be sent [amqp-1.0 §2.6.7]."""
        self.timeout_ms = timeout_ms
        """Consumer timeout, ms; 0: no limit; OFF: the queue's setting applies [LC-4]."""
        self.on_timeout = STOPS
        """Action when the consumer holds a message for too long: STOPS, REQUEUES or RELEASES."""
        self.overdue = 0
        """Count of messages released from the consumer by a time-out that it has not settled
        since."""
        self.by_link = False
        """True if the limit is link credit: sending uses it up and the client grants it anew
        [LC-3]."""
        self.draining = False
        """True if the unused limit becomes void as soon as no more messages are available
        [FC-5]."""
        self.filter: Filter | None = None
        """Filter that messages must match; None: all messages match."""
        self.unacked = 0
        self.held_from = Tag(0)
        """Tag below which it holds nothing: that of the first message it was sent since it held
        none."""
        self.held_to = Tag(0)
        """Tag beyond which it holds nothing: that of the last message it was sent to settle."""
        self.told_window = -1
        """Window in the last row of the ledger that gave one; -1: its rows give none."""
        self.in_line = False
        """True while the consumer waits in its session's line for the limit that the session's
        consumers share."""
        self.share = 0
        """Part of the session's shared limit that is reserved for this consumer: for one turn, or
        while it waits for a disk write."""
        self.delivered = 0
        """Count of the messages sent to the consumer."""
        self.last_ms = EngineMs(0)
        """Time of the last send, engine time, ms; 0: nothing was sent yet."""
        self.since_ms = since_ms
        """Time at which the consumer started, engine time, ms."""
        self.pace = Pace(since_ms)
        """Pace of the messages settled, whatever the outcome. For a consumer without
        acknowledgements, of the messages sent."""
        self.told = 0
        """Value of `progress` at the last ledger record about it."""
        self.active = True
        self.is_retired = False
        """True once the consumer is given nothing more; it still settles what it holds."""
        self.arguments: dict[str, object] = {}
        """Arguments that the client gave, for lists; what they mean to the engine is in the fields
        above. [amqp-0.9.1 basic.consume]"""
        self.handle: object = None
        """Object of the bridge; the engine only passes it through."""

    def hold(self, tag: Tag, n: int) -> None:
        """Count n messages that it is sent to settle, under tags from this one on."""
        if not self.unacked:
            self.held_from = tag
        self.held_to = Tag(tag + n - 1)
        self.unacked += n

    def wanted(self) -> int:
        """Return how many messages the consumer can accept once the broker may send them. A
        consumer that browses or filters may want none of the messages present, so it counts as
        0."""
        session = self.session
        if not session.flow or session.connection.paused or self.cursors:
            return 0
        if self.by_link:
            return 0 if self.overdue else self.limit
        return max(0, self._left())

    def window(self) -> int:
        """Return how many unsettled messages its own credit lets the consumer hold at once."""
        return self.limit + self.unacked if self.by_link and self.limit < UNLIMITED else self.limit

    @property
    def progress(self) -> int:
        """Counter that grows with each message sent or settled."""
        return self.delivered + self.pace.done

    def sent(self, n: int, now_ms: EngineMs) -> None:
        """Count n messages as sent to the consumer."""
        self.delivered += n
        self.last_ms = now_ms
        if self.no_ack:
            self.pace.add(n, now_ms)
            self.queue.handed_out.for_good += n
        else:
            self.queue.handed_out.to_settle += n
        if self.by_link:
            self.limit -= n
        elif self.share and not self.no_ack:
            used = min(n, self.share)
            self.share -= used
            self.session.reserved -= used

    def credit(self) -> int:
        """Return how many messages from the head of the queue may be sent now."""
        return 0 if self.cursors else self.room()

    def room(self) -> int:
        """Return how many messages may be sent now."""
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
        """Return the smaller of its own remaining limit and the shared one. A consumer without
        acknowledgements uses up neither, and gets nothing while the shared limit is exhausted
        [rabbitmq basic.qos global]."""
        session = self.session
        own = UNLIMITED if self.no_ack else self.limit - self.unacked
        if session.limit == UNLIMITED:
            return own
        shared = session.left_for(self)
        return own if own < shared or (self.no_ack and shared > 0) else shared

    def is_waiting(self) -> bool:
        """Return whether the queue has messages for it and its own limit allows more [LC-3]."""
        if not self.active or not self.queue.ready or self.by_link:
            return False
        if self.cursors and not self.queue.has_beyond(self.cursors):
            return False
        return self.no_ack or self.limit > self.unacked

    def may_take_over(self) -> bool:
        """Return whether the consumer can be the one that is served where the queue has a single
        active consumer."""
        return not (self.cursors or self.is_retired)


@final
class Session(Timed):
    """A session publishes, consumes and settles, with a series of numbers for each direction."""

    def __init__(self, id: int, connection: Connection) -> None:
        super().__init__()
        self.id = id
        self.connection = connection
        self.handle: object = None
        """Object of the bridge; the engine only passes it through."""
        self.closed = False
        self.flow = True
        """False while the client has stopped deliveries [TX-10]."""
        self.confirming = False
        self.published = PublishNumber(0)
        """Count of publishes since confirms were enabled, and the number of the last one."""
        self.confirm_asked = PublishNumber(0)
        """Highest publish number for which a confirm has been requested."""
        self.consumers: dict[str, Consumer] = {}
        self.limit = UNLIMITED
        """Maximum of unsettled messages of all consumers together. [basic.qos, global=true]"""
        self.consumer_limit = UNLIMITED
        """Limit for consumers started from now on. [basic.qos, global=false]"""
        self.line: OrderedDict[int, Consumer] = OrderedDict()
        """Line of consumers that found the shared limit exhausted although their queues had
        messages: by consumer id, in the order in which they will be served."""
        self.reserved = 0
        """Part of the shared limit that is reserved for single consumers."""
        self.is_offered = False
        """True if the free part of the shared limit is to be distributed in the next turn."""
        self.next_tag = Tag(1)
        self.inflight: deque[InFlight] = deque()
        self.sources: dict[int, Tag] = {}
        """Tag of the first message that it was given to settle from each queue that is there, by
        queue id. Changed by Holders only."""
        self.unacked = 0
        self.got = 0
        """Count of the unacknowledged messages that the client fetched itself; no prefetch limits
        them [amqp-0.9.1 basic.get]."""

    def free(self) -> int:
        """Return the part of the shared limit that is neither used nor reserved."""
        return self.limit - self.unacked + self.got - self.reserved

    def left_for(self, consumer: Consumer) -> int:
        """Return how much of the shared limit one consumer may use now. While others wait in line,
        that is the part reserved for it."""
        return consumer.share if self.line else self.free() + consumer.share

    def step_in(self, consumer: Consumer) -> None:
        """Put the consumer at the end of the line."""
        consumer.in_line = True
        self.line[consumer.id] = consumer

    def step_out(self, consumer: Consumer) -> None:
        """Remove the consumer from the line."""
        if consumer.in_line:
            consumer.in_line = False
            del self.line[consumer.id]

    def give_share_back(self, consumer: Consumer) -> None:
        """Release the part of the shared limit that was reserved for the consumer."""
        self.reserved -= consumer.share
        consumer.share = 0

    def take_tag(self) -> Tag:
        """Return a new tag for a message that comes from no queue. Nothing is in flight under
        it."""
        tag = self.next_tag
        self.next_tag = Tag(tag + 1)
        return tag
