"""Rights that are given, and taken away from who is connected: user x resource x operation x
protocol, over real sockets."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.server.faces import (
    FACES,
    NAMES,
    NEEDS,
    PASSWORD,
    RIGHTS,
    USER,
    Amqp091,
    Amqp10,
    Http,
    provide,
    put_message,
)
from tests.server.management import FULL, call, done, get
from tests.server.test_sinks_http import frames
from tests.support.issuer import EVERYTHING, Issuer
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

CELLS = [
    (face, operation, right)
    for face, operations in NEEDS.items()
    for operation in operations
    for right in RIGHTS
]
ONLY_OTHER = "^other"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("rights") / "data") as running:
        done(running, "PUT", f"users/{USER}", {"password": PASSWORD, "tags": "management"})
        provide(running)
        yield running


def permit(broker: BrokerProcess, **changed: str) -> None:
    done(broker, "PUT", f"permissions/%2F/{USER}", {**FULL, **changed})


def add_guest(folder: Path) -> None:
    """Make guest/guest a user of a data folder, an administrator."""
    command = [sys.executable, "-m", "tallymark", "user", "add", "guest", "--password", "-"]
    subprocess.run(
        [*command, "--administrator", "--data-dir", str(folder)], check=True, timeout=PATIENCE_S,
        input="guest\n", text=True,
    )  # fmt: skip


def empty(broker: BrokerProcess) -> None:
    for name in NAMES:
        for queue in (f"{name}.q", f"{name}.t:c"):
            done(broker, "DELETE", f"queues/%2F/{queue}/contents")


@pytest.mark.parametrize(("face", "operation", "right"), CELLS)
def test_a_right_that_is_taken_away_is_gone_at_once(
    broker: BrokerProcess, face: str, operation: str, right: str
) -> None:
    permit(broker)
    empty(broker)
    user = FACES[face](broker)
    try:
        assert user.do(operation, "mine")
        permit(broker, **{right: ONLY_OTHER})
        is_needed = right in NEEDS[face][operation]
        assert user.do(operation, "mine") is not is_needed
        assert user.do(operation, "other")
        permit(broker)
        assert user.do(operation, "mine"), "given back, it is there again"
    finally:
        user.close()


@pytest.mark.parametrize(("face", "operation"), sorted({cell[:2] for cell in CELLS}))
def test_without_permissions_in_the_virtual_host_nothing_is_allowed(
    broker: BrokerProcess, face: str, operation: str
) -> None:
    permit(broker)
    empty(broker)
    user = FACES[face](broker)
    try:
        assert user.do(operation, "mine")
        done(broker, "DELETE", f"permissions/%2F/{USER}")
        assert not user.do(operation, "mine")
    finally:
        user.close()
        permit(broker)


LAST_WORDS = {
    "AMQP 0-9-1": "320 CONNECTION_FORCED - broker forced connection closure with reason "
    "'user 'bob' is deleted'",
    "AMQP 1.0": "amqp:connection:forced broker forced connection closure with reason "
    "'user 'bob' is deleted'",
    "HTTP": "401 user name and password do not match",
    "NSQ": "the broker hung up",
    "NSQ over HTTP": "401 UNAUTHORIZED",
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("by", ["HTTP", "the command line"])
def test_who_is_deleted_is_gone(
    broker: BrokerProcess, face: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.server.faces.USER", "bob")
    monkeypatch.setattr("tests.server.faces.CREDENTIALS", f"bob:{PASSWORD}")
    done(broker, "PUT", "users/bob", {"password": PASSWORD, "tags": "management"})
    done(broker, "PUT", "permissions/%2F/bob", FULL)
    user = FACES[face](broker)
    try:
        operation = next(iter(NEEDS[face]))
        assert user.do(operation, "mine")
        if by == "HTTP":
            done(broker, "DELETE", "users/bob")
        else:
            command = [sys.executable, "-m", "tallymark", "user", "delete", "bob"]
            subprocess.run(
                [*command, "--data-dir", str(broker.data_dir)], check=True, timeout=PATIENCE_S
            )
        assert user.last_words() == LAST_WORDS[face]
    finally:
        user.close()


@pytest.mark.parametrize("face", FACES)
def test_who_is_deleted_is_gone_also_where_the_users_limits_cannot_be_deleted(
    broker: BrokerProcess, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of limits could not be replaced, and so every connection of bob's went on."""
    monkeypatch.setattr("tests.server.faces.USER", "bob")
    monkeypatch.setattr("tests.server.faces.CREDENTIALS", f"bob:{PASSWORD}")
    done(broker, "PUT", "users/bob", {"password": PASSWORD, "tags": "management"})
    done(broker, "PUT", "permissions/%2F/bob", FULL)
    done(broker, "PUT", "user-limits/bob/max-channels", {"value": 50})
    obstacle = broker.data_dir / f"limits.json.{broker.pid}.new"
    user = FACES[face](broker)
    obstacle.mkdir()
    try:
        assert user.do(next(iter(NEEDS[face])), "mine")
        done(broker, "DELETE", "users/bob")
        assert user.last_words() == LAST_WORDS[face]
        obstacle.rmdir()
        done(broker, "PUT", "users/bob", {"password": PASSWORD, "tags": ""})
        done(broker, "DELETE", "users/bob")
        assert get(broker, "user-limits") == []
    finally:
        user.close()
        if obstacle.exists():
            obstacle.rmdir()


# -- tokens, whose scopes another token of the same user narrows


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[BrokerProcess]:
    """A broker that takes tokens, and has guest for whatever else a test does."""
    folder = tmp_path_factory.mktemp("tokens") / "data"
    add_guest(folder)
    with BrokerProcess(folder, **issuer.flags()) as running:
        provide(running)
        yield running


@pytest.mark.parametrize(("face", "operation"), sorted({cell[:2] for cell in CELLS}))
def test_a_token_with_narrower_scopes_takes_rights_away_at_once(
    trusting: BrokerProcess,
    issuer: Issuer,
    face: str,
    operation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def carry(token: str) -> str:
        monkeypatch.setattr("tests.server.faces.PASSWORD", token)
        monkeypatch.setattr("tests.server.faces.CREDENTIALS", f"{USER}:{token}")
        return token

    empty(trusting)
    carry(issuer.token(*EVERYTHING))
    user = FACES[face](trusting)
    try:
        for right in RIGHTS:
            assert user.do(operation, "mine")
            others = [scope for scope in EVERYTHING if not scope.startswith(right)]
            user.renew(carry(issuer.token(f"{right}:%2F/other*", *others)))
            is_needed = right in NEEDS[face][operation]
            assert user.do(operation, "mine") is not is_needed, right
            assert user.do(operation, "other")
            user.renew(carry(issuer.token(*EVERYTHING)))
    finally:
        user.close()


@pytest.mark.parametrize("face", FACES)
def test_users_that_change_are_nothing_to_whoever_has_a_token(
    trusting: BrokerProcess, issuer: Issuer, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it has the name of one of them: its rights are the token's, before and after."""
    token = issuer.token("read:*/*", "write:*/mine*")
    monkeypatch.setattr("tests.server.faces.PASSWORD", token)
    monkeypatch.setattr("tests.server.faces.CREDENTIALS", f"{USER}:{token}")
    words = {"NSQ": "PUB", "NSQ over HTTP": "/pub", "AMQP 1.0": "publish without a target"}
    allowed = words.get(face, "publish")
    user = FACES[face](trusting)
    try:
        assert user.do(allowed, "mine")
        done(trusting, "PUT", f"users/{USER}", {"password": "x", "tags": "administrator"})
        done(trusting, "PUT", f"permissions/%2F/{USER}", FULL)
        assert not user.do(allowed, "other")
        done(trusting, "DELETE", f"users/{USER}")
        assert user.do(allowed, "mine")
    finally:
        user.close()


# -- what is going on


def test_a_lease_that_waits_is_asked_again_when_messages_come(broker: BrokerProcess) -> None:
    permit(broker)
    done(broker, "DELETE", "queues/%2F/mine.q/contents")
    user = Http(broker)
    one = "/api/tallymark/subscriptions/%2F/mine.q/waiting"
    _, found = user.ask("POST", f"{one}/attach", {})
    wanted = {
        "fence": found["fence"], "epoch": found["epoch"], "start": found["next"], "max_rows": 5,
        "wait_ms": 60_000,
    }  # fmt: skip
    answers: list[object] = []

    def lease() -> None:
        """Ask, and again where the rights changed before the whole request had come."""
        while (answer := user.ask("POST", f"{one}/lease", wanted))[0] == 401:
            assert "ask again" in answer[1]["reason"], answer
        answers.append(answer)

    asking = threading.Thread(target=lease)
    asking.start()
    permit(broker, read="^other")
    put_message(broker, "mine")
    asking.join(PATIENCE_S)
    text = f"access to queue 'mine.q' in vhost '/' refused for user '{USER}'"
    assert answers == [(403, {"error": "access_refused", "reason": text})]
    user.close()


def test_a_request_whose_body_is_late_has_the_rights_of_its_end(broker: BrokerProcess) -> None:
    """An administrator no longer, while the body of a change was on its way."""
    done(broker, "PUT", "users/boss", {"password": "boss", "tags": "administrator"})
    user = Http(broker)
    body = b'{"password": "x", "tags": "administrator"}'
    connection = user._connection
    connection.putrequest("PUT", "/api/users/mallory")
    connection.putheader("Authorization", "Basic Ym9zczpib3Nz")
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body[:10])
    waiting = call(
        broker, "GET", "whoami", user="boss:boss"
    )  # it has been read: what follows is later
    assert waiting[0] == 200
    done(broker, "PUT", "users/boss", {"password": "boss", "tags": ""})
    connection.send(body[10:])
    response = connection.getresponse()
    assert (response.status, response.read()) == (
        401,
        b'{"error":"not_authorized","reason":"the rights of user \'boss\' changed meanwhile: '
        b'ask again"}',
    )
    assert call(broker, "GET", "users/mallory")[0] == 404
    user.close()


@pytest.mark.parametrize("face", [Amqp091, Amqp10])
def test_a_new_password_ends_no_connection(
    broker: BrokerProcess, face: type[Amqp091] | type[Amqp10]
) -> None:
    """As with RabbitMQ: the rights are the same."""
    permit(broker)
    user = face(broker)
    done(broker, "PUT", f"users/{USER}", {"password": "new", "tags": "management"})
    try:
        assert user.do("publish", "mine")
    finally:
        done(broker, "PUT", f"users/{USER}", {"password": PASSWORD, "tags": "management"})
        user.close()


class OverHttp:
    """The management interface, and what Spark's sinks stage: the same rule, by the same code."""

    PATH = "/api/exchanges/%2F/{name}.x/publish"

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    def body(self, user_id: str) -> object:
        return {
            "properties": {"user_id": user_id}, "routing_key": "k", "payload": "m",
            "payload_encoding": "string",
        }  # fmt: skip

    def publish_as(self, user_id: str, name: str) -> bool:
        path = self.PATH.format(name=name)
        body = self.body(user_id)
        status, answer = self._broker.http("POST", path, body, f"{USER}:{PASSWORD}")
        if status == 200:
            return True
        assert status == 400, answer
        assert f"user_id property set to '{user_id}' but authenticated" in answer["reason"]
        return False

    def close(self) -> None:
        """Each request is a connection of its own."""


class OfASink(OverHttp):
    PATH = "/api/tallymark/sinks/%2F/{name}/stage?count=1"

    def body(self, user_id: str) -> object:
        return frames("mine.q", b"m", user_id=user_id)


class InATransaction(Amqp091):
    def publish_as(self, user_id: str, name: str) -> bool:
        channel = self._connection.channel()
        channel.tx_select()
        channel.basic_publish(f"{name}.x", "k", b"m", pika.BasicProperties(user_id=user_id))
        try:
            channel.tx_commit()
        except ChannelClosedByBroker as error:
            return error.reply_code != 406
        return True


@pytest.mark.parametrize("face", [Amqp091, Amqp10, OverHttp, OfASink, InATransaction])
def test_only_an_impersonator_names_another_user_in_messages(
    broker: BrokerProcess, face: type[Amqp091] | type[Amqp10] | type[OverHttp]
) -> None:
    """An administrator does not, as with RabbitMQ; the tag counts for who is connected."""
    permit(broker)
    user = face(broker)
    try:
        for tags, allowed in (("administrator", False), ("impersonator", True), ("", False)):
            done(broker, "PUT", f"users/{USER}", {"password": PASSWORD, "tags": tags})
            assert user.publish_as("carol", "mine") is allowed
            assert user.publish_as(USER, "mine")
    finally:
        done(broker, "PUT", f"users/{USER}", {"password": PASSWORD, "tags": "management"})
        user.close()
