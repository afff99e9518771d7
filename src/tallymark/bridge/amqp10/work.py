"""A transaction on an AMQP 1.0 connection [amqp-1.0 §4].

The engine stages publishes and settlements until the end (engine/transactions.py). This module
stores only the confirmations due to the client then, and the deliveries that it has settled on its
side.
"""

from __future__ import annotations

from typing import Final

from tallymark.bridge.amqp10.client import Client, Work
from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.types import Symbol

TXN_ID: Final = Symbol("txn-id")
"""Property of a flow: deliveries from then on belong to the transaction of that id [TX-16]."""


def find(client: Client, id: object) -> Work | None:
    """Return this connection's open transaction of that id; None: it has none."""
    return client.works.get(id) if isinstance(id, bytes) else None


def unknown(id: object) -> Error:
    """Return the error for a transaction id that is unknown [TX-13, TX-14]."""
    shown = id.hex() if isinstance(id, bytes) else repr(id)
    text = f"no transaction {shown[:64]}: it was never declared on this connection, or has ended"
    return Error(errors.TRANSACTION_UNKNOWN_ID, text)
