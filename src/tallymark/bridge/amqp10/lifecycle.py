"""Coming and going of an AMQP 1.0 client: SASL and open, the login and its renewal, changed rights,
and the ends of sessions and of the connection.

While `pending_login` is set the owner checks the credentials and answers with `login_succeeded` or
`login_failed`. Unsettled messages of a client that leaves return to their old place. They count as
failed deliveries only if the connection was lost [FC-19].
"""

from __future__ import annotations

from collections import deque

from tallymark.bridge.amqp import SCRAM, AmqpBridge, AmqpClient, Renewal
from tallymark.bridge.amqp10.client import Client
from tallymark.bridge.amqp10.errors import error_of
from tallymark.bridge.amqp10.login import (
    ANONYMOUS,
    PLAIN,
    credentials,
    mechanisms,
    server_open,
    vhost_of,
)
from tallymark.bridge.amqp10.settings import Settings
from tallymark.bridge.permissions import Access, Permissions, refuse_entry
from tallymark.engine.broker import Broker
from tallymark.engine.errors import BrokerError
from tallymark.wire.amqp10 import errors, sasl
from tallymark.wire.amqp10.connection import Connection as WireConnection
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.performatives import Open
from tallymark.wire.amqp10.sasl import SaslFrame, SaslInit, SaslResponse


class Lifecycle(AmqpBridge):
    """Base of `Amqp10`."""

    __slots__ = ("_mechanism", "_open", "_renewals", "client", "settings", "wire")

    def __init__(self, broker: Broker, settings: Settings, peer: str, external_user: str) -> None:
        self.wire = WireConnection(
            settings.limits,
            is_server=True,
            wants_tags=False,
            mechanisms=mechanisms(settings.mechanisms(), external_user, settings.anonymous_user),
            needs_sasl=not settings.anonymous_user,
        )
        super().__init__(broker, self.wire.line, peer, external_user)
        self.settings = settings
        self.client: Client | None = None
        """State of the client once it has entered a virtual host."""
        self._mechanism = ""
        self._renewals: deque[Renewal] = deque()
        """Secrets to be checked, the pending one first."""
        self._open: Open | None = None
        """The client's open while it waits for the login."""

    def logged_in(self) -> AmqpClient | None:
        return self.client

    def let_go(self) -> None:
        super().let_go()
        self.client = None
        self._renewals.clear()

    # -- the login

    def sasl_received(self, frame: SaslFrame) -> None:
        response: bytes | None
        if isinstance(frame, SaslInit):
            self._mechanism = frame.mechanism
            response = frame.initial_response
            if response is None and self._mechanism in (PLAIN, SCRAM):
                self.wire.sasl_challenge(b"")
                return
        else:
            assert isinstance(frame, SaslResponse)
            response = frame.response
        offered = self._mechanism in self.wire.mechanisms
        if offered and self._mechanism == SCRAM:
            self.pending_sasl = response or b""
            return
        found = None
        if offered:
            found = credentials(
                self._mechanism, response or b"", self.external_user, self.settings.anonymous_user
            )
        if found is None:
            name = self._mechanism[:40]
            self._refuse_login(f"no credentials in a response of mechanism {name!r}")
        else:
            self.pending_login = (self._mechanism, found[0], found[1])

    def sasl_challenge(self, challenge: bytes) -> None:
        if self.pending_sasl is None:
            return
        self.pending_sasl = None
        self.wire.sasl_challenge(challenge)
        self.handle_events()

    def login_succeeded(self, permissions: Permissions, last_words: bytes = b"") -> None:
        if not self.end_login():
            return
        self.permissions = permissions
        if self._open is not None:
            self._enter(self._open, permissions)
        else:
            self.wire.sasl_outcome(sasl.OK, last_words or None)
        self.handle_events()

    def login_failed(self) -> None:
        """Refuse the pending login."""
        if not self.end_login():
            return
        self._refuse_login("login refused")
        self.handle_events()

    def _refuse_login(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self._open is not None:
            self.wire.close(Error(errors.UNAUTHORIZED_ACCESS, reason))
        else:
            self.wire.sasl_outcome(sasl.AUTH)

    def opened(self, open: Open) -> None:
        permissions = self.permissions
        if permissions is not None:
            self._enter(open, permissions)
        else:  # without SASL, if allowed
            self._open = open
            self.pending_login = (ANONYMOUS, self.settings.anonymous_user, "")

    def _enter(self, open: Open, permissions: Permissions) -> None:
        """Enter the virtual host that the client names, or close the transport.

        Without an open and a close, as RabbitMQ does: its Python client, told by a close, goes on
        to connect until its stack is full. Why is in the log.
        """
        self._open = None
        vhost = vhost_of(open.hostname)
        patterns = permissions.patterns(vhost)
        if vhost not in self.broker.vhosts:
            self.wire.drop(f"vhost {vhost} not found")
            return
        if patterns is None:
            self.wire.drop(refuse_entry(permissions, vhost, self.settings.on_denied, self.peer))
            return
        self.wire.open(server_open(self.settings))
        try:
            connection = self.broker.clients.open_connection(vhost, permissions.user, self.peer)
        except BrokerError as error:
            self.close(error_of(error))
            return
        access = Access(
            permissions.user, vhost, patterns, permissions.impersonates, self.settings.on_denied,
            self.peer,
        )  # fmt: skip
        access.follow(permissions)
        self.client = Client(self.broker, self.settings, connection, access, self)
        self.engine_ms = self.broker.clock.now_ms

    # -- renewal and rights

    def renew(self, renewal: Renewal) -> None:
        self._renewals.append(renewal)
        self.pending_secret = self._renewals[0].secret

    def secret_accepted(self, permissions: Permissions) -> None:
        self._renewed(permissions)

    def secret_refused(self) -> None:
        """The request is refused; the earlier token is good as long as it was."""
        self._renewed(None)

    def _renewed(self, permissions: Permissions | None) -> None:
        if not self._renewals:
            return
        renewal = self._renewals.popleft()
        self.pending_secret = self._renewals[0].secret if self._renewals else None
        client = self.client
        if client is None or client.closed:
            return
        if permissions is not None:
            self.rights_changed(permissions)
        renewal.done(permissions is not None)
        self.handle_events()

    def rights_changed(self, permissions: Permissions) -> None:
        """Apply changed permissions. Links that would be refused now are detached:
        amqp:unauthorized-access."""
        self.permissions = permissions
        client = self.client
        if client is None or client.closed:
            return
        client.access.follow(permissions)
        for session in list(client.sessions):
            for end in list(session.ends):
                end.rights_changed()
        self.handle_events()

    def block(self, reason: str) -> None:
        """Close session windows and grant no more credit: a client that respects them stops
        publishing."""
        self._hold(True)

    def unblock(self) -> None:
        self._hold(False)

    def _hold(self, held: bool) -> None:
        client = self.client
        if client is None or client.is_held == held:
            return
        client.is_held = held
        for session in client.sessions:
            session.wire.hold_window(held)
            if not held:
                for end in list(session.ends):
                    end.resume()

    # -- endings

    def credential_expired(self) -> None:
        """amqp:unauthorized-access, as RabbitMQ says it."""
        self.close(Error(errors.UNAUTHORIZED_ACCESS, "credential expired"))
        self.handle_events()

    def shutdown(self, reason: str = "shutdown") -> None:
        """End the connection on request of the operator or the broker."""
        text = f"broker forced connection closure with reason '{reason}'"
        self.close(Error(errors.CONNECTION_FORCED, text))
        self.handle_events()

    def close(self, error: Error) -> None:
        """Close the connection from our side."""
        self.reason = self.reason or reason_of("", error)
        self.leave(False)
        self.wire.close(error)

    def leave(self, lost: bool) -> None:
        """End the engine's side: sessions, unsettled messages, exclusive queues."""
        client = self.client
        if client is None or client.closed:
            return
        client.closed = True
        for session in list(client.sessions):
            session.close(lost)
        self.broker.clients.close_connection(client.connection, lost)


def reason_of(begin: str, error: Error | None) -> str:
    if error is None:
        return begin
    parts = [begin, error.condition, error.description or ""]
    return ": ".join([part for part in parts if part])
