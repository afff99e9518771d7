"""The legal orders of a server's connection and its channels, as tables.

Connection [amqp-0.9.1 §2.2.4]; `>` is sent by the client, `<` by us:

    HEADER --(protocol header)--> OPENED --< start--> STARTING --> start-ok--> AUTHENTICATING
    AUTHENTICATING --< secure--> SECURING --> secure-ok--> AUTHENTICATING
    AUTHENTICATING --< tune--> TUNING --> tune-ok--> OPENING
    OPENING --> open--> OPENING --< open-ok--> RUNNING
    any after OPENED --< close--> CLOSING --> close-ok--> CLOSED
    any after OPENED --> close--> PEER_CLOSING --< close-ok--> CLOSED

In OPENED and AUTHENTICATING it is our turn: input is kept and not looked at.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tallymark.wire.amqp091.methods import (
    AccessRequest,
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ConfirmSelect,
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
    ConnectionUpdateSecret,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
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


class State(Enum):
    """States of a connection. The values are RabbitMQ's names, as error texts show them."""

    __hash__ = object.__hash__  # Enum's is interpreted, and states are looked up per frame

    HEADER = "handshake"
    OPENED = "pre_init"
    STARTING = "starting"
    AUTHENTICATING = "authenticating"
    SECURING = "securing"
    TUNING = "tuning"
    OPENING = "opening"
    RUNNING = "running"
    FAILED = "failed"
    CLOSING = "closing"
    PEER_CLOSING = "closed_by_peer"
    CLOSED = "closed"


OUR_TURN: Final = frozenset((State.OPENED, State.AUTHENTICATING))

LOGGED_IN: Final = frozenset((State.TUNING, State.OPENING, State.RUNNING))
"""States in which an error is answered. Before them, a peer that is not identified gets no
answer."""

OVER: Final = frozenset((State.FAILED, State.CLOSING, State.PEER_CLOSING, State.CLOSED))

# Methods that may arrive on channel 0. Others are 504 "unexpected method in connection state".
RECEIVING: Final[dict[tuple[State, type[Method]], State]] = {
    (State.STARTING, ConnectionStartOk): State.AUTHENTICATING,
    (State.SECURING, ConnectionSecureOk): State.AUTHENTICATING,
    (State.TUNING, ConnectionTuneOk): State.OPENING,
    (State.OPENING, ConnectionOpen): State.OPENING,
    (State.RUNNING, ConnectionUpdateSecret): State.RUNNING,
    (State.STARTING, ConnectionClose): State.PEER_CLOSING,
    (State.SECURING, ConnectionClose): State.PEER_CLOSING,
    (State.TUNING, ConnectionClose): State.PEER_CLOSING,
    (State.OPENING, ConnectionClose): State.PEER_CLOSING,
    (State.RUNNING, ConnectionClose): State.PEER_CLOSING,
}

# Steps of the handshake that we may send. A pair not listed is an error of ours.
SENDING: Final[dict[tuple[State, type[Method]], State]] = {
    (State.OPENED, ConnectionStart): State.STARTING,
    (State.AUTHENTICATING, ConnectionSecure): State.SECURING,
    (State.AUTHENTICATING, ConnectionTune): State.TUNING,
    (State.OPENING, ConnectionOpenOk): State.RUNNING,
    (State.OPENED, ConnectionClose): State.CLOSING,
    (State.STARTING, ConnectionClose): State.CLOSING,
    (State.AUTHENTICATING, ConnectionClose): State.CLOSING,
    (State.SECURING, ConnectionClose): State.CLOSING,
    (State.TUNING, ConnectionClose): State.CLOSING,
    (State.OPENING, ConnectionClose): State.CLOSING,
    (State.RUNNING, ConnectionClose): State.CLOSING,
    (State.FAILED, ConnectionClose): State.CLOSING,
    (State.PEER_CLOSING, ConnectionCloseOk): State.CLOSED,
}

HANDSHAKE: Final = frozenset((ConnectionStart, ConnectionSecure, ConnectionTune, ConnectionOpenOk))


class ChannelState(Enum):
    """States of a channel that was opened [amqp-0.9.1 §1.5.2].

    OPEN --> close--> CLOSED, our close-ok follows
    OPEN --< close--> CLOSING --> close-ok--> CLOSED
    OPEN --(its peer's mistake)--> FAILED --< close--> CLOSING
    """

    __hash__ = object.__hash__  # Enum's is interpreted, and states are looked up per frame

    OPEN = "open"
    FAILED = "failed"
    CLOSING = "closing"
    CLOSED = "closed"


FROM_CLIENT: Final[frozenset[type[Method]]] = frozenset(
    (
        AccessRequest,
        BasicAck,
        BasicCancel,
        BasicConsume,
        BasicGet,
        BasicNack,
        BasicPublish,
        BasicQos,
        BasicRecover,
        BasicRecoverAsync,
        BasicReject,
        ChannelClose,
        ChannelCloseOk,
        ChannelFlow,
        ChannelFlowOk,
        ChannelOpen,
        ConfirmSelect,
        ExchangeBind,
        ExchangeDeclare,
        ExchangeDelete,
        ExchangeUnbind,
        QueueBind,
        QueueDeclare,
        QueueDelete,
        QueuePurge,
        QueueUnbind,
        TxCommit,
        TxRollback,
        TxSelect,
    )
)
"""Methods that a client may send on an open channel; any other is 503 "unimplemented method"."""
