"""A day of mixed traffic in a data folder, in minutes: the real engine and the real journal under
a manual clock, without sockets.

    python -m bench.day_of_traffic DIR --transitions 10000000
    tallymark pipeline reconcile --hours --data-dir DIR
    python -m bench.forge DIR      # one record changed, its checksums made right
    tallymark pipeline reconcile --hours --data-dir DIR     # names that message

A *transition* is one message and one thing that happened to it; the journal keeps them as rows of
ranges. What happens: topic, direct and fanout routing, acknowledgements in and out of order,
rejections, requeues, time-outs, messages that expire, overflow and are deduplicated, dead letters
that go round in a cycle, delayed retries, transactions committed and rolled back, leases to Spark,
an NSQ topic that is paused, a stream with retention, purges, deleted queues, connections that
vanish; the broker is stopped and killed six times.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import select
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tallymark.bridge.nsq.format import NsqFormat
from tallymark.bridge.nsq.topics import Topics
from tallymark.engine.broker import Broker
from tallymark.engine.effects import Deliver, Effect, TimedOut
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.message import Format, Payload
from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, REJECTED, RETURNED
from tallymark.engine.queue import Queue
from tallymark.engine.record import Record
from tallymark.engine.restore import Restorer, live_payloads, snapshot
from tallymark.engine.session import REQUEUES, Connection, Consumer, Session
from tallymark.engine.streams import FIRST, Start
from tallymark.journal.journal import Journal
from tallymark.stored import records
from tallymark.stored.annotations import Route
from tallymark.stored.formats import NSQ
from tallymark.wire.nsq import kernel as nsq

DAY_MS: Final = 24 * 3600 * 1000
MIDNIGHT_MS: Final = 1_767_225_600_000
"""2026-01-01 00:00 UTC."""
FORMAT: Final = 9
"""Of the messages here: 16 bytes, of which the first is a priority and the last eight an id."""
SIZE: Final = 16
PER_STEP: Final = 140
"""Transitions in a step, about, with everybody at work."""
KEEP_MS: Final = 100 * DAY_MS
HAPPENED: Final = (
    records.ENTERED, records.ACQUIRED, records.SETTLED, records.RETURNED, records.DROPPED,
    records.LEASED, records.DEAD_LETTERED, records.PENDING, records.DEFERRED, records.STAGED,
    records.UNSTAGED,
)  # fmt: skip
"""Kinds of record that say of each of their messages that something happened to it."""


class DayFormat(Format):
    """What queues ask about the messages of this day."""

    __slots__ = ()

    def priorities(self, payload: Payload, lo: int, hi: int) -> bytes:
        raw, cuts = payload.raw, payload.cuts
        assert raw is not None
        return bytes(raw[cuts[i]] for i in range(lo, hi))

    def ids(self, payload: Payload, lo: int, hi: int) -> list[str]:
        raw, cuts = payload.raw, payload.cuts
        assert raw is not None
        return [raw[cuts[i] + 8 : cuts[i + 1]].hex() for i in range(lo, hi)]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of a day."""

    transitions: int = 10_000_000
    seed: int = 8
    restarts: int = 6
    """Every second one is a crash."""
    segment_bytes: int = 64 << 20
    is_awake: bool = False
    """Whether the broker has a turn whenever one is due, as one in a process has, and not only with
    each step; and whether each block is on disk before what waits for it goes on."""

    @property
    def steps(self) -> int:
        return max(240, self.transitions // PER_STEP)


@dataclass(slots=True)
class Told:
    """What was written."""

    transitions: int = 0
    rows: int = 0
    messages: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    late: int = 0
    """Answers of NSQ consumers that came after the message had been taken back."""
    seconds: float = 0.0

    def note(self, block: list[Record]) -> None:
        self.rows += len(block)
        for record in block:
            if record.kind in HAPPENED:
                self.transitions += record.count
                kind = records.KINDS[record.kind]
                self.by_kind[kind] = self.by_kind.get(kind, 0) + record.count


class Worker:
    """A consumer with habits: what it does with a delivery, and after how many steps."""

    def __init__(
        self, queue: str, prefetch: int, slow: tuple[int, int], habits: dict[str, int],
        kind: str = "",
    ) -> None:  # fmt: skip
        self.queue = queue
        self.prefetch = prefetch
        self.slow = slow
        """It takes between so many steps."""
        self.deeds = list(habits)
        self.weights = list(habits.values())
        self.kind = kind
        """"nsq", "tx", "auto" (no acknowledgements), "stream" or ""."""
        self.connection: Connection
        self.session: Session
        self.consumer: Consumer
        self.holds: list[tuple[int, int, int]] = []
        """(due step, first tag, last tag)"""


WELL: Final = {"accept": 940, "reject": 12, "return": 20, "fail": 15, "discard": 5, "forget": 1}
WORKERS: Final = (
    Worker("bill", 40, (0, 2), WELL),
    Worker("bill", 20, (1, 5), WELL),
    Worker("audit", 200, (0, 1), {"accept": 1}, "auto"),
    Worker("work", 30, (0, 3), {"accept": 850, "reject": 100, "return": 50, "forget": 2}),
    Worker("work", 10, (4, 30), {"accept": 900, "return": 80, "recover": 20, "forget": 5}),
    Worker("orders", 50, (0, 2), {"commit": 850, "roll back": 150}, "tx"),
    Worker("retried", 20, (0, 2), {"accept": 600, "fail": 400}),
    Worker("urgent", 10, (0, 1), {"accept": 970, "return": 30}),
    Worker("once", 50, (0, 1), {"accept": 1}),
    Worker("parked", 100, (20, 80), {"accept": 1}),
    Worker("events:billing", 30, (0, 2), {"accept": 900, "requeue": 60, "later": 40}, "nsq"),
    Worker("events:archive", 100, (0, 4), {"accept": 980, "requeue": 10, "forget": 10}, "nsq"),
    Worker("log", 500, (0, 1), {"accept": 1}, "stream"),
)
FLOWS: Final = (
    ("market", "eu.paid", 5.0), ("market", "us.paid", 4.0), ("market", "eu.late", 1.0),
    ("", "work", 3.0), ("", "orders", 3.0), ("", "mail", 1.0), ("", "ring", 2.0),
    ("", "retried", 1.0), ("", "urgent", 1.0), ("", "once", 1.0), ("", "table", 2.0),
    ("", "log", 2.0), ("", "brief", 0.5), ("", "full", 0.5),
)  # fmt: skip
"""Exchange, key and messages a step on average."""


class Day:
    """One data folder and the broker on it."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan
        self.told = Told()
        self.chance = random.Random(plan.seed)
        self.step_ms = DAY_MS // plan.steps
        self.now_ms = MIDNIGHT_MS
        self.step = 0
        self._ids = 0
        self._sent: dict[str, int] = {}
        """The last id, by routing key."""
        self._workers: dict[int, Worker] = {}
        """By session."""
        self._lease = 0
        self._timed_out: list[Worker] = []
        self._open()
        self._declare()

    # -- the broker

    def _open(self) -> None:
        self.journal = Journal(
            self.folder, _failed, sync="commit" if self.plan.is_awake else "never",
            segment_bytes=self.plan.segment_bytes,
        )  # fmt: skip
        self.broker = Broker(self.journal.fetch)
        self.broker.formats.update({0: Format(), FORMAT: DayFormat(), NSQ: NsqFormat()})
        self.broker.clock.tell(self.now_ms)
        Restorer(self.broker).run(self.journal.recovered())
        lost = [
            p for p in live_payloads(self.broker) if not self.journal.retain(p.position, p.size)
        ]
        assert not lost, lost
        self.journal.start()
        self.vhost = self.broker.registry.add_vhost("/")
        self.connection = self.broker.clients.open_connection("/", "guest", "day")
        self.publisher = self.broker.clients.open_session(self.connection)
        self.topics = Topics(self.broker, "/", 10_000)
        self.topics.keeps_changes = False

    def _declare(self) -> None:
        step = self.step_ms
        letters: dict[str, object] = {"x-dead-letter-exchange": "letters"}
        for exchange, kind in (("market", "topic"), ("letters", "topic"), ("again", "fanout")):
            self.vhost.declare_exchange(exchange, kind, True, False, False, {}, False)
        self._queue("bill", {**letters, "x-delivery-limit": 3})
        self._queue("audit")
        self._queue("work", {"x-dead-letter-exchange": "again", "x-consumer-timeout": 20 * step})
        self._queue("retry", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work",
                              "x-message-ttl": 5 * step})  # fmt: skip
        self._queue("orders", letters)
        self._queue("mail", {**letters, "x-message-ttl": 30 * step})
        self._queue("ring", {**letters, "x-max-length": 500})
        self._queue("retried", {"x-delayed-retry-type": "all", "x-delayed-retry-min": 3 * step,
                                "x-delivery-limit": 2, **letters})  # fmt: skip
        self._queue("urgent", {"x-max-priority": 5})
        self._queue("once", {"x-message-deduplication": 200 * step})
        self._queue("table")
        self._queue("brief")
        self._queue("full", {"x-max-length": 40, "x-overflow": "reject-publish"})
        self._queue("parked", {"x-consumer-timeout": 100 * step})
        self._queue("unsafe", durable=False)
        self._queue("log", {"x-queue-type": "stream", "x-max-age": f"{8 * 3600}s"})
        for queue, key in (("bill", "*.paid"), ("audit", "eu.#"), ("unsafe", "us.*")):
            self.vhost.bind_queue(queue, "market", key, {}, self.connection.id)
        self.vhost.bind_queue("parked", "letters", "#", {}, self.connection.id)
        self.vhost.bind_queue("retry", "again", "", {}, self.connection.id)
        for channel in ("billing", "archive"):
            self.topics.channel("events", channel)
        self._everybody_connects()

    def _queue(
        self, name: str, arguments: dict[str, object] | None = None, durable: bool = True
    ) -> Queue:
        return self.broker.registry.declare_queue(
            self.connection, name, durable, False, False, arguments or {}, False
        )

    def _everybody_connects(self) -> None:
        self._workers.clear()
        self._lease = -1
        for worker in WORKERS:
            self._connect(worker)

    def _connect(self, worker: Worker) -> None:
        broker = self.broker
        worker.connection = broker.clients.open_connection("/", "guest", worker.queue)
        worker.session = session = broker.clients.open_session(worker.connection)
        worker.holds = []
        self._workers[session.id] = worker
        broker.consuming.set_prefetch(session, worker.prefetch, False)
        queue = self.vhost.queues[worker.queue]
        if worker.kind == "stream":
            worker.consumer = broker.consuming.read(session, queue, "c", Start(FIRST), False)
            return
        worker.consumer = broker.consuming.consume(
            session, queue, "c", worker.kind == "auto", False, 0, {}
        )
        if worker.kind == "nsq":
            worker.consumer.on_timeout = REQUEUES
            worker.consumer.timeout_ms = 15 * self.step_ms
            broker.consuming.set_limit(worker.consumer, 0)
            broker.consuming.set_limit(worker.consumer, worker.prefetch)

    def _disconnect(self, worker: Worker, lost: bool) -> None:
        self._workers.pop(worker.session.id, None)
        self.broker.clients.close_connection(worker.connection, lost)

    # -- time

    def run(self) -> Told:
        """The whole day, up to a checkpoint and a clean end."""
        began = time.perf_counter()
        every = self.plan.steps // (self.plan.restarts + 1)
        checkpoint = max(40, self.plan.steps // 40)
        for step in range(1, self.plan.steps + 1):
            self.step = step
            if self.plan.is_awake:
                self._wake(self.now_ms + self.step_ms)
            self.now_ms = MIDNIGHT_MS + step * self.step_ms
            self.broker.clock.tell(self.now_ms)
            self._publish()
            self._work()
            self._lease_and_settle()
            self._now_and_then()
            self._turn()
            if step % checkpoint == 0:
                self._checkpoint(False)
            if step % every == 0 and step < self.plan.steps:
                self._restart(crash=(step // every) % 2 == 0)
        self.end()
        self.told.seconds = time.perf_counter() - began
        return self.told

    def _wake(self, until_ms: int) -> None:
        """Have the turns that are due before a time."""
        while (due := self.broker.next_due()) < until_ms:
            self.now_ms = max(due, self.now_ms + 1)
            self._turn()

    def end(self) -> None:
        """Nobody is connected any more, and the checkpoint says what is left."""
        self._turn()
        self._checkpoint(False)
        self.journal.close()

    def _turn(self) -> None:
        broker, journal = self.broker, self.journal
        for _ in range(50):
            effects = broker.turn(self.now_ms)
            block = broker.take_records()
            position = journal.commit(block, self.now_ms) if block else journal.end
            self.told.note(block)
            broker.committed(position)
            while self.plan.is_awake and journal.synced < position:
                select.select([journal.signal], [], [])
                journal.hear()
            # What was handed over counts as on disk here: a crash of this day loses no block.
            effects += broker.synced(journal.end)
            for effect in effects:
                self._carry_out(effect)
            for position, size in broker.store.released:
                journal.release(position, size)
            broker.store.released.clear()
            for worker in self._timed_out:
                self._disconnect(worker, lost=False)
                self._connect(worker)
            self._timed_out.clear()
            if not broker.has_work():
                return

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Deliver):
            worker = self._workers.get(effect.consumer.session.id)
            if worker is not None and worker.kind != "auto":
                first = effect.first_tag
                due = self.step + self.chance.randint(*worker.slow)
                worker.holds.append((due, first, first + len(effect.slice) - 1))
        elif isinstance(effect, TimedOut):
            worker = self._workers.get(effect.session.id)
            if worker is None:
                return
            if worker.kind != "nsq":
                self._timed_out.append(worker)

    def _checkpoint(self, clean: bool) -> None:
        self.journal.finish_cleaning()
        self.journal.clean(self.now_ms, KEEP_MS)
        assert self.journal.checkpoint(snapshot(self.broker, clean), self.now_ms)
        self.journal.finish_cleaning()
        self.journal.clean(self.now_ms, KEEP_MS)

    def _restart(self, crash: bool) -> None:
        """The process ends, orderly or as by kill -9, and another begins."""
        if not crash:
            for worker in WORKERS:
                self._disconnect(worker, lost=False)
            self.broker.clients.close_connection(self.connection, lost=False)
            self._turn()
            self._checkpoint(True)
        else:
            self.journal.flush()
        self.journal.close(clean=not crash)
        self._open()
        self._queue("unsafe", durable=False)
        self.vhost.bind_queue("unsafe", "market", "us.*", {}, self.connection.id)
        self._everybody_connects()
        if self.plan.is_awake:
            self._turn()

    # -- what clients do

    def _publish(self) -> None:
        hour = (self.now_ms - MIDNIGHT_MS) / DAY_MS * 24
        tide = 1.0 + 0.7 * math.sin((hour - 9) / 24 * 2 * math.pi)
        chance = self.chance
        for exchange, key, mean in FLOWS:
            count = int(chance.expovariate(1 / (mean * tide)) + 0.5)
            if count and (key in self.vhost.queues or exchange):
                targets = self.vhost.route(exchange, [key], None)
                payload = self._payload(exchange, key, count, chance.random() < 0.97)
                self.broker.publishing.publish(self.publisher, targets, payload)
                self.told.messages += count
        count = int(chance.expovariate(1 / (4 * tide)) + 0.5)
        if count:
            delay = 20 * self.step_ms if chance.random() < 0.05 else 0
            raw, cuts = nsq.make_cells([bytes(SIZE)] * count)
            self.topics.publish("events", raw, cuts, 4, self.now_ms, delay)
            self.told.messages += count

    def _payload(self, exchange: str, key: str, count: int, persistent: bool = True) -> Payload:
        cells = []
        for _ in range(count):
            self._ids += 1
            # Now and then a publisher sends again what it has sent before.
            number = self._ids if self.chance.random() < 0.97 else self._sent.get(key, self._ids)
            self._sent[key] = number
            cells.append(number.to_bytes(SIZE, "big"))
        if key == "urgent":
            cells = [bytes([self.chance.randrange(6)]) + cell[1:] for cell in cells]
        cuts = array("I", range(0, SIZE * count + 1, SIZE))
        return Payload(
            FORMAT, b"".join(cells), cuts, Route(exchange, key), None,
            self.broker.new_message_ids(count), self.now_ms, persistent, SIZE,
        )  # fmt: skip

    def _work(self) -> None:
        for worker in WORKERS:
            due = [hold for hold in worker.holds if hold[0] <= self.step]
            if due:
                worker.holds = [hold for hold in worker.holds if hold[0] > self.step]
                if worker.kind == "tx":
                    self._transaction(worker, due)
                    continue
                for _, first, last in due:
                    if worker.kind == "nsq":
                        self._finish(worker, first, last)
                    elif not self._do(worker, first, last):
                        break
            if worker.consumer.active is False and not worker.holds:
                self._disconnect(worker, lost=False)
                self._connect(worker)

    def _do(self, worker: Worker, first: int, last: int) -> bool:
        """One deed to the whole of it, or to a message in its middle and `accept` to the others.
        False: it holds nothing any more."""
        deed = self.chance.choices(worker.deeds, worker.weights)[0]
        if deed == "accept":
            self.broker.settlement.settle(worker.session, first, last, ACCEPTED)
            return True
        if deed == "recover":
            worker.holds.clear()
            self.broker.settlement.recover(worker.session)
            return False
        one = self.chance.randint(first, last)
        for tag in [one, *(t for t in range(first, last + 1) if t != one)]:
            DEEDS[deed if tag == one else "accept"](self, worker, tag)
        return True

    def _finish(self, worker: Worker, first: int, last: int) -> None:
        """Deed by deed, as NSQ has it: each may come after the message's time."""
        for tag in range(first, last + 1):
            deed = self.chance.choices(worker.deeds, worker.weights)[0]
            try:
                DEEDS[deed](self, worker, tag)
            except PreconditionFailed:
                self.told.late += 1

    def _accept(self, worker: Worker, tag: int) -> None:
        self.broker.settlement.settle(worker.session, tag, tag, ACCEPTED)

    def _reject(self, worker: Worker, tag: int) -> None:
        self.broker.settlement.settle(worker.session, tag, tag, REJECTED)

    def _discard(self, worker: Worker, tag: int) -> None:
        self.broker.settlement.settle(worker.session, tag, tag, DISCARDED)

    def _return(self, worker: Worker, tag: int) -> None:
        self.broker.settlement.settle(worker.session, tag, tag, RETURNED)

    def _fail(self, worker: Worker, tag: int) -> None:
        self.broker.settlement.settle(worker.session, tag, tag, FAILED)

    def _requeue(self, worker: Worker, tag: int) -> None:
        self.broker.settlement.requeue(worker.session, tag, 0)

    def _later(self, worker: Worker, tag: int) -> None:
        self.broker.settlement.requeue(
            worker.session, tag, self.chance.randint(1, 60) * self.step_ms
        )

    def _forget(self, worker: Worker, tag: int) -> None:
        """It stays unsettled until its time is over."""

    def _transaction(self, worker: Worker, due: list[tuple[int, int, int]]) -> None:
        broker, session = self.broker, worker.session
        transaction = broker.transactions.begin(session)
        for _, first, last in due:
            middle = (first + last) // 2
            broker.transactions.settle(transaction, session, first, middle, ACCEPTED)
            if middle < last:
                outcome = self.chance.choice((ACCEPTED, ACCEPTED, REJECTED, RETURNED))
                broker.transactions.settle(transaction, session, middle + 1, last, outcome)
        for queue in ("table", "mail"):
            payload = self._payload("", queue, self.chance.randint(1, 3))
            broker.transactions.publish(
                transaction, session, self.vhost.route("", [queue], None), payload
            )
        self._turn_within()
        if self.chance.choices(worker.deeds, worker.weights)[0] == "commit":
            broker.transactions.commit(transaction)
            return
        broker.transactions.rollback(transaction)
        for _, first, last in due:
            outcome = self.chance.choice((ACCEPTED, RETURNED))
            broker.settlement.settle(session, first, last, outcome)

    def _turn_within(self) -> None:
        """Now and then a transaction lasts longer than a turn, so that the ledger hears of it."""
        if self.chance.random() < 0.3:
            self._turn()

    def _lease_and_settle(self) -> None:
        if self.step % 10:
            return
        leases = self.broker.leases
        queue = self.vhost.queues["table"]
        if self._lease < 0:
            leases.attach(queue, "spark", 10_000)
        subscription = leases.find(queue, "spark")
        if self._lease < 0:
            self._lease = subscription.floor
        end = leases.lease(subscription, self._lease, 300, 0)
        if self.chance.random() < 0.9:
            leases.settle(subscription, end)
            self._lease = end

    def _now_and_then(self) -> None:
        chance, broker = self.chance, self.broker
        if self.step % 97 == 0:
            worker = chance.choice(WORKERS)
            self._disconnect(worker, lost=True)
            self._connect(worker)
        if self.step % 400 == 0:
            for name in ("unsafe", "ring", "full"):
                broker.contents.purge(self.vhost.queues[name])
        if self.step % 333 == 0:
            broker.registry.delete_queue(self.connection, "brief", False, False)
        if self.step % 333 == 50 and "brief" not in self.vhost.queues:
            self._queue("brief")
        if self.step % 500 == 100:
            self.topics.pause_topic("events", True)
        if self.step % 500 == 160:
            self.topics.pause_topic("events", False)
        if self.step % 50 == 0:
            broker.consuming.get(self.publisher, self.vhost.queues["full"], True)


DEEDS: Final[dict[str, Callable[[Day, Worker, int], None]]] = {
    "accept": Day._accept,
    "reject": Day._reject,
    "discard": Day._discard,
    "return": Day._return,
    "fail": Day._fail,
    "requeue": Day._requeue,
    "later": Day._later,
    "forget": Day._forget,
}


def _failed(error: OSError) -> None:
    raise error


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="an empty data folder")
    parser.add_argument("--transitions", type=int, default=Plan().transitions)
    parser.add_argument("--seed", type=int, default=Plan().seed)
    parser.add_argument(
        "--awake", action="store_true", help="a turn whenever one is due, and a sync for each block"
    )
    given = parser.parse_args()
    day = Day(given.folder, Plan(given.transitions, given.seed, is_awake=given.awake))
    told = day.run()
    size = sum(path.stat().st_size for path in given.folder.iterdir()) >> 20
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps({"transitions": told.transitions, "rows": told.rows,
                      "messages": told.messages, "late": told.late, "by_kind": told.by_kind,
                      "seconds": round(told.seconds, 1), "MiB on disk": size,
                      "MiB of memory": memory}))  # fmt: skip


if __name__ == "__main__":
    main()
