"""One AMQP 1.0 client: wire events in, engine commands out; engine effects in, frames out.

An error has the smallest possible scope: a delivery gets an outcome, a link is detached, a session
ends, and the connection is closed only if it cannot continue.
"""

from __future__ import annotations

from typing import assert_never, final

from tallymark.bridge.amqp10 import attach as attaching
from tallymark.bridge.amqp10.client import Session
from tallymark.bridge.amqp10.consume import OutgoingLink
from tallymark.bridge.amqp10.dispositions import is_final, settle, withdraw
from tallymark.bridge.amqp10.errors import error_of
from tallymark.bridge.amqp10.lifecycle import Lifecycle, reason_of
from tallymark.bridge.amqp10.links import LinkEnd
from tallymark.bridge.amqp10.publish import IncomingLink
from tallymark.bridge.amqp10.settings import Settings
from tallymark.bridge.amqp10.tx import retire
from tallymark.engine.broker import Broker
from tallymark.engine.effects import (
    Activated,
    Cancelled,
    CloseConsumer,
    CloseSession,
    Confirm,
    Deliver,
    Drained,
    Refused,
    TimedOut,
    TransactionExpired,
)
from tallymark.engine.errors import BrokerError
from tallymark.engine.session import Session as EngineSession
from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.ends import LinkEnd as WireLink
from tallymark.wire.amqp10.ends import SessionEnd
from tallymark.wire.amqp10.events import (
    CloseReceived,
    ConnectionEvent,
    ConnectionFailed,
    CreditReceived,
    DeliveriesWithdrawn,
    DispositionReceived,
    DrainFinished,
    Ended,
    FlowEvent,
    FlowReceived,
    InflowStopped,
    LinkAttached,
    LinkDetached,
    LinkEvent,
    LinkFailed,
    LinkRequested,
    OpenReceived,
    SaslReceived,
    SessionBegun,
    SessionEnded,
    SessionEvent,
    SessionFailed,
    SessionRequested,
    SessionUnblocked,
    SettlementReceived,
    TransfersReceived,
)
from tallymark.wire.amqp10.outcomes import Error, TransactionalState
from tallymark.wire.amqp10.serial import count
from tallymark.wire.amqp10.session import Session as WireSession
from tallymark.wire.amqp10.states import LinkState, SessionState
from tallymark.wire.line import ENTITY, MonotonicMs


@final
class Amqp10(Lifecycle):
    """The bridge of one AMQP 1.0 client (see the module's docstring)."""

    __slots__ = ("_is_time",)

    def __init__(
        self, broker: Broker, settings: Settings, peer: str, external_user: str = ""
    ) -> None:
        super().__init__(broker, settings, peer, external_user)
        self._is_time = False
        """True while time-outs are handled: an event is then caused by the client's silence."""

    def receive_data(self, data: bytes, now_ms: MonotonicMs) -> None:
        self.wire.receive_data(data, now_ms)

    # -- the owner's side

    @property
    def holds_itself(self) -> bool:
        return True

    @property
    def wants_data(self) -> bool:
        return self.wire.wants_data

    def eof(self) -> None:
        """Handle the end of the peer's input: the connection is lost unless it was closed."""
        self.wire.receive_eof()
        self.handle_events()

    def tick(self, now_ms: MonotonicMs) -> None:
        """Handle heartbeats and time-outs. Called at `next_deadline`."""
        self.now_ms = now_ms
        self._is_time = True
        self.wire.tick(now_ms)
        self.handle_events()
        self._is_time = False

    def next_deadline(self) -> MonotonicMs | None:
        """Return when `tick` is due, monotonic milliseconds."""
        return self.wire.next_deadline()

    def describe(self) -> dict[str, object]:
        """Return the description of the connection for the HTTP API."""
        client, wire = self.client, self.wire
        sessions = [] if client is None else client.sessions
        permissions, opened = self.permissions, wire.remote_open
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
            "auth_mechanism": str(self._mechanism),
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
            self.gate.shut_for(self.broker)
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
            self.close(Error(errors.TRANSACTION_TIMEOUT, text))

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

    # -- events

    def handle_events(self) -> None:
        wire = self.wire
        event = wire.next_event()
        while event is not None:
            if isinstance(event, TransfersReceived):
                self.asked += 1
                end = event.link.context
                if isinstance(end, LinkEnd):
                    end.received(event)
            elif isinstance(event, DispositionReceived):
                self._disposition(event)
            elif isinstance(event, CreditReceived):
                if event.drain:
                    self.asked += 1
                taker = event.link.context
                if isinstance(taker, LinkEnd):
                    taker.granted(event)
            elif isinstance(event, SettlementReceived):
                publisher = event.link.context
                if isinstance(publisher, IncomingLink):
                    publisher.settled(count(event.first, event.last))
            else:
                self._other_event(event)
            event = wire.next_event()
        self.is_behind = self.line.is_share_done()
        client = self.client
        if client is not None:
            for session in client.sessions:
                answers = session.answers
                if answers is not None:
                    session.answers = None
                    self.broker.await_durable(answers)
                if not session.engine.flow and not session.wire.is_blocked:
                    self.broker.consuming.set_flow(session.engine, True)

    def _disposition(self, event: DispositionReceived) -> None:
        session = event.session.context
        if not isinstance(session, Session):
            return
        if event.by_sender:
            if event.settled:
                session.confirms.forget(event.first, event.last)
        elif isinstance(event.state, TransactionalState):
            retire(session, event, event.state)
        elif is_final(event.state):
            settle(session, event)
        else:
            text = f"disposition with {type(event.state).__name__}, expected an outcome"
            self._end(session, Error(errors.INVALID_FIELD, text))

    def _other_event(self, event: FlowEvent | LinkEvent | SessionEvent | ConnectionEvent) -> None:
        if isinstance(event, DeliveriesWithdrawn):
            end = event.link.context
            if isinstance(end, OutgoingLink):
                withdraw(end.session, event.first, event.last)
        elif isinstance(event, (LinkRequested, LinkAttached, LinkDetached, LinkFailed)):
            self.asked += 1
            self._event_of_link(event)
        elif isinstance(event, (SessionRequested, SessionBegun, SessionEnded, SessionFailed)):
            self.asked += 1
            self._event_of_session(event)
        elif isinstance(
            event, (SaslReceived, OpenReceived, CloseReceived, ConnectionFailed, Ended)
        ):
            self._event_of_connection(event)
        elif isinstance(event, (FlowReceived, DrainFinished, InflowStopped, SessionUnblocked)):
            pass  # of a sender's flow no more is read than its credit; the rest has no effect here
        else:
            assert_never(event)

    def _event_of_link(self, event: LinkEvent) -> None:
        if isinstance(event, LinkRequested):
            self.line.steps -= ENTITY
            session = event.link.session.context
            if isinstance(session, Session):
                attaching.answer(session, event.link, event.attach)
        elif isinstance(event, LinkDetached):
            _leave(event.link)
            if event.link.state is LinkState.DETACH_RCVD:
                event.link.detach(closed=event.closed)
        elif isinstance(event, LinkFailed):
            _leave(event.link)
        elif isinstance(event, LinkAttached):
            pass  # we attach no links
        else:
            assert_never(event)

    def _event_of_session(self, event: SessionEvent) -> None:
        if isinstance(event, SessionRequested):
            self.line.steps -= ENTITY
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
        elif isinstance(event, SessionBegun):
            pass  # we begin no sessions
        else:
            assert_never(event)

    def _event_of_connection(self, event: ConnectionEvent) -> None:
        if isinstance(event, SaslReceived):
            self.sasl_received(event.frame)
        elif isinstance(event, OpenReceived):
            self.opened(event.open)
        elif isinstance(event, CloseReceived):
            self.reason = self.reason or reason_of("closed by the client", event.error)
            self.leave(False)
            self.wire.close()
        elif isinstance(event, ConnectionFailed):
            self.reason = self.reason or reason_of("", event.error)
            self.leave(self._is_time)
        elif isinstance(event, Ended):
            self.reason = self.reason or event.reason
            self.leave(not event.clean)
            self.pending_login = self.pending_sasl = None
            self.is_over = True
        else:
            assert_never(event)

    def _begin(self, wire: SessionEnd) -> None:
        client = self.client
        assert client is not None  # no event comes before our open
        assert isinstance(wire, WireSession)
        wire.begin()
        try:
            engine = self.broker.clients.open_session(client.connection)
        except BrokerError as error:
            wire.end(error_of(error))
            return
        client.sessions.append(Session(client, wire, engine))
        if client.is_held:
            wire.hold_window(True)

    # -- the log-in

    # -- endings

    def _end(self, session: Session, error: Error) -> None:
        """End the session from our side."""
        session.close(False)
        session.wire.end(error)


def _session_of(session: EngineSession) -> Session:
    found = session.handle
    assert isinstance(found, Session)
    return found


def _leave(link: WireLink) -> None:
    session = link.session.context
    if isinstance(session, Session):
        session.leave(link)


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
