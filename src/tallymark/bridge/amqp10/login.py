"""Login of AMQP 1.0 clients: mechanisms, credentials, and the broker's open.

    SCRAM      user, and a proof of the password [RFC 7677]
    PLAIN      user and password [RFC 4616]
    EXTERNAL   who the client's certificate says, where TLS has verified one [RFC 4422]
    ANONYMOUS  nobody: who the configuration says, where it says somebody [RFC 4505]

The broker's identity is in bridge/identity.py.
"""

from __future__ import annotations

from typing import Final

from tallymark.bridge.amqp import SCRAM
from tallymark.bridge.amqp10.settings import Settings
from tallymark.bridge.filters import CAPABILITIES
from tallymark.bridge.identity import server_identity
from tallymark.wire.amqp10.performatives import Open
from tallymark.wire.amqp10.sasl import split_plain

PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"
ANONYMOUS: Final = "ANONYMOUS"

OFFERED: Final = (*CAPABILITIES, "ANONYMOUS-RELAY", "LINK_PAIR_V1_0")
VHOST: Final = "vhost:"
"""Prefix of a virtual host's name in a hostname [rabbitmq]."""
DEFAULT_VHOST: Final = "/"


def mechanisms(
    allowed: tuple[str, ...], external_user: str, anonymous_user: str
) -> tuple[str, ...]:
    """Return the mechanisms to offer, the strongest first."""
    offered = [name for name in allowed if name in (SCRAM, PLAIN)]
    if external_user and EXTERNAL in allowed:
        offered.insert(0, EXTERNAL)
    if anonymous_user:
        offered.append(ANONYMOUS)
    return tuple(offered)


def credentials(
    mechanism: str, response: bytes, external_user: str, anonymous_user: str
) -> tuple[str, str] | None:
    """Return user and password; None if the response is malformed. The password is empty if the
    mechanism needs none."""
    if mechanism == PLAIN:
        parts = split_plain(response)
        if parts is None or parts[0] not in ("", parts[1]):
            return None
        return parts[1], parts[2]
    if mechanism == EXTERNAL:
        wanted = response.decode("utf-8", "replace")
        return (external_user, "") if wanted in ("", external_user) else None
    return anonymous_user, ""


def vhost_of(hostname: str | None) -> str:
    """Return the virtual host that a client wants to enter."""
    if hostname is not None and hostname.startswith(VHOST):
        return hostname[len(VHOST) :]
    return DEFAULT_VHOST


def server_open(settings: Settings) -> Open:
    """Return the broker's open. The wire adds the limits."""
    said: dict[object, object] = dict(server_identity(settings.platform).items())
    said["node"] = said["cluster_name"] = settings.node_name
    return Open(
        container_id=settings.node_name,
        offered_capabilities=OFFERED,
        properties=said,
    )
