"""Rounds of faults on brokers of one journal, under full load: nothing that was confirmed is lost,
nothing is confirmed by two leaders, what came before comes flagged, and in its old order.

    CLUSTER_ROUNDS=100 python -m pytest -s tests/cluster/test_fault_rounds.py

prints what was counted, and the times from each kill to the first delivery by the next leader.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest

from bench.lean import DELIVER, ClosedByBroker, Link
from tests.cluster.brokers import LEASE_MS, Broker, Brokers
from tests.cluster.witness import Witness
from tests.support.crash_history import QueueHistory, check_account
from tests.support.crash_load import CONSUMING, Client, read_all, run, set_up
from tests.support.long import long, sized
from tests.support.patience import until
from tests.support.postgresql import MISSING, Cluster, find_postgresql

ROUNDS: Final = int(os.environ.get("CLUSTER_ROUNDS", sized(1, 1, 35)))
SEED: Final = int(os.environ.get("CLUSTER_SEED", 20261123))
CLIENTS: Final = 3
QUEUES: Final = 2
MOST_SEEN: Final = 6_000
"""Messages that were confirmed or came before a fault, at most."""
TURNS: Final = 200
"""Turns of each client with a leader that is cut off from the database."""
HOUR_S: Final = 3_600
LOST_THE_LEAD: Final = 5
LAPSED: Final = 503
CLOCK: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <sys/time.h>

static int (*real)(clockid_t, struct timespec *);

int clock_gettime(clockid_t id, struct timespec *at) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(id, at);
    if (!answer && id == CLOCK_REALTIME) at->tv_sec += SECONDS;
    return answer;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
"""Library in which the machine's clock is wrong."""


def wrong_clock(folder: Path, seconds: int) -> dict[str, str]:
    """Return variables with which a process sees another time of day. Skips where there is no C
    compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    source, library = folder / "clock.c", folder / f"clock{seconds}.so"
    source.write_text(CLOCK)
    wanted = [f"-DSECONDS={seconds}", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run([compiler, *wanted], check=True)
    return {"LD_PRELOAD": str(library)}


class Field:
    """Servers, brokers, and what the clients know over all rounds."""

    def __init__(self, servers: Cluster, brokers: Brokers, witness: Witness, seed: int) -> None:
        self._cluster = servers
        self.brokers = brokers
        self._witness = witness
        self.chance = random.Random(seed)
        self.histories = [QueueHistory(f"cluster.{index}") for index in range(QUEUES)]
        self.sequences = [0] * CLIENTS
        self.published = self.confirmed = self.witnessed = self.flagged = 0
        self.raced = self.ahead = 0
        """Takeovers that two standbys could claim, and by the broker whose clock is ahead."""
        self.phases = ""
        """Times of the last takeover, from its fault on."""
        self.takeovers: dict[str, list[float]] = {}
        """Seconds from a fault to the first delivery by the next leader, by kind of fault."""
        self.kinds: dict[str, Callable[[Broker], Broker]] = {
            "leader kill -9": self._kill,
            "leader stopped for longer than its lease": self._stop,
            "leader cut off from the database": self._cut_off,
            "primary kill -9, then the leader": self._kill_primary,
            "standby killed in its takeover": self._kill_successor,
            "SIGTERM": self._terminate,
        }
        """Faults by name: each ends the leader that it is given, and returns the next."""

    def round(self, kind: str) -> None:
        leader = self.brokers.leader()
        self._check_one_leads(leader)
        clients = [
            Client(
                leader.amqp_port, index, self.sequences[index], self.histories,
                random.Random(self.chance.getrandbits(64)),
            )
            for index in range(CLIENTS)
        ]  # fmt: skip
        epoch = leader.epoch
        self._load(clients, self.chance.randint(0, MOST_SEEN))
        self._clients = clients
        following = self.kinds[kind](leader)
        self._count(clients)
        self._check_confirms(epoch)
        self._verify(following)
        self.brokers.start_again()

    def _load(self, clients: list[Client], more: int) -> None:
        upto = sum(client.seen for client in clients) + more
        run(clients, lambda: sum(client.seen for client in clients) >= upto)

    def _count(self, clients: list[Client]) -> None:
        for client in clients:
            self.sequences[client.producer] = client.sequence
            self.published += client.published
        self.confirmed += sum(len(history.required) for history in self.histories)

    # -- faults

    def _kill(self, leader: Broker) -> Broker:
        return self._next(leader, leader.kill, "leader kill -9")

    def _stop(self, leader: Broker) -> Broker:
        found = self._next(leader, leader.pause, "leader stopped", reads=False)
        leader.resume()
        self._ends_alone(leader)
        return found

    def _cut_off(self, leader: Broker) -> Broker:
        found = self._next(leader, lambda: self._cut(leader), "leader cut off", reads=False)
        assert leader.is_running
        for path in ("/healthz?leader", "/readyz"):
            assert leader.http("GET", path, user=None)[0] == LAPSED
        leader.reconnect()
        self._ends_alone(leader)
        return found

    def _cut(self, leader: Broker) -> None:
        leader.cut_off()
        for _ in range(TURNS):  # to its clients it is as it was
            for client in self._clients:
                client.work()

    def _ends_alone(self, leader: Broker) -> None:
        """Wait for a leader that has lost the lead, and for all that it still says."""
        for client in self._clients:
            client.read_the_rest()
        assert leader.wait() == LOST_THE_LEAD, leader.log()[-2000:]

    def _kill_primary(self, leader: Broker) -> Broker:
        servers = self._cluster.servers
        dead = next(one for one in servers if one.run(IS_STANDBY) == "f")
        dead.kill()
        self._cluster.promote_best(dead)
        if leader.is_running:
            self._load(self._clients, 500)  # it goes on by itself
        primary = next(one for one in servers if one.is_running and one.run(IS_STANDBY) == "f")
        dead.clone(primary)
        dead.start()
        names = [one.name for one in servers if one is not primary]
        Cluster.replicate_to(primary, names)
        Cluster.wait_for_standbys(primary, len(names))
        return self._next(leader, leader.kill, "leader kill -9 after a failover")

    def _kill_successor(self, leader: Broker) -> Broker:
        """Kill whichever takes over, as soon as it says so."""
        leader.kill()
        for client in self._clients:
            client.read_the_rest()
        others = [one for one in self.brokers.all if one is not leader]
        taken = [one.log().count("lead.taken") for one in others]

        def successor() -> Broker | None:
            for one, before in zip(others, taken, strict=True):
                if one.log().count("lead.taken") > before:
                    return one
            return None

        until(successor, what="a standby takes over")
        killed = successor()
        assert killed is not None
        return self._next(killed, killed.kill, "standby killed in its takeover", reads=False)

    def _terminate(self, leader: Broker) -> Broker:
        return self._next(leader, lambda: leader.stop(), "SIGTERM")

    def _next(
        self, leader: Broker, fault: Callable[[], object], name: str, reads: bool = True
    ) -> Broker:
        """Bring a fault about; return the next leader once it has delivered."""
        began, began_at = time.monotonic(), time.time()
        fault()
        if reads:
            for client in self._clients:
                with suppress(ClosedByBroker):  # by SIGTERM, in good order
                    client.read_the_rest()
                client.link.drop()
        self.raced += sum(one.is_running for one in self.brokers.all if one is not leader) > 1
        found = self.brokers.leader(leader)
        self.ahead += found is self.brokers.all[-1]
        _first_delivery(found, [history.name for history in self.histories])
        self.takeovers.setdefault(name, []).append(time.monotonic() - began)
        self.phases = ", ".join(
            f"{what} {_seconds_since(began_at, found.said(event)['timestamp']):.1f} s"
            for what, event in (("lead", "lead.taken"), ("ready", "broker.ready"))
        )
        self.phases += f", first delivery {self.takeovers[name][-1]:.1f} s"
        return found

    # -- what must hold

    def _verify(self, leader: Broker) -> None:
        rows = leader.queues()
        for history in self.histories:
            ready = rows[history.name]["ready"]
            check_account(rows[history.name], ready)
            keep = self.chance.random() < 0.3
            found = read_all(leader.amqp_port, history.name, ready, keep=keep)
            history.check_after_crash(found)
            self.flagged += sum(arrival.redelivered for arrival in found)
            if keep:
                history.begin_with(found)
            else:
                history.begin_empty()

    def _check_confirms(self, epoch: int) -> None:
        """Check that each message that a leader confirmed was committed by itself, in its epoch:
        no other one confirmed it, nor did this one after another's first commit."""
        epochs = self._witness.epochs()
        for client in self._clients:
            wrong = {n: epochs.get(n) for n in client.confirmed if epochs.get(n) != epoch}
            assert not wrong, (
                f"client {client.producer}: {len(wrong)} messages confirmed in epoch {epoch} "
                f"(first of {sorted(wrong)[:3]}), committed in {set(wrong.values())}"
            )
            self.witnessed += len(client.confirmed)

    def _check_one_leads(self, leader: Broker) -> None:
        """Check that nobody wrote behind another's back, and that the others say they stand by."""
        servers = self._cluster.servers
        primary = next(one for one in servers if one.is_running and one.run(IS_STANDBY) == "f")
        assert primary.run(EPOCHS_FALL) == "0"
        for broker in self.brokers.all:
            status, _ = broker.http("GET", "/healthz?leader", user=None)
            assert (status == 200) == (broker is leader), broker.data_dir


IS_STANDBY: Final = "SELECT pg_is_in_recovery()"
EPOCHS_FALL: Final = """
WITH blocks AS (SELECT position >> 32 AS segment, position, epoch FROM tallymark.block),
firsts AS (SELECT DISTINCT ON (segment) segment, epoch FROM blocks ORDER BY segment, position)
SELECT
  (SELECT count(*) FROM (
    SELECT epoch, lag(epoch) OVER (PARTITION BY segment ORDER BY position) AS before FROM blocks
  ) AS within WHERE epoch < before)
  + (SELECT count(*) FROM (
    SELECT epoch, lag(epoch) OVER (ORDER BY segment) AS before FROM firsts
  ) AS segments WHERE epoch < before)
"""
"""Blocks of an older epoch behind those of a newer one: in a segment, and between the beginnings of
segments. (A start may seal the segment of a leader before it anew, in its own epoch.)"""


def _seconds_since(began_at: float, timestamp: str) -> float:
    """Return the seconds up to a time of a log, whose clock may be an hour ahead."""
    at = datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
    return (at - began_at + HOUR_S / 2) % HOUR_S - HOUR_S / 2


def _first_delivery(broker: Broker, names: list[str]) -> None:
    """Wait for a message from one of the queues; none where all are empty. It goes back."""
    rows = broker.queues()
    waiting = [name for name in names if rows[name]["ready"]]
    if not waiting:
        return
    link = Link(broker.amqp_port)
    link.open_channel(CONSUMING, prefetch=1)
    link.consume(CONSUMING, waiting[0])
    while not any(event[0] == DELIVER for event in link.events()):
        assert link.fill(), "closed before the first delivery"
    link.close()
    until(lambda: broker.queues()[waiting[0]]["acquired"] == 0)


def shown(field: Field, rounds: Counter[str]) -> str:
    lines = [f"{count:4} x {kind}" for kind, count in sorted(rounds.items())]
    lines.append(
        f"{field.published:,} published, {field.confirmed:,} confirmed and still there after each "
        f"round, lost 0, twice unflagged 0, out of order 0, {field.flagged:,} came flagged"
    )
    lines.append(
        f"{field.witnessed:,} confirms, each by the leader in whose epoch the message was "
        "committed; commits of an older epoch after one of a newer 0"
    )
    lines.append(
        f"{field.raced} takeovers between two standbys, {field.ahead} by the broker whose clock is "
        "an hour ahead"
    )
    for name, times in sorted(field.takeovers.items()):
        lines.append(
            f"{name}: to the first delivery {statistics.median(times):.1f} s (median), "
            f"{max(times):.1f} s (worst of {len(times)})"
        )
    return "\n".join(lines)


@long(ci=False)  # 10 to 30 s a round
@pytest.mark.skipif(find_postgresql() is None, reason=MISSING)
@pytest.mark.timeout(600 + 120 * ROUNDS)
def test_faults_under_full_load(tmp_path: Path) -> None:
    env = wrong_clock(tmp_path, HOUR_S)
    rounds: Counter[str] = Counter()
    with Cluster(standbys=2) as servers:
        brokers = Brokers(tmp_path, servers, 2, log_level="info", segment_size="1MiB",
                          checkpoint_every="4MiB")  # fmt: skip
        brokers.add(env)  # an hour ahead of the others
        witness = Witness(servers.url())
        with brokers:
            field = Field(servers, brokers, witness, SEED)
            set_up(brokers.leader().amqp_port, [history.name for history in field.histories])
            kinds = list(field.kinds)
            for number in range(ROUNDS):
                kind = kinds[number % len(kinds)]
                try:
                    field.round(kind)
                except (AssertionError, OSError) as error:
                    error.add_note(f"round {number} of {ROUNDS}, {kind}, seed {SEED}")
                    raise
                rounds[kind] += 1
                print(f"round {number}: {kind}: {field.phases}", flush=True)
    print(f"lease {LEASE_MS} ms\n{shown(field, rounds)}")
