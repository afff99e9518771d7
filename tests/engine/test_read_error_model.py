"""The property of a disk that fails to read: every message is in one place, and the rest goes on.

Queues of all kinds that look into messages as they die, enter, or are weighed, with no memory for
bodies, so that each look is a read. Sectors go bad and come back at any moment. After every step
nothing has failed but the read, the account holds [LC-5], and each message published is held by one
queue, was accepted, or is counted as dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tallymark.engine.errors import Unreadable
from tallymark.engine.message import Filter, Payload
from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, REJECTED, RETURNED
from tallymark.engine.packing import Packing
from tallymark.engine.redrive import MOVED, UNREADABLE
from tallymark.engine.session import Session
from tallymark.stored.annotations import Annotations
from tests.support.engine_rig import Delivery, Rig, Said

QUEUES: dict[str, dict[str, object]] = {
    "plain": {"dead-letter-exchange": "to dead"},
    "hops": {
        "dead-letter-exchange": "to dead", "dead-letter-hop-limit": 5, "message-ttl": 60,
        "delivery-limit": 2,
    },
    "headers": {"dead-letter-exchange": "by headers", "message-ttl": 90},
    "levels": {"dead-letter-exchange": "to weighed", "max-priority": 2, "max-length": 6},
    "weighed": {"dead-letter-exchange": "to levels", "max-length-bytes": 64},
    "strict": {
        "dead-letter-exchange": "to full", "dead-letter-strategy": "at-least-once",
        "overflow": "reject-publish", "message-ttl": 40,
    },
    "full": {"max-length-bytes": 20, "overflow": "reject-publish"},
    "late": {
        "dead-letter-exchange": "to dead", "delayed-retry-type": "all", "delayed-retry-min": 30,
    },
    "dead": {},
}  # fmt: skip
STREAM = "log"
names = st.sampled_from(sorted(QUEUES))
outcomes = st.sampled_from((ACCEPTED, REJECTED, RETURNED, FAILED, DISCARDED))
commands = st.one_of(
    st.tuples(st.just("publish"), names, st.integers(1, 4), st.booleans()),
    st.tuples(st.just("publish"), names, st.integers(1, 4), st.booleans()),
    st.tuples(st.just("append"), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("consume"), names, st.integers(1, 4), st.booleans()),
    st.tuples(st.just("read_stream")),
    st.tuples(st.just("get"), names),
    st.tuples(st.just("settle"), st.integers(0, 20), outcomes),
    st.tuples(st.just("settle_all"), outcomes),
    st.tuples(st.just("transact"), st.integers(1, 3), outcomes),
    st.tuples(st.just("close"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from((10, 45, 100, 2000))),
    st.tuples(st.just("limit"), names, st.booleans()),
    st.tuples(st.just("lease"), names),
    st.tuples(st.just("end_lease"), names, outcomes),
    st.tuples(st.just("redrive"), names),
    st.tuples(st.just("purge"), names),
    st.tuples(st.just("spoil"), st.integers(0, 30)),
    st.tuples(st.just("spoil"), st.integers(0, 30)),
    st.tuples(st.just("spoil"), st.integers(0, 30)),
    st.tuples(st.just("heal")),
    st.tuples(st.just("retry")),
    st.tuples(st.just("drop"), names),
    st.tuples(st.just("pauses"), st.booleans()),
    st.tuples(st.just("restart"), st.booleans()),
)


class Odd(Filter):
    """Looks into each message."""

    def matches(self, payload: Payload, i: int, known: Annotations | None) -> bool:
        raw = payload.raw
        assert raw is not None
        return raw[payload.cuts[i + 1] - 2] % 2 == 1


@dataclass
class Player:
    rig: Rig = field(default_factory=Rig)
    numbers: int = 0
    """Published so far, to queues that are no streams."""
    appended: int = 0
    accepted: int = 0
    consumers: int = 0
    delivered: list[Delivery] = field(default_factory=list)
    """Held by the session, as far as it was not settled."""
    session: Session = field(init=False)

    def __post_init__(self) -> None:
        rig = self.rig
        rig.tick_ms = 0
        rig.broker.backlogs.packing = Packing(after=2, group=3, fresh=1)
        for name, arguments in QUEUES.items():
            rig.declare(name, arguments)
        rig.declare(STREAM, {"queue-type": "stream"})
        for target in ("dead", "weighed", "levels", "full"):
            rig.exchange(f"to {target}", "fanout", (target, ""))
        rig.vhost.declare_exchange("by headers", "headers", True, False, False, {}, False)
        rig.vhost.bind_queue("dead", "by headers", "", {"x-match": "any", "a": 1}, 0)
        rig.vhost.bind_queue("levels", "by headers", "", {"x-match": "any", "a": 2}, 0)
        self.session = rig.session()
        rig.turn()

    def play(self, command: tuple) -> None:
        try:
            getattr(self, "do_" + command[0])(*command[1:])
        except Unreadable:
            assert self.rig.log.spoiled, "nothing was spoiled"
        self.settle_down()
        self.check()

    def settle_down(self) -> None:
        self.delivered += [d for d in self.rig.settle_down(0) if d.session == self.session.id]
        self.delivered += [d for d in self.rig.settle_down(0) if d.session == self.session.id]

    def check(self) -> None:
        self.rig.broker.check()
        held = dropped = 0
        for queue in self.rig.broker.queues.values():
            if queue.name != STREAM:
                held += queue.ready + queue.acquired + queue.deferred + queue.account.staged
                held += queue.pending + queue.account.quarantined
                dropped += sum(queue.account.dropped.values())
        assert self.numbers == held + dropped + self.accepted

    def say(self, number: int) -> None:
        if number % 3:
            self.rig.says[number] = Said(
                priority=number % 4,
                headers={"a": number % 4},
                hop_limit=number % 3,
                body=number % 7,
            )

    def do_publish(self, queue: str, n: int, together: bool) -> None:
        numbers = range(self.numbers + self.appended + 1, self.numbers + self.appended + n + 1)
        for number in numbers:
            self.say(number)
        entered = self.rig.vhost.queues[queue].entered
        for some in [list(numbers)] if together else [[number] for number in numbers]:
            self.rig.send(queue, *some)
        # What a queue refuses was never in it.
        self.numbers += self.rig.vhost.queues[queue].entered - entered
        self.appended += n - (self.rig.vhost.queues[queue].entered - entered)

    def do_append(self, n: int, together: bool) -> None:
        first = self.numbers + self.appended + 1
        self.appended += n
        for some in [range(first, first + n)] if together else [[first + i] for i in range(n)]:
            self.rig.send(STREAM, *some)

    def do_consume(self, name: str, prefetch: int, filters: bool) -> None:
        broker = self.rig.broker
        self.consumers += 1
        broker.consuming.set_prefetch(self.session, prefetch, shared=False)
        queue = self.rig.vhost.queues[name]
        tag = f"c{self.consumers}"
        broker.consuming.consume(
            self.session, queue, tag, False, False, 0, {}, Odd() if filters else None
        )

    def do_read_stream(self) -> None:
        self.consumers += 1
        other = self.rig.session()
        stream = self.rig.vhost.queues[STREAM]
        self.rig.broker.consuming.browse(other, stream, f"c{self.consumers}", None)

    def do_get(self, name: str) -> None:
        queue = self.rig.vhost.queues[name]
        got = self.rig.get(self.session, queue)
        if got is not None:
            self.delivered.append(Delivery("", self.session.id, got[1], got[0], False))

    def do_settle(self, which: int, outcome: int) -> None:
        if self.delivered:
            one = self.delivered.pop(which % len(self.delivered))
            self.rig.broker.settlement.settle(self.session, one.tag, one.tag, outcome)
            self.accepted += outcome == ACCEPTED

    def do_settle_all(self, outcome: int) -> None:
        done, self.delivered = self.delivered, []
        self.rig.broker.settlement.settle_up_to(self.session, 0, outcome)
        self.accepted += len(done) if outcome == ACCEPTED else 0

    def do_transact(self, n: int, outcome: int) -> None:
        transactions = self.rig.broker.transactions
        transaction = transactions.begin(self.session)
        done, self.delivered = self.delivered[:n], self.delivered[n:]
        for one in done:
            transactions.settle(transaction, self.session, one.tag, one.tag, outcome)
        transactions.commit(transaction)
        self.accepted += len(done) if outcome == ACCEPTED else 0

    def do_close(self, lost: bool) -> None:
        self.rig.broker.clients.close_session(self.session, lost)
        self.session = self.rig.session()
        self.delivered = []

    def do_wait(self, ms: int) -> None:
        self.delivered += [d for d in self.rig.advance(ms) if d.session == self.session.id]

    def do_limit(self, name: str, is_on: bool) -> None:
        self.rig.set_policy(name, {"max-length-bytes": 30} if is_on else {})

    def do_lease(self, name: str) -> None:
        leases, queue = self.rig.broker.leases, self.rig.vhost.queues[name]
        held = leases.attach(queue, "s")
        leases.lease(held, held.next, 3, 0)
        leases.read(held, held.floor, held.next)

    def do_end_lease(self, name: str, outcome: int) -> None:
        leases, queue = self.rig.broker.leases, self.rig.vhost.queues[name]
        held = leases.attach(queue, "s")
        count = queue.account.leased
        outcome = REJECTED if outcome == DISCARDED else outcome
        if held.floor < held.next:
            leases.judge(held, [(held.floor, held.next - held.floor, outcome)])
        leases.settle(held, held.next)
        self.accepted += count if outcome == ACCEPTED else 0

    def do_redrive(self, name: str) -> None:
        queue = self.rig.vhost.queues[name]
        queue.unpack()
        wanted = []
        for piece in queue.slices():
            payload = piece.payload
            wanted += [
                (piece.first + i, payload.first_id + piece.lo + i) for i in range(len(piece))
            ]
        found = self.rig.broker.redrives.look(queue, wanted, "to levels", "")
        self.rig.broker.redrives.move(queue, found)
        # A redriven message is settled where it was and enters where it goes.
        spoiled = self.rig.log.spoiled
        assert spoiled or all(one.status != UNREADABLE for one in found)
        assert all(one.status != MOVED or one.queues for one in found)

    def do_purge(self, name: str) -> None:
        self.rig.broker.contents.purge(self.rig.vhost.queues[name])

    def do_spoil(self, which: int) -> None:
        places = sorted(self.rig.log.places)
        if places:
            self.rig.log.spoiled.add(places[which % len(places)])

    def do_heal(self) -> None:
        self.rig.log.spoiled.clear()

    def do_retry(self) -> None:
        for queue in list(self.rig.broker.queues.values()):
            self.rig.broker.readmission.retry(queue)

    def do_drop(self, name: str) -> None:
        queue = self.rig.vhost.queues[name]
        self.rig.broker.readmission.drop(queue, 1, queue.entered + 1)
        assert not queue.account.quarantined

    def do_pauses(self, pauses: bool) -> None:
        self.rig.broker.quarantine.pauses = pauses

    def do_restart(self, clean: bool) -> None:
        self.rig = self.rig.restart(clean)
        self.session = self.rig.session()
        self.delivered = []
        self.rig.broker.backlogs.packing = Packing(after=2, group=3, fresh=1)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(commands, max_size=40))
@example([("publish", "dead", 3, False), ("spoil", 0), ("redrive", "dead")])
def test_lc_5_what_cannot_be_read_is_in_one_place_and_the_rest_goes_on(
    history: list[tuple],
) -> None:
    player = Player()
    for command in history:
        player.play(command)
    player.play(("heal",))
    player.play(("retry",))
    for queue in player.rig.broker.queues.values():
        assert not queue.account.quarantined
        assert not queue.rests
