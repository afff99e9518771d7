"""Two drivers on one subscription and one checkpoint: what an orchestrator does that starts the
second while the first only hangs. Real drivers, kill -9 and SIGSTOP at random moments, verdicts.

At the end each message is in the table or among the dead letters, once. tests/faults/
test_two_readers.py deals the steps of two readers one by one, without Spark.

TWO_DRIVERS_ROUNDS sets the number of rounds, TWO_DRIVERS_SEED the seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pika
import pytest

from tests.spark.judge import is_bad
from tests.spark.rig import DriverProcess, lost_and_doubled, publish, stat
from tests.support.long import long, seeded, sized
from tests.support.patience import until
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark

ROUNDS = int(os.environ.get("TWO_DRIVERS_ROUNDS", sized(2, 3, 50)))
SEED = int(os.environ.get("TWO_DRIVERS_SEED", seeded(20261122)))
PUBLISHED = 60
"""Messages of each half of a round."""


ENDS = ("another driver of this query went on", "CONCURRENT_STREAM_LOG_UPDATE", "Fenced")
"""Words of a driver that ends because another one is at work on its checkpoint."""


class Drivers:
    """The drivers of a query, one after the other; the newest is to go on."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self._broker = broker
        self._folder = folder
        self._numbers = count()
        self.newest = self._start()

    def start(self) -> DriverProcess:
        self.newest = self._start()
        return self.newest

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it holds. A driver that ended meanwhile, because the one before it had gone on
        as it started, is started again, as whoever starts drivers does."""
        until(lambda: self._goes_on() and holds(), what=lambda: self.newest.log.read_text())

    def _goes_on(self) -> bool:
        if self.newest.has_ended:
            said = self.newest.log.read_text()
            assert any(reason in said for reason in ENDS), said[-5000:]
            self.newest.kill()
            self.start().wait_started()
        return True

    def _start(self) -> DriverProcess:
        arguments: dict[str, object] = {
            "url": self._broker.url, "queue": "in", "folder": str(self._folder)
        }  # fmt: skip
        log = self._folder / f"{next(self._numbers)}.log"
        return DriverProcess("tests.spark.judge", arguments, log)


def fence(broker: BrokerProcess) -> int:
    return int(stat(broker, "in").get("fence", 0))


def through(broker: BrokerProcess) -> int:
    """Messages that have an end."""
    row = broker.queues()["in"]
    return int(row["settled"] + row["dead_lettered"])


@long(ci=False)  # in `make test`: tests/faults/test_two_readers.py
@pytest.mark.timeout(36_000)
def test_each_message_has_one_end_whichever_of_two_drivers_hangs(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with BrokerProcess(tmp_path / "data", heartbeat_s="0") as broker:
        with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as link:
            channel = link.channel()
            channel.queue_declare("dead", durable=True)
            letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            channel.queue_declare("in", durable=True, arguments=letters)
        drivers = Drivers(broker, tmp_path)
        drivers.newest.wait_started()
        published = 0
        for number in range(ROUNDS):
            published = more(broker, published)
            # The drivers go on meanwhile: there may be less left than that.
            wanted = min(through(broker) + chance.randint(0, PUBLISHED), published)
            drivers.until(lambda n=wanted: through(broker) >= n)
            end = hand_over(broker, drivers, chance)
            published = more(broker, published)
            print(f"{number}: {end}, {through(broker)} of {published}", flush=True)
        while (then := through(broker)) < published:
            drivers.until(lambda then=then: through(broker) > then)
        drivers.newest.kill()
        check(broker, tmp_path, published)


def more(broker: BrokerProcess, published: int) -> int:
    publish(broker, "in", published, PUBLISHED, declares=False)
    return published + PUBLISHED


def hand_over(broker: BrokerProcess, drivers: Drivers, chance: random.Random) -> str:
    """Let the newest hang while another is started; return what was done."""
    end = chance.choice(["resumed", "resumed at once", "killed", "both killed"])
    before = fence(broker)
    first = drivers.newest
    first.hang()
    second = drivers.start()
    if end == "resumed at once":
        first.go_on()
    second.wait_started()
    until(lambda: fence(broker) > before, what=second.log.read_text)
    if end == "both killed":
        second.kill()
        first.go_on()
        until(lambda: first.has_ended, what="the first has been fenced")
        drivers.start().wait_started()
    elif end == "killed":
        first.kill()
    else:
        then = through(broker)
        if end == "resumed":
            left = broker.queues()["in"]["ready"] + broker.queues()["in"]["acquired"]
            drivers.until(lambda: not left or through(broker) > then)
            first.go_on()
        until(lambda: first.has_ended, what="the first has been fenced")
    first.kill()
    return end


def check(broker: BrokerProcess, folder: Path, published: int) -> None:
    from deltalake import DeltaTable

    rows = DeltaTable(str(folder / "table")).to_pyarrow_table(columns=["message_id"])
    landed = [int(id) for id in rows.column("message_id").to_pylist()]
    dead = []
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as link:
        channel = link.channel()
        while (got := channel.basic_get("dead", auto_ack=True))[0] is not None:
            dead.append(int(got[1].message_id))
    good = [number for number in range(published) if not is_bad(number)]
    bad = [number for number in range(published) if is_bad(number)]
    assert lost_and_doubled(landed, good) == ([], []), SEED
    assert lost_and_doubled(dead, bad) == ([], []), SEED
