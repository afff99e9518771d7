"""Layouts of all methods in one table, in the manner of the specification [amqp-0.9.1 XML].

A field is `name:type`; `-` is a reserved field, written as zero and ignored when read. Adjacent
bits share an octet, lowest bit first [amqp-0.9.1 §4.2.5.2].
"""

from __future__ import annotations

from typing import Final, final

from tallymark.wire.amqp091.errors import NOT_IMPLEMENTED, SYNTAX_ERROR, WireError, clip
from tallymark.wire.amqp091.fields import (
    Reader,
    write_long_string,
    write_short_string,
    write_table,
)
from tallymark.wire.amqp091.methods import (
    AccessRequest,
    AccessRequestOk,
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
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
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)

# class id, method id, name, class, fields
METHODS: Final[tuple[tuple[int, int, str, type[Method], str], ...]] = (
    # connection [amqp-0.9.1 connection]
    (
        10,
        10,
        "connection.start",
        ConnectionStart,
        "version_major:octet version_minor:octet server_properties:table "
        "mechanisms:longstr locales:longstr",
    ),
    (
        10,
        11,
        "connection.start-ok",
        ConnectionStartOk,
        "client_properties:table mechanism:shortstr response:longstr locale:shortstr",
    ),
    (10, 20, "connection.secure", ConnectionSecure, "challenge:longstr"),
    (10, 21, "connection.secure-ok", ConnectionSecureOk, "response:longstr"),
    (10, 30, "connection.tune", ConnectionTune, "channel_max:short frame_max:long heartbeat:short"),
    (
        10,
        31,
        "connection.tune-ok",
        ConnectionTuneOk,
        "channel_max:short frame_max:long heartbeat:short",
    ),
    (10, 40, "connection.open", ConnectionOpen, "virtual_host:shortstr -:shortstr -:bit"),
    (10, 41, "connection.open-ok", ConnectionOpenOk, "-:shortstr"),
    (
        10,
        50,
        "connection.close",
        ConnectionClose,
        "reply_code:short reply_text:text class_id:short method_id:short",
    ),
    (10, 51, "connection.close-ok", ConnectionCloseOk, ""),
    (10, 60, "connection.blocked", ConnectionBlocked, "reason:text"),
    (10, 61, "connection.unblocked", ConnectionUnblocked, ""),
    (
        10,
        70,
        "connection.update-secret",
        ConnectionUpdateSecret,
        "new_secret:longstr reason:shortstr",
    ),
    (10, 71, "connection.update-secret-ok", ConnectionUpdateSecretOk, ""),
    # channel [amqp-0.9.1 channel]
    (20, 10, "channel.open", ChannelOpen, "-:shortstr"),
    (20, 11, "channel.open-ok", ChannelOpenOk, "-:longstr"),
    (20, 20, "channel.flow", ChannelFlow, "active:bit"),
    (20, 21, "channel.flow-ok", ChannelFlowOk, "active:bit"),
    (
        20,
        40,
        "channel.close",
        ChannelClose,
        "reply_code:short reply_text:text class_id:short method_id:short",
    ),
    (20, 41, "channel.close-ok", ChannelCloseOk, ""),
    # access [amqp-0.9.1 access]
    (
        30,
        10,
        "access.request",
        AccessRequest,
        "realm:shortstr exclusive:bit passive:bit active:bit write:bit read:bit",
    ),
    (30, 11, "access.request-ok", AccessRequestOk, "ticket:short"),
    # exchange [amqp-0.9.1 exchange]
    (
        40,
        10,
        "exchange.declare",
        ExchangeDeclare,
        "-:short exchange:shortstr type:shortstr passive:bit durable:bit "
        "auto_delete:bit internal:bit no_wait:bit arguments:table",
    ),
    (40, 11, "exchange.declare-ok", ExchangeDeclareOk, ""),
    (
        40,
        20,
        "exchange.delete",
        ExchangeDelete,
        "-:short exchange:shortstr if_unused:bit no_wait:bit",
    ),
    (40, 21, "exchange.delete-ok", ExchangeDeleteOk, ""),
    (
        40,
        30,
        "exchange.bind",
        ExchangeBind,
        "-:short destination:shortstr source:shortstr routing_key:shortstr "
        "no_wait:bit arguments:table",
    ),
    (40, 31, "exchange.bind-ok", ExchangeBindOk, ""),
    (
        40,
        40,
        "exchange.unbind",
        ExchangeUnbind,
        "-:short destination:shortstr source:shortstr routing_key:shortstr "
        "no_wait:bit arguments:table",
    ),
    (40, 51, "exchange.unbind-ok", ExchangeUnbindOk, ""),
    # queue [amqp-0.9.1 queue]
    (
        50,
        10,
        "queue.declare",
        QueueDeclare,
        "-:short queue:shortstr passive:bit durable:bit exclusive:bit auto_delete:bit "
        "no_wait:bit arguments:table",
    ),
    (
        50,
        11,
        "queue.declare-ok",
        QueueDeclareOk,
        "queue:shortstr message_count:long consumer_count:long",
    ),
    (
        50,
        20,
        "queue.bind",
        QueueBind,
        "-:short queue:shortstr exchange:shortstr routing_key:shortstr no_wait:bit arguments:table",
    ),
    (50, 21, "queue.bind-ok", QueueBindOk, ""),
    (50, 30, "queue.purge", QueuePurge, "-:short queue:shortstr no_wait:bit"),
    (50, 31, "queue.purge-ok", QueuePurgeOk, "message_count:long"),
    (
        50,
        40,
        "queue.delete",
        QueueDelete,
        "-:short queue:shortstr if_unused:bit if_empty:bit no_wait:bit",
    ),
    (50, 41, "queue.delete-ok", QueueDeleteOk, "message_count:long"),
    (
        50,
        50,
        "queue.unbind",
        QueueUnbind,
        "-:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table",
    ),
    (50, 51, "queue.unbind-ok", QueueUnbindOk, ""),
    # basic [amqp-0.9.1 basic]
    (60, 10, "basic.qos", BasicQos, "prefetch_size:long prefetch_count:short global_:bit"),
    (60, 11, "basic.qos-ok", BasicQosOk, ""),
    (
        60,
        20,
        "basic.consume",
        BasicConsume,
        "-:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit "
        "exclusive:bit no_wait:bit arguments:table",
    ),
    (60, 21, "basic.consume-ok", BasicConsumeOk, "consumer_tag:shortstr"),
    (60, 30, "basic.cancel", BasicCancel, "consumer_tag:shortstr no_wait:bit"),
    (60, 31, "basic.cancel-ok", BasicCancelOk, "consumer_tag:shortstr"),
    (
        60,
        40,
        "basic.publish",
        BasicPublish,
        "-:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit",
    ),
    (
        60,
        50,
        "basic.return",
        BasicReturn,
        "reply_code:short reply_text:text exchange:shortstr routing_key:shortstr",
    ),
    (
        60,
        60,
        "basic.deliver",
        BasicDeliver,
        "consumer_tag:shortstr delivery_tag:longlong redelivered:bit "
        "exchange:shortstr routing_key:shortstr",
    ),
    (60, 70, "basic.get", BasicGet, "-:short queue:shortstr no_ack:bit"),
    (
        60,
        71,
        "basic.get-ok",
        BasicGetOk,
        "delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr "
        "message_count:long",
    ),
    (60, 72, "basic.get-empty", BasicGetEmpty, "-:shortstr"),
    (60, 80, "basic.ack", BasicAck, "delivery_tag:longlong multiple:bit"),
    (60, 90, "basic.reject", BasicReject, "delivery_tag:longlong requeue:bit"),
    (60, 100, "basic.recover-async", BasicRecoverAsync, "requeue:bit"),
    (60, 110, "basic.recover", BasicRecover, "requeue:bit"),
    (60, 111, "basic.recover-ok", BasicRecoverOk, ""),
    (60, 120, "basic.nack", BasicNack, "delivery_tag:longlong multiple:bit requeue:bit"),
    # confirm [amqp-0.9.1 confirm]
    (85, 10, "confirm.select", ConfirmSelect, "no_wait:bit"),
    (85, 11, "confirm.select-ok", ConfirmSelectOk, ""),
    # tx [amqp-0.9.1 tx]
    (90, 10, "tx.select", TxSelect, ""),
    (90, 11, "tx.select-ok", TxSelectOk, ""),
    (90, 20, "tx.commit", TxCommit, ""),
    (90, 21, "tx.commit-ok", TxCommitOk, ""),
    (90, 30, "tx.rollback", TxRollback, ""),
    (90, 31, "tx.rollback-ok", TxRollbackOk, ""),
)

_SIZES: Final = {"octet": 1, "short": 2, "long": 4, "longlong": 8}


@final
class Layout:
    """One row of `METHODS`, parsed."""

    __slots__ = ("class_id", "fields", "id", "kind", "method_id", "name")

    def __init__(
        self, class_id: int, method_id: int, name: str, kind: type[Method], fields: str
    ) -> None:
        self.class_id = class_id
        self.method_id = method_id
        self.id = class_id << 16 | method_id
        """First four bytes of the method's payload, big-endian."""
        self.name = name
        self.kind = kind
        self.fields: list[tuple[str, str]] = []
        """Fields as (name, type); the name is `-` for a reserved field."""
        for field in fields.split():
            field_name, _, field_type = field.partition(":")
            self.fields.append((field_name, field_type))


BY_ID: Final[dict[int, Layout]] = {}
BY_CLASS: Final[dict[type[Method], Layout]] = {}
for _row in METHODS:
    _layout = Layout(_row[0], _row[1], _row[2], _row[3], _row[4])
    BY_ID[_layout.id] = _layout
    BY_CLASS[_layout.kind] = _layout


def layout_of(method: Method) -> Layout:
    """Return ids, name and fields of a method."""
    return BY_CLASS[type(method)]


def decode_method(payload: bytes) -> Method:
    """Decode the method in a method frame's payload.

    Raises WireError: 540 for unknown ids, 502 for fields that do not fit; both name the method in
    class_id and method_id.
    """
    if len(payload) < 4:
        raise WireError(SYNTAX_ERROR, f"method frame of {len(payload)} bytes, at least 4 expected")
    layout = BY_ID.get(int.from_bytes(payload[:4], "big"))
    if layout is None:
        class_id = int.from_bytes(payload[:2], "big")
        method_id = int.from_bytes(payload[2:4], "big")
        raise WireError(
            NOT_IMPLEMENTED, f"unknown method {class_id}.{method_id}", class_id, method_id
        )
    reader = Reader(payload, 4, len(payload))
    try:
        values = _read_fields(reader, layout)
        if reader.pos != reader.end:
            raise WireError(SYNTAX_ERROR, f"{reader.end - reader.pos} bytes after the last field")
    except WireError as error:
        raise WireError(
            error.reply_code, f"{layout.name}: {error.text}", layout.class_id, layout.method_id
        ) from None
    return layout.kind(**values)


def _read_fields(reader: Reader, layout: Layout) -> dict[str, object]:
    values: dict[str, object] = {}
    bits = 0
    bit = 8  # bits of the current octet that are used up; 8: the next bit opens another octet
    for name, kind in layout.fields:
        value: object
        if kind == "bit":
            if bit == 8:
                bits = reader.unsigned(1)
                bit = 0
            value = bits >> bit & 1 == 1
            bit += 1
        else:
            bit = 8
            value = _read_field(reader, kind)
        if name != "-":
            values[name] = value
    return values


def _read_field(reader: Reader, kind: str) -> object:
    if kind == "shortstr" or kind == "text":
        return reader.short_string()
    if kind == "table":
        return reader.table()
    if kind == "longstr":
        return reader.long_string()
    return reader.unsigned(_SIZES[kind])


def encode_method(method: Method) -> bytes:
    """Encode the payload of a method frame.

    Raises ValueError where a value does not fit its field; reply texts and reasons are cut to fit.
    """
    layout = layout_of(method)
    out = bytearray(layout.id.to_bytes(4, "big"))
    bit = 8
    for name, kind in layout.fields:
        if kind == "bit":
            if bit == 8:
                out.append(0)
                bit = 0
            if name != "-" and getattr(method, name):
                out[-1] |= 1 << bit
            bit += 1
        else:
            bit = 8
            _write_field(out, kind, _ZERO[kind] if name == "-" else getattr(method, name))
    return bytes(out)


_ZERO: Final[dict[str, object]] = {
    "octet": 0,
    "short": 0,
    "long": 0,
    "longlong": 0,
    "shortstr": "",
    "longstr": b"",
}


def _write_field(out: bytearray, kind: str, value: object) -> None:
    if kind == "shortstr":
        assert isinstance(value, str)
        write_short_string(out, value)
    elif kind == "text":
        assert isinstance(value, str)
        write_short_string(out, clip(value))
    elif kind == "table":
        assert isinstance(value, dict)
        write_table(out, value)
    elif kind == "longstr":
        assert isinstance(value, bytes)
        write_long_string(out, value)
    else:
        assert isinstance(value, int)
        size = _SIZES[kind]
        if not 0 <= value < 1 << 8 * size:
            raise ValueError(f"integer {value} does not fit {8 * size} unsigned bits")
        out += value.to_bytes(size, "big")
