"""A writer that reads a queue by leases, judges, and publishes through a sink, as a Spark query
does, while the broker is killed at random moments and the writer forgets what it did in mid batch.

At the end every message is in the outcome or among the dead letters, exactly once.

SINK_ROUNDS sets the number of kills (3; 60 in `make test-long`), SINK_SEED the seed.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pika
import pytest

from tallymark.journal import unpacking
from tallymark.spark.client import Endpoint, api_path
from tallymark.spark.sink import SinkClient
from tallymark.stored.records import LEASED
from tallymark.wire.amqp091.frames import METHOD, content_frames, frame
from tallymark.wire.amqp091.layouts import encode_method
from tallymark.wire.amqp091.methods import BasicPublish
from tallymark.wire.amqp091.properties import Properties, encode_properties
from tests.support.long import longer, seeded, sized
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

ROUNDS = int(os.environ.get("SINK_ROUNDS", sized(3, 12, 60)))
SEED = int(os.environ.get("SINK_SEED", seeded(20261122)))
MESSAGES = 300
"""Published before each kill."""
BATCH = 40
BODY = 8
GIVEN_BACK = ("released", "modified")
FORGETS = 0.3
"""How likely the writer forgets an attempt at a batch after each of its steps."""


def outcome(number: int, times: int) -> str:
    """What becomes of a message that was handed out so often before. It ends the second time."""
    if number % 5 == 0:
        return "rejected"
    return GIVEN_BACK[number % 2] if times == 0 and number % 7 == 1 else "accepted"


class Forgot(Exception):
    """The writer was killed: what it knows is what its checkpoint says."""


class Writer:
    """The query: its checkpoint is (batch, start), all else is done again."""

    def __init__(self, endpoint: Endpoint, chance: random.Random) -> None:
        self.client = SinkClient(endpoint)
        self.chance = chance
        self.batch = self.start = 0
        self.attempts = self.repeated = 0
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self._fence = self._epoch = 0

    def run(self) -> None:
        try:
            self._attach()
            while (end := self._next_end()) != self.start:
                self._write_until_done(end)
                self.batch += 1
                self.start = end
                self._settle()
        except BaseException as error:
            self.failure = error

    def _next_end(self) -> int:
        """The end of the next batch, once there is one; `start` when there will be none."""
        end = self.start

        def is_known() -> bool:
            nonlocal end
            is_last = self.stop.is_set()
            end = self._lease()
            return end != self.start or is_last

        until(is_known, what="rows to lease")
        return end

    def _write_until_done(self, end: int) -> None:
        while True:
            self.attempts += 1
            try:
                self._attempt(end)
                return
            except Forgot:
                self._attach()

    def _attempt(self, end: int) -> None:
        """A batch as foreachBatch has it: the same whenever it is run."""
        rows = self._read(end)
        judged = [(lease, number, outcome(number, times)) for lease, number, times in rows]
        accepted = [number for _, number, said in judged if said == "accepted"]
        cut = self.chance.randint(0, len(accepted))
        ids = [self._stage(part) for part in (accepted[:cut], accepted[cut:]) if part]
        self._may_forget()
        body = {"identity": "writer", "batch": self.batch, "staging": ids}
        done = self.client.call("POST", api_path("sinks", "/", "out", "commit"), body)
        self.repeated += done["repeated"]
        self._may_forget()
        verdicts = [(lease, 1, said) for lease, _, said in judged]
        self.client.call(
            "POST", self._path("verdicts"), {"fence": self._fence, "verdicts": verdicts}
        )
        self._may_forget()

    def _may_forget(self) -> None:
        if self.chance.random() < FORGETS:
            raise Forgot

    def _attach(self) -> None:
        held = self.client.call("POST", self._path("attach"), {})
        self._fence, self._epoch = held["fence"], held["epoch"]
        self._settle()

    def _lease(self) -> int:
        body = {"fence": self._fence, "epoch": self._epoch, "start": self.start, "max_rows": BATCH}
        return int(self.client.call("POST", self._path("lease"), body)["end"])

    def _settle(self) -> None:
        body = {"fence": self._fence, "epoch": self._epoch, "end": self.start}
        self.client.call("POST", self._path("settle"), body)

    def _read(self, end: int) -> list[tuple[int, int, int]]:
        """(lease sequence, message, times handed out before) of the batch."""
        query = {"fence": self._fence, "epoch": self._epoch, "from": self.start, "to": end}
        found = []
        for record in unpacking.unpack(self.client.get(self._path("read"), query)):
            if record.kind == LEASED:
                payload = record.payload
                assert payload is not None
                assert payload.raw is not None
                for i in range(record.count):
                    stop = payload.cuts[record.lo + i + 1] - 1
                    number = int(payload.raw[stop - BODY : stop])
                    found.append((record.other + i, number, record.flags))
        assert [lease for lease, _, _ in found] == list(range(self.start, end))
        return found

    def _stage(self, numbers: list[int]) -> int:
        data = b"".join([message(number) for number in numbers])
        path = api_path("sinks", "/", "out", "stage")
        return self.client.stage(path, {"count": len(numbers)}, data)

    def _path(self, operation: str) -> str:
        return api_path("subscriptions", "/", "in", "s", operation)


def message(number: int) -> bytes:
    method = frame(METHOD, 1, encode_method(BasicPublish("", "out", True)))
    section = encode_properties(Properties(delivery_mode=2))
    return method + content_frames(1, section, b"%08d" % number, 0)


def publish(broker: BrokerProcess, first: int, count: int) -> None:
    with connected(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(first, first + count):
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", "in", b"%08d" % number, properties)


def connected(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port, heartbeat=0))


def wait_until_ended(broker: BrokerProcess, count: int, writer: Writer) -> None:
    """Until so many messages are settled or dead, or the writer has failed."""

    def is_ended() -> bool:
        row = broker.queues()["in"]
        return writer.failure is not None or row["settled"] + row["dead_lettered"] >= count

    until(is_ended, what=lambda: (SEED, broker.queues()["in"]))
    assert writer.failure is None, (SEED, writer.failure)


def contents(broker: BrokerProcess, queue: str) -> list[int]:
    """The numbers of what is in a queue, which is emptied."""
    found = []
    with connected(broker) as connection:
        channel = connection.channel()
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(int(got[2]))
    return found


@longer
@pytest.mark.timeout(1800)
def test_a_batch_and_its_verdicts_are_in_effect_once_whatever_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with BrokerProcess(tmp_path / "data", keeps_ports=True) as broker:
        with connected(broker) as connection:
            channel = connection.channel()
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            channel.queue_declare("in", durable=True, arguments=dead)
            for queue in ("out", "dead"):
                channel.queue_declare(queue, durable=True)
        endpoint = Endpoint(port=broker.http_port, retry_ms=60_000)
        writer = Writer(endpoint, random.Random(chance.random()))
        thread = threading.Thread(target=writer.run, daemon=True)
        thread.start()
        number = 0
        for _ in range(ROUNDS):
            publish(broker, number, MESSAGES)
            number += MESSAGES
            # The moment is what is tried out; what was left of earlier rounds may count, too.
            wait_until_ended(broker, number - chance.randint(0, MESSAGES), writer)
            broker.kill()
            broker.restart()
            assert writer.failure is None, (SEED, writer.failure)
        # What a killed broker had staged and did not answer ends with the next commit.
        wait_until_ended(broker, number, writer)
        publish(broker, number, 1)
        number += 1
        writer.stop.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), SEED
        assert writer.failure is None, (SEED, writer.failure)
        print(
            f"SINK_SEED={SEED}: {ROUNDS} kills, {number} messages, {writer.batch} batches in "
            f"{writer.attempts} attempts, {writer.repeated} commits repeated"
        )
        row = broker.queues()["in"]
        rejected = [n for n in range(number) if n % 5 == 0]
        accepted = [n for n in range(number) if n % 5]
        assert (row["ready"], row["acquired"]) == (0, 0)
        assert (row["settled"], row["dead_lettered"]) == (len(accepted), len(rejected))
        assert broker.http("GET", "/api/tallymark/overview")[1]["sink_staged"] == 0
        assert sorted(contents(broker, "out")) == accepted, SEED
        assert sorted(contents(broker, "dead")) == rejected, SEED
