"""Transactions in their plainest form: one object per message, everything done when it is said.

Queues a, b and c; a's rejected messages go to d; r refuses what it has no room for. Exchange x is
a fanout to a and b. At most one consumer per session and per queue: so the order of everything that
is seen follows from the rules alone. In a timed play messages of queue c have a time to live, and
transactions a time to end; how the wall clock is set meanwhile is nothing to the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

NAMES = ("a", "b", "c", "d", "r")
ROOM = 4
"""Of queue r."""
TTL_MS = 1000
"""Of messages in queue c, in a timed play."""
LONGEST_MS = 2500
"""Time that a transaction may take, in a timed play."""


@dataclass
class Message:
    number: int
    position: int = 0
    acquired: int = 0
    failed: int = 0
    entered_ms: int = 0


@dataclass
class Queue:
    name: str
    ready: list[Message] = field(default_factory=list)
    consumer: Session | None = None
    entered: int = 0
    acquired: int = 0
    staged: int = 0
    settled: int = 0
    dead_lettered: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def line(self) -> list[Message]:
        return sorted(self.ready, key=lambda m: m.position)

    def room(self) -> int:
        if self.name != "r":
            return 1 << 60
        wants = 0 if self.consumer is None else self.consumer.wants()
        return max(0, ROOM - len(self.ready) + wants)

    def drop(self, reason: str, n: int) -> None:
        if n:
            self.dropped[reason] = self.dropped.get(reason, 0) + n

    def account(self) -> dict[str, object]:
        return {
            "entered": self.entered, "ready": len(self.ready), "acquired": self.acquired,
            "leased": 0, "deferred": 0, "staged": self.staged, "dead_letter_pending": 0,
            "quarantined": 0, "settled": self.settled, "dead_lettered": self.dead_lettered,
            "dropped": self.dropped,
        }  # fmt: skip


@dataclass
class Parked:
    """One settlement of a transaction."""

    tags: list[int]
    outcome: str
    held: dict[int, tuple[Queue, Message]]


@dataclass(eq=False)
class Session:
    in_transaction: bool = False
    publishes: list[tuple[str, str, int]] = field(default_factory=list)
    """(exchange, key, number)"""
    parked: list[Parked] = field(default_factory=list)
    unacked: dict[int, tuple[Queue, Message]] = field(default_factory=dict)
    of_consumer: set[int] = field(default_factory=set)
    """Tags that came from the consumer."""
    next_tag: int = 1
    queue: Queue | None = None
    """What its consumer consumes from."""
    prefetch: int = 0
    flow: bool = True
    due_ms: int = 0
    """When its transaction is rolled back; 0: never."""

    def wants(self) -> int:
        if not self.flow:
            return 0
        tags = [tag for parked in self.parked for tag in parked.tags]
        return self.prefetch - len(self.of_consumer.intersection([*self.unacked, *tags]))


class Model:
    """All of it. What was published before a queue was deleted and made anew is not in it."""

    def __init__(self, is_timed: bool = False) -> None:
        self.is_timed = is_timed
        self.now_ms = 0
        self.queues = {name: Queue(name) for name in NAMES}
        self.sessions = [Session(), Session()]
        self.refused: list[int] = []
        """Numbers that queue r did not take, of publishes outside of transactions."""

    # -- publishing

    def targets(self, exchange: str, key: str) -> list[Queue]:
        names = ["a", "b"] if exchange == "x" else [key]
        return [self.queues[name] for name in names if name in self.queues]

    def publish(self, session: Session, exchange: str, key: str, numbers: list[int]) -> None:
        if session.in_transaction:
            session.publishes += [(exchange, key, number) for number in numbers]
            return
        for number in numbers:
            for queue in self.targets(exchange, key):
                if queue.room():
                    self.enter(queue, Message(number))

    def enter(self, queue: Queue, message: Message) -> None:
        queue.entered += 1
        queue.ready.append(
            replace(message, position=queue.entered, acquired=0, failed=0, entered_ms=self.now_ms)
        )

    # -- consuming

    def take(self, session: Session, queue: Queue) -> tuple[int, int, bool]:
        message = queue.line()[0]
        queue.ready.remove(message)
        queue.acquired += 1
        tag = session.next_tag
        session.next_tag += 1
        session.unacked[tag] = (queue, message)
        return message.number, tag, message.acquired > 0

    def deliver(self) -> list[list[tuple[int, int, bool]]]:
        """Per session: what its consumer is sent."""
        out: list[list[tuple[int, int, bool]]] = []
        for session in self.sessions:
            out.append([] if session.queue is None else self.serve(session, session.queue))
        return out

    def serve(self, session: Session, queue: Queue) -> list[tuple[int, int, bool]]:
        """What a queue's consumer is sent: with the next turn, or as soon as somebody looks at the
        queue."""
        self.expire(queue)
        seen = []
        while queue.ready and session.wants() > 0:
            session.of_consumer.add(session.next_tag)
            seen.append(self.take(session, queue))
        return seen

    def expire(self, queue: Queue) -> None:
        """Drop what had its time. It lies in front: all have the same time to live."""
        if self.is_timed and queue.name == "c":
            over = [m for m in queue.ready if m.entered_ms + TTL_MS <= self.now_ms]
            for message in over:
                queue.ready.remove(message)
            queue.drop("expired", len(over))

    # -- settling

    def settle(self, session: Session, tags: list[int], outcome: str) -> None:
        """All of the tags are outstanding."""
        if not session.in_transaction:
            for tag in tags:
                self.finish(*session.unacked.pop(tag), outcome)
            return
        held = {tag: session.unacked.pop(tag) for tag in tags}
        for queue, _ in held.values():
            queue.acquired -= 1
            queue.staged += 1
        session.parked.append(Parked(tags, outcome, held))

    def finish(self, queue: Queue, message: Message, outcome: str) -> None:
        queue.acquired -= 1
        if outcome == "ack":
            queue.settled += 1
            return
        message.acquired += 1
        if outcome == "fail":
            message.failed += 1
        if outcome in ("return", "fail"):
            queue.ready.append(message)
        elif queue.name == "a" and "d" in self.queues:
            queue.dead_lettered += 1
            self.enter(self.queues["d"], message)
        else:
            queue.drop("dead_letter_unroutable" if queue.name == "a" else "rejected", 1)

    def recover(self, session: Session, lost: bool = False) -> None:
        for queue, message in session.unacked.values():
            self.finish(queue, message, "fail" if lost else "return")
        session.unacked.clear()

    # -- transactions

    def begin(self, session: Session) -> None:
        session.in_transaction = True
        session.due_ms = self.now_ms + LONGEST_MS if self.is_timed else 0

    def time_out(self) -> list[int]:
        """Which sessions' transactions took too long and are rolled back."""
        late = [at for at, one in enumerate(self.sessions) if 0 < one.due_ms <= self.now_ms]
        for at in late:
            self.rollback(self.sessions[at])
        return late

    def commit(self, session: Session) -> bool:
        """False: queue r has no room for all of it; the transaction is rolled back."""
        wanted = sum(1 for _, key, _ in session.publishes if key == "r")
        if wanted > self.queues["r"].room():
            self.rollback(session)
            return False
        for exchange, key, number in session.publishes:
            for queue in self.targets(exchange, key):
                self.enter(queue, Message(number))
        parked = session.parked
        session.publishes, session.parked = [], []
        for one in parked:
            for tag in one.tags:
                queue, message = one.held[tag]
                queue.staged -= 1
                queue.acquired += 1
                self.finish(queue, message, one.outcome)
        return True

    def rollback(self, session: Session) -> None:
        session.publishes = []
        for one in session.parked:
            for tag in one.tags:
                one.held[tag][0].staged -= 1
                one.held[tag][0].acquired += 1
            session.unacked |= one.held
        session.parked = []
        session.unacked = dict(sorted(session.unacked.items()))

    # -- endings

    def cancel(self, session: Session) -> None:
        if session.queue is not None:
            session.queue.consumer = None
            session.queue = None

    def close(self, at: int, lost: bool) -> None:
        session = self.sessions[at]
        self.cancel(session)
        self.rollback(session)
        self.recover(session, lost)
        self.sessions[at] = Session()

    def purge(self, name: str) -> int:
        queue = self.queues[name]
        self.expire(queue)
        count = len(queue.ready)
        queue.drop("purged", count)
        queue.ready.clear()
        return count

    def content(self) -> dict[str, list[int]]:
        """Per queue the messages that are in it, ready or not, in their order: what a crash
        leaves."""
        found = {name: list(queue.ready) for name, queue in self.queues.items()}
        for session in self.sessions:
            for queue, message in session.unacked.values():
                found[queue.name].append(message)
            for one in session.parked:
                for queue, message in one.held.values():
                    found[queue.name].append(message)
        return {
            name: [m.number for m in sorted(held, key=lambda m: m.position)]
            for name, held in found.items()
        }
