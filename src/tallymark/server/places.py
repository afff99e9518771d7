"""User and virtual host of a connection: for lists, whatever the protocol."""

from __future__ import annotations

from tallymark.server.amqp import AmqpClient
from tallymark.server.client import Client
from tallymark.server.nsq.client import NsqClient
from tallymark.wire.nsq.states import OVER, State


def place_of(client: Client) -> tuple[str, str] | None:
    """Virtual host and user; None: the client is not through its handshake, or it ends. An NSQ
    client may act as nobody: ""."""
    if isinstance(client, AmqpClient):
        entered = client.bridge.entered
        return None if entered is None else (entered.vhost, entered.user)
    if isinstance(client, NsqClient):
        state = client.bridge.wire.state
        return None if state is State.MAGIC or state in OVER else (client.vhost, client.bridge.user)
    return None
