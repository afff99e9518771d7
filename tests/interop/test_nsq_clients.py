"""Two client libraries of NSQ's against the broker: pynsq (tornado) and gnsq (gevent)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import gevent
import gnsq
import pika
import pytest

from tests.interop.nsq_clients import (
    Gnsq,
    Heard,
    Pynsq,
    Seen,
    everything_said,
    said,
    with_pynsq,
)
from tests.server.nsqd import channel as channel_row
from tests.support.certificates import Authority
from tests.support.issuer import EVERYTHING, Issuer
from tests.support.nsq_auth_server import AuthServer
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

LAYERS = [
    pytest.param({}, id="plain"),
    pytest.param({"tls_v1": True}, id="tls"),
    pytest.param({"snappy": True}, id="snappy"),
    pytest.param({"deflate": True}, id="deflate"),
    pytest.param({"tls_v1": True, "snappy": True}, id="tls+snappy"),
    pytest.param({"tls_v1": True, "deflate": True}, id="tls+deflate"),
]
BODIES = [b"%d" % n * (n % 50 + 1) for n in range(200)] + [b"z" * 300_000]


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a certificate, and with little patience for clients that name no time."""
    server = Authority(tmp_path_factory.mktemp("certificates")).sign("localhost")
    with BrokerProcess(
        tmp_path_factory.mktemp("nsq-clients") / "data", nsq_tls_cert=str(server.cert),
        nsq_tls_key=str(server.key), nsq_msg_timeout="2s", nsq_adopt_exchanges="true",
    ) as process:  # fmt: skip
        yield process


@pytest.fixture
def address(nsqd: BrokerProcess) -> str:
    return f"127.0.0.1:{nsqd.nsq_port}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, AuthServer]]:
    """A broker that asks an auth server, with it."""
    folder = tmp_path_factory.mktemp("nsq-auth") / "data"
    entry = {
        "topic": "^sesame", "channels": [".*"], "permissions": ["subscribe", "publish"],
    }  # fmt: skip
    answer = {"ttl": 3600, "identity": "test", "authorizations": [entry]}
    with (
        AuthServer(answer) as server,
        BrokerProcess(folder, auth_http_address=server.address) as process,
    ):
        yield process, server


# -- pynsq


@pytest.mark.parametrize("options", LAYERS)
def test_pynsq_produces_and_consumes(
    nsqd: BrokerProcess, address: str, name: str, options: dict[str, Any]
) -> None:
    async def test(clients: Pynsq) -> None:
        got = Seen()
        writer = await clients.writer(**options)
        for body in BODIES[:100]:
            assert await said(writer.pub, name, body) == b"OK"
        assert await said(writer.mpub, name, BODIES[100:]) == b"OK"
        reader = clients.reader(name, lambda m: got.add(m.body), max_in_flight=20, **options)
        await got.count(len(BODIES))
        assert sorted(got.all) == sorted(BODIES)
        await everything_said(reader)

    with_pynsq(test, address)
    row = channel_row(nsqd.nsq_http_url, name, "c")
    assert (row["in_flight_count"], row["depth"], row["timeout_count"]) == (0, 0, 0)


def test_pynsq_requeues_with_backoff(nsqd: BrokerProcess, address: str, name: str) -> None:
    async def test(clients: Pynsq) -> None:
        attempts = Seen()

        def handler(message: Any) -> bool:
            attempts.add((message.body, message.attempts))
            return bool(message.attempts > 2)

        writer = await clients.writer()
        await said(writer.mpub, name, [b"a", b"b"])
        reader = clients.reader(
            name, handler, max_backoff_duration=1, requeue_delay=0, max_in_flight=1
        )
        await attempts.count(6)
        assert sorted(attempts.all) == [(body, n) for body in (b"a", b"b") for n in (1, 2, 3)]
        await everything_said(reader)

    with_pynsq(test, address)
    row = channel_row(nsqd.nsq_http_url, name, "c")
    assert (row["requeue_count"], row["timeout_count"], row["depth"]) == (4, 0, 0)


def test_pynsq_touches_what_takes_longer_than_its_time(
    nsqd: BrokerProcess, address: str, name: str
) -> None:
    async def test(clients: Pynsq) -> None:
        done = Seen()

        async def work(message: Any) -> None:
            """Takes 3.6 s, and says four times that it is still at it."""
            loop = asyncio.get_running_loop()
            for _ in range(4):
                step_done: asyncio.Future[None] = loop.create_future()
                loop.call_later(0.9, step_done.set_result, None)  # 3.6 s in all, 3 may pass
                await step_done
                message.touch()
            message.finish()
            done.add(message.attempts)

        def handler(message: Any) -> None:
            message.enable_async()
            tasks.append(asyncio.ensure_future(work(message)))

        tasks: list[asyncio.Future[None]] = []
        writer = await clients.writer()
        await said(writer.pub, name, b"slow")
        reader = clients.reader(name, handler, msg_timeout=3)
        await done.count(1)
        assert done.all == [1]
        await everything_said(reader)

    with_pynsq(test, address)
    row = channel_row(nsqd.nsq_http_url, name, "c")
    assert (row["timeout_count"], row["in_flight_count"], row["depth"]) == (0, 0, 0)


def test_pynsq_gets_again_what_it_held_for_too_long(
    nsqd: BrokerProcess, address: str, name: str
) -> None:
    async def test(clients: Pynsq) -> None:
        attempts = Seen()

        def handler(message: Any) -> None:
            message.enable_async()
            if message.attempts == 2:
                message.finish()
            attempts.add(message.attempts)

        writer = await clients.writer()
        await said(writer.pub, name, b"slow")
        reader = clients.reader(name, handler, msg_timeout=1, max_in_flight=2)
        await attempts.count(2)
        assert attempts.all == [1, 2]
        await everything_said(reader)

    with_pynsq(test, address)
    row = channel_row(nsqd.nsq_http_url, name, "c")
    assert (row["timeout_count"], row["requeue_count"], row["depth"]) == (1, 0, 0)
    assert row["in_flight_count"] == 0


def test_pynsq_defers(address: str, name: str) -> None:
    async def test(clients: Pynsq) -> None:
        got = Seen()
        writer = await clients.writer()
        clients.reader(name, lambda message: got.add(time.monotonic()))
        before = time.monotonic()
        assert await said(writer.dpub, name, 700, b"later") == b"OK"
        await got.count(1)
        assert got.all[0] - before >= 0.698  # both clocks tell milliseconds

    with_pynsq(test, address)


def test_pynsq_with_auth(guarded: tuple[BrokerProcess, AuthServer]) -> None:
    broker, server = guarded

    async def test(clients: Pynsq) -> None:
        got = Seen()
        writer = await clients.writer(auth_secret="open")
        assert await said(writer.pub, "sesame-pynsq", b"m") == b"OK"
        clients.reader("sesame-pynsq", lambda m: got.add(m.body), auth_secret="open")
        await got.count(1)
        assert got.all == [b"m"]

    with_pynsq(test, f"127.0.0.1:{broker.nsq_port}")
    assert server.asked[-1] == {
        "remote_ip": ["127.0.0.1"], "tls": ["false"], "secret": ["open"], "common_name": [""],
    }  # fmt: skip


# -- gnsq


@pytest.mark.parametrize("options", LAYERS)
def test_gnsq_produces_and_consumes(
    nsqd: BrokerProcess, address: str, name: str, options: dict[str, Any]
) -> None:
    clients = Gnsq(address, **options)
    clients.produce(name, BODIES[0])
    clients.produce(name, *BODIES[1:])
    got = Heard()
    with clients.consume(
        name, lambda _, message: got.add(message.body), max_in_flight=20
    ) as consumer:
        got.count(len(BODIES))
        consumer.everything_said()
    assert sorted(got.all) == sorted(BODIES)
    row = channel_row(nsqd.nsq_http_url, name, "c")
    assert (row["in_flight_count"], row["depth"], row["timeout_count"]) == (0, 0, 0)


def test_gnsq_requeues_with_backoff(nsqd: BrokerProcess, address: str, name: str) -> None:
    attempts = Heard()

    def handler(consumer: Any, message: Any) -> None:
        attempts.add(message.attempts)
        if message.attempts < 3:
            raise gnsq.errors.NSQRequeueMessage

    clients = Gnsq(address)
    clients.produce(name, b"a")
    with clients.consume(name, handler, requeue_delay=0, max_backoff_duration=1) as consumer:
        attempts.count(3)
        consumer.everything_said()
    assert attempts.all == [1, 2, 3]
    row = channel_row(nsqd.nsq_http_url, name, "c")
    assert (row["requeue_count"], row["in_flight_count"], row["depth"]) == (2, 0, 0)


def test_gnsq_touches_and_times_out(nsqd: BrokerProcess, address: str, name: str) -> None:
    attempts, finished = Heard(), Heard()

    def handler(consumer: Any, message: Any) -> None:
        message.enable_async()
        attempts.add(message.attempts)
        if message.attempts == 2:
            touch(message, 3)

    def touch(message: Any, times: int) -> None:
        """The work takes 3 s, longer than its time; it says every second that it goes on."""
        if times:
            message.touch()
            gevent.get_hub().loop.timer(1).start(gevent.spawn, touch, message, times - 1)
        else:
            message.finish()
            finished.add(message.attempts)

    clients = Gnsq(address)
    clients.produce(name, b"a")
    with clients.consume(name, handler, max_in_flight=3) as consumer:
        finished.count(1)
        consumer.everything_said()
    assert (attempts.all, finished.all) == ([1, 2], [2])
    row = channel_row(nsqd.nsq_http_url, name, "c")
    assert (row["timeout_count"], row["in_flight_count"], row["depth"]) == (1, 0, 0)


def test_gnsq_with_auth(guarded: tuple[BrokerProcess, AuthServer]) -> None:
    broker, server = guarded
    clients = Gnsq(f"127.0.0.1:{broker.nsq_port}", auth_secret=b"open")
    clients.produce("sesame-gnsq", b"m")
    got = Heard()
    with clients.consume("sesame-gnsq", lambda _, message: got.add(message.body)):
        got.count(1)
    assert got.all == [b"m"]
    assert server.asked[-1]["secret"] == ["open"]


# -- with tokens of OAuth 2


@pytest.fixture(scope="module")
def trusting(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[BrokerProcess, str]]:
    """A broker that takes tokens, and one of them."""
    with Issuer() as issuer:
        folder = tmp_path_factory.mktemp("tokens") / "data"
        with BrokerProcess(folder, **issuer.flags()) as broker:
            yield broker, issuer.token(*EVERYTHING)


def test_pynsq_with_a_token(trusting: tuple[BrokerProcess, str]) -> None:
    broker, token = trusting

    async def test(clients: Pynsq) -> None:
        got = Seen()
        writer = await clients.writer(auth_secret=token)
        assert await said(writer.pub, "token-pynsq", b"m") == b"OK"
        clients.reader("token-pynsq", lambda m: got.add(m.body), auth_secret=token)
        await got.count(1)
        assert got.all == [b"m"]

    with_pynsq(test, f"127.0.0.1:{broker.nsq_port}")


def test_gnsq_with_a_token(trusting: tuple[BrokerProcess, str]) -> None:
    broker, token = trusting
    clients = Gnsq(f"127.0.0.1:{broker.nsq_port}", auth_secret=token.encode())
    clients.produce("token-gnsq", b"m")
    got = Heard()
    with clients.consume("token-gnsq", lambda _, message: got.add(message.body)):
        got.count(1)
    assert got.all == [b"m"]


# -- with AMQP


def test_an_amqp_consumer_drains_what_pynsq_produces(
    nsqd: BrokerProcess, address: str, name: str
) -> None:
    async def test(clients: Pynsq) -> None:
        reader = clients.reader(name, lambda message: True)
        await reader.has_subscribed()
        await everything_said(reader)
        await clients.close()
        writer = await clients.writer()
        assert await said(writer.mpub, name, [b"%d" % n for n in range(50)]) == b"OK"

    with_pynsq(test, address)
    with pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", nsqd.amqp_port)
    ) as connection:
        channel = connection.channel()
        got = []
        for method, _, body in channel.consume(f"{name}:c", inactivity_timeout=PATIENCE_S):
            assert method is not None, got
            got.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(got) == 50:
                break
        channel.cancel()
    assert got == [b"%d" % n for n in range(50)]


def test_an_nsq_producer_feeds_amqp_bindings_and_amqp_feeds_gnsq(
    nsqd: BrokerProcess, address: str, name: str
) -> None:
    clients = Gnsq(address)
    with pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", nsqd.amqp_port)
    ) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare(name, "fanout", durable=True)
        channel.queue_declare(f"{name}-mine", durable=True)
        channel.queue_bind(f"{name}-mine", name)
        clients.produce(name, b"from nsq")
        channel.basic_publish(name, "", b"from amqp")
        bodies = [channel.basic_get(f"{name}-mine", auto_ack=True)[2] for _ in range(2)]
        assert bodies == [b"from nsq", b"from amqp"]
    got = Heard()
    with clients.consume(name, lambda _, message: got.add(message.body)):
        got.count(2)
    assert got.all == [b"from nsq", b"from amqp"]
