"""Layouts of all methods, derived from their classes, and the codec that they make.

Adjacent bits share an octet, lowest bit first [amqp-0.9.1 §4.2.5.2].
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, Final, cast, final

from tallymark.wire.amqp091 import methods
from tallymark.wire.amqp091.errors import NOT_IMPLEMENTED, SYNTAX_ERROR, WireError
from tallymark.wire.amqp091.fields import Reader
from tallymark.wire.amqp091.kinds import KIND, ZERO, read_field, write_field
from tallymark.wire.amqp091.methods import Method

METHODS: Final[tuple[tuple[int, int, type[Method], str], ...]] = (
    # connection [amqp-0.9.1 connection]
    (10, 10, methods.ConnectionStart, "*"),
    (10, 11, methods.ConnectionStartOk, "*"),
    (10, 20, methods.ConnectionSecure, "*"),
    (10, 21, methods.ConnectionSecureOk, "*"),
    (10, 30, methods.ConnectionTune, "*"),
    (10, 31, methods.ConnectionTuneOk, "*"),
    (10, 40, methods.ConnectionOpen, "* shortstr bit"),
    (10, 41, methods.ConnectionOpenOk, "shortstr"),
    (10, 50, methods.ConnectionClose, "*"),
    (10, 51, methods.ConnectionCloseOk, "*"),
    (10, 60, methods.ConnectionBlocked, "*"),
    (10, 61, methods.ConnectionUnblocked, "*"),
    (10, 70, methods.ConnectionUpdateSecret, "*"),
    (10, 71, methods.ConnectionUpdateSecretOk, "*"),
    # channel [amqp-0.9.1 channel]
    (20, 10, methods.ChannelOpen, "shortstr"),
    (20, 11, methods.ChannelOpenOk, "longstr"),
    (20, 20, methods.ChannelFlow, "*"),
    (20, 21, methods.ChannelFlowOk, "*"),
    (20, 40, methods.ChannelClose, "*"),
    (20, 41, methods.ChannelCloseOk, "*"),
    # access [amqp-0.9.1 access]
    (30, 10, methods.AccessRequest, "*"),
    (30, 11, methods.AccessRequestOk, "*"),
    # exchange [amqp-0.9.1 exchange]
    (40, 10, methods.ExchangeDeclare, "short *"),
    (40, 11, methods.ExchangeDeclareOk, "*"),
    (40, 20, methods.ExchangeDelete, "short *"),
    (40, 21, methods.ExchangeDeleteOk, "*"),
    (40, 30, methods.ExchangeBind, "short *"),
    (40, 31, methods.ExchangeBindOk, "*"),
    (40, 40, methods.ExchangeUnbind, "short *"),
    (40, 51, methods.ExchangeUnbindOk, "*"),
    # queue [amqp-0.9.1 queue]
    (50, 10, methods.QueueDeclare, "short *"),
    (50, 11, methods.QueueDeclareOk, "*"),
    (50, 20, methods.QueueBind, "short *"),
    (50, 21, methods.QueueBindOk, "*"),
    (50, 30, methods.QueuePurge, "short *"),
    (50, 31, methods.QueuePurgeOk, "*"),
    (50, 40, methods.QueueDelete, "short *"),
    (50, 41, methods.QueueDeleteOk, "*"),
    (50, 50, methods.QueueUnbind, "short *"),
    (50, 51, methods.QueueUnbindOk, "*"),
    # basic [amqp-0.9.1 basic]
    (60, 10, methods.BasicQos, "*"),
    (60, 11, methods.BasicQosOk, "*"),
    (60, 20, methods.BasicConsume, "short *"),
    (60, 21, methods.BasicConsumeOk, "*"),
    (60, 30, methods.BasicCancel, "*"),
    (60, 31, methods.BasicCancelOk, "*"),
    (60, 40, methods.BasicPublish, "short *"),
    (60, 50, methods.BasicReturn, "*"),
    (60, 60, methods.BasicDeliver, "*"),
    (60, 70, methods.BasicGet, "short *"),
    (60, 71, methods.BasicGetOk, "*"),
    (60, 72, methods.BasicGetEmpty, "shortstr"),
    (60, 80, methods.BasicAck, "*"),
    (60, 90, methods.BasicReject, "*"),
    (60, 100, methods.BasicRecoverAsync, "*"),
    (60, 110, methods.BasicRecover, "*"),
    (60, 111, methods.BasicRecoverOk, "*"),
    (60, 120, methods.BasicNack, "*"),
    # confirm [amqp-0.9.1 confirm]
    (85, 10, methods.ConfirmSelect, "*"),
    (85, 11, methods.ConfirmSelectOk, "*"),
    # tx [amqp-0.9.1 tx]
    (90, 10, methods.TxSelect, "*"),
    (90, 11, methods.TxSelectOk, "*"),
    (90, 20, methods.TxCommit, "*"),
    (90, 21, methods.TxCommitOk, "*"),
    (90, 30, methods.TxRollback, "*"),
    (90, 31, methods.TxRollbackOk, "*"),
)
"""Class id, method id, class, and kinds of fields: `*` stands for those that the class declares,
others are reserved, written as zero and ignored when read."""

_WORD: Final = re.compile("[A-Z][a-z]*")


@final
class Layout:
    """One row of `METHODS`, with the fields that its class declares."""

    __slots__ = ("class_id", "fields", "id", "kind", "method_id", "name")

    def __init__(self, class_id: int, method_id: int, kind: type[Method], kinds: str) -> None:
        self.class_id = class_id
        self.method_id = method_id
        self.id = class_id << 16 | method_id
        """First four bytes of the method's payload, big-endian."""
        self.name = _name(kind)
        """Name of the method in the specification: `queue.declare-ok`."""
        self.kind = kind
        self.fields: list[tuple[str, str]] = []
        """Fields as (name, kind); the name is `-` for a reserved field."""
        for one in kinds.split():
            if one == "*":
                self.fields += _declared(kind)
            else:
                self.fields.append(("-", one))


def _name(kind: type[Method]) -> str:
    family, *rest = [word.lower() for word in _WORD.findall(kind.__name__)]
    return f"{family}.{'-'.join(rest)}"


def _declared(kind: type[Method]) -> list[tuple[str, str]]:
    return [(one.name, one.metadata[KIND]) for one in fields(cast(Any, kind))]


BY_ID: Final[dict[int, Layout]] = {}
BY_CLASS: Final[dict[type[Method], Layout]] = {}
for _row in METHODS:
    _layout = Layout(_row[0], _row[1], _row[2], _row[3])
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
            value = read_field(reader, kind)
        if name != "-":
            values[name] = value
    return values


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
            write_field(out, kind, ZERO[kind] if name == "-" else getattr(method, name))
    return bytes(out)
