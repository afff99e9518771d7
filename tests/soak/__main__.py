"""A soak: traffic of all protocols for an hour, kill -9 every minute, and figures that stay flat.

    python -m tests.soak --minutes 60

One broker on free ports. Clients publish, consume, reject, defer, commit, follow a stream and
browse at a steady pace; short connections come and go; Spark lands a queue. Each minute the broker
is killed and started again. A life counts from its ready line.

At the end everything is drained, and the exit code is 1 unless

- every confirmed message arrived, was landed, or died where it was rejected (account.py),
- NSQ's attempts, transactions and the stream's offsets are what their histories say (loads.py),
- no connection broke while the broker lived,
- `tallymark pipeline reconcile` prints a difference of 0 for every queue, and `tallymark journal
  verify` finds no damage,
- memory, descriptors, threads and disk are flat (flatness.py).

How fast anything is decides nothing: a slow machine has less traffic in a life. The limit on the
whole is twice its minutes and an hour.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sized
from pathlib import Path
from statistics import median

from tests.server.churn import WORK as SHORT_CONNECTIONS
from tests.soak import traffic
from tests.soak.account import Notes, breaches, dies
from tests.soak.flatness import MIB, Compared, Rule, compare, table
from tests.soak.landing import Landing, reconcile
from tests.soak.loads import Nsq, Stream, Transactions
from tests.soak.sampling import Life, Sampler
from tests.soak.stage import LOOK_S, Actor, Repeated, Stage
from tests.soak.traffic import (
    BY_091,
    BY_10,
    BY_HTTP,
    DEAD,
    FOR_TABLE,
    TABLE,
    WORK,
    WORK10,
    Browser,
    Consumer091,
    Consumer10,
    Publisher091,
    Publisher10,
    PublisherHttp,
)
from tests.support import forked
from tests.support.crash_history import SEQUENCE, Arrival, check_account

LIFE_S = 60.0
LANDING_S = 10
"""Between two batches of the landing."""
PER_S = {WORK: 60.0, "http": 5.0, WORK10: 40.0, TABLE: 40.0, "nsq": 16.0, "tx": 2.0, "stream": 30.0}
"""Messages a second; NSQ: commands, of which one in five has up to 100 messages; transactions of
twenty to fifty messages each."""
CHURN_S, BROWSE_S = 0.5, 2.0
MEMORY = Rule("memory at half a life", 8 * MIB, " MiB", MIB)
RULES: list[tuple[Rule, Callable[[Life], float]]] = [
    (Rule("most memory", 8 * MIB, " MiB", MIB), lambda life: life.most("memory")),
    (Rule("descriptors", 16), lambda life: life.usual("descriptors")),
    # Of the pool that reads files and checks passwords another starts when two have work at once.
    (Rule("threads", 2, share=0.0), lambda life: life.usual("threads")),
    (Rule("disk", 8 * MIB, " MiB", MIB), lambda life: life.usual("disk")),
]


class Soak:
    """All of it."""

    def __init__(self, folder: Path, life_s: float) -> None:
        self.folder = folder
        self.life_s = life_s
        self.stage = stage = Stage(folder)
        self.sampler = Sampler(folder / "data", folder / "samples.tsv")
        self.notes = {
            name: Notes(folder / f"{name}.txt")
            for name in (
                "work-confirmed", "http-confirmed", "work-got", "work10-confirmed", "work10-got",
                "dead-got", "table-confirmed", "nsq-confirmed", "nsq-got", "tx-committed",
            )
        }  # fmt: skip
        notes = self.notes
        self.publishers = {
            BY_091: Publisher091(stage, WORK, BY_091, notes["work-confirmed"], PER_S[WORK]),
            BY_HTTP: PublisherHttp(stage, notes["http-confirmed"], PER_S["http"]),
            BY_10: Publisher10(stage, notes["work10-confirmed"], PER_S[WORK10]),
            FOR_TABLE: Publisher091(
                stage, TABLE, FOR_TABLE, notes["table-confirmed"], PER_S[TABLE], traffic.table_body
            ),
        }
        self.nsq = Nsq(stage, PER_S["nsq"], notes["nsq-confirmed"], notes["nsq-got"])
        self.transactions = Transactions(stage, PER_S["tx"], notes["tx-committed"])
        self.stream = Stream(stage, PER_S["stream"])
        self.churn = Repeated(stage, "short connections", CHURN_S, self._short_connections)
        self.browsing = Repeated(stage, "browsing", BROWSE_S, Browser(stage.broker))
        self.consumers = [
            Consumer091(stage, WORK, notes["work-got"], rejects=True),
            Consumer10(stage, WORK10, notes["work10-got"]),
            Consumer091(stage, DEAD, notes["dead-got"]),
        ]
        self.actors: list[Actor] = [
            *self.publishers.values(), *self.consumers, self.nsq, self.transactions, self.stream,
            self.churn, self.browsing,
        ]  # fmt: skip
        self.landing: Landing | None = None

    def run(self, lives: int) -> list[str]:
        """So many lives and their ends. Returns what is wrong, each in a line."""
        deadline = time.monotonic() + 2 * lives * self.life_s + 3600
        self.sampler.start()
        try:
            self._set_up()
            for _ in range(lives):
                self._live(deadline)
            self._begin()
            self.sampler.end()  # clients that go: no life like the others
            return self._finish(deadline)
        finally:
            self.sampler.end()
            self.stage.ended.set()
            self.stage.closed.set()
            self.stage.fall()
            if self.landing is not None:
                self.landing.kill()
            if self.stage.broker.is_running:
                self.stage.broker.kill()
            self.sampler.close()

    def _set_up(self) -> None:
        broker = self.stage.broker
        broker.start()
        traffic.declare(broker.amqp_port)
        self.transactions.set_up()
        self.stream.set_up()
        self.nsq.set_up()
        broker.stop()
        for actor in self.actors:
            actor.start()

    def _begin(self) -> None:
        broker = self.stage.broker
        broker.restart()
        self.sampler.begin(broker.pid, broker.seconds_to_ready)
        self.stage.rise()
        if self.landing is None:
            self.landing = Landing(broker.url, self.folder, LANDING_S)

    def _live(self, deadline: float) -> None:
        self._begin()
        kill_at = time.monotonic() + self.life_s
        self._until(lambda: time.monotonic() >= kill_at, deadline, "a life")
        self.sampler.end()
        self.stage.fall()
        self.stage.broker.kill()
        life = self.sampler.lives[-1]
        print(
            f"life {life.number}: ready after {life.seconds_to_ready:.1f} s, "
            f"{life.memory_at(self.life_s / 2) / MIB:.1f} MiB at half of it, most "
            f"{life.most('memory') / MIB:.1f} MiB, {life.most('descriptors'):.0f} descriptors, "
            f"{life.most('threads'):.0f} threads, {life.most('disk') / MIB:.1f} MiB of disk; "
            f"{self._confirmed:,} confirmed so far",
            flush=True,
        )

    @property
    def _confirmed(self) -> int:
        return sum(notes.count for name, notes in self.notes.items() if name.endswith("confirmed"))

    def _until(self, holds: Callable[[], bool], deadline: float, what: str) -> None:
        """While it is waited for, nothing may fail."""
        while not holds():
            for actor in self.actors:
                if actor.failure is not None:
                    raise AssertionError(f"{actor.name}: {actor.failure!r}") from actor.failure
            assert self.stage.broker.is_running, self.stage.broker.log()[-3000:]
            if self.landing is not None:
                self.landing.check()
            assert time.monotonic() < deadline, f"{what}: not within the limit"
            self.stage.closed.wait(LOOK_S)

    def _short_connections(self) -> None:
        for work in SHORT_CONNECTIONS.values():
            work(self.stage.broker)

    # -- the end

    def _finish(self, deadline: float) -> list[str]:
        """Let everything be consumed, landed and made up, stop, and look."""
        assert self.landing is not None
        broker = self.stage.broker
        self.stage.ended.set()
        leaving = [actor for actor in self.actors if actor not in self.consumers]
        self._until(lambda: not any(actor.is_alive() for actor in leaving), deadline, "clients")
        self._until(self._is_drained, deadline, "the drain")
        landed = self.landing.finish()
        self.landing = None
        self.stage.closed.set()
        for actor in self.actors:
            actor.join()
            assert actor.failure is None, f"{actor.name}: {actor.failure!r}"
        for name, row in broker.queues().items():
            check_account(row, 0 if name in (WORK, WORK10, DEAD, TABLE) else row["ready"])
        code = broker.stop()
        differences = reconcile(broker.data_dir)
        print(
            f"reconcile: {len(differences)} queues, differences {sorted({*differences.values()})}"
        )
        verified = forked.run("journal", "verify", str(broker.data_dir))
        print(f"journal verify: exit code {verified.returncode}")
        wrong = self._account(landed)
        wrong += [f"{name}: a difference of {n}" for name, n in differences.items() if n]
        if code:
            wrong.append(f"the broker stopped with exit code {code}: {broker.log()[-2000:]}")
        if verified.returncode:
            wrong.append(f"journal verify: {verified.stdout}{verified.stderr}")
        return wrong

    def _is_drained(self) -> bool:
        rows = self.stage.broker.queues()
        return not any(
            rows[name]["ready"] + rows[name]["acquired"] + rows[name]["dead_letter_pending"]
            for name in (WORK, WORK10, DEAD)
        )

    def _was_sent(self, number: int) -> bool:
        publisher = self.publishers.get(number >> 48)
        return publisher is not None and 0 < number & SEQUENCE <= publisher.sequence

    def _account(self, landed: list[int]) -> list[str]:
        notes = self.notes
        work = notes["work-confirmed"].numbers() + notes["http-confirmed"].numbers()
        work10 = notes["work10-confirmed"].numbers()
        for_table = notes["table-confirmed"].numbers()
        dead = [number for number in work + work10 if dies(number)]
        got = {name: notes[f"{name}-got"].read() for name in ("work", "work10", "dead", "nsq")}
        shown: dict[str, tuple[list[int], Sized]] = {
            "0-9-1 and HTTP": (work, got["work"]),
            "1.0": (work10, got["work10"]),
            "dead letters": (dead, got["dead"]),
            "Spark's table": (for_table, landed),
            "NSQ": (notes["nsq-confirmed"].numbers(), got["nsq"]),
        }
        for name, (confirmed, arrived) in shown.items():
            print(f"{name}: {len(confirmed):,} confirmed, {len(arrived):,} arrivals")
        print(
            f"{self.transactions.transactions:,} transactions in {self.transactions.checked} "
            f"accounts, {len(self.stream.known.at):,} offsets of the stream, "
            f"{self.browsing.rounds:,} browses, {self.churn.rounds * len(SHORT_CONNECTIONS):,} "
            "short connections and more"
        )
        return (
            breaches("0-9-1 and HTTP", work, got["work"], self._was_sent)
            + breaches("1.0", work10, got["work10"], self._was_sent)
            + breaches("dead letters", dead, got["dead"], lambda n: dies(n) and self._was_sent(n))
            + breaches(
                "Spark's table", for_table, [Arrival(n, False) for n in landed],
                self._was_sent, is_once=True,
            )
            + breaches("NSQ", notes["nsq-confirmed"].numbers(), got["nsq"], lambda _: True)
        )  # fmt: skip


def judge(lives: list[Life], life_s: float) -> list[Compared]:
    """Every rule over the lives."""
    found = [compare(MEMORY, [life.memory_at(life_s / 2) for life in lives])]
    return found + [compare(rule, [figure(life) for life in lives]) for rule, figure in RULES]


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=int, default=60, help="lives of the broker, at least 3")
    parser.add_argument("--life", type=float, default=LIFE_S, help="seconds of a life")
    parser.add_argument("--to", type=Path, help="new folder for everything, kept; else a temporary")
    given = parser.parse_args()
    if given.minutes < 3:
        parser.error(f"--minutes is {given.minutes}, expected at least 3")
    folder = given.to or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    # Whoever is told to end takes its broker along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    soak = Soak(folder.resolve(), given.life)
    began = time.monotonic()
    try:
        wrong = soak.run(given.minutes)
    except (AssertionError, OSError) as error:
        wrong = [f"{type(error).__name__}: {error}"]
    lives = soak.sampler.lives[: given.minutes]
    if len(lives) == given.minutes and all(life.samples for life in lives):
        compared = judge(lives, given.life)
        print(table(compared))
        wrong += [str(one) for one in compared if not one.is_flat]
        ready = median(life.seconds_to_ready for life in lives)
        print(f"ready after a kill: {ready:.1f} s (median)")
    print(f"soak: {len(lives)} lives in {(time.monotonic() - began) / 60:.1f} minutes")
    for line in wrong:
        print(f"WRONG: {line}")
    if given.to is None and not wrong:
        shutil.rmtree(folder)
    else:
        print(f"everything it wrote is in {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
