"""Queues, their settings and dead letters in their plainest form: one object a message, lists, and
the rules written down as they are read. Shares nothing with the engine.

One command at a time, and everything that follows from it before the next. Time is data: `due` says
when something happens by itself. Where the rules leave an order open, Open is raised: what follows
from there is not compared.
"""

from __future__ import annotations

from dataclasses import replace

from tests.engine.naive_queue import INFINITE, Consumer, Entry, Message, Queue, is_cycle


class Open(Exception):
    """Two orders are right."""


class Model:
    """See the module's text."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.wall_off_ms = 0
        """How far the wall clock, in which deaths are told, is ahead."""
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, str] = {}
        """Type by name."""
        self.bindings: list[tuple[str, str, str]] = []
        """(exchange, key, queue)."""
        self.policies: dict[str, dict[str, object]] = {}
        self.touched: list[Queue] = []
        self.waiting: list[Queue] = []
        """With pending letters, in the order in which they came to have some."""
        self.asker = Consumer(0, False)
        self.consumers: list[Consumer] = []
        self.delivered: list[tuple[int, int, int, bool, int, int]] = []
        self.refused: list[int] = []
        self.counts: dict[tuple[str, str], int] = {}

    # -- topology

    def declare(self, name: str, durable: bool, arguments: dict[str, object]) -> None:
        if name not in self.queues:
            policy = self.policies.get(name, {})
            self.queues[name] = Queue(name, durable, arguments, policy)
        self.touch(self.queues[name])
        self.rerouted()

    def set_policy(self, name: str, policy: dict[str, object]) -> None:
        self.policies[name] = policy
        if name in self.queues:
            self.queues[name].policy = policy
            self.touch(self.queues[name])
        self.rerouted()

    def rerouted(self) -> None:
        """Pending letters are tried again when the topology changes [DL-23]."""
        for queue in self.waiting:
            self.touch(queue)
            queue.is_tried = True

    def route(self, exchange: str, keys: list[str]) -> list[Queue]:
        """In the order the queues were declared."""
        found = set()
        if exchange == "":
            found = set(keys)
        elif exchange in self.exchanges:
            for source, key, queue in self.bindings:
                if source == exchange and (self.exchanges[exchange] == "fanout" or key in keys):
                    found.add(queue)
        return [queue for name, queue in self.queues.items() if name in found]

    def delete(self, name: str) -> None:
        queue = self.queues.pop(name)
        self.bindings = [b for b in self.bindings if b[2] != name]
        queue.deleted = True
        queue.drop("queue_deleted", queue.length() + queue.acquired)
        if queue.consumer is not None:
            queue.consumer.queue = None
        self.waiting = [w for w in self.waiting if w is not queue]
        self.rerouted()

    # -- messages in

    def publish(self, exchange: str, messages: list[Message]) -> None:
        """All alike but for their numbers. `refused` gets those that some queue has no room for."""
        one = messages[0]
        targets = self.route(exchange, [one.key, *one.cc, *one.bcc])
        refused = set()
        for queue in targets:
            for message in messages:
                copy = message.in_target()
                if self.is_duplicate(queue, copy):
                    queue.entered += 1
                    queue.drop("duplicate")
                elif queue.overflow != "drop-head" and not queue.has_room(copy):
                    refused.add(message.number)
                    if queue.overflow == "reject-publish-dlx":
                        if len(targets) > 1:
                            raise Open
                        queue.entered += 1
                        copy.position = queue.entered
                        self.die(queue, [copy], "maxlen")
                else:
                    if copy.id and queue.number("message-deduplication") > 0:
                        queue.taken[copy.id] = self.now_ms
                    self.enter(queue, copy)
        self.refused += sorted(refused)

    def is_duplicate(self, queue: Queue, message: Message) -> bool:
        window = queue.number("message-deduplication")
        if window <= 0 or not message.id:
            return False
        return queue.taken.get(message.id, -INFINITE) + window > self.now_ms

    def enter(self, queue: Queue, message: Message) -> None:
        queue.entered += 1
        message.position = queue.entered
        message.entered_ms = self.now_ms
        queue.has_ttls = queue.has_ttls or message.ttl >= 0
        queue.ready.append(message)
        self.touch(queue)

    # -- messages out

    def take(self, queue: Queue, consumer: Consumer) -> tuple[Message, int]:
        message = queue.line()[0]
        queue.ready.remove(message)
        tag = consumer.next_tag
        consumer.next_tag += 1
        if consumer.no_ack:
            queue.settled += 1
        else:
            queue.acquired += 1
            consumer.unacked[tag] = (queue, message)
        return message, tag

    def get(self, name: str) -> tuple[Message, int] | None:
        queue = self.queues[name]
        if not queue.ready:
            return None
        self.touch(queue)
        return self.take(queue, self.asker)

    def settle(self, consumer: Consumer, tags: list[int], outcome: str) -> None:
        """ack, reject, nack (both for good), return (uncounted) or fail."""
        for tag in tags:
            queue, message = consumer.unacked.pop(tag)
            if queue.deleted:
                continue
            self.touch(queue)
            if outcome == "ack":
                queue.acquired -= 1
                queue.settled += 1
            elif outcome in ("reject", "nack"):
                self.end_delivery(queue, message, outcome == "reject")
                self.die(queue, [message], "rejected")
            else:
                self.give_back(queue, [message], outcome == "fail")

    def end_delivery(self, queue: Queue, message: Message, failed: bool) -> None:
        queue.acquired -= 1
        message.acquired += 1
        message.failed += failed

    def give_back(self, queue: Queue, messages: list[Message], failed: bool) -> None:
        """To their old positions, or they die of it [DL-5, DL-D6]."""
        back = []
        for message in messages:
            self.end_delivery(queue, message, failed)
            too_often = failed and 0 <= queue.number("delivery-limit") < message.failed
            if too_often or 0 <= queue.number("acquired-limit") < message.acquired:
                self.die(queue, [message], "delivery_limit")
            else:
                back.append(message)
        queue.ready += back
        self.touch(queue)

    def return_all(self, consumer: Consumer, lost: bool) -> None:
        by_queue: dict[int, tuple[Queue, list[Message]]] = {}
        for queue, message in consumer.unacked.values():
            if not queue.deleted:
                by_queue.setdefault(id(queue), (queue, []))[1].append(message)
        consumer.unacked.clear()
        for queue, messages in by_queue.values():
            self.touch(queue)
            self.give_back(queue, messages, lost)

    def cancel(self, consumer: Consumer) -> None:
        if consumer.queue is not None:
            consumer.queue.consumer = None
            self.touch(consumer.queue)
            consumer.queue = None

    def purge(self, name: str) -> int:
        queue = self.queues[name]
        count = queue.length()
        queue.drop("purged", count)
        queue.ready, queue.pending = [], []
        self.waiting = [w for w in self.waiting if w is not queue]
        return count

    # -- death

    def count(self, strategy: str, what: str) -> None:
        self.counts[strategy, what] = self.counts.get((strategy, what), 0) + 1

    def die(self, queue: Queue, messages: list[Message], reason: str) -> None:
        """Messages that are in the queue no more died there."""
        missing = queue.says("dead-letter-exchange") not in ("", *self.exchanges)
        for message in messages:
            if missing and not queue.keeps:
                self.count("disabled", reason)
                queue.drop(reason)
                continue
            self.count("at_least_once" if queue.keeps else "at_most_once", reason)
            message.reason, message.died_ms = reason, self.now_ms
            self.send_on(queue, message)

    def send_on(self, queue: Queue, message: Message) -> None:
        """A letter to wherever it may go; what is kept is pending at the end of the list."""
        exchange = str(queue.says("dead-letter-exchange"))
        if exchange not in ("", *self.exchanges):
            self.keep(queue, message)
            return
        hops = message.hops
        if queue.hop_limit >= 0:
            if hops < 0:
                hops = message.own_hops if message.own_hops >= 0 else queue.hop_limit
            if hops == 0:
                queue.drop("dead_letter_hop_limit")
                return
            hops -= 1
        letter = self.letter(queue, message, exchange, hops)
        targets = self.route(exchange, [letter.key, *letter.cc, *letter.bcc])
        allowed = targets
        if message.reason != "rejected" and queue.hop_limit < 0:
            allowed = [t for t in targets if not is_cycle(letter.history, t.name)]
        if not allowed and not message.have:
            if queue.keeps:
                self.keep(queue, message)
            else:
                queue.drop("dead_letter_cycle" if targets else "dead_letter_unroutable")
            return
        missed = False
        for target in allowed:
            if target.name in message.have:
                continue
            if target.overflow == "drop-head" or target.has_room(letter):
                self.enter(target, letter.in_target())
            elif target.overflow == "reject-publish-dlx":
                if len(targets) > 1:
                    raise Open
                target.entered += 1
                self.die(target, [letter.in_target()], "maxlen")
            else:
                missed = True
                continue
            message.have.append(target.name)
        if missed and queue.keeps:
            self.keep(queue, message)
        elif message.have:
            queue.dead_lettered += 1
            if queue.keeps:
                self.count("at_least_once", "confirmed")
        else:
            queue.drop("dead_letter_refused")

    def keep(self, queue: Queue, message: Message) -> None:
        queue.pending.append(message)
        if queue not in self.waiting:
            self.waiting.append(queue)

    def letter(self, queue: Queue, message: Message, exchange: str, hops: int) -> Message:
        """The message with its death recorded [DL-9 to DL-14]."""
        override = queue.says("dead-letter-routing-key")
        died_ms = message.died_ms + self.wall_off_ms
        new = Entry(
            queue.name, message.reason, 1, message.exchange, (message.key, *message.cc),
            died_ms, died_ms, message.ttl,
        )  # fmt: skip
        older = list(message.history)
        if queue.hop_limit < 0:
            for entry in older:
                if (entry.queue, entry.reason) == (new.queue, new.reason):
                    older.remove(entry)
                    new = replace(entry, count=entry.count + 1, last_ms=died_ms)
                    break
        last = (message.reason, queue.name, message.exchange)
        carries = queue.shows_counts or message.failed_before + message.acquired_before > 0
        return replace(
            message,
            exchange=exchange,
            key=message.key if override is None else str(override),
            cc=message.cc if override is None else (),
            bcc=message.bcc if override is None else (),
            ttl=-1,
            hops=hops,
            history=(new, *older),
            first=message.first or last,
            last=last,
            home=message.home or (message.exchange, (message.key, *message.cc), message.ttl),
            failed_before=message.failed_before + (message.failed if carries else 0),
            acquired_before=message.acquired_before + (message.acquired if carries else 0),
        )

    # -- redrive

    def redrive(self, name: str, start: int, n: int, to: str) -> list[str]:
        """n ready messages from the start-th on begin anew where they were first published, or in
        the queue `to`; what became of each."""
        source = self.queues[name]
        found = []
        for message in source.line()[start : start + n]:
            home = message.home
            if to:
                home = ("", (to,), message.ttl if home is None else home[2])
            if home is None:
                found.append("no_letter")
                continue
            exchange, keys, ttl = home
            targets = [q for q in self.route(exchange, list(keys)) if q is not source]
            again = replace(
                message, exchange=exchange, key=keys[0], cc=keys[1:], bcc=(), ttl=ttl, hops=-1,
                history=(), first=None, last=None, failed_before=0, acquired_before=0, home=None,
            )  # fmt: skip
            full = [q for q in targets if q.overflow != "drop-head" and not q.has_room(again)]
            if full or not targets:
                found.append("full" if full else "unroutable")
                continue
            for target in targets:
                self.enter(target, again.in_target())
            source.ready.remove(message)
            source.settled += 1
            self.touch(source)
            found.append("moved")
        return found

    # -- what happens by itself

    def touch(self, queue: Queue) -> None:
        if queue not in self.touched:
            self.touched.append(queue)

    def quiesce(self) -> None:
        """Everything that is due now happens: first come, first looked after. A queue in line keeps
        its place, whatever else enters it before its turn."""
        while self.touched:
            queue = self.touched.pop(0)
            if not queue.deleted:
                self.look_after(queue)

    def retry_all(self) -> None:
        for queue in self.queues.values():
            if queue.pending:
                queue.is_tried = True
                self.touch(queue)
        self.quiesce()

    def look_after(self, queue: Queue) -> None:
        self.expire(queue, queue.looked_at)
        consumer = queue.consumer
        while consumer is not None and queue.ready and consumer.wants() > 0:
            again = queue.line()[0]
            message, tag = self.take(queue, consumer)
            assert message is again
            who = self.consumers.index(consumer)
            self.delivered.append(
                (who, tag, message.number, message.acquired > 0, message.failed, message.acquired)
            )
            self.expire(queue, queue.looked_at)
        if not queue.is_looked_after():
            return
        queue.looked_at = queue.entered
        self.expire(queue, queue.looked_at)
        self.cut(queue)
        self.expire(queue, queue.looked_at)
        if queue.pending and queue.is_tried:
            self.retry(queue)
        queue.is_tried = False
        if not queue.ready and not queue.acquired:
            queue.has_ttls = False

    def expire(self, queue: Queue, upto: int) -> None:
        gone = []
        for level in sorted({queue.level(m) for m in queue.ready}):
            for message in [m for m in queue.line() if queue.level(m) == level]:
                if message.position > upto or queue.expiry(message) > self.now_ms:
                    break
                gone.append(message)
                queue.ready.remove(message)
        self.die(queue, gone, "expired")

    def cut(self, queue: Queue) -> None:
        if queue.overflow != "drop-head":
            return
        while queue.length() and queue.is_over():
            if queue.pending:
                queue.pending.pop(0)
                queue.drop("maxlen")
                if not queue.pending:
                    self.waiting.remove(queue)
            else:
                head = queue.line()[0]
                queue.ready.remove(head)
                self.die(queue, [head], "maxlen")

    def retry(self, queue: Queue) -> None:
        letters, queue.pending = queue.pending, []
        missing = queue.says("dead-letter-exchange") not in ("", *self.exchanges)
        for message in letters:
            if missing and not queue.keeps:
                self.count("disabled", message.reason)
                queue.drop(message.reason)
            else:
                self.send_on(queue, message)
        if not queue.pending:
            self.waiting.remove(queue)

    def due(self) -> int:
        """When a message expires next."""
        return min(
            [queue.expiry(m) for queue in self.queues.values() for m in queue.heads()],
            default=INFINITE,
        )

    def wait_until(self, now_ms: int) -> None:
        """No later than what is due."""
        self.now_ms = now_ms
        late = [
            queue
            for queue in self.queues.values()
            if any(queue.expiry(m) <= now_ms for m in queue.heads())
        ]
        if len(late) > 1:
            raise Open
        for queue in late:
            self.touch(queue)
        self.quiesce()

    def restart(self) -> None:
        """What is stored comes back; nobody is connected."""
        for consumer in [self.asker, *self.consumers]:
            for queue, message in consumer.unacked.values():
                if not queue.deleted:
                    queue.acquired -= 1
                    message.acquired += 1
                    queue.ready.append(message)
            consumer.unacked.clear()
            consumer.queue = None
        self.asker, self.consumers = Consumer(0, False), []
        self.queues = {name: queue for name, queue in self.queues.items() if queue.durable}
        self.bindings = [b for b in self.bindings if b[2] in self.queues]
        for queue in self.queues.values():
            everything = queue.length()
            queue.ready = [m for m in queue.ready if m.persistent]
            queue.pending = [m for m in queue.pending if m.persistent]
            queue.drop("transient_at_restart", everything - queue.length())
            queue.consumer = None
            queue.looked_at = 0
            queue.has_ttls = any(m.ttl >= 0 for m in queue.ready)
            self.touch(queue)
        self.waiting = [queue for queue in self.queues.values() if queue.pending]
        for queue in self.waiting:
            queue.is_tried = True
        self.touched = list(self.queues.values())
        self.counts = {}
        self.quiesce()
