"""A naive model of a client with a consumer on each of several queues, which share one limit.

It has one object per message and knows the rules in their plainest form: what is given out is the
first message that has not had its time; nothing is given out beyond the limit, and what the client
asked for itself does not count toward it; whoever looks at a queue sees what a turn before would
have left there. Which queue's turn it is the model leaves to the engine, and holds it to two
things: nobody waits while something is free, and over a while nobody gets much more than another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.outcomes import FAILED, NACKED, REJECTED, RETURNED
from tallymark.engine.queue import Queue
from tallymark.engine.subscription import Subscription
from tests.support.engine_rig import Delivery, Rig, numbers
from tests.support.engine_steps import manual

UNLIMITED = 1 << 40
DEAD = "dead"


@dataclass(frozen=True)
class Spec:
    """One queue and its consumer."""

    durable: bool
    no_ack: bool
    prefetch: int
    """The consumer's own; 0: none."""
    ttl: int | None
    """Of the queue; None: none."""
    limit: int | None
    """Failed deliveries that a message survives; None: any number."""
    counts: str
    """Which deliveries count as failed: "returns" or "failures"."""


@dataclass(eq=False)
class Message:
    number: int
    queue: str
    expires_ms: int
    is_fresh: bool = True
    """It entered in this segment: a consumer that waits for it gets it whatever its time."""
    failures: int = 0


@dataclass(eq=False)
class Held:
    """A message in the client's hands."""

    tag: int
    message: Message
    counts: bool
    """Toward the limits: it was given to a consumer."""


@dataclass(eq=False)
class Line:
    """One queue as the model knows it."""

    spec: Spec
    queue: Queue
    ready: list[Message] = field(default_factory=list)
    promised: list[Message] = field(default_factory=list)
    """Given to the consumer before somebody looked: it will see them with the next turn."""
    given: int = 0
    dead: set[int] = field(default_factory=set)
    subscription: Subscription | None = None


class Client:
    """Plays commands against a rig. A failed assertion is the engine's mistake, or the model's."""

    def __init__(self, specs: list[Spec], limit: int) -> None:
        self.rig: Rig = manual()
        self.limit = limit or UNLIMITED
        self.rig.queue(DEAD)
        self.session = self.rig.session()
        self.publisher = self.rig.session()
        self.lines: dict[str, Line] = {}
        self.held: list[Held] = []
        self.next_number = 1
        self.behind: dict[str, int] = {}
        """Queues that all have had a backlog for as long: what each was given when that began."""
        broker = self.rig.broker
        broker.consuming.set_prefetch(self.session, limit, shared=True)
        for i, spec in enumerate(specs):
            name = f"q{i}"
            arguments: dict[str, object] = {
                "dead-letter-exchange": "", "dead-letter-routing-key": DEAD,
                "delivery-limit-counts": spec.counts,
            }  # fmt: skip
            if spec.ttl is not None:
                arguments["message-ttl"] = spec.ttl
            if spec.limit is not None:
                arguments["delivery-limit"] = spec.limit
            queue = self.rig.declare(name, arguments, spec.durable)
            self.lines[name] = Line(spec, queue)
            broker.consuming.set_prefetch(self.session, spec.prefetch, shared=False)
            broker.consuming.consume(self.session, queue, name, spec.no_ack, False, 0, {})
        self.rig.settle_down()

    # -- what the rules say

    @property
    def now(self) -> int:
        return self.rig.now_ms

    def used(self) -> int:
        """How much of the shared limit is taken, or will be."""
        promised = sum(len(line.promised) for line in self.lines.values() if not line.spec.no_ack)
        return sum(held.counts for held in self.held) + promised

    def room(self, name: str, line: Line) -> int:
        """How many more messages the queue's consumer may be given."""
        free = self.limit - self.used()
        if line.spec.no_ack:
            return UNLIMITED if free > 0 else 0
        own = line.spec.prefetch or UNLIMITED
        own -= len(line.promised)
        own -= sum(held.counts and held.message.queue == name for held in self.held)
        return max(0, min(free, own))

    def expire(self, line: Line, waited_for: bool) -> None:
        """What had its time and is at the head is dead. waited_for: but not what just entered."""
        ready = line.ready
        while ready and ready[0].expires_ms <= self.now:
            if waited_for and ready[0].is_fresh:
                return
            line.dead.add(ready.pop(0).number)

    def look(self, name: str, line: Line) -> None:
        """Somebody looks at the queue: its consumer goes first."""
        while True:
            self.expire(line, self.room(name, line) > 0)
            if not line.ready or self.room(name, line) <= 0:
                return
            line.promised.append(line.ready.pop(0))

    # -- commands

    def play(self, segment: list[tuple]) -> None:
        """Commands that arrive together, and a turn after them."""
        for command in segment:
            getattr(self, "do_" + command[0])(*command[1:])
        self.turn()

    def turn(self) -> None:
        for delivery in self.rig.settle_down():
            self.deliver(delivery)
        self.check()

    def do_publish(self, i: int, n: int, ttl: int | None) -> None:
        name = f"q{i % len(self.lines)}" if self.lines else ""
        line = self.lines.get(name)
        if line is None:
            return
        sent = list(range(self.next_number, self.next_number + n))
        self.next_number += n
        self.rig.send(name, *sent, session=self.publisher, ttl=-1 if ttl is None else ttl)
        lives = min([t for t in (ttl, line.spec.ttl) if t is not None], default=UNLIMITED)
        line.ready += [Message(number, name, self.now + lives) for number in sent]

    def do_get(self, i: int, no_ack: bool) -> None:
        name, line = self.pick(i)
        if line is None:
            return
        self.look(name, line)
        got = self.rig.get(self.session, line.queue, no_ack)
        if not line.ready:
            assert got is None, f"got {got} from {name}, where nothing is left"
            return
        message = line.ready.pop(0)
        assert got is not None, f"got nothing from {name}, where {message.number} is next"
        assert got[0] == message.number, (name, got, message.number)
        if not no_ack:
            self.held.append(Held(got[1], message, False))

    def do_declare(self, i: int) -> None:
        name, line = self.pick(i)
        if line is None:
            return
        self.look(name, line)
        rig = self.rig
        queue = rig.broker.registry.declare_queue(
            rig.connection, name, False, False, False, {}, True
        )
        assert queue.ready == len(line.ready), (name, queue.ready, len(line.ready))

    def do_purge(self, i: int) -> None:
        name, line = self.pick(i)
        if line is None:
            return
        self.look(name, line)
        assert self.rig.broker.contents.purge(line.queue) == len(line.ready), name
        line.ready.clear()

    def do_delete(self, i: int) -> None:
        name, line = self.pick(i)
        if line is None or len(self.lines) < 2:
            return
        self.look(name, line)
        try:
            self.rig.broker.registry.delete_queue(self.rig.connection, name, False, True)
        except PreconditionFailed:
            assert line.ready, f"{name} is empty and was not deleted"
            return
        assert not line.ready, f"{name} was deleted with {len(line.ready)} messages"
        for delivery in self.rig.settle_down():  # what was given to its consumer before
            self.deliver(delivery)
        del self.lines[name]
        self.behind.clear()

    def do_lease(self, i: int, n: int) -> None:
        name, line = self.pick(i)
        if line is None or not line.spec.durable:
            return
        leases = self.rig.broker.leases
        if line.subscription is None:
            line.subscription = leases.attach(line.queue, "s")
        self.look(name, line)
        start = line.subscription.next
        end = leases.lease(line.subscription, start, n, 0)
        found = [
            number
            for _, piece in (leases.read(line.subscription, start, end) if end > start else [])
            for number in numbers(piece)
        ]
        wanted: list[int] = []
        while len(wanted) < n:
            self.expire(line, False)
            if not line.ready:
                break
            wanted.append(line.ready.pop(0).number)
        assert found == wanted, (name, found, wanted)

    def do_settle(self, which: int, outcome: int) -> None:
        if not self.held:
            return
        held = self.held.pop(which % len(self.held))
        self.rig.broker.settlement.settle(self.session, held.tag, held.tag, outcome)
        message = held.message
        line = self.lines.get(message.queue)
        if line is None:
            return
        if outcome == REJECTED:
            line.dead.add(message.number)
        elif outcome in (RETURNED, FAILED, NACKED):
            nacked = outcome == NACKED and line.spec.counts == "returns"
            message.failures += outcome == FAILED or nacked
            limit = line.spec.limit
            if (outcome == FAILED or nacked) and limit is not None and message.failures > limit:
                line.dead.add(message.number)
            else:
                message.is_fresh = False
                line.ready = sorted([*line.ready, message], key=lambda one: one.number)

    def do_wait(self, ms: int) -> None:
        self.turn()
        for delivery in self.rig.advance(ms):
            self.deliver(delivery)

    def pick(self, i: int) -> tuple[str, Line | None]:
        name = f"q{i % 3}"
        return name, self.lines.get(name)

    # -- what was seen

    def deliver(self, delivery: Delivery) -> None:
        name, number = delivery.consumer, delivery.number
        line = self.lines[name]
        if line.promised:
            message = line.promised.pop(0)
        else:
            assert self.room(name, line) > 0, f"{number} of {name} is beyond the limit"
            self.expire(line, True)
            assert line.ready, f"{number} of {name} was delivered, and nothing is there"
            message = line.ready.pop(0)
        assert message.number == number, f"{number} of {name} instead of {message.number}"
        line.given += 1
        if not line.spec.no_ack:
            self.held.append(Held(delivery.tag, message, True))

    def check(self) -> None:
        """What must hold whenever nothing more happens."""
        rig = self.rig
        rig.broker.check()
        dead = set(rig.ready(DEAD))
        for name, line in self.lines.items():
            assert not line.promised, f"{name} owes its consumer {line.promised[0].number}"
            self.expire(line, False)
            for message in line.ready:
                message.is_fresh = False
            assert rig.ready(name) == [message.number for message in line.ready], name
            assert line.dead <= dead, (name, line.dead - dead)
            dead -= line.dead
            idle = bool(line.ready) and self.room(name, line) > 0
            assert not idle, f"{name} has {line.ready[0].number} and its consumer may have it"
        assert all(
            rig.vhost.queues.get(f"q{i}") is None for i in range(3) if f"q{i}" not in self.lines
        )
        self.check_fairness()

    def check_fairness(self) -> None:
        """Of the queues that have had something for their consumers all the while, and nothing but
        the shared limit in their way, none was given more than another by more than what the limit
        lets out at once, and one round."""
        waiting = {
            name: line.given
            for name, line in self.lines.items()
            if line.ready and not line.spec.no_ack and not line.spec.prefetch
        }
        if waiting.keys() <= self.behind.keys():
            self.behind = {name: self.behind[name] for name in waiting}
        else:
            self.behind = dict(waiting)
        since = [waiting[name] - given for name, given in self.behind.items()]
        if len(since) > 1 and self.limit < UNLIMITED:
            most = self.limit + len(self.lines)
            assert max(since) - min(since) <= most, (since, self.limit)
