"""`make demo-cluster`: brokers of one journal on three PostgreSQL servers, and what is left when
the leader and then the primary are killed in mid traffic.

A publisher and a worker (both pika, with both brokers in their lists) go on through it all. Spark
lands a queue in a table before the kills and behind them. At the end the account of every queue
must come out at 0, and the table must have every message once. Where Patroni and etcd are
installed, Patroni fails PostgreSQL over; else the demo itself promotes a standby.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pika
from pika.exceptions import AMQPError
from rich.console import Console

from tallymark.spark import land, reconcile
from tallymark.spark.client import Endpoint
from tallymark.spark.reconcile_table import show
from tallymark.spark.session import build_session, stop_session
from tests.cluster.brokers import LEASE_MS, Broker, Brokers
from tests.support.patience import LOOK_S, until
from tests.support.patroni import Patroni, find_patroni
from tests.support.postgresql import Cluster, PostgresqlDied, find_postgresql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES: Final = 3_000
EXCHANGE: Final = "cluster"
WORK: Final = "cluster.work"
TABLE: Final = "cluster.table"
WINDOW_MS: Final = 3_600_000
"""Time in which a message that is published again, since its confirm was lost, is taken once."""
MISSING: Final = "make demo-cluster needs PostgreSQL: apt-get install postgresql"
CANNOT: Final = "make demo-cluster: PostgreSQL (as root: another user, with TMPDIR) cannot run"
FAILED: Final = 1
USAGE: Final = 2


def body_of(number: int) -> bytes:
    return f'{{"order": {number}, "amount": {number % 997}}}'.encode()


class Clients:
    """A publisher and a worker, each a thread, that find the leader by their own lists."""

    def __init__(self, brokers: Brokers) -> None:
        self._hosts = [
            pika.ConnectionParameters("127.0.0.1", int(one.flags["amqp_port"]))
            for one in brokers.all
        ]
        self.confirmed = 0
        self.wanted = 0
        """Number of messages to publish for now."""
        self.settled: set[int] = set()
        self.again = 0
        """Number of messages that came more than once, each time flagged."""
        self.unflagged: set[int] = set()
        """Those that came again without the flag."""
        self.published: set[int] = set()
        self.published_again: set[int] = set()
        """Those whose confirm did not come. The leader may have delivered one before the database
        had it: then it has gone with that leader, and what comes again is another message."""
        self.reconnects = 0
        self._nobody = threading.Event()
        """Event that never comes: who finds no leader looks again after a moment."""
        self.threads = [
            threading.Thread(target=self._until_done, args=(work,), daemon=True)
            for work in (self._publish, self._consume)
        ]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def _until_done(self, work: Callable[[Any], bool]) -> None:
        is_first = True
        while True:
            try:
                with pika.BlockingConnection(self._hosts) as connection:
                    self.reconnects += not is_first
                    is_first = False
                    if work(connection.channel()):
                        return
            except AMQPError:
                self._nobody.wait(LOOK_S)

    def declare(self) -> None:
        with pika.BlockingConnection(self._hosts) as connection:
            channel = connection.channel()
            channel.exchange_declare(EXCHANGE, "fanout", durable=True)
            for queue in (WORK, TABLE):
                arguments = {"x-message-deduplication": WINDOW_MS}
                channel.queue_declare(queue, durable=True, arguments=arguments)
                channel.queue_bind(queue, EXCHANGE)

    def _publish(self, channel: Any) -> bool:
        channel.confirm_delivery()
        while self.confirmed < MESSAGES:
            if self.confirmed == self.wanted:
                channel.connection.process_data_events(0.02)
                continue
            if self.confirmed in self.published:
                self.published_again.add(self.confirmed)
            self.published.add(self.confirmed)
            properties = pika.BasicProperties(delivery_mode=2, message_id=str(self.confirmed))
            channel.basic_publish(EXCHANGE, "", body_of(self.confirmed), properties)
            self.confirmed += 1
        return True

    def _consume(self, channel: Any) -> bool:
        channel.basic_qos(prefetch_count=50)
        seen: set[int] = set()
        for method, properties, _ in channel.consume(WORK, inactivity_timeout=0.2):
            if method is not None:
                number = int(properties.message_id)
                if number in self.settled or number in seen:
                    self.again += 1
                    if not method.redelivered:
                        self.unflagged.add(number)
                seen.add(number)
                channel.basic_ack(method.delivery_tag)
                self.settled.add(number)
            if len(self.settled) == MESSAGES:
                channel.cancel()
                return True
        return False


class Play:
    """The demo, with what it claims."""

    def __init__(
        self, console: Console, folder: Path, servers: Cluster | Patroni, brokers: Brokers
    ) -> None:
        self._console = console
        self._servers = servers
        self._folder = folder
        self._brokers = brokers
        self._clients = Clients(brokers)
        self.failed = 0

    def say(self, text: str) -> None:
        self._console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)

    def check(self, claim: str, holds: bool) -> None:
        self.failed += not holds
        mark = "[green]ok[/]  " if holds else "[bold red]FAILED[/]"
        self._console.print(f"  {mark} {claim}", highlight=False, soft_wrap=True)

    def run(self, spark: SparkSession) -> None:
        brokers, clients = self._brokers, self._clients
        leader = brokers.leader()
        self.say(f"{_name(leader)} leads, process {leader.pid}; the other stands by")
        clients.declare()
        clients.start()
        self._publish_up_to(MESSAGES // 4)
        self._land(spark, leader)
        clients.wanted = MESSAGES
        self._publish_up_to(MESSAGES // 2)
        leader = self._kill_leader(leader)
        self._publish_up_to(3 * MESSAGES // 4)
        self._kill_primary()
        for thread in clients.threads:
            thread.join()
        self.say(
            f"{clients.confirmed:,} confirmed, {len(clients.settled):,} settled by the worker, "
            f"{clients.again:,} came again, {clients.reconnects} reconnects"
        )
        self.check("every message was confirmed", clients.confirmed == MESSAGES)
        self.check("the worker had every message", len(clients.settled) == MESSAGES)
        self.check(
            "what came again was flagged, but for what the publisher sent again",
            clients.unflagged <= clients.published_again,
        )
        leader = brokers.leader()
        self._land(spark, leader)
        self._compare(spark)
        self._reconcile(spark, leader)

    def _publish_up_to(self, count: int) -> None:
        """Wait until so many messages are confirmed; the publisher does not stop there if it is
        told to publish more."""
        self._clients.wanted = max(self._clients.wanted, count)
        self._wait(lambda: self._clients.confirmed >= count, f"{count:,} messages are confirmed")

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        with self._console.status(what):
            until(holds, what=what)

    def _kill_leader(self, leader: Broker) -> Broker:
        began = time.monotonic()
        leader.kill()
        after = self._brokers.leader(leader)
        self.say(
            f"kill -9 of {_name(leader)} in mid traffic: {_name(after)} leads after "
            f"{time.monotonic() - began:.1f} s (lease: {LEASE_MS / 1000} s)"
        )
        self._brokers.start_again()
        return after

    def _kill_primary(self) -> None:
        began = time.monotonic()
        before = self._clients.confirmed
        if isinstance(self._servers, Patroni):
            self._servers.kill_primary()
            who = "Patroni promotes another (ttl: 20 s)"
        else:
            self._servers.primary.kill()
            self._servers.promote_best(self._servers.primary)
            who = "the standby with most log promoted"
        self._wait(lambda: self._clients.confirmed > before, "the next confirm")
        self.say(
            f"kill -9 of the PostgreSQL primary, {who}:\n"
            f"  the next confirm after {time.monotonic() - began:.1f} s"
        )

    def _land(self, spark: SparkSession, leader: Broker) -> None:
        to = self._folder / "table"
        messages = land.read_queue(spark, TABLE, "table", url=leader.url, options={})
        landed = land.watch(land.land(messages, to), to, Quiet())
        self.say(f"Spark landed {landed.rows:,} rows from {_name(leader)}")

    def _compare(self, spark: SparkSession) -> None:
        from pyspark.sql import functions as f

        table = spark.read.parquet(str(self._folder / "table"))
        rows = table.select("message_id", f.sha2("body", 256).alias("digest")).collect()
        found = {int(row.message_id): row.digest for row in rows}
        wanted = {n: hashlib.sha256(body_of(n)).hexdigest() for n in range(MESSAGES)}
        self.check(
            f"the table's {len(rows):,} rows are each of {MESSAGES:,} messages once, byte for byte",
            len(rows) == MESSAGES and found == wanted,
        )

    def _reconcile(self, spark: SparkSession, leader: Broker) -> None:
        outcome = reconcile.run(spark, leader.data_dir, Endpoint(port=leader.http_port))
        show(outcome, console=self._console)
        self.check("every queue's difference is 0", outcome.balanced)


class Quiet:
    """Batches that nobody is told of."""

    def batch(self, batch: land.Batch, so_far: int) -> None:
        pass

    def close(self) -> None:
        pass

    def done(self, landed: land.Landed) -> None:
        pass


def _name(broker: Broker) -> str:
    return broker.data_dir.name


def main() -> int:
    if find_postgresql() is None:
        print(MISSING, file=sys.stderr)
        return USAGE
    console = Console(emoji=False)
    try:
        return _played(console)
    except PostgresqlDied as error:
        print(f"{CANNOT}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        return USAGE


def _played(console: Console) -> int:
    with tempfile.TemporaryDirectory(prefix="demo-cluster-") as name:
        folder = Path(name)
        servers: Cluster | Patroni = Patroni() if find_patroni() else Cluster(standbys=2)
        with servers, Brokers(folder, servers, 2, log_level="info") as brokers:
            ports = ", ".join(str(one.port) for one in servers.servers)
            how = "under Patroni" if isinstance(servers, Patroni) else "ANY 1 of two standbys"
            console.print(f"  PostgreSQL on ports {ports}: one primary, {how}", highlight=False)
            spark = build_session("local[2]", "demo-cluster", brief=True)
            play = Play(console, folder, servers, brokers)
            try:
                play.run(spark)
            finally:
                stop_session(spark)
    console.print(f"  {'all checks hold' if not play.failed else f'{play.failed} checks failed'}")
    return FAILED if play.failed else 0


if __name__ == "__main__":
    sys.exit(main())
