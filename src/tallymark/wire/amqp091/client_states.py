"""The legal orders of a client's connection and its channels, as tables; states.py: the other end.

Connection [amqp-0.9.1 §2.2.4]; `<` comes from the server, `>` is sent by us:

    NEW --(protocol header)--> GREETED --< start--> STARTING --> start-ok--> AUTHENTICATING
    AUTHENTICATING --< secure--> SECURING --> secure-ok--> AUTHENTICATING
    AUTHENTICATING --< tune--> TUNING --> tune-ok--> TUNED --> open--> OPENING
    OPENING --< open-ok--> RUNNING
    any --> close--> CLOSING --< close-ok--> CLOSED
    any --< close--> CLOSED, our close-ok being sent
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsumeOk,
    BasicDeliver,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQosOk,
    BasicRecoverOk,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpenOk,
    ConfirmSelectOk,
    ConnectionBlocked,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecretOk,
    ExchangeBindOk,
    ExchangeDeclareOk,
    ExchangeDeleteOk,
    ExchangeUnbindOk,
    Method,
    QueueBindOk,
    QueueDeclareOk,
    QueueDeleteOk,
    QueuePurgeOk,
    QueueUnbindOk,
    TxCommitOk,
    TxRollbackOk,
    TxSelectOk,
)


class ClientState(Enum):
    """States of a connection. In STARTING, SECURING, TUNING and TUNED the client acts next."""

    NEW = "new"
    GREETED = "greeted"
    STARTING = "starting"
    AUTHENTICATING = "authenticating"
    SECURING = "securing"
    TUNING = "tuning"
    TUNED = "tuned"
    OPENING = "opening"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


# Methods that may arrive on channel 0, besides close and close-ok. A pair not listed is 504.
RECEIVING: Final[dict[tuple[ClientState, type[Method]], ClientState]] = {
    (ClientState.GREETED, ConnectionStart): ClientState.STARTING,
    (ClientState.AUTHENTICATING, ConnectionSecure): ClientState.SECURING,
    (ClientState.AUTHENTICATING, ConnectionTune): ClientState.TUNING,
    (ClientState.OPENING, ConnectionOpenOk): ClientState.RUNNING,
    (ClientState.RUNNING, ConnectionBlocked): ClientState.RUNNING,
    (ClientState.RUNNING, ConnectionUnblocked): ClientState.RUNNING,
    (ClientState.RUNNING, ConnectionUpdateSecretOk): ClientState.RUNNING,
}

# Steps of the handshake that we may send. A pair not listed is an error of ours.
SENDING: Final[dict[tuple[ClientState, type[Method]], ClientState]] = {
    (ClientState.STARTING, ConnectionStartOk): ClientState.AUTHENTICATING,
    (ClientState.SECURING, ConnectionSecureOk): ClientState.AUTHENTICATING,
    (ClientState.TUNING, ConnectionTuneOk): ClientState.TUNED,
    (ClientState.TUNED, ConnectionOpen): ClientState.OPENING,
}

OVER: Final = frozenset((ClientState.CLOSING, ClientState.CLOSED))


class ClientChannelState(Enum):
    """States of a channel that we opened. One that the server closes is gone at once.

    OPENING --< open-ok--> OPEN --> close--> CLOSING --< close-ok--> gone
    OPENING --> close--> CLOSING
    """

    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"


CONTENT: Final[frozenset[type[Method]]] = frozenset((BasicDeliver, BasicReturn, BasicGetOk))
"""Methods that are followed by a header and bodies."""

FROM_SERVER: Final[frozenset[type[Method]]] = CONTENT | frozenset(
    (
        BasicAck,
        BasicCancel,
        BasicCancelOk,
        BasicConsumeOk,
        BasicGetEmpty,
        BasicNack,
        BasicQosOk,
        BasicRecoverOk,
        ChannelClose,
        ChannelCloseOk,
        ChannelFlow,
        ChannelFlowOk,
        ChannelOpenOk,
        ConfirmSelectOk,
        ExchangeBindOk,
        ExchangeDeclareOk,
        ExchangeDeleteOk,
        ExchangeUnbindOk,
        QueueBindOk,
        QueueDeclareOk,
        QueueDeleteOk,
        QueuePurgeOk,
        QueueUnbindOk,
        TxCommitOk,
        TxRollbackOk,
        TxSelectOk,
    )
)
"""Methods that a server may send on a channel; any other is 503."""
