"""Every method of AMQP 0-9-1 as a value: class and field names are the specification's.

The default of a field says its kind on the wire (kinds.py). Long strings are bytes, tables dicts
(fields.py), bits bools. Reserved fields are not shown: layouts.py says where they stand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tallymark.wire.amqp091.kinds import (
    bit,
    long,
    longlong,
    longstr,
    octet,
    short,
    shortstr,
    table,
    text,
)

Table = dict[str, object]


class Method:
    """Base of all methods; equal when class and fields are."""


@final
@dataclass(frozen=True)
class ConnectionStart(Method):
    """Offer of the server: its version, properties, mechanisms and locales (space-separated)."""

    version_major: int = octet()
    version_minor: int = octet()
    server_properties: Table = table()
    mechanisms: bytes = longstr()
    locales: bytes = longstr()


@final
@dataclass(frozen=True)
class ConnectionStartOk(Method):
    """The client's choice of mechanism and its first response."""

    client_properties: Table = table()
    mechanism: str = shortstr()
    response: bytes = longstr()
    locale: str = shortstr()


@final
@dataclass(frozen=True)
class ConnectionSecure(Method):
    """A further challenge of the chosen mechanism."""

    challenge: bytes = longstr()


@final
@dataclass(frozen=True)
class ConnectionSecureOk(Method):
    """The answer to a challenge."""

    response: bytes = longstr()


@final
@dataclass(frozen=True)
class ConnectionTune(Method):
    """Limits proposed: highest channel, frame bytes, heartbeat seconds; 0: no limit, none."""

    channel_max: int = short()
    frame_max: int = long()
    heartbeat: int = short()


@final
@dataclass(frozen=True)
class ConnectionTuneOk(Method):
    """Limits the client settles on, none above what was proposed."""

    channel_max: int = short()
    frame_max: int = long()
    heartbeat: int = short()


@final
@dataclass(frozen=True)
class ConnectionOpen(Method):
    """[amqp-0.9.1 connection.open]"""

    virtual_host: str = shortstr()


@final
@dataclass(frozen=True)
class ConnectionOpenOk(Method):
    """[amqp-0.9.1 connection.open-ok]"""


@final
@dataclass(frozen=True)
class ConnectionClose(Method):
    """Reason why the connection ends; class_id and method_id name the method at fault, or are 0."""

    reply_code: int = short()
    reply_text: str = text()
    class_id: int = short()
    method_id: int = short()


@final
@dataclass(frozen=True)
class ConnectionCloseOk(Method):
    """[amqp-0.9.1 connection.close-ok]"""


@final
@dataclass(frozen=True)
class ConnectionBlocked(Method):
    """The broker reads no publishes for now [rabbitmq connection.blocked]."""

    reason: str = text()


@final
@dataclass(frozen=True)
class ConnectionUnblocked(Method):
    """[amqp-0.9.1 connection.unblocked]"""


@final
@dataclass(frozen=True)
class ConnectionUpdateSecret(Method):
    """A fresh credential for a running connection [rabbitmq update-secret]."""

    new_secret: bytes = longstr()
    reason: str = shortstr()


@final
@dataclass(frozen=True)
class ConnectionUpdateSecretOk(Method):
    """[amqp-0.9.1 connection.update-secret-ok]"""


@final
@dataclass(frozen=True)
class ChannelOpen(Method):
    """[amqp-0.9.1 channel.open]"""


@final
@dataclass(frozen=True)
class ChannelOpenOk(Method):
    """[amqp-0.9.1 channel.open-ok]"""


@final
@dataclass(frozen=True)
class ChannelFlow(Method):
    """Stop or resume content in the other direction."""

    active: bool = bit()


@final
@dataclass(frozen=True)
class ChannelFlowOk(Method):
    """[amqp-0.9.1 channel.flow-ok]"""

    active: bool = bit()


@final
@dataclass(frozen=True)
class ChannelClose(Method):
    """Reason why the channel ends; class_id and method_id name the method at fault, or are 0."""

    reply_code: int = short()
    reply_text: str = text()
    class_id: int = short()
    method_id: int = short()


@final
@dataclass(frozen=True)
class ChannelCloseOk(Method):
    """[amqp-0.9.1 channel.close-ok]"""


@final
@dataclass(frozen=True)
class AccessRequest(Method):
    """Request for access of 0-8 and 0-9. Tickets have no effect any more, but old clients ask for
    them."""

    realm: str = shortstr()
    exclusive: bool = bit()
    passive: bool = bit()
    active: bool = bit()
    write: bool = bit()
    read: bool = bit()


@final
@dataclass(frozen=True)
class AccessRequestOk(Method):
    """[amqp-0.9.1 access.request-ok]"""

    ticket: int = short()


@final
@dataclass(frozen=True)
class ExchangeDeclare(Method):
    """[amqp-0.9.1 exchange.declare]"""

    exchange: str = shortstr()
    type: str = shortstr()
    passive: bool = bit()
    durable: bool = bit()
    auto_delete: bool = bit()
    internal: bool = bit()
    no_wait: bool = bit()
    arguments: Table = table()


@final
@dataclass(frozen=True)
class ExchangeDeclareOk(Method):
    """[amqp-0.9.1 exchange.declare-ok]"""


@final
@dataclass(frozen=True)
class ExchangeDelete(Method):
    """[amqp-0.9.1 exchange.delete]"""

    exchange: str = shortstr()
    if_unused: bool = bit()
    no_wait: bool = bit()


@final
@dataclass(frozen=True)
class ExchangeDeleteOk(Method):
    """[amqp-0.9.1 exchange.delete-ok]"""


@final
@dataclass(frozen=True)
class ExchangeBind(Method):
    """[amqp-0.9.1 exchange.bind]"""

    destination: str = shortstr()
    source: str = shortstr()
    routing_key: str = shortstr()
    no_wait: bool = bit()
    arguments: Table = table()


@final
@dataclass(frozen=True)
class ExchangeBindOk(Method):
    """[amqp-0.9.1 exchange.bind-ok]"""


@final
@dataclass(frozen=True)
class ExchangeUnbind(Method):
    """[amqp-0.9.1 exchange.unbind]"""

    destination: str = shortstr()
    source: str = shortstr()
    routing_key: str = shortstr()
    no_wait: bool = bit()
    arguments: Table = table()


@final
@dataclass(frozen=True)
class ExchangeUnbindOk(Method):
    """Unbinding of an exchange; its method id is 51, not 41 [rabbitmq exchange.unbind]."""


@final
@dataclass(frozen=True)
class QueueDeclare(Method):
    """[amqp-0.9.1 queue.declare]"""

    queue: str = shortstr()
    passive: bool = bit()
    durable: bool = bit()
    exclusive: bool = bit()
    auto_delete: bool = bit()
    no_wait: bool = bit()
    arguments: Table = table()


@final
@dataclass(frozen=True)
class QueueDeclareOk(Method):
    """The queue's name (the server's choice when none was given) and its counts."""

    queue: str = shortstr()
    message_count: int = long()
    consumer_count: int = long()


@final
@dataclass(frozen=True)
class QueueBind(Method):
    """[amqp-0.9.1 queue.bind]"""

    queue: str = shortstr()
    exchange: str = shortstr()
    routing_key: str = shortstr()
    no_wait: bool = bit()
    arguments: Table = table()


@final
@dataclass(frozen=True)
class QueueBindOk(Method):
    """[amqp-0.9.1 queue.bind-ok]"""


@final
@dataclass(frozen=True)
class QueuePurge(Method):
    """[amqp-0.9.1 queue.purge]"""

    queue: str = shortstr()
    no_wait: bool = bit()


@final
@dataclass(frozen=True)
class QueuePurgeOk(Method):
    """[amqp-0.9.1 queue.purge-ok]"""

    message_count: int = long()


@final
@dataclass(frozen=True)
class QueueDelete(Method):
    """[amqp-0.9.1 queue.delete]"""

    queue: str = shortstr()
    if_unused: bool = bit()
    if_empty: bool = bit()
    no_wait: bool = bit()


@final
@dataclass(frozen=True)
class QueueDeleteOk(Method):
    """[amqp-0.9.1 queue.delete-ok]"""

    message_count: int = long()


@final
@dataclass(frozen=True)
class QueueUnbind(Method):
    """[amqp-0.9.1 queue.unbind]"""

    queue: str = shortstr()
    exchange: str = shortstr()
    routing_key: str = shortstr()
    arguments: Table = table()


@final
@dataclass(frozen=True)
class QueueUnbindOk(Method):
    """[amqp-0.9.1 queue.unbind-ok]"""


@final
@dataclass(frozen=True)
class BasicQos(Method):
    """`global_` is the specification's `global`, a keyword in Python."""

    prefetch_size: int = long()
    prefetch_count: int = short()
    global_: bool = bit()


@final
@dataclass(frozen=True)
class BasicQosOk(Method):
    """[amqp-0.9.1 basic.qos-ok]"""


@final
@dataclass(frozen=True)
class BasicConsume(Method):
    """[amqp-0.9.1 basic.consume]"""

    queue: str = shortstr()
    consumer_tag: str = shortstr()
    no_local: bool = bit()
    no_ack: bool = bit()
    exclusive: bool = bit()
    no_wait: bool = bit()
    arguments: Table = table()


@final
@dataclass(frozen=True)
class BasicConsumeOk(Method):
    """[amqp-0.9.1 basic.consume-ok]"""

    consumer_tag: str = shortstr()


@final
@dataclass(frozen=True)
class BasicCancel(Method):
    """[amqp-0.9.1 basic.cancel]"""

    consumer_tag: str = shortstr()
    no_wait: bool = bit()


@final
@dataclass(frozen=True)
class BasicCancelOk(Method):
    """[amqp-0.9.1 basic.cancel-ok]"""

    consumer_tag: str = shortstr()


@final
@dataclass(frozen=True)
class BasicPublish(Method):
    """Content follows: a header frame, then body frames."""

    exchange: str = shortstr()
    routing_key: str = shortstr()
    mandatory: bool = bit()
    immediate: bool = bit()


@final
@dataclass(frozen=True)
class BasicReturn(Method):
    """Content follows."""

    reply_code: int = short()
    reply_text: str = text()
    exchange: str = shortstr()
    routing_key: str = shortstr()


@final
@dataclass(frozen=True)
class BasicDeliver(Method):
    """Content follows."""

    consumer_tag: str = shortstr()
    delivery_tag: int = longlong()
    redelivered: bool = bit()
    exchange: str = shortstr()
    routing_key: str = shortstr()


@final
@dataclass(frozen=True)
class BasicGet(Method):
    """[amqp-0.9.1 basic.get]"""

    queue: str = shortstr()
    no_ack: bool = bit()


@final
@dataclass(frozen=True)
class BasicGetOk(Method):
    """Content follows."""

    delivery_tag: int = longlong()
    redelivered: bool = bit()
    exchange: str = shortstr()
    routing_key: str = shortstr()
    message_count: int = long()


@final
@dataclass(frozen=True)
class BasicGetEmpty(Method):
    """[amqp-0.9.1 basic.get-empty]"""


@final
@dataclass(frozen=True)
class BasicAck(Method):
    """Acknowledgement. From a consumer: settled. From the broker: a publisher confirm."""

    delivery_tag: int = longlong()
    multiple: bool = bit()


@final
@dataclass(frozen=True)
class BasicReject(Method):
    """[amqp-0.9.1 basic.reject]"""

    delivery_tag: int = longlong()
    requeue: bool = bit()


@final
@dataclass(frozen=True)
class BasicRecoverAsync(Method):
    """[amqp-0.9.1 basic.recover-async]"""

    requeue: bool = bit()


@final
@dataclass(frozen=True)
class BasicRecover(Method):
    """[amqp-0.9.1 basic.recover]"""

    requeue: bool = bit()


@final
@dataclass(frozen=True)
class BasicRecoverOk(Method):
    """[amqp-0.9.1 basic.recover-ok]"""


@final
@dataclass(frozen=True)
class BasicNack(Method):
    """Negative acknowledgement. From a consumer: not settled. From the broker: a negative confirm
    [rabbitmq basic.nack]."""

    delivery_tag: int = longlong()
    multiple: bool = bit()
    requeue: bool = bit()


@final
@dataclass(frozen=True)
class ConfirmSelect(Method):
    """[amqp-0.9.1 confirm.select]"""

    no_wait: bool = bit()


@final
@dataclass(frozen=True)
class ConfirmSelectOk(Method):
    """[amqp-0.9.1 confirm.select-ok]"""


@final
@dataclass(frozen=True)
class TxSelect(Method):
    """[amqp-0.9.1 tx.select]"""


@final
@dataclass(frozen=True)
class TxSelectOk(Method):
    """[amqp-0.9.1 tx.select-ok]"""


@final
@dataclass(frozen=True)
class TxCommit(Method):
    """[amqp-0.9.1 tx.commit]"""


@final
@dataclass(frozen=True)
class TxCommitOk(Method):
    """[amqp-0.9.1 tx.commit-ok]"""


@final
@dataclass(frozen=True)
class TxRollback(Method):
    """[amqp-0.9.1 tx.rollback]"""


@final
@dataclass(frozen=True)
class TxRollbackOk(Method):
    """[amqp-0.9.1 tx.rollback-ok]"""
