"""Addresses of AMQP 1.0 nodes, RabbitMQ's version 2 and the names of queues.

    /queues/:queue                      source and target
    /exchanges/:exchange/:routing-key   target
    /exchanges/:exchange                target; the routing key is empty
    name, /queue/:queue, /amq/queue/:queue   the queue of that name, as it stands there
    null                                target: each message says it in its property `to`

What stands for a name in the first three is percent-encoded, all but A-Z a-z 0-9 - . _ ~ [rabbitmq
AMQP 1.0 addresses]. A queue's name is its routing key on the default exchange.
"""

from __future__ import annotations

import re
from typing import Final, final
from urllib.parse import quote, unquote_to_bytes

from tallymark.wire.conversion.values import is_text

QUEUES: Final = "/queues/"
EXCHANGES: Final = "/exchanges/"
MANAGEMENT: Final = "/management"
"""Address of the node of AMQP management."""
DIRECT_REPLY: Final = "amq.rabbitmq.reply-to."
"""Prefix of the names under which clients wait for direct replies [rabbitmq direct reply-to]."""
PLAIN: Final = ("/queue/", "/amq/queue/")
"""Prefixes of a queue's name in RabbitMQ's first version of addresses."""
DEFAULT_EXCHANGE: Final = "amq.default"
SAYABLE_MAX: Final = 255
"""Maximum bytes of an exchange's name, and of a routing key."""
_MALFORMED: Final = re.compile("%(?![0-9A-Fa-f]{2})")


class BadAddress(Exception):
    """The address is malformed. The text has the address and what was expected."""


@final
class Target:
    """The exchange and routing key that messages go to. Immutable."""

    __slots__ = ("exchange", "is_queue", "is_reply", "key")

    def __init__(self, exchange: str, key: str, is_queue: bool) -> None:
        self.exchange = exchange
        self.key = key
        self.is_queue = is_queue
        """True if the address names a queue, `key`, which must exist."""
        self.is_reply = is_queue and key.startswith(DIRECT_REPLY)
        """True if the address is one for direct replies."""


def target_of(address: str) -> Target:
    """Return the target that an address means for publishers. Raises BadAddress."""
    if address.startswith(EXCHANGES):
        exchange, _, key = address[len(EXCHANGES) :].partition("/")
        if "/" in key:
            raise BadAddress(
                f"bad address '{address}': expected {EXCHANGES}:exchange/:routing-key with each "
                "part percent-encoded"
            )
        name = _sayable(address, _decoded(address, exchange))
        if name in ("", DEFAULT_EXCHANGE):
            raise BadAddress(
                f"bad address '{address}': expected the name of an exchange; {QUEUES}:queue goes "
                "through the default exchange"
            )
        return Target(name, _sayable(address, _decoded(address, key)), False)
    return Target("", _sayable(address, queue_of(address)), True)


def queue_of(address: str) -> str:
    """Return the queue that an address names. Raises BadAddress."""
    if address.startswith(QUEUES):
        rest = address[len(QUEUES) :]
        name = "" if "/" in rest else _decoded(address, rest)
    elif not address.startswith("/"):
        name = address
    else:
        name = ""
        for prefix in PLAIN:
            if address.startswith(prefix):
                name = address[len(prefix) :]
    if not name:
        raise BadAddress(
            f"bad address '{address}': expected {QUEUES}:queue, or where to publish to "
            f"{EXCHANGES}:exchange/:key, percent-encoded"
        )
    return name


def queue_address(name: str) -> str:
    """Return the address of a queue."""
    return QUEUES + quote(name, safe="", errors="surrogateescape")


def _sayable(address: str, name: str) -> str:
    """Return the name, after a check that every reader can be told it [amqp-0.9.1 shortstr]. Raises
    BadAddress."""
    if not is_text(name) or len(name.encode()) > SAYABLE_MAX:
        raise BadAddress(
            f"bad address '{address}': expected names in UTF-8 of at most {SAYABLE_MAX} bytes"
        )
    return name


def _decoded(address: str, part: str) -> str:
    if "%" not in part:
        return part
    if _MALFORMED.search(part):
        raise BadAddress(f"bad address '{address}': expected two hexadecimal digits after each %")
    return unquote_to_bytes(part).decode("utf-8", "surrogateescape")
