"""Limits per user and virtual host, as RabbitMQ's, on every protocol and over HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from tallymark.wire.amqp10.events import CloseReceived, SessionEnded
from tallymark.wire.nsq import commands
from tallymark.wire.nsq.frames import RESPONSE
from tests.server.faces import nsq_http
from tests.server.lines import until_closed
from tests.server.management import FULL, call, connect, done, get, refused
from tests.server.nsqd import Client as NsqClient
from tests.support.amqp10_socket import Client
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("quotas")) / "data") as running:
        for name in ("ann", "bob"):
            done(running, "PUT", f"users/{name}", {"password": name, "tags": ""})
            done(running, "PUT", f"permissions/%2F/{name}", FULL)
        yield running


@pytest.fixture(autouse=True)
def _without_limits(broker: BrokerProcess) -> Iterator[None]:
    yield
    for path in ("user-limits/ann/max-connections", "user-limits/ann/max-channels",
                 "vhost-limits/%2F/max-connections", "vhost-limits/%2F/max-queues"):  # fmt: skip
        done(broker, "DELETE", path)
    until(lambda: get(broker, "connections") == [], what="all connections gone")


# -- connections: each opens one as ann and keeps it; refused, it raises what it was told


class Refused(Exception):
    pass


def over_091(broker: BrokerProcess, stack: ExitStack) -> None:
    try:
        stack.callback(connect(broker, "ann").close)
    except AMQPError as error:
        raise Refused(str(error)) from None


def over_10(broker: BrokerProcess, stack: ExitStack) -> None:
    raw = stack.enter_context(
        closing(socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=PATIENCE_S))
    )
    peer = Client(raw).login("ann", "ann")
    try:
        session = peer.wire.begin()
    except ValueError:  # close came with open
        session = None
    while (event := peer.exchange()) is not None:
        if isinstance(event, CloseReceived):
            assert event.error is not None
            raise Refused(f"{event.error.condition} {event.error.description}")
        if session is not None and session.state.value == "MAPPED":
            return


def over_nsq(broker: BrokerProcess, stack: ExitStack) -> None:
    client = stack.enter_context(NsqClient(broker.nsq_port))
    client.send(commands.auth(b"ann:ann"))
    kind, data = client.next()
    if kind != RESPONSE:
        raise Refused(data.decode())


FACES = pytest.mark.parametrize("open_one", [over_091, over_10, over_nsq])
Open = Callable[[BrokerProcess, ExitStack], None]


@FACES
@pytest.mark.parametrize("of", ["user-limits/ann", "vhost-limits/%2F"])
def test_connections(broker: BrokerProcess, open_one: Open, of: str) -> None:
    with ExitStack() as stack:
        open_one(broker, stack)
        done(broker, "PUT", f"{of}/max-connections", {"value": 2})
        open_one(broker, stack)
        text = (
            "connection refused for user 'ann': user connection limit (2) is reached"
            if of == "user-limits/ann"
            else "access to vhost '/' refused for user 'ann': connection limit (2) is reached"
        )
        with pytest.raises(Refused) as error:
            open_one(broker, stack)
        assert text in str(error.value)
        done(broker, "PUT", f"{of}/max-connections", {"value": -1})
        open_one(broker, stack)
    until(lambda: get(broker, "connections") == [], what="all connections gone")
    done(broker, "PUT", f"{of}/max-connections", {"value": 1})
    with ExitStack() as stack:
        open_one(broker, stack)  # those that went are counted no more


@FACES
def test_a_limit_of_one_user_is_not_another_s(broker: BrokerProcess, open_one: Open) -> None:
    done(broker, "PUT", "user-limits/ann/max-connections", {"value": 0})
    with ExitStack() as stack, pytest.raises(Refused):
        open_one(broker, stack)
    connect(broker, "bob").close()


def test_the_reply_code_is_rabbitmqs(broker: BrokerProcess) -> None:
    done(broker, "PUT", "user-limits/ann/max-connections", {"value": 0})
    with pytest.raises(AMQPError, match="530") as error:
        connect(broker, "ann")
    assert "NOT_ALLOWED" in str(error.value)


def test_an_nsq_client_counts_from_its_auth(broker: BrokerProcess) -> None:
    """Those that only published counted nowhere: only SUB opened anything."""
    done(broker, "PUT", "user-limits/ann/max-connections", {"value": 1})
    with ExitStack() as stack:
        over_nsq(broker, stack)
        with pytest.raises(AMQPError, match="530"):
            connect(broker, "ann")
        client = stack.enter_context(NsqClient(broker.nsq_port))
        error = client.error(commands.auth(b"ann:ann"))
        assert error.startswith("E_AUTH_FAILED AUTH failed connection refused for user 'ann'")
    until(lambda: get(broker, "connections") == [], what="all connections gone")
    connect(broker, "ann").close()


def test_an_nsq_client_that_acts_as_a_user_counts_from_its_first_command(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", nsq_user="ann") as broker:
        done(broker, "PUT", "users/ann", {"password": "ann", "tags": ""})
        done(broker, "PUT", "permissions/%2F/ann", FULL)
        done(broker, "PUT", "user-limits/ann/max-connections", {"value": 1})
        for first in (commands.identify(b"{}"), commands.pub("t", b"x"), commands.sub("t", "c")):
            address = ("127.0.0.1", broker.nsq_port)
            with (
                socket.create_connection(address, timeout=PATIENCE_S) as one,
                socket.create_connection(address, timeout=PATIENCE_S) as other,
            ):
                one.sendall(commands.MAGIC + first)
                assert b"failed" not in one.recv(65536)
                other.sendall(commands.MAGIC + first)
                verb = first.split()[0].decode()
                said = until_closed(other).decode("latin-1")
                assert f"E_{verb}_FAILED {verb} failed connection refused for user 'ann'" in said
            until(lambda: get(broker, "connections") == [], what="all connections gone")


# -- channels


def test_channels_of_amqp_091(broker: BrokerProcess) -> None:
    done(broker, "PUT", "user-limits/ann/max-channels", {"value": 2})
    first, second = connect(broker, "ann"), connect(broker, "ann")
    try:
        first.channel()
        gone = second.channel()
        with pytest.raises(ConnectionClosedByBroker) as error:
            first.channel()
        assert error.value.reply_code == 530
        assert "has reached the maximum allowed user limit of (2)" in error.value.reply_text
        gone.close()
        second.channel()
        second.channel()
    finally:
        second.close()


def test_sessions_of_amqp_10(broker: BrokerProcess) -> None:
    done(broker, "PUT", "user-limits/ann/max-channels", {"value": 1})
    with Client(
        socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=PATIENCE_S)
    ) as peer:
        peer.login("ann", "ann")
        peer.session()
        peer.wire.begin()
        event = peer.next_of(SessionEnded)
        assert event.error is not None
        assert "has reached the maximum allowed user limit of (1)" in event.error.description


# -- queues


def test_queues(broker: BrokerProcess) -> None:
    done(broker, "PUT", "vhosts/small")
    done(broker, "PUT", "permissions/small/ann", FULL)
    done(broker, "PUT", "vhost-limits/small/max-queues", {"value": 1})
    body = {"durable": True}
    assert call(broker, "PUT", "queues/small/one", body, user="ann:ann")[0] == 201
    assert call(broker, "PUT", "queues/small/one", body, user="ann:ann")[0] == 204, "it is there"
    status, _, reason = refused(broker, "PUT", "queues/small/two", body, user="ann:ann")
    text = "cannot declare queue 'two': queue limit in vhost 'small' (1) is reached"
    assert (status, reason) == (400, text)
    with closing(connect(broker, "ann", virtual_host="small")) as connection:
        for name in ("two", ""):
            with pytest.raises(ChannelClosedByBroker) as error:
                connection.channel().queue_declare(name)
            assert error.value.reply_code == 406
        connection.channel().queue_declare("one", passive=True)
        connection.channel().queue_delete("one")
        connection.channel().queue_declare("two")
    done(broker, "DELETE", "vhosts/small")
    assert get(broker, "vhost-limits") == [], "they went with it"


def test_queues_of_nsq(broker: BrokerProcess) -> None:
    count = len(get(broker, "queues/%2F"))
    done(broker, "PUT", "vhost-limits/%2F/max-queues", {"value": count})
    with NsqClient(broker.nsq_port) as client:
        client.send(commands.auth(b"ann:ann"))
        client.next()
        assert "queue limit in vhost '/'" in client.error(commands.pub("new-one", b"x"))
    assert nsq_http(broker, "POST", "/pub?topic=new-two", b"x", "ann:ann")[0] == 400


# -- over HTTP


def test_limits_are_shown_kept_and_for_administrators(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "users/ann", {"password": "ann", "tags": ""})
        done(broker, "PUT", "user-limits/ann/max-channels", {"value": "7"})
        done(broker, "PUT", "user-limits/ann/max-connections", {"value": 5})
        done(broker, "PUT", "vhost-limits/%2F/max-queues", {"value": 9})
        done(broker, "DELETE", "user-limits/ann/max-connections")
        broker.kill()
        broker.restart()
        assert get(broker, "user-limits") == [{"user": "ann", "value": {"max-channels": 7}}]
        assert get(broker, "user-limits/ann")[0]["value"] == {"max-channels": 7}
        assert get(broker, "users/ann")["limits"] == {"max-channels": 7}
        assert get(broker, "vhost-limits/%2F") == [{"vhost": "/", "value": {"max-queues": 9}}]
        assert get(broker, "vhost-limits", "ann:ann") == []
        for method, path in (("PUT", "user-limits/ann/max-channels"), ("GET", "user-limits"),
                             ("DELETE", "vhost-limits/%2F/max-queues")):  # fmt: skip
            assert refused(broker, method, path, {"value": 1}, user="ann:ann")[0] == 401
        for path, value in (("user-limits/ann/max-queues", 1), ("vhost-limits/%2F/nonsense", 1),
                            ("user-limits/ann/max-channels", "x"),
                            ("user-limits/ann/max-channels", 1 << 63),
                            ("vhost-limits/%2F/max-queues", "9" * 20)):  # fmt: skip
            assert refused(broker, "PUT", path, {"value": value})[0] == 400
        assert refused(broker, "PUT", "user-limits/nobody/max-channels", {"value": 1})[0] == 404
        done(broker, "DELETE", "users/ann")
        assert get(broker, "user-limits") == [], "they went with the user"
        stored = json.loads((tmp_path / "data" / "limits.json").read_text())
        assert stored == {"vhosts": {"/": {"max-queues": 9}}, "users": {}}


def test_a_file_of_limits_that_cannot_be_replaced(tmp_path: Path) -> None:
    """A limit is refused, with the reason, and changes nothing; a virtual host goes with all that
    is about it."""
    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "users/ann", {"password": "ann", "tags": ""})
        done(broker, "PUT", "vhosts/old", {})
        done(broker, "PUT", "permissions/old/ann", FULL)
        done(broker, "PUT", "vhost-limits/old/max-queues", {"value": 9})
        obstacle = broker.data_dir / f"limits.json.{broker.pid}.new"
        obstacle.mkdir()
        status, error, reason = refused(broker, "PUT", "vhost-limits/old/max-queues", {"value": 1})
        assert (status, error) == (500, "internal_error")
        assert obstacle.name in reason
        assert get(broker, "vhost-limits/old") == [{"vhost": "old", "value": {"max-queues": 9}}]
        done(broker, "DELETE", "vhosts/old")
        assert get(broker, "users/ann/permissions") == []
        obstacle.rmdir()


def test_a_file_of_users_that_cannot_be_replaced(tmp_path: Path) -> None:
    """A virtual host stays with all that is about it: without it, its permissions would have
    waited for a later one of its name."""
    with BrokerProcess(tmp_path / "data") as broker:
        done(broker, "PUT", "users/ann", {"password": "ann", "tags": ""})
        done(broker, "PUT", "vhosts/old", {})
        done(broker, "PUT", "permissions/old/ann", FULL)
        obstacle = broker.data_dir / f"users.json.{broker.pid}.new"
        obstacle.mkdir()
        users = [{"name": "ann", "password": "new", "tags": []}]
        for method, path, body in (
            ("DELETE", "vhosts/old", None), ("DELETE", "permissions/old/ann", None),
            ("POST", "definitions", {"users": users}),
        ):  # fmt: skip
            status, error, reason = refused(broker, method, path, body)
            assert (status, error) == (500, "internal_error")
            assert obstacle.name in reason
        assert get(broker, "vhosts/old")["name"] == "old"
        obstacle.rmdir()
        done(broker, "DELETE", "vhosts/old")
        done(broker, "PUT", "vhosts/old", {})
        assert refused(broker, "GET", "permissions/old/ann")[0] == 404


def test_messages_over_http_count_as_a_connection_and_declarations_do_not(
    broker: BrokerProcess,
) -> None:
    done(broker, "PUT", "user-limits/ann/max-connections", {"value": 0})
    assert call(broker, "PUT", "queues/%2F/anns", {}, "ann:ann")[0] == 201
    asked = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    publish = {
        "properties": {}, "routing_key": "anns", "payload": "m", "payload_encoding": "string",
    }  # fmt: skip
    for path, body in (("queues/%2F/anns/get", asked),
                       ("exchanges/%2F/amq.default/publish", publish)):  # fmt: skip
        for limit, text in (("max-connections", "limit (0)"), ("max-channels", "limit of (0)")):
            done(broker, "PUT", f"user-limits/ann/{limit}", {"value": 0})
            status, error, reason = refused(broker, "POST", path, body, "ann:ann")
            assert (status, error) == (401, "not_authorised")
            assert text in reason
            done(broker, "DELETE", f"user-limits/ann/{limit}")
    done(broker, "PUT", "user-limits/ann/max-connections", {"value": 0})
    assert call(broker, "DELETE", "queues/%2F/anns", None, "ann:ann")[0] == 204
