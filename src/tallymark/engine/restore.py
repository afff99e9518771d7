"""Restore: a broker rebuilt from its records. The opposite direction is snapshot.py.

`Restorer` replays the journal: a checkpoint's records, then those of later blocks. The order of the
log is trusted. The content of each queue is computed once, at the end, by subtracting ranges:
entered - finished - leased. Messages that were delivered when the broker stopped, or may have been
(below the queue's high-water mark), are ready again with the redelivered flag, and a RETURNED
record says so.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable
from typing import Final, final

from tallymark.engine import definitions, records
from tallymark.engine.annotations import Annotations, ready_since
from tallymark.engine.arguments import named
from tallymark.engine.broker import Broker
from tallymark.engine.intervals import Deferral, Deferrals, IntervalSet, Tally
from tallymark.engine.ledger import dropped_record, lost_delivery_record
from tallymark.engine.message import Payload, Slice
from tallymark.engine.pending import pending_letter
from tallymark.engine.queue import Letter, Queue
from tallymark.engine.records import Record
from tallymark.engine.session import FAILED, RETURNED
from tallymark.engine.settings import OFF
from tallymark.engine.streams import Archived
from tallymark.engine.subscription import Subscription

TELL_ONLY: Final = (records.SLOW, records.CONSUMER)
"""Kinds of record that do not affect the content of a queue."""
_REASONS: Final = {name: reason for reason, name in records.DROP_REASONS.items()}


@final
class _QueueHistory:
    """The records of one queue, collected during the replay."""

    __slots__ = (
        "acquired",
        "counted",
        "deferrals",
        "entered",
        "failures",
        "finished",
        "known",
        "letters",
        "mark",
        "noted",
        "queue",
        "released",
        "returns",
        "supposed",
        "transient",
    )

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.entered: list[Slice] = []
        self.known: dict[int, bytes] = {}
        """Stored annotations of these messages by first sequence. They are decoded if the messages
        are still present."""
        self.transient = IntervalSet()
        """Sequences that entered without stored bytes."""
        self.finished = IntervalSet()
        """Sequences that were settled, dropped or dead-lettered."""
        self.acquired = IntervalSet()
        """Sequences held by a consumer when the log ends."""
        self.returns = Tally()
        """Deliveries that were returned, since the messages entered or since the checkpoint."""
        self.supposed = IntervalSet()
        """Sequences below the high-water mark that no record shows as delivered. They count as
        delivered once, and this is recorded, so that later deliveries are counted from there."""
        self.failures = Tally()
        """Returned deliveries that failed."""
        self.letters: list[Letter] = []
        """Dead letters kept pending, in the order of their records; a later record replaces an
        earlier one."""
        self.released: list[Slice] = []
        """Messages released by subscriptions; the checkpoint contains them only as leased."""
        self.deferrals = Deferrals()
        self.mark = 0
        self.noted: dict[int, bytes] = {}
        """Annotations by sequence, of messages to which consumers added notes when they returned
        them."""
        self.counted = 0
        """Highest sequence that is included in the checkpoint's totals."""

    def note(self, record: Record) -> None:
        """Note a RETURNED or DEFERRED record, which may contain new annotations of the messages."""
        if record.blob:
            for sequence in range(record.first, record.first + record.count):
                self.noted[sequence] = record.blob

    def noted_parts(self, low: int, high: int) -> list[tuple[int, int, bytes]]:
        """Split sequences low..high-1 into stretches with equal noted annotations; b"" where there
        are none."""
        parts: list[tuple[int, int, bytes]] = []
        begin = low
        blob = self.noted.get(low, b"")
        for at in range(low + 1, high):
            now = self.noted.get(at, b"")
            if now != blob:
                parts.append((begin, at, blob))
                begin, blob = at, now
        parts.append((begin, high, blob))
        return parts


@final
class Restorer:
    """Applies records to a fresh broker; `finish` makes it ready to serve."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._histories: dict[int, _QueueHistory] = {}
        self.unbalanced: list[str] = []
        """Error texts about queues whose records do not add up, which only lost blocks can cause.
        What is missing is counted as lost."""
        self._annotations: dict[bytes, Annotations] = {}
        """Annotations by stored form, so that messages which shared an object share one again."""

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
        self._broker.state.owner_ids.at_least(record.owner)
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
        queue = history.queue
        first, end = record.first, record.first + record.count
        if kind == records.SEEN:
            for id in json.loads(record.blob):
                queue.seen_ids.pop(id, None)  # accepted anew: it goes to the end of the order
                queue.seen_ids[id] = record.time_ms
            return
        if kind == records.PUBLISHERS:
            for name, number in json.loads(record.blob).items():
                queue.publishers.pop(name, None)
                queue.publishers[name] = number
            return
        if kind == records.ARCHIVED:
            queue.archive = Archived.from_record(record)
            return
        if kind != records.MARK and end > queue.entered:
            queue.entered = end - 1  # also where the block that says so was lost
        if kind == records.ENTERED or kind == records.LIVE:
            self._enter(history, record, first, end)
        elif kind == records.ACQUIRED:
            history.acquired.add(first, end)
        elif kind == records.SETTLED:
            queue.settled += record.count
            history.finished.add(first, end)
            history.acquired.remove(first, end)
        elif kind == records.DEFERRED:
            history.note(record)
            if record.owner:
                history.acquired.remove(first, end)
                history.returns.add(first, end)
                if record.flags & records.RETURNED_FAILED:
                    history.failures.add(first, end)
            to_tail = record.flags & records.TO_TAIL != 0
            history.deferrals.tell(Deferral(first, end, record.other, to_tail))
        elif kind == records.DEAD_LETTERED:
            queue.dead_lettered += record.count
            history.finished.add(first, end)
            history.acquired.remove(first, end)
        elif kind == records.PENDING:
            history.acquired.remove(first, end)
            self._keep_letter(history, record, first, end)
        elif kind == records.DROPPED:
            queue.dropped[record.reason] = queue.dropped.get(record.reason, 0) + record.count
            history.finished.add(first, end)
            history.acquired.remove(first, end)
            if record.reason in (records.DROPPED_RETENTION, records.DROPPED_ARCHIVED):
                queue.kept_from = max(queue.kept_from, end)
                queue.let_go_bytes += record.other
            if record.reason in (records.DROPPED_LOST, records.DROPPED_UNREADABLE):
                for subscription in queue.subscriptions:
                    subscription.lose(first, end)
        elif kind == records.RETURNED:
            history.note(record)
            history.acquired.remove(first, end)
            history.returns.add(first, end)
            if record.flags & records.RETURNED_FAILED:
                history.failures.add(first, end)
        elif kind == records.MARK:
            history.mark = first
        elif kind == records.LEASED:
            self._lease(record)
        elif kind == records.COUNTERS:
            _set_counters(queue, json.loads(record.blob))
            history.counted = queue.entered

    def _enter(self, history: _QueueHistory, record: Record, first: int, end: int) -> None:
        if record.payload is None:
            history.transient.add(first, end)
        else:
            lo = record.lo
            acquired = failed = 0
            if record.kind == records.LIVE:
                acquired, failed = record.other & 0xFFFFFFFF, record.other >> 32
            if record.blob:
                history.known[first] = record.blob
            history.entered.append(
                Slice(
                    record.payload, lo, lo + record.count, first, acquired, failed, record.reason
                )
            )  # fmt: skip
        if record.kind == records.LIVE and record.flags & records.LIVE_ACQUIRED:
            history.acquired.add(first, end)

    def _read(self, blob: bytes) -> Annotations | None:
        """Decode stored annotations. Raises ValueError for those of a newer version [DL-20]."""
        if not blob:
            return None
        found = self._annotations.get(blob)
        if found is None:
            found = self._annotations[blob] = Annotations.from_bytes(blob)
        return found

    def _keep_letter(self, history: _QueueHistory, record: Record, first: int, end: int) -> None:
        if record.payload is None:
            history.transient.add(first, end)
            return
        piece = Slice(record.payload, record.lo, record.lo + record.count, first, 0)
        history.letters.append(pending_letter(record, piece))

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
                self._read(record.blob),
            )
            subscription.next = low + skip
            subscription.add(piece)

    def _settle_lease(self, record: Record) -> None:
        subscription = self._broker.leases.subscriptions.get(record.owner)
        if subscription is not None:
            for outcome, piece in subscription.settle(record.other):
                if outcome in (RETURNED, FAILED):
                    self._release(subscription, piece)
            subscription.next = max(subscription.next, record.other)

    def _judge(self, record: Record) -> None:
        subscription = self._broker.leases.subscriptions.get(record.owner)
        if subscription is not None:
            for first, count, outcome in json.loads(record.blob):
                subscription.judge(first, count, outcome)

    def _release(self, subscription: Subscription, piece: Slice) -> None:
        """Make messages that a subscription released ready, unless later records say more about
        them."""
        history = self._histories[subscription.queue.id]
        if piece.payload.persistent:
            history.released.append(piece)
        else:
            history.transient.add(piece.first, piece.first + len(piece))

    def _define(self, record: Record) -> None:
        broker = self._broker
        definition = json.loads(record.blob)
        op = definition["op"]
        if op == "ids":
            broker.state.queue_ids.at_least(definition["queue"])
            broker.state.owner_ids.at_least(definition["owner"])
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
        vhost = broker.vhosts.get(vhost_name) or broker.enter_vhost(vhost_name)
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
                self._histories[queue.id] = _QueueHistory(queue)
        elif op == definitions.DELETE_QUEUE:
            self._forget_queue(definitions.id_of(definition))

    def _forget_queue(self, queue_id: int) -> None:
        queue = self._broker.queues.pop(queue_id, None)
        if queue is not None:
            del self._histories[queue_id]
            for subscription in queue.subscriptions:
                del self._broker.leases.subscriptions[subscription.epoch]

    def _drop_subscription(self, subscription: Subscription) -> None:
        for piece in subscription.release():
            self._release(subscription, piece)
        subscription.queue.subscriptions.remove(subscription)
        del self._broker.leases.subscriptions[subscription.epoch]

    def finish(self) -> None:
        """Compute the content of each queue, and emit the records of what the restart changed."""
        for history in self._histories.values():
            self._finish_queue(history)
        self._broker.sinks.restored()

    def _finish_queue(self, history: _QueueHistory) -> None:
        broker = self._broker
        queue = history.queue
        queue.body_bytes = OFF
        leased = IntervalSet()
        for subscription in queue.subscriptions:
            for lease in subscription.leases:
                piece = lease.slice
                leased.add(piece.first, piece.first + len(piece))
                piece.payload.live += len(piece)
                queue.acquired += len(piece)
                queue.acquired_bytes += piece.size()
                queue.leased += len(piece)
        gone = history.finished
        for low, high in leased:
            gone.add(low, high)
        self._place_letters(history)
        if history.released:
            _readmit(history)
        history.entered.sort(key=lambda piece: piece.first)
        for whole in history.entered:
            for low, high in gone.gaps(whole.first, whole.first + len(whole)):
                if whole.annotations is None:
                    whole.annotations = self._read(history.known.get(whole.first, b""))
                if not history.noted:
                    self._place(history, whole, low, high)
                    continue
                for a, b, blob in history.noted_parts(low, high):
                    part = whole.part(a - whole.first, b - whole.first)
                    if blob:
                        part.annotations = self._read(blob)
                    self._place(history, part, a, b)
        for low, high in history.transient:
            for a, b in gone.gaps(low, high):
                reason = records.DROPPED_TRANSIENT
                queue.dropped[reason] = queue.dropped.get(reason, 0) + b - a
                history.acquired.remove(a, b)
                broker.ledger.emit(dropped_record(queue.id, a, b - a, reason))
        for low, high in history.supposed:
            history.acquired.add(low, high)
        for low, high in history.acquired:
            for a, b in gone.gaps(low, high):
                broker.ledger.emit(lost_delivery_record(queue.id, a, b - a))
        queue.mark = queue.mark_durable = queue.renew_at = history.mark
        if queue.settings.is_stream:
            queue.mark_durable = queue.entered + 1  # all restored messages are on disk
        broker.revive(queue)
        if not queue.is_balanced():
            self.unbalanced.append(_sum_of(queue))
            self._drop_missing(history)
            self._even_out(queue)

    def _drop_missing(self, history: _QueueHistory) -> None:
        """Count messages as lost of which only their sequences are known, after lost blocks were
        accepted."""
        queue = history.queue
        known = history.finished
        for whole in history.entered:
            known.add(whole.first, whole.first + len(whole))
        for low, high in history.transient:
            known.add(low, high)
        for low, high in known.gaps(history.counted + 1, queue.entered + 1):
            reason = records.DROPPED_LOST
            queue.dropped[reason] = queue.dropped.get(reason, 0) + high - low
            self._broker.ledger.emit(dropped_record(queue.id, low, high - low, reason))

    def _even_out(self, queue: Queue) -> None:
        """Balance an account that its records do not explain: count missing messages as dropped,
        and subtract surplus ones from the settled."""
        here = queue.ready + queue.acquired + queue.deferred + queue.pending
        ended = queue.settled + queue.dead_lettered + sum(queue.dropped.values())
        missing = queue.entered - here - ended
        if missing > 0:
            queue.drop(missing, records.DROPPED_LOST)
        elif missing < 0:
            queue.settled += missing

    def _place(self, history: _QueueHistory, whole: Slice, low: int, high: int) -> None:
        """Make sequences low..high-1 of a slice ready, flagged as redelivered if they may have been
        delivered."""
        for a, b, returns in history.returns.of(low, high):
            for c, d, failures in history.failures.of(a, b):
                self._place_counted(
                    history, whole.part(c - whole.first, d - whole.first), returns, failures
                )

    def _place_counted(
        self, history: _QueueHistory, whole: Slice, returns: int, failures: int
    ) -> None:
        """Make messages ready that were returned equally often since their last ENTERED or LIVE
        record."""
        queue = history.queue
        whole.acquired += returns
        whole.failed += failures
        low, high = whole.first, whole.first + len(whole)
        held = IntervalSet()
        if not whole.acquired and not self._is_due_later(whole) and low < history.mark:
            held.add(low, min(high, history.mark))
            history.supposed.add(low, min(high, history.mark))
        for a, b in history.acquired.overlap(low, high):
            held.add(a, b)
        pieces = [(a, b, 1) for a, b in held]
        pieces += [(a, b, 0) for a, b in held.gaps(low, high)]
        for a, b, more in sorted(pieces):
            piece = whole.part(a - low, b - low)
            if piece.payload.pack is not None:  # keep columns of present messages only
                piece.payload = piece.payload.window(piece.lo, piece.hi)
                piece.lo, piece.hi = 0, piece.payload.count
            piece.acquired += more
            piece.priority = min(piece.priority, len(queue.lanes) - 1)
            piece.payload.live += b - a
            self._place_ready(history, piece)

    def _is_due_later(self, piece: Slice) -> bool:
        """Return whether the messages were published with a due time in the future: no consumer can
        have received them."""
        known = piece.annotations
        return known is not None and known.due_ms > self._broker.clock.now_ms

    def _place_ready(self, history: _QueueHistory, piece: Slice) -> None:
        """Make messages ready, or defer them if their due time has not come."""
        queue = history.queue
        now = self._broker.clock.now_ms
        known = piece.annotations
        if known is not None and known.due_ms:
            if known.due_ms > now:
                queue.defer(piece, known.due_ms, True)
                return
            piece.annotations = ready_since(known, known.due_ms)
        at = 0
        for deferral in history.deferrals.of(piece.first, piece.first + len(piece)):
            if deferral.due_ms > now:
                start, stop = deferral.low - piece.first, deferral.high - piece.first
                if start > at:
                    _enter_ready(queue, piece.part(at, start))
                queue.defer(piece.part(start, stop), deferral.due_ms, deferral.to_tail)
                at = stop
        if at < len(piece):
            _enter_ready(queue, piece.part(at, len(piece)))

    def _place_letters(self, history: _QueueHistory) -> None:
        """Restore pending letters, in the order in which they first became pending. Their messages
        are not ready. The last record about a message counts."""
        queue = history.queue
        told = IntervalSet()
        turns: dict[int, int] = {}
        for turn, letter in enumerate(history.letters):
            start = letter.piece.first
            for low, high in history.finished.gaps(start, start + len(letter.piece)):
                for seq in range(low, high):
                    turns.setdefault(seq, turn)
        found: list[tuple[int, int, Letter]] = []
        for letter in reversed(history.letters):
            first = letter.piece.first
            for low, high in told.gaps(first, first + len(letter.piece)):
                for a, b in history.finished.gaps(low, high):
                    found.append((turns[a], a, letter.part(a - first, b - first)))
            told.add(first, first + len(letter.piece))
        found.sort(key=_turn)
        for _, _, letter in found:
            piece = letter.piece
            piece.payload.live += len(piece)
            queue.keep(letter)
            history.finished.add(piece.first, piece.first + len(piece))
        if queue.letters:
            self._broker.pending.waiting[queue.id] = queue


def _sum_of(queue: Queue) -> str:
    """Return an error text about an account that does not balance."""
    here = queue.ready + queue.acquired + queue.deferred + queue.pending
    ended = queue.settled + queue.dead_lettered + sum(queue.dropped.values())
    return (
        f"{named('queue', queue.name, queue.vhost)} does not balance: {queue.entered} messages "
        f"entered, {here} are there and {ended} ended, which makes {here + ended}"
    )


def _turn(found: tuple[int, int, Letter]) -> tuple[int, int]:
    """Return the sort key of pending letters: the order in which they died."""
    return found[0], found[1]


def _enter_ready(queue: Queue, piece: Slice) -> None:
    queue.ready += len(piece)
    queue.ready_bytes += piece.size()
    if (
        piece.annotations is not None
        and piece.annotations.ttl_ms >= 0
        and not queue.settings.is_stream
    ):
        queue.own_ttl = True
    queue.lanes[piece.priority].fresh.append(piece)


def _readmit(history: _QueueHistory) -> None:
    """Add messages that dropped subscriptions released to those that entered, as they may have
    entered before the checkpoint."""
    known = IntervalSet()
    for piece in history.entered:
        known.add(piece.first, piece.first + len(piece))
    for piece in history.released:
        for low, high in known.gaps(piece.first, piece.first + len(piece)):
            history.entered.append(piece.part(low - piece.first, high - piece.first))
            known.add(low, high)


def _set_counters(queue: Queue, counters: dict[str, object]) -> None:
    for name in ("entered", "settled", "dead_lettered"):
        value = counters[name]
        assert isinstance(value, int), (name, value)
        setattr(queue, name, value)
    for name, default in (("kept_from", 1), ("let_go_bytes", 0)):
        value = counters.get(name, default)
        assert isinstance(value, int), (name, value)
        setattr(queue, name, value)
    dropped = counters["dropped"]
    assert isinstance(dropped, dict), dropped
    queue.dropped = {_REASONS[reason]: count for reason, count in dropped.items()}


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
        ready, ready_bytes = queue.ready, queue.ready_bytes
        for piece in queue.clear():
            if id(piece.payload) in gone:
                ready -= len(piece)
                ready_bytes -= piece.size()
                queue.drop(len(piece), records.DROPPED_LOST)
                count += _record_lost(broker, queue, piece)
            else:
                queue.lanes[piece.priority].fresh.append(piece)
        queue.ready, queue.ready_bytes = ready, ready_bytes
        for entry in [x for x in queue.deferrals if id(x[3].payload) in gone]:
            queue.deferrals.remove(entry)
            queue.deferred -= len(entry[3])
            queue.deferred_bytes -= entry[3].size()
            queue.drop(len(entry[3]), records.DROPPED_LOST)
            count += _record_lost(broker, queue, entry[3])
        heapq.heapify(queue.deferrals)
        for letter in [x for x in queue.letters if id(x.piece.payload) in gone]:
            queue.letters.remove(letter)
            queue.release(letter.piece)
            queue.drop(len(letter.piece), records.DROPPED_LOST)
            count += _record_lost(broker, queue, letter.piece)
        for subscription in queue.subscriptions:
            held = [lease.slice for lease in subscription.leases]
            for piece in [x for x in held if id(x.payload) in gone]:
                subscription.lose(piece.first, piece.first + len(piece))
                queue.leased -= len(piece)
                queue.leave_acquired(piece)
                queue.drop(len(piece), records.DROPPED_LOST)
                count += _record_lost(broker, queue, piece)
    return count + broker.sinks.lose(gone)


def _record_lost(broker: Broker, queue: Queue, piece: Slice) -> int:
    broker.ledger.emit(dropped_record(queue.id, piece.first, len(piece), records.DROPPED_LOST))
    return len(piece)
