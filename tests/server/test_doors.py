"""Connections of all protocols are counted together, and silent ones harm nobody.

The tables go over every port: a rule that one front end keeps is kept by all.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pika
import pytest

from tallymark.server.access.tls import Tls, server_context
from tallymark.server.doors import Doors
from tallymark.server.handshakes import TlsListener
from tallymark.server.http.line import HttpLine
from tests.server.lines import DOORS, HTTP_DOORS, Door, until_closed
from tests.server.peers import open_files
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

FILES = 300
"""What the system allows the broker to have open."""
SILENT = 400
LIMIT = 100


class PoorBroker(BrokerProcess):
    """A broker that may have FILES files open."""

    def command(self) -> list[str]:
        limited = (
            "import os, resource, sys;"
            f"resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}));"
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        return [sys.executable, "-c", limited, *super().command()]


@pytest.fixture(scope="module", autouse=True)
def files_of_our_own() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def publish(broker: BrokerProcess, count: int, size: int) -> None:
    """Persistent messages with confirms, so that the journal needs new files."""
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for _ in range(count):
            channel.basic_publish("", "q", b"x" * size, pika.BasicProperties(delivery_mode=2))


@pytest.mark.parametrize("door", DOORS, ids=[door.name for door in DOORS])
def test_silent_connections_take_neither_the_journals_files_nor_the_places_of_http(
    tmp_path: Path, door: Door
) -> None:
    """Without a limit of their own those of HTTP used up the descriptors: the journal's next file
    could not be opened, which counted as a broken disk, and the broker ended with 4."""
    with (
        PoorBroker(tmp_path / "data", segment_size="1MiB", max_connections=str(LIMIT)) as broker,
        ExitStack() as held,
    ):
        with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as known:
            channel = known.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            for _ in range(SILENT):
                held.enter_context(door.connect(broker))
            for _ in range(8):  # each needs a new segment
                channel.basic_publish(
                    "", "q", b"x" * (1 << 20), pika.BasicProperties(delivery_mode=2)
                )
            assert broker.http("GET", "/healthz", user=None)[0] == 200
            until(lambda: open_files(broker) < LIMIT + 100)
        held.close()
        until(lambda: open_files(broker) < 60)
        publish(broker, 2, 1 << 20)
        assert broker.is_running


def with_tls(tmp_path: Path) -> dict[str, str]:
    made = Authority(tmp_path).sign("localhost")
    flags = {f"{name}_{of}": str(getattr(made, of)) for name in ("amqps", "https", "nsq_tls")
             for of in ("cert", "key")}  # fmt: skip
    return {**flags, "amqps_port": "0", "https_port": "0"}


TLS = pytest.mark.parametrize("name", ["amqps", "https", "nsq_https"])


@TLS
def test_silent_connections_where_tls_is_spoken_take_no_file_of_the_journals(
    tmp_path: Path, name: str
) -> None:
    """They were counted once TLS was up: so many were open as the time of a handshake let."""
    with (
        PoorBroker(
            tmp_path / "data", segment_size="1MiB", max_connections=str(LIMIT),
            handshake_timeout_ms="600000", http_header_timeout="600s", **with_tls(tmp_path),
        ) as broker,
        ExitStack() as held,
        pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as known,
    ):  # fmt: skip
        channel = known.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        address = tuple(broker.ready[name])
        for _ in range(SILENT):
            held.enter_context(socket.create_connection(address))
        for _ in range(8):
            channel.basic_publish("", "q", b"x" * (1 << 20), pika.BasicProperties(delivery_mode=2))
        until(lambda: open_files(broker) < LIMIT + 100)
        for one in DOORS:
            with one.opened(broker):
                pass
        assert broker.is_running


@TLS
def test_a_handshake_has_an_end(tmp_path: Path, name: str) -> None:
    with BrokerProcess(
        tmp_path / "data", handshake_timeout_ms="300", http_header_timeout="300ms",
        **with_tls(tmp_path),
    ) as broker:  # fmt: skip
        address = tuple(broker.ready[name])
        with socket.create_connection(address, timeout=PATIENCE_S) as silent:
            assert until_closed(silent) == b""
        with socket.create_connection(address, timeout=PATIENCE_S) as half:
            half.sendall(b"\x16\x03\x01")  # a record begins
            assert until_closed(half) == b""
        with socket.create_connection(address, timeout=PATIENCE_S) as plain:
            plain.sendall(b"AMQP\0\0\x09\x01" * 3)
            with suppress(ConnectionResetError):
                assert b"AMQP" not in until_closed(plain)


def test_a_handshake_inside_nsq_has_an_end(tmp_path: Path) -> None:
    with BrokerProcess(
        tmp_path / "data", handshake_timeout_ms="300", **with_tls(tmp_path)
    ) as broker:
        address = ("127.0.0.1", broker.nsq_port)
        with socket.create_connection(address, timeout=PATIENCE_S) as silent:
            asked = b'{"feature_negotiation":true,"tls_v1":true,"heartbeat_interval":-1}'
            silent.sendall(b"  V2IDENTIFY\n" + len(asked).to_bytes(4, "big") + asked)
            with suppress(ConnectionResetError):
                assert b"tls_v1" in until_closed(silent)


@pytest.mark.parametrize("door", HTTP_DOORS, ids=[door.name for door in HTTP_DOORS])
def test_silent_connections_of_http_go_for_clients(tmp_path: Path, door: Door) -> None:
    with (
        BrokerProcess(tmp_path / "data", max_connections="20") as broker,
        ExitStack() as held,
    ):
        for _ in range(200):
            held.enter_context(door.connect(broker))
        for one in DOORS:
            with one.opened(broker):
                pass


@pytest.mark.parametrize("door", DOORS, ids=[door.name for door in DOORS])
def test_the_limit_is_one_of_all_together(tmp_path: Path, door: Door) -> None:
    """Clients of the others take all there is: nobody comes in here, but some of HTTP."""
    with BrokerProcess(tmp_path / "data", max_connections="8") as broker, ExitStack() as held:
        for other in ("amqp-0-9-1", "amqp-1.0", "nsq", "nsq"):
            for one in DOORS:
                if one.name == other:
                    held.enter_context(one.opened(broker))
                    held.enter_context(one.opened(broker))
        if door in HTTP_DOORS:
            with door.opened(broker):
                return
        with pytest.raises(ConnectionError), door.opened(broker):
            pass


def test_a_probe_is_told_when_nobody_else_is_let_in(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", max_connections="1") as broker:
        assert broker.http("GET", "/readyz", user=None) == (200, {"status": "ok"})
        amqp = next(door for door in DOORS if door.name == "amqp-0-9-1")
        with amqp.opened(broker):
            status, said = broker.http("GET", "/readyz", user=None)
            assert (status, said["reason"]) == (503, "all 1 connections are taken")


def test_the_limit_is_lowered_to_what_the_system_allows(tmp_path: Path) -> None:
    with PoorBroker(tmp_path / "data") as broker:
        assert "connections.limited" in broker.log()
        nodes = broker.http("GET", "/api/nodes")[1]
        assert 100 < nodes[0]["sockets_total"] < FILES


def wait_for_close(raw: socket.socket) -> bytes:
    with raw:
        return until_closed(raw)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        tmp_path_factory.mktemp("hasty") / "data",
        http_header_timeout="300ms", http_body_timeout="300ms", http_answer_timeout="300ms",
        http_idle_timeout="400ms", handshake_timeout_ms="300",
    ) as process:  # fmt: skip
        yield process


NOT_NSQ = [door for door in DOORS if door.name != "nsq"]
"""nsqd gives a client that says nothing two heartbeats."""


@pytest.mark.parametrize("door", NOT_NSQ, ids=[door.name for door in NOT_NSQ])
def test_who_says_nothing_is_not_waited_for_without_end(hasty: BrokerProcess, door: Door) -> None:
    wait_for_close(door.connect(hasty))


@pytest.mark.parametrize("door", HTTP_DOORS, ids=[door.name for door in HTTP_DOORS])
@pytest.mark.parametrize(
    "start",
    [
        b"GET /ping HTTP/1.1\r\nHost: a\r\n",
        b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc",
        b"PUT /api/vhosts/x HTTP/1.1\r\nHost: a\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
        b"Content-Length: 10\r\n\r\n{",
        b"POST /mpub?topic=t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
    ids=["header", "body", "json", "chunk", "idle"],
)
def test_a_request_that_does_not_end_is_not_waited_for_without_end(
    hasty: BrokerProcess, door: Door, start: bytes
) -> None:
    raw = door.connect(hasty)
    raw.sendall(start)
    wait_for_close(raw)


@pytest.mark.parametrize("door", HTTP_DOORS, ids=[door.name for door in HTTP_DOORS])
def test_a_header_that_drips_is_not_waited_for_without_end(
    hasty: BrokerProcess, door: Door
) -> None:
    raw = door.connect(hasty)
    raw.settimeout(0.05)
    raw.sendall(b"GET /ping HTTP/1.1\r\nX: ")
    with pytest.raises(ConnectionError), raw:
        drip(raw)


def drip(raw: socket.socket) -> None:
    """A letter now and then, until the broker hangs up."""
    while True:
        raw.sendall(b"a")
        try:
            if not raw.recv(1000):
                raise ConnectionResetError
        except TimeoutError:
            pass


def flood(raw: socket.socket, data: bytes) -> None:
    """Send the same again and again, until the broker hangs up."""
    while True:
        raw.sendall(data)


@pytest.mark.parametrize("door", HTTP_DOORS, ids=[door.name for door in HTTP_DOORS])
def test_an_answer_that_is_not_read_is_not_waited_for_without_end(
    tmp_path: Path, door: Door
) -> None:
    """Requests without an end, and nothing is read: the broker hangs up.

    It has patience with all else: a client that is stopped between two requests is idle, and what
    it has not read of the answers before stays for it.
    """
    path = b"/api/overview" if door.name == "management" else b"/stats?format=json"
    request = b"GET %s HTTP/1.1\r\nHost: a\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n" % path
    patient = dict.fromkeys(
        ("http_header_timeout", "http_body_timeout", "http_idle_timeout"), f"{PATIENCE_S:.0f}s"
    )
    with (
        BrokerProcess(tmp_path / "data", http_answer_timeout="300ms", **patient) as broker,
        socket.socket() as raw,
    ):
        # Before it connects: who takes back room that was promised drops the broker's
        # acknowledgements, which lie behind it, and neither can say anything more.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(PATIENCE_S)
        raw.connect(("127.0.0.1", door.port(broker)))
        with pytest.raises(ConnectionError):
            flood(raw, request)


def test_a_handshake_that_goes_before_it_began_leaves_nothing_behind(tmp_path: Path) -> None:
    """Of many sockets that are accepted at once each takes the place of the one before: what was
    kept of those was kept for good."""

    async def play() -> None:
        made = Authority(tmp_path).sign("localhost")
        names = ("cert", "key", "ca")
        tls = Tls(server_context(names, made.cert, made.key, None, ssl.CERT_NONE, "tls1.2"))
        doors, bound = Doors(1), socket.socket()
        bound.bind(("127.0.0.1", 0))
        loop = asyncio.get_running_loop()
        listener = TlsListener(loop, doors, HttpLine, bound, tls, PATIENCE_S, is_http=False)  # type: ignore[arg-type]
        with ExitStack() as held:
            for _ in range(10):
                held.enter_context(socket.create_connection(bound.getsockname()))
            await asyncio.to_thread(until, lambda: len(doors) > 0)
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(doors) == len(listener._under_way) == 1
        listener.close()
        await asyncio.to_thread(until, lambda: not (listener._under_way or len(doors)))

    asyncio.run(play())
