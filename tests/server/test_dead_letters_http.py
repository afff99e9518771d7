"""Dead letters over HTTP: what a READ and a browse carry, the account of a queue, the metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tallymark.engine.record import Record
from tallymark.journal import unpacking
from tallymark.stored.annotations import Annotations
from tallymark.stored.records import LEASED, LIVE
from tests.support.process import BrokerProcess

SUBSCRIPTION = "/api/tallymark/subscriptions/%2F/parked/table"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))


def declare(channel: BlockingChannel) -> None:
    """work --rejected--> parked, a queue with priorities; full --maxlen--> nowhere, and waits."""
    channel.queue_declare(
        "work",
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "parked"},
    )
    channel.queue_declare("parked", durable=True, arguments={"x-max-priority": 9})
    channel.queue_declare("plain", durable=True)
    channel.queue_declare(
        "full",
        durable=True,
        arguments={
            "x-max-length": 3,
            "x-overflow": "reject-publish",
            "x-dead-letter-exchange": "later",
            "x-dead-letter-strategy": "at-least-once",
        },
    )
    channel.confirm_delivery()


def publish(channel: BlockingChannel, queue: str, body: bytes, **properties: Any) -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))


def refuse(channel: BlockingChannel, queue: str, count: int) -> None:
    for _ in range(count):
        method, _, _ = channel.basic_get(queue)
        assert method is not None
        channel.basic_reject(method.delivery_tag, requeue=False)
    channel.queue_declare(queue, passive=True)  # answered after the rejects


def rows_of(data: bytes, kind: int) -> list[Record]:
    return [record for record in unpacking.unpack(data) if record.kind == kind]


def browse(broker: BrokerProcess, queue: str) -> list[Record]:
    _, plan = broker.http("POST", f"/api/tallymark/browse/%2F/{queue}", {})
    count = plan["messages"]
    status, data = broker.http_bytes(
        "GET", f"/api/tallymark/browse/plans/{plan['plan']}/read?from=0&to={count}"
    )
    assert status == 200
    return rows_of(data, LIVE)


def history(record: Record) -> list[tuple[str, str, int]]:
    deaths = Annotations.from_bytes(record.blob).deaths
    return [(death.queue, death.reason, death.count) for death in deaths]


def test_a_browse_says_what_is_known_of_letters(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        declare(channel)
        publish(channel, "work", b"dies", priority=4, expiration="600000")
        publish(channel, "parked", b"fine", priority=7)
        refuse(channel, "work", 1)
        method, _, _ = channel.basic_get("parked")
        channel.basic_nack(method.delivery_tag)
        fine, letter = browse(broker, "parked")
        assert (fine.reason, fine.blob, fine.other & 0xFFFF_FFFF) == (7, b"", 1)
        assert letter.reason == 4
        assert history(letter) == [("work", "rejected", 1)]
        known = Annotations.from_bytes(letter.blob)
        assert known.route is not None
        assert (known.route.exchange, known.route.key) == ("", "parked")
        assert known.deaths[0].ttl_ms == 600_000


def test_a_read_carries_priorities_and_histories_also_after_a_crash(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        declare(channel)
        for i in range(6):
            publish(channel, "work", b"%d" % i, priority=i % 2)
        refuse(channel, "work", 6)
    _, held = broker.http("POST", f"{SUBSCRIPTION}/attach", {})
    lease = {"fence": held["fence"], "epoch": held["epoch"], "start": 0, "max_rows": 5}
    assert broker.http("POST", f"{SUBSCRIPTION}/lease", lease) == (200, {"end": 5})
    path = f"{SUBSCRIPTION}/read?fence={held['fence']}&epoch={held['epoch']}&from=0&to=5"
    before = rows_of(broker.http_bytes("GET", path)[1], LEASED)
    assert [row.reason for row in before for _ in range(row.count)] == [1, 1, 1, 0, 0]
    assert {tuple(history(row)) for row in before} == {(("work", "rejected", 1),)}
    broker.kill()
    broker.restart()
    after = rows_of(broker.http_bytes("GET", path)[1], LEASED)
    assert [(r.first, r.count, r.other, r.reason, r.blob) for r in after] == [
        (r.first, r.count, r.other, r.reason, r.blob) for r in before
    ]
    # The account survives with it.
    rows = broker.queues()
    assert (rows["work"]["dead_lettered"], rows["parked"]["entered"]) == (6, 6)
    assert (rows["parked"]["ready"], rows["parked"]["acquired"]) == (1, 5)


def test_equal_histories_are_carried_once_in_a_block(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        declare(channel)
        channel.basic_qos(prefetch_count=0)
        for i in range(200):
            publish(channel, "work", b"%d" % i)
        tags = [channel.basic_get("work")[0].delivery_tag for _ in range(200)]
        channel.basic_nack(tags[-1], multiple=True, requeue=False)  # all die in the same moment
        channel.queue_declare("work", passive=True)
        letters = browse(broker, "parked")
        assert sum(record.count for record in letters) == 200
        assert len({id(record.blob) for record in letters}) == 1


def test_lc_5_pending_and_dead_lettered_are_terms_of_the_account(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        declare(channel)
        for i in range(3):
            publish(channel, "full", b"%d" % i)
        refuse(channel, "full", 2)
        row = broker.queues()["full"]
        assert (row["ready"], row["dead_letter_pending"], row["dead_lettered"]) == (1, 2, 0)
        lines = metrics(broker)
        assert 'tallymark_queue_dead_letter_pending{queue="full",vhost="/"} 2.0' in lines
        assert confirmed(lines) == 0
        status, answer = broker.http("POST", "/api/tallymark/ledger/checkpoint", {})
        assert status == 200
        claim = next(one for one in answer["queues"] if one["name"] == "full")
        assert claim["dead_letter_pending"] == 2

        channel.exchange_declare("later", "fanout", durable=True)
        channel.queue_bind("plain", "later")
        channel.queue_declare("plain", passive=True)
        row = broker.queues()["full"]
        assert (row["ready"], row["dead_letter_pending"], row["dead_lettered"]) == (1, 0, 2)
        assert broker.queues()["plain"]["ready"] == 2
        lines = metrics(broker)
        assert 'tallymark_queue_dead_lettered_total{queue="full",vhost="/"} 2.0' in lines
        assert confirmed(lines) == 2


def test_dl_8_deaths_are_counted_by_reason_and_strategy(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        declare(channel)
        for queue in ("work", "full", "plain"):
            publish(channel, queue, b"x")
            refuse(channel, queue, 1)
    lines = metrics(broker)
    name = "tallymark_messages_dead_lettered"
    for strategy in ("at_most_once", "at_least_once", "disabled"):
        assert f'{name}_rejected_total{{strategy="{strategy}"}} 1.0' in lines
        for reason in ("expired", "maxlen", "delivery_limit"):
            assert f'{name}_{reason}_total{{strategy="{strategy}"}} 0.0' in lines
    assert 'tallymark_queue_dropped_total{queue="plain",reason="rejected",vhost="/"} 1.0' in lines


def metrics(broker: BrokerProcess) -> list[str]:
    status, text = broker.http("GET", "/metrics/per-object")
    assert status == 200
    return str(text).splitlines()


def confirmed(lines: list[str]) -> float:
    (line,) = [one for one in lines if one.startswith("tallymark_messages_dead_lettered_confirmed_")
               and "_created" not in one]  # fmt: skip
    assert json.dumps("at_least_once") in line
    return float(line.split()[-1])
