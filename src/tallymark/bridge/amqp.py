"""The interface of both AMQP versions to the owner of the socket: a login, and a description for
lists of connections. A client's first bytes decide on the version."""

from __future__ import annotations

from typing import Final

from tallymark.bridge.bridge import Bridge
from tallymark.bridge.permissions import Access, Permissions
from tallymark.engine.broker import Broker
from tallymark.engine.session import Connection
from tallymark.engine.vhost import VirtualHost
from tallymark.stored.annotations import Annotations
from tallymark.wire.line import Line

SCRAM: Final = "SCRAM-SHA-256"
"""SASL mechanism [RFC 7677]."""
UNDECIDED: Final = 0
AMQP_091: Final = 1
"""AMQP 0-9-1, also for input that is no AMQP: the older protocol answers with the expected
header."""
AMQP_10: Final = 2

_NAME: Final = b"AMQP"
_OF_10: Final = (b"AMQP\x00\x01", b"AMQP\x02\x01", b"AMQP\x03\x01")
"""First bytes of the headers of AMQP 1.0, of its TLS layer and of its SASL layer
[amqp-1.0 §2.2, §5]."""


def default_mechanisms() -> tuple[str, ...]:
    """Return the mechanisms by which clients log in if nothing is configured."""
    return "EXTERNAL", "PLAIN", "AMQPLAIN"


def protocol_of(start: bytes) -> int:
    """Return the protocol of a client by its first bytes; UNDECIDED: one or two more are needed."""
    if start[:6] in _OF_10:
        return AMQP_10
    if len(start) < 6 and (
        _NAME.startswith(start) or any(header.startswith(start) for header in _OF_10)
    ):
        return UNDECIDED
    return AMQP_091


class Renewal:
    """A secret that takes the place of an earlier one, and whoever is told what became of it."""

    __slots__ = ("secret",)

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def done(self, is_accepted: bool) -> None:
        raise NotImplementedError


class AmqpClient:
    """A client that is logged in to a virtual host."""

    __slots__ = (
        "access",
        "annotations",
        "broker",
        "closed",
        "connection",
        "owner",
        "vhost",
    )

    def __init__(
        self, broker: Broker, connection: Connection, access: Access, owner: AmqpBridge
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.vhost: VirtualHost = broker.vhost(connection.vhost)
        self.access = access
        self.owner = owner
        """Bridge of the client: the object to flush."""
        self.closed = False
        """True once nothing may be delivered any more."""
        self.annotations: Annotations | None = None
        """Annotations of the last messages published with an expiration or further routing keys;
        reused for equal ones."""
        connection.handle = owner
        connection.holds_output = True


class AmqpBridge(Bridge):
    """The bridge of one AMQP client."""

    __slots__ = (
        "external_user",
        "peer",
        "pending_login",
        "pending_sasl",
        "pending_secret",
        "permissions",
    )

    def __init__(self, broker: Broker, line: Line, peer: str, external_user: str) -> None:
        super().__init__(broker, line)
        self.external_user = external_user
        """User name from the client's TLS certificate; empty: there is none."""
        self.permissions: Permissions | None = None
        """Permissions of the user that the client has logged in as."""
        self.peer = peer
        """Addresses that name the connection in logs and lists, such as "127.0.0.1:50000 ->
        127.0.0.1:5672"."""
        self.pending_login: tuple[str, str, str] | None = None
        """Login to be checked: (mechanism, user, password). With EXTERNAL the user comes from TLS,
        and with ANONYMOUS from the configuration; they have no password."""
        self.pending_sasl: bytes | None = None
        """Step of SCRAM-SHA-256 to be answered by `sasl_challenge` or as a login."""

        self.pending_secret: bytes | None = None
        """A secret in place of the one that the client logged in with, to be checked and answered
        with `secret_accepted` or `secret_refused`."""

    def logged_in(self) -> AmqpClient | None:
        """Return the client once it has entered a virtual host."""
        raise NotImplementedError

    @property
    def connection(self) -> Connection | None:
        client = self.logged_in()
        return None if client is None else client.connection

    @property
    def asks(self) -> bool:
        """True, too, while a log-in, a step of one or a secret is pending."""
        return (
            (self.is_over and self.closing)
            or self.pending_login is not None
            or self.pending_sasl is not None
            or self.pending_secret is not None
        )

    @property
    def entered(self) -> Connection | None:
        """Return the connection in the engine while the client is in a virtual host."""
        client = self.logged_in()
        return None if client is None or client.closed else client.connection

    @property
    def user(self) -> str:
        return "" if self.permissions is None else self.permissions.user

    def end_login(self) -> bool:
        """End the pending login or step; return whether there was one."""
        if self.pending_login is None and self.pending_sasl is None:
            return False
        self.pending_login = self.pending_sasl = None
        return True

    def sasl_challenge(self, challenge: bytes) -> None:
        """Answer the pending step by a challenge; the client's next step follows."""
        raise NotImplementedError

    def login_succeeded(self, permissions: Permissions, last_words: bytes = b"") -> None:
        """Accept the pending login or step. last_words: final data of the mechanism for the
        client."""
        raise NotImplementedError

    def login_failed(self) -> None:
        """Refuse the pending login or step."""
        raise NotImplementedError

    def secret_accepted(self, permissions: Permissions) -> None:
        """The pending secret is the same user's: this is what may be done from now on."""
        raise NotImplementedError

    def secret_refused(self) -> None:
        """The pending secret is worth nothing, or another user's."""
        raise NotImplementedError

    def renew(self, renewal: Renewal) -> None:
        """Ask about the secret of a request to `/management`, after those that wait."""
        raise NotImplementedError

    def describe(self) -> dict[str, object]:
        """Return the description of the connection for the HTTP API."""
        raise NotImplementedError
