"""Who shows no certificate, or a stranger's, gets nowhere: every protocol that speaks TLS.

In TLS 1.3 a client's handshake is through before the server has looked at its certificate, so each
face goes on until it has an answer from inside.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pika
import pytest
from pika.credentials import ExternalCredentials
from pika.exceptions import AMQPError

from tallymark.client import connect
from tallymark.client.errors import ClientError
from tallymark.wire.nsq import commands
from tests.server.lines import Door
from tests.server.management import FULL, done
from tests.support.certificates import Authority, Certificate
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess


class Refused(Exception):
    pass


@dataclass(frozen=True)
class World:
    """A broker, and two authorities; its file names one of them."""

    broker: BrokerProcess
    ours: Authority
    theirs: Authority
    our_ann: Certificate
    their_ann: Certificate
    named: Path

    def trust(self, authority: Authority) -> None:
        self.named.write_bytes(authority.own.cert.read_bytes())
        assert self.broker.http("POST", "/api/tallymark/config/reload")[0] == 200

    def context(self, shown: Certificate | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(self.ours.own.cert))
        if shown is not None:
            made.load_cert_chain(shown.cert, shown.key)
        return made


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("mutual")
    authorities = []
    for name in ("ours", "theirs"):
        (folder / name).mkdir()
        authorities.append(Authority(folder / name))
    ours, theirs = authorities
    server, named = ours.sign("localhost"), folder / "named.pem"
    named.write_bytes(ours.own.cert.read_bytes())
    flags = {
        "amqps_port": "0", "amqps_verify": "require", "amqps_ca_file": str(named),
        "https_port": "0", "https_verify": "require", "https_ca_file": str(named),
        "nsq_tls_client_auth_policy": "require-verify", "nsq_tls_root_ca_file": str(named),
    }  # fmt: skip
    for name in ("amqps", "https", "nsq_tls"):
        flags |= {f"{name}_cert": str(server.cert), f"{name}_key": str(server.key)}
    with BrokerProcess(folder / "data", **flags) as broker:
        done(broker, "PUT", "users/ann", {"password": "ann", "tags": "management"})
        done(broker, "PUT", "permissions/%2F/ann", FULL)
        yield World(broker, ours, theirs, ours.sign("ann"), theirs.sign("ann"), named)


# -- faces: each is served as ann, or raises Refused

BROKEN = (OSError, AMQPError, ClientError)
"""ssl.SSLError is an OSError."""


def amqp_091(broker: BrokerProcess, context: ssl.SSLContext) -> None:
    parameters = pika.ConnectionParameters(
        "127.0.0.1", broker.ready["amqps"][1], credentials=ExternalCredentials(),
        ssl_options=pika.SSLOptions(context, "127.0.0.1"), socket_timeout=PATIENCE_S,
    )  # fmt: skip
    try:
        with pika.BlockingConnection(parameters) as connection:
            connection.channel().queue_declare("q", durable=True)
    except BROKEN as error:
        raise Refused from error


def amqp_10(broker: BrokerProcess, context: ssl.SSLContext) -> None:
    async def open_one() -> None:
        url = f"amqps://127.0.0.1:{broker.ready['amqps'][1]}"
        async with connect(url, ssl=context, sasl="EXTERNAL", reconnect=None):
            pass

    try:
        asyncio.run(open_one())
    except BROKEN as error:
        raise Refused from error


def nsq(broker: BrokerProcess, context: ssl.SSLContext) -> None:
    raw = NSQ.connect(broker)
    asked = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
    raw.sendall(b"  V2IDENTIFY\n" + struct.pack(">I", len(asked)) + asked)
    left = struct.unpack(">I", raw.recv(4))[0]
    while left:
        left -= len(raw.recv(left))
    try:
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as inside:
            inside.sendall(commands.auth(b"ann:ann") + commands.pub("t", b"x"))
            seen = b""
            while not seen.endswith(b"\0\0\0\x06\0\0\0\0OK"):
                if not (data := inside.recv(65536)):
                    raise ConnectionError(f"hung up after {seen!r}")
                seen += data
    except BROKEN as error:
        raise Refused from error


NSQ = Door("nsq", lambda broker: broker.nsq_port, lambda raw: None)


def over_http(name: str, path: bytes) -> Callable[[BrokerProcess, ssl.SSLContext], None]:
    def ask(broker: BrokerProcess, context: ssl.SSLContext) -> None:
        raw = Door(name, lambda broker: broker.ready[name][1], lambda raw: None).connect(broker)
        ann = base64.b64encode(b"ann:ann")
        try:
            with context.wrap_socket(raw, server_hostname="127.0.0.1") as inside:
                inside.sendall(
                    b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic %s\r\n\r\n"
                    % (path, ann)
                )
                if not (answer := inside.recv(65536)):
                    raise ConnectionError("hung up")
        except BROKEN as error:
            raise Refused from error
        assert answer.startswith(b"HTTP/1.1 200"), answer

    ask.__name__ = name
    return ask


def command(broker: BrokerProcess, *more: str) -> subprocess.CompletedProcess[str]:
    url = f"https://127.0.0.1:{broker.ready['https'][1]}"
    words = [sys.executable, "-m", "tallymark", "queues", "--url", url, "--user", "ann:ann", *more]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)


FACES = pytest.mark.parametrize(
    "face",
    [amqp_091, amqp_10, nsq, over_http("https", b"/api/overview"),
     over_http("nsq_https", b"/stats")],
    ids=lambda face: face.__name__,
)  # fmt: skip
Face = Callable[[BrokerProcess, ssl.SSLContext], None]


@FACES
def test_the_right_certificate_and_no_other(world: World, face: Face) -> None:
    world.trust(world.ours)
    face(world.broker, world.context(world.our_ann))
    for shown in (None, world.their_ann):
        with pytest.raises(Refused):
            face(world.broker, world.context(shown))


@FACES
def test_who_may_sign_is_read_again(world: World, face: Face) -> None:
    """The old authority could sign until the next start: only added to was its list."""
    world.trust(world.ours)
    ours, theirs = world.context(world.our_ann), world.context(world.their_ann)
    face(world.broker, ours)
    world.trust(world.theirs)
    face(world.broker, theirs)
    with pytest.raises(Refused):
        face(world.broker, ours)
    with pytest.raises(Refused):
        face(world.broker, world.context(None))
    world.trust(world.ours)
    face(world.broker, ours)
    with pytest.raises(Refused):
        face(world.broker, theirs)


def test_commands_over_https(world: World, tmp_path: Path) -> None:
    world.trust(world.ours)
    ours = ("--ca-file", str(world.ours.own.cert))
    ann = ("--cert-file", str(world.our_ann.cert), "--key-file", str(world.our_ann.key))
    done = command(world.broker, *ours, *ann)
    assert done.returncode == 0, done.stderr
    for more, text in (
        (ann, "certificate verify failed"),  # the system's authorities did not sign the broker's
        (ours, "no broker answers"),
        (("--ca-file", str(tmp_path / "none")), f"ca_file '{tmp_path / 'none'}': [Errno 2]"),
        ((*ours, "--cert-file", str(world.our_ann.cert)), "cert_file"),
    ):
        done = command(world.broker, *more)
        assert done.returncode, done.stdout
        assert text in done.stderr
