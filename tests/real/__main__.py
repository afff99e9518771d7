"""The worlds' clients and checkers against a real broker: processes, sockets, files, time.

    python -m tests.real --minutes 30

Rounds follow each other. Each has a plan of its own (simulation/plan.py) and a new folder: clients
of AMQP 0-9-1, AMQP 1.0 and NSQ work through a proxy while the broker is killed, stops for a moment
(SIGSTOP), finds its disk full or failing, sees its clock jump, and while connections are cut and
stall. Then all of that ceases, the queues are emptied, and the history of what the clients saw is
checked (simulation/history.py), and the journal.

Chance is drawn from --seed, time is real: a seed gives the same plan, not the same run. A round
that fails leaves its folder, with the history in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from tallymark.simulation.clients import Clients
from tallymark.simulation.drawing import draw
from tallymark.simulation.history import History
from tallymark.simulation.nsq import NsqClients
from tallymark.simulation.plan import CLOCK, NSQ_QUEUE, ConsumerPlan, FaultPlan, Plan
from tallymark.simulation.violated import Violated
from tallymark.simulation.world import SECOND_NS, Troubles
from tests.faults.disks import fill_up, make_shim, small_disk
from tests.real.network import RealNetwork
from tests.support import forked
from tests.support.process import BrokerDied, BrokerProcess

FAKETIME: Final = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
KILL, STOP, FREEZE, CUT, CUT_ALL, STALL, FULL, BROKEN_WRITE, BROKEN_SYNC = (
    "kill -9", "SIGTERM", "SIGSTOP", "cut", "cut all", "stall", "disk full", "writes fail",
    "syncs fail",
)  # fmt: skip
FAULTS: Final = (
    KILL, KILL, STOP, FREEZE, CUT, CUT, CUT_ALL, STALL, FULL, BROKEN_WRITE, BROKEN_SYNC, CLOCK,
)  # fmt: skip
LOAD_S: Final = 8.0
MOST_FAULTS: Final = 6
CERTAIN_S: Final = 30
"""Seconds for which connection and broker live on until an answer counts as having arrived."""
LATE_S: Final = 60
LIMIT_S: Final = 180.0
"""Seconds for each thing that must come to an end."""
DISK_MIB: Final = 48
LOOK_S: Final = 0.02


class RealTime:
    """The clock and the chance of a round, as a world has them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.failures: list[str] = []
        self._began_ns = time.monotonic_ns()
        self.troubles = Troubles()

    @property
    def now_ns(self) -> int:
        return 1000 * SECOND_NS + time.monotonic_ns() - self._began_ns

    @property
    def now_s(self) -> float:
        return self.now_ns / SECOND_NS


class RealBroker:
    """The broker over its lives in one round."""

    def __init__(self, folder: Path, disk: Path, plan: Plan) -> None:
        self.life = 0
        self.clock = folder / "clock"
        self.clock.write_text("+0")
        self.shim = make_shim(folder / "shim")
        libraries = self.shim.env["LD_PRELOAD"]
        if FAKETIME.exists():
            libraries = f"{FAKETIME} {libraries}"
        env = {
            **self.shim.env, "LD_PRELOAD": libraries, "FAKETIME_TIMESTAMP_FILE": str(self.clock),
            "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }  # fmt: skip
        self.process = BrokerProcess(
            disk / "data", env=env, is_forked=False, log_level="error",
            sync="commit", deliver_after=plan.deliver_after, heartbeat_s="60",
            segment_size="1MiB", max_memory="16MiB",
            checkpoint_every="1MiB", disk_free_limit="0",
        )  # fmt: skip

    def life_at(self, end: object) -> int:
        """Return the number of the life to which a client's end leads."""
        return self.life

    def start(self) -> None:
        self.process.start()


class Round:
    """One plan under way."""

    def __init__(self, seed: int, folder: Path, disk: Path) -> None:
        plan = draw(seed, pairs=False)
        chance = random.Random(f"real {seed}")
        faults = [
            FaultPlan(chance.uniform(0.5, LOAD_S), chance.choice(FAULTS))
            for _ in range(chance.randint(1, MOST_FAULTS))
        ]
        self.plan = replace(
            plan, faults=tuple(sorted(faults, key=lambda one: one.at_s)), sync="commit",
            publishers=tuple(
                replace(one, is_worker=False)
                for one in plan.publishers
                if one.target not in {stream.name for stream in plan.streams}
            ),
            consumers=tuple(replace(one, is_worker=False) for one in plan.consumers),
            queues=tuple(replace(one, is_managed=False) for one in plan.queues),
            subscriptions=(), sinks=(), streams=(), operators=(), shovels=(),
            shared=(), slow=(),
        )  # fmt: skip
        self.disk = disk
        self.seen: Counter[str] = Counter()
        self.time = RealTime(seed)
        self.broker = RealBroker(folder, disk, self.plan)
        self.network = RealNetwork(self.broker.process)
        self.history = History(cast(Any, self.time), self.plan)
        self.history.certain_ns = CERTAIN_S * SECOND_NS
        self.history.late_ns = LATE_S * SECOND_NS
        self.history.is_slow = True
        self.is_disturbed = False
        """True while faults of the disk may end the broker."""

    async def play(self) -> None:
        """Play it. Raises Violated, TimeoutError."""
        clients = self.clients = Clients(
            cast(Any, self.time), cast(Any, self.network), cast(Any, self.broker), self.plan,
            self.history, asyncio.get_running_loop(),
        )  # fmt: skip
        nsq = NsqClients(clients)
        await self._start()
        ready = [clients.begin(clients.declare()), clients.begin(nsq.declare())]
        await self._until(lambda: all(one.done() for one in ready), "the topology")
        self._check_failures()
        for publisher in self.plan.publishers:
            by: Any = nsq if publisher.protocol == "nsq" else clients
            clients.begin(by.publish(publisher))
        for consumer in self.plan.consumers:
            by = nsq if consumer.protocol == "nsq" else clients
            clients.begin(by.consume(consumer))
        began = self.time.now_s
        for fault in self.plan.faults:
            until = began + fault.at_s
            await self._until(lambda until=until: self.time.now_s >= until, "time")  # type: ignore[misc]
            await self._befall(fault.kind)
        await self._until(lambda: self.time.now_s >= began + LOAD_S, "time")
        clients.publishing = clients.consuming = False
        await self._until(lambda: all(one.done() for one in clients.tasks), "the clients' ends")
        await self._drain(nsq)
        self.history.check_end()
        self.history.life_ended(self.broker.life)
        code = await asyncio.to_thread(self.broker.process.stop)
        if code:
            raise Violated(f"the broker stopped with exit code {code}")
        verified = forked.run("journal", "verify", str(self.broker.process.data_dir))
        if verified.returncode:
            raise Violated(f"journal verify: {verified.stdout}{verified.stderr}")

    # -- the broker

    async def _start(self) -> None:
        self.broker.life += 1
        self.history.note(f"broker starts, life {self.broker.life}")
        await asyncio.to_thread(self.broker.start)
        self.network.is_up = True

    def _is_over(self) -> None:
        """The broker is no more, or is about to be."""
        self.network.is_up = False
        self.history.life_ended(self.broker.life)

    def _check_failures(self) -> None:
        if self.time.failures:
            raise Violated(self.time.failures[0])

    async def _until(self, is_done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LIMIT_S
        while not is_done():
            self._check_failures()
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not within {LIMIT_S} s")
            if not self.broker.process.is_running:
                self._is_over()
                if not self.is_disturbed:
                    raise Violated(f"the broker ended: {self.broker.process.log()[-2000:]}")
                self._mend()
                await self._start()
            await asyncio.sleep(LOOK_S)

    # -- faults

    async def _befall(self, kind: str) -> None:
        self.history.note(kind)
        self.seen[kind] += 1
        process, chance = self.broker.process, self.time.random
        if kind == KILL:
            self._is_over()
            process.kill()
            await self._start()
        elif kind == STOP:
            self._is_over()
            await asyncio.to_thread(process.stop)
            await self._start()
        elif kind == FREEZE:
            os.kill(process.pid, signal.SIGSTOP)
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            os.kill(process.pid, signal.SIGCONT)
        elif kind == STALL:
            await self.network.stall(chance.uniform(0.1, 1.5))
        elif kind in (CUT, CUT_ALL):
            self._cut(all=kind == CUT_ALL)
        elif kind == CLOCK:
            self.broker.clock.write_text(chance.choice(["+2", "-2", "+0", "+900", "-900"]))
        else:
            await self._spoil(kind)

    def _cut(self, all: bool) -> None:
        links = [one for one in self.network.links if not one.is_closed]
        chosen = links if all else self.time.random.sample(links, min(1, len(links)))
        for link in chosen:
            line = self.clients.lines.get(cast(Any, link.client))
            if line is not None:
                self.history.disconnected(line)
            link.cut()

    async def _spoil(self, kind: str) -> None:
        """Have the disk fail for a moment. The broker may end by it, and is started again."""
        self.is_disturbed = True
        if kind == FULL:
            fill_up(self.disk, 64 << 10)
        else:
            self.broker.shim.fail("write" if kind == BROKEN_WRITE else "sync")
        until = self.time.now_s + self.time.random.uniform(0.1, 1.5)
        await self._until(lambda: self.time.now_s >= until, "a disk that fails")
        self._mend()
        if kind != FULL and self.broker.process.is_running:
            # It may have met the fault and be about to end, so it is told to.
            self._is_over()
            await asyncio.to_thread(self.broker.process.stop)
            await self._start()
        self.is_disturbed = False

    def _mend(self) -> None:
        (self.disk / "filler").unlink(missing_ok=True)
        for call in ("write", "sync"):
            (self.broker.shim.folder / call).unlink(missing_ok=True)

    # -- the end

    async def _drain(self, nsq: NsqClients) -> None:
        """Empty all queues."""
        names = [one.name for one in self.plan.queues]
        names += [one.dead for one in self.plan.queues if one.dead_letters]
        self.broker.clock.write_text("+0")
        end = time.monotonic() + LIMIT_S
        while left := await asyncio.to_thread(self._left):
            if time.monotonic() > end:
                raise Violated(f"left behind: {left}")
            tasks = [self.clients.begin(self.clients.drain(name)) for name in names]
            last = ConsumerPlan("drain nsq", "nsq", NSQ_QUEUE, credit=50, hold_s=0.0)
            tasks.append(self.clients.begin(nsq.consume(last, 2.0)))
            await self._until(lambda tasks=tasks: all(one.done() for one in tasks), "a drain")  # type: ignore[misc]

    def _left(self) -> dict[str, int]:
        """Return how many messages queues still have."""
        keys = ("ready", "acquired", "deferred", "staged", "dead_letter_pending")
        rows = self.broker.process.queues()
        counts = {name: sum(int(row[key]) for key in keys) for name, row in rows.items()}
        return {name: count for name, count in counts.items() if count}


def play(seed: int, folder: Path) -> tuple[str, Round]:
    """Play one round; return what is wrong with it."""
    with small_disk(folder / "disk", DISK_MIB) as disk:
        one = Round(seed, folder, disk)
        wrong = ""
        try:
            asyncio.run(one.play())
        except (Violated, TimeoutError, BrokerDied, AssertionError) as error:
            wrong = f"{type(error).__name__}: {error}"
        finally:
            process = one.broker.process
            if process.is_running:
                process.kill()
        if wrong:
            lines = [*(f"{name}: {value}" for name, value in vars(one.plan).items())]
            text = "\n".join([*lines, *one.history.log, wrong])
            (folder / "history.txt").write_text(text)
            shutil.copytree(disk, folder / "copy", dirs_exist_ok=True)
    return wrong, one


def rounds(seed: int, minutes: float) -> int:
    """Play rounds for so long and print what they met; return how many failed."""
    end = time.monotonic() + 60 * minutes
    seen: Counter[str] = Counter()
    count = failed = published = delivered = lives = 0
    while time.monotonic() < end:
        folder = Path(tempfile.mkdtemp(prefix="tallymark-real-"))
        wrong, one = play(seed + count, folder)
        count += 1
        seen.update(one.seen)
        seen.update(one.history.seen)
        published += len(one.history.published)
        delivered += sum(map(len, one.history.deliveries.values()))
        lives += one.broker.life
        if wrong:
            failed += 1
            text = f"round {seed + count - 1}: {wrong[:2000]}\n  all of it is in {folder}"
            print(text, flush=True)
        else:
            shutil.rmtree(folder)
    print(f"{count} rounds from seed {seed}, {failed} failed: {lives} lives, "
          f"{published:,} published, {delivered:,} delivered")  # fmt: skip
    print("met:", ", ".join(f"{name} {number}" for name, number in sorted(seen.items())))
    return failed


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, help="of the first round; else one is drawn")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if asked.seed is None else asked.seed
    return int(bool(rounds(seed, asked.minutes)))


if __name__ == "__main__":
    sys.exit(main())
