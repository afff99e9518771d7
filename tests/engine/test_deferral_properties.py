"""Deferral beside everything else a queue may be told: limits, times to live, lanes, dead letters,
delayed retry, leases, packing, no memory, restarts. Random plays; what must hold after each step is
the account [LC-5], and across a restart that the same messages are there as often as before."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from tallymark.engine.errors import BrokerError
from tallymark.engine.message import Slice
from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, REJECTED, RETURNED
from tallymark.engine.packing import Packing
from tallymark.engine.queue import check_queue
from tallymark.engine.session import REQUEUES, STOPS
from tallymark.engine.subscription import subscriptions_of
from tallymark.stored.annotations import Annotations
from tests.support.engine_rig import Rig, Said, numbers
from tests.support.engine_steps import manual
from tests.support.long import longer, sized
from tests.support.nsq_client import Client

PLAYS = sized(400, 4_000, 100_000)
PARTS = 6
STEPS = 25
NAMES = ("a", "b")
POLICIES: tuple[dict[str, object], ...] = (
    {},
    {"message-ttl": 100},
    {"message-ttl": 0},
    {"max-length": 3},
    {"max-length-bytes": 40},
    {"max-length": 3, "overflow": "reject-publish"},
    {"delivery-limit": 1},
    {"acquired-limit": 2},
    {"delayed-retry-type": "all", "delayed-retry-min": 30, "delayed-retry-max": 100},
    {"delayed-retry-type": "failed", "delayed-retry-min": 30, "delayed-retry-max": 100},
    {"dead-letter-exchange": "", "dead-letter-routing-key": "b"},
    {"dead-letter-exchange": "", "dead-letter-routing-key": "a", "max-length": 2},
)
DELAYS_MS = (0, 0, 1, 40, 150)


class Chaos:
    """One play."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.history: list[str] = []
        self.budget = self.pick((0, 1 << 40))
        self.packs = self.random.random() < 0.3
        self.rig = self.settle_in(manual())
        self.number = 0
        self.restarts = 0
        for name in NAMES:
            arguments = {"max-priority": 2} if self.random.random() < 0.3 else {}
            self.rig.declare(name, arguments)
        self.connect()

    def pick(self, choices: tuple) -> object:
        return self.random.choice(choices)

    def settle_in(self, rig: Rig) -> Rig:
        if self.packs:
            rig.broker.backlogs.packing = Packing(after=2, group=3, fresh=1)
        return rig

    def connect(self) -> None:
        rig = self.rig
        self.clients = [Client(rig, name, "c" + name, rdy=2, timeout_ms=100) for name in NAMES]
        self.clients[1].consumer.on_timeout = REQUEUES if self.random.getrandbits(1) else STOPS
        self.asker = rig.session()

    def play(self) -> None:
        steps = [
            *[self.publish] * 5, *[self.settle] * 5, *[self.ask] * 2, *[self.wait] * 5, self.policy,
            self.purge, self.lease, self.settle_lease, self.drop_lease, self.rdy, self.restart,
            self.transfer, self.recover,
        ]  # fmt: skip
        for _ in range(STEPS):
            step = self.random.choice(steps)
            self.history.append(step.__name__)
            try:
                step()
            except BrokerError as error:
                self.history.append(str(error))
            self.look()
        self.end()

    def look(self) -> None:
        self.rig.settle_down(self.budget)
        self.rig.broker.check()

    # -- steps

    def publish(self) -> None:
        n, delay = self.random.randrange(1, 5), self.pick(DELAYS_MS)
        ttl = self.pick((-1, -1, 0, 50))
        assert isinstance(delay, int)
        assert isinstance(ttl, int)
        known = None
        if delay or ttl >= 0:
            due_ms = self.rig.now_ms + delay if delay else 0
            known = Annotations(ttl_ms=ttl, due_ms=due_ms)
        single = self.random.random() < 0.5
        messages = list(range(self.number, self.number + n))
        self.number += n
        for each in messages:
            self.rig.says[each] = Said(priority=each % 4, body=each % 20)
        name, persistent = self.random.choice(NAMES), self.random.random() < 0.8
        for some in [[m] for m in messages] if single else [messages]:
            self.rig.send(name, *some, annotations=known, persistent=persistent)

    def settle(self) -> None:
        session = self.random.choice([*[c.session for c in self.clients], self.asker])
        tags = [
            tag
            for entry in session.inflight
            for low, high in entry.pieces(entry.first, entry.last)
            for tag in range(low, high + 1)
        ]
        if not tags:
            return
        tag = self.random.choice(tags)
        how = self.random.randrange(8)
        if how < 5:
            outcome = (ACCEPTED, REJECTED, RETURNED, FAILED, DISCARDED)[how]
            self.rig.broker.settlement.settle(session, tag, tag, outcome)
        elif how == 5:
            self.rig.broker.timeouts.touch(session, tag, 400)
        elif how == 6:
            delay = self.pick(DELAYS_MS)
            assert isinstance(delay, int)
            self.rig.broker.settlement.requeue(session, tag, delay)
        else:
            self.rig.broker.settlement.settle_up_to(session, tag, FAILED)

    def ask(self) -> None:
        queue = self.rig.vhost.queues[self.random.choice(NAMES)]
        self.rig.broker.consuming.get(self.asker, queue, False)

    def wait(self) -> None:
        ms = self.random.choice((1, 19, 30, 70, 150))
        rig = self.rig
        end = rig.now_ms + ms
        while rig.broker.next_due() <= end:
            rig.now_ms = max(rig.now_ms, rig.broker.next_due())
            self.look()
        rig.now_ms = end

    def policy(self) -> None:
        self.rig.set_policy(self.random.choice(NAMES), self.random.choice(POLICIES))

    def purge(self) -> None:
        queue = self.rig.vhost.queues[self.random.choice(NAMES)]
        if self.random.random() < 0.5:
            self.rig.broker.contents.purge(queue)
        else:
            self.rig.broker.contents.empty(queue)

    def lease(self) -> None:
        leases = self.rig.broker.leases
        subscription = leases.attach(self.rig.vhost.queues["a"], "s")
        leases.lease(subscription, subscription.next, 2, 0)

    def settle_lease(self) -> None:
        for subscription in self.rig.vhost.queues["a"].subscriptions:
            self.rig.broker.leases.settle(
                subscription, min(subscription.floor + 1, subscription.next)
            )

    def drop_lease(self) -> None:
        for subscription in list(self.rig.vhost.queues["a"].subscriptions):
            self.rig.broker.drop_subscription(subscription)

    def rdy(self) -> None:
        self.random.choice(self.clients).rdy(self.random.choice((0, 1, 3)))

    def recover(self) -> None:
        self.rig.broker.settlement.recover(self.asker)

    def transfer(self) -> None:
        queues = self.rig.vhost.queues
        self.rig.broker.contents.transfer(queues["b"], [queues["a"]])

    def restart(self) -> None:
        self.restarts += 1
        if self.random.random() < 0.5:
            self.rig.checkpoint()
        self.look()
        before = {name: self.kept(name) for name in NAMES}
        deferred = {name: self.rig.vhost.queues[name].deferred for name in NAMES}
        transient = {name: self.transient(name) for name in NAMES}
        self.rig = self.settle_in(self.rig.restart())
        for name in NAMES:
            assert sorted(self.kept(name)) == sorted(before[name]), name
            queue = self.rig.vhost.queues[name]
            assert queue.deferred == deferred[name] - transient[name], name
            check_queue(queue)
        self.connect()

    # -- what is there

    def pieces(self, name: str) -> list[Slice]:
        """Everything the queue holds: ready, deferred, leased, held by clients, pending."""
        queue = self.rig.vhost.queues[name]
        queue.unpack()
        found = [*queue.slices(), *[entry.piece for entry in queue.deferrals]]
        found += [letter.piece for letter in queue.letters]
        found += [lease.slice for s in subscriptions_of(queue) for lease in s.leases]
        for connection in self.rig.broker.connections.values():
            for session in connection.sessions:
                for entry in session.inflight:
                    if entry.queue is queue and not entry.void:
                        found += [
                            entry.part(a, b) for a, b in entry.pieces(entry.first, entry.last)
                        ]
        return found

    def kept(self, name: str) -> list[tuple[int, int, int]]:
        """(number, failed deliveries, when it entered) of all that a restart must keep. Of what is
        leased the log does not tell how often it failed."""
        queue = self.rig.vhost.queues[name]
        leased = {id(lease.slice) for s in subscriptions_of(queue) for lease in s.leases}
        out = []
        for piece in self.pieces(name):
            if piece.payload.persistent:
                self.rig.broker.store.load(piece.payload)
                failed = 0 if id(piece) in leased else piece.failed
                out += [(number, failed, piece.entered_ms()) for number in numbers(piece)]
        return out

    def transient(self, name: str) -> int:
        deferrals = self.rig.vhost.queues[name].deferrals
        return sum(len(entry.piece) for entry in deferrals if not entry.piece.payload.persistent)

    def end(self) -> None:
        """Nothing is left of what is emptied, and without a restart each extent went once."""
        rig = self.rig
        for client in self.clients:
            client.leave()
        rig.broker.clients.close_session(self.asker, lost=False)
        self.drop_lease()
        for _ in range(3):  # letters go from one to the other
            for name in NAMES:
                rig.set_policy(name, {})
                rig.broker.contents.empty(rig.vhost.queues[name])
            self.look()
        for _ in range(3):
            rig.turn(self.budget)
        for queue in rig.vhost.queues.values():
            assert queue.entered == queue.account.settled + queue.account.dead_lettered + sum(
                queue.account.dropped.values()
            )
        assert rig.broker.store.resident_bytes == 0
        if not self.restarts:
            released = sorted(rig.released)
            assert all(a + n <= b for (a, n), (b, _) in pairwise(released)), "released twice"
            assert sum(n for _, n in released) == rig.log.stored_bytes


@longer
@pytest.mark.parametrize("part", range(PARTS))
def test_lc_5_the_account_holds_with_deferral_beside_everything_else(part: int) -> None:
    many = PLAYS // PARTS
    for seed in range(part * many, (part + 1) * many):
        chaos = Chaos(seed)
        try:
            chaos.play()
        except AssertionError as error:
            told = ", ".join(chaos.history)
            raise AssertionError(f"seed {seed}: {error}\n{told}") from error
