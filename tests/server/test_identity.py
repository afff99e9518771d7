"""What the broker says it is: one answer to clients of every protocol and tool."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pika
from kombu import Connection

import tallymark
from tallymark.client import connect
from tests.support.process import BrokerProcess

IDENTITY = ("RabbitMQ", "4.2.0", "Tallymark", tallymark.__version__)
KEYS = ("product", "version", "broker_name", "broker_version")


async def properties_of(url: str) -> dict[str, object]:
    async with await connect(url) as connection:
        return dict(connection.properties)


def test_one_answer_everywhere(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url())) as connection:
            said = connection._impl.server_properties
        assert tuple(said[key] for key in KEYS) == IDENTITY
        properties = asyncio.run(properties_of(broker.amqp_url()))
        assert tuple(properties[key] for key in KEYS) == IDENTITY
        for path in ("/api/overview", "/api/definitions"):
            _, answer = broker.http("GET", path)
            named = ("product_name", "product_version", "broker_name", "broker_version")
            assert tuple(answer[key] for key in named) == IDENTITY, path
            assert answer["rabbitmq_version"] == IDENTITY[1], path
        status, _ = broker.http("POST", "/api/definitions", answer)
        assert status == 204  # what it says of itself is nothing to take over


def test_kombu_takes_it_for_a_broker_whose_limit_is_the_channels(tmp_path: Path) -> None:
    """As it does for RabbitMQ 4; see shares_prefetch."""
    with BrokerProcess(tmp_path / "data") as broker, Connection(broker.amqp_url()) as connection:
        connection.connect()
        assert connection.qos_semantics_matches_spec
