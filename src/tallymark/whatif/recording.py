"""Recording: what came into a broker from outside, as its ledger tells it, and what became of it.

What came in is kept apart from what the broker made of it: publishes, declarations, consumers and
their answers are inputs of the engine when it is run again; deaths, drops and deliveries are not.
Columns, so that a million messages fit into memory and travel between processes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tallymark.engine.session import RELEASES
from tallymark.stored.annotations import Annotations
from tallymark.whatif.fates import Fates, QueueName

# Kinds of inputs besides publishes.
DEFINE: Final = 1
"""A change of topology: its definition, as bytes."""
COME: Final = 2
"""A consumer came: its Terms."""
CREDIT: Final = 3
"""A consumer's Terms changed."""
GO: Final = 4
"""A consumer went: (its id, how)."""
TAKE: Final = 5
"""Messages were taken by somebody who is no consumer: Taken."""
PURGE: Final = 6
"""A queue was emptied: (its name, whether of what consumers held as well)."""
CRASH: Final = 7
"""The broker stopped, and was started again: whether it was killed."""
TRANSFER: Final = 8
"""All messages of a queue were handed on: (its name, names of the queues that got them)."""
SUBSCRIBE: Final = 9
"""A durable subscription came: (its epoch, its queue's name, its own)."""
UNSUBSCRIBE: Final = 10
"""A durable subscription was deleted: its epoch."""
LEASE: Final = 11
"""Messages were leased: (epoch, count)."""
JUDGE: Final = 12
"""Outcomes of leased messages: (epoch, list of (first lease sequence, count, outcome))."""
FLOOR: Final = 13
"""Leased messages were settled: (epoch, lease sequence below which all are)."""
SERVED: Final = 14
"""The consumer that was served first, of several: (its queue's name, its id)."""
LOOK: Final = 15
"""The broker looked at slow consumers, and acted on one."""
GRANT: Final = 16
"""A consumer of AMQP 1.0 granted credit that was used at once: (its id, messages, the sequence
behind them, the order of their block)."""
COVERED: Final = 17
"""A mark was on disk when messages below it were delivered: (its queue's name, the mark)."""
BARRED: Final = 18
"""A consumer had held a message for too long, and was given nothing any more: (its id,)."""

NEVER: Final = (1 << 62, 0)
"""Time and order of what does not happen."""
PLANNED: Final = -3
"""Order of what a change has planned for a time: before everything else."""

CANCELLED: Final = 0
CLOSED: Final = 1
LOST: Final = 2
"""Ways in which consumers go: what they hold stays theirs; goes back; goes back as failed."""

# Answers of consumers.
HOLDS: Final = 0
"""No answer: it held the messages until it went, or until they were taken from it."""
ACCEPTS: Final = 1
REJECTS: Final = 2
RETURNS: Final = 3
"""Gives back, not counted as a failure."""
FAILS: Final = 4
"""Gives back, counted as a failure."""
REQUEUES: Final = 5
"""Gives back to the tail, after a delay where there is one."""
DEFERS: Final = 6
"""Gives back to the old place, after a delay."""

HELD: Final = 16
"""Flag of an answer that the consumer did not give: it held the messages until it went, or until
they were taken from it, and that came to this answer."""
LATE: Final = 32
"""Flag of one that it held for too long."""

FOREVER: Final = 1 << 62
"""Time of an answer that never came."""
DELIVERIES: Final = 256
"""Deliveries of one stay in a queue that are told apart."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which a consumer is given messages."""

    consumer: int
    session: int
    vhost: str
    queue: str
    name: str
    window: int
    """Most unsettled messages; -1: no limit."""
    shared: int
    """Most unsettled messages of the session; -1: no limit."""
    acknowledges: bool
    exclusive: bool
    priority: int
    timeout_ms: int
    on_timeout: int

    @property
    def is_link(self) -> bool:
        """Return whether the consumer grants credit message by message, as AMQP 1.0 has it."""
        return self.on_timeout == RELEASES


@dataclass(frozen=True, slots=True)
class Taken:
    """Messages that were asked for one by one, or leased."""

    queue: QueueName
    owner: int
    count: int
    acknowledges: bool


@dataclass(slots=True)
class Publishes:
    """Payloads in the order in which they were published, in columns."""

    time_ms: array[int] = field(default_factory=lambda: array("q"))
    order: array[int] = field(default_factory=lambda: array("q"))
    first_id: array[int] = field(default_factory=lambda: array("q"))
    arrived_ms: array[int] = field(default_factory=lambda: array("q"))
    vhost: list[str] = field(default_factory=list)
    place: array[int] = field(default_factory=lambda: array("i"))
    """Index in `places` of the route of all messages; -1: each has its own, in `own_places`."""
    known: array[int] = field(default_factory=lambda: array("i"))
    """Index in `annotations`; -1: none."""
    persistent: bytearray = field(default_factory=bytearray)
    start: array[int] = field(default_factory=lambda: array("q"))
    """Index of the first message in `sizes` and `bodies`."""
    count: array[int] = field(default_factory=lambda: array("I"))
    sizes: array[int] = field(default_factory=lambda: array("I"))
    """Bytes of each message, framing included."""
    bodies: array[int] = field(default_factory=lambda: array("I"))
    """Bytes of each message's body."""
    places: list[tuple[str, str]] = field(default_factory=list)
    """Exchange and routing key."""
    own_places: dict[int, list[int]] = field(default_factory=dict)
    annotations: list[bytes] = field(default_factory=list)
    priorities: dict[int, dict[int, int]] = field(default_factory=dict)
    """Priorities by first message id of the payload and index in it, where they are known."""
    ids: dict[int, dict[int, str]] = field(default_factory=dict)
    """Ids that publishers gave, as far as queues that deduplicate took them, in the same way."""
    headers: dict[int, dict[int, dict[str, object]]] = field(default_factory=dict)
    """Headers that bindings ask for, of messages that have such, in the same way."""

    def __len__(self) -> int:
        return len(self.time_ms)


@dataclass(slots=True)
class Answers:
    """Answers of consumers to messages of one queue, at one attempt: columns, one
    line for messages that were given and answered alike, ascending by message id."""

    first_id: array[int] = field(default_factory=lambda: array("q"))
    count: array[int] = field(default_factory=lambda: array("I"))
    owner: array[int] = field(default_factory=lambda: array("q"))
    given_ms: array[int] = field(default_factory=lambda: array("q"))
    ended_ms: array[int] = field(default_factory=lambda: array("q"))
    order: array[int] = field(default_factory=lambda: array("q"))
    answer: bytearray = field(default_factory=bytearray)
    delay_ms: array[int] = field(default_factory=lambda: array("q"))
    work_ms: array[int] = field(default_factory=lambda: array("q"))
    """Time since its consumer had settled what it settled before, or was given these."""

    def add(
        self, first_id: int, count: int, owner: int, given_ms: int, ended_ms: int, order: int,
        answer: int, delay_ms: int, work_ms: int,
    ) -> None:  # fmt: skip
        self.first_id.append(first_id)
        self.count.append(count)
        self.owner.append(owner)
        self.given_ms.append(given_ms)
        self.ended_ms.append(ended_ms)
        self.order.append(order)
        self.answer.append(answer)
        self.delay_ms.append(delay_ms)
        self.work_ms.append(work_ms)

    def sort(self) -> None:
        """Put the lines into the order of their ids."""
        ids = self.first_id
        if all(ids[i] < ids[i + 1] for i in range(len(ids) - 1)):
            return
        by = sorted(range(len(ids)), key=ids.__getitem__)
        for name in ("first_id", "count", "owner", "given_ms", "ended_ms", "order", "delay_ms",
                     "work_ms"):  # fmt: skip
            column = getattr(self, name)
            setattr(self, name, array(column.typecode, [column[i] for i in by]))
        self.answer = bytearray(self.answer[i] for i in by)

    def find(self, first_id: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield (line, messages) for a range of ids; line -1: nothing is known of these."""
        ids, counts = self.first_id, self.count
        at = bisect_right(ids, first_id) - 1
        end = first_id + count
        while first_id < end:
            stop = ids[at] + counts[at] if at >= 0 else first_id
            if first_id < stop:
                yield at, min(stop, end) - first_id
                first_id = min(stop, end)
            else:
                at += 1
                known = ids[at] if at < len(ids) else end
                if known > first_id:
                    yield -1, min(known, end) - first_id
                    first_id = min(known, end)
                    at -= 1


def attempt_of(known: Annotations | None, queue: str, delivered: int) -> int:
    """Return the number of an attempt at a message: which stay in the queue of that name it is, by
    the deaths that the message died there, and which delivery of this stay.

    delivered: how often it was delivered in this stay before.
    """
    stay = 0
    if known is not None:
        for death in known.deaths:
            if death.queue == queue:
                stay += death.count
    return stay * DELIVERIES + min(delivered, DELIVERIES - 1)


Input = tuple[int, int, int, object]
"""Time, ms; order; kind; what the kind says. Orders follow the journal: the position of a block and
the number of the row in it, added up, which is less than the next block's position."""


@dataclass(slots=True)
class Recording:
    """All that is known of a stretch of time."""

    begin_ms: int = 0
    end_ms: int = 0
    turn_ms: array[int] = field(default_factory=lambda: array("q"))
    turn_order: array[int] = field(default_factory=lambda: array("q"))
    """Times at which the broker was told something or had a turn, and the orders of their blocks.
    When it woke up came from outside, too."""
    turn_upto: array[int] = field(default_factory=lambda: array("q"))
    """Order of the last row of each."""
    turn_ends: bytearray = field(default_factory=bytearray)
    """1 where it had a turn; 0: what came then was looked at in a turn later."""
    turn_synced: array[int] = field(default_factory=lambda: array("q"))
    """Order below which everything was on disk at that turn."""
    inputs: list[Input] = field(default_factory=list)
    """Inputs by time and order, without publishes."""
    publishes: Publishes = field(default_factory=Publishes)
    answers: dict[tuple[QueueName, int], Answers] = field(default_factory=dict)
    """Answers by queue and attempt, see attempt_of."""
    serial: set[int] = field(default_factory=set)
    """Consumers that work on one message after another."""
    fates: dict[QueueName, Fates] = field(default_factory=dict)
    """Fates of the messages, as the ledger has them."""
    sync_ms: int = 0
    """The shortest time for which a delivery waited for the disk."""
    late_ms: int = 0
    """Time by which a busy broker may have been late, from the longest of these waits, ms."""
    asks_ms: dict[int, int] = field(default_factory=dict)
    """The median time that a consumer of AMQP 1.0 let pass, with messages waiting, before it
    granted credit again, ms."""
    header_names: frozenset[str] = frozenset()
    """Names of the headers that were read."""
    lacks: dict[str, int] = field(default_factory=dict)
    """Gaps of the ledger, which the inputs therefore have as well: in words, with counts."""
