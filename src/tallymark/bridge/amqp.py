"""What both versions of AMQP have in common for the owner of the socket: a log-in, and a place in
the lists of connections. Which of them a client speaks is in its first bytes.
"""

from __future__ import annotations

from typing import Final

from tallymark.bridge.bridge import Bridge
from tallymark.bridge.permissions import Permissions
from tallymark.engine.session import Connection

SCRAM: Final = "SCRAM-SHA-256"
"""[RFC 7677]"""
UNDECIDED: Final = 0
AMQP_091: Final = 1
"""Also whatever is not AMQP at all: the older protocol says what it expected."""
AMQP_10: Final = 2

_NAME: Final = b"AMQP"
_OF_10: Final = (b"AMQP\x00\x01", b"AMQP\x02\x01", b"AMQP\x03\x01")
"""How the headers of AMQP 1.0 begin, of its TLS layer and of its SASL layer [amqp-1.0 §2.2, §5]."""


def default_mechanisms() -> tuple[str, ...]:
    """By which clients log in where nobody says otherwise."""
    return "EXTERNAL", "PLAIN", "AMQPLAIN"


def protocol_of(start: bytes) -> int:
    """What a client speaks whose first bytes are these; UNDECIDED: it takes one or two more."""
    if start[:6] in _OF_10:
        return AMQP_10
    if len(start) < 6 and (
        _NAME.startswith(start) or any(header.startswith(start) for header in _OF_10)
    ):
        return UNDECIDED
    return AMQP_091


class AmqpBridge(Bridge):
    """One AMQP client's."""

    __slots__ = ("peer", "pending_login", "pending_sasl")

    def __init__(self, peer: str) -> None:
        super().__init__()
        self.peer = peer
        """Names the connection in logs and lists, such as "127.0.0.1:50000 -> 127.0.0.1:5672"."""
        self.pending_login: tuple[str, str, str] | None = None
        """(mechanism, user, password) to be checked. With EXTERNAL the user is who TLS says and
        with ANONYMOUS who the configuration says: no password comes with them."""
        self.pending_sasl: bytes | None = None
        """A step of SCRAM-SHA-256 to be answered with `sasl_challenge` or as a login."""

    @property
    def entered(self) -> Connection | None:
        """The engine's side, while the client is in a virtual host."""
        raise NotImplementedError

    def sasl_challenge(self, challenge: bytes) -> None:
        """The pending step is answered by this; the next one follows."""
        raise NotImplementedError

    def login_succeeded(self, permissions: Permissions, last_words: bytes = b"") -> None:
        """The pending login, or step, is good. last_words: of the mechanism, to the client."""
        raise NotImplementedError

    def login_failed(self) -> None:
        """The pending login, or step, is refused."""
        raise NotImplementedError

    def describe(self) -> dict[str, object]:
        """What the HTTP API shows of the connection."""
        raise NotImplementedError
