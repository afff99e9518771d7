"""Certificates that are replaced while the broker runs, on every port that speaks TLS."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority, Certificate
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess


class Files:
    """Where the broker's certificate lies, and what is put there."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder)
        self.cert, self.key = folder / "now.pem", folder / "now.key"

    def put(self, common_name: str) -> None:
        made = self._authority.sign(common_name)
        self.write(made)

    def write(self, made: Certificate) -> None:
        self.cert.write_bytes(made.cert.read_bytes())
        self.key.write_bytes(made.key.read_bytes())

    def flags(self) -> dict[str, str]:
        pair = str(self.cert), str(self.key)
        return {
            "amqps_cert": pair[0], "amqps_key": pair[1], "amqps_port": "0",
            "https_cert": pair[0], "https_key": pair[1], "https_port": "0",
            "nsq_tls_cert": pair[0], "nsq_tls_key": pair[1],
        }  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    found = Files(tmp_path_factory.mktemp("certificates"))
    found.put("first")
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("tls") / "data", **files.flags()) as running:
        yield running


def context(
    oldest: ssl.TLSVersion | None = None, newest: ssl.TLSVersion | None = None
) -> ssl.SSLContext:
    made = ssl.create_default_context()
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    if newest is not None:
        made.set_ciphers("ALL:@SECLEVEL=0")
        made.minimum_version = oldest or newest
        made.maximum_version = newest
    return made


def plain(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def amqps(broker: BrokerProcess, tls: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    return (tls or context()).wrap_socket(plain(broker.ready["amqps"][1]))


def https(broker: BrokerProcess, tls: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    return (tls or context()).wrap_socket(plain(broker.ready["https"][1]))


def nsq_https(broker: BrokerProcess, tls: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    return (tls or context()).wrap_socket(plain(broker.ready["nsq_https"][1]))


def nsq(broker: BrokerProcess, tls: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    raw = plain(broker.nsq_port)
    asked = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
    raw.sendall(b"  V2IDENTIFY\n" + struct.pack(">I", len(asked)) + asked)
    answered = raw.recv(4)
    left = struct.unpack(">I", answered)[0]
    while left:
        left -= len(raw.recv(left))
    return (tls or context()).wrap_socket(raw)


PORTS = pytest.mark.parametrize("connect", [amqps, https, nsq_https, nsq])


def shown(connection: ssl.SSLSocket) -> bytes:
    """The common name in what the broker shows, as it is encoded."""
    certificate = connection.getpeercert(binary_form=True)
    assert certificate is not None
    (name,) = [one for one in (b"first", b"second", b"third", b"other") if one in certificate]
    return name


def reload(broker: BrokerProcess) -> tuple[int, str]:
    status, answer = broker.http("POST", "/api/tallymark/config/reload")
    return status, answer.get("reason", "")


@PORTS
def test_new_handshakes_see_the_new_certificate_and_old_connections_go_on(
    broker: BrokerProcess, files: Files, connect: Callable[..., ssl.SSLSocket]
) -> None:
    files.put("first")
    assert reload(broker)[0] == 200
    old = connect(broker)
    assert shown(old) == b"first"
    files.put("second")
    assert reload(broker)[0] == 200
    with connect(broker) as new:
        assert shown(new) == b"second"
    files.put("third")
    assert broker.is_running
    os.kill(broker.pid, signal.SIGHUP)

    def is_third() -> bool:
        with connect(broker) as newer:
            return shown(newer) == b"third"

    until(is_third, what="the certificate after SIGHUP")
    is_http = connect in (https, nsq_https)
    request = b"NOP\r\n\r\n" if is_http else b"AMQP\0\0\x09\x01" if connect is amqps else b"NOP\n"
    old.sendall(request)  # whole: half of a wrong request is answered, and the rest finds no one
    if connect is not nsq:
        assert old.recv(100), "it is answered"
    old.close()


@PORTS
def test_files_that_do_not_go_together_change_nothing(
    broker: BrokerProcess, files: Files, connect: Callable[..., ssl.SSLSocket]
) -> None:
    files.put("first")
    assert reload(broker)[0] == 200
    files.cert.write_bytes(files._authority.sign("other").cert.read_bytes())
    status, reason = reload(broker)
    assert status == 400
    assert "amqps_cert" in reason
    with connect(broker) as connection:
        assert shown(connection) == b"first"
    files.cert.write_text("nonsense")
    assert reload(broker)[0] == 400
    with connect(broker) as connection:
        assert shown(connection) == b"first"
    files.put("first")
    assert reload(broker)[0] == 200


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@PORTS
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_nothing_older_than_tls_1_2_is_spoken(
    broker: BrokerProcess, connect: Callable[..., ssl.SSLSocket], version: ssl.TLSVersion
) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(broker, context(version, version))
    with connect(broker, context(ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)) as connection:
        assert connection.version() == "TLSv1.2"
