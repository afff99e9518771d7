"""Topic permissions: the routing keys that a user with a password may use on topic exchanges."""

from __future__ import annotations

import pytest

from tallymark.bridge.operations import Operations
from tallymark.bridge.permissions import READ, WRITE, Access, Permissions, Topics, check_keys
from tallymark.engine.errors import AccessRefused
from tallymark.engine.exchange import make_exchange
from tallymark.wire.amqp091.methods import (
    BasicAck,
    ChannelClose,
    ConfirmSelect,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueUnbind,
)
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tests.bridge import rig10
from tests.bridge.rig import Peer, Rig

EVERYWHERE = {"*": (".*", ".*", ".*")}
LOGS: Topics = {"/": {"logs": ("^app\\.", "^(app|db)\\.")}}


def permissions(topics: Topics, user: str = "guest") -> Permissions:
    return Permissions(user, EVERYWHERE, topics=topics)


def access_of(topics: Topics, vhost: str = "/", user: str = "guest") -> Access:
    access = Access(user, vhost, ("", "", ""))
    access.follow(permissions(topics, user))
    return access


def allows(access: Access, name: str, key: str, operation: int, kind: str = "topic") -> bool:
    exchange = make_exchange(name, kind, True, False, False, {})
    try:
        check_keys(access, exchange, (key,), operation)
    except AccessRefused:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "key", "operation", "allowed"),
    [
        ("logs", "app.web", WRITE, True),
        ("logs", "my.app.web", WRITE, False),
        ("logs", "db.slow", WRITE, False),
        ("logs", "db.slow", READ, True),
        ("logs", "", READ, False),
        ("other", "db.slow", WRITE, True),
    ],
)
def test_routing_keys_are_limited_where_the_exchange_is_named(
    name: str, key: str, operation: int, allowed: bool
) -> None:
    access = access_of(LOGS)
    assert allows(access, name, key, operation) is allowed
    assert allows(access, name, key, operation) is allowed, "as remembered"
    assert not access.is_renewable, "there is no token to renew"


def test_other_virtual_hosts_and_other_exchanges_than_those_of_topics_have_no_limits() -> None:
    assert allows(access_of(LOGS, "elsewhere"), "logs", "db", WRITE)
    assert allows(access_of(LOGS), "logs", "db", WRITE, "direct")
    with pytest.raises(AccessRefused) as refused:
        access_of(LOGS).check_key("logs", "db", WRITE)
    assert str(refused.value) == (
        "access to topic 'db' in exchange 'logs' in vhost '/' refused for user 'guest'"
    )


def test_a_pattern_matches_anywhere_and_an_empty_one_the_empty_key_only() -> None:
    access = access_of({"/": {"logs": ("b", "")}})
    assert [allows(access, "logs", key, WRITE) for key in ("abc", "b", "ac", "")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert [allows(access, "logs", key, READ) for key in ("", "b")] == [True, False]


def test_names_in_a_pattern_stand_for_themselves() -> None:
    topics: Topics = {"a.b": {"logs": ("^{vhost}\\.{username}$", ".*")}}
    access = access_of(topics, "a.b", "x+")
    assert allows(access, "logs", "a.b.x+", WRITE)
    for key in ("a-b.x+", "a.b.xx", "{vhost}.{username}"):
        assert not allows(access, "logs", key, WRITE)


def test_a_pattern_that_is_refused_allows_nothing() -> None:
    assert not allows(access_of({"/": {"logs": ("(?<=a)b", ".*")}}), "logs", "ab", WRITE)


# -- over AMQP


def playing(topics: Topics = LOGS) -> Peer:
    """A client that has declared q, in a virtual host with the topic exchange `logs`."""
    rig = Rig()
    rig.users["guest"] = permissions(topics)
    rig.broker.vhost("/").declare_exchange("logs", "topic", True, False, False, {}, False)
    peer = Peer(rig)
    peer.login()
    peer.open()
    peer.ask((1, QueueDeclare("q")), (1, ConfirmSelect()))
    return peer


def refusal(key: str, class_id: int, method_id: int) -> list[tuple[int, ChannelClose]]:
    text = f"ACCESS_REFUSED - access to topic '{key}' in exchange 'logs' in vhost '/' refused for "
    return [(1, ChannelClose(403, text + "user 'guest'", class_id, method_id))]


def test_a_publisher_of_amqp_091_is_limited() -> None:
    peer = playing()
    assert peer.ask(peer.publish(key="app.web", exchange="logs")) == [(1, BasicAck(1))]
    assert peer.ask(peer.publish(key="db", exchange="logs")) == refusal("db", 60, 40)


def test_further_routing_keys_are_checked_as_well() -> None:
    """RabbitMQ looks at the first one only."""
    peer = playing()
    for more in ({"CC": ["app.db"], "BCC": ["app.too"]}, {}):
        sent = peer.publish(key="app.web", exchange="logs", headers=more)
        assert isinstance(peer.ask(sent)[0][1], BasicAck)
    sent = peer.publish(key="app.web", exchange="logs", headers={"CC": ["app.db"], "BCC": ["db"]})
    assert peer.ask(sent) == refusal("db", 60, 40)


@pytest.mark.parametrize("method", [QueueBind, QueueUnbind])
def test_bindings_of_amqp_091_are_limited(method: type[QueueBind | QueueUnbind]) -> None:
    peer = playing()
    assert peer.ask((1, QueueBind("q", "logs", "db.*"))) == [(1, QueueBindOk())]
    numbers = (20,) if method is QueueBind else (50,)
    assert peer.ask((1, method("q", "logs", "#"))) == refusal("#", 50, *numbers)


def test_what_changes_counts_for_open_connections_at_once() -> None:
    peer = playing({})
    assert peer.ask(peer.publish(key="db", exchange="logs")) == [(1, BasicAck(1))]
    peer.bridge.rights_changed(permissions(LOGS))
    assert peer.ask(peer.publish(key="db", exchange="logs")) == refusal("db", 60, 40)


def test_a_sender_of_amqp_10_is_limited() -> None:
    rig = rig10.Rig()
    rig.users["guest"] = permissions(LOGS)
    rig.broker.vhost("/").declare_exchange("logs", "topic", True, False, False, {}, False)
    peer = rig.connect10()
    session = peer.session()
    attach = Attach(source=Source(), target=Target(address="/exchanges/logs/db"))
    error = peer.refused(session, attach, True)
    assert error.condition == "amqp:unauthorized-access"
    assert "topic 'db' in exchange 'logs'" in (error.description or "")


def test_what_is_taken_on_to_a_limited_exchange_may_have_any_key() -> None:
    """As for tokens: others may publish to an exchange or queue of this user."""
    rig = Rig()
    rig.broker.vhost("/").declare_exchange("logs", "topic", True, False, False, {}, False)
    connection = rig.broker.clients.open_connection("/", "guest", "peer")
    operations = Operations(rig.broker, connection, access_of(LOGS))
    letters: dict[str, object] = {"x-dead-letter-exchange": "logs"}
    with pytest.raises(AccessRefused, match="access to all topics in exchange 'logs'"):
        operations.declare_queue("mine", False, False, False, letters)
    elsewhere: dict[str, object] = {"x-dead-letter-exchange": "amq.topic"}
    operations.declare_queue("mine", False, False, False, elsewhere)
