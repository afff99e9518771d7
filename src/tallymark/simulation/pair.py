"""Two brokers of one journal on PostgreSQL: one leads, the other follows and waits.

Each is a process as in process.py, started as `tallymark serve` starts one with such a journal: it
takes the lead (server.cluster), and runs `server.run._run`. Its folder is a copy of the tables.

What a start does on the loop's own thread is done in another one here, since only threads can wait
for the database: the loop could run other things meanwhile, and has none yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from tallymark.journal.postgresql.errors import LeadLost, WentBack
from tallymark.server import run
from tallymark.server.access.tls import Certificates
from tallymark.server.cluster import take_lead
from tallymark.server.config.settings import Config
from tallymark.server.opening import open_node
from tallymark.simulation.database.client import Wire
from tallymark.simulation.database.server import Server
from tallymark.simulation.database.tables import EPOCH, Change
from tallymark.simulation.disk import Disk, Faults
from tallymark.simulation.history import History
from tallymark.simulation.loop import SimulatedLoop
from tallymark.simulation.network import End, Network
from tallymark.simulation.plan import PairPlan
from tallymark.simulation.process import Broker
from tallymark.simulation.rot import REFUSED
from tallymark.simulation.threads import Process
from tallymark.simulation.violated import Violated
from tallymark.simulation.world import NEVER_NS, SECOND_NS, World

JOURNAL: Final = 1
HOSTS: Final = (0, 20_000)
"""Numbers that are added to the ports of each broker."""
URL: Final = "postgresql://tallymark@database/tallymark"
BOUND_S: Final = 5.0
"""Seconds, besides the lease, after which somebody leads again."""
HEALED_S: Final = 7.0
"""Seconds after a fault of the database in which a broker may not have noticed that it is over: a
connection that is being made, and the pause between two attempts."""
SUPERSEDED: Final = f"exit code {run.LED}"
WENT_BACK: Final = (f"exit code {run.LED}", f"exit code {run.JOURNAL}")
"""Ways in which a broker ends whose database lacks what it had confirmed."""


class HangingLoop(SimulatedLoop):
    """The loop of a process that may hang: nothing of it runs then, and time passes."""

    hangs_until_ns = 0

    def next_ns(self) -> int:
        at_ns = super().next_ns()
        return at_ns if at_ns == NEVER_NS else max(at_ns, self.hangs_until_ns)


class Member(Broker):
    """One of the brokers over its lives."""

    def __init__(
        self, world: World, network: Network, folder: Path, config: Config, host: int, wire: Wire,
        lives: Iterator[int],
    ) -> None:  # fmt: skip
        super().__init__(world, network, folder, config)
        self.host = host
        self.wire = wire
        self._lives = lives
        self.epoch = 0
        """Epoch in which it leads; 0: it does not."""
        self.starts_ns = 0
        """Time at which it is to be started again."""
        self.able_ns = 0
        """Time since when it could lead, as far as the world knows."""
        self.accepts_loss = False
        """True once it has said that its database lacks what it had confirmed: an operator accepts
        that."""
        self.was_told_to_stop = False
        self.life_of: dict[object, int] = {}
        """Numbers of its lives by their loops."""

    @property
    def hangs(self) -> bool:
        loop = self._loop
        return isinstance(loop, HangingLoop) and loop.hangs_until_ns > self.world.now_ns

    def hang(self, seconds: float) -> None:
        """Let the process do nothing for a while."""
        assert isinstance(self._loop, HangingLoop)
        self._loop.hangs_until_ns = self.world.now_ns + int(seconds * SECOND_NS)

    def start(self) -> None:
        self.epoch = 0
        self.was_told_to_stop = False
        super().start()
        assert self._loop is not None
        self.life_of[self._loop] = self._life
        self.able_ns = self.world.now_ns

    def stop(self) -> None:
        self.was_told_to_stop = True
        super().stop()

    def lose(self) -> None:
        """End the process with its machine and all that is on it."""
        self._end(is_heard=False)
        self.data_dir = self._folder / f"life-{self._life}"
        self.data_dir.mkdir()

    def _next_life(self) -> int:
        return next(self._lives)

    def _make_loop(self, process: Process) -> SimulatedLoop:
        self.wire.process = process
        return HangingLoop(self.world, process)

    async def _serve(self, loop: SimulatedLoop) -> int:
        try:
            return await self._lead(loop)
        except (LeadLost, WentBack) as error:
            return run.code_of_failure(error)

    async def _lead(self, loop: SimulatedLoop) -> int:
        """Wait for the lead, and serve."""
        assert self.process is not None
        config = replace(self._config_of(self.data_dir), accept_loss=self.accepts_loss)
        tls = Certificates(config)
        bound = self._bound()
        self._stop = loop.create_future()
        lead = await take_lead(config, bound, self._stop, self.wire.access)
        if lead is None:
            return run.STOPPED
        try:
            self.epoch = lead.epoch
            process = self.process
            self.disk = Disk(self.data_dir, process, self.faults, self.world.random, 1)
            files = self.disk.files
            home = lead.home(files)
            opening = partial(open_node, config, loop, files, process.threads, lead.replay, home)
            node = await loop.run_in_executor(None, opening)
            lead.lead(node)
            self._set_up(node, tls)
            return await run._run(node, self._stop, bound, tls)
        finally:
            await lead.let_go()

    def _end(self, is_heard: bool) -> None:
        self.wire.process_ended(is_heard)
        self.epoch = 0
        super()._end(is_heard)


class Pair:
    """The brokers, as a world knows its one broker."""

    def __init__(
        self, world: World, network: Network, folder: Path, config: Config, plan: PairPlan
    ) -> None:
        self.world = world
        self.plan = plan
        self.history: History | None = None
        """History that is told who leads; None: not yet."""
        self.server = Server(world, plan.copy_s)
        self.server.on_commit = self._committed
        network.hosts = HOSTS
        config = replace(config, journal=URL, journal_id=JOURNAL, standby=True, lease=plan.lease_ms)
        lives = itertools.count(1)
        self.members = [
            Member(world, network, folder / f"broker-{number}", config, host,
                   Wire(self.server, None, plan.latency_s), lives)
            for number, host in enumerate(HOSTS)
        ]  # fmt: skip
        self.faults = Faults()
        self.rests = False
        """True once nobody is started again."""
        self.crash_next_at = 0
        self.disk_calls: list[int] = []
        self.is_damaged = False
        """True once the database has lost what it had confirmed: a broker may say so and end."""
        self._served_ns = 0
        """Time at which somebody served last."""
        self._last = self.members[0]
        """Broker that led last."""
        self.takeovers = 0
        self.cause = ""
        """Fault that befell the leader last, as states call it; empty: a takeover came since."""
        self._database_ns = 0
        """Time from which on the database counts as there."""
        self._bound_ns = 0
        """Time of the last look at whether somebody leads."""

    # -- as of one broker

    @property
    def leader(self) -> Member | None:
        """Return who serves: it has the lead, and its clients can connect."""
        epoch = self.server.tables.epochs.get(JOURNAL, 0)
        for one in self.members:
            if one.is_up and one.epoch == epoch and one.epoch and not one.has_ended:
                self._last = one
                return one
        return None

    @property
    def last(self) -> Member:
        """Return who leads, or who led last."""
        return self.leader or self._last

    @property
    def waiting(self) -> Member:
        """Return the other one."""
        last = self.last
        return next(one for one in self.members if one is not last)

    @property
    def life(self) -> int:
        return self.last.life

    def life_at(self, end: End) -> int:
        loop = end.link.server.loop
        return next(one.life_of[loop] for one in self.members if loop in one.life_of)

    @property
    def is_up(self) -> bool:
        found = self.leader
        return found is not None and not found.hangs

    has_ended = False
    """False: it starts its brokers again by itself."""

    @property
    def node(self) -> object:
        return self.last.node

    @property
    def process(self) -> Process | None:
        return next((one.process for one in self.members if one.process is not None), None)

    @property
    def disk(self) -> Disk | None:
        return self.last.disk

    @property
    def data_dir(self) -> Path:
        return self.last.data_dir

    @property
    def fetches(self) -> int:
        return sum(one.fetches for one in self.members)

    @property
    def failed_reads(self) -> int:
        return sum(one.failed_reads for one in self.members)

    @property
    def refused_opens(self) -> int:
        return sum(one.refused_opens for one in self.members)

    def start(self) -> None:
        """Start those that are down."""
        for one in self.members:
            if one.process is None:
                one.faults = self.faults
                one.start()

    def kill(self) -> None:
        """End all."""
        for one in self.members:
            if one.process is not None:
                one.kill()

    def end(self, member: Member, is_lost: bool = False) -> None:
        """End one of them, to be started again. is_lost: with its machine."""
        if member.process is None:
            return
        if self.history is not None:
            self.history.life_ended(member.life)
        if is_lost:
            member.lose()
        else:
            member.kill()
        self._start_later(member)

    def _start_later(self, member: Member) -> None:
        seconds = self.world.random.expovariate(1 / self.plan.restart_s)
        member.starts_ns = self.world.now_ns + int(seconds * SECOND_NS)
        self.server.loop.call_later(seconds, _nothing)

    # -- between two steps of the world

    def look(self) -> None:
        """Look after the brokers between two rounds. Raises Violated."""
        for one in self.members:
            if one.process is None:
                if self.world.now_ns >= one.starts_ns and not self.rests:
                    one.faults = self.faults
                    one.start()
                    self._note(f"broker {one.host // HOSTS[1]} starts, life {one.life}")
            elif one.has_ended:
                self._ended(one)
            else:
                one.look()
        if self.world.now_ns > self._bound_ns:
            self._bound_ns = self.world.now_ns
            self._check_bound()

    def _ended(self, member: Member) -> None:
        """One has ended by itself. Raises Violated."""
        reason = member.end_of_task()
        epoch = self.server.tables.epochs.get(JOURNAL, 0)
        is_right = (reason == SUPERSEDED and member.epoch < epoch) or (
            not reason and member.was_told_to_stop
        )
        if self.is_damaged:
            member.accepts_loss = reason.startswith(REFUSED)
            is_right |= reason in WENT_BACK or member.accepts_loss
        if not is_right:
            how = reason or "stopped"
            raise Violated(f"a broker ended: {how}, in epoch {member.epoch} of {epoch}")
        self._note(f"broker {member.host // HOSTS[1]} ended: {reason or 'stopped'}")
        if self.history is not None:
            self.history.seen.add(_state_of_end(reason, self.is_damaged))
            self.history.life_ended(member.life)
        member.ended()
        self._start_later(member)

    def _check_bound(self) -> None:
        """Check that somebody leads soon after nobody did. Raises Violated."""
        now_ns = self.world.now_ns
        for one in self.members:
            wire_ns = max(one.wire.there_ns, one.wire.back_ns)
            if one.process is None or one.hangs or wire_ns > now_ns:
                one.able_ns = now_ns + (int(HEALED_S * SECOND_NS) if wire_ns > now_ns else 0)
        if self.is_up or self.is_damaged or self.rests:
            self._served_ns = now_ns
        if not self.server.is_up or self.server.stalls_until_ns > now_ns:
            self.disturbed()
        bound_ns = int((BOUND_S + self.plan.lease_ms / 1000) * SECOND_NS)
        for one in self.members:
            since_ns = max(one.able_ns, self._served_ns, self._database_ns)
            if now_ns - since_ns > bound_ns:
                raise Violated(f"nobody leads since {self._served_ns / SECOND_NS - 1000:.3f}")

    def disturbed(self) -> None:
        """Note that the database was not there until now."""
        self._database_ns = self.world.now_ns + int(HEALED_S * SECOND_NS)

    def _note(self, text: str) -> None:
        if self.history is not None:
            self.history.note(text)

    def _committed(self, changes: list[Change]) -> None:
        """A commit is visible: has somebody taken the lead?"""
        history = self.history
        for kind, _, value in changes:
            if kind != EPOCH or not value or history is None:
                continue
            self._note(f"lead taken, epoch {value}")
            self.takeovers += 1
            for one in self.members:
                if one.epoch and one.epoch < value and one.process is not None:
                    history.supersede(one.life)
            if self.cause:
                history.seen.add(f"takeover after {self.cause}")
                self.cause = ""


def _state_of_end(reason: str, is_damaged: bool) -> str:
    if not reason:
        return "stopped"
    return "leader whose database went back" if is_damaged else "superseded leader ended"


def _nothing() -> None:
    """Do nothing: it is time to look."""
