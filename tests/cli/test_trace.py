"""Where a message went, asked of the data folder of a broker that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tallymark.cli.trace import _from_folder
from tallymark.journeys.search import Found, Limits, Sought, TooMany, search
from tests.cli.test_commands import run
from tests.journal.builders import Disk, make_newer
from tests.support.patience import until
from tests.support.process import BrokerProcess

DURABLE = 2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


@pytest.fixture
def channel(broker: BrokerProcess) -> Iterator[Any]:
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
        channel.queue_declare("orders", durable=True, arguments=letters)
        channel.queue_declare("copies", durable=True)
        channel.queue_declare("letters", durable=True)
        for queue in ("orders", "copies"):
            channel.queue_bind(queue, "amq.topic", "eu.#")
        yield channel


def publish(channel: Any, body: bytes, **properties: Any) -> None:
    channel.basic_publish(
        "amq.topic", "eu.paid", body, pika.BasicProperties(delivery_mode=DURABLE, **properties)
    )


def get(channel: Any, queue: str) -> int:
    method, _, _ = channel.basic_get(queue)
    assert method is not None
    return int(method.delivery_tag)


def asked(broker: BrokerProcess, *words: str, code: int = 0) -> dict[str, Any]:
    shown = run("trace", *words, "--data-dir", str(broker.data_dir), "--json", code=code).stdout
    found: dict[str, Any] = json.loads(shown)
    return found


def test_a_message_is_followed_through_returns_and_death_in_every_queue(
    broker: BrokerProcess, channel: Any
) -> None:
    for number in range(5):
        publish(
            channel, b"body %d" % number, message_id=f"m-{number}", correlation_id=f"c-{number}"
        )
    for _ in range(3):
        tag = get(channel, "orders")
    channel.basic_nack(tag, requeue=True)
    tag = get(channel, "orders")
    channel.basic_reject(tag, requeue=False)
    channel.basic_ack(get(channel, "letters"))

    def settled() -> bool:
        ((found, _),) = search(broker.data_dir, Sought("c-2")).journeys
        return found.steps[-1].event == "settled"

    until(settled, what="the acknowledgement on disk")
    (journey,) = asked(broker, "c-2")["journeys"]
    assert (journey["message_id"], journey["routing_key"]) == ("m-2", "eu.paid")
    assert journey["body_bytes"] == 6
    told = [(step["queue"], step["event"], step["about"].partition(", consumer")[0])
            for step in journey["steps"]]  # fmt: skip
    assert sorted(told[:2]) == [(queue, "entered", "published") for queue in ("copies", "orders")]
    assert told[2:5] == [
        ("orders", "acquired", "attempt 1"),
        ("orders", "returned", "client, failed"),
        ("orders", "acquired", "attempt 2"),
    ]
    assert sorted(told[5:7]) == [  # of one turn
        ("letters", "entered", "from orders"),
        ("orders", "dead_lettered", "rejected"),
    ]
    assert told[7:] == [("letters", "acquired", "attempt 1"), ("letters", "settled", "client")]
    states = {one["queue"]: one["state"] for one in journey["now"]}
    assert states == {"orders": "dead-lettered", "copies": "ready", "letters": "settled"}
    shown = run("trace", "m-2", "--data-dir", str(broker.data_dir)).stdout
    assert "settled in letters (/)" in shown.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ("m-1",),
        ("c-1",),
        ("gold",),
        ("--body", "needle"),
        ("--number", "2"),
    ],
)
def test_it_is_found_by_what_is_in_it(
    broker: BrokerProcess, channel: Any, words: tuple[str, ...]
) -> None:
    publish(channel, b"hay", message_id="m-0")
    publish(
        channel, b"a needle in it", message_id="m-1", correlation_id="c-1", headers={"tier": "gold"}
    )
    publish(channel, b"m-1 c-1 gold", message_id="m-2")
    found = asked(broker, *words)
    assert [one["message_id"] for one in found["journeys"] if "message_id" in one] == (
        [] if words[0] == "--number" else ["m-1"]
    )
    (journey,) = found["journeys"]
    assert {step["sequence"] for step in journey["steps"]} == {2}
    assert found["is_all"]


def test_a_broker_is_asked_in_place_of_a_folder(broker: BrokerProcess, channel: Any) -> None:
    publish(channel, b"body", message_id="m-0", headers={"k": "a value & more"})
    where = ("--url", broker.url, "--json")
    (journey,) = json.loads(run("trace", "a value & more", *where).stdout)["journeys"]
    assert journey["message_id"] == "m-0"
    assert asked(broker, "m-0")["journeys"] == [journey]
    assert json.loads(run("trace", "m-9", *where, code=1).stdout)["journeys"] == []
    assert "--rows is for --data-dir" in run("trace", "m-0", "--rows", "9", *where, code=2).stderr


def test_no_message_and_wrong_use_are_said(broker: BrokerProcess, channel: Any) -> None:
    publish(channel, b"body", message_id="m-0")
    assert asked(broker, "m-9", code=1)["journeys"] == []
    folder = ("--data-dir", str(broker.data_dir))
    assert "no message found" in run("trace", "m-9", *folder, code=1).stdout
    assert "expected one of TEXT" in run("trace", *folder, code=2).stderr
    assert "expected one of TEXT" in run("trace", "m-0", "--body", "x", *folder, code=2).stderr
    nowhere = ("--data-dir", str(broker.data_dir / "nowhere"))
    assert "no journal here" in run("trace", "m-0", *nowhere, code=1).stderr


def test_only_as_many_rows_are_looked_at_as_wanted(tmp_path: Path) -> None:
    """Files are read whole, so one more than needed is not opened."""
    with BrokerProcess(tmp_path / "data") as broker:
        for life in range(3):
            if life:
                broker.stop()
                broker.start()
            port = broker.amqp_port
            with pika.BlockingConnection(pika.ConnectionParameters(port=port)) as connection:
                channel = connection.channel()
                channel.queue_declare("orders", durable=True)
                channel.confirm_delivery()
                properties = pika.BasicProperties(delivery_mode=DURABLE, message_id=f"m-{life}")
                channel.basic_publish("", "orders", b"body", properties)
        few = search(broker.data_dir, Sought("m-0"), Limits(rows=1))
        assert not few.journeys
        assert not few.is_all
        every = search(broker.data_dir, Sought("m-0"))
        assert every.is_all
        assert every.rows > few.rows
        ((journey, _),) = every.journeys
        assert [step.queue for step in journey.steps] == ["orders"]


def test_rows_that_are_asked_for_are_looked_at_however_large_their_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Limits] = []

    def noting(folder: Path, sought: Sought, limits: Limits) -> Found:
        used.append(limits)
        return Found([], 0, None, True)

    monkeypatch.setattr("tallymark.journeys.search.search", noting)
    for rows in (None, 5_000_000):
        _from_folder(tmp_path, "m-0", None, None, rows)
    usual, wide = used
    assert usual == Limits()
    assert wide.rows == 5_000_000
    assert wide.bytes > 1 << 50


def test_a_text_that_all_messages_have_names_none(broker: BrokerProcess, channel: Any) -> None:
    for _ in range(5):
        publish(channel, b"the same")
    with pytest.raises(TooMany, match="'same' is in the bytes of more than 3 messages"):
        search(broker.data_dir, Sought("same", ("body",)), Limits(messages=3))


def test_a_folder_of_a_newer_version_is_refused_in_words(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.start()
    disk.journal.close()
    make_newer(disk.segments()[-1], 0)
    refused = run("trace", "7f3a-41", "--data-dir", str(tmp_path), code=1)
    assert "is not understood: block of format version 3" in refused.stderr
    assert "Traceback" not in refused.stderr
