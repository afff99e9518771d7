"""Two readers with one checkpoint on one subscription, each of which hangs, goes on and is killed
at any step: what an orchestrator does that starts a second driver while the first only hangs.

A reader does what Spark does, a step at a time; which of the two does its next step is dealt by a
seed, so that a reader may stand still between any two of its steps while the other does whole
batches. At the end each message is in the table or among the dead letters, once.

TWO_READERS_ROUNDS sets the number of rounds (a takeover each), TWO_READERS_SEED the seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Generator, Iterator
from pathlib import Path

import pika

from tallymark.journal import unpacking
from tallymark.spark.client import Client, Endpoint, Fenced, Json, api_path
from tallymark.stored.records import LEASED
from tests.support.long import longer, seeded, sized
from tests.support.process import BrokerProcess

ROUNDS = int(os.environ.get("TWO_READERS_ROUNDS", sized(12, 50, 500)))
SEED = int(os.environ.get("TWO_READERS_SEED", seeded(20261122)))
PUBLISHED = 12
"""Messages of each round."""
BATCH = 7
KILLED = 0.1
"""How likely a reader is killed at a step."""


def is_bad(number: int) -> bool:
    return number % 3 == 0


class Replaced(Exception):
    """Another reader wrote this batch of the checkpoint: Spark ends a query so."""


class Checkpoint:
    """Spark's: offsets/N and commits/N are made once, by whoever comes first."""

    def __init__(self) -> None:
        self.offsets: dict[int, tuple[int, int]] = {}
        self.commits: set[int] = set()
        self.table: dict[int, list[int]] = {}
        """Accepted messages by batch: a sink that heeds batch ids."""

    def plan(self, batch: int, start: int, end: int) -> None:
        if batch in self.offsets:
            raise Replaced
        self.offsets[batch] = start, end

    def commit(self, batch: int) -> None:
        if batch in self.commits:
            raise Replaced
        self.commits.add(batch)


class Reader:
    """One driver; each `next` of `steps` is one step, between which it may hang or be killed."""

    def __init__(self, endpoint: Endpoint, checkpoint: Checkpoint) -> None:
        self._client = Client(endpoint)
        self._checkpoint = checkpoint
        self._fence = self._epoch = 0
        self.steps = self._run()

    def _run(self) -> Iterator[None]:
        held = self._client.call("POST", _path("attach"), {})
        self._fence, self._epoch = held["fence"], held["epoch"]
        yield
        checkpoint = self._checkpoint
        batch, start = 0, int(held["floor"])
        if checkpoint.offsets:
            batch = max(checkpoint.offsets)
            if batch not in checkpoint.commits:
                yield from self._write(batch)
            start, batch = checkpoint.offsets[batch][1], batch + 1
        while True:
            self._hold("settle", end=start)
            yield
            end = int(self._hold("lease", start=start, max_rows=BATCH)["end"])
            yield
            if end > start:
                checkpoint.plan(batch, start, end)
                yield
                yield from self._write(batch)
                start, batch = end, batch + 1

    def _write(self, batch: int) -> Generator[None]:
        start, end = self._checkpoint.offsets[batch]
        self._hold("begin", start=start, end=end)
        yield
        rows = self._read(start, end)
        yield
        accepted = [number for _, number in rows if not is_bad(number)]
        assert self._checkpoint.table.setdefault(batch, accepted) == accepted
        yield
        # Of good ones nothing is said, as nothing has to be.
        said = [(lease, 1, "rejected") for lease, number in rows if is_bad(number)]
        self._client.call("POST", _path("verdicts"), {"fence": self._fence, "verdicts": said})
        yield
        self._checkpoint.commit(batch)
        yield

    def _hold(self, operation: str, **wanted: int) -> Json:
        body = {"fence": self._fence, "epoch": self._epoch, **wanted}
        return self._client.call("POST", _path(operation), body)

    def _read(self, start: int, end: int) -> list[tuple[int, int]]:
        """(lease sequence, message)."""
        query = {"fence": self._fence, "epoch": self._epoch, "from": start, "to": end}
        found = []
        for record in unpacking.unpack(self._client.get(_path("read"), query)):
            payload = record.payload
            if record.kind == LEASED and payload is not None and payload.raw is not None:
                for i in range(record.count):
                    stop = payload.cuts[record.lo + i + 1] - 1
                    found.append((record.other + i, int(payload.raw[stop - 8 : stop])))
        assert [lease for lease, _ in found] == list(range(start, end))
        return found

    def close(self) -> None:
        self._client.close()


def _path(operation: str) -> str:
    return api_path("subscriptions", "/", "in", "s", operation)


def _ends(reader: Reader) -> bool:
    """Do one step; whether the reader ended with it, since another has taken its place."""
    try:
        next(reader.steps)
    except (Fenced, Replaced):
        return True
    return False


class Pair:
    """Two places in which readers work; where one ended another begins."""

    def __init__(self, endpoint: Endpoint, chance: random.Random) -> None:
        self._endpoint = endpoint
        self._chance = chance
        self.checkpoint = Checkpoint()
        self._readers = [Reader(endpoint, self.checkpoint) for _ in range(2)]
        self.fenced = self.killed = 0

    def work(self, place: int, steps: int) -> None:
        """Let one do so many steps while the other hangs."""
        for _ in range(steps):
            if self._chance.random() < KILLED:
                self.killed += 1
                self._replace(place)
            elif _ends(self._readers[place]):
                self.fenced += 1
                self._replace(place)

    def _replace(self, place: int) -> None:
        self._readers[place].close()
        self._readers[place] = Reader(self._endpoint, self.checkpoint)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


@longer
def test_each_message_has_one_end_whichever_of_two_readers_hangs(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with BrokerProcess(tmp_path / "data") as broker:
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(port=broker.amqp_port, heartbeat=0)
        )
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("in", durable=True, arguments=letters)
        channel.confirm_delivery()
        pair = Pair(Endpoint.from_url(broker.url), chance)
        persistent = pika.BasicProperties(delivery_mode=2)
        for round_ in range(ROUNDS):
            for number in range(round_ * PUBLISHED, (round_ + 1) * PUBLISHED):
                channel.basic_publish("", "in", b"%08d" % number, persistent)
            for _ in range(4):
                pair.work(chance.randrange(2), chance.randint(1, 9))
        count = ROUNDS * PUBLISHED
        last = chance.randrange(2)
        while ended(broker) < count:
            pair.work(last, 1)
        for _ in range(3):  # who hung until now finds nothing left to do
            pair.work(1 - last, 20)
        pair.close()
        dead = []
        while (got := channel.basic_get("dead", auto_ack=True))[0] is not None:
            dead.append(int(got[2]))
        connection.close()
        landed = sorted(number for rows in pair.checkpoint.table.values() for number in rows)
        print(f"seed {SEED}: {pair.fenced} fenced, {pair.killed} killed, {count} messages")
        assert pair.fenced
        assert landed == [number for number in range(count) if not is_bad(number)], SEED
        assert sorted(dead) == [number for number in range(count) if is_bad(number)], SEED


def ended(broker: BrokerProcess) -> int:
    row = broker.queues()["in"]
    return int(row["settled"] + row["dead_lettered"])
