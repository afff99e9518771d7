"""One AMQP 1.0 client: wire events in, engine commands out; engine effects in, frames out.

Pure: the owner moves bytes and time. It feeds `receive`, carries engine effects to the methods of
their names, and writes what `take_output` gives. While `pending_login` is set it checks the
credentials and answers with `login_succeeded` or `login_failed`. When `closing` turns true it
closes the transport after writing.

An error has the smallest possible scope: a delivery gets an outcome, a link is detached, a session
ends, and the connection is closed only if it cannot continue. Unsettled messages of a client that
leaves return to their old place. They count as failed deliveries only if the connection was lost
[FC-19].
"""

from __future__ import annotations

from collections import deque
from typing import final

from tallymark.bridge.amqp import SCRAM, AmqpBridge, Renewal
from tallymark.bridge.amqp10 import attach as attaching
from tallymark.bridge.amqp10.client import Client, Delayed, Session
from tallymark.bridge.amqp10.consume import OutgoingLink
from tallymark.bridge.amqp10.dispositions import is_final, settle, withdraw
from tallymark.bridge.amqp10.errors import error_of
from tallymark.bridge.amqp10.links import LinkEnd
from tallymark.bridge.amqp10.login import (
    ANONYMOUS,
    PLAIN,
    credentials,
    mechanisms,
    server_open,
    vhost_of,
)
from tallymark.bridge.amqp10.publish import IncomingLink
from tallymark.bridge.amqp10.settings import Settings
from tallymark.bridge.amqp10.tx import retire
from tallymark.bridge.output_gate import Gate, OutputGate
from tallymark.bridge.permissions import Access, Permissions, refuse_entry
from tallymark.engine.broker import Broker
from tallymark.engine.effects import (
    Activated,
    Cancelled,
    CloseConsumer,
    CloseSession,
    Confirm,
    Deliver,
    Drained,
    Durable,
    Refused,
    TimedOut,
    TransactionExpired,
)
from tallymark.engine.errors import BrokerError
from tallymark.engine.session import Connection as EngineConnection
from tallymark.engine.session import Session as EngineSession
from tallymark.wire.amqp10 import errors, sasl
from tallymark.wire.amqp10.connection import Connection as WireConnection
from tallymark.wire.amqp10.ends import LinkEnd as WireLink
from tallymark.wire.amqp10.ends import SessionEnd
from tallymark.wire.amqp10.events import (
    CloseReceived,
    ConnectionFailed,
    CreditReceived,
    DeliveriesWithdrawn,
    DispositionReceived,
    Ended,
    Event,
    LinkDetached,
    LinkFailed,
    LinkRequested,
    OpenReceived,
    SaslReceived,
    SessionEnded,
    SessionFailed,
    SessionRequested,
    SettlementReceived,
    TransfersReceived,
)
from tallymark.wire.amqp10.outcomes import Error, TransactionalState
from tallymark.wire.amqp10.performatives import Open
from tallymark.wire.amqp10.sasl import SaslFrame, SaslInit, SaslResponse
from tallymark.wire.amqp10.serial import count
from tallymark.wire.amqp10.session import Session as WireSession
from tallymark.wire.amqp10.states import LinkState, SessionState


@final
class Amqp10(AmqpBridge):
    """The bridge of one AMQP 1.0 client (see the module's docstring)."""

    __slots__ = (
        "_gate",
        "_is_time",
        "_mechanism",
        "_now_ms",
        "_open",
        "_over",
        "_permissions",
        "_renewals",
        "broker",
        "client",
        "external_user",
        "settings",
        "wire",
    )

    def __init__(
        self, broker: Broker, settings: Settings, peer: str, external_user: str = ""
    ) -> None:
        super().__init__(peer)
        self.broker = broker
        self.settings = settings
        self.external_user = external_user
        """User name from the client's TLS certificate; empty: there is none."""
        self.wire = WireConnection(
            settings.limits,
            is_server=True,
            wants_tags=False,
            mechanisms=mechanisms(settings.mechanisms(), external_user, settings.anonymous_user),
            needs_sasl=not settings.anonymous_user,
        )
        self.client: Client | None = None
        """State of the client once it has entered a virtual host."""
        self._gate = OutputGate(self)
        self._mechanism = ""
        self._permissions: Permissions | None = None
        self._renewals: deque[Renewal] = deque()
        """Secrets to be checked, the pending one first."""
        self._open: Open | None = None
        """The client's open while it waits for the login."""
        self._now_ms = 0
        self._is_time = False
        """True while time-outs are handled: an event is then caused by the client's silence."""
        self._over = False

    # -- the owner's side

    @property
    def closing(self) -> bool:
        """True if the transport is to be closed once the output of take_output is written."""
        return self._over and not self._gate.shut

    @property
    def connection(self) -> EngineConnection | None:
        return None if self.client is None else self.client.connection

    @property
    def entered(self) -> EngineConnection | None:
        client = self.client
        return None if client is None or client.closed else client.connection

    @property
    def holds_itself(self) -> bool:
        return True

    @property
    def wants_data(self) -> bool:
        return self.wire.wants_data

    @property
    def input_bytes(self) -> int:
        return self.wire.line.kept_bytes()

    def receive(self, data: bytes, now_ms: int, wall_ms: int) -> None:
        """Process input. now_ms: monotonic; wall_ms: since 1970, the messages' arrival."""
        self._now_ms = now_ms
        if self.client is not None:
            self.client.wall_ms = wall_ms
        self.wire.receive_data(data, now_ms)
        self._handle_events()

    def eof(self) -> None:
        """Handle the end of the peer's input: the connection is lost unless it was closed."""
        self.wire.receive_eof()
        self._handle_events()

    @property
    def output_bytes(self) -> int:
        return self._gate.held_bytes()

    def let_go(self) -> None:
        self.client = None
        self._gate.let_go()
        self._renewals.clear()

    def tick(self, now_ms: int) -> None:
        """Handle heartbeats and time-outs. Called at `next_deadline`."""
        self._now_ms = now_ms
        self._is_time = True
        self.wire.tick(now_ms)
        self._handle_events()
        self._is_time = False

    def next_deadline(self) -> int | None:
        """Return when `tick` is due, monotonic milliseconds."""
        return self.wire.next_deadline()

    def said(self) -> list[bytes]:
        return self.wire.take_output(self._now_ms)

    def take_output(self) -> list[bytes]:
        """Return the output to write now, in order. While some output waits for the disk, no
        messages are taken from queues for this connection."""
        chunks = self._gate.take()
        connection = self.connection
        if connection is not None and connection.gated != self._gate.shut:
            connection.gated = self._gate.shut
            if not connection.gated:
                self.broker.wake(connection)
        return chunks

    def sasl_challenge(self, challenge: bytes) -> None:
        if self.pending_sasl is None:
            return
        self.pending_sasl = None
        self.wire.sasl_challenge(challenge)
        self._handle_events()

    def login_succeeded(self, permissions: Permissions, last_words: bytes = b"") -> None:
        if self.pending_login is None and self.pending_sasl is None:
            return
        self.pending_login = self.pending_sasl = None
        self._permissions = permissions
        if self._open is not None:
            self._enter(self._open, permissions)
        else:
            self.wire.sasl_outcome(sasl.OK, last_words or None)
        self._handle_events()

    @property
    def user(self) -> str:
        return "" if self._permissions is None else self._permissions.user

    def rights_changed(self, permissions: Permissions) -> None:
        """Apply changed permissions. Links that would be refused now are detached:
        amqp:unauthorized-access."""
        self._permissions = permissions
        client = self.client
        if client is None or client.closed:
            return
        client.access.follow(permissions)
        for session in list(client.sessions):
            for end in list(session.ends):
                end.rights_changed()
        self._handle_events()

    def login_failed(self) -> None:
        """Refuse the pending login."""
        if self.pending_login is None and self.pending_sasl is None:
            return
        self.pending_login = self.pending_sasl = None
        self._refuse_login("login refused")
        self._handle_events()

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
        self._handle_events()

    def credential_expired(self) -> None:
        """amqp:unauthorized-access, as RabbitMQ says it."""
        self._close(Error(errors.UNAUTHORIZED_ACCESS, "credential expired"))
        self._handle_events()

    def shutdown(self, reason: str = "shutdown") -> None:
        """End the connection on request of the operator or the broker."""
        text = f"broker forced connection closure with reason '{reason}'"
        self._close(Error(errors.CONNECTION_FORCED, text))
        self._handle_events()

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

    def describe(self) -> dict[str, object]:
        """Return the description of the connection for the HTTP API."""
        client, wire = self.client, self.wire
        sessions = [] if client is None else client.sessions
        permissions, opened = self._permissions, wire.remote_open
        properties: dict[str, object] = {}
        if opened is not None:
            properties = {str(key): value for key, value in (opened.properties or {}).items()}
        return {
            "peer": self.peer,
            "protocol": "AMQP 1.0",
            "state": "running" if self.entered is not None else wire.state.value.lower(),
            "user": None if permissions is None else permissions.user,
            "vhost": None if client is None else client.vhost.name,
            "client_properties": properties,
            "container_id": "" if opened is None else opened.container_id,
            "channel_max": wire.channel_max,
            "frame_max": wire.max_frame_size,
            "channels": [_described(session) for session in sessions],
        }

    # -- effects

    def deliver(self, effect: Deliver) -> None:
        consumer = effect.consumer
        if consumer.session.closed:
            return
        end = consumer.handle
        assert isinstance(end, OutgoingLink)
        if effect.waits:
            self._gate.shut_for(self.broker)
        end.deliver(effect)

    def confirm(self, effect: Confirm) -> None:
        if not effect.session.closed:
            for link in _session_of(effect.session).confirms.confirm(effect.upto):
                link.grant()

    def refused(self, effect: Refused) -> None:
        """Reject publishes that queues refused [DL-6]."""
        if not effect.session.closed:
            confirms = _session_of(effect.session).confirms
            for link in confirms.refuse(effect.first, effect.last):
                link.grant()

    def cancelled(self, effect: Cancelled) -> None:
        """Detach the link of a consumer whose queue was deleted."""
        consumer = effect.consumer
        end = consumer.handle
        if not consumer.session.closed and isinstance(end, OutgoingLink):
            end.queue_deleted()

    def drained(self, effect: Drained) -> None:
        consumer = effect.consumer
        end = consumer.handle
        if not consumer.session.closed and isinstance(end, OutgoingLink):
            end.drained()

    def activated(self, effect: Activated) -> None:
        end = effect.consumer.handle
        if not effect.consumer.session.closed and isinstance(end, OutgoingLink):
            end.activated()

    def timed_out(self, effect: TimedOut) -> None:
        consumer = effect.consumer
        if effect.session.closed or consumer is None:
            return
        end = consumer.handle
        assert isinstance(end, OutgoingLink)
        end.timed_out(effect)

    def transaction_expired(self, effect: TransactionExpired) -> None:
        """Close the connection after a transaction timed out and was rolled back: its client would
        continue as if it were still open [TX-16]."""
        if not effect.transaction.session.closed:
            limit = self.settings.transaction_timeout_ms
            text = f"transaction open for more than {limit} ms, rolled back"
            self._close(Error(errors.TRANSACTION_TIMEOUT, text))

    def close_session(self, effect: CloseSession) -> None:
        """End a session that the engine ends or has ended [SC-9]."""
        client = self.client
        if client is None or effect.session.handle is None:
            return
        session = _session_of(effect.session)
        if session in client.sessions:
            self._end(session, error_of(effect.error))

    def close_consumer(self, effect: CloseConsumer) -> None:
        """Detach the link of a consumer that the engine has ended; nothing else is affected
        [SC-9]."""
        end = effect.consumer.handle
        if not effect.consumer.session.closed and isinstance(end, OutgoingLink):
            end.close(error_of(effect.error))

    def durable(self, effect: Durable) -> None:
        """Send an answer that waited for the disk."""
        waiter = effect.waiter
        if isinstance(waiter, Gate):
            self._gate.release(waiter)
            return
        assert isinstance(waiter, Delayed)
        client = self.client
        if client is not None and not client.closed:
            waiter.say()

    # -- events

    def _handle_events(self) -> None:
        wire = self.wire
        event = wire.next_event()
        while event is not None:
            if isinstance(event, TransfersReceived):
                end = event.link.context
                if isinstance(end, LinkEnd):
                    end.received(event)
            elif isinstance(event, DispositionReceived):
                self._disposition(event)
            elif isinstance(event, CreditReceived):
                taker = event.link.context
                if isinstance(taker, LinkEnd):
                    taker.granted(event)
            elif isinstance(event, SettlementReceived):
                publisher = event.link.context
                if isinstance(publisher, IncomingLink):
                    publisher.settled(count(event.first, event.last))
            elif not self._event_of_link(event) and not self._event_of_session(event):
                self._event_of_connection(event)
            event = wire.next_event()
        self.is_behind = wire.line.is_spent()
        client = self.client
        if client is not None:
            for session in client.sessions:
                answers = session.answers
                if answers is not None:
                    session.answers = None
                    self.broker.await_durable(answers)
                if not session.engine.flow and not session.wire.is_blocked:
                    self.broker.set_flow(session.engine, True)

    def _disposition(self, event: DispositionReceived) -> None:
        session = event.session.context
        if not isinstance(session, Session):
            return
        if event.by_sender:
            if event.settled:
                session.confirms.forget(event.first, event.last)
        elif isinstance(event.state, TransactionalState):
            retire(session, event)
        elif is_final(event.state):
            settle(session, event)
        else:
            text = f"disposition with {type(event.state).__name__}, expected an outcome"
            self._end(session, Error(errors.INVALID_FIELD, text))

    def _event_of_link(self, event: Event) -> bool:
        if isinstance(event, LinkRequested):
            session = event.link.session.context
            if isinstance(session, Session):
                attaching.answer(session, event.link, event.attach)
        elif isinstance(event, LinkDetached):
            _leave(event.link)
            if event.link.state is LinkState.DETACH_RCVD:
                event.link.detach(closed=event.closed)
        elif isinstance(event, LinkFailed):
            _leave(event.link)
        elif isinstance(event, DeliveriesWithdrawn):
            end = event.link.context
            if isinstance(end, OutgoingLink):
                withdraw(end.session, event.first, event.last)
        else:
            return False
        return True

    def _event_of_session(self, event: Event) -> bool:
        if isinstance(event, SessionRequested):
            self._begin(event.session)
        elif isinstance(event, SessionEnded):
            ended = event.session.context
            if isinstance(ended, Session):
                ended.close(False)
            if event.session.state is SessionState.END_RCVD:
                event.session.end()
        elif isinstance(event, SessionFailed):
            failed = event.session.context
            if isinstance(failed, Session):
                failed.close(False)
        else:
            return False
        return True

    def _event_of_connection(self, event: Event) -> None:
        if isinstance(event, SaslReceived):
            self._sasl(event.frame)
        elif isinstance(event, OpenReceived):
            self._opened(event.open)
        elif isinstance(event, CloseReceived):
            self.reason = self.reason or _reason("closed by the client", event.error)
            self._leave(False)
            self.wire.close()
        elif isinstance(event, ConnectionFailed):
            self.reason = self.reason or _reason("", event.error)
            self._leave(self._is_time)
        elif isinstance(event, Ended):
            self.reason = self.reason or event.reason
            self._leave(not event.clean)
            self.pending_login = self.pending_sasl = None
            self._over = True

    def _begin(self, wire: SessionEnd) -> None:
        client = self.client
        assert client is not None  # no event comes before our open
        assert isinstance(wire, WireSession)
        wire.begin()
        try:
            engine = self.broker.open_session(client.connection)
        except BrokerError as error:
            wire.end(error_of(error))
            return
        client.sessions.append(Session(client, wire, engine))
        if client.is_held:
            wire.hold_window(True)

    # -- the log-in

    def _sasl(self, frame: SaslFrame) -> None:
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

    def _refuse_login(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self._open is not None:
            self.wire.close(Error(errors.UNAUTHORIZED_ACCESS, reason))
        else:
            self.wire.sasl_outcome(sasl.AUTH)

    def _opened(self, open: Open) -> None:
        permissions = self._permissions
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
            connection = self.broker.open_connection(vhost, permissions.user, self.peer)
        except BrokerError as error:
            self._close(error_of(error))
            return
        connection.handle = self
        connection.holds_output = True
        access = Access(
            permissions.user, vhost, patterns, permissions.impersonates, self.settings.on_denied,
            self.peer,
        )  # fmt: skip
        access.follow(permissions)
        self.client = Client(self.broker, self.settings, connection, access, self)
        self.client.wall_ms = self.broker.clock.now_ms

    # -- endings

    def _end(self, session: Session, error: Error) -> None:
        """End the session from our side."""
        session.close(False)
        session.wire.end(error)

    def _close(self, error: Error) -> None:
        """Close the connection from our side."""
        self.reason = self.reason or _reason("", error)
        self._leave(False)
        self.wire.close(error)

    def _leave(self, lost: bool) -> None:
        """End the engine's side: sessions, unsettled messages, exclusive queues."""
        client = self.client
        if client is None or client.closed:
            return
        client.closed = True
        for session in list(client.sessions):
            session.close(lost)
        self.broker.close_connection(client.connection, lost)


def _session_of(session: EngineSession) -> Session:
    found = session.handle
    assert isinstance(found, Session)
    return found


def _leave(link: WireLink) -> None:
    session = link.session.context
    if isinstance(session, Session):
        session.leave(link)


def _reason(begin: str, error: Error | None) -> str:
    if error is None:
        return begin
    parts = [begin, error.condition, error.description or ""]
    return ": ".join([part for part in parts if part])


def _described(session: Session) -> dict[str, object]:
    engine = session.engine
    transactions = session.client.broker.transactions.of(engine)
    return {
        "number": session.number,
        "consumers": len(engine.consumers),
        "prefetch": 0,
        "prefetch_shared": 0,
        "unacked": engine.unacked,
        "confirms": True,
        "transactional": bool(transactions),
        "uncommitted": sum([one.published for one in transactions]),
        "acks_uncommitted": sum([one.settled for one in transactions]),
        "published": engine.published,
        "unconfirmed": session.confirms.count(),
        "returned": 0,
        "flow": engine.flow,
    }
