"""Two client libraries of NSQ's against the broker: pynsq (tornado) and gnsq (gevent)."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import gevent
import gnsq
import nsq
import pika
import pytest

from tests.server.nsqd import channel as channel_row
from tests.support.process import BrokerProcess

TLS = Path(__file__).parents[1] / "support" / "tls"
CERT, KEY = str(TLS / "cert.pem"), str(TLS / "key.pem")
SECONDS = 20.0
PLAIN: dict[str, Any] = {}
LAYERS = [
    pytest.param({}, id="plain"),
    pytest.param({"tls_v1": True}, id="tls"),
    pytest.param({"snappy": True}, id="snappy"),
    pytest.param({"deflate": True}, id="deflate"),
    pytest.param({"tls_v1": True, "snappy": True}, id="tls+snappy"),
    pytest.param({"tls_v1": True, "deflate": True}, id="tls+deflate"),
]


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a certificate, and with little patience for clients that name no time."""
    folder = tmp_path_factory.mktemp("nsq-clients") / "data"
    with BrokerProcess(folder, nsq_tls_cert=CERT, nsq_tls_key=KEY, nsq_msg_timeout="2s") as process:
        yield process


@pytest.fixture
def address(nsqd: BrokerProcess) -> str:
    return f"127.0.0.1:{nsqd.nsq_port}"


class AuthServer:
    """Knows one secret, which allows everything on topics whose names begin with its own."""

    def __init__(self, secret: str) -> None:
        asked = self.asked = []  # type: list[dict[str, list[str]]]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                asked.append(query)
                good = query["secret"] == [secret]
                entry = {
                    "topic": f"^{secret}", "channels": [".*"],
                    "permissions": ["subscribe", "publish"],
                }  # fmt: skip
                answer = {"ttl": 3600, "identity": "test", "authorizations": [entry] * good}
                raw = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> AuthServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, AuthServer]]:
    """A broker that asks an auth server, with it."""
    folder = tmp_path_factory.mktemp("nsq-auth") / "data"
    with (
        AuthServer("sesame") as server,
        BrokerProcess(folder, auth_http_address=server.address) as process,
    ):
        yield process, server


# -- pynsq


def client_tls(options: dict[str, Any]) -> dict[str, Any]:
    """pynsq's way to say that a certificate need not be known."""
    if options.get("tls_v1"):
        return {**options, "tls_options": {"cert_reqs": ssl.CERT_NONE}}
    return options


class Pynsq:
    """Readers and writers of one test, on the running loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._opened: list[Any] = []

    async def writer(self, **options: Any) -> Any:
        writer = nsq.Writer([self._address], **client_tls(options))
        self._opened.append(writer)
        await until(lambda: any(conn.state == "CONNECTED" for conn in writer.conns.values()))
        return writer

    def reader(self, topic: str, handler: Callable[[Any], Any], **options: Any) -> Any:
        reader = nsq.Reader(
            topic, "c", message_handler=handler, nsqd_tcp_addresses=[self._address],
            **client_tls(options),
        )  # fmt: skip
        self._opened.append(reader)
        return reader

    async def close(self) -> None:
        for one in self._opened:
            for conn in list(one.conns.values()):
                conn.close()
            if isinstance(one, nsq.Reader):
                one.close()
        await asyncio.sleep(0.01)  # closed sockets are told of with the next round


async def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(0.01)


async def said(command: Callable[..., None], *arguments: Any) -> Any:
    """What a writer is answered."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    command(*arguments, callback=lambda conn, content: answer.set_result(content))
    return await asyncio.wait_for(answer, SECONDS)


def with_pynsq(address: str, test: Callable[[Pynsq], Awaitable[None]]) -> None:
    async def whole() -> None:
        clients = Pynsq(address)
        try:
            await test(clients)
        finally:
            await clients.close()

    asyncio.run(whole())


@pytest.mark.parametrize("options", LAYERS)
def test_pynsq_produces_and_consumes(
    nsqd: BrokerProcess, address: str, name: str, options: dict[str, Any]
) -> None:
    bodies = [b"%d" % n * (n % 50 + 1) for n in range(200)] + [b"z" * 300_000]

    async def test(clients: Pynsq) -> None:
        got: list[bytes] = []

        def handler(message: Any) -> bool:
            got.append(message.body)
            return True

        writer = await clients.writer(**options)
        for body in bodies[:100]:
            assert await said(writer.pub, name, body) == b"OK"
        assert await said(writer.mpub, name, bodies[100:]) == b"OK"
        clients.reader(name, handler, max_in_flight=20, **options)
        await until(lambda: len(got) >= len(bodies))
        assert sorted(got) == sorted(bodies)
        await until(lambda: channel_row(nsqd.nsq_http_url, name, "c")["in_flight_count"] == 0)

    with_pynsq(address, test)
    assert channel_row(nsqd.nsq_http_url, name, "c")["depth"] == 0


def test_pynsq_requeues_with_backoff(nsqd: BrokerProcess, address: str, name: str) -> None:
    async def test(clients: Pynsq) -> None:
        attempts: list[tuple[bytes, int]] = []

        def handler(message: Any) -> bool:
            attempts.append((message.body, message.attempts))
            return bool(message.attempts > 2)

        writer = await clients.writer()
        await said(writer.mpub, name, [b"a", b"b"])
        clients.reader(name, handler, max_backoff_duration=1, requeue_delay=0, max_in_flight=1)
        await until(lambda: len(attempts) == 6)
        assert sorted(attempts) == [(body, n) for body in (b"a", b"b") for n in (1, 2, 3)]

    with_pynsq(address, test)
    row = channel_row(nsqd.nsq_http_url, name, "c")
    assert (row["requeue_count"], row["timeout_count"], row["depth"]) == (4, 0, 0)


def test_pynsq_touches_what_takes_longer_than_its_time(
    nsqd: BrokerProcess, address: str, name: str
) -> None:
    async def test(clients: Pynsq) -> None:
        done: list[int] = []

        async def work(message: Any) -> None:
            for _ in range(4):
                await asyncio.sleep(0.6)
                message.touch()
            message.finish()
            done.append(message.attempts)

        def handler(message: Any) -> None:
            message.enable_async()
            tasks.append(asyncio.ensure_future(work(message)))

        tasks: list[asyncio.Future[None]] = []
        writer = await clients.writer()
        await said(writer.pub, name, b"slow")
        clients.reader(name, handler, msg_timeout=1)
        await until(lambda: done == [1])
        await asyncio.sleep(0.1)

    with_pynsq(address, test)
    row = channel_row(nsqd.nsq_http_url, name, "c")
    assert (row["timeout_count"], row["in_flight_count"], row["depth"]) == (0, 0, 0)


def test_pynsq_gets_again_what_it_held_for_too_long(
    nsqd: BrokerProcess, address: str, name: str
) -> None:
    async def test(clients: Pynsq) -> None:
        attempts: list[int] = []

        def handler(message: Any) -> None:
            message.enable_async()
            attempts.append(message.attempts)
            if message.attempts == 2:
                message.finish()

        writer = await clients.writer()
        await said(writer.pub, name, b"slow")
        clients.reader(name, handler, msg_timeout=1, max_in_flight=2)
        await until(lambda: attempts == [1, 2])
        await until(lambda: channel_row(nsqd.nsq_http_url, name, "c")["in_flight_count"] == 0)

    with_pynsq(address, test)
    row = channel_row(nsqd.nsq_http_url, name, "c")
    assert (row["timeout_count"], row["requeue_count"], row["depth"]) == (1, 0, 0)


def test_pynsq_defers(address: str, name: str) -> None:
    async def test(clients: Pynsq) -> None:
        got: list[float] = []
        writer = await clients.writer()
        clients.reader(name, lambda message: got.append(time.monotonic()) or True)
        before = time.monotonic()
        assert await said(writer.dpub, name, 700, b"later") == b"OK"
        await until(lambda: len(got) == 1)
        assert 0.7 <= got[0] - before < 2

    with_pynsq(address, test)


def test_pynsq_with_auth(guarded: tuple[BrokerProcess, AuthServer]) -> None:
    broker, server = guarded

    async def test(clients: Pynsq) -> None:
        got: list[bytes] = []
        writer = await clients.writer(auth_secret="sesame")
        assert await said(writer.pub, "sesame-pynsq", b"open") == b"OK"
        clients.reader(
            "sesame-pynsq", lambda message: got.append(message.body) or True, auth_secret="sesame"
        )
        await until(lambda: got == [b"open"])

    with_pynsq(f"127.0.0.1:{broker.nsq_port}", test)
    assert server.asked[-1]["remote_ip"] == ["127.0.0.1"]
    assert server.asked[-1]["tls"] == ["false"]


# -- gnsq


def gevent_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, "it did not come to pass"
        gevent.sleep(0.01)


class Gnsq:
    """gnsq's producers fail at the OK inside a layer, so that layers are its consumers' only."""

    def __init__(self, address: str, **options: Any) -> None:
        self.address = address
        if options.get("tls_v1"):
            options["tls_options"] = {}
        self.options = options
        self.producer_options = {
            key: value for key, value in options.items() if key == "auth_secret"
        }

    def produce(self, topic: str, *bodies: bytes, defer: int | None = None) -> None:
        producer = gnsq.Producer(self.address, **self.producer_options)
        producer.start()
        try:
            if len(bodies) == 1:
                assert producer.publish(topic, bodies[0], defer=defer, timeout=SECONDS) == b"OK"
            else:
                assert producer.multipublish(topic, list(bodies), timeout=SECONDS) == b"OK"
        finally:
            producer.close()
            producer.join()

    def consumer(self, topic: str, handler: Callable[[Any, Any], None], **more: Any) -> Any:
        consumer = gnsq.Consumer(
            topic, "c", self.address, message_handler=handler, **{**self.options, **more}
        )
        consumer.start(block=False)
        return consumer


@pytest.mark.parametrize("options", LAYERS)
def test_gnsq_produces_and_consumes(
    nsqd: BrokerProcess, address: str, name: str, options: dict[str, Any]
) -> None:
    clients = Gnsq(address, **options)
    bodies = [b"%d" % n * (n % 50 + 1) for n in range(200)] + [b"z" * 300_000]
    clients.produce(name, bodies[0])
    clients.produce(name, *bodies[1:])
    got: list[bytes] = []
    consumer = clients.consumer(name, lambda _, message: got.append(message.body), max_in_flight=20)
    try:
        gevent_until(lambda: len(got) >= len(bodies))
        gevent_until(lambda: channel_row(nsqd.nsq_http_url, name, "c")["in_flight_count"] == 0)
    finally:
        consumer.close()
        consumer.join()
    assert sorted(got) == sorted(bodies)


def test_gnsq_requeues_with_backoff(nsqd: BrokerProcess, address: str, name: str) -> None:
    attempts: list[int] = []

    def handler(consumer: Any, message: Any) -> None:
        attempts.append(message.attempts)
        if message.attempts < 3:
            raise gnsq.errors.NSQRequeueMessage

    clients = Gnsq(address)
    clients.produce(name, b"a")
    consumer = clients.consumer(name, handler, requeue_delay=0, max_backoff_duration=1)
    try:
        gevent_until(lambda: attempts == [1, 2, 3])
        gevent_until(lambda: channel_row(nsqd.nsq_http_url, name, "c")["in_flight_count"] == 0)
    finally:
        consumer.close()
        consumer.join()
    assert channel_row(nsqd.nsq_http_url, name, "c")["requeue_count"] == 2


def test_gnsq_touches_and_times_out(nsqd: BrokerProcess, address: str, name: str) -> None:
    attempts: list[int] = []

    def handler(consumer: Any, message: Any) -> None:
        message.enable_async()
        attempts.append(message.attempts)
        if message.attempts == 2:
            for _ in range(3):
                gevent.sleep(1)
                message.touch()
            message.finish()

    clients = Gnsq(address)
    clients.produce(name, b"a")
    consumer = clients.consumer(name, handler, max_in_flight=3)
    try:
        gevent_until(lambda: attempts == [1, 2])
        gevent_until(lambda: channel_row(nsqd.nsq_http_url, name, "c")["in_flight_count"] == 0)
    finally:
        consumer.close()
        consumer.join()
    row = channel_row(nsqd.nsq_http_url, name, "c")
    assert (row["timeout_count"], row["depth"]) == (1, 0)


def test_gnsq_with_auth(guarded: tuple[BrokerProcess, AuthServer]) -> None:
    broker, _ = guarded
    clients = Gnsq(f"127.0.0.1:{broker.nsq_port}", auth_secret=b"sesame")
    clients.produce("sesame-gnsq", b"open")
    got: list[bytes] = []
    consumer = clients.consumer("sesame-gnsq", lambda _, message: got.append(message.body))
    try:
        gevent_until(lambda: got == [b"open"])
    finally:
        consumer.close()
        consumer.join()


# -- with AMQP


def test_an_amqp_consumer_drains_what_pynsq_produces(
    nsqd: BrokerProcess, address: str, name: str
) -> None:
    async def test(clients: Pynsq) -> None:
        reader = clients.reader(name, lambda message: True)
        await until(lambda: any(conn.rdy for conn in reader.conns.values()))
        await clients.close()
        writer = await clients.writer()
        assert await said(writer.mpub, name, [b"%d" % n for n in range(50)]) == b"OK"

    with_pynsq(address, test)
    with pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", nsqd.amqp_port)
    ) as connection:
        channel = connection.channel()
        got = []
        for method, _, body in channel.consume(f"{name}:c", inactivity_timeout=SECONDS):
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
    got: list[bytes] = []
    consumer = clients.consumer(name, lambda _, message: got.append(message.body))
    try:
        gevent_until(lambda: len(got) == 2)
    finally:
        consumer.close()
        consumer.join()
    assert got == [b"from nsq", b"from amqp"]
