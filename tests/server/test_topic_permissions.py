"""Topic permissions over HTTP, and what they do to clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.server.management import FULL, call, connect, done, get, refused
from tests.support.process import BrokerProcess

ANN = "topic-permissions/%2F/ann"
LIMIT = {"exchange": "amq.topic", "write": "^app\\.", "read": ".*"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("topics") / "data") as running:
        yield running


@pytest.fixture
def ann(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """The broker, with a user of that name."""
    done(broker, "PUT", "users/ann", {"password": "ann", "tags": "management"})
    done(broker, "PUT", "permissions/%2F/ann", FULL)
    yield broker
    done(broker, "DELETE", "users/ann")


def row(**changed: str) -> dict[str, str]:
    return {"user": "ann", "vhost": "/", **LIMIT, **changed}


def test_limits_come_and_go_as_in_rabbitmq(ann: BrokerProcess) -> None:
    assert refused(ann, "GET", ANN)[:2] == (404, "not_found")
    assert get(ann, "users/ann/topic-permissions") == []
    assert done(ann, "PUT", ANN, LIMIT) == 201
    assert done(ann, "PUT", ANN, {**LIMIT, "write": ""}) == 204
    assert done(ann, "PUT", ANN, {**LIMIT, "exchange": "later"}) == 204
    both = [row(write=""), row(exchange="later")]
    for path in (ANN, "topic-permissions", "vhosts/%2F/topic-permissions",
                 "users/ann/topic-permissions"):  # fmt: skip
        assert get(ann, path) == both
    done(ann, "PUT", "users/ann", {"password": "other", "tags": ""})
    assert get(ann, ANN) == both, "whatever else of the user changes"
    assert done(ann, "DELETE", f"{ANN}/amq.topic") == 204
    assert get(ann, ANN) == both[1:]
    assert refused(ann, "DELETE", f"{ANN}/amq.topic")[0] == 404
    assert done(ann, "DELETE", ANN) == 204
    assert refused(ann, "DELETE", ANN)[0] == 404
    assert get(ann, "topic-permissions") == []


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        (ANN, {**LIMIT, "read": "("}, 400, "topic permission '(': missing )"),
        (ANN, {**LIMIT, "exchange": 5}, 400, "exchange is 5, expected text"),
        (ANN, {"exchange": "amq.topic", "write": ""}, 400, "read is missing, expected text"),
        ("topic-permissions/%2F/nobody", LIMIT, 404, "no user 'nobody'"),
        ("topic-permissions/none/ann", LIMIT, 404, "vhost none not found"),
    ],
)
def test_limits_that_are_refused(
    ann: BrokerProcess, path: str, body: object, status: int, reason: str
) -> None:
    found, _, told = refused(ann, "PUT", path, body)
    assert (found, told[: len(reason)]) == (status, reason)
    assert get(ann, "topic-permissions") == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ANN), ("PUT", ANN), ("DELETE", ANN), ("DELETE", f"{ANN}/amq.topic"),
        ("GET", "topic-permissions"), ("GET", "vhosts/%2F/topic-permissions"),
        ("GET", "users/ann/topic-permissions"),
    ],
)  # fmt: skip
def test_they_are_for_administrators(ann: BrokerProcess, method: str, path: str) -> None:
    done(ann, "PUT", ANN, LIMIT)
    assert refused(ann, method, path, LIMIT, "ann:ann")[0] == 401
    assert get(ann, ANN) == [row()]


def test_an_open_connection_is_limited_at_once_and_after_a_crash(tmp_path: Path) -> None:
    def publish(channel: Any, key: str) -> None:
        channel.basic_publish("amq.topic", key, b"x", pika.BasicProperties(delivery_mode=2))

    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "users/ann", {"password": "ann", "tags": ""})
        done(broker, "PUT", "permissions/%2F/ann", FULL)
        with connect(broker, "ann") as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            publish(channel, "db.slow")
            done(broker, "PUT", ANN, LIMIT)
            publish(channel, "app.web")
            with pytest.raises(ChannelClosedByBroker, match=r"access to topic 'db\.slow'"):
                publish(channel, "db.slow")
        broker.kill()
        broker.restart()
        assert get(broker, ANN) == [row()]
        with connect(broker, "ann") as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            publish(channel, "app.web")
            with pytest.raises(ChannelClosedByBroker, match=r"access to topic 'db\.slow'"):
                publish(channel, "db.slow")


def test_a_message_over_http_is_limited(ann: BrokerProcess) -> None:
    done(ann, "PUT", ANN, LIMIT)
    body = {"properties": {}, "payload": "x", "payload_encoding": "string"}
    path = "exchanges/%2F/amq.topic/publish"
    status, _, found = call(ann, "POST", path, {**body, "routing_key": "app.a"}, "ann:ann")
    assert (status, found) == (200, {"routed": False})
    told = refused(ann, "POST", path, {**body, "routing_key": "db"}, "ann:ann")
    assert told[0] == 401
    assert "access to topic 'db' in exchange 'amq.topic'" in told[2]


def test_they_go_with_their_virtual_host(ann: BrokerProcess) -> None:
    done(ann, "PUT", "vhosts/short")
    done(ann, "PUT", "topic-permissions/short/ann", LIMIT)
    done(ann, "PUT", ANN, LIMIT)
    done(ann, "DELETE", "vhosts/short")
    done(ann, "PUT", "vhosts/short")
    assert get(ann, "users/ann/topic-permissions") == [row()]
    done(ann, "DELETE", "vhosts/short")


def test_definitions_have_them(ann: BrokerProcess) -> None:
    done(ann, "PUT", ANN, LIMIT)
    whole = get(ann, "definitions")
    assert whole["topic_permissions"] == [row()]
    done(ann, "DELETE", "users/ann")
    status, _, found = call(ann, "POST", "definitions", whole)
    assert (status, found) == (204, None)
    assert get(ann, ANN) == [row()]
    more = {"topic_permissions": [row(exchange="logs"), row(write="x")]}
    assert call(ann, "POST", "definitions", more)[0] == 204
    assert get(ann, ANN) == [row(write="x"), row(exchange="logs")]
    for wrong, told in (
        (row(user="eve"), "topic_permissions[0]: user 'eve' is neither there nor in the file"),
        (row(vhost="none"), "vhost 'none'"),
        (row(read="("), "topic permission '(': missing )"),
        ({"user": "ann", "vhost": "/"}, "exchange is missing"),
    ):
        value = {"topic_permissions": [wrong]}
        status, _, reason = refused(ann, "POST", "definitions", value)
        assert (status, told in reason) == (400, True), reason
