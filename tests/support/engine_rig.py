"""A broker with a journal in memory and a hand on the clock and the disk: no sockets, no time.

Messages are eight bytes: a number the test chose. `turn` does what the server does once per loop
turn and returns the deliveries message by message. What else a message says (priority, id, headers,
hop limit, size of its body) stands in a table, `rig.says`: runs with such messages are published as
AMQP 0-9-1 frames, the number being the correlation id.
"""

from __future__ import annotations

import errno
import re
from array import array
from dataclasses import dataclass, field

from tallymark.bridge.amqp091.format import Amqp091Format
from tallymark.bridge.names import HOP_LIMIT
from tallymark.engine.broker import Broker
from tallymark.engine.effects import (
    Activated,
    Cancelled,
    CloseConsumer,
    CloseSession,
    Confirm,
    Deliver,
    Drained,
    Durable,
    Effect,
    PublisherHeld,
    Refused,
    Signal,
    TimedOut,
    TransactionExpired,
)
from tallymark.engine.ledger import expanded
from tallymark.engine.message import PACKED, Format, Pack, Payload, Slice
from tallymark.engine.policies import QUEUES, Policy
from tallymark.engine.publishing import Part
from tallymark.engine.queue import Queue
from tallymark.engine.record import Record
from tallymark.engine.restore import Restorer, snapshot
from tallymark.engine.session import Connection, Consumer, Session
from tallymark.engine.staging import Transaction
from tallymark.stored import records
from tallymark.stored.annotations import Annotations, Route
from tallymark.stored.formats import AMQP091
from tallymark.wire.amqp091.frames import section_at
from tallymark.wire.amqp091.properties import Properties, decode_properties
from tests.support import amqp091

SIZE = 8
START_MS = 1_700_000_000_000
TURNS_AT_ONCE = 4
"""Turns that a deadline may ask for in a row: what ends may arm something that is due."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as a consumer sees it."""

    consumer: str
    session: int
    tag: int
    number: int
    redelivered: bool


@dataclass(frozen=True, slots=True)
class Said:
    """What a message says besides its number."""

    priority: int = 0
    id: str = ""
    headers: dict[str, object] = field(default_factory=dict)
    hop_limit: int = -1
    body: int = SIZE
    """Bytes of its body."""


NOTHING_SAID = Said()


def frames(number: int, said: Said) -> bytes:
    """A message of format 1."""
    headers = dict(said.headers)
    if said.hop_limit >= 0:
        headers[HOP_LIMIT] = said.hop_limit
    properties = Properties(
        headers=headers or None, priority=said.priority or None, correlation_id=str(number),
        message_id=said.id or None,
    )  # fmt: skip
    return amqp091.publish(1, bytes(said.body), properties=properties)


def number_at(payload: Payload, i: int) -> int:
    raw = payload.raw
    assert raw is not None, "the bytes must be in memory"
    at = payload.cuts[i]
    if payload.format != AMQP091:
        return int.from_bytes(raw[at : at + SIZE], "big")
    section = section_at(raw, at)
    size = int.from_bytes(raw[section - 16 : section - 12], "big") - 12
    return int(decode_properties(raw[section : section + size]).correlation_id or "")


def numbers(piece: Slice) -> list[int]:
    """The messages of a slice."""
    return [number_at(piece.payload, i) for i in range(piece.lo, piece.hi)]


@dataclass(frozen=True, slots=True)
class Held:
    """One message as a queue holds it or a consumer was given it."""

    number: int
    acquired: int
    failed: int
    priority: int
    annotations: Annotations | None

    @property
    def deaths(self) -> list[tuple[str, str, int]]:
        """(queue, reason, count), newest first."""
        known = self.annotations
        return [] if known is None else [(d.queue, d.reason, d.count) for d in known.deaths]

    @property
    def counts(self) -> tuple[int, int]:
        """(failed, acquired) in all queues it was in: x-delivery-count and x-acquired-count."""
        known = self.annotations
        if known is None:
            return self.failed, self.acquired
        return self.failed + known.failed, self.acquired + known.acquired

    @property
    def place(self) -> tuple[str, str] | None:
        """Exchange and key its reader is shown; None: those it was published with."""
        known = self.annotations
        if known is None or known.route is None:
            return None
        return known.route.exchange, known.route.key


def held(piece: Slice) -> list[Held]:
    """Each message of a slice."""
    return [
        Held(number, piece.acquired, piece.failed, piece.priority, piece.annotations)
        for number in numbers(piece)
    ]


class MemoryLog:
    """What a journal keeps, as records and bytes; a position is an offset into the bytes."""

    def __init__(self) -> None:
        self.blocks: list[list[Record]] = []
        self.bytes = bytearray()
        self.checkpoint: list[Record] = []
        self.synced = 0
        self.stored_bytes = 0
        """Bytes of payloads among them."""
        self.says: dict[int, Said] = {}
        """By number: what messages say, kept here as if it stood in their bytes."""
        self.positions: dict[Payload, int] = {}
        """Of every payload that a record names: the broker forgets it when it lets go of one."""
        self.places: dict[int, tuple[int, int]] = {}
        """Where the bytes of each message are, by number: position and size."""
        self.spoiled: set[int] = set()
        """Numbers of messages whose bytes cannot be read, as if a sector of the disk were bad."""

    @property
    def end(self) -> int:
        return len(self.bytes)

    def commit(self, block: list[Record]) -> int:
        for record in block:
            if record.kind == records.PAYLOAD:
                payload = record.payload
                assert payload is not None
                assert payload.raw is not None
                payload.position = len(self.bytes)
                for i in range(payload.count):
                    at, end = payload.cuts[i], payload.cuts[i + 1]
                    self.places[number_at(payload, i)] = (payload.position + at, end - at)
                self.bytes += payload.raw
                self.stored_bytes += payload.size
        for record in block:
            if record.payload is not None:
                self.positions.setdefault(record.payload, record.payload.position)
        self.bytes += b"."  # every block moves the end
        self.blocks.append(block)
        return self.end

    def upto(self, blocks: int) -> MemoryLog:
        """The log as it was with so many of its blocks."""
        cut = MemoryLog()
        cut.blocks = self.blocks[:blocks]
        cut.bytes = self.bytes
        cut.checkpoint = self.checkpoint
        cut.says = self.says
        cut.positions = self.positions
        cut.places = self.places
        cut.spoiled = self.spoiled
        return cut

    def fetch(self, payload: Payload) -> bytes:
        begin, end = payload.position, payload.position + payload.size
        assert 0 <= begin <= end <= len(self.bytes)
        for number in self.spoiled:
            at, size = self.places[number]
            if at < end and begin < at + size:
                raise OSError(errno.EIO, f"Input/output error at {at:#x}")
        return bytes(self.bytes[begin:end])


class Rig:
    """One broker process; `restart` makes the next one from what the log holds."""

    def __init__(self, log: MemoryLog | None = None, now_ms: int = START_MS) -> None:
        self.log = log or MemoryLog()
        self.now_ms = now_ms
        """The machine's monotonic clock; engine time goes with it."""
        self.wall_off_ms = 0
        """How far the machine's wall clock has been set ahead of it since the start."""
        self.tick_ms = 1
        """How far a turn advances the clock; 0: only `advance` does."""
        self.says = self.log.says
        self.broker = Broker(self.log.fetch)
        self.broker.formats.update({0: Format(), AMQP091: Amqp091Format()})
        self.tell_time()
        self.broker.dispatcher.carry_out = self._carry_out_now
        self.said: list[Delivery] = []
        """Of commands, since the last turn: what consumers were given before them."""
        self.hold_disk = False
        """True: nothing more becomes synced until it is False again."""
        self.confirmed: dict[int, int] = {}
        self.cancelled: list[str] = []
        self.durable: list[object] = []
        self.released: list[tuple[int, int]] = []
        """Extents of the log that the broker says it needs no more."""
        self.refused: list[tuple[int, int]] = []
        """Publish numbers (first, last) that a queue had no room for."""
        self.signals: list[Signal] = []
        self.timed_out: list[tuple[int, Consumer | None, int]] = []
        """Consumers that were too slow: when that was told, who, and the limit."""
        self.released_tags: list[tuple[int, int]] = []
        """Of those: which tags, where the consumer goes on."""
        self.expired: list[int] = []
        """Ids of transactions that took too long."""
        self.drained: list[str] = []
        self.activated: list[str] = []
        """Consumers that got all there was for them."""
        self.closed: list[tuple[int, str]] = []
        """Sessions and consumers that the broker ended: their ids, and why."""
        self.held: list[tuple[str, str, bool]] = []
        """Publishing connections that were held back or released: name, queue, which of both."""
        self.given: list[Held] = []
        """What consumers were sent, with what is known of it."""
        if log is not None:
            Restorer(self.broker).run(self._records())
        self.vhost = self.broker.registry.add_vhost("/")
        self.connection = self.broker.clients.open_connection("/", "guest", "rig")
        self.connection.holds_output = True

    def _records(self) -> list[Record]:
        """The log as a restart reads it: payloads anew, without bytes."""
        made: dict[int, Payload] = {}
        out = []
        for record in [*self.log.checkpoint, *(r for block in self.log.blocks for r in block)]:
            old = record.payload
            new = None
            if old is not None:
                position = self.log.positions.get(old, old.position)
                new = made.get(id(old))
                if new is None:
                    new = Payload(
                        old.format,
                        None,
                        old.cuts,
                        old.route,
                        old.routes,
                        old.first_id,
                        old.arrived_ms,
                        old.persistent,
                        old.largest_frame,
                    )
                    new.position = position
                    if old.pack is not None:
                        of = old.pack
                        new.position = PACKED
                        new.pack = Pack(of.positions[:], of.ids[:], of.arrivals[:], [])
                    made[id(old)] = new
                if record.kind == records.PAYLOAD:
                    new.arrived_ms = record.time_ms  # as the journal's row says
            out.append(
                Record(
                    record.kind,
                    record.queue,
                    record.first,
                    record.count,
                    record.time_ms,
                    new,
                    record.lo,
                    record.owner,
                    record.other,
                    record.reason,
                    record.flags,
                    record.blob,
                )
            )
        return out

    def tell_time(self) -> int:
        """Tell the engine what the two clocks say, as the server does before a command; returns
        engine time."""
        return self.broker.clock.read(self.now_ms + self.wall_off_ms, self.now_ms)

    def set_wall_clock(self, ms: int) -> None:
        """Somebody sets the machine's wall clock by so much."""
        self.wall_off_ms += ms
        self.tell_time()

    def queue(self, name: str, durable: bool = True, **more: bool) -> Queue:
        return self.broker.registry.declare_queue(
            self.connection,
            name,
            durable,
            more.get("exclusive", False),
            more.get("auto_delete", False),
            {},
            False,
        )

    def declare(
        self, name: str, arguments: dict[str, object] | None = None, durable: bool = True
    ) -> Queue:
        """A queue with arguments, `x-` left out of their names."""
        given = {"x-" + key: value for key, value in (arguments or {}).items()}
        return self.broker.registry.declare_queue(
            self.connection, name, durable, False, False, given, False
        )

    def exchange(self, name: str, type: str, *bindings: tuple[str, str]) -> None:
        """An exchange and its bindings: (queue, key)."""
        self.vhost.declare_exchange(name, type, True, False, False, {}, False)
        for queue, key in bindings:
            self.bind(queue, name, key)

    def bind(self, queue: str, exchange: str, key: str) -> None:
        self.vhost.bind_queue(queue, exchange, key, {}, self.connection.id)

    def set_policy(self, name: str, definition: dict[str, object]) -> None:
        """The policy of one queue, which has its name; an empty one takes it away."""
        if definition:
            pattern = f"^{re.escape(name)}$"
            self.broker.registry.set_policy("/", Policy(name, pattern, definition, 0, QUEUES))
        elif name in self.vhost.policies:
            self.broker.registry.delete_policy("/", name)

    def delete(self, name: str) -> int:
        return self.broker.registry.delete_queue(self.connection, name, False, False)

    def session(self, connection: Connection | None = None) -> Session:
        return self.broker.clients.open_session(connection or self.connection)

    def publish(
        self, session: Session, queue: str, messages: list[int], persistent: bool = True
    ) -> None:
        """One run of messages through the default exchange."""
        targets = self.vhost.route("", [queue], None)
        self.broker.publishing.publish(session, targets, self.payload(queue, messages, persistent))

    def send(
        self,
        key: str,
        *messages: int,
        exchange: str = "",
        session: Session | None = None,
        annotations: Annotations | None = None,
        ttl: int = -1,
        cc: tuple[str, ...] = (),
        bcc: tuple[str, ...] = (),
        persistent: bool = True,
    ) -> None:
        """One run of messages with what is known of them, as a bridge publishes it."""
        if annotations is None and (ttl >= 0 or cc or bcc):
            annotations = Annotations(ttl_ms=ttl, more_keys=cc + bcc, bcc=bcc)
        headers = None
        if self.vhost.needs_headers(exchange):
            assert len(messages) == 1, "routed by their headers one by one"
            headers = self.says.get(messages[0], NOTHING_SAID).headers
        targets = self.vhost.route(exchange, [key, *cc, *bcc], headers)
        payload = self.payload(key, list(messages), persistent, exchange)
        self.broker.publishing.publish(session or self.session(), targets, payload, annotations)

    def stage(
        self,
        transaction: Transaction,
        key: str,
        *messages: int,
        exchange: str = "",
        session: Session | None = None,
        annotations: Annotations | None = None,
        handle: object = None,
        persistent: bool = True,
    ) -> None:
        """One run of messages under a transaction."""
        targets = self.vhost.route(exchange, [key], None)
        payload = self.payload(key, list(messages), persistent, exchange)
        publisher = session or transaction.session
        self.broker.publishing.stage(transaction, publisher, targets, payload, annotations, handle)

    def publish_parts(
        self,
        session: Session,
        exchange: str,
        parts: list[tuple[str, list[int]]],
        persistent: bool = True,
    ) -> None:
        """One payload through an exchange: (routing key, messages) pairs in order."""
        messages = [m for _, part in parts for m in part]
        made, lo = [], 0
        for key, part in parts:
            targets = self.vhost.route(exchange, [key], None)
            made.append(Part(targets, lo, lo + len(part)))
            lo += len(part)
        self.broker.publishing.publish_parts(
            session, self.payload(exchange, messages, persistent), made
        )

    def payload(
        self, key: str, messages: list[int], persistent: bool, exchange: str = ""
    ) -> Payload:
        """Messages that arrived together."""
        format = AMQP091 if any(n in self.says for n in messages) else 0
        cells = [
            frames(n, self.says.get(n, NOTHING_SAID)) if format else n.to_bytes(SIZE, "big")
            for n in messages
        ]
        cuts = array("I", (0,))
        for cell in cells:
            cuts.append(cuts[-1] + len(cell))
        self.tell_time()
        return Payload(
            format, b"".join(cells), cuts, Route(exchange, key), None,
            self.broker.new_message_ids(len(messages)), self.broker.clock.now_ms, persistent, SIZE,
        )  # fmt: skip

    def advance(self, ms: int) -> list[Delivery]:
        """Time passes: what is due now, a turn whenever the broker asked for one, as the server
        does, and one at the end. For rigs with tick_ms = 0."""
        assert self.tick_ms == 0
        end = self.now_ms + ms
        out = self.settle_down()
        turns_at_once = 0
        while (due_ms := self.broker.next_due()) <= end:
            turns_at_once = 0 if due_ms > self.now_ms else turns_at_once + 1
            assert turns_at_once < TURNS_AT_ONCE, "a deadline came, and nothing was done"
            self.now_ms = max(self.now_ms, due_ms)
            out += self.settle_down()
        self.now_ms = end
        return out + self.settle_down()

    def turn(self, budget: int = 1 << 40) -> list[Delivery]:
        """One turn of the loop; advances the clock by `tick_ms`."""
        self.now_ms += self.tick_ms
        broker, log = self.broker, self.log
        effects = broker.turn(self.tell_time())
        block = broker.take_records()
        if block:
            log.commit(block)
        broker.committed(log.end)
        if not self.hold_disk:
            log.synced = log.end
        effects += broker.synced(log.synced)
        out = self.said + self._carry_out(effects)
        self.said = []
        self.released += broker.store.released
        broker.store.released.clear()
        broker.spill(budget, 1 << 60)
        return out

    def settle_down(self, budget: int = 1 << 40) -> list[Delivery]:
        """Turns until nothing more happens."""
        out = self.turn(budget)
        for _ in range(1000):
            if not self.broker.has_work() and (
                self.hold_disk or not self.broker.durability.is_waiting()
            ):
                return out
            out += self.turn(budget)
        raise AssertionError("a thousand turns and still work to do")

    def _carry_out_now(self, effect: Effect) -> None:
        if isinstance(effect, Deliver) and effect.waits:
            self.broker.await_durable(effect)
        else:
            self.said += self._carry_out([effect])

    def _carry_out(self, effects: list[Effect]) -> list[Delivery]:
        out = []
        for effect in effects:
            if isinstance(effect, Durable) and isinstance(effect.waiter, Deliver):
                effect = effect.waiter  # it waited for the disk, and may leave now
            if isinstance(effect, Deliver):
                self.given += held(effect.slice)
                for i, number in enumerate(numbers(effect.slice)):
                    out.append(
                        Delivery(
                            effect.consumer.tag,
                            effect.consumer.session.id,
                            effect.first_tag + i,
                            number,
                            effect.slice.acquired > 0,
                        )
                    )
            elif isinstance(effect, Confirm):
                self.confirmed[effect.session.id] = effect.upto
            elif isinstance(effect, Cancelled):
                self.cancelled.append(effect.consumer.tag)
            elif isinstance(effect, Durable):
                self.durable.append(effect.waiter)
            elif isinstance(effect, Refused):
                self.refused.append((effect.first, effect.last))
            elif isinstance(effect, TimedOut):
                self.timed_out.append((self.now_ms, effect.consumer, effect.timeout_ms))
                self.released_tags += effect.tags
            elif isinstance(effect, TransactionExpired):
                self.expired.append(effect.transaction.id)
            elif isinstance(effect, Drained):
                self.drained.append(effect.consumer.tag)
            elif isinstance(effect, Activated):
                self.activated.append(effect.consumer.tag)
            elif isinstance(effect, CloseSession):
                self.closed.append((effect.session.id, str(effect.error)))
            elif isinstance(effect, CloseConsumer):
                self.closed.append((effect.consumer.id, str(effect.error)))
            elif isinstance(effect, PublisherHeld):
                self.held.append((effect.connection.name, effect.queue.name, effect.held))
            elif isinstance(effect, Signal):
                self.signals.append(effect)
        return out

    def get(self, session: Session, queue: Queue, no_ack: bool = False) -> tuple[int, int] | None:
        """(number, tag) of one message asked for."""
        got = self.broker.consuming.get(session, queue, no_ack)
        return None if got is None else (numbers(got[0])[0], got[1])

    def take(self, session: Session, name: str, no_ack: bool = False) -> tuple[Held, int] | None:
        """One message asked for, with what is known of it, and its tag."""
        got = self.broker.consuming.get(session, self.vhost.queues[name], no_ack)
        return None if got is None else (held(got[0])[0], got[1])

    def consume(
        self, session: Session, name: str, tag: str, prefetch: int = 0, no_ack: bool = False
    ) -> Consumer:
        self.broker.consuming.set_prefetch(session, prefetch, shared=False)
        queue = self.vhost.queues[name]
        return self.broker.consuming.consume(session, queue, tag, no_ack, False, 0, {})

    def checkpoint(self, clean: bool = False) -> None:
        """Replace the log so far by a snapshot."""
        self.turn()
        self.log.checkpoint = list(expanded(snapshot(self.broker, clean)))
        self.log.blocks = []

    def restart(self, clean: bool = False) -> Rig:
        """The process ends, orderly or not, and another starts from its log."""
        if clean:
            self.broker.clients.close_connection(self.connection, lost=False)
            self.checkpoint(clean=True)
        return self.reopened(self.log)

    def reopened(self, log: MemoryLog) -> Rig:
        """A process that starts from this log, now: engine time begins with wall time."""
        after = Rig(log, self.now_ms + self.wall_off_ms)
        after.tick_ms = self.tick_ms
        return after

    def ready(self, name: str) -> list[int]:
        """What is ready in a queue, in order."""
        out = []
        self.vhost.queues[name].unpack()
        for piece in self.vhost.queues[name].slices():
            self.broker.store.load(piece.payload)
            out += numbers(piece)
        return out

    def holds(self, name: str) -> list[Held]:
        """What is ready in a queue, in order, with what is known of it."""
        out = []
        self.vhost.queues[name].unpack()
        for piece in self.vhost.queues[name].slices():
            self.broker.store.load(piece.payload)
            out += held(piece)
        return out

    def pending(self, name: str) -> list[int]:
        """What is dead-letter-pending in a queue, in order."""
        out = []
        for letter in self.vhost.queues[name].letters:
            self.broker.store.load(letter.piece.payload)
            out += numbers(letter.piece)
        return out

    def dropped(self, name: str) -> dict[str, int]:
        """How many messages of a queue ended without success, by reason."""
        counts = self.vhost.queues[name].account.dropped
        return {records.DROP_REASONS[reason]: n for reason, n in sorted(counts.items())}
