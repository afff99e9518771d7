"""Scopes of tokens as rights on names: RabbitMQ's notation, decided by the rights engine."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.bridge.operations import Operations
from tallymark.bridge.permissions import (
    CONFIGURE,
    EXCHANGE,
    QUEUE,
    READ,
    WRITE,
    Access,
    Permissions,
    check_keys,
)
from tallymark.bridge.scopes import Scopes, matches, parse, wildcard
from tallymark.engine.errors import AccessRefused
from tallymark.engine.exchange import make_exchange
from tallymark.wire.amqp091.methods import (
    BasicConsume,
    ChannelClose,
    ConnectionClose,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    QueueDeclare,
)
from tests.bridge.rig import Peer, Rig

LETTERS = "ab./%+*é\n$^|("


def access_of(vhost: str, *scopes: str) -> Access:
    access = Access("ann", vhost, ("", "", ""))
    access.follow(Permissions("ann", {}, scopes=Scopes(scopes)))
    return access


def enters(vhost: str, *scopes: str) -> bool:
    return Permissions("ann", {}, scopes=Scopes(scopes)).patterns(vhost) is not None


@pytest.mark.parametrize(
    ("scope", "vhost", "name", "operation", "allowed"),
    [
        ("read:*/*", "/", "q", READ, True),
        ("read:*/*", "/", "q", WRITE, False),
        ("read:*/*", "/", "q", CONFIGURE, False),
        ("write:*/*", "v", "", WRITE, True),
        ("read:%2F/q", "/", "q", READ, True),
        ("read:%2F/q", "/", "qq", READ, False),
        ("read:%2F/q", "/", "Q", READ, False),
        ("read:%2F/q*", "/", "qq", READ, True),
        ("read:%2F/*.in", "/", "orders.in", READ, True),
        ("read:%2F/*.in", "/", "ordersXin", READ, False),
        ("read:%2F/a*b*c", "/", "a.b.b.c", READ, True),
        ("read:%2F/a*b*c", "/", "a.c.b", READ, False),
        ("configure:v/%2A", "v", "*", CONFIGURE, True),
        ("configure:v/%2A", "v", "x", CONFIGURE, False),
        ("read:v/a+b", "v", "a b", READ, True),
        ("read:v/a%2Bb", "v", "a+b", READ, True),
        ("read:v/%C3%A9", "v", "é", READ, True),
        ("read:v/q/only.this", "v", "q", READ, True),
        ("read:v/", "v", "", READ, True),
        ("read:v/", "v", "q", READ, False),
    ],
)
def test_a_scope_gives_one_right_on_the_names_that_match(
    scope: str, vhost: str, name: str, operation: int, allowed: bool
) -> None:
    assert access_of(vhost, scope).allows(QUEUE, name, operation) is allowed


@pytest.mark.parametrize(
    "scope",
    [
        "", "read", "read:", "read:v", "read:v/q/k/more", "Read:v/q", "delete:v/q", "read:v/%",
        "read:v/%zz", "read:%E9/q", "read:v/q/%2", " read:v/q", "tag:", "tag:x",
    ],
)  # fmt: skip
def test_what_is_no_right_gives_none(scope: str) -> None:
    assert parse(scope) is None
    assert not enters("v", scope)


def test_a_virtual_host_is_entered_with_any_right_in_it() -> None:
    assert enters("prod-1", "write:prod-*/x")
    assert not enters("test", "write:prod-*/x")
    access = access_of("test", "write:prod-*/x")
    with pytest.raises(AccessRefused, match="access to vhost 'test' refused for user 'ann'"):
        access.check_entered()


def test_an_operation_without_a_scope_is_refused_for_every_name() -> None:
    """As well for the empty name, which an empty pattern of a user allows."""
    access = access_of("v", "read:v/q")
    for name in ("", "q", "x", "$x"):
        assert not access.allows(QUEUE, name, CONFIGURE)
        assert not access.allows(EXCHANGE, name, WRITE)


def test_scopes_add_up_each_within_its_virtual_host() -> None:
    scopes = ("read:a/x", "read:a/y*", "read:b/z", "write:*/all")
    assert access_of("a", *scopes).allows(QUEUE, "x", READ)
    assert access_of("a", *scopes).allows(QUEUE, "yes", READ)
    assert not access_of("a", *scopes).allows(QUEUE, "z", READ)
    assert access_of("b", *scopes).allows(QUEUE, "z", READ)
    assert access_of("b", *scopes).allows(EXCHANGE, "all", WRITE)


def test_tags_are_scopes_of_their_own() -> None:
    scopes = Scopes(["tag:administrator", "tag:monitoring", "tag:administrator", "read:v/q"])
    assert scopes.tags == ("administrator", "monitoring")


@pytest.mark.parametrize(
    ("scopes", "key", "allowed"),
    [
        (("write:v/logs/app.*",), "app.web", True),
        (("write:v/logs/app.*",), "db", False),
        (("write:v/logs",), "db", True),
        (("write:v/logs/app.*", "write:v/logs/db"), "db", True),
        (("write:v/l*/app", "write:v/other/db"), "db", False),
        (("write:v/logs/app.*", "read:v/logs/*"), "db", False),
    ],
)
def test_routing_keys_are_limited_on_topic_exchanges(
    scopes: tuple[str, ...], key: str, allowed: bool
) -> None:
    access = access_of("v", *scopes)
    for type, limited in (("topic", True), ("direct", False), ("fanout", False)):
        exchange = make_exchange("logs", type, True, False, False, {})
        if allowed or not limited:
            check_keys(access, exchange, (key,), WRITE)
            continue
        with pytest.raises(AccessRefused) as refused:
            check_keys(access, exchange, (key,), WRITE)
        assert str(refused.value) == (
            f"access to topic '{key}' in exchange 'logs' in vhost 'v' refused for user 'ann'"
        )


# -- what takes messages on to a topic exchange


def operating(*scopes: str) -> Operations:
    """Operations of a user with a token, where `logs` is a topic exchange."""
    broker = Rig().broker
    broker.vhost("/").declare_exchange("logs", "topic", True, False, False, {}, False)
    connection = broker.clients.open_connection("/", "ann", "peer")
    return Operations(broker, connection, access_of("/", *scopes))


ANYTHING_ELSE = ("configure:*/*", "read:*/*", "write:*/mine*")


def bind_an_exchange(operations: Operations) -> None:
    operations.declare_exchange("mine", "fanout", False, False, False, {})
    operations.bind("mine", EXCHANGE, "logs", "", {})


def declare_with_an_alternate(operations: Operations) -> None:
    arguments: dict[str, object] = {"alternate-exchange": "logs"}
    operations.declare_exchange("mine", "direct", False, False, False, arguments)


def declare_with_dead_letters(operations: Operations) -> None:
    arguments: dict[str, object] = {"x-dead-letter-exchange": "logs"}
    operations.declare_queue("mine", False, False, False, arguments)


@pytest.mark.parametrize(
    "forward", [bind_an_exchange, declare_with_an_alternate, declare_with_dead_letters]
)
def test_what_is_taken_on_to_a_topic_exchange_may_have_any_key(
    forward: Callable[[Operations], None],
) -> None:
    """A token for some keys would let others in by way of an exchange or queue of its user."""
    with pytest.raises(AccessRefused) as refused:
        forward(operating(*ANYTHING_ELSE, "write:*/logs/app.*"))
    assert str(refused.value) == (
        "access to all topics in exchange 'logs' in vhost '/' refused for user 'ann'"
    )
    forward(operating(*ANYTHING_ELSE, "write:*/logs/app.*", "write:*/logs"))
    forward(operating(*ANYTHING_ELSE, "write:*/logs/*"))


def test_dead_letters_with_a_key_of_their_own_need_that_key() -> None:
    operations = operating(*ANYTHING_ELSE, "write:*/logs/app.*")
    arguments: dict[str, object] = {"x-dead-letter-exchange": "logs"}
    letters = arguments | {"x-dead-letter-routing-key": "app.dead"}
    operations.declare_queue("mine", False, False, False, letters)
    letters = arguments | {"x-dead-letter-routing-key": "db"}
    with pytest.raises(AccessRefused, match="access to topic 'db' in exchange 'logs'"):
        operations.declare_queue("mine.too", False, False, False, letters)


def test_an_exchange_that_is_not_there_may_become_one_with_topics() -> None:
    operations = operating(*ANYTHING_ELSE, "write:*/later/app.*")
    letters: dict[str, object] = {"x-dead-letter-exchange": "later"}
    with pytest.raises(AccessRefused, match="access to all topics in exchange 'later'"):
        operations.declare_queue("mine", False, False, False, letters)


def test_other_exchanges_take_what_is_forwarded_whatever_its_key() -> None:
    operations = operating(*ANYTHING_ELSE, "write:*/amq.fanout/app.*")
    letters: dict[str, object] = {"x-dead-letter-exchange": "amq.fanout"}
    operations.declare_queue("mine", False, False, False, letters)
    operations.declare_exchange("mine", "fanout", False, False, False, {})
    operations.bind("mine", EXCHANGE, "amq.fanout", "", {})


# -- wildcards


def naive(pieces: list[str], name: str) -> bool:
    """Whether name is pieces[0] + anything + pieces[1] + ... , by all ways to cut it."""
    reached = {0} if name.startswith(pieces[0]) else set()
    reached = {at + len(pieces[0]) for at in reached}
    for piece in pieces[1:]:
        reached = {
            at + len(piece)
            for start in reached
            for at in range(start, len(name) + 1)
            if name.startswith(piece, at)
        }
    return len(name) in reached


@given(
    st.lists(st.text(LETTERS, max_size=3), min_size=1, max_size=5),
    st.lists(st.text(LETTERS, max_size=2), min_size=4, max_size=4),
    st.text(LETTERS, max_size=6),
)
def test_a_wildcard_matches_as_cutting_the_name_in_all_ways_does(
    pieces: list[str], between: list[str], other: str
) -> None:
    pattern = wildcard("*".join(quote(piece, safe="") for piece in pieces))
    assert pattern is not None
    name = pieces[0]
    for piece, text in zip(pieces[1:], between, strict=False):
        name += text + piece
    assert matches(pattern, name)
    assert matches(pattern, other) == naive(pieces, other)
    assert matches(pattern, name + other) == naive(pieces, name + other)


@given(st.text(max_size=12))
def test_any_text_is_a_scope_or_none_and_never_an_error(text: str) -> None:
    for scope in (text, f"read:{text}", f"read:v/{text}", f"write:{text}/{text}/{text}"):
        access = access_of("v", scope)
        access.allows(QUEUE, "q", READ)
        Scopes([scope]).keys("v", "x", WRITE)


def test_wildcards_cost_linear_time() -> None:
    """An engine that backtracks would need longer than this test's limit for the first of them."""
    hostile = "*a" * 3000 + "b"
    access = access_of("v", f"read:v/{hostile}")
    assert not access.allows(QUEUE, "a" * 255, READ)
    hostile = "*a*a*a*a*a*a*a*a*a*a*b"
    assert not matches(str(wildcard(hostile)), "a" * 100_000)


# -- renewal, as the bridge of AMQP 0-9-1 does it


def renewing() -> Peer:
    """A client that came in by a token and consumes from q."""
    rig = Rig()
    rig.users["guest"] = Permissions("guest", {}, scopes=Scopes(["read:*/*", "configure:*/*"]))
    peer = Peer(rig)
    peer.login()
    peer.open()
    peer.ask((1, QueueDeclare("q")))
    peer.ask((1, BasicConsume("q", "c")))
    return peer


def test_secrets_in_one_read_are_checked_one_after_the_other() -> None:
    peer = renewing()
    sent = [(0, ConnectionUpdateSecret(secret, "")) for secret in (b"one", b"two", b"three")]
    assert peer.ask(*sent) == [], "the owner is asked first"
    for secret in (b"one", b"two", b"three"):
        assert peer.bridge.pending_secret == secret
        assert not peer.bridge.wants_data
        peer.bridge.secret_accepted(peer.rig.users["guest"])
        assert peer.hear() == [(0, ConnectionUpdateSecretOk())]
    assert peer.bridge.pending_secret is None
    assert peer.bridge.wants_data


def test_narrower_scopes_close_the_channel_that_consumes() -> None:
    peer = renewing()
    peer.send((0, ConnectionUpdateSecret(b"narrow", "")))
    peer.bridge.secret_accepted(Permissions("guest", {}, scopes=Scopes(["read:*/other"])))
    text = "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'guest'"
    assert peer.hear() == [(1, ChannelClose(403, text, 60, 20)), (0, ConnectionUpdateSecretOk())]


def test_a_refused_secret_ends_the_connection_and_the_ones_behind_it() -> None:
    peer = renewing()
    peer.send((0, ConnectionUpdateSecret(b"bad", "")), (0, ConnectionUpdateSecret(b"good", "")))
    peer.bridge.secret_refused()
    text = "NOT_ALLOWED - the new secret was refused"
    assert peer.hear() == [(0, ConnectionClose(530, text, 0, 0))]
    assert peer.bridge.pending_secret is None
    peer.bridge.secret_accepted(peer.rig.users["guest"])
    assert peer.hear() == []


def test_a_connection_whose_token_has_expired_is_closed() -> None:
    peer = renewing()
    peer.bridge.credential_expired()
    text = "CONNECTION_FORCED - broker forced connection closure with reason 'credential expired'"
    assert peer.hear() == [(0, ConnectionClose(320, text, 0, 0))]
