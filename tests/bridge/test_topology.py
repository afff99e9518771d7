"""Classes exchange and queue: answers, names, permissions."""

from __future__ import annotations

import pytest

from tallymark.bridge.permissions import (
    CONFIGURE,
    EXCHANGE,
    QUEUE,
    READ,
    WRITE,
    Access,
    Permissions,
)
from tallymark.engine.errors import AccessRefused
from tallymark.wire.amqp091.methods import (
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from tests.bridge.rig import Peer, Rig


@pytest.mark.parametrize(
    "method",
    [
        QueueBind("gone", "amq.fanout", ""), BasicConsume("gone"), BasicGet("gone"),
        QueueDeclare("gone", passive=True), QueuePurge("gone"),
    ],
)  # fmt: skip
def test_what_another_client_has_deleted_is_not_found_when_the_disk_knows(method: Method) -> None:
    """After a power cut it could be back, though two had been told that it is not there."""
    rig = Rig()
    one, other = rig.connect(), rig.connect()
    one.ask(QueueDeclare("gone", durable=True))
    rig.hold_disk = True
    assert one.ask(QueueDelete("gone")) == []
    assert other.ask(method) == []
    rig.hold_disk = False
    assert one.hear() == [(1, QueueDeleteOk(0))]
    [(_, close)] = other.hear()
    assert isinstance(close, ChannelClose)
    assert close.reply_code == 404
    assert other.ask(ChannelCloseOk(), ChannelOpen()) == [(1, ChannelOpenOk())]


def test_every_method_is_answered() -> None:
    peer = Rig().connect()
    sent: list[tuple[Method, Method]] = [
        (ExchangeDeclare("x", "topic", durable=True), ExchangeDeclareOk()),
        (ExchangeDeclare("y", "fanout"), ExchangeDeclareOk()),
        (ExchangeDeclare("x", passive=True), ExchangeDeclareOk()),
        (ExchangeBind("y", "x", "#"), ExchangeBindOk()),
        (QueueDeclare("q"), QueueDeclareOk("q", 0, 0)),
        (QueueBind("q", "y", ""), QueueBindOk()),
        (QueueDeclare("q", passive=True), QueueDeclareOk("q", 0, 0)),
    ]
    for method, answer in sent:
        assert peer.ask(method) == [(1, answer)], method
    peer.ask(peer.publish(b"x", "any", exchange="x") * 3)
    peer.ask(BasicConsume("q", "c", no_ack=False))
    sent = [
        (QueueDeclare("q"), QueueDeclareOk("q", 0, 1)),
        (QueuePurge("q"), QueuePurgeOk(0)),
        (QueueUnbind("q", "y", ""), QueueUnbindOk()),
        (ExchangeUnbind("y", "x", "#"), ExchangeUnbindOk()),
        (QueueUnbind("no", "y", ""), QueueUnbindOk()),
        (ExchangeUnbind("no", "x", "#"), ExchangeUnbindOk()),
        (ExchangeDelete("y"), ExchangeDeleteOk()),
        (ExchangeDelete("y"), ExchangeDeleteOk()),
        (QueueDelete("no"), QueueDeleteOk(0)),
    ]
    for method, answer in sent:
        assert peer.ask(method) == [(1, answer)], method


def test_no_wait_is_not_answered() -> None:
    rig = Rig()
    peer = rig.connect()
    heard = peer.ask(
        ExchangeDeclare("x", "direct", no_wait=True, durable=True),
        ExchangeDeclare("y", "direct", no_wait=True),
        QueueDeclare("q", no_wait=True, durable=True),
        QueueBind("q", "x", "k", no_wait=True),
        ExchangeBind("x", "y", "k", no_wait=True),
        peer.publish(b"x", "k", exchange="y") * 2,
    )
    assert heard == []
    assert rig.broker.vhosts["/"].queues["q"].ready == 2
    heard = peer.ask(
        QueuePurge("q", no_wait=True),
        ExchangeUnbind("x", "y", "k", no_wait=True),
        ExchangeDelete("x", no_wait=True),
        QueueDelete("q", no_wait=True),
    )
    assert heard == []
    assert rig.broker.vhosts["/"].queues == {}


def test_purge_and_delete_say_how_many_there_were() -> None:
    peer = Rig().connect()
    peer.ask(QueueDeclare("q"), peer.publish() * 4)
    assert peer.ask(QueuePurge("q")) == [(1, QueuePurgeOk(4))]
    assert peer.ask(peer.publish() * 3, QueueDelete("q")) == [(1, QueueDeleteOk(3))]


def test_names_the_broker_gives() -> None:
    peer = Rig().connect()
    names = []
    for _ in range(2):
        ((_, answer),) = peer.ask(QueueDeclare("", exclusive=True))
        assert isinstance(answer, QueueDeclareOk)
        assert answer.queue.startswith("amq.gen-")
        assert len(answer.queue) == 30
        names.append(answer.queue)
    assert names[0] != names[1]
    assert peer.ask(QueueDeclare(names[0], passive=True)) == [(1, QueueDeclareOk(names[0], 0, 0))]
    assert peer.ask(QueueDelete(names[0])) == [(1, QueueDeleteOk(0))]


def test_an_empty_name_is_the_queue_declared_last_on_the_channel() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.open(2)
    peer.ask(QueueDeclare("one"), (2, QueueDeclare("two")))
    assert peer.ask(QueueBind("", "amq.direct", "")) == [(1, QueueBindOk())]
    peer.ask(peer.publish(b"x", "one", exchange="amq.direct"))
    assert rig.broker.vhosts["/"].queues["one"].ready == 1
    assert peer.ask(QueueUnbind("", "amq.direct", "")) == [(1, QueueUnbindOk())]
    assert peer.ask(QueuePurge("")) == [(1, QueuePurgeOk(1))]
    assert peer.ask((2, BasicGet(""))) == [(2, BasicGetEmpty())]
    assert peer.ask(BasicConsume("", "c")) == [(1, BasicConsumeOk("c"))]
    assert rig.broker.vhosts["/"].queues["one"].consumers[0].tag == "c"
    assert peer.ask(QueueDelete(""))[0] == (1, QueueDeleteOk(0))
    ((_, close),) = peer.ask(BasicGet(""))
    assert isinstance(close, ChannelClose)
    assert close.reply_text == "NOT_FOUND - no queue 'one' in vhost '/'"


def test_line_breaks_are_taken_out_of_names() -> None:
    peer = Rig().connect()
    assert peer.ask(QueueDeclare("a\r\nb")) == [(1, QueueDeclareOk("ab", 0, 0))]
    peer.ask(ExchangeDeclare("x\n", "direct"), ExchangeDeclare("y", "direct"))
    assert peer.ask(QueueBind("ab\n", "x\r", "k")) == [(1, QueueBindOk())]
    assert peer.ask(ExchangeBind("x\n", "y", "k")) == [(1, ExchangeBindOk())]
    assert peer.ask(ExchangeDelete("x\n"), QueueDelete("ab\n")) == [
        (1, ExchangeDeleteOk()),
        (1, QueueDeleteOk(0)),
    ]


def test_an_exclusive_queue_is_locked_for_others() -> None:
    rig = Rig()
    owner = rig.connect()
    owner.ask(QueueDeclare("mine", exclusive=True))
    methods: list[Method] = [
        QueueDeclare("mine", exclusive=True),
        QueueDeclare("mine", passive=True),
        QueueBind("mine", "amq.direct", "k"),
        QueuePurge("mine"),
        QueueDelete("mine"),
        BasicGet("mine"),
        BasicConsume("mine"),
    ]
    for method in methods:
        other = rig.connect()
        ((_, close),) = other.ask(method)
        assert isinstance(close, ChannelClose), method
        assert close.reply_code == 405, method
        assert close.reply_text.startswith(
            "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'"
        ), method


def test_an_auto_delete_queue_goes_with_its_last_consumer() -> None:
    rig = Rig()
    peer, other = rig.connect(), rig.connect()
    peer.ask(QueueDeclare("q", auto_delete=True), BasicConsume("q", "c"))
    other.ask(BasicConsume("q", "d"))
    peer.bridge.eof()
    assert "q" in rig.broker.vhosts["/"].queues
    other.ask(ChannelClose(200, "bye"))
    assert rig.broker.vhosts["/"].queues == {}


# -- permissions


LIMITED = Permissions("lim", {"/": ("^conf", "^wr", "^rd")})


def limited() -> Peer:
    rig = Rig()
    rig.users["lim"] = LIMITED
    admin = rig.connect()
    admin.ask(QueueDeclare("confq"), QueueDeclare("rdq"), QueueDeclare("wrq"))
    admin.ask(ExchangeDeclare("rdx", "direct"), ExchangeDeclare("wrx", "direct"))
    return rig.connect("lim")


# what is sent; what access is refused to, as RabbitMQ 3.10.8 says for these patterns
REFUSED: dict[str, tuple[Method | bytes, str]] = {
    "declare a queue": (QueueDeclare("foo"), "queue 'foo'"),
    "declare without a name": (QueueDeclare(""), "queue 'amq.gen-"),
    "dead letters from the queue": (
        QueueDeclare("confq2", arguments={"x-dead-letter-exchange": "foo"}), "queue 'confq2'"),
    "declare an exchange": (ExchangeDeclare("foo", "direct"), "exchange 'foo'"),
    "declare a system exchange": (ExchangeDeclare("amq.direct", "direct"), "exchange 'amq.direct'"),
    "an alternate from the exchange": (
        ExchangeDeclare("confx", "direct", arguments={"alternate-exchange": "foo"}),
        "exchange 'confx'"),
    "delete an exchange": (ExchangeDelete("foo"), "exchange 'foo'"),
    "bind a queue that may not be written": (QueueBind("confq", "amq.direct", "k"),
        "queue 'confq'"),
    "bind to an exchange that may not be read": (QueueBind("wrq", "amq.direct", "k"),
        "exchange 'amq.direct'"),
    "bind a queue to the default exchange": (QueueBind("confq", "", "k"), "queue 'confq'"),
    "unbind": (QueueUnbind("confq", "amq.direct", "k"), "queue 'confq'"),
    "bind an exchange": (ExchangeBind("foo", "bar", "k"), "exchange 'foo'"),
    "bind the default exchange": (ExchangeBind("", "bar", "k"), "exchange 'amq.default'"),
    "unbind an exchange": (ExchangeUnbind("wrx", "bar", "k"), "exchange 'bar'"),
    "get": (BasicGet("confq"), "queue 'confq'"),
    "get from nowhere": (BasicGet("zz"), "queue 'zz'"),
    "consume": (BasicConsume("confq"), "queue 'confq'"),
    "purge": (QueuePurge("confq"), "queue 'confq'"),
    "delete a queue": (QueueDelete("foo"), "queue 'foo'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_to_a_user_with_few_rights(name: str) -> None:
    sent, what = REFUSED[name]
    ((_, close),) = limited().ask(sent)
    assert isinstance(close, ChannelClose)
    assert close.reply_text.startswith(f"ACCESS_REFUSED - access to {what}")
    assert close.reply_text.endswith("in vhost '/' refused for user 'lim'")


@pytest.mark.parametrize(
    ("exchange", "code", "text"),
    [
        ("", 403, "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for "
            "user 'lim'"),
        ("nox", 403, "ACCESS_REFUSED - access to exchange 'nox' in vhost '/' refused for user "
            "'lim'"),
        ("wrong", 404, "NOT_FOUND - no exchange 'wrong' in vhost '/'"),
    ],
)  # fmt: skip
def test_publishing_needs_the_right_to_write(exchange: str, code: int, text: str) -> None:
    peer = limited()
    ((_, close),) = peer.ask(peer.publish(b"x", "k", exchange=exchange))
    assert close == ChannelClose(code, text, 60, 40)


def test_what_a_user_with_few_rights_may_do() -> None:
    peer = limited()
    sent: list[Method | bytes] = [
        QueueDeclare("confq"),
        QueueDeclare("rdq", passive=True),
        ExchangeDeclare("confx", "direct"),
        ExchangeDeclare("amq.topic", passive=True),
        QueueBind("wrq", "rdx", "k"),
        ExchangeBind("wrx", "rdx", "k"),
        peer.publish(b"x", "k", exchange="wrx"),
        BasicGet("rdq"),
        BasicConsume("rdq"),
        BasicConsume("amq.rabbitmq.reply-to", no_ack=True),
        QueuePurge("rdq"),
        QueueDelete("confq"),
    ]
    for method in sent:
        assert not any(isinstance(one, ChannelClose) for _, one in peer.ask(method)), method


def test_order_of_refusals_on_the_default_and_system_exchanges() -> None:
    ((_, close),) = limited().ask(QueueBind("wrq", "", "k"))
    assert isinstance(close, ChannelClose)
    assert "operation not permitted on the default exchange" in close.reply_text
    ((_, close),) = limited().ask(ExchangeDelete("amq.direct"))
    assert isinstance(close, ChannelClose)
    assert "deletion of system exchange 'amq.direct'" in close.reply_text


def test_a_user_without_a_virtual_host() -> None:
    rig = Rig()
    rig.users["nov"] = Permissions("nov", {"elsewhere": ("", "", "")})
    text = "NOT_ALLOWED - access to vhost '/' refused for user 'nov'"
    peer = Peer(rig)
    peer.rig.broker.registry.add_vhost("/other")
    assert peer.login("nov", vhost="/other") == [
        (0, ConnectionClose(530, text.replace("'/'", "'/other'"), 10, 40))
    ]


def test_patterns_match_anywhere_and_the_empty_one_nothing() -> None:
    access = Access("u", "/", ("", "b", ".*"))
    access.check(QUEUE, "abc", WRITE)
    access.check(QUEUE, "abc", WRITE)
    access.check(EXCHANGE, "", READ)
    access.check(QUEUE, "", CONFIGURE)
    for kind, name, operation in ((QUEUE, "a", CONFIGURE), (EXCHANGE, "", CONFIGURE)):
        with pytest.raises(AccessRefused):
            access.check(kind, name, operation)
    assert Permissions.all("u").patterns("any") == (".*", ".*", ".*")
    assert Permissions("u", {"*": ("a", "a", "a"), "v": ("", "", "")}).patterns("v") == ("", "", "")
