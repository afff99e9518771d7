"""Publish, get and purge over HTTP."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pytest

from tallymark.wire.amqp091.fields import Float32, Timestamp, WireInt
from tallymark.wire.amqp091.frames import PROTOCOL_HEADER
from tallymark.wire.amqp091.layouts import encode_method
from tallymark.wire.amqp091.methods import ConnectionStartOk, QueueDeclare, QueueDeclareOk
from tallymark.wire.amqp091.properties import Properties
from tests.server.management import FULL, call, connect, done, get, refused
from tests.support.amqp091 import OPEN, method_frame, open_channels, tune_ok
from tests.support.amqp091 import publish as publish_frames
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("messages")) / "data") as broker:
        yield broker


@pytest.fixture
def broker(running: BrokerProcess) -> Iterator[BrokerProcess]:
    """With an empty queue q."""
    done(running, "PUT", "queues/%2F/q", {"durable": True})
    yield running
    done(running, "DELETE", "queues/%2F/q")


def publish(
    broker: BrokerProcess, key: str, payload: str, exchange: str = "amq.default", **rest: Any
) -> bool:
    body = {
        "routing_key": key, "payload": payload, "payload_encoding": "string", "properties": {},
        **rest,
    }  # fmt: skip
    status, _, found = call(broker, "POST", f"exchanges/%2F/{exchange}/publish", body)
    assert status == 200, found
    return bool(found["routed"])


def take(broker: BrokerProcess, mode: str = "ack_requeue_false", **rest: Any) -> list[Any]:
    body = {"count": 10, "ackmode": mode, "encoding": "auto", **rest}
    status, _, found = call(broker, "POST", "queues/%2F/q/get", body)
    assert status == 200, found
    return list(found)


PROPERTIES = {
    "content_type": "text/plain", "content_encoding": "identity", "delivery_mode": 2,
    "priority": 3, "correlation_id": "c", "reply_to": "r", "message_id": "m",
    "timestamp": 1700000000, "type": "t", "user_id": "guest", "app_id": "a", "cluster_id": "z",
    "headers": {"n": 1, "f": 1.5, "b": True, "none": None, "l": [1, "two"], "d": {"x": "y"}},
}  # fmt: skip


def test_a_message_comes_back_as_it_was_published(broker: BrokerProcess) -> None:
    assert publish(broker, "q", "grüezi", properties=PROPERTIES)
    (found,) = take(broker)
    assert found == {
        "payload": "grüezi", "payload_encoding": "string", "payload_bytes": 7, "exchange": "",
        "routing_key": "q", "redelivered": False, "message_count": 0, "properties": PROPERTIES,
    }  # fmt: skip
    assert take(broker) == []


def test_a_client_gets_what_http_published_and_the_other_way_round(broker: BrokerProcess) -> None:
    raw = bytes(range(256)) * 1000
    assert publish(
        broker, "q", base64.b64encode(raw).decode(), payload_encoding="base64",
        properties={"delivery_mode": 2, "headers": {"k": "v"}},
    )  # fmt: skip
    with connect(broker) as connection:
        channel = connection.channel()
        _, properties, body = channel.basic_get("q", auto_ack=True)
        assert (body, properties.delivery_mode, properties.headers) == (raw, 2, {"k": "v"})
        channel.confirm_delivery()
        channel.basic_publish("", "q", raw, pika.BasicProperties(headers={"t": b"\xff"}))
    (found,) = take(broker)
    assert found["payload_encoding"] == "base64"
    assert base64.b64decode(found["payload"]) == raw


def test_whatever_a_client_sends_can_be_shown(broker: BrokerProcess) -> None:
    """Numbers of every width, times, bytes, and text that is not UTF-8, in headers, arguments and
    in what a client says of itself."""
    table: dict[str, object] = {
        "short": WireInt(5, "s"), "long": WireInt(6, "l"), "time": Timestamp(7),
        "single": Float32(1.5), "bytes": b"a\xff", "text": "a\udcff", "deep": {"k\udcff": [b"x"]},
        "decimal": Decimal("1.5"),
    }  # fmt: skip
    shown = {
        "short": 5, "long": 6, "time": 7, "single": 1.5, "bytes": "a\ufffd", "text": "a\ufffd",
        "deep": {"k\ufffd": ["x"]}, "decimal": "1.5",
    }  # fmt: skip
    with socket.create_connection(("127.0.0.1", broker.amqp_port)) as raw:
        start = ConnectionStartOk(table, "PLAIN", b"\0guest\0guest")
        raw.sendall(PROTOCOL_HEADER + method_frame(0, start) + tune_ok() + OPEN)
        raw.sendall(open_channels([1]) + method_frame(1, QueueDeclare("odd", arguments=table)))
        properties = Properties(headers=table, correlation_id="\udcff")
        raw.sendall(publish_frames(1, b"x", properties=properties))
        raw.sendall(method_frame(1, QueueDeclare("q", passive=True)))
        heard = b""
        while heard.count(encode_method(QueueDeclareOk("q"))[:4]) < 2:
            heard += raw.recv(65536)
        (connection,) = get(broker, "connections")
        assert connection["client_properties"] == shown
    (message,) = take(broker)
    assert message["properties"] == {"headers": shown, "correlation_id": "\ufffd"}
    assert get(broker, "queues/%2F/odd")["arguments"] == shown
    assert broker.queues()["odd"]["arguments"] == shown
    (row,) = [row for row in get(broker, "definitions")["queues"] if row["name"] == "odd"]
    assert row["arguments"] == shown
    done(broker, "DELETE", "queues/%2F/odd")


def test_text_is_shown_as_text_unless_asked_otherwise_and_cut_where_asked(
    broker: BrokerProcess,
) -> None:
    publish(broker, "q", "abcdef")
    (found,) = take(broker, "ack_requeue_true", encoding="base64", truncate=3)
    assert (found["payload"], found["payload_bytes"]) == ("YWJj", 6)
    (found,) = take(broker, "ack_requeue_true", truncate="2")
    assert (found["payload"], found["payload_encoding"]) == ("ab", "string")


@pytest.mark.parametrize(
    ("mode", "left", "settled", "rejected"),
    [
        ("ack_requeue_true", 3, 0, 0),
        ("reject_requeue_true", 3, 0, 0),
        ("ack_requeue_false", 1, 2, 0),
        ("reject_requeue_false", 1, 0, 2),
    ],
)
def test_what_becomes_of_messages_that_were_got(
    broker: BrokerProcess, mode: str, left: int, settled: int, rejected: int
) -> None:
    for text in "abc":
        publish(broker, "q", text, properties={"delivery_mode": 2})
    first = take(broker, mode, count="2")
    assert [one["payload"] for one in first] == ["a", "b"]
    assert [one["message_count"] for one in first] == [2, 1]
    row = broker.queues()["q"]
    assert (row["ready"], row["acquired"], row["settled"]) == (left, 0, settled)
    assert row["dropped"].get("rejected", 0) == rejected
    again = take(broker)
    assert [one["payload"] for one in again] == ["a", "b", "c"][3 - left :]
    assert [one["redelivered"] for one in again] == [True, True, False][3 - left :]


def test_whether_it_was_routed(broker: BrokerProcess) -> None:
    assert not publish(broker, "nobody", "x")
    assert publish(broker, "q", "x")
    done(broker, "PUT", "exchanges/%2F/out", {"type": "fanout"})
    assert not publish(broker, "any", "x", "out")
    assert call(broker, "POST", "bindings/%2F/e/out/q/q", {})[0] == 201
    assert publish(broker, "any", "x", "out")
    assert [one["exchange"] for one in take(broker)] == ["", "out"]
    done(broker, "DELETE", "exchanges/%2F/out")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"properties": {"expiration": "soon"}}, "invalid expiration 'soon'"),
        ({"properties": {"user_id": "bob"}}, "user_id property set to 'bob'"),
        ({"properties": {"colour": "red"}}, "property 'colour', expected one of headers, "),
        ({"properties": {"priority": "high"}}, "priority is 'high', expected a whole number"),
        ({"properties": {"priority": 256}}, "does not fit"),
        ({"properties": {"headers": {"n": 1 << 80}}}, "does not fit"),
        ({"properties": "none"}, "properties is 'none', expected an object"),
        ({"payload_encoding": "hex"}, "payload_encoding is 'hex', expected string, base64"),
        ({"payload": "?", "payload_encoding": "base64"}, "expected base64"),
        ({"payload": 5}, "payload is a number, expected text"),
        ({"routing_key": "k" * 256}, "at most 255"),
    ],
)
def test_publishes_that_are_refused(
    broker: BrokerProcess, change: dict[str, Any], reason: str
) -> None:
    body = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}
    path = "exchanges/%2F/amq.default/publish"
    status, error, text = refused(broker, "POST", path, {**body, **change})
    assert (status, error) == (400, "bad_request")
    assert reason in text
    for name in body:
        without = {key: value for key, value in body.items() if key != name}
        assert refused(broker, "POST", path, without)[2].startswith(f"{name} is missing")
    assert get(broker, "queues/%2F/q")["messages"] == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"payload": "hush!", "payload_encoding": "base64"}, "payload is text, expected base64 ("),
        ({"payload": {"hush": 1}}, "payload is an object, expected text"),
        ({"payload_encoding": "e" * 100_000 + "hush"}, f"payload_encoding is '{'e' * 199}..., exp"),
    ],
)  # fmt: skip
def test_neither_a_body_nor_a_long_value_is_in_the_log(
    broker: BrokerProcess, change: dict[str, Any], reason: str
) -> None:
    body = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}
    path = "exchanges/%2F/amq.default/publish"
    assert refused(broker, "POST", path, {**body, **change})[2].startswith(reason)
    assert reason in broker.log().replace("\\", "")
    assert "hush" not in broker.log()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ackmode": "maybe"}, "ackmode is 'maybe', expected ack_requeue_true, "),
        ({"encoding": "hex"}, "encoding is 'hex', expected auto, base64"),
        ({"count": 0}, "count is 0, expected 1 to"),
        ({"count": "many"}, "count is 'many', expected a whole number"),
        ({"truncate": -1.5}, "truncate is -1.5"),
        ({"truncate": -1}, "truncate is -1, expected 0 or more bytes"),
    ],
)
def test_gets_that_are_refused(broker: BrokerProcess, change: dict[str, Any], reason: str) -> None:
    publish(broker, "q", "stays")
    body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto", **change}
    assert reason in refused(broker, "POST", "queues/%2F/q/get", body)[2]
    assert get(broker, "queues/%2F/q")["messages_ready"] == 1


def test_messages_need_the_rights_of_amqp(broker: BrokerProcess) -> None:
    done(broker, "PUT", "users/reader", {"password": "r", "tags": ""})
    done(broker, "PUT", "permissions/%2F/reader", {**FULL, "write": "", "configure": ""})
    body = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}
    path = "exchanges/%2F/amq.topic/publish"
    assert refused(broker, "POST", path, body, "reader:r")[:2] == (401, "not_authorised")
    asked = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert call(broker, "POST", "queues/%2F/q/get", asked, "reader:r")[0] == 200
    done(broker, "PUT", "permissions/%2F/reader", {**FULL, "read": ""})
    assert refused(broker, "POST", "queues/%2F/q/get", asked, "reader:r")[0] == 401
    assert refused(broker, "DELETE", "queues/%2F/q/contents", user="reader:r")[0] == 401


def test_things_that_are_not_there(broker: BrokerProcess) -> None:
    body = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}
    asked = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert refused(broker, "POST", "exchanges/%2F/none/publish", body)[:2] == (404, "not_found")
    assert refused(broker, "POST", "queues/%2F/none/get", asked)[:2] == (404, "not_found")
    assert refused(broker, "DELETE", "queues/%2F/none/contents")[:2] == (404, "not_found")
    assert refused(broker, "GET", "aliveness-test/none")[:2] == (404, "not_found")


def test_a_purge_leaves_what_is_in_flight(broker: BrokerProcess) -> None:
    for text in "abc":
        publish(broker, "q", text)
    with connect(broker) as connection:
        connection.channel().basic_get("q")
        assert done(broker, "DELETE", "queues/%2F/q/contents") == 204
        row = get(broker, "queues/%2F/q")
        assert (row["messages_ready"], row["messages_unacknowledged"]) == (0, 1)
    assert broker.queues()["q"]["dropped"] == {"purged": 2}


def test_aliveness(broker: BrokerProcess) -> None:
    for _ in range(2):
        assert get(broker, "aliveness-test/%2F") == {"status": "ok"}
    assert get(broker, "queues/%2F/aliveness-test")["messages"] == 0


def test_a_request_leaves_no_connection_behind(broker: BrokerProcess) -> None:
    publish(broker, "q", "x")
    refused(broker, "POST", "queues/%2F/none/get",
            {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})  # fmt: skip
    assert broker.http("GET", "/api/tallymark/overview")[1]["sessions"] == 0
    assert get(broker, "connections") == []


def test_a_message_whose_headers_cannot_be_read_keeps_no_other_from_being_got(
    broker: BrokerProcess,
) -> None:
    """What is nested in headers is not read at publish."""
    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"a": deep}
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for headers in ({"n": 1}, deep, {"n": 2}):
            properties = pika.BasicProperties(headers=headers, message_id="m")
            channel.basic_publish("", "q", b"x", properties)
    found = take(broker)
    assert [one["payload"] for one in found] == ["x"] * 3
    assert [one["properties"].get("headers") for one in found] == [{"n": 1}, None, {"n": 2}]
    assert [one["properties"]["message_id"] for one in found] == ["m"] * 3
    assert [one.get("unreadable_headers") for one in found] == [
        None, "tables nested deeper than 64", None,
    ]  # fmt: skip
    assert take(broker) == []


@pytest.mark.parametrize("depth", [70, 600, 900])
def test_headers_that_no_reader_could_read_are_refused(broker: BrokerProcess, depth: int) -> None:
    headers = '{"a":' * depth + "1" + "}" * depth
    rest = '"routing_key":"q","payload":"","payload_encoding":"string"'
    body = f'{{{rest},"properties":{{"headers":{headers}}}}}'.encode()
    path = "exchanges/%2F/amq.default/publish"
    assert refused(broker, "POST", path, body)[:2] == (400, "bad_request")
    assert take(broker) == []
