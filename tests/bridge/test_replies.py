"""Every refusal: reply code, text, how far it reaches, and which method it names.

The texts are what RabbitMQ 3.10.8 answers to the same frames (of an exchange type it says `invalid`
where its runtime knows the word, else `unknown`). Codes that cannot occur there either:
311 (a body above the limit is 406), 313 (immediate=true is 540), 402 (an unknown virtual host is
530); 502 comes only from the decoder, 506 from limits, 541 from our own mistakes.
"""

from __future__ import annotations

import pytest

from tallymark.bridge.amqp091.errors import REPLY_CODES, wire_error
from tallymark.engine import errors as engine_errors
from tallymark.engine.errors import BrokerError
from tallymark.wire.amqp091.errors import CONNECTION, REPLIES
from tallymark.wire.amqp091.layouts import BY_CLASS
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlowOk,
    ChannelOpen,
    ConfirmSelect,
    ConnectionClose,
    ConnectionOpen,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
    TxCommit,
    TxRollback,
    TxSelect,
)
from tallymark.wire.amqp091.properties import Properties
from tests.bridge.rig import Heard, Rig
from tests.support.amqp091 import method_frame, publish

Q = QueueDeclare("q")


def message(
    exchange: str = "", key: str = "q", immediate: bool = False, **properties: object
) -> bytes:
    if immediate:
        whole = publish(1, b"x", exchange=exchange, routing_key=key)
        method = method_frame(1, BasicPublish(exchange, key))
        return method_frame(1, BasicPublish(exchange, key, False, True)) + whole[len(method) :]
    return publish(
        1,
        b"x",
        exchange=exchange,
        routing_key=key,
        properties=Properties(**properties),  # type: ignore[arg-type]
    )


def headers(**table: object) -> bytes:
    return message(key="nowhere", headers=table)


# name: what is sent, the method that is refused, code, text
CHANNEL_ERRORS: dict[str, tuple[list[Method | bytes], type[Method], int, str]] = {
    "get from nowhere": ([BasicGet("no")], BasicGet, 404,
        "NOT_FOUND - no queue 'no' in vhost '/'"),
    "get without a name": ([BasicGet()], BasicGet, 404, "NOT_FOUND - no previously declared queue"),
    "consume without a name": ([BasicConsume()], BasicConsume, 404,
        "NOT_FOUND - no previously declared queue"),
    "bind without a name": ([QueueBind("", "amq.direct", "k")], QueueBind, 404,
        "NOT_FOUND - no previously declared queue"),
    "unbind without a name": ([QueueUnbind("", "amq.direct", "k")], QueueUnbind, 404,
        "NOT_FOUND - no previously declared queue"),
    "purge without a name": ([QueuePurge()], QueuePurge, 404,
        "NOT_FOUND - no previously declared queue"),
    "delete without a name": ([QueueDelete()], QueueDelete, 404,
        "NOT_FOUND - no previously declared queue"),
    "passive, no such queue": ([QueueDeclare("no", passive=True)], QueueDeclare, 404,
        "NOT_FOUND - no queue 'no' in vhost '/'"),
    "passive, no name": ([QueueDeclare("", passive=True)], QueueDeclare, 404,
        "NOT_FOUND - no queue '' in vhost '/'"),
    "reserved queue name": ([QueueDeclare("amq.foo")], QueueDeclare, 403,
        "ACCESS_REFUSED - queue name 'amq.foo' contains reserved prefix 'amq.*'"),
    "reserved queue name, no-wait": ([QueueDeclare("amq.foo", no_wait=True)], QueueDeclare, 403,
        "ACCESS_REFUSED - queue name 'amq.foo' contains reserved prefix 'amq.*'"),
    "another durability": ([Q, QueueDeclare("q", durable=True)], QueueDeclare, 406,
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': "
        "received 'true' but current is 'false'"),
    "purge of nothing": ([QueuePurge("no")], QueuePurge, 404,
        "NOT_FOUND - no queue 'no' in vhost '/'"),
    "delete a queue in use": ([Q, BasicConsume("q", "c"), QueueDelete("q", if_unused=True)],
        QueueDelete, 406, "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"),
    "delete a queue that holds something": (
        [Q, message(), QueueDelete("q", if_empty=True)],
        QueueDelete, 406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"),
    "passive, no such exchange": ([ExchangeDeclare("no", passive=True)], ExchangeDeclare, 404,
        "NOT_FOUND - no exchange 'no' in vhost '/'"),
    "reserved exchange name": ([ExchangeDeclare("amq.foo", "direct")], ExchangeDeclare, 403,
        "ACCESS_REFUSED - exchange name 'amq.foo' contains reserved prefix 'amq.*'"),
    "declare the default exchange": ([ExchangeDeclare("", "direct")], ExchangeDeclare, 403,
        "ACCESS_REFUSED - operation not permitted on the default exchange"),
    "look for the default exchange": ([ExchangeDeclare("", passive=True)], ExchangeDeclare, 403,
        "ACCESS_REFUSED - operation not permitted on the default exchange"),
    "delete the default exchange": ([ExchangeDelete("")], ExchangeDelete, 403,
        "ACCESS_REFUSED - operation not permitted on the default exchange"),
    "delete a system exchange": ([ExchangeDelete("amq.direct")], ExchangeDelete, 403,
        "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed"),
    "bind to the default exchange": ([Q, QueueBind("q", "", "k")], QueueBind, 403,
        "ACCESS_REFUSED - operation not permitted on the default exchange"),
    "bind no queue": ([QueueBind("no", "amq.direct", "k")], QueueBind, 404,
        "NOT_FOUND - no queue 'no' in vhost '/'"),
    "bind no exchange": ([Q, QueueBind("q", "no", "k")], QueueBind, 404,
        "NOT_FOUND - no exchange 'no' in vhost '/'"),
    "bind exchanges, none there": ([ExchangeBind("a", "b", "k")], ExchangeBind, 404,
        "NOT_FOUND - no exchange 'b' in vhost '/'"),
    "bind the default exchange": ([ExchangeBind("", "amq.direct", "k")], ExchangeBind, 403,
        "ACCESS_REFUSED - operation not permitted on the default exchange"),
    "publish to no exchange": ([message("no")], BasicPublish, 404,
        "NOT_FOUND - no exchange 'no' in vhost '/'"),
    "publish to an internal exchange": (
        [ExchangeDeclare("i", "direct", internal=True), message("i")], BasicPublish, 403,
        "ACCESS_REFUSED - cannot publish to internal exchange 'i' in vhost '/'"),
    "another's user-id": ([message(user_id="bob")], BasicPublish, 406,
        "PRECONDITION_FAILED - user_id property set to 'bob' but authenticated user was 'guest'"),
    "expiration, no number": ([message(expiration="abc")], BasicPublish, 406,
        "PRECONDITION_FAILED - invalid expiration 'abc': no_integer"),
    "expiration, empty": ([message(expiration="")], BasicPublish, 406,
        "PRECONDITION_FAILED - invalid expiration '': no_integer"),
    "expiration, a space first": ([message(expiration=" 1")], BasicPublish, 406,
        "PRECONDITION_FAILED - invalid expiration ' 1': no_integer"),
    "expiration, negative": ([message(expiration="-1")], BasicPublish, 406,
        "PRECONDITION_FAILED - invalid expiration '-1': {value_negative,-1}"),
    "expiration, a fraction": ([message(expiration="1.5")], BasicPublish, 406,
        "PRECONDITION_FAILED - invalid expiration '1.5': {leftover_string,\".5\"}"),
    "CC is no array": ([headers(CC="str")], BasicPublish, 406,
        'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}'),
    "CC is void": ([headers(CC=None)], BasicPublish, 406,
        'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",void}'),
    "BCC is no array": ([headers(BCC=5)], BasicPublish, 406,
        'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"BCC",signedint}'),
    "reply-to without a reply consumer": (
        [message(key="nowhere", reply_to="amq.rabbitmq.reply-to")], BasicPublish, 406,
        "PRECONDITION_FAILED - fast reply consumer does not exist"),
    "reply consumer that acknowledges": ([BasicConsume("amq.rabbitmq.reply-to")], BasicConsume, 406,
        "PRECONDITION_FAILED - reply consumer cannot acknowledge"),
    "second reply consumer": (
        [BasicConsume("amq.rabbitmq.reply-to", no_ack=True),
         BasicConsume("amq.rabbitmq.reply-to", no_ack=True)], BasicConsume, 406,
        "PRECONDITION_FAILED - reply consumer already set"),
    "get from the pseudo queue": ([BasicGet("amq.rabbitmq.reply-to")], BasicGet, 404,
        "NOT_FOUND - no queue 'amq.rabbitmq.reply-to' in vhost '/'"),
    "a reply consumer that is gone": (
        [QueueDeclare("amq.rabbitmq.reply-to.abc")], QueueDeclare, 404,
        "NOT_FOUND - no queue 'amq.rabbitmq.reply-to.abc' in vhost '/'"),
    "exclusive consumer, not alone": (
        [Q, BasicConsume("q", "a"), BasicConsume("q", "b", exclusive=True)], BasicConsume, 403,
        "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"),
    "x-priority is no number": ([Q, BasicConsume("q", "a", arguments={"x-priority": "a"})],
        BasicConsume, 406,
        "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '/': "
        '"expected integer, got longstr"'),
    "ack of nothing": ([BasicAck(5)], BasicAck, 406,
        "PRECONDITION_FAILED - unknown delivery tag 5"),
    "ack of tag 0": ([BasicAck(0)], BasicAck, 406, "PRECONDITION_FAILED - unknown delivery tag 0"),
    "ack of nothing, multiple": ([BasicAck(7, True)], BasicAck, 406,
        "PRECONDITION_FAILED - unknown delivery tag 7"),
    "nack of nothing": ([BasicNack(7)], BasicNack, 406,
        "PRECONDITION_FAILED - unknown delivery tag 7"),
    "reject of nothing": ([BasicReject(7)], BasicReject, 406,
        "PRECONDITION_FAILED - unknown delivery tag 7"),
    "transactions after confirms": ([ConfirmSelect(), TxSelect()], TxSelect, 406,
        "PRECONDITION_FAILED - cannot switch from confirm to tx mode"),
    "confirms after transactions": ([TxSelect(), ConfirmSelect()], ConfirmSelect, 406,
        "PRECONDITION_FAILED - cannot switch from tx to confirm mode"),
    "commit of nothing": ([TxCommit()], TxCommit, 406,
        "PRECONDITION_FAILED - channel is not transactional"),
    "rollback of nothing": ([TxRollback()], TxRollback, 406,
        "PRECONDITION_FAILED - channel is not transactional"),
}  # fmt: skip

CONNECTION_ERRORS: dict[str, tuple[list[Method | bytes], type[Method] | None, int, str]] = {
    "channel opened twice": ([ChannelOpen()], ChannelOpen, 504,
        "CHANNEL_ERROR - second 'channel.open' seen"),
    "method on a closed channel": ([method_frame(2, BasicGet("x"))], BasicGet, 504,
        "CHANNEL_ERROR - expected 'channel.open'"),
    "connection opened twice": ([method_frame(0, ConnectionOpen("/"))], ConnectionOpen, 504,
        "CHANNEL_ERROR - unexpected method in connection state running"),
    "unknown exchange type": ([ExchangeDeclare("x", "foo")], ExchangeDeclare, 503,
        "COMMAND_INVALID - unknown exchange type 'foo'"),
    "a server's method": ([BasicGetOk(1)], BasicGetOk, 503,
        "COMMAND_INVALID - unimplemented method"),
    "another of them": ([BasicCancelOk("c")], BasicCancelOk, 503,
        "COMMAND_INVALID - unimplemented method"),
    "close-ok out of the blue": ([ChannelCloseOk()], ChannelCloseOk, 503,
        "COMMAND_INVALID - unimplemented method"),
    "flow-ok out of the blue": ([ChannelFlowOk(True)], ChannelFlowOk, 503,
        "COMMAND_INVALID - unimplemented method"),
    "prefetch by bytes": ([BasicQos(5)], BasicQos, 540,
        "NOT_IMPLEMENTED - prefetch_size!=0 (5)"),
    "immediate": ([message(immediate=True)], BasicPublish, 540, "NOT_IMPLEMENTED - immediate=true"),
    "recover without requeue": ([BasicRecover(False)], BasicRecover, 540,
        "NOT_IMPLEMENTED - requeue=false"),
    "recover-async without requeue": ([BasicRecoverAsync(False)], BasicRecoverAsync, 540,
        "NOT_IMPLEMENTED - requeue=false"),
    "consumer tag reused": (
        [Q, BasicConsume("q", "me"), BasicConsume("q", "me")], BasicConsume, 530,
        "NOT_ALLOWED - attempt to reuse consumer tag 'me'"),
    "consumer tag reused for replies": (
        [Q, BasicConsume("q", "me"), BasicConsume("amq.rabbitmq.reply-to", "me", no_ack=True)],
        BasicConsume, 530, "NOT_ALLOWED - attempt to reuse consumer tag 'me'"),
    "unknown frame type": ([b"\x07\0\1\0\0\0\0\xce"], None, 501,
        "FRAME_ERROR - type 7, all octets = <<>>: unknown_frame"),
    "wrong frame end": ([b"\x01\0\1\0\0\0\4\0\x3c\0\x46\xcd"], None, 501,
        "FRAME_ERROR - type 1, all octets = <<0,60,0,70>>: {invalid_frame_end_marker,205}"),
    "header without publish": (
        [b"\x02\0\1\0\0\0\x0e\0\x3c\0\0\0\0\0\0\0\0\0\0\0\0\xce"], None, 505,
        "UNEXPECTED_FRAME - expected method frame, got non method frame instead"),
}  # fmt: skip


def closes(heard: list[Heard]) -> list[Heard]:
    return [one for one in heard if isinstance(one[1], (ChannelClose, ConnectionClose))]


@pytest.mark.parametrize("name", CHANNEL_ERRORS)
def test_refused_with_the_channel(name: str) -> None:
    sent, refused, code, text = CHANNEL_ERRORS[name]
    rig = Rig()
    peer = rig.connect()
    layout = BY_CLASS[refused]
    heard = closes(peer.ask(*sent))
    assert heard == [(1, ChannelClose(code, text, layout.class_id, layout.method_id))]
    assert not peer.bridge.closing
    assert rig.broker.connections[peer.bridge.connection.id].sessions == []  # type: ignore[union-attr]
    # The connection is as good as before, and so is the channel once it is opened again.
    peer.send(ChannelCloseOk())
    peer.open(1)
    rig.broker.check()


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
def test_refused_with_the_connection(name: str) -> None:
    sent, refused, code, text = CONNECTION_ERRORS[name]
    rig = Rig()
    peer = rig.connect()
    class_id = 0 if refused is None else BY_CLASS[refused].class_id
    method_id = 0 if refused is None else BY_CLASS[refused].method_id
    heard = closes(peer.ask(*sent))
    assert heard == [(0, ConnectionClose(code, text, class_id, method_id))]
    assert rig.broker.connections == {}
    assert not peer.bridge.closing
    rig.broker.check()


def test_a_body_above_the_limit_costs_the_channel() -> None:
    rig = Rig(Limits(max_message_bytes=1000))
    peer = rig.connect()
    heard = peer.ask(publish(1, b"x" * 1001), BasicGet("no"))
    text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    assert heard == [(1, ChannelClose(406, text, 60, 40))]
    peer.send(ChannelCloseOk())
    peer.open(1)


def test_too_many_channels_cost_the_connection() -> None:
    rig = Rig()
    peer = rig.connect(channel_max=2)
    peer.open(2)
    ((number, close),) = peer.ask((3, ChannelOpen()))
    assert number == 0
    assert isinstance(close, ConnectionClose)
    assert close.reply_code == 504
    assert "channel_max (2)" in close.reply_text


def test_shutdown_is_connection_forced() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.bridge.shutdown()
    text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    assert peer.hear() == [(0, ConnectionClose(320, text, 0, 0))]


def test_every_engine_error_has_a_reply_code() -> None:
    kinds = [
        kind
        for kind in vars(engine_errors).values()
        if isinstance(kind, type) and issubclass(kind, BrokerError) and kind is not BrokerError
    ]
    assert set(REPLY_CODES) == set(kinds)
    for kind in kinds:
        error = wire_error(kind("why"), 60, 70)
        name = "" if kind is engine_errors.TooSlow else f"{REPLIES[error.reply_code][0]} - "
        assert error.reply_text == f"{name}why"
        assert (error.class_id, error.method_id) == (60, 70)
    unknown = wire_error(BrokerError("?"), 0, 0)
    assert (unknown.reply_code, unknown.scope) == (541, CONNECTION)


def test_a_long_text_is_cut_at_255_bytes() -> None:
    rig = Rig()
    peer = rig.connect()
    ((_, close),) = peer.ask(BasicGet("ä" * 127))
    assert isinstance(close, ChannelClose)
    assert close.reply_text.startswith("NOT_FOUND - no queue 'ää")
    assert close.reply_text.endswith("...")
    assert len(close.reply_text.encode()) <= 255


def test_cancel_of_an_unknown_consumer_is_no_error() -> None:
    rig = Rig()
    peer = rig.connect()
    heard = peer.ask(BasicCancel("no"), BasicCancel("no", no_wait=True))
    assert heard == [(1, BasicCancelOk("no"))]


@pytest.mark.parametrize("expiration", ["0", "007", "+1", "4294967296", "99999999999"])
def test_expirations_that_are_accepted(expiration: str) -> None:
    rig = Rig()
    peer = rig.connect()
    assert closes(peer.ask(Q)) == []
    peer.send(message(expiration=expiration))
    (piece,) = rig.broker.vhosts["/"].queues["q"].slices()
    assert piece.annotations is not None
    assert piece.annotations.ttl_ms == int(expiration)
    assert closes(peer.hear()) == []
