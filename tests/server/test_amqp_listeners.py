"""The ports of AMQP: both versions on each, inside TLS and outside; who clients are there."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.credentials
import pytest

from tallymark.server.access import users
from tallymark.server.access.user import Permission, make_user
from tallymark.wire.amqp10.events import Event
from tallymark.wire.amqp10.sasl import plain_response
from tests.support.amqp10_socket import Client
from tests.support.certificates import Authority, Certificate
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerDied, BrokerProcess


def plain(broker: BrokerProcess) -> Client:
    return Client(socket.create_connection(("127.0.0.1", broker.amqp_port), 20))


def context_of(authority: Authority, own: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.own.cert))
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return context


def encrypted(broker: BrokerProcess, context: ssl.SSLContext) -> Client:
    raw = socket.create_connection(("127.0.0.1", broker.ready["amqps"][1]), 20)
    return Client(context.wrap_socket(raw, server_hostname="localhost"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def broker(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """With TLS that asks for certificates, users, and somebody to be anonymously."""
    folder = tmp_path_factory.mktemp("broker")
    own = authority.sign("broker")
    known = {
        name: make_user(name, "secret", name == "root", {"/": Permission()})
        for name in ("root", "alice", "nobody")
    }
    users.save(folder / "data", known)
    with BrokerProcess(
        folder / "data", amqps_port="0", amqps_cert=str(own.cert), amqps_key=str(own.key),
        amqps_ca_file=str(authority.own.cert), amqps_verify="optional", anonymous_user="nobody",
    ) as process:  # fmt: skip
        yield process


def test_both_versions_on_one_port(broker: BrokerProcess) -> None:
    with plain(broker) as client:
        assert "PLAIN" in client.mechanisms()
        assert client.authenticate("PLAIN", plain_response("alice", "secret")) == 0
        assert client.open().container_id.startswith("tallymark@")
        parameters = pika.ConnectionParameters(
            "127.0.0.1", broker.amqp_port,
            credentials=pika.PlainCredentials("alice", "secret"),
        )  # fmt: skip
        other = pika.BlockingConnection(parameters)
        _, rows = broker.http("GET", "/api/connections", user="root:secret")
        assert sorted(row["protocol"] for row in rows) == ["AMQP 0-9-1", "AMQP 1.0"]
        assert not any(row["ssl"] for row in rows)
        other.close()


@pytest.mark.parametrize("cut", range(1, 8))
@pytest.mark.parametrize(
    ("header", "answer"),
    [
        (b"AMQP\x03\x01\x00\x00", b"AMQP\x03\x01\x00\x00"),
        (b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00"),
    ],
)
def test_a_header_may_come_in_pieces(
    broker: BrokerProcess, header: bytes, answer: bytes, cut: int
) -> None:
    with socket.create_connection(("127.0.0.1", broker.amqp_port), 20) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.sendall(header[:cut])
        raw.settimeout(0.05)
        with pytest.raises(TimeoutError):
            raw.recv(1)
        raw.settimeout(PATIENCE_S)
        raw.sendall(header[cut:])
        assert raw.recv(len(answer)) == answer


def test_what_is_neither_is_told_what_would_be(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.amqp_port), 20) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert raw.recv(8) == b"AMQP\x00\x00\x09\x01"
    with socket.create_connection(("127.0.0.1", broker.amqp_port), 20) as raw:
        raw.sendall(b"AMQP\x02\x01\x00\x00")
        assert raw.recv(8) == b"AMQP\x03\x01\x00\x00", "TLS is on its own port"


@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_wrong_password_is_refused(broker: BrokerProcess, password: str) -> None:
    with plain(broker) as client:
        client.mechanisms()
        assert client.authenticate("PLAIN", plain_response("alice", password)) == 1
        assert client.exchange() is not None  # Ended, by the wire


def test_anonymous_is_who_the_configuration_says(broker: BrokerProcess) -> None:
    with plain(broker) as client:
        assert client.mechanisms() == ("SCRAM-SHA-256", "PLAIN", "ANONYMOUS")
        assert client.authenticate("ANONYMOUS", b"") == 0
        client.open()
        _, rows = broker.http("GET", "/api/connections", user="root:secret")
        assert "nobody" in [row["user"] for row in rows]


def test_amqp_10_inside_tls(broker: BrokerProcess, authority: Authority) -> None:
    with encrypted(broker, context_of(authority)) as client:
        assert client.mechanisms() == ("SCRAM-SHA-256", "PLAIN", "ANONYMOUS")
        assert client.authenticate("PLAIN", plain_response("alice", "secret")) == 0
        client.open()
        _, rows = broker.http("GET", "/api/connections", user="root:secret")
        assert [row["ssl"] for row in rows] == [True]
        assert (rows[0]["ssl_protocol"], rows[0]["auth_mechanism"]) == ("TLSv1.3", "PLAIN")
        assert rows[0]["ssl_cipher"].startswith("TLS_")


def test_amqp_091_inside_tls(broker: BrokerProcess, authority: Authority) -> None:
    options = pika.SSLOptions(context_of(authority), "localhost")
    parameters = pika.ConnectionParameters(
        "127.0.0.1", broker.ready["amqps"][1], ssl_options=options,
        credentials=pika.PlainCredentials("alice", "secret"),
    )  # fmt: skip
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("tls", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "tls", bytes(300_000))
    _, _, body = channel.basic_get("tls", auto_ack=True)
    assert body == bytes(300_000)
    connection.close()


def test_external_is_the_certificates_common_name(
    broker: BrokerProcess, authority: Authority
) -> None:
    with encrypted(broker, context_of(authority, authority.sign("alice"))) as client:
        assert client.mechanisms() == ("EXTERNAL", "SCRAM-SHA-256", "PLAIN", "ANONYMOUS")
        assert client.authenticate("EXTERNAL", b"") == 0
        client.open()
        _, rows = broker.http("GET", "/api/connections", user="root:secret")
        assert [row["user"] for row in rows] == ["alice"]
    with encrypted(broker, context_of(authority, authority.sign("stranger"))) as client:
        client.mechanisms()
        assert client.authenticate("EXTERNAL", b"") == 1, "no user of that name"


def test_external_over_amqp_091(broker: BrokerProcess, authority: Authority) -> None:
    options = pika.SSLOptions(context_of(authority, authority.sign("alice")), "localhost")
    parameters = pika.ConnectionParameters(
        "127.0.0.1", broker.ready["amqps"][1], ssl_options=options,
        credentials=pika.credentials.ExternalCredentials(),
    )  # fmt: skip
    connection = pika.BlockingConnection(parameters)
    _, rows = broker.http("GET", "/api/connections", user="root:secret")
    assert [row["user"] for row in rows] == ["alice"]
    connection.close()


def test_a_certificate_of_somebody_elses_is_not_taken(
    broker: BrokerProcess, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path).sign("alice")
    heard: Event | None = None
    with (
        contextlib.suppress(ssl.SSLError, ConnectionError),
        encrypted(broker, context_of(authority, stranger)) as client,
    ):
        client.wire.start(True)
        heard = client.exchange()
    assert heard is None
    assert "server.unexpected" not in broker.log()


def test_listeners_are_listed(broker: BrokerProcess) -> None:
    _, overview = broker.http("GET", "/api/overview", user="root:secret")
    ports = {row["protocol"]: row["port"] for row in overview["listeners"]}
    assert ports["amqp"] == broker.amqp_port
    assert ports["amqp/ssl"] == broker.ready["amqps"][1]


def test_a_certificate_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(BrokerDied, match=r"amqps_cert .*bad\.pem"):
        BrokerProcess(
            tmp_path / "data", amqps_port="0", amqps_cert=str(tmp_path / "bad.pem")
        ).start()


def test_without_a_certificate_there_is_no_listener(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert "amqps" not in broker.ready
