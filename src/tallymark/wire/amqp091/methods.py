"""Every method of AMQP 0-9-1 as a value: class and field names are the specification's.

Reserved fields (and the access tickets that became reserved) are not shown: zero when written,
ignored when read. Long strings are bytes, tables are dicts (see fields.py), bits are bools.
`METHODS` in layouts.py says how each is written on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

Table = dict[str, object]


class Method:
    """Base of all methods; equal when class and fields are."""


@final
@dataclass(frozen=True)
class ConnectionStart(Method):
    """Offer of the server: its version, properties, mechanisms and locales (space-separated)."""

    version_major: int = 0
    version_minor: int = 0
    server_properties: Table = field(default_factory=dict)
    mechanisms: bytes = b""
    locales: bytes = b""


@final
@dataclass(frozen=True)
class ConnectionStartOk(Method):
    """The client's choice of mechanism and its first response."""

    client_properties: Table = field(default_factory=dict)
    mechanism: str = ""
    response: bytes = b""
    locale: str = ""


@final
@dataclass(frozen=True)
class ConnectionSecure(Method):
    """A further challenge of the chosen mechanism."""

    challenge: bytes = b""


@final
@dataclass(frozen=True)
class ConnectionSecureOk(Method):
    """The answer to a challenge."""

    response: bytes = b""


@final
@dataclass(frozen=True)
class ConnectionTune(Method):
    """Limits proposed: highest channel, frame bytes, heartbeat seconds; 0: no limit, none."""

    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


@final
@dataclass(frozen=True)
class ConnectionTuneOk(Method):
    """Limits the client settles on, none above what was proposed."""

    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


@final
@dataclass(frozen=True)
class ConnectionOpen(Method):
    """[amqp-0.9.1 connection.open]"""

    virtual_host: str = ""


@final
@dataclass(frozen=True)
class ConnectionOpenOk(Method):
    """[amqp-0.9.1 connection.open-ok]"""


@final
@dataclass(frozen=True)
class ConnectionClose(Method):
    """Reason why the connection ends; class_id and method_id name the method at fault, or are 0."""

    reply_code: int = 0
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


@final
@dataclass(frozen=True)
class ConnectionCloseOk(Method):
    """[amqp-0.9.1 connection.close-ok]"""


@final
@dataclass(frozen=True)
class ConnectionBlocked(Method):
    """The broker reads no publishes for now [rabbitmq connection.blocked]."""

    reason: str = ""


@final
@dataclass(frozen=True)
class ConnectionUnblocked(Method):
    """[amqp-0.9.1 connection.unblocked]"""


@final
@dataclass(frozen=True)
class ConnectionUpdateSecret(Method):
    """A fresh credential for a running connection [rabbitmq update-secret]."""

    new_secret: bytes = b""
    reason: str = ""


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

    active: bool = False


@final
@dataclass(frozen=True)
class ChannelFlowOk(Method):
    """[amqp-0.9.1 channel.flow-ok]"""

    active: bool = False


@final
@dataclass(frozen=True)
class ChannelClose(Method):
    """Reason why the channel ends; class_id and method_id name the method at fault, or are 0."""

    reply_code: int = 0
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


@final
@dataclass(frozen=True)
class ChannelCloseOk(Method):
    """[amqp-0.9.1 channel.close-ok]"""


@final
@dataclass(frozen=True)
class AccessRequest(Method):
    """Request for access of 0-8 and 0-9. Tickets have no effect any more, but old clients ask for
    them."""

    realm: str = ""
    exclusive: bool = False
    passive: bool = False
    active: bool = False
    write: bool = False
    read: bool = False


@final
@dataclass(frozen=True)
class AccessRequestOk(Method):
    """[amqp-0.9.1 access.request-ok]"""

    ticket: int = 0


@final
@dataclass(frozen=True)
class ExchangeDeclare(Method):
    """[amqp-0.9.1 exchange.declare]"""

    exchange: str = ""
    type: str = ""
    passive: bool = False
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    no_wait: bool = False
    arguments: Table = field(default_factory=dict)


@final
@dataclass(frozen=True)
class ExchangeDeclareOk(Method):
    """[amqp-0.9.1 exchange.declare-ok]"""


@final
@dataclass(frozen=True)
class ExchangeDelete(Method):
    """[amqp-0.9.1 exchange.delete]"""

    exchange: str = ""
    if_unused: bool = False
    no_wait: bool = False


@final
@dataclass(frozen=True)
class ExchangeDeleteOk(Method):
    """[amqp-0.9.1 exchange.delete-ok]"""


@final
@dataclass(frozen=True)
class ExchangeBind(Method):
    """[amqp-0.9.1 exchange.bind]"""

    destination: str = ""
    source: str = ""
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = field(default_factory=dict)


@final
@dataclass(frozen=True)
class ExchangeBindOk(Method):
    """[amqp-0.9.1 exchange.bind-ok]"""


@final
@dataclass(frozen=True)
class ExchangeUnbind(Method):
    """[amqp-0.9.1 exchange.unbind]"""

    destination: str = ""
    source: str = ""
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = field(default_factory=dict)


@final
@dataclass(frozen=True)
class ExchangeUnbindOk(Method):
    """Unbinding of an exchange; its method id is 51, not 41 [rabbitmq exchange.unbind]."""


@final
@dataclass(frozen=True)
class QueueDeclare(Method):
    """[amqp-0.9.1 queue.declare]"""

    queue: str = ""
    passive: bool = False
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    no_wait: bool = False
    arguments: Table = field(default_factory=dict)


@final
@dataclass(frozen=True)
class QueueDeclareOk(Method):
    """The queue's name (the server's choice when none was given) and its counts."""

    queue: str = ""
    message_count: int = 0
    consumer_count: int = 0


@final
@dataclass(frozen=True)
class QueueBind(Method):
    """[amqp-0.9.1 queue.bind]"""

    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = field(default_factory=dict)


@final
@dataclass(frozen=True)
class QueueBindOk(Method):
    """[amqp-0.9.1 queue.bind-ok]"""


@final
@dataclass(frozen=True)
class QueuePurge(Method):
    """[amqp-0.9.1 queue.purge]"""

    queue: str = ""
    no_wait: bool = False


@final
@dataclass(frozen=True)
class QueuePurgeOk(Method):
    """[amqp-0.9.1 queue.purge-ok]"""

    message_count: int = 0


@final
@dataclass(frozen=True)
class QueueDelete(Method):
    """[amqp-0.9.1 queue.delete]"""

    queue: str = ""
    if_unused: bool = False
    if_empty: bool = False
    no_wait: bool = False


@final
@dataclass(frozen=True)
class QueueDeleteOk(Method):
    """[amqp-0.9.1 queue.delete-ok]"""

    message_count: int = 0


@final
@dataclass(frozen=True)
class QueueUnbind(Method):
    """[amqp-0.9.1 queue.unbind]"""

    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    arguments: Table = field(default_factory=dict)


@final
@dataclass(frozen=True)
class QueueUnbindOk(Method):
    """[amqp-0.9.1 queue.unbind-ok]"""


@final
@dataclass(frozen=True)
class BasicQos(Method):
    """`global_` is the specification's `global`, a keyword in Python."""

    prefetch_size: int = 0
    prefetch_count: int = 0
    global_: bool = False


@final
@dataclass(frozen=True)
class BasicQosOk(Method):
    """[amqp-0.9.1 basic.qos-ok]"""


@final
@dataclass(frozen=True)
class BasicConsume(Method):
    """[amqp-0.9.1 basic.consume]"""

    queue: str = ""
    consumer_tag: str = ""
    no_local: bool = False
    no_ack: bool = False
    exclusive: bool = False
    no_wait: bool = False
    arguments: Table = field(default_factory=dict)


@final
@dataclass(frozen=True)
class BasicConsumeOk(Method):
    """[amqp-0.9.1 basic.consume-ok]"""

    consumer_tag: str = ""


@final
@dataclass(frozen=True)
class BasicCancel(Method):
    """[amqp-0.9.1 basic.cancel]"""

    consumer_tag: str = ""
    no_wait: bool = False


@final
@dataclass(frozen=True)
class BasicCancelOk(Method):
    """[amqp-0.9.1 basic.cancel-ok]"""

    consumer_tag: str = ""


@final
@dataclass(frozen=True)
class BasicPublish(Method):
    """Content follows: a header frame, then body frames."""

    exchange: str = ""
    routing_key: str = ""
    mandatory: bool = False
    immediate: bool = False


@final
@dataclass(frozen=True)
class BasicReturn(Method):
    """Content follows."""

    reply_code: int = 0
    reply_text: str = ""
    exchange: str = ""
    routing_key: str = ""


@final
@dataclass(frozen=True)
class BasicDeliver(Method):
    """Content follows."""

    consumer_tag: str = ""
    delivery_tag: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""


@final
@dataclass(frozen=True)
class BasicGet(Method):
    """[amqp-0.9.1 basic.get]"""

    queue: str = ""
    no_ack: bool = False


@final
@dataclass(frozen=True)
class BasicGetOk(Method):
    """Content follows."""

    delivery_tag: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""
    message_count: int = 0


@final
@dataclass(frozen=True)
class BasicGetEmpty(Method):
    """[amqp-0.9.1 basic.get-empty]"""


@final
@dataclass(frozen=True)
class BasicAck(Method):
    """Acknowledgement. From a consumer: settled. From the broker: a publisher confirm."""

    delivery_tag: int = 0
    multiple: bool = False


@final
@dataclass(frozen=True)
class BasicReject(Method):
    """[amqp-0.9.1 basic.reject]"""

    delivery_tag: int = 0
    requeue: bool = False


@final
@dataclass(frozen=True)
class BasicRecoverAsync(Method):
    """[amqp-0.9.1 basic.recover-async]"""

    requeue: bool = False


@final
@dataclass(frozen=True)
class BasicRecover(Method):
    """[amqp-0.9.1 basic.recover]"""

    requeue: bool = False


@final
@dataclass(frozen=True)
class BasicRecoverOk(Method):
    """[amqp-0.9.1 basic.recover-ok]"""


@final
@dataclass(frozen=True)
class BasicNack(Method):
    """Negative acknowledgement. From a consumer: not settled. From the broker: a negative confirm
    [rabbitmq basic.nack]."""

    delivery_tag: int = 0
    multiple: bool = False
    requeue: bool = False


@final
@dataclass(frozen=True)
class ConfirmSelect(Method):
    """[amqp-0.9.1 confirm.select]"""

    no_wait: bool = False


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
