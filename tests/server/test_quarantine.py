"""A disk that lies, under a real broker: a flipped byte is delivered to nobody and stops nobody."""

from __future__ import annotations

import base64
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import pika
import pytest

from tallymark.spark.decode import decode_answer
from tallymark.stored.layout import LayoutError
from tests.support.process import BrokerProcess

BODIES = [b"body number %d, and no other" % number for number in range(1, 6)]


def fill(broker: BrokerProcess, queue: str = "q", kind: str = "classic") -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    channel.confirm_delivery()
    for body in BODIES:  # one at a time: each is stored by itself
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    connection.close()


def flip(folder: Path, body: bytes) -> tuple[Path, bytes]:
    """Flip a bit in the middle of a stored body; returns the file and what it was."""
    for path in folder.glob("0*.segment"):
        data = path.read_bytes()
        at = data.find(body)
        if at >= 0:
            damaged = bytearray(data)
            damaged[at + len(body) // 2] ^= 0x20
            path.write_bytes(damaged)
            return path, data
    raise AssertionError(f"{body!r} is in no segment")


def drain(broker: BrokerProcess, queue: str = "q") -> list[bytes]:
    """Everything that `basic.consume` gives before nothing more comes."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    channel = connection.channel()
    found = []
    while True:
        method, _, body = channel.basic_get(queue)
        if method is None:
            break
        found.append(body)
        channel.basic_ack(method.delivery_tag)
    connection.close()
    return found


@pytest.mark.parametrize("is_running", [True, False])
def test_a_flipped_byte_is_delivered_to_nobody_and_stops_nobody(
    tmp_path: Path, is_running: bool
) -> None:
    """Met when the message is read, or when the journal is."""
    broker = BrokerProcess(tmp_path / "data").start()
    fill(broker)
    fill(broker, "other")
    broker.kill()
    if not is_running:
        path, sound = flip(tmp_path / "data", BODIES[1])
    with broker:
        if is_running:
            path, sound = flip(tmp_path / "data", BODIES[1])
        assert drain(broker) == [BODIES[0], *BODIES[2:]]
        assert drain(broker, "other") == BODIES
        row = broker.queues()["q"]
        assert (row["entered"], row["settled"], row["quarantined"]) == (5, 4, 1)
        assert "message.unreadable" in broker.log() or "messages.damaged" in broker.log()
        _, told = broker.http("GET", "/api/tallymark/quarantine")
        (entry,) = told["quarantine"]
        assert (entry["queue"], entry["first"], entry["last"]) == ("q", 2, 2)
        _, health = broker.http("GET", "/healthz")
        assert health["alarms"] == ["quarantine"]
        # Nothing is back before the bytes are.
        retry = "/api/tallymark/quarantine/%2F/q/retry"
        assert broker.http("POST", retry, {})[1] == {"back": 0, "quarantined": 1}
        with path.open("r+b") as file:
            file.write(sound)
        assert broker.http("POST", retry, {})[1] == {"back": 1, "quarantined": 0}
        assert drain(broker) == [BODIES[1]]
        assert broker.queues()["q"]["settled"] == 5


def test_an_operator_gives_a_message_up(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", unreadable="pause").start()
    fill(broker)
    broker.stop()
    flip(tmp_path / "data", BODIES[1])
    with broker:
        assert drain(broker) == [], "the queue rests"
        drop = "/api/tallymark/quarantine/%2F/q/drop"
        assert broker.http("POST", drop, {"first": 3})[1] == {"dropped": 0, "quarantined": 1}
        assert broker.http("POST", drop, {})[1] == {"dropped": 1, "quarantined": 0}
        assert drain(broker) == [BODIES[0], *BODIES[2:]]
        assert broker.queues()["q"]["dropped"] == {"unreadable": 1}


def test_who_waits_for_a_lease_of_a_queue_that_rests_costs_no_turns(tmp_path: Path) -> None:
    """It asked again in each turn, and each time that made a turn."""
    broker = BrokerProcess(tmp_path / "data", unreadable="pause").start()
    fill(broker)
    broker.stop()
    flip(tmp_path / "data", BODIES[0])
    with broker:
        assert drain(broker) == [], "the queue rests"
        base = "/api/tallymark/subscriptions/%2F/q/table"
        _, held = broker.http("POST", base + "/attach", {})
        wanted = {"fence": held["fence"], "epoch": held["epoch"], "start": 0, "max_rows": 10}

        def turns() -> int:
            return int(broker.http("GET", "/api/tallymark/status")[1]["broker"]["turns"])

        def lease(wait_ms: int) -> Any:
            return broker.http("POST", base + "/lease", {**wanted, "wait_ms": wait_ms})[1]

        before = turns()
        assert lease(500) == {"end": 0}
        assert turns() - before < 20
        answers: list[Any] = []
        waits = Thread(target=lambda: answers.append(lease(60_000)))
        waits.start()
        drop = "/api/tallymark/quarantine/%2F/q/drop"
        assert broker.http("POST", drop, {})[1] == {"dropped": 1, "quarantined": 0}
        waits.join()
        assert answers == [{"end": 4}]


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_spark_is_never_given_a_flipped_byte_as_good(tmp_path: Path, kind: str) -> None:
    """Its answers are sent from where they lie: whoever decodes them looks at the checksums."""
    broker = BrokerProcess(tmp_path / "data").start()
    fill(broker, "q", kind)
    broker.stop()
    with broker:  # which has no body in memory
        flip(tmp_path / "data", BODIES[1])
        if kind == "stream":
            path = "/api/tallymark/streams/%2F/q/read?from=0&to=5"
        else:
            base = "/api/tallymark/subscriptions/%2F/q/table"
            held = broker.http("POST", f"{base}/attach", {})[1]
            wanted = {"fence": held["fence"], "epoch": held["epoch"], "start": 0, "max_rows": 10}
            assert broker.http("POST", f"{base}/lease", wanted)[1]["end"] == 5
            asked = f"{base}/read?fence={held['fence']}&epoch={held['epoch']}&from=0&to=5"
            path = f"{asked}&max_bytes=100000"
            status, refused = broker.http("GET", asked)
            assert (status, refused["error"]) == (500, "unreadable")
            assert "messages 2 to 2 of queue 'q'" in refused["reason"]
        link = HTTPConnection("127.0.0.1", broker.http_port)
        guest = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
        link.request("GET", path, headers=guest)
        with link.getresponse() as response:
            data = response.read()
        assert response.status == 200, data
        with pytest.raises(LayoutError, match="of message 2 have the checksum"):
            list(decode_answer(data, "q", ["body"]))
        if kind == "classic":  # given up, the range goes on without it
            drop = "/api/tallymark/quarantine/%2F/q/drop"
            assert broker.http("POST", drop, {"first": 2, "last": 2})[1]["dropped"] == 1
            link.request("GET", path, headers=guest)
            with link.getresponse() as response:
                data = response.read()
            found = [
                body
                for part in decode_answer(data, "q", ["body"])
                for body in part.batch.column("body").to_pylist()
            ]
            assert found == [BODIES[0], *BODIES[2:]]
