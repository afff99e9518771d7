"""A broker in nsqd's place: what nsqadmin reads, registration, auth and TLS, through sockets."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pika
import pytest

from tallymark.wire.nsq import commands
from tests.server.nsqd import Client, call, channel, post, refused, stats, topic
from tests.support.certificates import Authority
from tests.support.nsq_auth_server import AuthServer
from tests.support.nsqlookupd import FakeLookupd
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

# -- what nsqadmin decodes /stats and /info into, as of its 1.3.0: Go refuses what does not fit


class Latency(msgspec.Struct):
    count: int
    percentiles: list[dict[str, float]] | None


class AdminClient(msgspec.Struct):
    remote_address: str
    version: str
    client_id: str
    hostname: str
    user_agent: str
    connect_ts: int
    in_flight_count: int
    ready_count: int
    finish_count: int
    requeue_count: int
    message_count: int
    sample_rate: int
    deflate: bool
    snappy: bool
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""


class AdminChannel(msgspec.Struct):
    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    requeue_count: int
    timeout_count: int
    message_count: int
    client_count: int
    clients: list[AdminClient] | None
    paused: bool
    e2e_processing_latency: Latency


class AdminTopic(msgspec.Struct):
    topic_name: str
    depth: int
    backend_depth: int
    message_count: int
    channels: list[AdminChannel]
    paused: bool
    e2e_processing_latency: Latency


class AdminStats(msgspec.Struct):
    version: str
    health: str
    start_time: int
    topics: list[AdminTopic]
    producers: list[AdminClient] | None
    memory: dict[str, int] | None = None


class AdminInfo(msgspec.Struct):
    version: str
    broadcast_address: str
    hostname: str
    http_port: int
    tcp_port: int


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = Path(tmp_path_factory.mktemp("nsqd")) / "data"
    with BrokerProcess(folder, e2e_processing_latency_percentile="1.0,0.5") as running:
        yield running


def admin_stats(url: str, query: str = "") -> AdminStats:
    _, _, raw = call(url, "GET", f"/stats?format=json{query}")
    return msgspec.json.decode(raw, type=AdminStats, strict=True)


def test_nq_21_nsqadmin_can_read_what_clients_do(broker: BrokerProcess) -> None:
    url = broker.nsq_http_url
    with (
        Client(broker.nsq_port, client_id="p", user_agent="test/1") as producer,
        Client(broker.nsq_port, client_id="c", hostname="box", feature_negotiation=True) as taker,
    ):
        taker.ok(commands.sub("watched", "c"))
        producer.ok(commands.mpub("watched", [b"1", b"2", b"3"]))
        taker.send(commands.rdy(2))
        first, second = taker.message(), taker.message()
        found = admin_stats(url, "&topic=watched")
        (row,) = found.topics[0].channels
        assert (row.depth, row.in_flight_count, row.client_count) == (1, 2, 1)
        assert row.clients is not None
        (shown,) = row.clients
        assert (shown.client_id, shown.hostname, shown.version) == ("c", "box", "V2")
        assert (shown.ready_count, shown.in_flight_count, shown.message_count) == (2, 2, 2)
        taker.send(commands.rdy(0))
        taker.send(commands.fin(first[0]) + commands.req(second[0], 0))
        taker.send(commands.pub("watched.done", b"x"))
        assert taker.next()[1] == b"OK"
        found = admin_stats(url, "&topic=watched")
        (row,) = found.topics[0].channels
        assert (row.depth, row.in_flight_count, row.requeue_count) == (2, 0, 1)
        assert row.e2e_processing_latency.count == 1
        percentiles = row.e2e_processing_latency.percentiles
        assert percentiles is not None
        assert [one["quantile"] for one in percentiles] == [1.0, 0.5]
        assert row.clients is not None
        assert (row.clients[0].finish_count, row.clients[0].requeue_count) == (1, 1)
        assert found.producers is not None
        assert {one.client_id for one in found.producers} == {"p", "c"}
        text = call(url, "GET", "/stats")[2].decode()
        assert "[c                        ] depth: 2" in text
        assert "topics: watched=3 connected:" in text
    _, _, raw = call(url, "GET", "/info")
    info = msgspec.json.decode(raw, type=AdminInfo, strict=True)
    assert (info.version, info.tcp_port) == ("1.3.0", broker.nsq_port)


def test_what_nsqadmin_asks_for_without_clients(broker: BrokerProcess) -> None:
    post(broker.nsq_http_url, "/topic/create?topic=quiet")
    found = admin_stats(broker.nsq_http_url, "&include_clients=false&include_mem=false")
    assert found.memory is None
    assert all(one.clients is None for row in found.topics for one in row.channels)
    assert admin_stats(broker.nsq_http_url).memory


def test_a_producer_over_http_feeds_a_subscriber(broker: BrokerProcess) -> None:
    with Client(broker.nsq_port) as taker:
        taker.ok(commands.sub("fed", "c"))
        taker.send(commands.rdy(5))
        post(broker.nsq_http_url, "/pub?topic=fed", b"one")
        post(broker.nsq_http_url, "/mpub?topic=fed", b"two\nthree")
        post(broker.nsq_http_url, "/mpub?topic=fed&binary=1", b"\0\0\0\1\0\0\0\4four")
        got = [taker.message() for _ in range(4)]
        assert [body for _, _, body in got] == [b"one", b"two", b"three", b"four"]
        assert {attempts for _, attempts, _ in got} == {1}


def test_nq_9_a_paused_channel_delivers_nothing_until_it_goes_on(broker: BrokerProcess) -> None:
    url = broker.nsq_http_url
    with Client(broker.nsq_port) as taker:
        taker.ok(commands.sub("rests", "c"))
        taker.send(commands.rdy(5))
        post(url, "/channel/pause?topic=rests&channel=c")
        post(url, "/pub?topic=rests", b"m")
        assert channel(url, "rests", "c")["depth"] == 1
        assert channel(url, "rests", "c")["in_flight_count"] == 0
        post(url, "/channel/unpause?topic=rests&channel=c")
        assert taker.message()[2] == b"m"


def test_nq_15_an_emptied_channel_has_nothing_in_flight(broker: BrokerProcess) -> None:
    url = broker.nsq_http_url
    with Client(broker.nsq_port) as taker:
        taker.ok(commands.sub("emptied", "c"))
        post(url, "/mpub?topic=emptied", b"1\n2\n3")
        taker.send(commands.rdy(2))
        ids = [taker.message()[0] for _ in range(2)]
        post(url, "/channel/empty?topic=emptied&channel=c")
        row = channel(url, "emptied", "c")
        assert (row["depth"], row["in_flight_count"]) == (0, 0)
        assert row["clients"][0]["in_flight_count"] == 0
        told = taker.error(commands.fin(ids[0]))
        assert told == f"E_FIN_FAILED FIN {ids[0]:016x} failed ID not in flight"


def test_an_amqp_consumer_of_a_channel_is_among_its_clients(broker: BrokerProcess) -> None:
    url = broker.nsq_http_url
    post(url, "/topic/create?topic=mixed")
    post(url, "/channel/create?topic=mixed&channel=c")
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    try:
        amqp = connection.channel()
        seen: list[bytes] = []

        def take(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            seen.append(body)
            amqp.basic_ack(method.delivery_tag)

        amqp.basic_consume("mixed:c", take, consumer_tag="amqp-taker")
        row = channel(url, "mixed", "c")
        assert row["client_count"] == 1
        (shown,) = row["clients"]
        assert (shown["client_id"], shown["version"]) == ("amqp-taker", "0-9-1")
        post(url, "/pub?topic=mixed", b"to amqp")
        while not seen:
            connection.process_data_events(1)
        assert seen == [b"to amqp"]
    finally:
        connection.close()


def test_nq_d10_a_policy_limits_attempts_and_keeps_what_passed_them(broker: BrokerProcess) -> None:
    definition = {
        "acquired-limit": 2,
        "dead-letter-exchange": "",
        "dead-letter-routing-key": "dead",
    }
    policy = {"pattern": "^limited:", "definition": definition}
    assert broker.http("PUT", "/api/policies/%2F/limited", policy)[0] == 201
    assert broker.http("PUT", "/api/queues/%2F/dead", {"durable": True})[0] == 201
    with Client(broker.nsq_port) as taker:
        taker.ok(commands.sub("limited", "c"))
        taker.ok(commands.pub("limited", b"poison"))
        taker.send(commands.rdy(1))
        for attempt in (1, 2, 3):  # given back more often than twice: dead
            id, attempts, _ = taker.message()
            assert attempts == attempt
            taker.send(commands.req(id, 0))
        post(broker.nsq_http_url, "/pub?topic=limited", b"next")
        assert taker.message()[1:] == (1, b"next")
    assert broker.queues()["dead"]["ready"] == 1


def test_a_channel_that_refuses_what_it_has_no_room_for_is_told_over_http(
    broker: BrokerProcess,
) -> None:
    url = broker.nsq_http_url
    definition = {"max-length": 1, "overflow": "reject-publish"}
    policy = {"pattern": "^narrow:c$", "definition": definition}
    assert broker.http("PUT", "/api/policies/%2F/narrow", policy)[0] == 201
    post(url, "/topic/create?topic=narrow")
    post(url, "/channel/create?topic=narrow&channel=c")
    assert post(url, "/pub?topic=narrow", b"1") == b"OK"
    assert refused(url, "/pub?topic=narrow", b"2") == (503, "BLOCKED")
    assert refused(url, "/mpub?topic=narrow", b"2\n3") == (503, "BLOCKED")
    assert channel(url, "narrow", "c")["depth"] == 1


# -- nsqlookupd


def test_topics_are_registered_and_lookupds_can_be_changed(tmp_path: Path) -> None:
    async def test() -> None:
        async with FakeLookupd() as one, FakeLookupd() as two:
            broker = BrokerProcess(
                tmp_path / "data", lookupd=one.address, nsq_broadcast_address="box.example",
                nsq_http_config="true",
            )  # fmt: skip
            await asyncio.to_thread(broker.start)
            try:
                await registered(broker, one, two)
            finally:
                await asyncio.to_thread(broker.stop)
            await two.until(lambda: two.producers == [])

    async def registered(broker: BrokerProcess, one: FakeLookupd, two: FakeLookupd) -> None:
        url = broker.nsq_http_url
        await one.until(lambda: bool(one.producers) and bool(one.producers[0].info))
        assert one.producers[0].info == {
            "version": "1.3.0", "tcp_port": broker.nsq_port, "http_port": broker.nsq_http_port,
            "broadcast_address": "box.example", "hostname": one.producers[0].info["hostname"],
        }  # fmt: skip
        await asyncio.to_thread(post, url, "/topic/create?topic=t")
        await asyncio.to_thread(post, url, "/channel/create?topic=t&channel=c")
        await one.until(lambda: one.channels("t") == {"c"})
        body = json.dumps([two.address]).encode()
        option = "/config/nsqlookupd_tcp_addresses"
        answer = await asyncio.to_thread(call, url, "PUT", option, body)
        assert (answer[0], json.loads(answer[2])) == (200, [two.address])
        await two.until(lambda: two.channels("t") == {"c"})
        await one.until(lambda: one.producers == [])

    asyncio.run(test())


# -- auth


def test_a_transaction_begun_before_the_first_channel_reaches_it(broker: BrokerProcess) -> None:
    """It commits to the topic's backlog, which nobody reads any more."""
    url = f"http://127.0.0.1:{broker.nsq_http_port}"
    post(url, "/topic/create?topic=late")
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    try:
        amqp = connection.channel()
        amqp.tx_select()
        amqp.basic_publish("late", "", b"in time", pika.BasicProperties(delivery_mode=2))
        amqp.queue_declare("late:", passive=True)  # and it is staged
        post(url, "/channel/create?topic=late&channel=c")
        amqp.tx_commit()
    finally:
        connection.close()
    until(lambda: channel(url, "late", "c")["depth"] == 1)
    assert topic(url, "late")["depth"] == 0


@pytest.fixture
def auth_server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        yield server


def test_an_auth_server_decides_what_a_client_may_do(
    tmp_path: Path, auth_server: AuthServer
) -> None:
    auth_server.answer = {
        "ttl": 3600, "identity": "shop", "identity_url": "http://shop.example",
        "authorizations": [
            {"topic": "^mine$", "channels": [".*"], "permissions": ["publish", "subscribe"]}
        ],
    }  # fmt: skip
    with BrokerProcess(tmp_path / "data", auth_http_address=auth_server.address) as broker:
        port = broker.nsq_port
        with Client(port, feature_negotiation=True) as client:
            assert client.about["auth_required"] is True
            client.send(commands.auth(b"open sesame"))
            assert json.loads(client.next()[1]) == {
                "identity": "shop", "identity_url": "http://shop.example", "permission_count": 1,
            }  # fmt: skip
            assert auth_server.asked == [
                {
                    "remote_ip": ["127.0.0.1"], "tls": ["false"], "secret": ["open sesame"],
                    "common_name": [""],
                }
            ]  # fmt: skip
            client.ok(commands.sub("mine", "c"))
            client.ok(commands.pub("mine", b"m"))
            row = channel(broker.nsq_http_url, "mine", "c")
            assert row["clients"][0]["authed"] is True
            assert row["clients"][0]["auth_identity"] == "shop"
            told = client.error(commands.pub("theirs", b"m"))
            assert told == 'E_UNAUTHORIZED AUTH failed for PUB on "theirs" ""'
        with Client(port) as client:
            assert client.error(commands.sub("mine", "c")).startswith("E_AUTH_FIRST")
        auth_server.answer = {"ttl": 5, "authorizations": []}
        with Client(port) as client:
            told = client.error(commands.auth(b"nothing"))
            assert told == "E_UNAUTHORIZED AUTH no authorizations found"
        auth_server.answer = {}
        with Client(port) as client:
            assert client.error(commands.auth(b"wrong")) == "E_AUTH_FAILED AUTH failed"
        log = broker.log()
        assert "auth.failed" in log
        assert "open sesame" not in log
        assert "wrong" not in log


# -- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(Path(tmp_path_factory.mktemp("certificates")))


def https(authority: Authority, port: int, path: str, body: bytes | None = None) -> bytes:
    context = ssl.create_default_context(cafile=str(authority.own.cert))
    with urllib.request.urlopen(
        f"https://127.0.0.1:{port}{path}", body, timeout=PATIENCE_S, context=context
    ) as response:
        assert response.status == 200
        raw: bytes = response.read()
        return raw


def test_nq_20_https_beside_http(tmp_path: Path, authority: Authority) -> None:
    server = authority.sign("server")
    with BrokerProcess(
        tmp_path / "data", nsq_tls_cert=str(server.cert), nsq_tls_key=str(server.key)
    ) as broker:
        port = broker.ready["nsq_https"][1]
        assert https(authority, port, "/pub?topic=t", b"m") == b"OK"
        assert topic(broker.nsq_http_url, "t")["message_count"] == 1
        assert https(authority, port, "/ping") == b"OK"


@pytest.mark.parametrize("required", ["true", "tcp-https"])
def test_nq_20_tls_required(tmp_path: Path, authority: Authority, required: str) -> None:
    server = authority.sign("server")
    with BrokerProcess(
        tmp_path / "data", nsq_tls_cert=str(server.cert), nsq_tls_key=str(server.key),
        nsq_tls_required=required,
    ) as broker:  # fmt: skip
        port = broker.ready["nsq_https"][1]
        assert https(authority, port, "/ping") == b"OK"
        status, _, raw = call(broker.nsq_http_url, "GET", "/ping")
        if required == "true":
            expected = {"message": "TLS_REQUIRED", "https_port": port}
            assert (status, json.loads(raw)) == (403, expected)
        else:
            assert (status, raw) == (200, b"OK")


# -- without NSQ, and in the way of others


def test_no_nsq_means_no_listener(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", nsq="false") as broker:
        assert "nsq" not in broker.ready
        assert "nsq_http" not in broker.ready
        assert broker.http("GET", "/healthz", user=None)[0] == 200


def test_stats_survive_a_restart_as_far_as_they_are_state(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        url = broker.nsq_http_url
        post(url, "/topic/create?topic=t")
        post(url, "/channel/create?topic=t&channel=c")
        post(url, "/mpub?topic=t", b"1\n2")
        post(url, "/topic/pause?topic=t")
        post(url, "/pub?topic=t", b"3")
        assert broker.stop() == 0
        broker.restart()
        url = broker.nsq_http_url
        (row,) = stats(url)["topics"]
        assert (row["paused"], row["depth"], row["message_count"]) == (True, 1, 0)
        assert row["channels"][0]["depth"] == 2
        assert row["channels"][0]["message_count"] == 0
        assert refused(url, "/topic/create") == (400, "MISSING_ARG_TOPIC")
