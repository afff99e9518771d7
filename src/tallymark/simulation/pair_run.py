"""A world with two brokers, from its beginning to its end: what befalls them, and the last look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tallymark.journal.postgresql.leadership import Leadership
from tallymark.journal.postgresql.mirror import Mirror
from tallymark.journal.verify import verify
from tallymark.server.config.settings import Config
from tallymark.server.features import FILE as FEATURES
from tallymark.server.features import FLAGS
from tallymark.simulation import states
from tallymark.simulation.database.client import Wire
from tallymark.simulation.disk import Faults
from tallymark.simulation.history import History, Violated
from tallymark.simulation.models.ledger import check_ledger
from tallymark.simulation.network import Weather
from tallymark.simulation.pair import HEALED_S, JOURNAL, URL, Member, Pair
from tallymark.simulation.plan import (
    BEHIND,
    CAUSES,
    CUT_OFF,
    FAILOVER,
    HANG,
    KILL,
    KILL_WAITING,
    LOST,
    MID,
    RESTART,
    SLOW,
    STANDBY_AWAY,
    STOP,
    FaultPlan,
)
from tallymark.simulation.run import ROT_S, Over, Run
from tallymark.simulation.world import SECOND_NS

LONGEST_S: Final = 6.0
"""Most seconds for which a fault of the database, or a hang, lasts."""
BEFORE_S: Final = 0.2
"""Seconds for which the synchronous server gets nothing before it takes over."""
MOST_BEHIND: Final = 20
"""Commits that a server lacks which is behind, at most."""


class PairRun(Run):
    """One world of a pair under way."""

    broker: Pair  # type: ignore[assignment]

    def _make_broker(self, folder: Path, config: Config) -> Pair:  # type: ignore[override]
        assert self.plan.pair is not None
        return Pair(self.world, self.network, folder, config, self.plan.pair)

    def _set_old_forms(self) -> None:
        for one in self.broker.members:
            (one.data_dir / FEATURES).write_text('{"enabled": []}\n')

    def _watch(self, history: History) -> None:
        self.broker.history = history
        self.broker.server.seen = history.seen
        history.late_ns += int(2 * LONGEST_S * SECOND_NS)

    def _start(self) -> None:
        self.broker.start()
        self.history.note("both brokers start")
        self._until(lambda: self.broker.is_up, "a broker leads", has_faults=False)

    # -- what befalls it

    def _befall(self, fault: FaultPlan) -> None:
        handlers = {
            KILL: self._kill, LOST: self._lose, HANG: self._hang, STOP: self._stop_one,
            KILL_WAITING: self._kill_waiting, CUT_OFF: self._cut_off, SLOW: self._slow,
            MID: self._cut_in_statement, RESTART: self._restart, FAILOVER: self._fail_over,
            STANDBY_AWAY: self._stall, BEHIND: self._fall_behind,
        }  # fmt: skip
        if fault.kind not in handlers:
            super()._befall(fault)
            return
        self.history.note(fault.kind)
        self.history.seen.add(fault.kind)
        leader = self.broker.last
        if leader.node is not None:
            self.history.seen.update(states.of_queues(leader.node.broker))
        if fault.kind in CAUSES and leader.process is not None:
            self.broker.cause = CAUSES[fault.kind]
        handlers[fault.kind](leader)

    def _lasts(self, seconds: float) -> None:
        """Note that commits may wait for so long, from now on."""
        self.world.troubles.add(self.world.now_ns, seconds + HEALED_S)

    def _seconds(self) -> float:
        return self.world.random.choice([0.3, 1.0, LONGEST_S]) * self.world.random.random()

    def _kill(self, leader: Member) -> None:
        self.broker.end(leader)

    def _lose(self, leader: Member) -> None:
        self.broker.end(leader, is_lost=True)

    def _kill_waiting(self, leader: Member) -> None:
        self.broker.end(self.broker.waiting)

    def _stop_one(self, leader: Member) -> None:
        leader.stop()

    def _hang(self, leader: Member) -> None:
        if leader.process is not None:
            seconds = self._seconds()
            self._lasts(seconds)
            leader.hang(seconds)

    def _cut_off(self, leader: Member) -> None:
        seconds = 2 * self._seconds()
        self._lasts(seconds)
        there, back = self.world.random.choice([(True, True), (True, False), (False, True)])
        leader.wire.cut_off(seconds, there, back)

    def _slow(self, leader: Member) -> None:
        self._lasts(LONGEST_S)
        seconds = self._seconds()
        before = leader.wire.latency_s
        leader.wire.latency_s = self.world.random.choice([0.05, 0.2])

        def over() -> None:
            leader.wire.latency_s = before

        self.broker.server.loop.call_later(seconds, over)

    def _cut_in_statement(self, leader: Member) -> None:
        """Cut the connection in the next statement that writes."""
        self._lasts(0.0)
        words = self.world.random.choice(["INSERT INTO", "INSERT INTO", "COMMIT", "UPDATE"])
        leader.wire.is_cut_after = self.world.random.random() < 0.5
        leader.wire.cuts_next = lambda text: words in text

    def _stall(self, leader: Member) -> None:
        seconds = self._seconds()
        self._lasts(seconds)
        self.broker.server.stall(seconds)

    def _restart(self, leader: Member) -> None:
        self._database_ends(self.broker.server.restart)

    def _fail_over(self, leader: Member) -> None:
        def comes_back() -> None:
            if self.broker.server.fail_over():
                self.history.seen.add("failover with commits gone")

        server = self.broker.server
        self._lasts(BEFORE_S)
        server.stall(BEFORE_S + 0.1)  # what is committed until then is not on the other one
        server.loop.call_later(BEFORE_S, self._database_ends, comes_back)

    def _fall_behind(self, leader: Member) -> None:
        """Fail over to a server that was behind: what was confirmed may be gone, since no
        synchronous one takes over. A leader says so and ends; who leads then has a sound journal,
        and every message that it delivers was published. Raises Over, Violated."""
        pair, history, world = self.broker, self.history, self.world
        if not pair.server.is_up:
            return
        for task in self.clients.tasks:
            task.cancel()
        self._lasts(LONGEST_S)
        history.is_damaged = pair.is_damaged = True
        pair.server.down(is_heard=world.random.random() < 0.5)
        gone = pair.server.fail_over(world.random.randint(1, MOST_BEHIND))
        history.note(f"{gone} commits are gone")
        end_ns = world.now_ns + int((LONGEST_S + ROT_S) * SECOND_NS)
        self._until(lambda: world.now_ns > end_ns, "time passes", has_faults=False)
        self._heal()
        history.seen.add("served by a database that was behind")
        pair.rests = True
        for one in pair.members:
            self._until(lambda one=one: one.process is None or pair.is_up, "it leads", False)
            if pair.last.process is not None:
                pair.last.stop()
            self._until(lambda one=one: pair.last.process is None, "it stops", False)
        self._verify_tables()
        raise Over

    def _database_ends(self, comes_back: Callable[[], None]) -> None:
        server = self.broker.server
        if not server.is_up:
            return
        seconds = self._seconds()
        self._lasts(seconds)
        server.down(is_heard=self.world.random.random() < 0.5)
        server.loop.call_later(seconds, comes_back)

    def _heal(self) -> None:
        """Let nothing more befall the world, and wait until its troubles are over, one leads and
        the other follows."""
        self._due.clear()
        self.network.weather = Weather()
        pair = self.broker
        pair.faults = Faults()
        pair.server.stalls_until_ns = 0
        for one in pair.members:
            one.wire.heal()
            one.faults = pair.faults
            if one.disk is not None:
                one.disk.faults = pair.faults
        end_ns = self.world.troubles.end_ns()
        self._until(lambda: self.world.now_ns > end_ns and self._is_calm(), "a pair serves")

    def _is_calm(self) -> bool:
        pair = self.broker
        return pair.is_up and all(one.process is not None for one in pair.members)

    # -- the last look

    def _stop_and_look(self) -> None:
        """Have each of them lead once more, then start one with an empty disk."""
        pair = self.broker
        pair.rests = True
        while any(one.process is not None for one in pair.members):
            self._until(lambda: pair.is_up, "a broker leads", has_faults=False)
            leader = pair.last
            self._look_at(leader)
            leader.stop()
            self._until(lambda leader=leader: leader.process is None, "it stops", has_faults=False)
            if problems := verify(leader.data_dir).problems:
                raise Violated(f"the copy is not sound: {problems}")
        self._verify_tables()

    def _look_at(self, leader: Member) -> None:
        assert leader.node is not None
        enabled = leader.node.features.enabled
        if not self.plan.has_old_forms and enabled != set(FLAGS):
            raise Violated(f"feature flags that were on are off: enabled are {sorted(enabled)}")
        self.history.seen.update(states.of_drops(leader.node.broker))
        left = {
            queue.name: queue.ready + queue.acquired
            for queue in leader.node.broker.queues.values() if queue.ready + queue.acquired
        }  # fmt: skip
        if left:
            raise Violated(f"left behind in queues that were emptied: {left}")

    def _verify_tables(self) -> None:
        """Check the journal that the tables have: as a new machine gets it. Raises Violated."""
        folder = self.broker.members[0].data_dir.parent / "verified"
        folder.mkdir()
        access = Wire(self.broker.server, None, 0.0).access
        leadership = Leadership(URL, JOURNAL, "verifier", 1000, access)
        mirror = Mirror(folder, leadership, JOURNAL)
        mirror.open()
        mirror.catch_up()
        if problems := verify(folder).problems:
            raise Violated(f"the journal in the database is not sound: {problems}")
        check_ledger(folder)
