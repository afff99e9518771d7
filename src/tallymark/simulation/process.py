"""A broker as a process of the world: started, stopped, killed, and cut off from power.

It runs `server.run._run`, as `tallymark serve` does: the same listeners, tasks and turns. Given to
it are a loop, sockets that are ports of the simulated network, a disk and threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from tallymark.server import run
from tallymark.server.access.tls import Certificates
from tallymark.server.clock import CLOCKS
from tallymark.server.config.settings import Config
from tallymark.server.listening import Bound
from tallymark.server.node import Node
from tallymark.server.opening import open_node
from tallymark.simulation.disk import Disk, Faults
from tallymark.simulation.loop import SimulatedLoop, SimulatedSocket
from tallymark.simulation.network import End, Network
from tallymark.simulation.threads import Crashed, Process
from tallymark.simulation.world import SECOND_NS, World

AMQP: Final = 5672
HTTP: Final = 15672
NSQ: Final = 4150
NSQ_HTTP: Final = 4151
CHECK_EVERY: Final = 64
"""Rounds of the loop between two looks at the whole account, at least."""
SLICES_A_ROUND: Final = 8
"""Slices of queues for each of which one more round passes until the next look: a look is at every
slice, so that where thousands wait most of the work would be looks."""


class Broker:
    """One broker over all its lives."""

    def __init__(self, world: World, network: Network, folder: Path, config: Config) -> None:
        self.world = world
        self.network = network
        self._folder = folder
        self._config = config
        self._life = 0
        self.host = 0
        """Number that is added to its ports."""
        self.data_dir = folder / "life-0"
        self.data_dir.mkdir(parents=True)
        self.faults = Faults()
        """Faults of the disk, from the next start on."""
        self.crash_next_at = 0
        """Number of the call to the disk, in the next life, in which the power goes; 0: none."""
        self.disk_calls: list[int] = []
        """Calls of the disk that changed something, of each life that is over."""
        self.process: Process | None = None
        self.disk: Disk | None = None
        self.node: Node | None = None
        self._loop: SimulatedLoop | None = None
        self._task: asyncio.Task[int] | None = None
        self._stop: asyncio.Future[int] | None = None
        self.fetches = 0
        """Bodies that were read back from the disk, of lives that are over."""
        self.failed_reads = 0
        self.refused_opens = 0
        self.lacks_bodies = False
        """True once the disk may have other bytes than were written: some cannot be read."""
        self._held_since_ns = 0
        """Time since when it reads from no publisher; 0: it does."""
        self._rounds = 0
        """Rounds of the loop until the next look at the whole account."""
        self._graves: list[object] = []
        """Tasks and nodes of ended processes: what they left undone is not to be finished."""

    @property
    def life(self) -> int:
        """Number of its starts."""
        return self._life

    def life_at(self, end: End) -> int:
        """Return the number of the life to which a client's end leads."""
        return self.life

    @property
    def is_up(self) -> bool:
        """Return whether clients can connect."""
        loop = self._loop
        return loop is not None and AMQP + self.host in loop.listeners

    @property
    def has_ended(self) -> bool:
        """Return whether the process is over, by itself or by a fault of its disk."""
        process = self.process
        return (
            process is None or process.is_doomed or (self._task is not None and self._task.done())
        )

    def start(self) -> None:
        """Start the process on what the disk has."""
        assert self.process is None, "one process at a time has the folder"
        self._life = self._next_life()
        process = self.process = Process(self.world)
        loop = self._loop = process.loop = self._make_loop(process)
        loop.set_exception_handler(self._unexpected)
        self.disk = Disk(self.data_dir, process, self.faults, self.world.random, self._life)
        if self.crash_next_at:
            self.disk.crash_at = self.crash_next_at
            self.crash_next_at = 0
        CLOCKS.set(self.world.monotonic_ns, self.world.wall_ns)
        self._task = loop.create_task(self._serve(loop))

    def _next_life(self) -> int:
        return self._life + 1

    def _make_loop(self, process: Process) -> SimulatedLoop:
        return SimulatedLoop(self.world, process)

    async def _serve(self, loop: SimulatedLoop) -> int:
        assert self.disk is not None
        assert self.process is not None
        config = self._config_of(self.data_dir)
        tls = Certificates(config)
        node = open_node(config, loop, self.disk.files, self.process.threads)
        self._set_up(node, tls)
        self._stop = loop.create_future()
        return await run._run(node, self._stop, self._bound(), tls)

    def _set_up(self, node: Node, tls: Certificates) -> None:
        """Give a node what a start gives it, and check what it was restored to."""
        self.node = node
        node.doors.limit = node.config.max_connections
        node.read_config = self._reads_config
        node.certificates = tls
        node.broker.check()
        gc.enable()
        gc.freeze()  # what it has made so far: the collection of a start has nothing to look at

    def _bound(self) -> Bound:
        """Return its ports: their attributes are what a start binds."""
        return cast(Bound, _Ports(self.host))

    def _config_of(self, data_dir: Path) -> Config:
        return replace(self._config, data_dir=data_dir)

    def _reads_config(self) -> Config:
        """Read the configuration again: what may change at run time has."""
        random = self.world.random
        return replace(
            self._config_of(self.data_dir),
            deliver_after=random.choice(["written", "synced"]),
            max_memory=random.choice([65_536, 1 << 24]),
            write_high_water=random.choice([4096, 1 << 20]),
        )

    def _unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if self.process is None or self.process.is_doomed or isinstance(error, Crashed):
            return
        self.world.failures.append(f"broker: {context.get('message')}: {error!r}")

    def look(self) -> None:
        """Look after the process between two rounds: check its account now and then."""
        node = self.node
        if node is not None and node.alarms.is_holding != bool(self._held_since_ns):
            self._note_hold()
        self._rounds -= 1
        if self._rounds > 0:
            return
        self._rounds = CHECK_EVERY
        process = self.process
        if node is None or process is None or process.is_doomed or process.is_dead:
            return
        if not node.is_due:
            slices = sum(len(queue.lanes.slices()) for queue in node.broker.queues.values())
            self._rounds += slices // SLICES_A_ROUND
            try:
                node.broker.check()
            except AssertionError as error:
                self.world.failures.append(f"account: {error!r}")
            self._look_at_quarantine(node)

    def _note_hold(self) -> None:
        """Note that publishers are held back, or that they were: what they have sent meanwhile, as
        beside a consumer that no longer hears and whose output fills the memory, enters later."""
        now_ns = self.world.now_ns
        if self._held_since_ns:
            held_ns = now_ns - self._held_since_ns
            self.world.troubles.add(self._held_since_ns, held_ns / SECOND_NS)
        self._held_since_ns = 0 if self._held_since_ns else now_ns

    def _look_at_quarantine(self, node: Node) -> None:
        """Check that nothing is kept from clients as unreadable where every read has succeeded: a
        restart reads it again, and would hide that."""
        disk = self.disk
        if disk is None or disk.failed_reads or disk.refused_opens or disk.is_lying:
            return
        for queue in node.broker.queues.values():
            if queue.quarantine and not self.lacks_bodies:
                self.world.failures.append(
                    f"quarantined: {queue.account.quarantined} of {queue.name}, though no read "
                    f"failed: {next(iter(queue.quarantine)).trouble}"
                )

    def end_of_task(self) -> str:
        """Return why the process ended by itself; empty: it has not, or as it should."""
        task = self._task
        if task is None or not task.done() or (self.process and self.process.is_doomed):
            return ""
        if task.cancelled():
            return "cancelled"
        error = task.exception()
        if error is None:
            return "" if task.result() == run.STOPPED else f"exit code {task.result()}"
        if isinstance(error, Crashed):
            return ""
        # Each run of a world has a folder of its own; its history is to be the same.
        return f"{type(error).__name__}: {error}".replace(f"{self._folder}/", "")

    def stop(self) -> None:
        """Ask the process to stop, as SIGTERM does."""
        if self._stop is not None and not self._stop.done():
            assert self._loop is not None
            self._loop.call_soon(run._resolve, self._stop, 15)

    def kill(self) -> None:
        """End the process with everything that the operating system has (kill -9)."""
        self._end(is_heard=True)
        target = self._folder / f"life-{self._life}"
        self.data_dir.rename(target)
        self.data_dir = target

    def power_cut(self) -> None:
        """End the process with what the disk has."""
        disk = self.disk
        assert disk is not None
        self._end(is_heard=False)
        target = self._folder / f"life-{self._life}"
        target.mkdir()
        disk.image(target, self.world.random)
        shutil.rmtree(self.data_dir)
        self.data_dir = target

    def ended(self) -> None:
        """The process has ended by itself: let go of it."""
        self._end(is_heard=True)

    def _end(self, is_heard: bool) -> None:
        process, loop = self.process, self._loop
        assert process is not None
        assert loop is not None
        process.is_doomed = True
        self.network.process_ended(loop, is_heard)
        process.end()
        node = self.node
        if self.disk is not None:
            self.disk_calls.append(self.disk.calls)
            self.fetches += self.disk.fetches
            self.failed_reads += self.disk.failed_reads
            self.refused_opens += self.disk.refused_opens
            self.disk.files.give_back()
        self.process = self._loop = self.node = self._task = self._stop = None
        self._held_since_ns = 0
        if node is not None:
            with contextlib.suppress(OSError):
                os.close(node.journal.signal)
        _close_all(self.data_dir)
        self._graves += [node, *loop.end()]


class _Ports:
    """Ports as in server.listening.Bound, taken. host: number that is added to them."""

    def __init__(self, host: int) -> None:
        self.amqp = [SimulatedSocket(AMQP + host)]
        self.amqps: list[SimulatedSocket] = []
        self.http = [SimulatedSocket(HTTP + host)]
        self.https: list[SimulatedSocket] = []
        self.nsq = [SimulatedSocket(NSQ + host)]
        self.nsq_http = [SimulatedSocket(NSQ_HTTP + host)]
        self.nsq_https: list[SimulatedSocket] = []


def _close_all(folder: Path) -> None:
    """Close what the process had open in its folder: its end does that."""
    inside = str(folder) + "/"
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith((inside, str(folder))):
                os.close(int(name))
