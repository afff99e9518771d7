"""Exactly once both ways, under kill -9 of driver, executors and broker at random moments.

One driver on a cluster of two workers runs every way at once (every_way.py): a queue to Parquet, to
Delta, to a queue, and to a queue with verdicts. In each round messages are published to all their
input queues, and something is killed while they are on their way; now and then the next kill comes
before all has recovered from this one. At the end every message is in its table, or in its queue,
exactly once, and the account of every queue holds.

EVERY_WAY_ROUNDS sets the number of rounds (90 in `make test-long`, which kill each kind of victim
30 times), EVERY_WAY_SEED the seed. CI has one worker and kills its executor, under two of the ways,
which have between them files that tasks write and the driver commits, rows that tasks stage with
the broker, and verdicts.

Its parts are tested alone in `make test`: a batch that is written once (test_sink.py), a killed
broker under a query (test_crashes.py), kills of a sink's client and of its broker
(faults/test_sink_crashes.py), a lease that is read again (server/test_subscriptions_http.py).
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.spark.every_way import SUBSCRIPTION
from tests.spark.every_way import WAYS as EVERY_WAY
from tests.spark.rig import lost_and_doubled, parquet_ids, python_path, spark_home, stat
from tests.support.long import ALL, MODE, long, seeded, sized
from tests.support.patience import PATIENCE_S
from tests.support.patience import until as until_it
from tests.support.process import BrokerProcess, cpu_seconds

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(3 * 3600),
    pytest.mark.skipif(find_spec("deltalake") is None, reason="the extra delta is not installed"),
]

VICTIMS = ("executor", "driver", "broker")
ROUNDS = int(os.environ.get("EVERY_WAY_ROUNDS", sized(1, 1, 30 * len(VICTIMS))))
SEED = int(os.environ.get("EVERY_WAY_SEED", seeded(20261122)))
WAYS = sized(EVERY_WAY, ("delta", "judge"), EVERY_WAY)
BEFORE, AFTER = 100, 50
"""Messages published to each way in a round, before and after the kill: more than two batches."""
HASTE = 0.2
"""How often nobody waits until every way goes on."""
MASTER = f"local-cluster[{sized(2, 1, 2)},1,1024]"
EXECUTOR = b"CoarseGrainedExecutorBackend"


class Cluster:
    """The driver with its two executors: processes of one session, killed one by one or all."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self._arguments = {
            "url": broker.url, "folder": str(folder), "master": MASTER, "ways": WAYS
        }  # fmt: skip
        self._folder = folder
        self._log = folder / "driver.log"
        self.starts = 0
        self._start()

    def _start(self) -> None:
        scratch = self._folder / f"scratch{self.starts}"
        home = scratch / "home"
        home.mkdir(parents=True)
        self.starts += 1
        environment = {
            **os.environ,
            "PYTHONPATH": python_path(),
            "SPARK_HOME": str(spark_home(home)),
            "SPARK_LOCAL_DIRS": str(scratch),
            "SPARK_WORKER_DIR": str(scratch),
            "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={scratch}",
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.every_way", json.dumps(self._arguments)],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            said = self._process.stdout.readline() if selector.select(PATIENCE_S) else b"nothing"
        if said.strip() != b"started":
            self.kill()
            raise AssertionError(f"driver said {said!r}: {self.log()}")

    def log(self) -> str:
        return self._log.read_text()[-4000:]

    def processor_time(self) -> str:
        """The seconds of CPU of each of its processes: one that hangs uses none."""
        found = [(cpu_seconds(pid), pid, command) for pid, command in self._members()]
        return "\n".join(
            f"{seconds:7.1f} s of CPU {pid} {command[-100:]!r}"
            for seconds, pid, command in sorted(found, reverse=True)
        )

    def check(self) -> None:
        """It runs: nothing but a kill ends it."""
        assert self._process.poll() is None, self.log()

    def kill(self) -> None:
        """kill -9 of everything."""
        while members := self._members():
            for pid, _ in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self._start()

    def kill_executor(self, chance: random.Random) -> bool:
        """kill -9 of one executor's JVM; its Python workers end with it. False: there is none now,
        the last one was killed just before."""
        found = [pid for pid, command in self._members() if EXECUTOR in command]
        if not found:
            return False
        with suppress(ProcessLookupError):
            os.kill(chance.choice(found), signal.SIGKILL)
        return True

    def _members(self) -> list[tuple[int, bytes]]:
        """(pid, command line) of the session's processes."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == self._process.pid and fields[0] != "Z":
                        found.append((int(entry.name), (entry / "cmdline").read_bytes()))
        return found


class Traffic:
    """What was published, and what has become of it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.published = 0

    def declare(self) -> None:
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        with self._connected() as connection:
            channel = connection.channel()
            for queue in (*WAYS, "copied", "passed", "dead"):
                arguments = dead if queue == "judge" else None
                channel.queue_declare(queue, durable=True, arguments=arguments)

    def publish(self, count: int) -> None:
        """To every way, each confirmed: the broker is up."""
        with self._connected() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(self.published, self.published + count):
                properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
                for queue in WAYS:
                    channel.basic_publish("", queue, f"line {number}".encode(), properties)
        self.published += count

    def _connected(self) -> pika.BlockingConnection:
        parameters = pika.ConnectionParameters(port=self.broker.amqp_port, heartbeat=0)
        return pika.BlockingConnection(parameters)

    def settled(self) -> list[int]:
        """How many messages of each way are through."""
        rows = self.broker.queues()
        return [through(rows[way]) for way in WAYS]

    def state(self) -> str:
        """Every queue, and the lease of every way, as the broker has them."""
        queues = [f"{name}: {row}" for name, row in self.broker.queues().items()]
        leases = [f"{way}'s lease: {stat(self.broker, way, SUBSCRIPTION)}" for way in WAYS]
        return "\n".join(queues + leases)

    def contents(self, queue: str) -> list[int]:
        """The ids of what is in a queue, which is emptied; bodies are as they were published."""
        found = []
        with self._connected() as connection:
            channel = connection.channel()
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                _, properties, body = got
                assert body == f"line {properties.message_id}".encode()
                found.append(int(properties.message_id))
        return found


def victims(rounds: int, chance: random.Random) -> list[str]:
    """Whom to kill in each round: every kind as often as the others, in any order."""
    dealt = [VICTIMS[number % len(VICTIMS)] for number in range(rounds)]
    chance.shuffle(dealt)
    return dealt


def through(queue: dict[str, Any]) -> int:
    """How many messages of a queue are settled or rejected."""
    return int(queue["settled"] + queue["dead_lettered"])


class Wait:
    """Waiting while the cluster runs. What does not come is said with all that is known then."""

    def __init__(self, cluster: Cluster, traffic: Traffic) -> None:
        self.cluster = cluster
        self.traffic = traffic

    def until(self, holds: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            self.cluster.check()
            return holds()

        until_it(is_so, what=lambda: f"{what}\n{self._state()}")

    def until_every_way_is_beyond(self, then: list[int], what: str) -> None:
        """One way after the other: so they are begun, and a busy machine may need long for each."""
        for at, way in enumerate(WAYS):
            self.until(lambda at=at: self.traffic.settled()[at] > then[at], f"{way}: {what}")

    def _state(self) -> str:
        cluster = self.cluster
        return f"{self.traffic.state()}\n{cluster.processor_time()}\nthe driver: {cluster.log()}"


def strike(victim: str, wait: Wait, chance: random.Random) -> None:
    """kill -9; what nobody else starts again is started again."""
    cluster, broker = wait.cluster, wait.traffic.broker
    if victim == "driver":
        cluster.restart()
    elif victim == "broker":
        broker.kill()
        broker.restart()
    else:
        wait.until(lambda: cluster.kill_executor(chance), "an executor to kill")


@long
def test_every_way_is_exactly_once_whatever_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"EVERY_WAY_SEED={SEED}, {ROUNDS} rounds")
    killed: Counter[str] = Counter()
    took: Counter[str] = Counter()
    with BrokerProcess(tmp_path / "data", keeps_ports=True) as broker:
        traffic = Traffic(broker)
        traffic.declare()
        traffic.publish(AFTER)
        cluster = Cluster(broker, tmp_path)
        wait = Wait(cluster, traffic)
        try:
            wait.until_every_way_is_beyond([0] * len(WAYS), "its first batch")
            for number, victim in enumerate(victims(ROUNDS, chance)):
                begun = time.monotonic()
                wanted = sum(traffic.settled()) + chance.randint(0, BEFORE)
                traffic.publish(BEFORE)
                what = f"{wanted} messages are through"  # the moment is what is tried out
                wait.until(lambda n=wanted: sum(traffic.settled()) >= n, what)
                strike(victim, wait, chance)
                killed[victim] += 1
                then = traffic.settled()
                traffic.publish(AFTER)
                if number == ROUNDS - 1 or chance.random() >= HASTE:
                    what = f"it goes on after the {victim} was killed in round {number}"
                    wait.until_every_way_is_beyond(then, what)
                seconds = round(time.monotonic() - begun)
                took[victim] += seconds
                print(f"{number}: {victim}, {seconds} s, settled {traffic.settled()}", flush=True)
            whole = [traffic.published] * len(WAYS)
            while (then := traffic.settled()) != whole:
                what = f"more than {then} of {whole} are through"
                wait.until(lambda then=then: traffic.settled() != then, what)
            wait.until(
                lambda: all(stat(broker, way, SUBSCRIPTION).get("leased") == 0 for way in WAYS),
                "nothing is leased",
            )
        finally:
            cluster.kill()
        print(
            f"killed {dict(killed)} in rounds of {dict(took)} s, {traffic.published} messages a "
            f"way, {cluster.starts} drivers"
        )
        check(traffic, tmp_path)


def check(traffic: Traffic, folder: Path) -> None:
    everything = list(range(traffic.published))
    rejected = [number for number in everything if number % 5 == 0]
    passed = [number for number in everything if number % 5]
    for name, row in traffic.broker.queues().items():
        here = sum(row[state] for state in ("ready", "acquired", "deferred", "staged"))
        gone = row["settled"] + row["dead_lettered"] + sum(row["dropped"].values())
        assert row["entered"] == here + row["dead_letter_pending"] + gone, name
    assert traffic.broker.http("GET", "/api/tallymark/overview")[1]["sink_staged"] == 0
    dead = traffic.contents("dead")
    came = {
        "delta": lost_and_doubled(delta_ids(folder / "delta" / "table"), everything),
        "passed": lost_and_doubled(traffic.contents("passed"), passed),
        "dead": lost_and_doubled(dead, rejected),
    }
    if "parquet" in WAYS:
        came["parquet"] = lost_and_doubled(parquet_ids(folder / "parquet"), everything)
    if "copy" in WAYS:
        came["copied"] = lost_and_doubled(traffic.contents("copied"), everything)
    print(f"lost and doubled: {came}")
    assert came == dict.fromkeys(came, ([], []))
    assert dead == rejected, "in their order: they died in that of their leases"
    if MODE == ALL:
        reconcile(traffic.broker)


def reconcile(broker: BrokerProcess) -> None:
    """The journal's own account, message by message: it has the rows of every kill."""
    command = [sys.executable, "-m", "tallymark", "pipeline", "reconcile", "--json"]
    place = ["--data-dir", str(broker.data_dir), "--url", broker.url]
    done = subprocess.run([*command, *place], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, (done.stdout[-4000:], done.stderr)


def delta_ids(table: Path) -> list[int]:
    from deltalake import DeltaTable

    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["message_id"])
    return [int(id) for id in rows.column("message_id").to_pylist()]
