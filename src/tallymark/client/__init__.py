"""An asyncio client for AMQP 1.0 and 0-9-1: Tallymark's own, for any broker that speaks them.

    from tallymark.client import connect

    async with connect("amqp://guest:guest@localhost") as connection:
        async with connection.session() as session:
            await session.declare_queue("orders")
            async with session.sender("/queues/orders") as sender:
                await sender.send("one")
            async with session.receiver("/queues/orders", credit=10) as receiver:
                async for message in receiver:
                    async with message:
                        print(message.body)

docs/client.md is the guide; docs/credit.md says why each message has to be settled.
"""

from tallymark.client.connection import Connection, Life, connect
from tallymark.client.errors import (
    BatchNotAccepted,
    ClientError,
    Closed,
    CommitUncertain,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    LinkClosed,
    LinkRefused,
    LoginRefused,
    MessageModified,
    MessageRejected,
    MessageReleased,
    MessagesReturned,
    NotAccepted,
    NotPossible,
    RequestRefused,
    RollbackUncertain,
    Scope,
    SessionClosed,
    SettlementRefused,
    TimedOut,
    TransactionError,
    TransactionRolledBack,
)
from tallymark.client.message import BadMessage, Message
from tallymark.client.outcomes import (
    ACCEPTED,
    RELEASED,
    Accepted,
    Error,
    Modified,
    Outcome,
    Rejected,
    Released,
)
from tallymark.client.reading import Handler, Middleware
from tallymark.client.received import ReceivedMessage
from tallymark.client.receiver import Receiver
from tallymark.client.sender import Sender
from tallymark.client.session import Session
from tallymark.client.topology import QueueState
from tallymark.client.transaction import Transaction
from tallymark.client.transport import Backoff

__all__ = [
    # the way in
    "connect",
    "Backoff",
    "Connection",
    "Life",
    "Session",
    "Sender",
    "Receiver",
    "Transaction",
    "QueueState",
    # messages
    "Message",
    "ReceivedMessage",
    "Handler",
    "Middleware",
    # outcomes
    "ACCEPTED",
    "RELEASED",
    "Accepted",
    "Error",
    "Modified",
    "Outcome",
    "Rejected",
    "Released",
    # errors
    "BadMessage",
    "BatchNotAccepted",
    "ClientError",
    "Closed",
    "CommitUncertain",
    "ConnectFailed",
    "ConnectionClosed",
    "ConnectionLost",
    "LinkClosed",
    "LinkRefused",
    "LoginRefused",
    "MessageModified",
    "MessageRejected",
    "MessageReleased",
    "MessagesReturned",
    "NotAccepted",
    "NotPossible",
    "RequestRefused",
    "RollbackUncertain",
    "Scope",
    "SessionClosed",
    "SettlementRefused",
    "TimedOut",
    "TransactionError",
    "TransactionRolledBack",
]
