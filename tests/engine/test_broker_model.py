"""The property that guards the run: what clients see does not depend on how input is batched.

The same commands go to six brokers: everything published in one run per command; message by
message; in one run but with no memory for bodies, so that each is read back from the journal;
message by message with the backlog packed as soon as there is any; in one run, and with a turn
between a publish and the look at its queue that comes with it; in one run, on a machine whose wall
clock is set now and then [NQ-D8]. A naive model with one entry per message says what a single
consumer must see.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tallymark.engine.durability import LARGEST_RESERVE
from tallymark.engine.errors import BrokerError, PreconditionFailed
from tallymark.engine.outcomes import ACCEPTED, FAILED, REJECTED, RETURNED
from tallymark.engine.packing import Packing
from tallymark.engine.session import Consumer, Session
from tests.support.engine_rig import Delivery, Rig, numbers
from tests.support.engine_steps import manual

QUEUES = ("a", "b")
OUTCOMES = (ACCEPTED, REJECTED, RETURNED, FAILED)


def publishes(*ttls: int) -> st.SearchStrategy[tuple]:
    """Of times to live; -1: none."""
    return st.tuples(
        st.just("publish"), st.sampled_from(QUEUES), st.integers(1, 40), st.booleans(),
        st.sampled_from(ttls),
    )  # fmt: skip


lasting = publishes(-1)
commands = st.one_of(
    lasting,
    lasting,
    st.tuples(
        st.just("publish_parts"),
        st.lists(st.tuples(st.sampled_from(["a", "b", "ab"]), st.integers(1, 3)), min_size=1),
        st.booleans(),
    ),
    st.tuples(st.just("consume"), st.sampled_from(QUEUES), st.integers(0, 7), st.booleans()),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("get"), st.sampled_from(QUEUES), st.booleans()),
    st.tuples(st.just("settle"), st.integers(1, 60), st.integers(0, 9), st.sampled_from(OUTCOMES)),
    st.tuples(st.just("settle_up_to"), st.integers(0, 60), st.sampled_from(OUTCOMES)),
    st.tuples(st.just("recover")),
    st.tuples(st.just("reopen"), st.booleans()),
    st.tuples(st.just("flow"), st.booleans()),
    st.tuples(st.just("purge"), st.sampled_from(QUEUES)),
    st.tuples(st.just("share"), st.integers(0, 5)),
)
dying = publishes(-1, 0, 20, 200)
looks = st.sampled_from(["get", "purge", "declare", "delete", "lease"])
all_commands = st.one_of(
    commands,
    commands,
    dying,
    st.tuples(st.just("look"), dying, looks),
    st.tuples(st.just("wait"), st.sampled_from([20, 100, 200])),
    st.tuples(st.just("set_clock"), st.sampled_from([-86_400_000, -2_500, 2_500, 3_600_000])),
)


@dataclass
class Player:
    """Plays commands against one rig and writes down what is seen."""

    split: bool
    budget: int = 1 << 40
    packs: bool = False
    pauses: bool = False
    """Whether it has a turn between a publish and a look."""
    is_set: bool = False
    """Whether its machine's wall clock is set."""
    rig: Rig = field(default_factory=manual)
    seen: list[Delivery | str] = field(default_factory=list)
    next_number: int = 1
    consumers: list[Consumer] = field(default_factory=list)
    session: Session = field(init=False)
    publisher: Session = field(init=False)

    def __post_init__(self) -> None:
        if self.packs:
            self.rig.broker.backlogs.packing = Packing(after=2, group=3, fresh=1)
        self.rig.exchange("x", "direct")
        for name in QUEUES:
            self.declare(name)
        self.session = self.rig.session()
        self.publisher = self.rig.session()
        self.publisher.confirming = True
        self.rig.turn()

    def declare(self, name: str) -> None:
        queue = self.rig.queue(name, durable=name == "a")
        # A mark that is renewed in mid-run lets another queue's deliveries go first; where that
        # happens depends on the stretches, so here one mark is far enough ahead for all.
        queue.high_water.reserve = LARGEST_RESERVE
        for key in (name, "ab"):
            self.rig.bind(name, "x", key)

    def play(self, command: tuple) -> None:
        try:
            getattr(self, "do_" + command[0])(*command[1:])
        except BrokerError as error:
            self.seen.append(f"{type(error).__name__}: {error}")
        self.seen += self.rig.settle_down(self.budget)
        self.rig.broker.check()

    def do_publish(self, queue: str, n: int, persistent: bool, ttl: int) -> None:
        messages = list(range(self.next_number, self.next_number + n))
        self.next_number += n
        for run in [[m] for m in messages] if self.split else [messages]:
            self.rig.send(queue, *run, session=self.publisher, ttl=ttl, persistent=persistent)

    def do_look(self, publish: tuple, look: str) -> None:
        """A publish, and a look at its queue in the same segment. What a consumer is given before
        it is told is written down first, however it was."""
        self.do_publish(*publish[1:])
        if self.pauses:
            self.seen += self.rig.settle_down(self.budget)
        name = publish[1]
        broker, queue = self.rig.broker, self.rig.vhost.queues[name]
        leases = broker.leases
        told: object = None
        if look == "get":
            told = self.rig.get(self.publisher, queue, True)
        elif look == "purge":
            told = broker.contents.purge(queue)
        elif look == "declare":
            broker.registry.declare_queue(self.rig.connection, name, True, False, False, {}, True)
            told = queue.ready
        elif look == "delete":
            with suppress(PreconditionFailed):
                told = broker.registry.delete_queue(self.rig.connection, name, False, True)
                self.declare(name)
        elif queue.stored:
            subscription = leases.attach(queue, "s")
            start = subscription.next
            end = leases.lease(subscription, start, 3, 0)
            found = leases.read(subscription, start, end) if end > start else []
            told = [number for _, piece in found for number in numbers(piece)]
            leases.settle(subscription, end)
        self.seen += self.rig.settle_down(self.budget)
        self.seen.append(f"{look} {told}")

    def do_share(self, limit: int) -> None:
        self.rig.broker.consuming.set_prefetch(self.session, limit, shared=True)

    def do_wait(self, ms: int) -> None:
        self.seen += self.rig.advance(ms)

    def do_set_clock(self, ms: int) -> None:
        if self.is_set:
            self.rig.set_wall_clock(ms)

    def do_publish_parts(self, wanted: list[tuple[str, int]], persistent: bool) -> None:
        parts = []
        for key, n in wanted:
            parts.append((key, list(range(self.next_number, self.next_number + n))))
            self.next_number += n
        for some in [[part] for part in parts] if self.split else [parts]:
            self.rig.publish_parts(self.publisher, "x", some, persistent)

    def do_consume(self, queue: str, prefetch: int, no_ack: bool) -> None:
        broker = self.rig.broker
        broker.consuming.set_prefetch(self.session, prefetch, shared=False)
        tag = f"c{len(self.consumers)}"
        self.consumers.append(
            broker.consuming.consume(
                self.session, self.rig.vhost.queues[queue], tag, no_ack, False, prefetch % 2, {}
            )
        )

    def do_cancel(self, which: int) -> None:
        if which < len(self.consumers):
            self.rig.broker.consuming.cancel(self.consumers[which])

    def do_get(self, queue: str, no_ack: bool) -> None:
        self.seen.append(f"get {self.rig.get(self.session, self.rig.vhost.queues[queue], no_ack)}")

    def do_settle(self, first: int, more: int, outcome: int) -> None:
        self.rig.broker.settlement.settle(self.session, first, first + more, outcome)

    def do_settle_up_to(self, last: int, outcome: int) -> None:
        self.rig.broker.settlement.settle_up_to(self.session, last, outcome)

    def do_recover(self) -> None:
        self.rig.broker.settlement.recover(self.session)

    def do_reopen(self, lost: bool) -> None:
        self.rig.broker.clients.close_session(self.session, lost)
        self.session = self.rig.session()

    def do_flow(self, active: bool) -> None:
        self.rig.broker.consuming.set_flow(self.session, active)

    def do_purge(self, queue: str) -> None:
        self.seen.append(f"purged {self.rig.broker.contents.purge(self.rig.vhost.queues[queue])}")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(all_commands, max_size=40))
@example([("consume", "a", 0, False), ("consume", "a", 0, False), ("publish", "a", 24, False, -1)])
@example([("set_clock", -86_400_000), ("publish", "a", 1, True, 20), ("wait", 20)])
def test_observations_do_not_depend_on_batching(history: list[tuple]) -> None:
    whole, split, spilled = Player(split=False), Player(split=True), Player(False, budget=0)
    packed, paused = Player(split=True, packs=True), Player(split=False, pauses=True)
    players = (whole, split, spilled, packed, paused, Player(split=False, is_set=True))
    for command in history:
        for player in players:
            player.play(command)
        for player in players:
            assert whole.seen == player.seen
    for name in QUEUES:
        assert whole.rig.ready(name) == split.rig.ready(name)
        assert whole.rig.vhost.queues[name].counters() == split.rig.vhost.queues[name].counters()
    assert whole.rig.confirmed == split.rig.confirmed
    for player in players:
        check_released(player)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(commands, max_size=30), st.booleans(), st.integers(0, 30), st.booleans())
def test_a_restart_keeps_the_account_and_the_order(
    history: list[tuple], clean: bool, checkpoint_at: int, packs: bool
) -> None:
    player = Player(split=packs, packs=packs)
    for i, command in enumerate(history):
        player.play(command)
        if i == checkpoint_at:
            player.rig.checkpoint()
    queue = player.rig.vhost.queues["a"]
    counters = queue.counters()
    unsettled: set[int] = set(player.rig.ready("a"))
    of_queue = {c.tag for c in player.consumers if c.queue is queue}
    delivered = {
        x.number for x in player.seen if isinstance(x, Delivery) and x.consumer in of_queue
    }
    for entry in player.session.inflight:
        if entry.queue is queue:
            for low, high in entry.pieces(entry.first, entry.last):
                piece = entry.part(low, high)
                player.rig.broker.store.load(piece.payload)
                raw, cuts = piece.payload.raw, piece.payload.cuts
                assert raw is not None
                unsettled |= {
                    int.from_bytes(raw[cuts[i] : cuts[i + 1]], "big")
                    for i in range(piece.lo, piece.hi)
                }
    after = player.rig.restart(clean)
    after.turn()
    after.broker.check()
    found = after.vhost.queues["a"]
    ready = after.ready("a")
    assert ready == sorted(ready)
    lost = unsettled - set(ready)
    assert set(ready) <= unsettled
    assert found.account.dropped.get(4, 0) == len(lost)  # transient at restart
    assert found.entered == counters["entered"]
    assert found.account.settled == counters["settled"]
    sequences = [s for p in found.slices() for s in range(p.first, p.first + len(p))]
    again = [p.acquired > 0 for p in found.slices() for _ in range(len(p))]
    assert sequences == sorted(sequences)
    for number, redelivered in zip(ready, again, strict=True):
        assert redelivered or number not in delivered
    assert "b" not in after.vhost.queues


def check_released(player: Player) -> None:
    """Empty everything: then every stored extent has been released, each exactly once."""
    rig = player.rig
    rig.broker.clients.close_session(player.session, lost=True)
    for name in QUEUES:
        rig.broker.contents.purge(rig.vhost.queues[name])
    for _ in range(3):
        rig.turn()
    assert rig.broker.store.resident_bytes == 0
    covered = sorted(rig.released)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(covered)), "released twice"
    assert sum(n for _, n in covered) == rig.log.stored_bytes


class Model:
    """One queue, one consumer, one entry per message: the rules in their plainest form."""

    def __init__(self, prefetch: int) -> None:
        self.ready: list[tuple[int, bool]] = []
        self.unacked: dict[int, int] = {}
        self.prefetch = prefetch
        self.next_tag = 1
        self.expires_ms: dict[int, int] = {}

    def publish(self, messages: list[int], expires_ms: int) -> None:
        self.ready += [(m, False) for m in messages]
        self.expires_ms |= dict.fromkeys(messages, expires_ms)

    def deliver(self, now_ms: int) -> list[tuple[int, int, bool]]:
        out = []
        while self.ready:
            if self.expires_ms[self.ready[0][0]] <= now_ms:
                self.ready.pop(0)
                continue
            if len(self.unacked) >= self.prefetch:
                break
            number, again = self.ready.pop(0)
            self.unacked[self.next_tag] = number
            out.append((self.next_tag, number, again))
            self.next_tag += 1
        return out

    def settle(self, tag: int, outcome: int) -> None:
        number = self.unacked.pop(tag)
        if outcome in (RETURNED, FAILED):
            self.ready = sorted([*self.ready, (number, True)])


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 12),
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(1, 30), st.sampled_from([-1, -1, 20, 50])),
            st.tuples(st.just("wait"), st.sampled_from([10, 20, 50]), st.just(0)),
            st.tuples(st.just("settle"), st.integers(0, 30), st.sampled_from(OUTCOMES)),
            st.tuples(st.just("many"), st.integers(0, 30), st.sampled_from(OUTCOMES)),
        ),
        max_size=60,
    ),
)
def test_a_single_consumer_sees_what_the_naive_model_says(
    prefetch: int, history: list[tuple[str, int, int]]
) -> None:
    rig, model = manual(), Model(prefetch)
    queue, session = rig.queue("q"), rig.session()
    rig.broker.consuming.set_prefetch(session, prefetch, shared=False)
    rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    number = 1
    for what, n, outcome in history:
        if what == "publish":
            messages = list(range(number, number + n))
            number += n
            rig.send("q", *messages, session=session, ttl=outcome)
            model.publish(messages, rig.now_ms + outcome if outcome >= 0 else 1 << 60)
        elif what == "wait":
            assert rig.advance(n) == []
        elif model.unacked:
            tags = sorted(model.unacked)
            tag = tags[n % len(tags)]
            if what == "settle":
                rig.broker.settlement.settle(session, tag, tag, outcome)
                model.settle(tag, outcome)
            else:
                rig.broker.settlement.settle_up_to(session, tag, outcome)
                for each in tags[: tags.index(tag) + 1]:
                    model.settle(each, outcome)
        seen = [(d.tag, d.number, d.redelivered) for d in rig.settle_down()]
        assert seen == model.deliver(rig.now_ms)
        assert rig.ready("q") == [number for number, _ in model.ready]
        rig.broker.check()
