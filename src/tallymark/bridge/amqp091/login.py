"""Login of AMQP 0-9-1 clients: the broker's server properties and the clients' credentials
[amqp-0.9.1 connection.start, start-ok].

PLAIN is [RFC 4616]: authorization id, user and password with zero bytes between; AMQPLAIN, the
mechanism of early AMQP, is a table without its length.
"""

from __future__ import annotations

from typing import Final

from tallymark.bridge.amqp import SCRAM
from tallymark.bridge.identity import server_identity
from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.fields import decode_table

EXTERNAL: Final = "EXTERNAL"
"""Mechanism offered before the others to a client whose certificate TLS has verified."""
PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"

UNCOUNTED_RECOVER: Final = "uncounted_recover"
"""Capability of a client whose basic.recover only rolls back: it says nothing against the messages
that come again, and does not count toward a delivery limit [DL-5]. Not RabbitMQ's."""
CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
    "channel_flow",  # channel.flow(active=false) of a client is honoured [TX-10]; not RabbitMQ's
    UNCOUNTED_RECOVER,
)


def server_properties(platform: str) -> dict[str, object]:
    """Return the server properties; see bridge/identity.py."""
    capabilities: dict[str, object] = dict.fromkeys(CAPABILITIES, True)
    return {"capabilities": capabilities, **server_identity(platform)}


def mechanisms(allowed: tuple[str, ...], external_user: str) -> tuple[str, ...]:
    """Return the mechanisms to offer. external_user: user name from TLS, or empty."""
    known = (EXTERNAL, SCRAM, PLAIN, AMQPLAIN) if external_user else (SCRAM, PLAIN, AMQPLAIN)
    return tuple([name for name in allowed if name in known])


def credentials(mechanism: str, response: bytes, external_user: str = "") -> tuple[str, str] | None:
    """Return user and password; None if the response is malformed or the mechanism unknown. For
    EXTERNAL the password is empty: TLS has proven the identity [RFC 4422]."""
    if mechanism == EXTERNAL and external_user:
        wanted = response.decode("utf-8", "replace")
        return (external_user, "") if wanted in ("", external_user) else None
    if mechanism == PLAIN:
        parts = response.split(b"\0")
        if len(parts) != 3 or parts[0] not in (b"", parts[1]):
            return None
        return parts[1].decode("utf-8", "replace"), parts[2].decode("utf-8", "replace")
    if mechanism == AMQPLAIN:
        try:
            table = decode_table(len(response).to_bytes(4, "big") + response)
        except WireError:
            return None
        user, password = table.get("LOGIN"), table.get("PASSWORD")
        if isinstance(user, str) and isinstance(password, str):
            return user, password
    return None


def shares_prefetch(client_properties: dict[str, object]) -> bool:
    """Return whether the client's `basic.qos` without `global` limits all consumers of the channel
    together, as the specification has it. py-amqp's users (kombu from 5.7 on, Celery) rely on that
    with RabbitMQ 4, and raise the limit for tasks that are not due yet; older versions set
    `global`."""
    return client_properties.get("product") == "py-amqp"


def client_capabilities(client_properties: dict[str, object]) -> frozenset[str]:
    """Return the capabilities that the client announces."""
    found = client_properties.get("capabilities")
    if not isinstance(found, dict):
        return frozenset()
    return frozenset([str(name) for name, value in found.items() if value is True])
