"""AMQP 1.0: who a client is, where it gets to, and which protocol it speaks at all."""

from __future__ import annotations

import pytest

from tallymark.bridge.amqp import AMQP_091, AMQP_10, UNDECIDED, protocol_of
from tallymark.bridge.permissions import Permissions
from tallymark.wire.amqp10.events import CloseReceived, SaslReceived
from tallymark.wire.amqp10.frames import frame
from tallymark.wire.amqp10.performatives import Begin, Open
from tallymark.wire.amqp10.sasl import SaslChallenge, SaslOutcome
from tests.bridge.rig10 import Peer, Rig


@pytest.mark.parametrize(
    ("header", "protocol"),
    [
        (b"AMQP\x00\x01\x00\x00", AMQP_10),
        (b"AMQP\x03\x01\x00\x00", AMQP_10),
        (b"AMQP\x02\x01\x00\x00", AMQP_10),
        (b"AMQP\x00\x00\x09\x01", AMQP_091),
        (b"AMQP\x01\x01\x08\x00", AMQP_091),
        (b"AMQP\x01\x01\x00\x0a", AMQP_091),
        (b"AMQP\x00\x02\x00\x00", AMQP_091),
        (b"GET / HTTP/1.1", AMQP_091),
        (b"\x00", AMQP_091),
    ],
)
def test_the_first_bytes_say_which_protocol_it_is_however_few_come(
    header: bytes, protocol: int
) -> None:
    assert protocol_of(header) == protocol
    for size in range(len(header)):
        assert protocol_of(header[:size]) in (UNDECIDED, protocol)
    assert protocol_of(header[:6]) == protocol
    assert protocol_of(b"") == UNDECIDED


@pytest.mark.parametrize("chunk", [0, 1])
def test_plain_lets_a_client_in(chunk: int) -> None:
    peer = Rig().connect10(chunk=chunk)
    connection = peer.bridge.entered
    assert connection is not None
    assert (connection.user, connection.vhost) == ("guest", "/")
    about = peer.bridge.describe()
    assert (about["protocol"], about["state"], about["user"]) == ("AMQP 1.0", "running", "guest")


def test_clients_made_for_rabbitmq_find_what_they_look_for() -> None:
    rig = Rig(node_name="tallymark@there")
    peer = Peer(rig)
    peer.start()
    peer.wire.sasl_init("PLAIN", b"\0guest\0guest")
    peer.pump()
    peer.bridge.login_succeeded(Permissions.all("guest"))
    peer.pump()
    peer.take(SaslReceived)
    opened = peer.open()
    assert opened.container_id == "tallymark@there"
    assert opened.properties is not None
    assert opened.properties["product"] == "RabbitMQ"
    assert opened.properties["version"] == "4.2.0"
    assert opened.properties["broker_name"] == "Tallymark"
    assert "LINK_PAIR_V1_0" in opened.offered_capabilities
    assert "AMQP_FILTEX_SQL_V1_0" in opened.offered_capabilities


@pytest.mark.parametrize(
    "response",
    [b"", b"guest", b"\0guest", b"other\0guest\0guest", b"\xff\0\xfe\0\xfd", b"a\0b\0c\0d"],
)
def test_what_is_no_plain_response_is_refused_at_once(response: bytes) -> None:
    peer = Peer(Rig())
    peer.start()
    peer.wire.sasl_init("PLAIN", response)
    peer.pump()
    assert peer.bridge.pending_login is None
    frame = peer.take(SaslReceived).frame
    assert frame == SaslOutcome(1)
    assert peer.bridge.closing


def test_plain_without_a_response_is_asked_for_it() -> None:
    peer = Peer(Rig())
    peer.start()
    peer.wire.sasl_init("PLAIN")
    peer.pump()
    assert peer.take(SaslReceived).frame == SaslChallenge(b"")
    peer.wire.sasl_response(b"\0guest\0secret")
    peer.pump()
    assert peer.bridge.pending_login == ("PLAIN", "guest", "secret")


def test_a_wrong_password_gets_the_outcome_and_no_more() -> None:
    peer = Peer(Rig())
    peer.start()
    peer.wire.sasl_init("PLAIN", b"\0guest\0wrong")
    peer.pump()
    peer.bridge.login_failed()
    peer.pump()
    assert peer.take(SaslReceived).frame == SaslOutcome(1)
    assert peer.bridge.closing
    assert peer.bridge.reason == "login refused"
    assert peer.bridge.entered is None


def test_a_mechanism_that_is_not_offered_is_refused() -> None:
    for mechanism in ("EXTERNAL", "ANONYMOUS", "SCRAM-SHA-1"):
        peer = Peer(Rig())
        assert peer.start().sasl_server_mechanisms == ("PLAIN",)
        peer.wire.sasl_init(mechanism, b"\0guest\0guest")
        peer.pump()
        assert peer.bridge.pending_login is None
        assert peer.bridge.closing


def test_external_is_offered_to_whom_tls_knows() -> None:
    peer = Peer(Rig(), external="alice")
    assert peer.start().sasl_server_mechanisms == ("EXTERNAL", "PLAIN")
    peer.wire.sasl_init("EXTERNAL", b"")
    peer.pump()
    assert peer.bridge.pending_login == ("EXTERNAL", "alice", "")
    other = Peer(Rig(), external="alice")
    other.start()
    other.wire.sasl_init("EXTERNAL", b"bob")
    other.pump()
    assert other.bridge.pending_login is None
    assert other.bridge.closing


@pytest.mark.parametrize("sasl", [True, False])
def test_anonymous_is_who_the_configuration_says(sasl: bool) -> None:
    peer = Peer(Rig(anonymous_user="nobody"))
    if sasl:
        assert peer.start().sasl_server_mechanisms == ("PLAIN", "ANONYMOUS")
        peer.wire.sasl_init("ANONYMOUS", b"trace")
        peer.pump()
        peer.events.clear()
    else:
        peer.wire.start(False)
        peer.wire.open(Open("test"))
        peer.pump()
    assert peer.bridge.pending_login == ("ANONYMOUS", "nobody", "")
    peer.bridge.login_succeeded(Permissions.all("nobody"))
    peer.pump()
    if sasl:
        peer.events.clear()
        peer.open()
    connection = peer.bridge.entered
    assert connection is not None
    assert connection.user == "nobody"


def test_without_sasl_nobody_gets_in_unless_anonymous_is_somebody() -> None:
    peer = Peer(Rig())
    peer.wire.start(False)
    peer.pump()
    assert peer.bridge.closing
    assert b"".join(peer.sent_bytes) == b"AMQP\x03\x01\x00\x00"


def test_an_anonymous_user_that_is_not_there_is_told_in_a_close() -> None:
    peer = Peer(Rig(anonymous_user="nobody"))
    peer.wire.start(False)
    peer.wire.open(Open("test"))
    peer.pump()
    peer.bridge.login_failed()
    peer.pump()
    closed = peer.take(CloseReceived)
    assert closed.error is not None
    assert closed.error.condition == "amqp:unauthorized-access"


def test_the_hostname_may_name_a_virtual_host() -> None:
    rig = Rig()
    rig.broker.registry.add_vhost("two")
    peer = Peer(rig, hostname="vhost:two")
    peer.login()
    connection = peer.bridge.entered
    assert connection is not None
    assert connection.vhost == "two"
    assert peer.bridge.describe()["vhost"] == "two"


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize(
    ("hostname", "text"),
    [
        ("vhost:none", "vhost none not found"),
        ("vhost:two", "access to vhost 'two' refused for user 'guest'"),
    ],
)
def test_a_virtual_host_out_of_reach_ends_the_connection_without_a_word(
    hostname: str, text: str, pipelined: bool
) -> None:
    """Neither open nor close, as RabbitMQ: its Python client tries for ever where it hears a
    close."""
    rig = Rig()
    rig.broker.registry.add_vhost("two")
    rig.users["guest"] = Permissions("guest", {"/": (".*", ".*", ".*")})
    peer = Peer(rig, hostname=hostname)
    peer.start()
    peer.wire.sasl_init("PLAIN", b"\0guest\0guest", None)
    peer.pump()
    peer.bridge.login_succeeded(rig.users["guest"])
    peer.pump()
    peer.sent_bytes.clear()
    opening = frame(0, Open("test", hostname=hostname).encode())
    beginning = frame(0, Begin().encode()) if pipelined else b""
    peer.bridge.receive(opening + beginning, 2_000, 2_000)
    peer.pump()
    assert peer.bridge.closing
    assert peer.bridge.entered is None
    assert peer.bridge.reason == text
    assert peer.sent_bytes == []


def test_shutting_down_says_why() -> None:
    rig = Rig()
    peer = rig.connect10()
    peer.bridge.shutdown("maintenance")
    assert peer.bridge.entered is None
    peer.pump()
    error = peer.take(CloseReceived).error
    assert error is not None
    assert error.condition == "amqp:connection:forced"
    assert "maintenance" in (error.description or "")
    assert not peer.bridge.closing
    peer.wire.close()
    peer.pump()
    assert peer.bridge.closing
