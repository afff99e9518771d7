"""Clients and operators who do anything in any order, and then all of it comes to an end."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from tallymark.engine.errors import BrokerError
from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, NACKED, REJECTED, RETURNED
from tallymark.engine.packing import Packing
from tallymark.engine.policies import QUEUES, Policy
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Archived, Pin
from tallymark.engine.session import Connection, Consumer, Session
from tallymark.engine.sinks import StagedPart, Staging
from tallymark.engine.staging import Transaction
from tallymark.engine.streams import FIRST, LAST, NEXT, OFFSET, Start, pin, unpin
from tallymark.engine.subscription import Subscription
from tallymark.stored.annotations import Annotations
from tallymark.units import Ms
from tests.support.engine_rig import Said
from tests.support.engine_steps import manual

OUTCOMES = (ACCEPTED, FAILED, REJECTED, RETURNED, DISCARDED, NACKED)
BUDGETS = (1 << 40, 0, 100)
NOTHING: dict[str, object] = {}
ARGUMENTS: tuple[dict[str, object], ...] = (
    NOTHING, {"x-max-length": 3}, {"x-max-length": 0}, {"x-message-ttl": 5}, {"x-expires": 50},
    {"x-max-priority": 3}, {"x-single-active-consumer": True}, {"x-delivery-limit": 1},
    {"x-consumer-timeout": 20}, {"x-max-length-bytes": 64}, {"x-message-deduplication": 100},
    {"x-max-length": 2, "x-overflow": "reject-publish"}, {"x-deliver-after": "synced"},
    {"x-delayed-retry-type": "all", "x-delayed-retry-min": 10, "x-delayed-retry-max": 30},
)  # fmt: skip
STREAM: dict[str, object] = {"x-queue-type": "stream"}
LIMITS: tuple[dict[str, object], ...] = (
    NOTHING, {"x-max-length-bytes": 40, "x-stream-max-segment-size-bytes": 20}, {"x-max-age": "1s"},
)  # fmt: skip
POLICIES: tuple[dict[str, object], ...] = (
    {"max-length": 2, "message-ttl": 20},
    {"dead-letter-exchange": "", "delivery-limit": 1, "expires": 400},
)


class Anything:
    """One broker, and all that was begun on it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rig = manual()
        self.broker = self.rig.broker
        self.broker.backlogs.packing = Packing(after=10, group=4, fresh=2)
        self.connections: list[Connection] = []
        self.sessions: list[Session] = []
        self.consumers: list[Consumer] = []
        self.transactions: list[Transaction] = []
        self.subscriptions: list[Subscription] = []
        self.stagings: list[Staging] = []
        self.pins: list[tuple[Queue, Pin]] = []
        self.exchanges: list[str] = []
        self.batch = 0
        self.named = 0
        self.messages = 0
        frequent = (
            [self.publish] * 7 + [self.settle] * 6 + [self.consume, self.stage, self.lease] * 2
        )
        self.steps: list[Callable[[], object]] = [
            *frequent, self.connect, self.open, self.declare, self.declare_stream, self.exchange,
            self.cancel, self.get, self.begin, self.stage_settlement, self.end_transaction,
            self.attach, self.settle_leased, self.drop_subscription, self.stage_batch,
            self.commit_batch, self.pass_time, self.clear, self.delete, self.close_session,
            self.close, self.set_policy, self.pause, self.spoil, self.retry, self.pin, self.unpin,
            self.archive, self.redrive,
        ]  # fmt: skip

    def step(self) -> None:
        with suppress(BrokerError):
            self.chance.choice(self.steps)()
        if self.chance.random() < 0.6:
            self.rig.settle_down(self.chance.choice(BUDGETS))

    # -- who does it, and with which queue

    def any_connection(self) -> Connection:
        return self.chance.choice(self.connections) if self.connections else self.connect()

    def any_session(self) -> Session:
        live = [session for session in self.sessions if not session.closed]
        return self.chance.choice(live) if live else self.open()

    def any_queue(self, is_stream: bool | None = None) -> Queue:
        found = [
            queue
            for queue in self.rig.vhost.queues.values()
            if is_stream in (None, queue.settings.is_stream)
        ]
        if found:
            return self.chance.choice(found)
        return self.declare_stream() if is_stream else self.declare()

    def any_subscription(self) -> Subscription:
        live = [*self.broker.leases.subscriptions.values()]
        return self.chance.choice(live) if live else self.attach()

    def any_transaction(self) -> Transaction:
        live = [one for one in self.transactions if not one.ended]
        return self.chance.choice(live) if live else self.begin()

    def name(self) -> str:
        self.named += 1
        return f"n{self.named}"

    def some_messages(self) -> list[int]:
        count = self.chance.choice((1, 1, 2, 5))
        self.messages += count
        found = list(range(self.messages - count, self.messages))
        if self.chance.random() < 0.3:
            for number in found:
                self.rig.says[number] = Said(id=str(self.chance.randrange(50)), priority=number % 4)
        return found

    # -- what is done

    def connect(self) -> Connection:
        made = self.broker.clients.open_connection("/", "guest", "other")
        self.connections.append(made)
        return made

    def open(self) -> Session:
        made = self.rig.session(self.any_connection())
        made.confirming = self.chance.random() < 0.5
        self.sessions.append(made)
        return made

    def declare(self) -> Queue:
        chance = self.chance
        said = {**chance.choice(ARGUMENTS), **chance.choice(ARGUMENTS)}
        if chance.random() < 0.5:
            said["x-dead-letter-exchange"] = chance.choice((*self.exchanges, ""))
            if chance.random() < 0.5:
                said.update(
                    {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
                )
        return self.broker.registry.declare_queue(
            self.any_connection(), self.name(), chance.random() < 0.7, chance.random() < 0.15,
            chance.random() < 0.2, said, False,
        )  # fmt: skip

    def declare_stream(self) -> Queue:
        said = {**STREAM, **self.chance.choice(LIMITS)}
        return self.broker.registry.declare_queue(
            self.any_connection(), self.name(), True, False, False, said, False
        )

    def exchange(self) -> None:
        name, type = self.name(), self.chance.choice(("topic", "fanout", "x-consistent-hash"))
        lasting, is_brief = self.chance.random() < 0.7, self.chance.random() < 0.2
        self.rig.vhost.declare_exchange(name, type, lasting, is_brief, False, {}, False)
        self.exchanges.append(name)
        key = "2" if type == "x-consistent-hash" else "#"
        for _ in range(2):
            queue = self.any_queue()
            self.rig.vhost.bind_queue(queue.name, name, key, {}, queue.exclusive_owner)
        if type == "fanout":
            self.rig.vhost.bind_exchange(self.chance.choice(self.exchanges), name, "k", {})

    def publish(self) -> None:
        chance, now = self.chance, self.broker.clock.now_ms
        known = chance.choice(
            (
                None,
                None,
                None,
                Annotations(due_ms=now + 50),
                Annotations(ttl_ms=chance.choice((0, 50))),
            )
        )
        session, lasting = self.any_session(), chance.random() < 0.7
        messages = self.some_messages()
        if self.exchanges and chance.random() < 0.3:
            name = chance.choice(self.exchanges)
            self.rig.send(
                "k", *messages, exchange=name, session=session, annotations=known,
                persistent=lasting,
            )  # fmt: skip
        else:
            self.rig.send(
                self.any_queue().name, *messages, session=session, annotations=known,
                persistent=lasting,
            )  # fmt: skip

    def consume(self) -> None:
        chance, consuming = self.chance, self.broker.consuming
        session, queue = self.any_session(), self.any_queue()
        consuming.set_prefetch(session, chance.choice((0, 1, 3)), chance.random() < 0.2)
        no_ack = chance.random() < 0.2
        if queue.settings.is_stream:
            start = chance.choice((Start(FIRST), Start(NEXT), Start(LAST), Start(OFFSET, 2)))
            made = consuming.read(session, queue, self.name(), start, no_ack)
        elif chance.random() < 0.15:
            made = consuming.browse(session, queue, self.name(), None)
        else:
            alone, priority = chance.random() < 0.1, chance.randrange(3)
            made = consuming.consume(session, queue, self.name(), no_ack, alone, priority, {})
        self.consumers.append(made)
        if chance.random() < 0.3:
            consuming.grant(made, chance.choice((0, 2, 5)), chance.random() < 0.3)

    def cancel(self) -> None:
        live = [one for one in self.consumers if one.active and not one.session.closed]
        if live:
            consuming = self.broker.consuming
            self.chance.choice((consuming.cancel, consuming.detach))(self.chance.choice(live))

    def get(self) -> None:
        self.broker.consuming.get(self.any_session(), self.any_queue(), self.chance.random() < 0.3)

    def settle(self) -> None:
        chance, settlement, session = self.chance, self.broker.settlement, self.any_session()
        if not session.inflight:
            return
        entry = chance.choice(list(session.inflight))
        tag = chance.randint(entry.first, entry.last)
        chance.choice(
            (
                lambda: settlement.settle(session, tag, tag, chance.choice(OUTCOMES)),
                lambda: settlement.settle(session, tag, tag, chance.choice(OUTCOMES)),
                lambda: settlement.settle_up_to(session, tag, chance.choice(OUTCOMES)),
                lambda: settlement.requeue(session, tag, Ms(chance.choice((0, 20)))),
                lambda: settlement.recover(session),
            )
        )()

    def begin(self) -> Transaction:
        made = self.broker.transactions.begin(self.any_session(), Ms(self.chance.choice((0, 50))))
        self.transactions.append(made)
        return made

    def stage(self) -> None:
        lasting = self.chance.random() < 0.7
        name = self.any_queue().name
        self.rig.stage(self.any_transaction(), name, *self.some_messages(), persistent=lasting)

    def stage_settlement(self) -> None:
        chance, transaction = self.chance, self.any_transaction()
        session = transaction.session if chance.random() < 0.7 else self.any_session()
        if session.inflight:
            entry = chance.choice(list(session.inflight))
            tag = chance.randint(entry.first, entry.last)
            outcome = chance.choice(OUTCOMES[:5])
            self.broker.transactions.settle(transaction, session, tag, tag, outcome)
            if chance.random() < 0.2:
                self.broker.transactions.reopen(transaction, session, tag, tag)

    def end_transaction(self) -> None:
        transaction = self.any_transaction()
        if self.chance.random() < 0.6:
            self.broker.transactions.commit(transaction)
        else:
            self.broker.transactions.rollback(transaction)

    def attach(self) -> Subscription:
        return self.broker.leases.attach(self.any_queue(False), self.chance.choice("ab"))

    def lease(self) -> None:
        leases, one = self.broker.leases, self.any_subscription()
        leases.lease(one, one.next, self.chance.choice((1, 5)), 0)
        if one.next > one.floor:
            leases.judge(one, [(one.floor, 1, self.chance.choice(OUTCOMES[:4]))])

    def settle_leased(self) -> None:
        one = self.any_subscription()
        self.broker.leases.settle(one, one.next if self.chance.random() < 0.5 else one.floor)

    def drop_subscription(self) -> None:
        self.broker.drop_subscription(self.any_subscription())

    def stage_batch(self) -> None:
        payload = self.rig.payload(
            self.any_queue().name, self.some_messages(), self.chance.random() < 0.7
        )
        part = StagedPart(payload, None, False, self.broker.clock.now_ms)
        expires_ms = Ms(self.chance.choice((10, 5000)))
        self.stagings.append(self.broker.sinks.stage("/", "sink", [part], expires_ms))

    def commit_batch(self) -> None:
        ids = [one.id for one in self.stagings if one.id in self.broker.sinks.stagings]
        some = self.chance.sample(ids, self.chance.randint(0, len(ids)))
        self.batch += 1
        if self.chance.random() < 0.2:
            self.broker.sinks.abort("/", "sink", some)
        else:
            self.broker.publishing.commit_sink("/", "sink", "me", self.batch, some)

    def pass_time(self) -> None:
        self.rig.advance(self.chance.choice((1, 10, 60, 300)))

    def clear(self) -> None:
        contents, queue = self.broker.contents, self.any_queue()
        kind = self.chance.randrange(3)
        if kind == 2 and not queue.settings.is_stream:
            contents.transfer(queue, [self.any_queue(False)])
        else:
            (contents.empty if kind else contents.purge)(queue)

    def delete(self) -> None:
        if self.chance.random() < 0.5:
            self._delete(self.any_queue())

    def _delete(self, queue: Queue) -> None:
        owner = self.broker.connections.get(queue.exclusive_owner, self.rig.connection)
        self.broker.registry.delete_queue(owner, queue.name, False, False)

    def close_session(self) -> None:
        self.broker.clients.close_session(self.any_session(), self.chance.random() < 0.5)

    def close(self) -> None:
        if self.chance.random() < 0.4:
            connection = self.any_connection()
            self.connections.remove(connection)
            self.broker.clients.close_connection(connection, self.chance.random() < 0.5)

    def set_policy(self) -> None:
        if "p" in self.rig.vhost.policies and self.chance.random() < 0.5:
            self.broker.registry.delete_policy("/", "p")
        else:
            pattern = f".*{self.chance.randrange(10)}"
            policy = Policy("p", pattern, self.chance.choice(POLICIES), 0, QUEUES)
            self.broker.registry.set_policy("/", policy)

    def pause(self) -> None:
        self.broker.registry.pause(self.any_queue(), self.chance.random() < 0.3)

    def spoil(self) -> None:
        """Let some of what is on the disk be unreadable, or all of it be read again."""
        log = self.rig.log
        if log.spoiled:
            log.spoiled.clear()
        else:
            log.spoiled.update(self.chance.sample(sorted(log.places), len(log.places) // 3))

    def retry(self) -> None:
        self.broker.readmission.retry(self.any_queue())

    def pin(self) -> None:
        stream = self.any_queue(True)
        self.pins.append((stream, pin(stream, 1, stream.entered + 1)))

    def unpin(self) -> None:
        if self.pins:
            stream, which = self.pins.pop(self.chance.randrange(len(self.pins)))
            unpin(stream, which, self.broker.store)

    def archive(self) -> None:
        stream = self.any_queue(True)
        if stream.entered:
            made = Archived(1, stream.entered + 1, stream.entered, "a", "checksum", "/lake")
            self.broker.archives.record(stream, made)
            self.broker.archives.release(stream, stream.entered + 1)

    def redrive(self) -> None:
        redrives, queue = self.broker.redrives, self.any_queue(False)
        found = redrives.look(queue, redrives.oldest(queue, 5), "", self.any_queue().name)
        redrives.move(queue, found)

    # -- the end

    def end(self) -> None:
        """End all of it, in any order."""
        self.rig.log.spoiled.clear()
        ends = [self._end_connections, self._end_queues, self._end_sink, self.end_pins]
        self.chance.shuffle(ends)
        for end in ends:
            end()
            if self.chance.random() < 0.5:
                self.rig.settle_down()
        for name in self.exchanges:
            self.rig.vhost.delete_exchange(name, False)
        self.broker.clients.close_connection(self.rig.connection, False)
        self.rig.advance(10_000)

    def _end_connections(self) -> None:
        for connection in self.connections:
            self.broker.clients.close_connection(connection, self.chance.random() < 0.5)

    def _end_queues(self) -> None:
        while self.rig.vhost.queues:
            self._delete(self.any_queue())

    def _end_sink(self) -> None:
        with suppress(BrokerError):
            self.broker.sinks.forget("/", "sink")

    def end_pins(self) -> None:
        """Give up what readers of streams have pinned."""
        while self.pins:
            self.unpin()
