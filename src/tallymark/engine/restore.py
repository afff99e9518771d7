"""Restore: a broker rebuilt from its records. The opposite direction is snapshot.py.

`Restorer` replays the journal: a checkpoint's records, then those of later blocks. What they say
about a queue is gathered in its history, and its content is computed once, at the end (history.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, final

from tallymark.engine import definitions, records
from tallymark.engine.account import DEFERRED, DROPPED, LEASED, MOVING, PENDING, READY
from tallymark.engine.broker import Broker
from tallymark.engine.history import Contents, QueueHistory, StoredAnnotations
from tallymark.engine.ledger import dropped_record
from tallymark.engine.message import Payload, Slice
from tallymark.engine.queue import Queue
from tallymark.engine.records import Record
from tallymark.engine.session import FAILED, RETURNED
from tallymark.engine.subscription import Subscription, subscriptions_of

TELL_ONLY: Final = (records.SLOW, records.CONSUMER)
"""Kinds of record that do not affect the content of a queue."""


@final
class Restorer:
    """Applies records to a fresh broker; `finish` makes it ready to serve."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._histories: dict[int, QueueHistory] = {}
        self.unbalanced: list[str] = []
        """Error texts about queues whose records do not add up, which only lost blocks can cause.
        What is missing is counted as lost."""
        self._annotations = StoredAnnotations()

    def run(self, log: Iterable[Record]) -> None:
        """Replay everything and finish.

        Raises:
            ValueError: a definition that this version does not understand. Nothing is guessed.
        """
        for record in log:
            self.apply(record)
        self.finish()

    def apply(self, record: Record) -> None:
        kind = record.kind
        if kind == records.DEFINITION:
            self._define(record)
            return
        if kind == records.PAYLOAD:
            self._broker.state.message_ids.at_least(record.first + record.count - 1)
            return
        self._broker.owner_ids.at_least(record.owner)
        if kind in TELL_ONLY:
            return
        if kind == records.LEASE_SETTLED:
            self._settle_lease(record)
            return
        if kind == records.VERDICTS:
            self._judge(record)
            return
        if kind == records.SINK_STAGED:
            self._broker.sinks.restore_part(record)
            return
        if kind == records.SINK_ENDED:
            self._broker.sinks.restore_end(record)
            return
        history = self._histories.get(record.queue)
        if history is None:
            return  # its queue was deleted later in the log, or is no longer durable
        if kind == records.LEASED:
            history.reach(record)
            self._lease(record)
        else:
            history.apply(record)

    def _lease(self, record: Record) -> None:
        subscription = self._broker.leases.subscriptions.get(record.owner)
        if subscription is None:
            return
        low, skip = record.other & records.LEASE_BITS, 0
        if subscription.floor > low:
            skip = min(subscription.floor - low, record.count)
        subscription.next = max(subscription.next, low + record.count)
        if skip < record.count and record.payload is not None:
            piece = Slice(
                record.payload,
                record.lo + skip,
                record.lo + record.count,
                record.first + skip,
                record.flags,
                record.other >> 48,
                record.reason,
                self._annotations.read(record.blob),
            )
            subscription.next = low + skip
            subscription.add(piece)

    def _settle_lease(self, record: Record) -> None:
        subscription = self._broker.leases.subscriptions.get(record.owner)
        if subscription is not None:
            for outcome, piece in subscription.settle(record.other):
                if outcome in (RETURNED, FAILED):
                    self._histories[subscription.queue.id].release(piece)
            subscription.next = max(subscription.next, record.other)

    def _judge(self, record: Record) -> None:
        subscription = self._broker.leases.subscriptions.get(record.owner)
        if subscription is not None:
            for first, count, outcome in json.loads(record.blob):
                subscription.judge(first, count, outcome)

    def _define(self, record: Record) -> None:
        broker = self._broker
        definition = json.loads(record.blob)
        op = definition["op"]
        if op == "ids":
            broker.state.queue_ids.at_least(definition["queue"])
            broker.owner_ids.at_least(definition["owner"])
            broker.state.message_ids.at_least(definition["message"])
            broker.leases.epochs = max(broker.leases.epochs, definition["epoch"])
        elif op == "subscription":
            history = self._histories.get(definition["queue_id"])
            broker.leases.epochs = max(broker.leases.epochs, definition["epoch"])
            if history is not None:
                broker.leases.restore(definition, history.queue)
        elif op == "drop_subscription":
            subscription = broker.leases.subscriptions.get(definition["epoch"])
            if subscription is not None:
                self._drop_subscription(subscription)
        elif op in ("sink", "drop_sink"):
            broker.sinks.restore(definition)
        else:
            self._define_topology(definition, record.blob)

    def _define_topology(self, definition: dict[str, object], blob: bytes) -> None:
        broker = self._broker
        vhost_name = definitions.text_of(definition, "vhost")
        vhost = broker.vhosts.get(vhost_name) or broker.registry.enter_vhost(vhost_name)
        vhost.topology.apply(blob)
        op = definition["op"]
        if op == definitions.DELETE_VHOST:
            del broker.vhosts[vhost_name]
            broker.sinks.restore_vhost_end(vhost_name)
        elif op == definitions.QUEUE:
            queue = vhost.queues[definitions.text_of(definition, "name")]
            if queue.id not in self._histories:
                broker.queues[queue.id] = queue
                broker.state.queue_ids.at_least(queue.id)
                self._histories[queue.id] = QueueHistory(queue, self._annotations)
        elif op == definitions.DELETE_QUEUE:
            self._forget_queue(definitions.id_of(definition))

    def _forget_queue(self, queue_id: int) -> None:
        queue = self._broker.queues.pop(queue_id, None)
        if queue is not None:
            del self._histories[queue_id]
            for subscription in subscriptions_of(queue):
                del self._broker.leases.subscriptions[subscription.epoch]

    def _drop_subscription(self, subscription: Subscription) -> None:
        for piece in subscription.release():
            self._histories[subscription.queue.id].release(piece)
        subscription.queue.subscriptions.remove(subscription)
        del self._broker.leases.subscriptions[subscription.epoch]

    def finish(self) -> None:
        """Compute the content of each queue, and emit the records of what the restart changed."""
        broker = self._broker
        for history in self._histories.values():
            queue = history.queue
            contents = Contents(history, broker.ledger, broker.clock.now_ms)
            contents.restore()
            if queue.letters:
                broker.pending.waiting[queue.id] = queue
            broker.registry.revive(queue)
            problem = contents.even_out()
            if problem:
                self.unbalanced.append(problem)
        self._broker.sinks.restored()


def take_apart(broker: Broker, positions: set[int]) -> list[Payload]:
    """Unpack, after a restore, the packed payloads with messages at these positions. Returns the
    payloads of those messages."""
    found: list[Payload] = []
    for queue in broker.queues.values():
        for lane in queue.lanes:
            for piece in list(lane.fresh):
                pack = piece.payload.pack
                if pack is not None and not positions.isdisjoint(pack.positions):
                    queue.unpack()
                    break
            for piece in lane.fresh:
                payload = piece.payload
                if payload.pack is None and payload.position in positions:
                    found.append(payload)
    return found


def put_aside(broker: Broker, positions: set[int]) -> int:
    """Quarantine, after a restore, the ready messages of damaged payloads at these positions; other
    messages follow when they are read. Returns the count."""
    count = 0
    take_apart(broker, positions)
    broker.store.trouble = "found damaged when the broker started"
    for queue in broker.queues.values():
        aside = [piece for piece in queue.slices() if piece.payload.position in positions]
        count += sum(len(piece) for piece in aside)
        broker.quarantine.put_ready(queue, aside)
    return count


def drop_lost(broker: Broker, lost: list[Payload]) -> int:
    """Drop, after a restore, messages whose bytes are lost and whose loss the operator accepted, as
    DROPPED_LOST; return their count. Leased messages among them are missing when their range is
    read."""
    gone = {id(payload) for payload in lost}
    count = 0
    for queue in broker.queues.values():
        for piece in queue.clear():
            if id(piece.payload) in gone:
                count += _lose(broker, queue, piece, MOVING)
            else:
                queue.lanes[piece.priority].fresh.append(piece)
                queue.account.move(piece, MOVING, READY)
        for entry in queue.deferrals.take_all():
            if id(entry.piece.payload) in gone:
                count += _lose(broker, queue, entry.piece, DEFERRED)
            else:
                queue.deferrals.add(entry)
        for letter in [x for x in queue.letters if id(x.piece.payload) in gone]:
            queue.letters.remove(letter)
            count += _lose(broker, queue, letter.piece, PENDING)
        for subscription in subscriptions_of(queue):
            held = [lease.slice for lease in subscription.leases]
            for piece in [x for x in held if id(x.payload) in gone]:
                subscription.lose(piece.first, piece.first + len(piece))
                count += _lose(broker, queue, piece, LEASED)
    return count + broker.sinks.lose(gone)


def _lose(broker: Broker, queue: Queue, piece: Slice, bucket: int) -> int:
    """Move messages from a bucket to those dropped as lost; return their count."""
    queue.account.move(piece, bucket, DROPPED, records.DROPPED_LOST)
    broker.ledger.emit(dropped_record(queue.id, piece.first, len(piece), records.DROPPED_LOST))
    return len(piece)
