"""Snapshot: the records of a checkpoint, from which a Restorer makes this broker again; and a
restarted broker compared with notes about the end of its journal."""

from __future__ import annotations

from collections.abc import Iterator

from tallymark.engine import records
from tallymark.engine.arguments import named
from tallymark.engine.broker import Broker
from tallymark.engine.ledger import (
    Ledger,
    counters_record,
    deferred_record,
    defined_record,
    definition_record,
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
from tallymark.engine.pending import letter_record
from tallymark.engine.queue import Queue
from tallymark.engine.records import Record
from tallymark.engine.session import InFlight
from tallymark.engine.sinks import part_record
from tallymark.engine.subscription import ranges_of, subscriptions_of
from tallymark.engine.walltime import in_wall_time


def _in_flight(broker: Broker) -> list[InFlight]:
    """Return all messages that sessions hold, and those settled in open transactions."""
    held = [
        entry
        for connection in broker.connections.values()
        for session in connection.sessions
        for entry in session.inflight
        if not entry.queue.deleted and not entry.void
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
        "op": "ids",
        "queue": broker.state.queue_ids.last,
        "owner": broker.owner_ids.last,
        "message": broker.state.message_ids.last,
        "epoch": broker.leases.epochs,
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
    seen.forget_until(broker.clock.now_ms - queue.settings.dedup_ms)
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
        for lane in queue.lanes
        for piece in lane.fresh
        if piece.payload.pack is not None
    ]


def packed_in(broker: Broker, segments: set[int]) -> Iterator[tuple[Pack, int, Payload]]:
    """Yield every packed message whose bytes are in one of these segments: its pack, its index
    there, and itself. A caller that moves its bytes writes the new position into the pack."""
    for queue in broker.queues.values():
        for lane in queue.lanes:
            for piece in lane.fresh:
                pack = piece.payload.pack
                if pack is not None:
                    for i in range(piece.lo, piece.hi):
                        if pack.positions[i] >> 32 in segments:
                            yield pack, i, piece.payload.single(i)


def tail_of(broker: Broker) -> tuple[list[tuple[int, str, str, int]], list[tuple[int, str, int]]]:
    """Return the present state of what survives a restart: (id, virtual host, name, entered) of
    queues, (epoch, text, floor) of durable subscriptions."""
    queues = [(q.id, q.vhost, q.name, q.entered) for q in broker.queues.values() if q.stored]
    subscriptions = [
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
