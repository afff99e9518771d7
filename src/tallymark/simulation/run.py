"""One world from its beginning to its end, and what went wrong in it: see playing.py."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tallymark.engine.queue import Queue
from tallymark.journal.verify import OTHER_BYTES, verify
from tallymark.server.config.settings import Config
from tallymark.server.config.slow_consumers import SlowSettings, parse
from tallymark.server.features import FILE as FEATURES
from tallymark.simulation import states
from tallymark.simulation.clients import Clients
from tallymark.simulation.disk import Faults
from tallymark.simulation.history import History, Violated
from tallymark.simulation.management import Operator
from tallymark.simulation.models.ledger import check_ledger
from tallymark.simulation.network import Network, Weather
from tallymark.simulation.nsq import NsqClients
from tallymark.simulation.outages import LASTS_S, OUTAGES, begin, end, read_again
from tallymark.simulation.plan import (
    CLOCK,
    CUT,
    CUT_ALL,
    FULL,
    HALF_OPEN,
    KILL,
    NSQ_QUEUE,
    ONE_WAY,
    POWER,
    POWER_IN_COMMIT,
    POWER_IN_FILES,
    POWER_IN_SYNC,
    POWER_TWICE,
    ROT,
    STOP,
    UNREADABLE,
    ConsumerPlan,
    FaultPlan,
    Plan,
)  # fmt: skip
from tallymark.simulation.process import AMQP, Broker
from tallymark.simulation.readers import Readers
from tallymark.simulation.rogues import Rogue
from tallymark.simulation.rot import REFUSED, turn_bits
from tallymark.simulation.shared import SharedConsumers
from tallymark.simulation.shovels import Mover
from tallymark.simulation.sinks import Writer
from tallymark.simulation.streams import StreamReaders
from tallymark.simulation.subscribers import Subscriber
from tallymark.simulation.world import NEVER_NS, SECOND_NS, Stuck, World
from tallymark.stored.segment import WAS_ON_DISK

MANY_LIVES: Final = 20
"""Lives of a broker from which on its disk does not fail any more: one that fails each hundredth
sync ends a broker a hundred times otherwise, and each life begins as the ones before."""
CLOCK_STEP_S: Final = 900
SILENT_S: Final = 9.0
"""Simulated seconds in which nothing comes over NSQ until its channel counts as empty: longer than
anything is put off."""
CALM_S: Final = 12
"""Simulated seconds for which consumers go on after the last fault."""
STALLED_S: Final = 6
"""Simulated seconds without a delivery after which a queue that is consumed counts as stalled: a
half-open connection is noticed within five."""
LIMIT_S: Final = 300.0
"""Simulated seconds for everything that must come to an end by itself."""
FAILED_DISK: Final = (
    "exit code 4", "OSError: [Errno 5] Input/output error",
    "OSError: [Errno 28] No space left on device",
)  # fmt: skip
"""Ways in which a broker ends when its disk fails: while it serves, and at its start."""
FULL_S: Final = 1.0
"""Simulated seconds for which a full disk is full."""
FULL_ROOM: Final = 8192
"""Bytes for which it still has room."""
RECOVERY_CALLS: Final = 8
"""Calls to the disk that change something, about as many as a start begins with."""
FILE_CALLS: Final = 5
"""Calls that change names, about as many as a checkpoint and its removals need."""
ROT_S: Final = 5
"""Simulated seconds for which a broker is watched that was given turned bits."""
LOOK_EVERY: Final = 8
"""Steps of the world between two looks whether what it waits for is so."""


@dataclass
class Result:
    """Outcome of a world."""

    plan: Plan
    failure: str = ""
    """Promise that was broken; empty: none."""
    simulated_s: float = 0.0
    published: int = 0
    delivered: int = 0
    lives: int = 0
    disk_calls: list[int] = field(default_factory=list)
    """Calls of the disk that changed something, of each life."""
    steps: int = 0
    seen: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)


def _slow_consumers(plan: Plan) -> SlowSettings:
    """Return what the configuration says of slow consumers."""
    if not plan.slow:
        return SlowSettings()
    delay_ms = min(one.delay_ms for one in plan.slow)
    return parse(
        {"delay": delay_ms, "timeunit": "milliseconds",
         "queues": [one.section for one in plan.slow]}
    )  # fmt: skip


class Over(Exception):
    """The world ends here, and all is well."""


class Run:
    """One world under way."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        world = self.world = World(plan.seed)
        self.network = Network(world, plan.weather)
        config = Config(
            data_dir=folder, nsq=True, sync=plan.sync, deliver_after=plan.deliver_after,
            segment_size=plan.segment_size, checkpoint_every=plan.checkpoint_every,
            max_memory=plan.max_memory, unreadable=plan.unreadable, heartbeat_s=4,
            disk_free_limit=0, slow_consumers=_slow_consumers(plan),
        )  # fmt: skip
        self.broker = self._make_broker(folder, config)
        if plan.has_old_forms:
            self._set_old_forms()
        self.network.overhears = AMQP  # who declares the queues: that can be said again
        self.history = History(world, plan)
        self._watch(self.history)
        self.clients = Clients(world, self.network, self.broker, plan, self.history)
        self.nsq = NsqClients(self.clients)
        self.has_nsq = any(one.protocol == "nsq" for one in plan.publishers)
        self._shovels = [Mover(self.clients, one) for one in plan.shovels]
        self._streams = [StreamReaders(self.clients, one) for one in plan.streams]
        self._operating: list[asyncio.Task[None]] = []
        self._subscribers = [Subscriber(self.clients, one) for one in plan.slow]
        self._due = list(plan.faults)
        self._awaits_commit = False
        """True if the power goes in the next sync after a commit is asked for."""
        self._full_until_ns = 0
        self._faults_from = 0
        """Time from which the times of faults count."""
        self._before: dict[tuple[str, str], int] = {}
        """Counts of the queues' accounts at the last crash."""

    def _make_broker(self, folder: Path, config: Config) -> Broker:
        return Broker(self.world, self.network, folder, config)

    def _set_old_forms(self) -> None:
        """Switch feature flags off where the first start is: a folder without the file has all."""
        (self.broker.data_dir / FEATURES).write_text('{"enabled": []}\n')

    def _watch(self, history: History) -> None:
        """Let brokers tell the history what they see: this one sees nothing."""

    def play(self) -> Result:
        failure = ""
        try:
            self._play()
        except Over:
            self.world.failures.clear()
        except (Violated, Stuck) as error:
            failure = f"{type(error).__name__}: {error}"
        if self.world.failures:
            failure = self.world.failures[0]
        world, history = self.world, self.history
        names = {path.suffix for path in self.broker.data_dir.iterdir()}
        if ".ledger" in names:
            history.seen.add("segment stripped")
        if ".checkpoint" in names:
            history.seen.add("checkpoint")
        if len([*self.broker.data_dir.glob("0*.segment")]) > 1:
            history.seen.add("segment sealed")
        if self.broker.process is not None:
            self.broker.kill()
        for is_so, name in (
            (self.broker.fetches, "message back from disk"),
            (self.broker.failed_reads, "message could not be read"),
            (self.broker.refused_opens, "file could not be opened"),
        ):
            if is_so:
                history.seen.add(name)
        result = Result(
            self.plan, failure, world.now_s - 1000, len(history.published),
            sum(map(len, history.deliveries.values())), self.broker.life, self.broker.disk_calls,
            world.steps, history.seen, history.log,
        )  # fmt: skip
        for task in self.clients.tasks:
            task.cancel()
        self.clients.loop.end()
        return result

    def _play(self) -> None:
        self.broker.faults = self.plan.disk
        self._start()
        clients = self.clients
        ready = [clients.begin(clients.declare())]
        operators = [Operator(clients, one) for one in self.plan.operators]
        ready += [clients.begin(one.prepare()) for one in operators]
        if self.has_nsq:
            ready.append(clients.begin(self.nsq.declare()))
        self._until(lambda: all(one.done() for one in ready), "the topology is declared", False)
        began_ns = self.world.now_ns
        self._faults_from = began_ns
        publishers = [*self.plan.publishers]
        for group in self.plan.shared:
            publishers += group.publishers
        publishers += [one.publisher for one in self.plan.slow]
        for publisher in publishers:
            by = self.nsq if publisher.protocol == "nsq" else clients
            clients.begin(by.publish(publisher))
        for consumer in self.plan.consumers:
            by = self.nsq if consumer.protocol == "nsq" else clients
            clients.begin(by.consume(consumer))
        for shared in self.plan.shared:
            clients.begin(SharedConsumers(clients, shared).consume())
        for slow in self._subscribers:
            clients.begin(slow.consume())
        for subscription in self.plan.subscriptions:
            readers = Readers(clients, subscription)
            clients.begin(readers.read(subscription.name, False))
            if subscription.rival:
                clients.begin(readers.read(f"{subscription.name}'", True))
        self._operating = [clients.begin(operator.work()) for operator in operators]
        for rogue in self.plan.rogues:
            clients.begin(Rogue(clients, rogue).work())
        for mover in self._shovels:
            clients.begin(mover.work())
        for sink in self.plan.sinks:
            clients.begin(Writer(clients, sink).write())
        for readers_of in self._streams:
            if readers_of.plan.is_archived:
                clients.begin(readers_of.archive())
            for number in range(readers_of.plan.readers):
                clients.begin(readers_of.read(f"reader {number}"))
        end_ns = began_ns + int(self.plan.duration_s * SECOND_NS)
        self._until(lambda: self.world.now_ns >= end_ns, "the time is over")
        self._heal()
        clients.publishing = False
        if any(one.kind == UNREADABLE for one in self.plan.faults):
            again = clients.begin(read_again(clients))
            self._until(again.done, "what could not be read is read again")
        self._let_them_work()
        clients.consuming = False
        self._until(lambda: all(one.done() for one in clients.tasks), "the clients are done")
        self._drain()
        self.history.check_end()
        checks = [clients.begin(one.check()) for one in self._streams]
        self._until(lambda: all(one.done() for one in checks), "the streams are read")
        if self.world.failures:
            raise Violated(self.world.failures[0])
        self._stop_and_look()

    def _let_them_work(self) -> None:
        """Let consumers work while nothing disturbs the world any more. Raises
        Violated: a queue has messages and consumers, and nothing happens."""
        end_ns = self.world.now_ns + CALM_S * SECOND_NS
        before = -1
        while self.world.now_ns < end_ns:
            step_ns = self.world.now_ns + STALLED_S * SECOND_NS
            self._until(lambda step_ns=step_ns: self.world.now_ns >= step_ns, "time passes")
            waiting = self._waiting()
            settled = sum(map(len, self.history.deliveries.values()))
            if not waiting:
                return
            # Rights that were taken come back with the last request of who took them.
            is_left_alone = all(one.done() for one in self._operating)
            if settled == before and is_left_alone:
                raise Violated(f"stalled: {waiting} wait, have consumers, and nothing comes")
            before = settled

    def _waiting(self) -> dict[str, int]:
        """Return how many messages are ready in queues that are consumed."""
        node = self.broker.node
        assert node is not None
        consumed = {one.queue for one in self.plan.consumers if one.queue != NSQ_QUEUE}
        consumed |= {name for one in self.plan.shared for name in one.queues}
        queues = node.broker.queues.values()
        return {one.name: one.ready for one in queues if one.name in consumed and one.ready}

    def _start(self) -> None:
        if self.plan.has_ledger and check_ledger(self.broker.data_dir):
            self.history.seen.add("ledger balanced")
        if self.broker.life >= MANY_LIVES:
            self.broker.faults = replace(self.broker.faults, write_error=0.0, sync_error=0.0)
        self.broker.start()
        self.history.note(f"broker starts, life {self.broker.life}")
        self._until(lambda: self.broker.is_up, "the broker is up", has_faults=False)
        if self.broker.node is not None:
            after = states.counts(self.broker.node.broker)
            self.history.seen.update(states.of_recovery(self._before, after))
        self._before = {}

    def _until(self, is_done: Any, what: str, has_faults: bool = True) -> None:
        """Run the world until that holds, with the faults that are due, and start the broker again
        where it has ended. Raises Stuck, Violated."""
        world, broker = self.world, self.broker
        end_ns = world.now_ns + int((LIMIT_S + 10 * CLOCK_STEP_S) * SECOND_NS)
        due_ns = self._next_fault_ns() if has_faults else NEVER_NS
        while world.steps % LOOK_EVERY or not is_done():
            if world.failures:
                raise Violated(world.failures[0])
            if world.now_ns >= due_ns:
                self._befall(self._due.pop(0))
                due_ns = self._next_fault_ns()
            elif broker.has_ended:
                self._ended()
            else:
                world.step()
                broker.look()
                if self._awaits_commit and self.history.is_committing():
                    self._cut_in_sync()
            if world.now_ns > end_ns:
                raise Stuck(f"{what}: not after {LIMIT_S} simulated seconds")

    def _next_fault_ns(self) -> int:
        """Return when the next fault is due."""
        at_s = self._due[0].at_s if self._due else None
        return NEVER_NS if at_s is None else self._faults_from + int(at_s * SECOND_NS)

    def _ended(self) -> None:
        """The broker has ended by itself, or the power went: start it again."""
        broker = self.broker
        reason = broker.end_of_task()
        assert broker.process is not None
        if broker.process.is_doomed:
            self._power_cut()
        else:
            is_allowed = (
                self.plan.disk.write_error or self.plan.disk.sync_error or self._full_until_ns
            )
            if reason and not (is_allowed and reason in FAILED_DISK):
                raise Violated(f"the broker ended: {reason}")
            self.history.note(f"broker ended: {reason or 'stopped'}")
            self.history.seen.add("journal failed" if reason else "stopped")
            self.history.life_ended(broker.life)
            broker.ended()
            while self.world.now_ns < self._full_until_ns:
                self.world.step()
        self._start()

    def _power_cut(self) -> None:
        self._look_before_the_end()
        if self.broker.disk is not None:
            self.history.seen.update(states.of_disk(self.broker.disk))
        self.history.seen.add("power cut")
        self.history.life_ended(self.broker.life)
        is_lying = self.broker.disk is not None and self.broker.disk.is_lying
        self.broker.power_cut()
        if is_lying:
            self._look_at_damage("after syncs that lied")
            self.history.seen.add("power cut after syncs that lied")
            raise Over
        if self.plan.sync != "commit":
            self._look_at_what_is_left()

    def _look_at_what_is_left(self) -> None:
        """Check that a broker starts with what it did not sync, and that its account and journal
        are sound: nothing was promised of messages. Raises Over."""
        for task in self.clients.tasks:
            task.cancel()
        self._heal()
        self._start()
        self.history.seen.add("power cut without syncs")
        self._stop_and_verify()
        raise Over

    def _rot(self) -> None:
        """Turn bits of what is stored while the broker is down, and let it serve or refuse to: no
        client gets what was never published. Raises Over."""
        broker, history = self.broker, self.history
        history.life_ended(broker.life)
        broker.kill()
        history.note(f"bits turned: {turn_bits(broker.data_dir, self.world.random)}")
        self._look_at_damage("on turned bits", is_sound=False)
        raise Over

    def _look_at_damage(self, how: str, is_sound: bool = True) -> None:
        """Let the broker serve what it is left with, or refuse to. is_sound: what it serves, and
        leaves behind, is sound, but for bodies, and blocks before its checkpoint, that the
        journal's verification names."""
        broker, history, world = self.broker, self.history, self.world
        self._heal()
        history.is_damaged = broker.lacks_bodies = True
        broker.start()
        end_ns = world.now_ns + ROT_S * SECOND_NS
        while world.now_ns < end_ns and not broker.has_ended:
            world.step()
            broker.look()
            if world.failures:
                raise Violated(world.failures[0])
        reason = broker.end_of_task()
        if reason and not reason.startswith(REFUSED):
            raise Violated(f"the broker ended {how}: {reason}")
        history.note(f"broker {'refused to start' if reason else 'served'} {how}: {reason}")
        history.seen.add(f"{'refused to start' if reason else 'served'} {how}")
        if is_sound and not reason and self._stop_and_verify(may_lack=(OTHER_BYTES, WAS_ON_DISK)):
            check_ledger(broker.data_dir)

    def _look_before_the_end(self) -> None:
        """Note in which interesting states the broker is when it ends."""
        seen, node = self.history.seen, self.broker.node
        if node is None:
            seen.add("power cut in a recovery")
            return
        seen.update(states.of_queues(node.broker) | states.of_drops(node.broker))
        self._before = states.counts(node.broker)

    def _befall(self, fault: FaultPlan) -> None:
        """Do what the plan has at this time."""
        self.history.note(fault.kind)
        self.history.seen.add(fault.kind)
        broker = self.broker
        if fault.kind in (POWER, POWER_TWICE):
            if fault.kind == POWER_TWICE:
                broker.crash_next_at = self.world.random.randint(1, RECOVERY_CALLS)
            self._power_cut()
            self._start()
        elif fault.kind == POWER_IN_SYNC:
            self._cut_in_sync()
        elif fault.kind == POWER_IN_COMMIT:
            self._awaits_commit = True
        elif fault.kind == POWER_IN_FILES:
            if broker.disk is not None:
                broker.disk.crash_among_files = self.world.random.randint(1, FILE_CALLS)
        elif fault.kind == KILL:
            self._look_before_the_end()
            self.history.life_ended(broker.life)
            broker.kill()
            self._start()
        elif fault.kind == STOP:
            broker.stop()
        elif fault.kind == ROT:
            self._rot()
        elif fault.kind in OUTAGES:
            if broker.disk is not None:
                begin(fault.kind, broker.disk, self.world.now_ns)
                self.world.troubles.add(self.world.now_ns, LASTS_S)
        elif fault.kind == FULL:
            if broker.disk is not None:
                self._full_until_ns = self.world.now_ns + int(FULL_S * SECOND_NS)
                self.world.troubles.add(self.world.now_ns, FULL_S)
                broker.disk.fill(FULL_ROOM, self._full_until_ns)
        elif fault.kind == CLOCK:
            step_s = self.world.random.choice([-CLOCK_STEP_S, -2, 2, CLOCK_STEP_S])
            self.world.wall_ahead_ns += step_s * SECOND_NS
        else:
            links = [one for one in self.network.links if not one.client.is_closing()]
            if links and fault.kind != CUT_ALL:
                links = [self.world.random.choice(links)]
            for link in links:
                line = self.clients.lines.get(link.client)
                if line is not None:
                    self.history.disconnected(line)
                if fault.kind == HALF_OPEN:
                    self.network.half_open(link)
                elif fault.kind == ONE_WAY:
                    self.network.one_way(link)
                else:
                    assert fault.kind in (CUT, CUT_ALL)
                    self.network.cut(link)

    def _cut_in_sync(self) -> None:
        """Have the power go in the next sync."""
        self._awaits_commit = False
        if self.broker.disk is not None:
            self.broker.disk.crashes_in_sync = True

    def _heal(self) -> None:
        """Let nothing more befall the world."""
        self._due.clear()
        self._awaits_commit = False
        self.broker.faults = Faults()
        if self.broker.disk is not None:
            self.broker.disk.faults = self.broker.faults
            self.broker.disk.crashes_in_sync = False
            self.broker.disk.crash_among_files = 0
            end(self.broker.disk)
        self.network.weather = Weather()

    def _drain(self) -> None:
        clients = self.clients
        queues = self.plan.queues
        names = [one.name for one in queues] + [one.dead for one in queues if one.dead_letters]
        names += [name for one in self.plan.shared for name in one.queues]
        tasks = [clients.begin(clients.drain(name)) for name in names]
        tasks += [clients.begin(mover.drain()) for mover in self._shovels]
        tasks += [clients.begin(slow.drain()) for slow in self._subscribers]
        if self.has_nsq:
            last = ConsumerPlan("drain nsq", "nsq", NSQ_QUEUE, credit=50, hold_s=0.0)
            # After a step of the clock, what was deferred before it and a crash may be late by it.
            steps = sum(one.kind == CLOCK for one in self.plan.faults)
            silent_s = SILENT_S + 1.1 * CLOCK_STEP_S * steps
            tasks.append(clients.begin(self.nsq.consume(last, silent_s)))
        self._until(lambda: all(one.done() for one in tasks), "the queues are empty")
        self._until(clients.begin(self._drain_letters()).done, "no dead letter waits")

    async def _drain_letters(self) -> None:
        """Take dead letters that had to wait for room. They enter their queue at a time of the
        broker's choice, also after whoever drained it has left: once none waits any more, all are
        where one more look finds them."""
        limited = [one.dead for one in self.plan.queues if one.dead_length is not None]
        is_over = not limited
        while not is_over:
            is_over = not any(one.account.pending for one in self._broker_queues())
            for name in limited:
                await self.clients.drain(name)

    def _broker_queues(self) -> list[Queue]:
        node = self.broker.node
        return [] if node is None else [*node.broker.queues.values()]

    def _stop_and_look(self) -> None:
        """Stop the broker, look at what it leaves, and start it once more."""
        for _ in range(2):
            broker = self.broker
            assert broker.node is not None
            self.history.seen.update(states.of_drops(broker.node.broker))
            left = {
                queue.name: queue.ready + queue.acquired
                for queue in broker.node.broker.queues.values()
                if not queue.settings.is_stream
            }
            waiting = {name: count for name, count in left.items() if count}
            if waiting:
                raise Violated(f"left behind in queues that were emptied: {waiting}")
            self._stop_and_verify()
            self._start()

    def _stop_and_verify(self, may_lack: tuple[str, ...] = ()) -> bool:
        """Stop the broker, and verify what it leaves; return whether all blocks are there.
        may_lack: words of problems that may be, as the disk lied."""
        broker = self.broker
        broker.stop()
        self._until_ended()
        reason = broker.end_of_task()
        if reason:
            raise Violated(f"the broker ended: {reason}")
        broker.ended()
        found = verify(broker.data_dir).problems
        problems = [one for one in found if not any(words in one for words in may_lack)]
        if problems:
            raise Violated(f"the journal is not sound: {problems}")
        return not any(WAS_ON_DISK in one for one in found)

    def _until_ended(self) -> None:
        world = self.world
        end_ns = world.now_ns + int(LIMIT_S * SECOND_NS)
        while not self.broker.has_ended:
            if world.now_ns > end_ns:
                raise Stuck("the broker does not stop")
            world.step()
