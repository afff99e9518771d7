"""Coming and going of an NSQ client: who it is and may do, the layers put under its connection, and
the end.

While `pending_auth` is set the owner asks the auth server and answers with `auth_succeeded` or
`auth_failed`. While `upgrade` is set it puts that layer between itself and the transport, feeds
`take_unread` into it and calls `upgraded` when it is ready. Messages in flight to a client that
leaves are ready again at once [NQ-D2].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tallymark.bridge.bridge import Bridge
from tallymark.bridge.nsq.answers import (
    AUTHORIZED,
    Answer,
    Answers,
)
from tallymark.bridge.nsq.auth import AuthState
from tallymark.bridge.nsq.in_flight import InFlightMessages, OnFinish
from tallymark.bridge.nsq.topics import Topics
from tallymark.bridge.permissions import QUEUE, READ, Access, OnDenied, Permissions
from tallymark.engine.broker import Broker
from tallymark.engine.errors import BrokerError
from tallymark.engine.session import Connection as EngineConnection
from tallymark.engine.session import Consumer
from tallymark.wire.nsq.connection import Connection as WireConnection
from tallymark.wire.nsq.errors import (
    WireError,
    auth_failed,
    refused,
    unauthorized,
)
from tallymark.wire.nsq.events import (
    Event,
    UpgradeDue,
)
from tallymark.wire.nsq.identify import Identify
from tallymark.wire.nsq.limits import Limits


@final
class Settings:
    """Settings that all NSQ connections of a broker share."""

    __slots__ = ("draw", "limits", "max_channel_consumers", "on_denied", "on_finish", "topics")

    def __init__(
        self,
        limits: Limits,
        topics: Topics,
        draw: Callable[[], int],
        on_finish: OnFinish | None = None,
        max_channel_consumers: int = 0,
        on_denied: OnDenied | None = None,
    ) -> None:
        self.limits = limits
        self.topics = topics
        self.draw = draw
        """Function that returns a random number from 0 to 99, which decides on each message of a
        sample."""
        self.on_finish = on_finish
        self.max_channel_consumers = max_channel_consumers
        """Maximum number of clients subscribed to a channel; 0: no limit."""
        self.on_denied = on_denied


class Lifecycle(Bridge):
    """Base of `Nsq`."""

    __slots__ = (
        "access",
        "answers",
        "auth",
        "consumer",
        "held",
        "in_flight",
        "is_asked",
        "peer",
        "pending_auth",
        "secret",
        "settings",
        "subscription",
        "upgrade",
        "wire",
        "_engine",
        "_publisher",
    )

    def __init__(self, broker: Broker, settings: Settings, peer: str, limits: Limits) -> None:
        self.wire = WireConnection(limits)
        super().__init__(broker, self.wire.line)
        self.settings = settings
        self.peer = peer
        """Peer address, which names the connection in logs and lists."""
        self.consumer: Consumer | None = None
        """Consumer of the client once it has subscribed; `limit` is its RDY, `unacked` its
        in-flight count."""
        self.subscription = ("", "")
        """Topic and channel it subscribed to."""
        self._engine: EngineConnection | None = None
        """Engine's connection, from the moment the client is bound to a user: it counts among that
        user's and the virtual host's from then on; of nobody's client from SUB."""
        self._publisher: EngineConnection | None = None
        """Connection by which the client is held back as a publisher before it has the engine's."""
        self.access: Access | None = None
        """Permissions of the user the client acts as; None: nothing is checked."""
        self.pending_auth: bytes | None = None
        """Secret for which the auth server must be asked; None: none is pending."""
        self.upgrade: UpgradeDue | None = None
        """Layer (TLS or compression) to be put in place once the output so far is written; None:
        none is due."""
        self.secret = b""
        """Secret of the last AUTH."""
        self.auth: AuthState | None = None
        """Permissions that the auth server last gave for the client's secret."""
        self.held: Event | None = None
        """Event that waits for the answer of the auth server."""
        self.in_flight: InFlightMessages | None = None
        self.answers = Answers(broker, self.wire, self)
        self.is_asked = False
        """True while the client waits for an answer to AUTH."""

    @property
    def asks(self) -> bool:
        """True, too, while a layer is due or the auth server is to be asked."""
        return self.closing or self.upgrade is not None or self.pending_auth is not None

    @property
    def connection(self) -> EngineConnection | None:
        return self._engine

    @property
    def identify(self) -> Identify:
        """Identification of the client and the settings in effect for it."""
        return self.wire.identify

    @property
    def user(self) -> str:
        return "" if self.access is None else self.access.user

    @property
    def publishes_as(self) -> tuple[str, str] | None:
        return self.settings.topics.vhost, self.user

    @property
    def wants_data(self) -> bool:
        """Return whether the owner should read on."""
        return self.wire.wants_data and self.held is None

    # -- who it is

    def act_as(self, permissions: Permissions) -> None:
        """Act with this user's permissions from now on."""
        access = Access(
            permissions.user, self.settings.topics.vhost, ("", "", ""),
            on_denied=self.settings.on_denied, peer=self.peer,
        )  # fmt: skip
        access.follow(permissions)
        self.access = access

    def rights_changed(self, permissions: Permissions) -> None:
        """Apply changed permissions. A subscriber that may no longer read its channel gets an error
        and is closed."""
        if self.access is None:
            return
        self.access.follow(permissions)
        consumer = self.consumer
        if consumer is None or not consumer.active or self.is_over:
            return
        topic, channel = self.subscription
        if not self.access.allows(QUEUE, consumer.queue.name, READ):
            self.fail(unauthorized("SUB", topic, channel))
            self.leave(False)
            self.handle_events()

    def auth_succeeded(self, state: AuthState, permissions: Permissions | None = None) -> None:
        """Accept the pending secret with these permissions. permissions: those of the user whose
        password the secret is."""
        if self.pending_auth is None:
            return
        self.pending_auth = None
        if permissions is not None:
            self.wire.is_renewable = permissions.scopes is not None
            if self.access is None:
                self.act_as(permissions)
            else:
                self.rights_changed(permissions)
        self.auth = state
        if self.is_asked and not self.enter("AUTH"):
            self.handle_events()
            return
        if self.is_asked:
            self.is_asked = False
            if not state.permission_count:
                self.wire.refuse()
            answer = Answer(AUTHORIZED)
            answer.auth = state
            self.answers.add(answer)
        self.handle_events()

    def auth_failed(self) -> None:
        """End a pending authentication for which no auth server could be reached."""
        if self.pending_auth is None:
            return
        self.pending_auth = None
        self.held = None
        self.fail(auth_failed())
        self.handle_events()

    def may(self, event: Event, verb: str, topic: str, channel: str) -> bool:
        """Return whether the client may do this. False: it was refused, or the event waits until
        the auth server was asked again."""
        auth = self.auth
        assert auth is not None
        if auth.is_expired(self.now_ms):
            self.held = event
            self.pending_auth = self.secret
            return False
        if not auth.allows(topic, channel):
            self.fail(unauthorized(verb, topic, channel))
            return False
        return True

    def enter(self, verb: str) -> bool:
        """Open the engine's connection once the client acts as a user. Return False when it is one
        too many and was refused."""
        if self._engine is not None or self.access is None or self.is_over:
            return True
        try:
            connection = self.broker.clients.open_connection(
                self.settings.topics.vhost, self.user, self.peer
            )
        except BrokerError as error:
            self.reason = self.reason or str(error)
            self.fail(refused(verb, str(error)))
            return False
        connection.handle = self
        self._engine = connection
        return True

    def publishes_by(self) -> EngineConnection:
        """Return the connection by which the client is held back as a publisher. The engine does
        not count it where the client has published and no more."""
        connection = self._engine or self._publisher
        if connection is None:
            vhost = self.settings.topics.vhost
            connection = EngineConnection(self.broker.owner_ids(), vhost, self.user, self.peer)
            connection.handle = self
            self._publisher = connection
        return connection

    # -- layers

    def take_unread(self) -> bytes:
        """Return the bytes that the client sent behind its IDENTIFY, which are the layer's first
        input."""
        return self.wire.take_unread()

    def upgraded(self) -> None:
        """Continue after the upgrade: the layer is in place."""
        self.upgrade = None
        self.wire.upgraded()
        self.handle_events()

    def broken(self, reason: str) -> None:
        """End the connection because a layer cannot decode its input."""
        self.wire.receive_broken(reason)
        self.handle_events()

    # -- the end

    def fail(self, error: WireError) -> None:
        """Stop reading; the error is sent in its order among the answers."""
        self.wire.refuse()
        self.answers.fail(error)

    def shutdown(self, reason: str = "shutdown") -> None:
        """End the connection. Publishes received so far are still answered; messages in flight are
        ready again at once."""
        self.reason = self.reason or reason
        self.wire.refuse()
        self.held = None
        self.pending_auth = None
        self.leave(False)
        self.is_over = True

    def leave(self, lost: bool) -> None:
        """End the engine's side: messages in flight are ready again at once [NQ-D2]."""
        connection = self.connection
        if connection is not None:
            self.broker.clients.close_connection(connection, lost)
        if self._publisher is not None:
            self.broker.publishing.forget(self._publisher)

    def let_go(self) -> None:
        super().let_go()
        self.consumer = None
        self._engine = self._publisher = None
        self.in_flight = None
        self.answers.let_go()
