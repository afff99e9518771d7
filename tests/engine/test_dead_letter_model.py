"""The engine against the naive model of dead_letter_model.py: random topologies, random traffic.

After every command: what is in each queue, in order, with its history; what is pending; the account
of each queue [LC-5]; what consumers were sent; what was refused. The same history is played in one
of several ways that must not show: in runs or message by message, with memory or without, with
packed backlogs, with restarts from the log or from checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, REJECTED, RETURNED
from tallymark.engine.packing import Packing
from tallymark.engine.session import Session
from tallymark.stored.annotations import Annotations, Death
from tests.engine import dead_letter_model as model
from tests.engine import naive_queue as naive
from tests.support.engine_rig import START_MS, Held, Rig, Said
from tests.support.engine_steps import manual
from tests.support.long import longer, sized

NAMES = ("a", "b", "c", "d")
OUTCOMES = {
    "ack": ACCEPTED, "reject": REJECTED, "nack": DISCARDED, "return": RETURNED, "fail": FAILED,
}  # fmt: skip
FAR = 1 << 40
CLOCK_STEPS_MS = (-86_400_000, -3_600_000, 3_600_000, 86_400_000)


VALUES: dict[str, tuple[object, ...]] = {
    "message-ttl": (0, 7, 31, 31, 101, 101),
    "max-length": (0, 1, 2, 5, 5),
    "max-length-bytes": (0, 10, 35, 35),
    "overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
    "delivery-limit": (0, 1, 2),
    "acquired-limit": (0, 1, 3),
    "dead-letter-exchange": ("", "", "direct", "fanout", "missing"),
    "dead-letter-routing-key": (*NAMES, "nowhere"),
    "dead-letter-strategy": ("at-least-once", "at-least-once", "at-most-once"),
    "dead-letter-hop-limit": (False, 0, 1, 3),
    "message-deduplication": (20, 500),
}


@st.composite
def policies(draw: st.DrawFn) -> dict[str, object]:
    """Some settings: few, so that each has an effect."""
    keys = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True))
    return {key: draw(st.sampled_from(VALUES[key])) for key in keys}


@st.composite
def queue_arguments(draw: st.DrawFn) -> tuple[bool, dict[str, object]]:
    """Durable or not, and arguments that can be declared."""
    arguments = draw(policies())
    durable = draw(st.sampled_from([True, True, False]))
    if draw(st.integers(0, 3)):
        arguments.setdefault("dead-letter-exchange", draw(st.sampled_from(["", "", "fanout"])))
        arguments.setdefault("dead-letter-routing-key", draw(st.sampled_from(NAMES)))
    if draw(st.integers(0, 3)) == 0:
        arguments.setdefault("message-ttl", draw(st.sampled_from([7, 31, 101])))
    if "dead-letter-exchange" not in arguments:
        arguments.pop("dead-letter-routing-key", None)
    if draw(st.integers(0, 3)) == 0:
        arguments["max-priority"] = 3
    if durable and draw(st.integers(0, 3)) == 0:
        arguments["queue-type"] = "quorum"
        arguments.pop("max-priority", None)
    return durable, arguments


queue = st.sampled_from(NAMES)
KINDS: dict[str, tuple[int, st.SearchStrategy[tuple]]] = {
    "publish": (
        8,
        st.tuples(
            st.sampled_from(["", "", "", "direct", "fanout"]),
            queue,
            st.integers(1, 5),
            st.sampled_from([-1, -1, -1, 0, 13, 53]),
            st.lists(queue, max_size=1),
            st.lists(queue, max_size=1),
            st.sampled_from([True, True, True, False]),
        ),
    ),
    "get": (2, st.tuples(queue, st.integers(1, 4))),
    "take_and_settle": (
        6,
        st.tuples(queue, st.integers(1, 4), st.sampled_from([*OUTCOMES, "reject", "reject"])),
    ),
    "settle": (
        4,
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 5),
            st.integers(1, 4),
            st.sampled_from([*OUTCOMES, "reject", "fail"]),
        ),
    ),
    "wait": (6, st.tuples(st.sampled_from([1, 6, 7, 13, 24, 31, 40, 60, 101, 2000]))),
    "consume": (2, st.tuples(queue, st.integers(0, 3), st.booleans())),
    "cancel": (1, st.tuples(st.integers(0, 3))),
    "close": (2, st.tuples(st.integers(0, 3), st.booleans())),
    "purge": (1, st.tuples(queue)),
    "delete": (1, st.tuples(queue)),
    "declare": (1, st.tuples(queue, queue_arguments())),
    "policy": (3, st.tuples(queue, policies())),
    "exchange": (1, st.tuples(st.just("missing"), st.sampled_from(["direct", "fanout"]))),
    "bind": (2, st.tuples(st.sampled_from(["direct", "fanout", "missing"]), queue, queue)),
    "redrive": (
        3,
        st.tuples(
            queue, st.integers(0, 2), st.integers(1, 5), st.sampled_from(["", "", "", *NAMES])
        ),
    ),
    "restart": (2, st.tuples(st.booleans())),
    "set_wall_clock": (1, st.tuples(st.sampled_from(CLOCK_STEPS_MS))),
}
"""Commands: how often, and with what."""
WEIGHED = [kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]


@st.composite
def commands(draw: st.DrawFn) -> tuple:
    kind = draw(st.sampled_from(WEIGHED))
    return (kind, *draw(KINDS[kind][1]))


topologies = st.tuples(
    st.lists(queue_arguments(), min_size=len(NAMES) - 1, max_size=len(NAMES)),
    st.lists(st.tuples(queue, queue), min_size=1, max_size=5),
    st.lists(queue, min_size=1, max_size=3),
    st.booleans(),
)


def said(number: int) -> Said:
    """What a message says follows from its number."""
    return Said(
        priority=number * 3 % 5,
        id=f"id {number % 7}" if number % 4 == 0 else "",
        hop_limit=2 if number % 11 == 0 else -1,
        body=number % 5 * 5,
    )


@dataclass
class Player:
    """Plays commands against the engine and against the model, and compares."""

    split: bool = False
    budget: int = 1 << 40
    packs: bool = False
    rig: Rig = field(default_factory=manual)
    model: model.Model = field(default_factory=lambda: model.Model(START_MS))
    next_number: int = 1
    sessions: list[Session] = field(default_factory=list)
    """Of the consumers, in the model's order."""

    def __post_init__(self) -> None:
        self.connect()

    def connect(self) -> None:
        """The marks are set far ahead, so that no delivery waits for the disk, and no restart takes
        a message for delivered that was not."""
        if self.packs:
            self.rig.broker.backlogs.packing = Packing(after=2, group=3, fresh=1)
        self.asker = self.rig.session()
        self.sessions = []
        for found in self.rig.broker.queues.values():
            found.high_water.mark = found.high_water.durable = FAR

    def build(
        self,
        queues: list[tuple[bool, dict[str, object]]],
        direct: list[tuple[str, str]],
        fanout: list[str],
        ring: bool,
    ) -> None:
        for name in ("direct", "fanout"):
            self.do_exchange(name, name)
        for name, declared in zip(NAMES, queues, strict=False):
            self.do_declare(name, declared)
        for name, key in direct:
            self.do_bind("direct", name, key)
        for name in fanout:
            self.do_bind("fanout", name, "")
        for name, following in zip(NAMES, NAMES[1:] + NAMES[:1], strict=True):
            if ring and self.has(name):  # letters go round, whatever else each queue does
                circle = {"dead-letter-exchange": "", "dead-letter-routing-key": following}
                self.do_policy(name, circle)
        self.finish()

    def play(self, command: tuple) -> None:
        getattr(self, "do_" + command[0])(*command[1:])
        self.finish()

    def finish(self) -> None:
        """All that follows; letters that wait are tried once more on both sides."""
        self.model.quiesce()
        self.rig.settle_down(self.budget)
        self.model.retry_all()
        for found in self.rig.vhost.queues.values():
            if found.letters:
                found.retry.due_ms = 0
                self.rig.broker.agenda.mark(found)
        self.rig.settle_down(self.budget)
        for found in self.rig.vhost.queues.values():
            found.retry.due_ms = FAR  # not by the time: test_pending_letters.py looks at that
        self.rig.broker.check()
        self.compare()

    # -- commands

    def has(self, name: str) -> bool:
        return name in self.model.queues

    def do_publish(
        self, exchange: str, key: str, n: int, ttl: int, cc: list[str], bcc: list[str],
        persistent: bool,
    ) -> None:  # fmt: skip
        run = list(range(self.next_number, self.next_number + n))
        self.next_number += n
        messages = []
        for number in run:
            what = self.rig.says[number] = said(number)
            messages.append(
                naive.Message(
                    number, exchange, key, tuple(cc), tuple(bcc), ttl, persistent, what.priority,
                    what.body, what.id, what.hop_limit,
                )
            )  # fmt: skip
        self.model.refused = []
        self.model.publish(exchange, messages)
        session = self.rig.session()
        session.confirming = True
        self.rig.refused = []
        for some in [[number] for number in run] if self.split else [run]:
            self.rig.send(
                key, *some, exchange=exchange, session=session, ttl=ttl, cc=tuple(cc),
                bcc=tuple(bcc), persistent=persistent,
            )  # fmt: skip
        self.rig.settle_down(self.budget)
        refused = [run[i - 1] for a, b in self.rig.refused for i in range(a, b + 1)]
        assert refused == self.model.refused
        assert self.rig.confirmed[session.id] == n

    def do_get(self, name: str, n: int) -> None:
        for _ in range(n if self.has(name) else 0):
            expected = self.model.get(name)
            found = self.rig.take(self.asker, name)
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert (seen(found[0]), found[1]) == (told(expected[0]), expected[1])
            self.model.quiesce()
            self.rig.settle_down(self.budget)

    def do_take_and_settle(self, name: str, n: int, outcome: str) -> None:
        self.do_get(name, n)
        tags = sorted(self.model.asker.unacked)[-n:]
        if tags:
            self.rig.broker.settlement.settle(self.asker, tags[0], tags[0], OUTCOMES[outcome])
            self.model.settle(self.model.asker, tags[:1], outcome)

    def do_settle(self, which: int, at: int, n: int, outcome: str) -> None:
        """n unsettled tags from the at-th on, of a consumer's or of who asks; n = 4: all up to."""
        if which < len(self.sessions):
            session, consumer = self.sessions[which], self.model.consumers[which]
        else:
            session, consumer = self.asker, self.model.asker
        tags = sorted(consumer.unacked)
        if at >= len(tags):
            return
        if n == 4:
            self.rig.broker.settlement.settle_up_to(session, tags[at], OUTCOMES[outcome])
            self.model.settle(consumer, tags[: at + 1], outcome)
            return
        for tag in tags[at : at + n]:
            self.rig.broker.settlement.settle(session, tag, tag, OUTCOMES[outcome])
            self.model.settle(consumer, [tag], outcome)

    def do_wait(self, ms: int) -> None:
        end = self.model.now_ms + ms
        while self.model.due() <= end:
            at = self.model.due()
            self.model.wait_until(at)
            self.rig.advance(at - self.rig.now_ms)
            self.finish()
        self.model.wait_until(end)
        self.rig.advance(end - self.rig.now_ms)

    def do_consume(self, name: str, prefetch: int, no_ack: bool) -> None:
        if not self.has(name) or self.model.queues[name].consumer is not None:
            return
        queue = self.model.queues[name]
        consumer = naive.Consumer(prefetch, no_ack, queue=queue)
        queue.consumer = consumer
        self.model.consumers.append(consumer)
        self.model.touch(queue)
        session = self.rig.session()
        self.rig.consume(session, name, f"{len(self.sessions)}", prefetch, no_ack)
        self.sessions.append(session)

    def do_cancel(self, which: int) -> None:
        if which < len(self.sessions):
            for consumer in list(self.sessions[which].consumers.values()):
                self.rig.broker.consuming.cancel(consumer)
            self.model.cancel(self.model.consumers[which])

    def do_close(self, which: int, lost: bool) -> None:
        if which < len(self.sessions):
            self.rig.broker.clients.close_session(self.sessions[which], lost)
            self.model.cancel(self.model.consumers[which])
            self.model.return_all(self.model.consumers[which], lost)

    def do_purge(self, name: str) -> None:
        if self.has(name):
            found = self.rig.broker.contents.purge(self.rig.vhost.queues[name])
            assert found == self.model.purge(name)

    def do_delete(self, name: str) -> None:
        if self.has(name):
            self.rig.delete(name)
            self.model.delete(name)

    def do_declare(self, name: str, declared: tuple[bool, dict[str, object]]) -> None:
        durable, arguments = declared
        if not self.has(name):
            found = self.rig.declare(name, arguments, durable)
            found.high_water.mark = found.high_water.durable = FAR
            self.model.declare(name, durable, arguments)

    def do_policy(self, name: str, policy: dict[str, object]) -> None:
        self.rig.set_policy(name, policy)
        self.model.set_policy(name, policy)

    def do_exchange(self, name: str, kind: str) -> None:
        if name not in self.model.exchanges:
            self.rig.exchange(name, kind)
            self.model.exchanges[name] = kind
            self.model.rerouted()

    def do_bind(self, exchange: str, name: str, key: str) -> None:
        if exchange in self.model.exchanges and self.has(name):
            self.rig.bind(name, exchange, key)
            self.model.bindings.append((exchange, key, name))
            self.model.rerouted()

    def do_redrive(self, name: str, start: int, n: int, to: str) -> None:
        if not self.has(name):
            return
        queue, redrives = self.rig.vhost.queues[name], self.rig.broker.redrives
        queue.unpack()
        wanted = [
            (piece.first + i, piece.payload.first_id + piece.lo + i)
            for piece in queue.slices()
            for i in range(len(piece))
        ][start : start + n]
        self.rig.tell_time()
        self.rig.broker.dispatcher.use(queue)
        target = ("", to) if to else (None, None)
        found = redrives.look(queue, wanted, *target)
        redrives.move(queue, found)
        assert [one.status for one in found] == self.model.redrive(name, start, n, to)

    def do_set_wall_clock(self, ms: int) -> None:
        """Nothing becomes of it, but deaths are told in wall time."""
        self.rig.set_wall_clock(ms)
        self.model.wall_off_ms += ms

    def do_restart(self, checkpoint: bool) -> None:
        """The wall clock is set right before, and a checkpoint says so of what was stored."""
        if self.model.wall_off_ms:
            self.do_set_wall_clock(-self.model.wall_off_ms)
            checkpoint = True
        if checkpoint:
            for found in self.rig.broker.queues.values():
                found.high_water.mark = 0
            self.rig.checkpoint()
        self.rig = self.rig.restart()
        self.model.restart()
        self.rig.settle_down(self.budget)
        self.model.delivered = []
        self.connect()

    # -- comparison

    def compare(self) -> None:
        assert set(self.rig.vhost.queues) == set(self.model.queues)
        for name, expected in self.model.queues.items():
            found = self.rig.vhost.queues[name]
            assert [seen(h) for h in self.rig.holds(name)] == [told(m) for m in expected.line()]
            assert self.rig.pending(name) == [m.number for m in expected.pending], name
            counters = found.counters()
            assert counters.pop("dropped") == expected.dropped, name
            assert counters == {
                "entered": expected.entered, "ready": len(expected.ready),
                "acquired": expected.acquired, "leased": 0, "deferred": 0, "staged": 0,
                "dead_letter_pending": len(expected.pending), "quarantined": 0,
                "settled": expected.settled, "dead_lettered": expected.dead_lettered,
            }, name  # fmt: skip
        assert self.rig.broker.dead_letters.counts == self.model.counts
        self.compare_deliveries()

    def compare_deliveries(self) -> None:
        given = [(h.number, h.acquired > 0, h.failed, h.acquired) for h in self.rig.given]
        assert given == [delivery[2:] for delivery in self.model.delivered]
        self.rig.given.clear()
        self.model.delivered.clear()


def entry(death: Death) -> naive.Entry:
    return naive.Entry(
        death.queue, death.reason, death.count, death.exchange, death.keys, death.first_ms,
        death.last_ms, death.ttl_ms,
    )  # fmt: skip


def seen(held: Held) -> tuple[object, ...]:
    """A message as the engine has it."""
    known = held.annotations or Annotations()
    return (
        held.number, held.failed, held.acquired, [entry(d) for d in known.deaths],
        known.first_death, known.last_death, held.place if known.deaths else None, known.ttl_ms,
        known.hops, known.failed, known.acquired, known.more_keys, known.bcc,
    )  # fmt: skip


def told(message: naive.Message) -> tuple[object, ...]:
    """The same as the model has it."""
    place = (message.exchange, message.key) if message.history else None
    return (
        message.number, message.failed, message.acquired, list(message.history), message.first,
        message.last, place, message.ttl, message.hops, message.failed_before,
        message.acquired_before, message.cc + message.bcc, message.bcc,
    )  # fmt: skip


WAYS = {
    "in runs": Player,
    "message by message": lambda: Player(split=True),
    "without memory": lambda: Player(budget=0),
    "packed": lambda: Player(split=True, packs=True, budget=0),
}


TWO_AT_ONCE = (
    [
        (True, {"dead-letter-exchange": "", "max-length": 1}),
        (True, {"max-length": 0, "dead-letter-exchange": "fanout"}),
        (True, {"max-length": 0, "dead-letter-exchange": "fanout", "dead-letter-hop-limit": 1}),
    ],
    [("a", "a")],
    ["a", "b", "c"],
    False,
)
"""b and c are too long at once, and each is where the other's letters go."""


@longer
@example("in runs", TWO_AT_ONCE, [("publish", "", "b", 1, -1, [], ["c"], True)])
@settings(
    max_examples=sized(200, 500, 20_000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.sampled_from(sorted(WAYS)), topologies, st.lists(commands(), min_size=8, max_size=25))
def test_the_engine_does_what_the_naive_model_says(
    way: str, topology: tuple, history: list[tuple]
) -> None:
    player = WAYS[way]()
    try:
        player.build(*topology)
        for command in history:
            player.play(command)
    except model.Open:
        return


UNLIMITED = {"max-length", "max-length-bytes", "overflow", "message-deduplication"}
"""Settings under which what comes first decides what comes in."""


@longer
@settings(
    max_examples=sized(100, 500, 5_000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(topologies, st.lists(KINDS["publish"][1], min_size=1, max_size=12), st.booleans())
def test_all_in_one_turn_or_a_turn_each(
    topology: tuple, published: list[tuple], packs: bool
) -> None:
    """Where no message shields another, by a TTL of its own, and none keeps another out."""
    queues = [
        (durable, {key: value for key, value in arguments.items() if key not in UNLIMITED})
        for durable, arguments in topology[0]
    ]
    together, apart = Player(packs=packs), Player()
    for player in (together, apart):
        player.build(queues, *topology[1:])
        for exchange, key, n, _, cc, bcc, persistent in published:
            run = list(range(player.next_number, player.next_number + n))
            player.next_number += n
            player.rig.says |= {number: said(number) for number in run}
            player.rig.send(
                key, *run, exchange=exchange, cc=tuple(cc), bcc=tuple(bcc), persistent=persistent,
            )  # fmt: skip
            if player is apart:
                player.rig.settle_down()
        for ms in (0, 13, 40, 500):
            player.rig.advance(ms)
            player.rig.broker.check()
    for name, queue in together.rig.vhost.queues.items():
        found = [[seen(held) for held in player.rig.holds(name)] for player in (together, apart)]
        for messages in found:
            messages.sort(key=repr)
        assert found[0] == found[1]
        assert queue.counters() == apart.rig.vhost.queues[name].counters()
        assert sorted(together.rig.pending(name)) == sorted(apart.rig.pending(name))
    assert together.rig.broker.dead_letters.counts == apart.rig.broker.dead_letters.counts
