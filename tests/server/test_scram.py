"""SCRAM-SHA-256 over both versions of AMQP, by a client that follows RFC 5802 on its own."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tallymark.server.access.scram import ScramError, ScramServer, make_keys, saslprep
from tallymark.wire.amqp091.frames import HEAD, PROTOCOL_HEADER, frame_length
from tallymark.wire.amqp091.layouts import decode_method
from tallymark.wire.amqp091.methods import (
    ConnectionClose,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    Method,
)
from tallymark.wire.amqp10.events import SaslReceived
from tallymark.wire.amqp10.sasl import SaslChallenge, SaslOutcome
from tests.server.management import FULL, call, done, get
from tests.support.amqp091 import method_frame
from tests.support.amqp10_socket import Client
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

NAME = "SCRAM-SHA-256"


class ScramClient:
    """The client's side, with nothing of ours."""

    def __init__(self, user: str, password: str, nonce: str = "rOprNGfwEbeRWgbNEkqO") -> None:
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={escaped},r={nonce}"
        self._password = password
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        salted = hashlib.pbkdf2_hmac(
            "sha256", self._password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
        )
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        without = f"c=biws,r={fields['r']}"
        message = f"{self._bare},{challenge.decode()},{without}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        self._signature = hmac.digest(server_key, message, "sha256")
        return f"{without},p={base64.b64encode(proof).decode()}".encode()

    def knows(self, last_words: bytes) -> bool:
        """The server has the keys: it is no other."""
        return last_words == b"v=" + base64.b64encode(self._signature)


# -- by itself


def test_the_example_of_rfc_7677() -> None:
    keys = make_keys("pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    server = ScramServer("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    server.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert server.name == "user"
    assert server.challenge(keys) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert server.final(final, keys) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    "first",
    [b"", b"n,,", b"n,,n=u", b"p=tls-unique,,n=u,r=1", b"n,a=root,n=u,r=1", b"n,,n=,r=1",
     b"n,,n=u,r=", b"n,,r=1,n=u", b"n,,n=u=x,r=1", b"\xff", b"n,,m=x,n=u,r=1",
     b"n,,n=u,r=" + b"1" * 600],
)  # fmt: skip
def test_what_is_no_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(ScramError):
        ScramServer("x").first(first)


@pytest.mark.parametrize(
    "final",
    [b"", b"c=biws,r=ab", b"c=biws,r=ab,p=", b"c=biws,r=ab,p=!", b"c=eSws,r=ab,p=AAAA",
     b"c=biws,r=other,p=AAAA", b"r=ab,c=biws,p=AAAA", b"c=biws,r=ab,p=AAAA", b"\xff,p=AAAA"],
)  # fmt: skip
def test_what_is_no_final_message_is_refused(final: bytes) -> None:
    keys = make_keys("pw", b"salt", 1)
    server = ScramServer("b")
    server.first(b"n,,n=u,r=a")
    server.challenge(keys)
    with pytest.raises(ScramError):
        server.final(final, keys)


def test_passwords_that_look_the_same_are() -> None:
    """[RFC 4013 §3]"""
    assert saslprep("I\u00adX") == "IX"
    assert saslprep("user") == "user"
    assert saslprep("\u00aa") == "a"
    assert saslprep("\u2168") == "IX"
    assert saslprep("a\u00a0b") == "a b"


# -- over sockets


def over_091(port: int, client: ScramClient) -> tuple[bool, bytes]:
    """Whether it got in, and the server's last words."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as raw:
        buffer = b""

        def ask(data: bytes) -> Method:
            nonlocal buffer
            raw.sendall(data)
            while len(buffer) < HEAD or len(buffer) < frame_length(buffer, 0):
                piece = raw.recv(65536)
                assert piece, "the broker hung up"
                buffer += piece
            size = frame_length(buffer, 0)
            method = decode_method(buffer[HEAD : size - 1])
            buffer = buffer[size:]
            return method

        start = ask(PROTOCOL_HEADER)
        assert isinstance(start, ConnectionStart)
        assert NAME in start.mechanisms.decode().split()
        properties: dict[str, object] = {"capabilities": {"authentication_failure_close": True}}
        secure = ask(method_frame(0, ConnectionStartOk(properties, NAME, client.first())))
        assert isinstance(secure, ConnectionSecure), secure
        secure = ask(method_frame(0, ConnectionSecureOk(client.final(secure.challenge))))
        if isinstance(secure, ConnectionClose):
            assert secure.reply_code == 403
            return False, b""
        assert isinstance(secure, ConnectionSecure)
        tune = ask(method_frame(0, ConnectionSecureOk(b"")))
        assert isinstance(tune, ConnectionTune)
        return True, secure.challenge


def over_10(port: int, client: ScramClient) -> tuple[bool, bytes]:
    with Client(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)) as peer:
        assert NAME in peer.mechanisms()
        peer.wire.sasl_init(NAME, client.first())
        event = peer.exchange()
        assert isinstance(event, SaslReceived)
        assert isinstance(event.frame, SaslChallenge)
        peer.wire.sasl_response(client.final(event.frame.challenge))
        event = peer.exchange()
        assert isinstance(event, SaslReceived)
        assert isinstance(event.frame, SaslOutcome)
        if event.frame.code:
            return False, b""
        assert peer.open().container_id
        return True, event.frame.additional_data or b""


Login = Callable[[int, ScramClient], tuple[bool, bytes]]
BOTH = pytest.mark.parametrize("login", [over_091, over_10])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("scram")) / "data") as running:
        done(running, "PUT", "users/a=b,c", {"password": "over http", "tags": ""})
        done(running, "PUT", "permissions/%2F/a=b,c", FULL)
        command = [sys.executable, "-m", "tallymark", "user", "add", "ann", "--password", "by hand"]
        subprocess.run(
            [*command, "--data-dir", str(running.data_dir)], check=True, timeout=PATIENCE_S
        )
        yield running


@BOTH
@pytest.mark.parametrize(
    ("user", "password"), [("ann", "by hand"), ("a=b,c", "over http"), ("guest", "guest")]
)
def test_both_sides_prove_that_they_know(
    broker: BrokerProcess, login: Login, user: str, password: str
) -> None:
    client = ScramClient(user, password)
    is_in, last_words = login(broker.amqp_port, client)
    assert is_in
    assert client.knows(last_words)


@BOTH
@pytest.mark.parametrize(
    ("user", "password"), [("ann", "wrong"), ("ann", ""), ("nobody", "x"), ("guest", "by hand")]
)
def test_who_does_not_know_is_refused(
    broker: BrokerProcess, login: Login, user: str, password: str
) -> None:
    assert login(broker.amqp_port, ScramClient(user, password)) == (False, b"")


def test_who_there_is_is_not_told(broker: BrokerProcess) -> None:
    """A name that nobody has is given a salt too, and always the same one."""

    def challenge(user: str) -> list[str]:
        with Client(
            socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=PATIENCE_S)
        ) as peer:
            peer.mechanisms()
            peer.wire.sasl_init(NAME, ScramClient(user, "").first())
            event = peer.exchange()
            assert isinstance(event, SaslReceived)
            assert isinstance(event.frame, SaslChallenge)
            return event.frame.challenge.decode().split(",")[1:]

    assert challenge("nobody") == challenge("nobody") != challenge("somebody")
    assert challenge("nobody")[1] == challenge("ann")[1]
    assert len(challenge("nobody")[0]) == len(challenge("ann")[0])


@BOTH
def test_guest_without_users(tmp_path: Path, login: Login) -> None:
    with BrokerProcess(tmp_path / "data") as fresh:
        assert login(fresh.amqp_port, ScramClient("guest", "guest"))[0]
        assert not login(fresh.amqp_port, ScramClient("guest", "other"))[0]


def offered(port: int) -> tuple[str, ...]:
    with Client(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)) as peer:
        return peer.mechanisms()


def test_it_is_offered_while_everybody_could_use_it(tmp_path: Path) -> None:
    """A client takes the strongest: one with a hash from RabbitMQ could not get in any more."""
    with BrokerProcess(tmp_path / "data") as broker:
        assert offered(broker.amqp_port) == (NAME, "PLAIN")
        done(broker, "PUT", "users/cert", {"tags": ""})  # no password: it comes with a certificate
        assert offered(broker.amqp_port) == (NAME, "PLAIN")
        hashed = base64.b64encode(b"salt" + hashlib.sha256(b"saltpw").digest()).decode()
        done(broker, "PUT", "users/old", {"password_hash": hashed, "tags": ""})
        assert offered(broker.amqp_port) == ("PLAIN",)
        done(broker, "PUT", "users/old", {"password": "pw", "tags": ""})
        assert offered(broker.amqp_port) == (NAME, "PLAIN")


@BOTH
def test_definitions_with_the_same_passwords_keep_the_keys(tmp_path: Path, login: Login) -> None:
    """The keys are in no export: who takes one in again has not given anybody another password."""
    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "users/ann", {"password": "right", "tags": ""})
        done(broker, "PUT", "permissions/%2F/ann", FULL)
        exported = get(broker, "definitions")
        done(broker, "POST", "definitions", exported)
        assert offered(broker.amqp_port) == (NAME, "PLAIN")
        assert login(broker.amqp_port, ScramClient("ann", "right"))[0]
        (ann,) = [user for user in exported["users"] if user["name"] == "ann"]
        done(broker, "PUT", "users/ann", {**ann, "tags": "monitoring"})
        assert login(broker.amqp_port, ScramClient("ann", "right"))[0]
        done(broker, "PUT", "users/ann", {"password": "another", "tags": ""})
        done(broker, "POST", "definitions", exported)
        assert offered(broker.amqp_port) == ("PLAIN",)


@BOTH
def test_the_only_mechanism(tmp_path: Path, login: Login) -> None:
    with BrokerProcess(tmp_path / "data", sasl_mechanisms=NAME) as broker:
        assert offered(broker.amqp_port) == (NAME,)
        assert login(broker.amqp_port, ScramClient("guest", "guest"))[0]
        with Client(socket.create_connection(("127.0.0.1", broker.amqp_port))) as peer:
            peer.mechanisms()
            assert peer.authenticate("PLAIN", b"\0guest\0guest") == 1
        with socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=PATIENCE_S) as raw:
            plain = ConnectionStartOk({}, "PLAIN", b"\0guest\0guest")
            raw.sendall(PROTOCOL_HEADER + method_frame(0, plain))
            said = b""
            while piece := raw.recv(65536):
                said += piece
            assert len(said) == frame_length(said, 0), "start, and the end"


def test_what_is_stored_is_not_the_password(broker: BrokerProcess) -> None:
    users = json.loads((broker.data_dir / "users.json").read_text())
    (ann,) = [user for user in users if user["name"] == "ann"]
    assert sorted(ann["scram"]) == ["iterations", "salt", "server_key", "stored_key"]
    assert ann["scram"]["iterations"] == 100_000
    assert ann["scram"]["salt"] != ann["salt"]
    assert "by hand" not in (broker.data_dir / "users.json").read_text()
    assert call(broker, "GET", "users/ann")[2].get("scram") is None


@BOTH
def test_guesses_by_scram_are_slowed_as_passwords_are(tmp_path: Path, login: Login) -> None:
    """The failures of an address and user count together, and others do not wait for them."""
    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "users/ann", {"password": "right", "tags": ""})
        done(broker, "PUT", "permissions/%2F/ann", FULL)
        for _ in range(5):
            assert not login(broker.amqp_port, ScramClient("ann", "wrong"))[0]
        began = time.monotonic()
        assert not login(broker.amqp_port, ScramClient("ann", "wrong"))[0]
        assert login(broker.amqp_port, ScramClient("ann", "right"))[0]
        assert time.monotonic() - began > 1.5, "it waits for 1.6 s after six failures"
        assert login(broker.amqp_port, ScramClient("guest", "guest"))[0]
