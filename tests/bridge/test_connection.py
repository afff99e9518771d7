"""The connection's life: login, virtual host, limits, closing in every order, time-outs."""

from __future__ import annotations

import pytest

from tallymark.bridge.amqp091.login import credentials
from tallymark.wire.amqp091.fields import encode_table
from tallymark.wire.amqp091.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    BasicConsume,
    BasicDeliver,
    BasicGet,
    BasicQos,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.bridge.rig import Content, Peer, Rig
from tests.support.amqp091 import tune_ok

BYE = ConnectionClose(200, "bye")


# -- login


def test_start_says_who_we_are_and_what_we_can_do() -> None:
    peer = Peer(Rig())
    ((_, start),) = peer.ask(PROTOCOL_HEADER)
    assert isinstance(start, ConnectionStart)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert start.mechanisms == b"PLAIN AMQPLAIN"
    assert start.server_properties["broker_name"] == "Tallymark"
    capabilities = start.server_properties["capabilities"]
    assert isinstance(capabilities, dict)
    assert set(capabilities) == {
        "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
        "connection.blocked", "consumer_priorities", "authentication_failure_close",
        "per_consumer_qos", "direct_reply_to", "channel_flow", "uncounted_recover",
    }  # fmt: skip
    assert set(capabilities.values()) == {True}


@pytest.mark.parametrize(
    ("mechanism", "response", "found"),
    [
        ("PLAIN", b"\0me\0secret", ("me", "secret")),
        ("PLAIN", b"me\0me\0secret", ("me", "secret")),
        ("PLAIN", b"other\0me\0secret", None),
        ("PLAIN", b"\0me\0", ("me", "")),
        ("PLAIN", b"\0me", None),
        ("PLAIN", b"\0me\0a\0b", None),
        ("PLAIN", "\0mé\0ß".encode(), ("mé", "ß")),
        ("AMQPLAIN", encode_table({"LOGIN": "me", "PASSWORD": "secret"})[4:], ("me", "secret")),
        ("AMQPLAIN", encode_table({"LOGIN": "me"})[4:], None),
        ("AMQPLAIN", encode_table({"LOGIN": "me", "PASSWORD": 5})[4:], None),
        ("AMQPLAIN", b"\x05LOGIN", None),
        ("EXTERNAL", b"", None),
    ],
)
def test_credentials(mechanism: str, response: bytes, found: tuple[str, str] | None) -> None:
    assert credentials(mechanism, response) == found


def test_a_login_waits_for_the_owner() -> None:
    peer = Peer(Rig())
    peer.start()
    assert peer.bridge.pending_login == ("PLAIN", "guest", "guest")
    assert peer.hear() == []
    peer.bridge.login_succeeded(peer.rig.users["guest"])
    assert peer.hear() == [(0, ConnectionTune(2047, 131_072, 60))]


def test_a_refused_login_is_told_to_those_who_understand() -> None:
    peer = Peer(Rig())
    peer.start()
    peer.bridge.login_failed()
    text = (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
        "For details see the broker logfile."
    )
    assert peer.hear() == [(0, ConnectionClose(403, text, 0, 0))]
    assert not peer.bridge.closing
    assert peer.ask((0, ConnectionCloseOk())) == []
    assert peer.bridge.closing


def test_a_refused_login_is_just_closed_for_others() -> None:
    peer = Peer(Rig())
    peer.start(capabilities={})
    peer.bridge.login_failed()
    assert peer.hear() == []
    assert peer.bridge.closing


def test_credentials_nobody_can_read_are_just_closed() -> None:
    peer = Peer(Rig())
    peer.start(response=b"nonsense")
    assert peer.bridge.pending_login is None
    assert peer.bridge.closing
    peer = Peer(Rig())
    peer.ask(PROTOCOL_HEADER)
    peer.send((0, ConnectionStartOk({}, "EXTERNAL", b"", "en_US")))
    assert peer.bridge.closing


def test_a_client_that_vanishes_while_its_login_is_checked() -> None:
    peer = Peer(Rig())
    peer.start()
    peer.bridge.eof()
    assert peer.bridge.closing
    peer.bridge.login_succeeded(peer.rig.users["guest"])
    assert peer.hear() == []


# -- virtual hosts


def test_an_unknown_virtual_host() -> None:
    assert Peer(Rig()).login(vhost="nope") == [
        (0, ConnectionClose(530, "NOT_ALLOWED - vhost nope not found", 10, 40))
    ]


def test_virtual_hosts_are_apart() -> None:
    rig = Rig()
    rig.broker.registry.add_vhost("other")
    one, two = rig.connect(), Peer(rig)
    two.login(vhost="other")
    two.open()
    one.ask(QueueDeclare("q"))
    ((_, close),) = two.ask(QueueDeclare("q", passive=True))
    assert isinstance(close, ChannelClose)
    assert close.reply_text == "NOT_FOUND - no queue 'q' in vhost 'other'"


# -- while it lives


def test_blocked_is_told_to_those_who_understand() -> None:
    rig = Rig()
    peer, other = rig.connect(), rig.connect(capabilities={})
    for one in (peer, other):
        one.bridge.block("low on disk")
        one.bridge.unblock()
    assert peer.hear() == [(0, ConnectionBlocked("low on disk")), (0, ConnectionUnblocked())]
    assert other.hear() == []


def test_a_new_secret_is_accepted() -> None:
    peer = Rig().connect()
    assert peer.ask((0, ConnectionUpdateSecret(b"new", "old one expires"))) == [
        (0, ConnectionUpdateSecretOk())
    ]


def test_a_message_in_the_same_read_as_open_has_arrived_now() -> None:
    rig = Rig()
    rig.now_ms += 100_000
    peer = Peer(rig)
    peer.start()
    peer.bridge.login_succeeded(rig.users["guest"])
    heard = peer.ask(
        tune_ok(), (0, ConnectionOpen("/")), ChannelOpen(), QueueDeclare("q"),
        peer.publish(b"in time", expiration="60000"), BasicGet("q", True),
    )  # fmt: skip
    found = heard[-1][1]
    assert isinstance(found, Content), found
    assert found.body == b"in time"


def test_publishing_is_noticed() -> None:
    peer = Rig().connect()
    assert not peer.bridge.publishing
    peer.ask(peer.publish())
    assert peer.bridge.publishing


def test_describe_is_what_the_http_api_shows() -> None:
    peer = Rig().connect()
    peer.open(7)
    peer.ask(QueueDeclare("q"), peer.publish(b"x") * 3, (7, BasicQos(0, 2, False)))
    peer.ask((7, BasicConsume("q", "c")))
    found = peer.bridge.describe()
    assert found["user"] == "guest"
    assert found["vhost"] == "/"
    assert found["peer"] == "peer"
    assert found["state"] == "running"
    assert found["client_properties"] == peer.bridge.client_properties
    channels = found["channels"]
    assert isinstance(channels, list)
    assert [(c["number"], c["prefetch"], c["unacked"], c["consumers"]) for c in channels] == [
        (1, 0, 0, 0),
        (7, 2, 2, 1),
    ]
    assert Peer(Rig()).bridge.describe()["user"] is None


def test_heartbeats_and_their_absence() -> None:
    rig = Rig()
    peer = rig.connect(heartbeat=10)
    start = rig.now_ms
    deadline = peer.bridge.next_deadline()
    assert deadline is not None
    assert start < deadline <= start + 10_000
    peer.bridge.tick(deadline)
    assert peer.bridge.take_output() == [HEARTBEAT_FRAME]
    peer.ask(QueueDeclare("mine", exclusive=True))
    peer.bridge.tick(start + 1_000_000)
    assert peer.bridge.closing
    assert "heartbeat" in peer.bridge.reason
    assert rig.broker.vhosts["/"].queues == {}


def test_a_handshake_that_takes_too_long() -> None:
    peer = Peer(Rig(Limits(handshake_timeout_ms=500)))
    peer.bridge.tick(1000)
    peer.send(PROTOCOL_HEADER)
    assert peer.bridge.next_deadline() == 1500
    peer.bridge.tick(1500)
    assert peer.bridge.closing


# -- closing


def test_the_client_closes() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.ask(QueueDeclare("mine", exclusive=True))
    assert peer.ask((0, BYE)) == [(0, ConnectionCloseOk())]
    assert peer.bridge.closing
    assert rig.broker.connections == {}
    assert rig.broker.vhosts["/"].queues == {}
    assert peer.bridge.reason == "closed by the client: 200 bye"


def test_nothing_after_close_is_heeded() -> None:
    rig = Rig()
    peer = rig.connect()
    assert peer.ask((0, BYE), QueueDeclare("late"), (0, BYE)) == [(0, ConnectionCloseOk())]
    assert rig.broker.vhosts["/"].queues == {}


def test_both_close_at_once() -> None:
    """Ours is out when theirs comes: theirs is answered, and that is the end or nearly so."""
    peer = Rig().connect()
    ((_, close),) = peer.ask(BasicQos(1))
    assert isinstance(close, ConnectionClose)
    assert peer.ask((0, BYE)) == [(0, ConnectionCloseOk())]
    assert peer.ask((0, ConnectionCloseOk())) == []
    assert peer.bridge.closing


def test_after_our_close_only_the_handshake_counts() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.ask(BasicQos(1))
    assert peer.ask(QueueDeclare("late"), BasicGet("no"), peer.publish()) == []
    assert rig.broker.vhosts["/"].queues == {}
    assert not peer.bridge.closing
    peer.ask((0, ConnectionCloseOk()))
    assert peer.bridge.closing


def test_a_client_that_never_answers_our_close() -> None:
    peer = Rig().connect()
    peer.ask(BasicQos(1))
    deadline = peer.bridge.next_deadline()
    assert deadline is not None
    peer.bridge.tick(deadline)
    assert peer.bridge.closing


def test_the_client_closes_before_open() -> None:
    peer = Peer(Rig())
    peer.start()
    peer.bridge.login_succeeded(peer.rig.users["guest"])
    assert peer.ask(tune_ok(), (0, BYE))[-1] == (0, ConnectionCloseOk())
    assert peer.bridge.closing


def test_a_lost_connection_gives_everything_back() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.ask(QueueDeclare("q"), QueueDeclare("mine", exclusive=True), peer.publish() * 2)
    peer.ask(BasicConsume("q", "c"))
    peer.bridge.eof()
    assert peer.bridge.closing
    assert list(rig.broker.vhosts["/"].queues) == ["q"]
    other = rig.connect()
    heard = other.ask(BasicConsume("q", "c", no_wait=True))
    assert [
        one.method.redelivered
        for _, one in heard
        if isinstance(one, Content) and isinstance(one.method, BasicDeliver)
    ] == [True, True]
    rig.broker.check()


def test_a_channel_is_closed_by_both_at_once() -> None:
    peer = Rig().connect()
    ((_, close),) = peer.ask(BasicGet("no"))
    assert isinstance(close, ChannelClose)
    # All but the handshake is dropped; their close is answered although ours is not yet.
    assert peer.ask(BasicGet("no"), ChannelOpen(), ChannelClose(200, "bye")) == [
        (1, ChannelCloseOk())
    ]
    assert peer.ask(ChannelCloseOk(), ChannelOpen()) == [(1, ChannelOpenOk())]


def test_content_on_a_channel_we_closed_is_dropped() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.open(2)
    peer.ask((2, QueueDeclare("q")))
    peer.frame_max = 4096
    heard = peer.ask(BasicGet("no"), peer.publish(b"x" * 10_000), peer.publish(b"y", channel=2))
    assert len(heard) == 1
    assert rig.broker.vhosts["/"].queues["q"].ready == 1
    assert peer.ask(ChannelCloseOk(), ChannelOpen(), peer.publish(b"z")) == [(1, ChannelOpenOk())]
    assert rig.broker.vhosts["/"].queues["q"].ready == 2


def test_a_closed_channel_ends_alone() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.open(2)
    peer.ask(QueueDeclare("q"), peer.publish(b"x"))
    peer.ask((2, BasicConsume("q", "c")))
    assert peer.ask((2, ChannelClose(200, "bye"))) == [(2, ChannelCloseOk())]
    assert peer.ask(QueueDeclare("q", passive=True)) == [(1, QueueDeclareOk("q", 1, 0))]


def test_everything_in_one_read() -> None:
    """A client that waits for no answer but the login's."""
    rig = Rig()
    peer = Peer(rig)
    peer.start()
    peer.bridge.login_succeeded(rig.users["guest"])
    heard = peer.ask(
        tune_ok(), (0, ConnectionOpen("/")), ChannelOpen(), QueueDeclare("q"), peer.publish(b"x"),
        BasicGet("q", True), (0, BYE),
    )  # fmt: skip
    assert len(heard) == 6
    assert isinstance(heard[-2][1], Content)
    assert heard[-1] == (0, ConnectionCloseOk())
