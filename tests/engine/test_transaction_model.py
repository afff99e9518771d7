"""The engine's transactions against the naive model of transaction_model.py.

Time passes, and the wall clock is set meanwhile, which nothing depends on [NQ-D8].

The same history is played in several ways that must not show: publishes in runs or one by one, with
memory or without, with packed backlogs; commands come one in a turn or many. And the process may
have ended after any block: then every transaction is there whole or not at all [TX-D1].
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tallymark.engine.errors import RolledBack
from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, REJECTED, RETURNED
from tallymark.engine.packing import Packing
from tallymark.engine.session import Session
from tallymark.engine.staging import Transaction
from tests.engine import transaction_model as model
from tests.support.engine_rig import START_MS, Rig
from tests.support.engine_steps import manual
from tests.support.long import longer, sized

OUTCOMES = {
    "ack": ACCEPTED, "reject": REJECTED, "nack": DISCARDED, "return": RETURNED, "fail": FAILED,
}  # fmt: skip
FAR = 1 << 40
CLOCK_STEPS_MS = (-86_400_000, -3_600_000, -2_500, -500, 500, 2_500, 3_600_000, 86_400_000)
"""By how much somebody sets the wall clock: jumps, and steps that are slewed away."""

who = st.integers(0, 1)
name = st.sampled_from(model.NAMES)
KINDS: dict[str, tuple[int, st.SearchStrategy[tuple]]] = {
    "publish": (
        8,
        st.tuples(
            who,
            st.one_of(st.just(("x", "")), name.map(lambda key: ("", key))),
            st.integers(1, 3),
        ),
    ),
    "get": (4, st.tuples(who, name)),
    "consume": (2, st.tuples(who, name, st.integers(1, 4))),
    "cancel": (1, st.tuples(who)),
    "settle": (
        8,
        st.tuples(who, st.integers(0, 4), st.integers(1, 3), st.sampled_from(sorted(OUTCOMES))),
    ),
    "settle_up_to": (2, st.tuples(who, st.integers(0, 4), st.sampled_from(sorted(OUTCOMES)))),
    "select": (3, st.tuples(who)),
    "commit": (5, st.tuples(who)),
    "rollback": (2, st.tuples(who)),
    "recover": (1, st.tuples(who)),
    "close": (1, st.tuples(who, st.booleans())),
    "flow": (1, st.tuples(who, st.booleans())),
    "purge": (1, st.tuples(name)),
    "pass": (3, st.tuples(st.sampled_from([1, 499, 500, 999, 1000, 2500]))),
    "clock": (2, st.tuples(st.sampled_from(CLOCK_STEPS_MS))),
    "pump": (8, st.tuples()),
}
"""Commands: how often, and with what."""
WEIGHED = [kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]


@st.composite
def commands(draw: st.DrawFn) -> tuple:
    kind = draw(st.sampled_from(WEIGHED))
    return (kind, *draw(KINDS[kind][1]))


histories = st.lists(commands(), min_size=20, max_size=100).map(
    lambda some: [("select", 0), ("select", 1), *some, ("pump",)]
)


@dataclass
class Player:
    """Plays commands against the engine and against the model, and compares."""

    split: bool = False
    budget: int = 1 << 40
    packs: bool = False
    is_timed: bool = False
    """Whether messages and transactions have a time to end."""
    rig: Rig = field(default_factory=manual)
    model: model.Model = field(init=False)
    sessions: list[Session] = field(default_factory=list)
    transactions: list[Transaction | None] = field(default_factory=lambda: [None, None])
    next_number: int = 1
    cuts: list[tuple[int, dict[str, list[int]]]] = field(default_factory=list)
    """After each pump: how many blocks there are, and what is in each queue."""
    held_back: list[list[tuple[int, int, bool]]] = field(default_factory=lambda: [[], []])
    """Per session: deliveries that a look at their queue caused, and that wait for the disk."""
    gone: set[int] = field(default_factory=set)
    """Ids of sessions that were closed; a delivery held back for one reaches nobody."""

    def __post_init__(self) -> None:
        rig = self.rig
        self.model = model.Model(self.is_timed)
        if self.packs:
            rig.broker.backlogs.packing = Packing(after=2, group=3, fresh=1)
        for name in model.NAMES:
            arguments: dict[str, object] = {}
            if name == "a":
                arguments = {"dead-letter-exchange": "", "dead-letter-routing-key": "d"}
            if name == "r":
                arguments = {"max-length": model.ROOM, "overflow": "reject-publish"}
            if name == "c" and self.is_timed:
                arguments = {"message-ttl": model.TTL_MS}
            queue = rig.declare(name, arguments)
            queue.high_water.mark = queue.high_water.durable = FAR
        rig.exchange("x", "fanout", ("a", ""), ("b", ""))
        self.sessions = [rig.session(), rig.session()]
        self.settle_down()

    def settle_down(self) -> None:
        seen: list[list[tuple[int, int, bool]]] = [[], []]
        blocks = len(self.rig.log.blocks)
        self.model.now_ms = self.rig.tell_time() - START_MS
        found = self.rig.settle_down(self.budget)
        self.time_out()
        ids = [session.id for session in self.sessions]
        for d in found:
            if d.session not in self.gone:
                seen[ids.index(d.session)].append((d.number, d.tag, d.redelivered))
        for session, later in enumerate(self.model.deliver()):
            # A connection sends in the order of tags: what follows is held back, too.
            seen[session].sort(key=lambda delivery: delivery[1])
            assert seen[session] == self.held_back[session] + later
            self.held_back[session] = []
        self.rig.broker.check()
        self.compare()
        # All commands since the last pump are in the first block after it.
        if len(self.rig.log.blocks) > blocks:
            self.cuts.append((blocks + 1, self.model.content()))

    def time_out(self) -> None:
        """Transactions that took too long were rolled back, and others begin."""
        late = self.model.time_out()
        expected = [self.transactions[who] for who in late]
        assert sorted(self.rig.expired) == sorted(one.id for one in expected if one is not None)
        self.rig.expired.clear()
        for who in late:
            self.begin(who)

    def begin(self, who: int) -> None:
        self.model.begin(self.model.sessions[who])
        longest = model.LONGEST_MS if self.is_timed else 0
        self.transactions[who] = self.rig.broker.transactions.begin(self.sessions[who], longest)

    def compare(self) -> None:
        for name, expected in self.model.queues.items():
            self.model.expire(expected)
            queue = self.rig.vhost.queues[name]
            assert [(h.number, h.acquired, h.failed) for h in self.rig.holds(name)] == [
                (m.number, m.acquired, m.failed) for m in expected.line()
            ], name
            assert queue.counters() == expected.account(), name

    def play(self, command: tuple) -> None:
        getattr(self, "do_" + command[0])(*command[1:])

    # -- commands

    def do_pump(self) -> None:
        self.settle_down()

    def do_pass(self, ms: int) -> None:
        self.rig.now_ms += ms
        self.model.now_ms = self.rig.tell_time() - START_MS

    def do_clock(self, ms: int) -> None:
        before = self.rig.tell_time()
        self.rig.set_wall_clock(ms)
        assert self.rig.tell_time() == before, "engine time stands still meanwhile"

    def do_publish(self, who: int, where: tuple[str, str], n: int) -> None:
        exchange, key = where
        run = list(range(self.next_number, self.next_number + n))
        self.next_number += n
        self.model.publish(self.model.sessions[who], exchange, key, run)
        transaction = self.transactions[who]
        for some in [[number] for number in run] if self.split else [run]:
            if transaction is not None:
                self.rig.stage(transaction, key, *some, exchange=exchange)
            else:
                self.rig.send(key, *some, exchange=exchange, session=self.sessions[who])

    def do_get(self, who: int, name: str) -> None:
        queue = self.model.queues[name]
        found = self.rig.take(self.sessions[who], name)
        self.serve_first(queue)
        assert (found is None) == (not queue.ready)
        if found is not None:
            seen = (found[0].number, found[1], found[0].acquired > 0)
            assert seen == self.model.take(self.model.sessions[who], queue)

    def do_consume(self, who: int, name: str, prefetch: int) -> None:
        session, queue = self.model.sessions[who], self.model.queues[name]
        if session.queue is not None or queue.consumer is not None:
            return
        held = session.of_consumer.intersection(session.unacked)
        if held or session.parked:
            return  # the window of an earlier consumer is not this one's
        session.queue, queue.consumer, session.prefetch = queue, session, prefetch
        self.rig.consume(self.sessions[who], name, "c", prefetch)

    def do_cancel(self, who: int) -> None:
        self.model.cancel(self.model.sessions[who])
        for consumer in list(self.sessions[who].consumers.values()):
            self.rig.broker.consuming.cancel(consumer)

    def do_settle(self, who: int, at: int, n: int, outcome: str) -> None:
        """n outstanding tags from the at-th on, one by one."""
        session = self.model.sessions[who]
        for tag in sorted(session.unacked)[at : at + n]:
            self.model.settle(session, [tag], outcome)
            self._settle(who, tag, outcome, False)

    def do_settle_up_to(self, who: int, at: int, outcome: str) -> None:
        session = self.model.sessions[who]
        tags = sorted(session.unacked)[: at + 1]
        if len(tags) == at + 1:
            self.model.settle(session, tags, outcome)
            self._settle(who, tags[-1], outcome, True)

    def _settle(self, who: int, tag: int, outcome: str, multiple: bool) -> None:
        broker, session = self.rig.broker, self.sessions[who]
        transaction = self.transactions[who]
        if transaction is None:
            settle = broker.settlement.settle_up_to if multiple else None
            if settle is not None:
                settle(session, tag, OUTCOMES[outcome])
            else:
                broker.settlement.settle(session, tag, tag, OUTCOMES[outcome])
        elif multiple:
            broker.transactions.settle_up_to(transaction, session, tag, OUTCOMES[outcome])
        else:
            broker.transactions.settle(transaction, session, tag, tag, OUTCOMES[outcome])

    def do_select(self, who: int) -> None:
        if self.transactions[who] is None:
            self.begin(who)

    def do_commit(self, who: int) -> None:
        transaction = self.transactions[who]
        if transaction is None:
            return
        try:
            self.rig.broker.transactions.commit(transaction)
            is_committed = True
        except RolledBack:
            is_committed = False
        assert is_committed == self.model.commit(self.model.sessions[who])
        self.begin(who)

    def do_rollback(self, who: int) -> None:
        transaction = self.transactions[who]
        if transaction is not None:
            self.rig.broker.transactions.rollback(transaction)
            self.model.rollback(self.model.sessions[who])
            self.begin(who)

    def do_recover(self, who: int) -> None:
        self.rig.broker.settlement.recover(self.sessions[who])
        self.model.recover(self.model.sessions[who])

    def do_close(self, who: int, lost: bool) -> None:
        self.rig.broker.clients.close_session(self.sessions[who], lost)
        self.model.close(who, lost)
        self.gone.add(self.sessions[who].id)
        self.held_back[who] = []
        self.sessions[who] = self.rig.session()
        self.transactions[who] = None

    def do_flow(self, who: int, active: bool) -> None:
        self.rig.broker.consuming.set_flow(self.sessions[who], active)
        self.model.sessions[who].flow = active

    def do_purge(self, name: str) -> None:
        count = self.rig.broker.contents.purge(self.rig.vhost.queues[name])
        self.serve_first(self.model.queues[name])
        assert count == self.model.purge(name)

    def serve_first(self, queue: model.Queue) -> None:
        """The queue was looked at: what its consumer could have before that is the consumer's. It
        was sent, up to the first message that a commit published and the disk does not have."""
        session = queue.consumer
        self.model.expire(queue)
        expected = [] if session is None else self.model.serve(session, queue)
        sent = [(d.number, d.tag, d.redelivered) for d in self.rig.said]
        assert sent == expected[: len(sent)]
        if session is not None:
            self.held_back[self.model.sessions.index(session)] += expected[len(sent) :]
        self.rig.said.clear()

    # -- the end

    def check_every_cut(self) -> None:
        """The process may have ended after any block: what is there is what was there at a pump,
        nothing of what came later and all of what came before."""
        counts = [blocks for blocks, _ in self.cuts]
        for blocks in range(counts[0], len(self.rig.log.blocks) + 1):
            at = max(i for i, count in enumerate(counts) if count <= blocks)
            after = self.rig.reopened(self.rig.log.upto(blocks))
            after.turn()
            after.broker.check()
            found = {name: after.ready(name) for name in model.NAMES}
            assert found == self.cuts[at][1], blocks

    def check_released(self) -> None:
        """Empty everything: then nothing is held any more."""
        for session in self.sessions:
            self.rig.broker.clients.close_session(session, lost=True)
        for name in model.NAMES:
            self.rig.broker.contents.purge(self.rig.vhost.queues[name])
        for _ in range(3):
            self.rig.turn(self.budget)
        assert self.rig.broker.store.resident_bytes == 0
        assert sum(n for _, n in self.rig.released) == self.rig.log.stored_bytes
        assert self.rig.broker.transactions.open == {}


def play(player: Player, history: list[tuple]) -> Player:
    for command in history:
        player.play(command)
    return player


@longer
@settings(
    max_examples=sized(150, 500, 5000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(histories)
@example([("select", 0), ("publish", 0, ("", "r"), 3), ("publish", 0, ("", "r"), 2),
          ("commit", 0), ("pump",)])  # fmt: skip
def test_what_is_seen_is_what_the_rules_say_whatever_the_batching(history: list[tuple]) -> None:
    for player in (Player(), Player(split=True), Player(budget=0), Player(split=True, packs=True)):
        play(player, history).check_released()


@longer
@settings(
    max_examples=sized(100, 500, 5000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(histories)
@example([("select", 0), ("publish", 0, ("", "c"), 1), ("pass", 1000), ("clock", 86_400_000),
          ("commit", 0), ("clock", -86_400_000), ("pass", 999), ("pump",), ("pass", 1),
          ("get", 1, "c"), ("pass", 1500), ("pump",)])  # fmt: skip
def test_nq_d8_transactions_and_their_messages_end_in_time_however_the_clock_is_set(
    history: list[tuple],
) -> None:
    """A time to live begins with the commit; a transaction that takes too long is rolled back."""
    for player in (Player(is_timed=True), Player(split=True, packs=True, is_timed=True)):
        play(player, history).check_released()


@longer
@settings(
    max_examples=sized(80, 500, 2000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(histories, st.booleans(), st.booleans())
def test_tx_d1_a_crash_leaves_each_transaction_whole_or_not_at_all(
    history: list[tuple], split: bool, spills: bool
) -> None:
    player = Player(split=split, budget=0 if spills else 1 << 40)
    play(player, history).check_every_cut()


@longer
@settings(max_examples=sized(60, 300, 1000), deadline=None)
@given(histories, st.integers(0, 60))
def test_a_restart_from_a_checkpoint_in_the_middle(history: list[tuple], at: int) -> None:
    """With transactions open: what they hold is neither lost nor in effect."""
    player = Player(budget=0)
    for i, command in enumerate(history):
        player.play(command)
        if i == at:
            player.settle_down()
            player.rig.checkpoint()
    player.settle_down()
    after = player.rig.restart()
    after.turn()
    after.broker.check()
    assert {name: after.ready(name) for name in model.NAMES} == player.model.content()
