"""Tokens of OAuth 2 at every door: real clients over sockets, and an issuer on 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
)

from tallymark.wire.amqp10.sasl import plain_response
from tallymark.wire.nsq import commands
from tallymark.wire.nsq.frames import RESPONSE
from tests.server import faces
from tests.server.clocked import Clocked
from tests.server.faces import FACES, Amqp10
from tests.server.management import call
from tests.server.nsqd import Client as NsqClient
from tests.server.nsqd import call as nsqd_call
from tests.support.amqp10_socket import Client
from tests.support.issuer import EVERYTHING, Issuer, claims, rsa_key, signed
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerDied, BrokerProcess

ADMIN = (*EVERYTHING, "tag:administrator")


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[BrokerProcess]:
    """No users: whoever has no token is nobody."""
    folder = tmp_path_factory.mktemp("oauth") / "data"
    with BrokerProcess(folder, log_format="json", **issuer.flags()) as running:
        make_queues(running, issuer.token(*ADMIN))
        yield running


def make_queues(broker: BrokerProcess, token: str) -> None:
    with connected(broker, token) as connection:
        channel = connection.channel()
        for name in ("mine", "other"):
            channel.queue_declare(name, durable=True)
        channel.exchange_declare("logs", "topic", durable=True)
        channel.queue_bind("mine", "logs", "#")


def connected(broker: BrokerProcess, token: str, name: str = "any") -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            port=broker.amqp_port, credentials=pika.PlainCredentials(name, token)
        )
    )


# -- logging in, by each face


def over_091(broker: BrokerProcess, token: str) -> bool:
    try:
        connected(broker, token).close()
    except AMQPError:
        return False
    return True


def over_10(broker: BrokerProcess, token: str) -> bool:
    address = ("127.0.0.1", broker.amqp_port)
    with Client(socket.create_connection(address, timeout=PATIENCE_S)) as peer:
        assert "SCRAM-SHA-256" not in peer.mechanisms()
        return peer.authenticate("PLAIN", plain_response("any", token)) == 0


def over_basic(broker: BrokerProcess, token: str) -> bool:
    return call(broker, "GET", "whoami", user=f"any:{token}")[0] == 200


def over_bearer(broker: BrokerProcess, token: str) -> bool:
    return call(broker, "GET", "whoami", Authorization=f"Bearer {token}")[0] == 200


def over_nsq(broker: BrokerProcess, token: str) -> bool:
    with NsqClient(broker.nsq_port) as client:
        client.send(commands.auth(token.encode()))
        kind, data = client.next()
        assert kind == RESPONSE or data == b"E_UNAUTHORIZED AUTH no authorizations found"
        return kind == RESPONSE


def over_nsq_http(broker: BrokerProcess, token: str) -> bool:
    base = f"http://127.0.0.1:{broker.nsq_http_port}"
    return nsqd_call(base, "GET", "/stats", Authorization=f"Bearer {token}")[0] == 200


DOORS: dict[str, Callable[[BrokerProcess, str], bool]] = {
    "AMQP 0-9-1": over_091,
    "AMQP 1.0": over_10,
    "HTTP, Basic": over_basic,
    "HTTP, Bearer": over_bearer,
    "NSQ": over_nsq,
    "NSQ over HTTP": over_nsq_http,
}


def tampered(token: str) -> str:
    head, body, signature = token.split(".")
    middle = len(body) // 2
    other = "A" if body[middle] != "A" else "B"
    return f"{head}.{body[:middle]}{other}{body[middle + 1 :]}.{signature}"


BAD: dict[str, Callable[[Issuer], str]] = {
    "expired": lambda issuer: issuer.token(*ADMIN, expires_s=-1),
    "not yet": lambda issuer: issuer.token(*ADMIN, nbf=4_000_000_000),
    "another audience": lambda issuer: issuer.token(*ADMIN, aud="other"),
    "another issuer": lambda issuer: issuer.token(*ADMIN, iss="https://evil"),
    "no end": lambda issuer: issuer.token(*ADMIN, exp=None),
    "tampered": lambda issuer: tampered(issuer.token(*ADMIN)),
    "unsigned": lambda issuer: "eyJhbGciOiJub25lIn0." + issuer.token(*ADMIN).split(".")[1] + ".",
    "another key": lambda issuer: signed(
        claims(*ADMIN, iss=issuer.url), rsa_key("mallory"), header={"kid": issuer.key.kid}
    ),
    "no token": lambda issuer: "guest",
}


@pytest.mark.parametrize("door", DOORS)
def test_a_token_opens_the_door(broker: BrokerProcess, issuer: Issuer, door: str) -> None:
    assert DOORS[door](broker, issuer.token("read:*/*"))


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("door", DOORS)
def test_a_bad_token_does_not(broker: BrokerProcess, issuer: Issuer, door: str, kind: str) -> None:
    assert not DOORS[door](broker, BAD[kind](issuer))


@pytest.mark.parametrize("door", ["AMQP 0-9-1", "HTTP, Basic"])
def test_there_is_no_guest_where_tokens_are_taken(broker: BrokerProcess, door: str) -> None:
    assert call(broker, "GET", "whoami", user="guest:guest")[0] == 401
    with pytest.raises(AMQPError):
        connected(broker, "guest", "guest")


def test_the_tokens_name_counts_and_not_the_one_beside_it(
    broker: BrokerProcess, issuer: Issuer
) -> None:
    token = issuer.token("read:*/*", "tag:monitoring", sub="shop")
    status, _, found = call(broker, "GET", "whoami", user=f"guest:{token}")
    assert (status, found["name"], found["tags"]) == (200, "shop", ["monitoring"])


def test_an_administrator_by_token_leaves_no_guest_behind(
    broker: BrokerProcess, issuer: Issuer
) -> None:
    admin = f"Bearer {issuer.token(*ADMIN)}"
    body = {"password": "p", "tags": ""}
    assert call(broker, "PUT", "users/bob", body, Authorization=admin)[0] == 201
    users = call(broker, "GET", "users", Authorization=admin)[2]
    assert [user["name"] for user in users] == ["bob"]
    assert call(broker, "GET", "whoami", user="bob:p")[0] == 200, "passwords beside tokens"
    assert call(broker, "PUT", "vhosts/new", Authorization=admin)[0] == 201
    (bob,) = call(broker, "GET", "users", Authorization=admin)[2]
    assert bob["name"] == "bob"


def test_a_refused_token_is_told_of_without_its_text(broker: BrokerProcess, issuer: Issuer) -> None:
    token = issuer.token("read:*/*", aud="elsewhere")
    assert not over_091(broker, token)
    assert not over_nsq(broker, f"{token}")
    with pytest.raises(AMQPError):
        connected(broker, "", token)  # as the name
    lines = [json.loads(line) for line in broker.log().splitlines() if line.startswith("{")]
    told = [line for line in lines if line["event"] == "token.refused"]
    assert told[-1]["category"] == "audit"
    assert told[-1]["reason"] == "aud is 'elsewhere', expected 'tallymark' in it"
    assert [line["user"] for line in lines if line["event"] == "login.refused"][-1] == "(a token)"
    for part in token.split("."):
        assert part not in broker.log()


# -- rights


def test_rights_are_the_scopes_each_in_its_place(broker: BrokerProcess, issuer: Issuer) -> None:
    token = issuer.token("read:%2F/mine", "write:%2F/amq.default")
    with connected(broker, token) as connection:
        channel = connection.channel()
        channel.basic_publish("", "mine", b"m")
        method, _, body = channel.basic_get("mine", auto_ack=True)
        assert (method is not None, body) == (True, b"m")
        with pytest.raises(ChannelClosedByBroker) as refused:
            channel.basic_get("other")
        assert refused.value.reply_code == 403
    with pytest.raises(ProbableAccessDeniedError, match="access to vhost '/' refused for user"):
        connected(broker, issuer.token("read:elsewhere/*"))


def publishes_091(broker: BrokerProcess, token: str, key: str, **properties: object) -> bool:
    with connected(broker, token) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            channel.basic_publish("logs", key, b"m", pika.BasicProperties(**properties))
        except ChannelClosedByBroker as error:
            refused = error
        else:
            return True
        assert refused.reply_code == 403
        assert "access to topic 'db' in exchange 'logs'" in refused.reply_text
        return False


def test_routing_keys_are_limited_by_scopes(broker: BrokerProcess, issuer: Issuer) -> None:
    token = issuer.token("write:%2F/logs/app.*", "read:%2F/logs/app.*", "write:%2F/mine")
    assert publishes_091(broker, token, "app.web")
    assert not publishes_091(broker, token, "db")
    assert publishes_091(broker, token, "app.web", headers={"CC": ["app.too"]})
    assert not publishes_091(broker, token, "app.web", headers={"CC": ["db"]})
    with connected(broker, token) as connection:
        connection.channel().queue_bind("mine", "logs", "app.#")
        with pytest.raises(ChannelClosedByBroker, match="403"):
            connection.channel().queue_bind("mine", "logs", "#")
    bearer = f"Bearer {token}"
    for key, status in (("app.web", 200), ("db", 401)):
        message = {"routing_key": key, "properties": {}, "payload": "m"}
        body = {**message, "payload_encoding": "string"}
        asked = call(broker, "POST", "exchanges/%2F/logs/publish", body, Authorization=bearer)
        assert asked[0] == status, asked


def test_routing_keys_are_limited_over_amqp_10(
    broker: BrokerProcess, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallymark.wire.amqp10.sections import Properties, encode_message

    monkeypatch.setattr(faces, "PASSWORD", issuer.token("write:%2F/logs/app.*"))
    peer = Amqp10(broker)
    for key, allowed in (("app.web", True), ("db", False), ("app.x", True)):
        message = encode_message(properties=Properties(to=f"/exchanges/logs/{key}"), body=b"m")
        assert peer._publish(None, message) is allowed
    cc = {"x-cc": ["db"]}
    for more, allowed in ((cc, False), ({"x-cc": ["app.more"]}, True)):
        message = encode_message(
            message_annotations=more,
            properties=Properties(to="/exchanges/logs/app.web"),
            body=b"m",
        )
        assert peer._publish(None, message) is allowed
    bind = {"source": "logs", "destination_queue": "mine", "binding_key": "#", "arguments": {}}
    assert peer._request("POST", "/bindings", bind) == "403"
    peer.close()


# -- the end of a token, and another one in its place

SOON_S = 600
"""When a token expires: after all that a test does with it, until it moves the clock."""
LAST_WORDS = {
    "AMQP 0-9-1": "320 CONNECTION_FORCED - broker forced connection closure with reason "
    "'credential expired'",
    "AMQP 1.0": "amqp:unauthorized-access credential expired",
    "NSQ": "the broker hung up",
}
FIRST = {"AMQP 0-9-1": "purge", "AMQP 1.0": "purge", "NSQ": "PUB"}


@pytest.fixture
def carried(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    def carry(token: str) -> str:
        monkeypatch.setattr(faces, "PASSWORD", token)
        monkeypatch.setattr(faces, "CREDENTIALS", f"ann:{token}")
        return token

    return carry


@pytest.fixture
def timely(tmp_path: Path, issuer: Issuer) -> Iterator[Clocked]:
    """A broker whose clock the test moves."""
    with Clocked(tmp_path / "data", log_format="json", **issuer.flags()) as running:
        make_queues(running, issuer.token(*ADMIN))
        yield running


@pytest.mark.parametrize("face", LAST_WORDS)
def test_a_connection_ends_with_its_token_and_goes_on_with_another(
    timely: Clocked, issuer: Issuer, face: str, carried: Callable[[str], str]
) -> None:
    """Two connections with a token that ends soon; one gets another token, and is there when the
    other one is closed."""
    with connected(timely, issuer.token(*ADMIN)) as connection:
        connection.channel().queue_declare("mine.q", durable=True)
    carried(issuer.token(*EVERYTHING, expires_s=SOON_S))
    kept, left = FACES[face](timely), FACES[face](timely)
    try:
        assert kept.do(FIRST[face], "mine")
        assert left.do(FIRST[face], "mine")
        kept.renew(carried(issuer.token(*EVERYTHING, expires_s=2 * SOON_S)))
        timely.move(SOON_S)
        assert left.last_words() == LAST_WORDS[face]
        assert kept.do(FIRST[face], "mine")
        assert "connection.token_expired" in timely.log()
    finally:
        kept.close()
        left.close()


def test_a_request_after_the_end_of_its_token_is_refused(timely: Clocked, issuer: Issuer) -> None:
    token = issuer.token(*EVERYTHING, expires_s=SOON_S)
    ways = (over_bearer, over_nsq_http, over_basic)
    assert all(way(timely, token) for way in ways)
    timely.move(SOON_S)
    assert not any(way(timely, token) for way in ways)


@pytest.mark.parametrize("kind", [*BAD, "another user"])
def test_update_secret_with_a_bad_token_ends_the_connection(
    broker: BrokerProcess, issuer: Issuer, kind: str
) -> None:
    bad = issuer.token(*ADMIN, sub="bob") if kind == "another user" else BAD[kind](issuer)
    connection = connected(broker, issuer.token(*EVERYTHING))
    with pytest.raises(ConnectionClosedByBroker) as closed:
        connection.update_secret(bad, "renewed")
    assert (closed.value.reply_code, closed.value.reply_text) == (
        530, "NOT_ALLOWED - the new secret was refused",
    )  # fmt: skip


def test_update_secret_of_a_password_changes_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as plain, connected(plain, "guest", "guest") as one:
        one.update_secret("other", "rotated")
        one.channel().queue_declare("q", exclusive=True)


@pytest.mark.parametrize("kind", [*BAD, "another user"])
def test_a_bad_token_over_amqp_10_is_refused_and_the_earlier_one_goes_on(
    broker: BrokerProcess, issuer: Issuer, kind: str, carried: Callable[[str], str]
) -> None:
    bad = issuer.token(*ADMIN, sub="bob") if kind == "another user" else BAD[kind](issuer)
    carried(issuer.token(*EVERYTHING))
    peer = Amqp10(broker)
    assert peer._request("PUT", "/auth/tokens", bad.encode()) == "400"
    assert peer._request("PUT", "/auth/tokens", "a text") == "400"
    assert peer._request("PUT", "/queues/more", {}) in ("200", "201")
    peer.close()


@pytest.mark.parametrize("kind", [*BAD, "another user"])
def test_a_bad_token_over_nsq_ends_the_connection(
    broker: BrokerProcess, issuer: Issuer, kind: str
) -> None:
    bad = issuer.token(*ADMIN, sub="bob") if kind == "another user" else BAD[kind](issuer)
    with NsqClient(broker.nsq_port) as client:
        client.send(commands.auth(issuer.token(*EVERYTHING).encode()))
        assert client.next()[0] == RESPONSE
        assert client.error(commands.auth(bad.encode())) == (
            "E_UNAUTHORIZED AUTH no authorizations found"
        )


def test_a_subscriber_renews_between_its_messages(broker: BrokerProcess, issuer: Issuer) -> None:
    with NsqClient(broker.nsq_port) as client:
        client.send(commands.auth(issuer.token(*EVERYTHING).encode()))
        assert json.loads(client.next()[1])["identity"] == "ann"
        client.ok(commands.sub("renewed", "c"))
        client.send(commands.rdy(1))
        client.send(commands.auth(issuer.token(*EVERYTHING).encode()))
        assert json.loads(client.next()[1])["permission_count"] == 1
        client.ok(commands.pub("renewed", b"m"))
        number, _, body = client.message()
        assert body == b"m"
        client.send(commands.fin(number))
        client.send(b"CLS\n")
        assert client.next()[1] == b"CLOSE_WAIT"


def test_auth_again_with_a_password_is_refused_as_by_nsqd(tmp_path: Path) -> None:
    from tests.server.test_revoked_rights import add_guest

    add_guest(tmp_path / "data")
    with BrokerProcess(tmp_path / "data") as plain, NsqClient(plain.nsq_port) as client:
        client.send(commands.auth(b"guest:guest"))
        assert client.next()[0] == RESPONSE
        assert client.error(commands.auth(b"guest:guest")) == "E_INVALID AUTH already set"


# -- keys, and starts


def test_another_key_of_the_issuer_is_fetched_when_a_token_names_it(tmp_path: Path) -> None:
    with Issuer() as issuer, BrokerProcess(tmp_path / "data", **issuer.flags()) as broker:
        until(lambda: over_bearer(broker, issuer.token("read:*/*")))
        issuer.rotate()
        until(lambda: over_091(broker, issuer.token("read:*/*")))
        issuer.is_away = True
        assert over_10(broker, issuer.token("read:*/*")), "keys that are known go on"


def test_a_broker_starts_without_its_issuer(tmp_path: Path) -> None:
    with Issuer() as issuer:
        issuer.is_away = True
        with BrokerProcess(tmp_path / "data", **issuer.flags()) as broker:
            assert not over_bearer(broker, issuer.token("read:*/*"))
            assert "oauth.keys_unavailable" in broker.log()
            issuer.is_away = False
            until(lambda: over_bearer(broker, issuer.token("read:*/*")))


def test_a_key_set_in_a_file_is_read_again(tmp_path: Path) -> None:
    issuer = Issuer()
    path = tmp_path / "keys.json"
    path.write_bytes(issuer.key_set())
    flags = {"auth_oauth2_resource_server_id": "tallymark", "auth_oauth2_jwks_file": str(path)}
    with BrokerProcess(tmp_path / "data", **flags) as broker:
        first = issuer.token("read:*/*")
        assert over_091(broker, first)
        issuer.rotate()
        path.write_bytes(issuer.key_set())
        assert over_091(broker, issuer.token("read:*/*"))
        assert not over_091(broker, first)


def test_without_the_library_a_start_says_what_to_install(tmp_path: Path, issuer: Issuer) -> None:
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "joserfc.py").write_text("raise ImportError('not installed')\n")
    path = os.pathsep.join([str(stub), os.environ.get("PYTHONPATH", "")])
    broker = BrokerProcess(tmp_path / "data", env={"PYTHONPATH": path}, **issuer.flags())
    with pytest.raises(BrokerDied, match=r"exit code 2: .*pip install 'tallymark\[oauth\]'"):
        broker.start()
    assert not (tmp_path / "data").exists()


def test_a_token_that_cannot_be_checked_is_refused_at_every_door(tmp_path: Path) -> None:
    """As after an upgrade of the library below a running broker."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['joserfc.jws'] = None\n")
    keys = tmp_path / "keys.json"
    issuer = Issuer()
    keys.write_bytes(issuer.key_set())
    flags = {"auth_oauth2_resource_server_id": "tallymark", "auth_oauth2_jwks_file": str(keys)}
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with BrokerProcess(tmp_path / "data", env=env, **flags) as broker:
        token = issuer.token(*ADMIN)
        for name, door in DOORS.items():
            if name != "NSQ":
                assert not door(broker, token), name
        with NsqClient(broker.nsq_port) as client:
            assert client.error(commands.auth(token.encode())).startswith("E_AUTH_FAILED")
        assert "users.not_loaded" in broker.log()
        assert "connection.broken" not in broker.log()
        assert broker.http("GET", "/healthz", user=None)[0] == 200


def test_a_start_with_a_bad_key_set_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"keys": []}')
    flags = {"auth_oauth2_resource_server_id": "x", "auth_oauth2_jwks_file": str(path)}
    with pytest.raises(BrokerDied, match=r"exit code 2: .*a key set without a key"):
        BrokerProcess(tmp_path / "data", **flags).start()


# -- clients of others


def test_qpid_proton_logs_in_with_a_token(broker: BrokerProcess, issuer: Issuer) -> None:
    pytest.importorskip("proton")
    from proton import Message
    from proton.utils import BlockingConnection

    token = issuer.token(*EVERYTHING)
    with contextlib.closing(
        BlockingConnection(
            f"amqp://127.0.0.1:{broker.amqp_port}", user="any", password=token,
            allowed_mechs="PLAIN", timeout=PATIENCE_S,
        )
    ) as connection:  # fmt: skip
        connection.create_sender("/queues/other").send(Message(body="m"))
        receiver = connection.create_receiver("/queues/other")
        assert receiver.receive(timeout=PATIENCE_S).body == "m"
        receiver.accept()
