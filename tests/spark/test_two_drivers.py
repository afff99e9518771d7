"""Two drivers on one subscription and one checkpoint: what an orchestrator does that starts the
second while the first only hangs. Real drivers, kill -9 and SIGSTOP at random moments, verdicts.

At the end each message is in the table or among the dead letters, once. tests/faults/
test_two_readers.py deals the steps of two readers one by one, without Spark.

TWO_DRIVERS_ROUNDS sets the number of rounds, TWO_DRIVERS_SEED the seed.
"""

from __future__ import annotations

import os
import random
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


class Drivers:
    """The drivers of a query, one after the other."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self._broker = broker
        self._folder = folder
        self._numbers = count()

    def start(self) -> DriverProcess:
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


@long  # in `make test`: tests/faults/test_two_readers.py
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
        there = drivers.start()
        there.wait_started()
        published = 0
        for number in range(ROUNDS):
            published = more(broker, published)
            # The drivers go on meanwhile: there may be less left than that.
            wanted = min(through(broker) + chance.randint(0, PUBLISHED), published)
            until(lambda n=wanted: through(broker) >= n, what=there.log.read_text)
            there, end = hand_over(broker, drivers, there, chance)
            published = more(broker, published)
            print(f"{number}: {end}, {through(broker)} of {published}", flush=True)
        until(lambda: through(broker) == published, what=there.log.read_text)
        there.kill()
        check(broker, tmp_path, published)


def more(broker: BrokerProcess, published: int) -> int:
    publish(broker, "in", published, PUBLISHED, declares=False)
    return published + PUBLISHED


def hand_over(
    broker: BrokerProcess, drivers: Drivers, first: DriverProcess, chance: random.Random
) -> tuple[DriverProcess, str]:
    """Let the first hang while another is started; return who goes on, and what was done."""
    end = chance.choice(["resumed", "resumed at once", "killed", "both killed"])
    before = fence(broker)
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
        second = drivers.start()
        second.wait_started()
    elif end == "killed":
        first.kill()
    else:
        then = through(broker)
        if end == "resumed":
            left = broker.queues()["in"]["ready"] + broker.queues()["in"]["acquired"]
            until(lambda: not left or through(broker) > then, what=second.log.read_text)
            first.go_on()
        until(lambda: first.has_ended, what="the first has been fenced")
    first.kill()
    return second, end


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
