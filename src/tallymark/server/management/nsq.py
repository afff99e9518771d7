"""NSQ's connections in the lists of the management interface, beside AMQP's.

A subscriber is shown as a connection with one channel, which holds one consumer: its RDY is the
prefetch count. A producer has none. Where no user stands behind it, what an auth server calls a
client is among its properties, and only who sees everything sees the connection.
"""

from __future__ import annotations

from typing import Any, Final

from tallymark.server.management.rows import channel_name, counted
from tallymark.server.node import node_name
from tallymark.server.nsq.client import NsqClient
from tallymark.wire.nsq.states import State

PROTOCOL: Final = "NSQ V2"
NUMBER: Final = 0
"""Number of the only channel in the consumers' rows."""


def _state_of(client: NsqClient) -> str:
    if client.blocked_reason is not None:
        return "blocked"
    if client.bridge.wire.state is State.CLOSING:
        return "closing"
    return "flow" if client.is_paced else "running"


def nsq_connection_row(client: NsqClient) -> dict[str, Any]:
    bridge, tls = client.bridge, client.tls
    identify, auth = bridge.identify, bridge.auth
    properties = {
        "client_id": identify.client_id,
        "hostname": identify.hostname,
        "user_agent": identify.user_agent,
        "auth_identity": "" if auth is None else auth.identity,
    }
    row: dict[str, Any] = {
        **_ends(client),
        "node": node_name(),
        "type": "network",
        "protocol": PROTOCOL,
        "state": _state_of(client),
        "user": bridge.user,
        "vhost": client.vhost,
        "channels": 0 if bridge.connection is None else len(bridge.connection.sessions),
        "client_properties": {name: value for name, value in properties.items() if value},
        "connected_at": client.since_ms,
        "ssl": tls is not None,
        **counted({"recv_oct": client.received_bytes, "send_oct": client.sent_bytes}),
    }
    if tls is not None:
        row |= {"ssl_protocol": tls.version(), "ssl_cipher": tls.cipher()}
    if identify.client_id:
        row["user_provided_name"] = identify.client_id
    return row


def nsq_channel_rows(client: NsqClient) -> list[dict[str, Any]]:
    """The channel of a subscriber."""
    consumer = client.bridge.consumer
    if consumer is None or consumer.session.closed:
        return []
    return [
        {
            "name": channel_name(client.peer, NUMBER),
            "number": NUMBER,
            "connection_details": _ends(client),
            "node": node_name(),
            "user": client.bridge.user,
            "vhost": client.vhost,
            "state": "running",
            "consumer_count": int(consumer.active),
            "prefetch_count": consumer.limit,
            "global_prefetch_count": 0,
            "messages_unacknowledged": consumer.unacked,
            "messages_unconfirmed": 0,
            "messages_uncommitted": 0,
            "acks_uncommitted": 0,
            "confirm": True,
            "transactional": False,
        }
    ]


def _ends(client: NsqClient) -> dict[str, Any]:
    """Name and addresses; the name is the client's address, as consumers' rows have it."""
    row: dict[str, Any] = {"name": client.peer}
    for prefix, end in (("peer_", "peername"), ("", "sockname")):
        match client.transport.get_extra_info(end):
            case (str() as host, int() as port, *_):
                row |= {f"{prefix}host": host, f"{prefix}port": port}
    return row
