"""Coming and going of an AMQP 0-9-1 client: handshake, login and its renewal, changed rights, and
the ends of channels and of the connection.

While `pending_login` is set the owner checks the credentials and answers with `login_succeeded` or
`login_failed`. An error of a command closes its channel or the connection, as its reply code says;
the engine's side ends at once, whatever the peer answers and when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tallymark.bridge.amqp import SCRAM, AmqpBridge, AmqpClient, default_mechanisms
from tallymark.bridge.amqp091.channel import Client
from tallymark.bridge.amqp091.errors import wire_error
from tallymark.bridge.amqp091.login import (
    UNCOUNTED_RECOVER,
    client_capabilities,
    credentials,
    mechanisms,
    server_properties,
    shares_prefetch,
)
from tallymark.bridge.direct_reply import DirectReplies
from tallymark.bridge.permissions import QUEUE, READ, Access, OnDenied, Permissions, refuse_entry
from tallymark.engine.broker import Broker
from tallymark.engine.errors import AccessRefused, BrokerError, NotAllowed, NotFound
from tallymark.wire.amqp091.connection import Connection as WireConnection
from tallymark.wire.amqp091.errors import (
    ACCESS_REFUSED,
    CONNECTION,
    CONNECTION_FORCED,
    NOT_ALLOWED,
    WireError,
)
from tallymark.wire.amqp091.lifecycle import Greeting
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    ConnectionBlocked,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionStartOk,
    ConnectionUnblocked,
    ConnectionUpdateSecretOk,
)


@final
class Settings:
    """Settings that all connections of a broker share."""

    __slots__ = ("greeting", "limits", "mechanisms", "on_denied", "random_name", "replies")

    def __init__(
        self,
        limits: Limits,
        platform: str,
        random_name: Callable[[], str],
        replies: DirectReplies,
        mechanisms: Callable[[], tuple[str, ...]] = default_mechanisms,
        on_denied: OnDenied | None = None,
    ) -> None:
        self.limits = limits
        self.greeting = Greeting(server_properties(platform))
        """platform: its name shown to clients, such as "Python 3.11.2"."""
        self.random_name = random_name
        """Function that returns 22 random characters of [A-Za-z0-9_-] that cannot be guessed."""
        self.replies = replies
        self.mechanisms = mechanisms
        """Function that returns the mechanisms by which clients may log in now, in the order they
        are offered."""
        self.on_denied = on_denied


class Lifecycle(AmqpBridge):
    """Base of `Amqp091`."""

    __slots__ = (
        "_capabilities",
        "_login_mechanism",
        "_offered",
        "_secrets",
        "client",
        "client_properties",
        "settings",
        "wire",
    )

    def __init__(self, broker: Broker, settings: Settings, peer: str, external_user: str) -> None:
        self.wire = WireConnection(settings.limits)
        super().__init__(broker, self.wire.line, peer, external_user)
        self.settings = settings
        self.client: Client | None = None
        """State of the client once it has entered a virtual host."""
        self.client_properties: dict[str, object] = {}
        self._login_mechanism = ""
        self._offered: tuple[str, ...] = ()
        self._secrets: list[bytes] = []
        """Secrets behind the pending one, from the same read."""
        self._capabilities: frozenset[str] = frozenset()

    def logged_in(self) -> AmqpClient | None:
        return self.client

    def let_go(self) -> None:
        super().let_go()
        self.client = None

    # -- the handshake

    def offer(self) -> None:
        """Answer the protocol header with the mechanisms of the login."""
        self._offered = mechanisms(self.settings.mechanisms(), self.external_user)
        listed = " ".join(self._offered).encode()
        self.wire.send_start(self.settings.greeting, listed)

    def start(self, method: ConnectionStartOk) -> None:
        self.client_properties = method.client_properties
        self._capabilities = client_capabilities(method.client_properties)
        self._login_mechanism = method.mechanism
        if method.mechanism == SCRAM and SCRAM in self._offered:
            self.pending_sasl = method.response
            return
        found = None
        if method.mechanism in self._offered:
            found = credentials(method.mechanism, method.response, self.external_user)
        if found is None:
            # As RabbitMQ: a peer that is unknown and cannot be understood gets no answer.
            self.reason = f"no credentials in a response of mechanism {method.mechanism[:40]!r}"
            self.is_over = True
        else:
            self.pending_login = (method.mechanism, found[0], found[1])

    def sasl_challenge(self, challenge: bytes) -> None:
        if self.pending_sasl is None:
            return
        self.pending_sasl = None
        self.wire.send_method(0, ConnectionSecure(challenge))
        self.handle_events()

    def login_succeeded(self, permissions: Permissions, last_words: bytes = b"") -> None:
        """Complete the pending login. Last words are sent as a challenge, since tune has no field
        for them; the answer to it is empty [RFC 4422 §3.6]."""
        if not self.end_login():
            return
        self.permissions = permissions
        if last_words:
            self.wire.send_method(0, ConnectionSecure(last_words))
        else:
            self.wire.send_tune()
        self.handle_events()

    def login_failed(self) -> None:
        """Refuse the pending login. Only a client that understands it gets the reason."""
        if not self.end_login():
            return
        self.reason = "login refused"
        if "authentication_failure_close" in self._capabilities:
            text = (
                f"Login was refused using authentication mechanism {self._login_mechanism}. "
                "For details see the broker logfile."
            )
            self.wire.send_close(0, WireError(ACCESS_REFUSED, text, scope=CONNECTION))
        else:
            self.is_over = True

    def secure(self, response: bytes) -> None:
        """Handle the answer to a challenge."""
        if self.permissions is not None:
            self.wire.send_tune()
        else:
            self.pending_sasl = response

    def open(self, vhost: str) -> None:
        permissions = self.permissions
        assert permissions is not None
        if vhost not in self.broker.vhosts:
            raise NotAllowed(f"vhost {vhost} not found")
        patterns = permissions.patterns(vhost)
        if patterns is None:
            raise NotAllowed(refuse_entry(permissions, vhost, self.settings.on_denied, self.peer))
        self.client = Client(
            self.broker,
            self.wire,
            self.settings.replies,
            self.settings.random_name,
            self.broker.clients.open_connection(vhost, permissions.user, self.peer),
            Access(
                permissions.user,
                vhost,
                patterns,
                permissions.impersonates,
                self.settings.on_denied,
                self.peer,
            ),
            "consumer_cancel_notify" in self._capabilities,
            shares_prefetch(self.client_properties),
            UNCOUNTED_RECOVER not in self._capabilities,
            self,
        )
        self.client.access.follow(permissions)
        self.wire.send_method(0, ConnectionOpenOk())

    # -- renewal and rights

    def update_secret(self, secret: bytes) -> None:
        """A token is checked; a password was, and the new one counts for the next connection
        [rabbitmq]."""
        permissions = self.permissions
        if permissions is None or permissions.scopes is None:
            self.wire.send_method(0, ConnectionUpdateSecretOk())
        elif self.pending_secret is None:
            self.pending_secret = secret
        else:
            self._secrets.append(secret)

    def secret_accepted(self, permissions: Permissions) -> None:
        if self.pending_secret is None:
            return
        self.pending_secret = self._secrets.pop(0) if self._secrets else None
        self.rights_changed(permissions)
        self.wire.send_method(0, ConnectionUpdateSecretOk())
        self.handle_events()

    def secret_refused(self) -> None:
        """530, as RabbitMQ says it."""
        if self.pending_secret is None:
            return
        self.pending_secret = None
        self._secrets.clear()
        self.fail_connection(WireError(NOT_ALLOWED, "the new secret was refused"))

    def rights_changed(self, permissions: Permissions) -> None:
        """Apply changed permissions. A channel that consumes from a queue that may no longer be
        read is closed with 403."""
        self.permissions = permissions
        client = self.client
        if client is None or client.closed:
            return
        client.access.follow(permissions)
        client.routes.clear()
        for channel in list(client.channels.values()):
            for consumer in list(channel.session.consumers.values()):
                try:
                    client.access.check(QUEUE, consumer.queue.name, READ)
                except AccessRefused as error:
                    self.refuse(channel.number, error, 60, 20)
                    break

    def block(self, reason: str) -> None:
        """Tell the client, if it supports that, that its publishes are not read for now."""
        if self.client is not None and "connection.blocked" in self._capabilities:
            self.wire.send_method(0, ConnectionBlocked(reason))

    def unblock(self) -> None:
        if self.client is not None and "connection.blocked" in self._capabilities:
            self.wire.send_method(0, ConnectionUnblocked())

    # -- endings

    def shutdown(self, reason: str = "shutdown") -> None:
        """End the connection on request of the operator or the broker. [320 CONNECTION_FORCED]"""
        text = f"broker forced connection closure with reason '{reason}'"
        self.fail_connection(WireError(CONNECTION_FORCED, text))

    def refuse(self, number: int, error: BrokerError, class_id: int, method_id: int) -> None:
        """Refuse a method by closing its channel, or the connection. What is not there may have
        been removed just now: it is told when the disk knows."""
        if isinstance(error, NotFound):
            self.gate.shut_for(self.broker)
        self.fail(number, wire_error(error, class_id, method_id))

    def fail(self, number: int, error: WireError) -> None:
        """Close the channel, or the connection if the error's reply code demands it."""
        if number == 0 or error.scope == CONNECTION:
            self.fail_connection(error)
            return
        channel = None if self.client is None else self.client.channels.get(number)
        if channel is not None:
            channel.close(False)
        self.wire.send_close(number, error)

    def fail_connection(self, error: WireError) -> None:
        """Send the reason, end the engine's side, and wait for close-ok (with a time-out in
        wire)."""
        self.reason = self.reason or f"{error.reply_code} {error.reply_text}"
        self.leave(False)
        error.scope = CONNECTION
        self.wire.send_close(0, error)

    def leave(self, lost: bool) -> None:
        """End the engine's side: channels, unsettled messages, exclusive queues."""
        client = self.client
        if client is None or client.closed:
            return
        client.closed = True
        for channel in list(client.channels.values()):
            channel.close(lost)
        self.broker.clients.close_connection(client.connection, lost)
