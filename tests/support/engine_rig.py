"""A broker with a journal in memory and a hand on the clock and the disk: no sockets, no time.

Messages are eight bytes: a number the test chose. `turn` does what the server does once per loop
turn and returns the deliveries message by message.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from tallymark.engine import records
from tallymark.engine.broker import Broker, Part
from tallymark.engine.effects import Cancelled, Confirm, Deliver, Durable, Effect
from tallymark.engine.message import Payload, Route, Slice
from tallymark.engine.queue import Queue
from tallymark.engine.records import Record, expanded
from tallymark.engine.restore import Restorer, snapshot
from tallymark.engine.session import Connection, Session

SIZE = 8


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as a consumer sees it."""

    consumer: str
    session: int
    tag: int
    number: int
    redelivered: bool


def numbers(piece: Slice) -> list[int]:
    """The messages of a slice."""
    raw = piece.payload.raw
    assert raw is not None, "the bytes of a delivery must be in memory"
    cuts = piece.payload.cuts
    return [int.from_bytes(raw[cuts[i] : cuts[i + 1]], "big") for i in range(piece.lo, piece.hi)]


class MemoryLog:
    """What a journal keeps, as records and bytes; a position is an offset into the bytes."""

    def __init__(self) -> None:
        self.blocks: list[list[Record]] = []
        self.bytes = bytearray()
        self.checkpoint: list[Record] = []
        self.synced = 0
        self.stored_bytes = 0
        """Bytes of payloads among them."""

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
                self.bytes += payload.raw
                self.stored_bytes += payload.size
        self.bytes += b"."  # every block moves the end
        self.blocks.append(block)
        return self.end

    def fetch(self, payload: Payload) -> bytes:
        assert 0 <= payload.position <= len(self.bytes) - payload.size
        return bytes(self.bytes[payload.position : payload.position + payload.size])


class Rig:
    """One broker process; `restart` makes the next one from what the log holds."""

    def __init__(self, log: MemoryLog | None = None) -> None:
        self.log = log or MemoryLog()
        self.now_ms = 1_000_000
        self.broker = Broker(self.log.fetch)
        self.hold_disk = False
        """True: nothing more becomes synced until it is False again."""
        self.confirmed: dict[int, int] = {}
        self.cancelled: list[str] = []
        self.durable: list[object] = []
        self.released: list[tuple[int, int]] = []
        """Extents of the log that the broker says it needs no more."""
        if log is not None:
            Restorer(self.broker).run(self._records())
        self.vhost = self.broker.add_vhost("/")
        self.connection = self.broker.open_connection("/", "guest", "rig")

    def _records(self) -> list[Record]:
        """The log as a restart reads it: payloads anew, without bytes."""
        made: dict[int, Payload] = {}
        out = []
        for record in [*self.log.checkpoint, *(r for block in self.log.blocks for r in block)]:
            old = record.payload
            new = None
            if old is not None:
                position = old.position
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
                    made[id(old)] = new
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

    def queue(self, name: str, durable: bool = True, **more: bool) -> Queue:
        return self.broker.declare_queue(
            self.connection,
            name,
            durable,
            more.get("exclusive", False),
            more.get("auto_delete", False),
            {},
            False,
        )

    def session(self, connection: Connection | None = None) -> Session:
        return self.broker.open_session(connection or self.connection)

    def publish(
        self, session: Session, queue: str, messages: list[int], persistent: bool = True
    ) -> None:
        """One run of messages through the default exchange."""
        targets = self.vhost.route("", [queue], None)
        self.broker.publish(session, targets, self.payload(queue, messages, persistent))

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
        self.broker.publish_parts(session, self.payload(exchange, messages, persistent), made)

    def payload(self, key: str, messages: list[int], persistent: bool) -> Payload:
        """Messages that arrived together."""
        raw = b"".join(n.to_bytes(SIZE, "big") for n in messages)
        cuts = array("I", range(0, len(raw) + 1, SIZE))
        return Payload(
            0, raw, cuts, Route("", key), None, self.broker.new_message_ids(len(messages)),
            self.now_ms, persistent, SIZE,
        )  # fmt: skip

    def turn(self, budget: int = 1 << 40) -> list[Delivery]:
        """One turn of the loop; advances the clock by a millisecond."""
        self.now_ms += 1
        broker, log = self.broker, self.log
        effects = broker.turn(self.now_ms)
        block = broker.take_records()
        if block:
            log.commit(block)
        broker.committed(log.end)
        if not self.hold_disk:
            log.synced = log.end
        effects += broker.synced(log.synced)
        out = self._carry_out(effects)
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

    def _carry_out(self, effects: list[Effect]) -> list[Delivery]:
        out = []
        for effect in effects:
            if isinstance(effect, Deliver):
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
        return out

    def get(self, session: Session, queue: Queue, no_ack: bool = False) -> tuple[int, int] | None:
        """(number, tag) of one message asked for."""
        got = self.broker.get(session, queue, no_ack)
        return None if got is None else (numbers(got[0])[0], got[1])

    def checkpoint(self, clean: bool = False) -> None:
        """Replace the log so far by a snapshot."""
        self.turn()
        self.log.checkpoint = list(expanded(snapshot(self.broker, clean)))
        self.log.blocks = []

    def restart(self, clean: bool = False) -> Rig:
        """The process ends, orderly or not, and another starts from its log."""
        if clean:
            self.broker.close_connection(self.connection, lost=False)
            self.checkpoint(clean=True)
        return Rig(self.log)

    def ready(self, name: str) -> list[int]:
        """What is ready in a queue, in order."""
        out = []
        self.vhost.queues[name].unpack()
        for piece in self.vhost.queues[name].slices():
            self.broker.store.load(piece.payload)
            out += numbers(piece)
        return out
