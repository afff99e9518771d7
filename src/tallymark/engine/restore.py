"""A restart: the records of a checkpoint, and a broker rebuilt from these and later ones.

`snapshot` says in records what a broker has; `Restorer` replays a checkpoint's records, then those
of later blocks. What they say about a queue is gathered in its history, and its content is computed
once, at the end (history.py). A restarted broker is compared with notes about the end of its
journal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final, final

from tallymark.engine import definitions
from tallymark.engine.account import DEFERRED, DROPPED, LEASED, MOVING, PENDING, READY
from tallymark.engine.broker import Broker
from tallymark.engine.clock import in_wall_time
from tallymark.engine.history import Contents, QueueHistory, StoredAnnotations
from tallymark.engine.ledger import (
    Ledger,
    counters_record,
    deferred_record,
    defined_record,
    definition_record,
    dropped_record,
    lease_settled_record,
    leased_record,
    live_record,
    mark_record,
    payload_record,
    publishers_record,
    seen_record,
    verdicts_record,
)
from tallymark.engine.message import Pack, Payload, Slice
from tallymark.engine.names import named
from tallymark.engine.outcomes import ACCEPTED, REJECTED
from tallymark.engine.pending import letter_record
from tallymark.engine.queue import Queue
from tallymark.engine.record import Record
from tallymark.engine.session import InFlight
from tallymark.engine.sinks import part_record
from tallymark.engine.subscription import Subscription, ranges_of, subscriptions_of
from tallymark.stored import records
from tallymark.stored.formats import NEWEST
from tallymark.stored.records import number_in
from tallymark.units import EngineMs, LeaseSequence, QueueSequence

TELL_ONLY: Final = (records.SLOW, records.CONSUMER)
"""Kinds of record that do not affect the content of a queue."""


def _in_flight(broker: Broker) -> list[InFlight]:
    """Return all messages that sessions hold, and those settled in open transactions."""
    held = [
        entry
        for connection in broker.connections.values()
        for session in connection.sessions
        for entry in session.inflight
        if not entry.void
    ]
    return held + broker.transactions.parked()


def snapshot(broker: Broker, clean: bool) -> list[Record]:
    """Return the records from which a Restorer makes this broker again. Called right after a
    commit: they describe the journal up to there. Packed payloads are written out by
    ledger.expanded.

    clean: nobody is connected and nobody will be: what was handed out is known exactly, so that
    the marks are left out and only what really was delivered comes back flagged.
    """
    out = Ledger(broker.clock)
    ids: dict[str, object] = {
        "op": definitions.IDS,
        "queue": broker.state.queue_ids.last,
        "owner": broker.owner_ids.last,
        "message": broker.state.message_ids.last,
        "epoch": broker.leases.attaches,
    }
    out.emit(defined_record(ids))
    for vhost in broker.vhosts.values():
        for blob in vhost.topology.definitions():
            out.emit(definition_record(blob))
    placed: dict[int, Payload] = {}
    for queue in broker.queues.values():
        if queue.stored:
            _snapshot_queue(broker, queue, clean, placed, out)
    for entry in _in_flight(broker):
        if entry.queue.stored:
            for low, high in entry.pieces(entry.first, entry.last):
                owner = entry.consumer.id if entry.consumer is not None else 0
                flags = records.LIVE_ACQUIRED
                _add_live(entry.queue, entry.part(low, high), placed, out, owner, flags)
    for payload in broker.transactions.payloads():
        _add_payload(payload, placed, out)  # a commit may name what no queue has now
    for staging in broker.sinks.stagings.values():
        for index, part in enumerate(staging.parts):
            payload = _add_payload(part.payload, placed, out)
            out.emit(part_record(staging, part, index, payload, part.staged_ms))
    for sink in broker.sinks.sinks.values():
        out.emit(defined_record(broker.sinks.definition(sink)))
    return in_wall_time(out.take(), broker.clock.ahead_ms)


def _snapshot_queue(
    broker: Broker, queue: Queue, clean: bool, placed: dict[int, Payload], out: Ledger
) -> None:
    out.emit(counters_record(queue.id, queue.counters()))
    if queue.high_water.mark and not clean:
        out.emit(mark_record(queue.id, queue.high_water.mark))
    for piece in queue.slices():
        _add_live(queue, piece, placed, out)
    for entry in queue.quarantine:  # the restart tries to read them again
        if entry.letter is None:
            _add_live(queue, entry.piece, placed, out)
    for one in queue.deferrals:
        _add_live(queue, one.piece, placed, out)
        out.emit(deferred_record(queue.id, one.piece, one.due_ms, one.to_tail))
    for letter in [*queue.letters, *[x.letter for x in queue.quarantine if x.letter is not None]]:
        payload = letter.piece.payload
        if payload.persistent:
            payload = _add_payload(payload, placed, out)
        out.emit(letter_record(queue, letter, payload))
    if queue.retention.archive is not None:
        out.emit(queue.retention.archive.to_record(queue.id))
    if queue.deduplication.numbers:
        out.emit(publishers_record(queue.id, queue.deduplication.numbers))
    seen = queue.deduplication
    seen.forget_until(EngineMs(broker.clock.now_ms - queue.settings.dedup_ms))
    for time_ms, ids in seen.ids_by_time():
        out.emit(seen_record(queue.id, ids, time_ms))
    for subscription in subscriptions_of(queue):
        epoch = subscription.epoch
        out.emit(defined_record(broker.leases.definition(subscription)))
        out.emit(lease_settled_record(queue.id, epoch, subscription.floor))
        for lease in subscription.leases:
            row = leased_record(queue.id, epoch, lease.first, lease.slice)
            row.payload = _add_payload(lease.slice.payload, placed, out)
            out.emit(row)
        if subscription.verdicts:
            out.emit(verdicts_record(queue.id, epoch, ranges_of(subscription.verdicts)))


def _add_live(
    queue: Queue,
    piece: Slice,
    placed: dict[int, Payload],
    out: Ledger,
    owner: int = 0,
    flags: int = 0,
) -> None:
    payload: Payload | None = None
    pack = piece.payload.pack
    if pack is not None:
        payload = piece.payload
        if queue.settings.is_stream and not pack.annotations:
            flags |= records.LIVE_PACKED
    elif piece.payload.persistent and piece.payload.position >= 0:
        payload = _add_payload(piece.payload, placed, out)
    out.emit(live_record(queue.id, piece, payload, owner, flags))


def _add_payload(payload: Payload, placed: dict[int, Payload], out: Ledger) -> Payload:
    """Add a payload as the checkpoint names it: a copy without bytes that keeps its position. The
    checkpoint is written later, when the engine may have released the original."""
    copy = placed.get(id(payload))
    if copy is None:
        copy = Payload(
            payload.format,
            None,
            payload.cuts,
            payload.route,
            payload.routes,
            payload.first_id,
            payload.arrived_ms,
            payload.persistent,
            payload.largest_frame,
        )
        copy.position = payload.position
        copy.sum = payload.sum
        placed[id(payload)] = copy
        out.emit(payload_record(copy))
    return copy


def live_payloads(broker: Broker) -> list[Payload]:
    """Return every payload that a queue, transaction or sink still needs, each once, without packed
    ones."""
    found: dict[int, Payload] = {}
    for queue in broker.queues.values():
        for piece in [
            *queue.slices(),
            *[letter.piece for letter in queue.letters],
            *[entry.piece for entry in queue.deferrals],
        ]:
            if piece.payload.pack is None:
                found[id(piece.payload)] = piece.payload
        for subscription in subscriptions_of(queue):
            for lease in subscription.leases:
                found[id(lease.slice.payload)] = lease.slice.payload
    for entry in _in_flight(broker):
        found[id(entry.slice.payload)] = entry.slice.payload
    for payload in [*broker.transactions.payloads(), *broker.sinks.payloads()]:
        found[id(payload)] = payload
    return list(found.values())


def packed_payloads(broker: Broker) -> list[Payload]:
    """Return every packed payload that a queue still needs."""
    return [
        piece.payload
        for queue in broker.queues.values()
        for lane in queue.lanes.by_priority
        for piece in lane.fresh
        if piece.payload.pack is not None
    ]


def packed_in(broker: Broker, segments: set[int]) -> Iterator[tuple[Pack, int, Payload]]:
    """Yield every packed message whose bytes are in one of these segments: its pack, its index
    there, and itself. A caller that moves its bytes writes the new position into the pack."""
    for queue in broker.queues.values():
        for lane in queue.lanes.by_priority:
            for piece in lane.fresh:
                pack = piece.payload.pack
                if pack is not None:
                    for i in range(piece.lo, piece.hi):
                        if pack.positions[i] >> 32 in segments:
                            yield pack, i, piece.payload.single(i)


def tail_of(
    broker: Broker,
) -> tuple[list[tuple[int, str, str, int]], list[tuple[int, str, int]]]:
    """Return the present state of what survives a restart: (id, virtual host, name, entered) of
    queues, (epoch, text, floor) of durable subscriptions."""
    queues = [(q.id, q.vhost, q.name, q.entered) for q in broker.queues.values() if q.stored]
    subscriptions: list[tuple[int, str, int]] = [
        (s.epoch, f"subscription '{s.name}' on {named('queue', s.queue.name, s.queue.vhost)}",
         s.floor)
        for s in broker.leases.subscriptions.values()
    ]  # fmt: skip
    return queues, subscriptions


def missing_since(
    broker: Broker,
    queues: list[tuple[int, str, str, int]],
    subscriptions: list[tuple[int, str, int]],
) -> list[str]:
    """Return descriptions of what the notes contain and this restored broker lacks."""
    found: list[str] = []
    for id, vhost, name, entered in queues:
        queue = broker.queues.get(id)
        where = named("queue", name, vhost)
        if queue is None:
            found.append(f"{where} is missing; {entered} messages had entered it")
        elif queue.entered < entered:
            found.append(
                f"{where}: messages {queue.entered + 1} to {entered} had entered and are gone, and "
                "messages that were settled in the lost blocks are ready again"
            )
    for epoch, text, floor in subscriptions:
        subscription = broker.leases.subscriptions.get(epoch)
        if subscription is None:
            found.append(f"{text} is missing; it was settled up to {floor}")
        elif subscription.floor < floor:
            found.append(
                f"{text} was settled up to {floor} and is now up to {subscription.floor}: the "
                "messages between are delivered again"
            )
    return found


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
            ValueError: a record that this version does not understand. Nothing is guessed.
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
            if record.payload is not None:
                self._check_format(record.payload.format)
            return
        if kind not in records.KINDS:
            raise ValueError(f"record of unknown kind {kind}: written by a newer version?")
        self._broker.owner_ids.at_least(record.owner)
        if kind in TELL_ONLY:
            return
        reasons = records.REASONS.get(kind)
        if record.reason and reasons is not None and record.reason not in reasons:
            raise ValueError(
                f"{records.KINDS[kind]} record of unknown reason {record.reason}: written by a "
                "newer version?"
            )
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
        subscription.next = LeaseSequence(max(subscription.next, low + record.count))
        if skip < record.count and record.payload is not None:
            piece = Slice(
                record.payload,
                record.lo + skip,
                record.lo + record.count,
                QueueSequence(record.first + skip),
                record.flags,
                record.other >> 48,
                record.reason,
                self._annotations.read(record.blob),
            )
            subscription.next = LeaseSequence(low + skip)
            subscription.add(piece)

    def _settle_lease(self, record: Record) -> None:
        subscription = self._broker.leases.subscriptions.get(record.owner)
        if subscription is not None:
            history = self._histories[subscription.queue.id]
            for outcome, piece in subscription.settle(LeaseSequence(record.other)):
                if outcome != ACCEPTED:
                    history.release(piece)
                if outcome == REJECTED:  # no row but this one, if it was quarantined on its way
                    history.acquired.add(piece.first, piece.first + len(piece))
            subscription.next = LeaseSequence(max(subscription.next, record.other))

    def _judge(self, record: Record) -> None:
        subscription = self._broker.leases.subscriptions.get(record.owner)
        if subscription is not None:
            for first, count, outcome in json.loads(record.blob):
                if outcome not in records.OUTCOMES:
                    raise ValueError(
                        f"verdict of unknown outcome {outcome}: written by a newer version?"
                    )
                subscription.judge(first, count, outcome)

    def _check_format(self, format: int) -> None:
        if format > NEWEST and format not in self._broker.formats:
            raise ValueError(f"messages of unknown format {format}: written by a newer version?")

    def _define(self, record: Record) -> None:
        broker = self._broker
        definition = definitions.checked(record.blob)
        op = definition["op"]
        if op == definitions.IDS:
            broker.state.queue_ids.at_least(number_in(definition, "queue"))
            broker.owner_ids.at_least(number_in(definition, "owner"))
            broker.state.message_ids.at_least(number_in(definition, "message"))
            broker.leases.attaches = max(broker.leases.attaches, number_in(definition, "epoch"))
        elif op == definitions.SUBSCRIPTION:
            history = self._histories.get(number_in(definition, "queue_id"))
            epoch, fence = number_in(definition, "epoch"), number_in(definition, "fence")
            broker.leases.attaches = max(broker.leases.attaches, epoch, fence)
            if history is not None:
                broker.leases.restore(definition, history.queue)
        elif op == definitions.DROP_SUBSCRIPTION:
            subscription = broker.leases.subscriptions.get(number_in(definition, "epoch"))
            if subscription is not None:
                self._drop_subscription(subscription)
        elif op in (definitions.SINK, definitions.DROP_SINK):
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
        for lane in queue.lanes.by_priority:
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
                queue.lanes.by_priority[piece.priority].fresh.append(piece)
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
                subscription.lose(piece.first, QueueSequence(piece.first + len(piece)))
                count += _lose(broker, queue, piece, LEASED)
    return count + broker.sinks.lose(gone)


def _lose(broker: Broker, queue: Queue, piece: Slice, bucket: int) -> int:
    """Move messages from a bucket to those dropped as lost; return their count."""
    queue.account.move(piece, bucket, DROPPED, records.DROPPED_LOST)
    broker.ledger.emit(dropped_record(queue.id, piece.first, len(piece), records.DROPPED_LOST))
    return len(piece)
