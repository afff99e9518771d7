"""The adapter for AMQP 1.0: the client's words to `wire.amqp10`'s, and its events to the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never, final

from tallymark.client.adapter import (
    Adapter,
    ConnectionOwner,
    ManagementPort,
    Number,
    SessionOwner,
    SessionPort,
)
from tallymark.client.amqp10.management import Amqp10Management
from tallymark.client.amqp10.session import (
    Amqp10Receiver,
    Amqp10Sender,
    Amqp10Session,
    CoordinatorEnd,
    error_of,
    fields_of,
    outcome_of,
)
from tallymark.client.arguments import ConnectionOptions, Endpoint
from tallymark.client.errors import (
    NO_USE_TRYING,
    ClientError,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    LinkClosed,
    LinkRefused,
    LoginRefused,
    NotPossible,
    SessionClosed,
)
from tallymark.client.received import ReceivedMessage
from tallymark.client.transaction import Tag, tags_of
from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.ends import LinkEnd
from tallymark.wire.amqp10.errors import NOT_ALLOWED, NOT_IMPLEMENTED
from tallymark.wire.amqp10.events import (
    CloseReceived,
    ConnectionEvent,
    ConnectionFailed,
    CreditReceived,
    DeliveriesWithdrawn,
    DispositionReceived,
    DrainFinished,
    Ended,
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
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Declared, Error
from tallymark.wire.amqp10.performatives import RCV_SECOND, Open, Target
from tallymark.wire.amqp10.sasl import (
    AUTH,
    OK,
    SaslChallenge,
    SaslMechanisms,
    SaslOutcome,
    plain_response,
)
from tallymark.wire.amqp10.serial import diff, walk
from tallymark.wire.line import MonotonicMs

HUNG_UP: Final = ", in answer to our open: is there a virtual host '{}', and may the user enter it?"
"""RabbitMQ and Tallymark say nothing where that is not so."""
TAKEN_BACK: Final = "the server does not begin sessions or links with this client"
NO_TRACE: Final[Callable[[str], None] | None] = None


@final
class Amqp10(Adapter):
    """One AMQP 1.0 connection, the client's end."""

    def __init__(
        self,
        owner: ConnectionOwner,
        options: ConnectionOptions,
        endpoint: Endpoint,
        wall_ms: Callable[[], int],
        trace: Callable[[str], None] | None = NO_TRACE,
    ) -> None:
        limits = Limits(
            max_frame_size=options.max_frame_size,
            idle_time_out_ms=options.idle_timeout_ms,
            incoming_window=options.session_window,
            max_message_size=options.max_message_size,
            handshake_timeout_ms=options.handshake_timeout_ms,
        )
        self._wire = Connection(limits, is_server=False, trace=trace)
        self._owner = owner
        self._options = options
        self._endpoint = endpoint
        self._wall_ms = wall_ms
        self._is_open = False
        self._has_asked = False  # to be let in: open is sent
        self._is_closing = False
        self._error: ClientError | None = None

    # Bytes and time

    def start(self, now_ms: MonotonicMs) -> None:
        self._wire.tick(now_ms)
        with_sasl = self._options.sasl != "none"
        self._wire.start(with_sasl)
        if not with_sasl:
            self._send_open()

    def receive(self, data: bytes, now_ms: MonotonicMs) -> None:
        self._wire.receive_data(data, now_ms)
        self._work()

    def receive_end(self, reason: str, now_ms: MonotonicMs) -> None:
        if reason:
            self._wire.receive_broken(reason)
        else:
            self._wire.receive_eof()
        self._work()

    def take_output(self, now_ms: MonotonicMs) -> list[bytes]:
        self._work()  # what came of our own calls, as of withdrawing a message
        return self._wire.take_output(now_ms)

    def tick(self, now_ms: MonotonicMs) -> None:
        self._wire.tick(now_ms)
        self._work()

    def next_deadline(self) -> MonotonicMs | None:
        return self._wire.next_deadline()

    def _work(self) -> None:
        wire = self._wire
        while (event := wire.next_event()) is not None:
            match event:
                case TransfersReceived():
                    self._transfers(event)
                case DispositionReceived():
                    self._disposition(event)
                case CreditReceived():
                    self._credit(event)
                case SettlementReceived():
                    self._settlement(event)
                case DeliveriesWithdrawn() | SessionUnblocked() | DrainFinished() | InflowStopped():
                    self._flow(event)
                case LinkRequested() | LinkAttached() | LinkDetached() | LinkFailed():
                    self._link(event)
                case SessionRequested() | SessionBegun() | SessionEnded() | SessionFailed():
                    self._session(event)
                case FlowReceived():
                    pass  # of a sender's flow no more is read than its credit
                case _:
                    self._of_connection(event)

    def _of_connection(self, event: ConnectionEvent) -> None:
        match event:
            case SaslReceived():
                self._sasl(event)
            case OpenReceived():
                self._opened(event)
            case CloseReceived():
                self._close_received(event)
            case ConnectionFailed():
                self._failed(event)
            case Ended():
                self._ended(event)
            case _:
                assert_never(event)

    def _session(self, event: SessionEvent) -> None:
        match event:
            case SessionRequested():
                event.session.end(Error(NOT_ALLOWED, TAKEN_BACK))
            case SessionBegun():
                self._session_begun(event)
            case SessionEnded():
                self._session_ended(event)
            case SessionFailed():
                self._session_failed(event)
            case _:
                assert_never(event)

    def _link(self, event: LinkEvent) -> None:
        match event:
            case LinkRequested():
                event.link.refuse(Error(NOT_ALLOWED, TAKEN_BACK))
            case LinkAttached():
                self._link_attached(event)
            case LinkDetached():
                self._link_detached(event)
            case LinkFailed():
                self._link_failed(event)
            case _:
                assert_never(event)

    def _flow(
        self, event: DeliveriesWithdrawn | SessionUnblocked | DrainFinished | InflowStopped
    ) -> None:
        match event:
            case DeliveriesWithdrawn():
                self._withdrawn(event)
            case SessionUnblocked():
                self._unblocked(event)
            case DrainFinished():
                port = event.link.context
                if isinstance(port, Amqp10Receiver):
                    port.owner.drained(event.given_up)
            case InflowStopped():
                port = event.link.context
                assert isinstance(port, Amqp10Receiver)
                port.session.link_stopped(event.link)
            case _:
                assert_never(event)

    # What the client asks for

    def begin(self, owner: SessionOwner) -> SessionPort:
        try:
            session = self._wire.begin()
        except ValueError as error:
            raise NotPossible(f"no further session: {error}") from error
        port = Amqp10Session(session, owner)
        session.context = port
        return port

    def manage(self) -> ManagementPort:
        return Amqp10Management(self._wire)

    def close(self) -> None:
        self._is_closing = True
        self._wire.close()
        self._work()

    # Opening

    def _sasl(self, event: SaslReceived) -> None:
        frame = event.frame
        if isinstance(frame, SaslMechanisms):
            self._choose(frame.sasl_server_mechanisms)
        elif isinstance(frame, SaslOutcome):
            if frame.code == OK:
                self._send_open()
            elif frame.code == AUTH:
                who = repr(self._endpoint.user) if self._endpoint.user else "nobody in particular"
                self._error = LoginRefused(f"login as {who} is refused", is_remote=True)
            else:
                text = f"the server cannot tell whether to let us in (sasl code {frame.code})"
                self._error = ConnectFailed(text, is_remote=True)
        elif isinstance(frame, SaslChallenge):
            self._refuse_login("the server has a challenge, which none of our mechanisms expects")

    def _choose(self, offered: tuple[str, ...]) -> None:
        asked = self._options.sasl
        mechanism: str = asked or ("ANONYMOUS" if self._endpoint.user is None else "PLAIN")
        if mechanism not in offered:
            listed = ", ".join(offered) or "none"
            self._refuse_login(f"SASL mechanism {mechanism}, the server offers {listed}")
            return
        response: bytes | None = None
        if mechanism == "PLAIN":
            response = plain_response(self._endpoint.user or "", self._endpoint.password)
        elif mechanism == "EXTERNAL":
            response = b""
        self._wire.sasl_init(mechanism, response, self._hostname)

    def _refuse_login(self, text: str) -> None:
        self._error = LoginRefused(text)
        self._wire.close()

    @property
    def _hostname(self) -> str:
        asked = self._options.hostname
        return self._endpoint.hostname if asked is None else asked

    def _send_open(self) -> None:
        options = self._options
        self._has_asked = True
        self._wire.open(
            Open(
                container_id=options.container_id,
                hostname=self._hostname,
                properties=fields_of(options.properties),
            )
        )

    def _opened(self, event: OpenReceived) -> None:
        self._is_open = True
        properties = {str(key): value for key, value in (event.open.properties or {}).items()}
        self._owner.opened(event.open.container_id, properties)

    # Ending

    def _close_received(self, event: CloseReceived) -> None:
        kind = ConnectionClosed if self._is_open else ConnectFailed
        error = error_of(kind, event.error, "the server closed the connection")
        error.may_retry = error.condition not in NO_USE_TRYING
        self._error = error
        self._wire.close()

    def _failed(self, event: ConnectionFailed) -> None:
        kind = ConnectionLost if self._is_open else ConnectFailed
        text = event.error.description or "the server broke the protocol"
        self._error = kind(text, condition=event.error.condition)

    def _ended(self, event: Ended) -> None:
        error = self._error
        if error is None and not self._is_closing:
            if self._is_open:
                error = ConnectionLost(event.reason, is_remote=True)
            else:
                hint = HUNG_UP.format(self._endpoint.vhost or "/") if self._has_asked else ""
                error = ConnectFailed(event.reason + hint, is_remote=True)
        self._owner.closed(error)

    # Sessions

    def _session_begun(self, event: SessionBegun) -> None:
        port = event.session.context
        if isinstance(port, Amqp10Management):
            port.begun()
        else:
            assert isinstance(port, Amqp10Session)
            port.owner.opened(port)

    def _session_ended(self, event: SessionEnded) -> None:
        event.session.end()
        port = event.session.context
        if isinstance(port, Amqp10Session) and not port.is_closing:
            error = error_of(SessionClosed, event.error, "the server ended the session")
            port.owner.closed(error, True)
        elif isinstance(port, Amqp10Session):
            port.owner.ended()
        elif isinstance(port, Amqp10Management):
            port.gone(error_of(SessionClosed, event.error, "the server ended the session"))

    def _session_failed(self, event: SessionFailed) -> None:
        port = event.session.context
        if isinstance(port, Amqp10Session):
            text = event.error.description or "the server broke the session's rules"
            port.is_closing = True
            error = SessionClosed(text, condition=event.error.condition)
            port.owner.closed(error, True)
        elif isinstance(port, Amqp10Management):
            text = event.error.description or "the server broke the session's rules"
            port.gone(SessionClosed(text, condition=event.error.condition))

    # Links

    def _link_attached(self, event: LinkAttached) -> None:
        port = event.link.context
        if isinstance(port, Amqp10Receiver):
            source = event.attach.source
            mode = "second" if event.link.rcv_settle_mode == RCV_SECOND else "first"
            address = None if source is None else source.address
            filters = {} if source is None else source.filter or {}
            named = {str(name): value for name, value in filters.items()}
            port.owner.attached(port, address or "", mode, named)
        elif isinstance(port, Amqp10Sender):
            target = event.attach.target
            address = target.address if isinstance(target, Target) else None
            port.max_message_size = event.attach.max_message_size or 0
            port.owner.attached(port, address)
        elif isinstance(port, CoordinatorEnd):
            session = event.link.session.context
            assert isinstance(session, Amqp10Session)
            session.has_several = port.attached(event.attach)
        elif isinstance(port, Amqp10Management):
            port.attached()

    def _link_detached(self, event: LinkDetached) -> None:
        link = event.link
        error: LinkClosed
        if event.refused:
            error = error_of(LinkRefused, event.error, f"the server refuses link {link.name!r}")
        else:
            error = error_of(LinkClosed, event.error, f"the server detached link {link.name!r}")
        if event.closed or event.refused:
            link.detach()
        else:  # suspended, to be taken up again: we keep nothing to do that with [FC-21]
            link.detach(Error(NOT_IMPLEMENTED, "links are not resumed"), closed=True)
        _report_detached(link, error)

    def _link_failed(self, event: LinkFailed) -> None:
        text = event.error.description or "the server broke the link's rules"
        was_attached = event.link.remote_attach is not None
        kind = LinkClosed if was_attached and not _is_opening(event.link) else LinkRefused
        _report_detached(event.link, kind(text, condition=event.error.condition))

    def _credit(self, event: CreditReceived) -> None:
        port = event.link.context
        if isinstance(port, Amqp10Sender):
            port.owner.may_send()
        elif isinstance(port, (CoordinatorEnd, Amqp10Management)):
            port.may_send()

    def _unblocked(self, event: SessionUnblocked) -> None:
        port = event.session.context
        if isinstance(port, Amqp10Session) and not port.wire.is_blocked:  # and not again since
            for producer in port.owner.producers:
                producer.unblocked()

    def _withdrawn(self, event: DeliveriesWithdrawn) -> None:
        port = event.link.context
        if isinstance(port, Amqp10Sender):
            for low, high in reversed(walk(event.first, event.last)):
                port.owner.requeue(Number(low), Number(high))

    # Deliveries

    def _transfers(self, event: TransfersReceived) -> None:
        port = event.link.context
        if isinstance(port, Amqp10Management):
            port.received(event)
            return
        assert isinstance(port, Amqp10Receiver)
        consumer = port.owner
        tags = event.tags
        data = event.data
        cuts = event.cuts
        settled = event.settled
        second = event.is_second
        now_ms = self._wall_ms()
        tag = port.session.tag_of(event.first)
        if len(tags) == 1:
            consumer.deliver(
                [ReceivedMessage(consumer, tag, tags[0], data, settled, second, now_ms)]
            )
            return
        messages: list[ReceivedMessage] = []
        start = cuts[0]
        for i, one in enumerate(tags_of(tag, Tag(tag + len(tags) - 1))):
            end = cuts[i + 1]
            messages.append(
                ReceivedMessage(consumer, one, tags[i], data[start:end], settled, second, now_ms)
            )
            start = end
        consumer.deliver(messages)

    def _settlement(self, event: SettlementReceived) -> None:
        port = event.link.context
        assert isinstance(port, Amqp10Receiver)
        first = port.session.tag_of(event.first)
        last = Tag(first + diff(event.last, event.first))
        port.owner.answered(first, last, outcome_of(event.state))

    def _disposition(self, event: DispositionReceived) -> None:
        port = event.session.context
        if not isinstance(port, Amqp10Session):
            return
        outcome = outcome_of(event.state)
        is_final = event.settled or outcome is not None or isinstance(event.state, Declared)
        if not is_final:
            return  # `received`: how far it has come
        if not event.by_sender:
            for low, high in walk(event.first, event.last):
                port.coordinator.answered(Number(low), Number(high), event.state)
                port.owner.outcomes_received(Number(low), Number(high), outcome)
            if not event.settled:  # the receiver settles second: our turn
                port.wire.settle_sent(event.first, event.last, event.state)
            return
        first = port.tag_of(event.first)
        last = Tag(first + diff(event.last, event.first))
        if not event.settled:
            event.session.settle_received(event.first, event.last, event.state)
        port.owner.changed_by_peer(first, last, outcome)


def _is_opening(link: LinkEnd) -> bool:
    port = link.context
    if isinstance(port, Amqp10Receiver):
        return not port.owner.is_attached
    return isinstance(port, Amqp10Sender) and not port.owner.is_attached


def _report_detached(link: LinkEnd, error: LinkClosed) -> None:
    port = link.context
    if isinstance(port, Amqp10Receiver):
        port.owner.detached(error)
        port.session.link_stopped(link)
    elif isinstance(port, CoordinatorEnd):
        port.detached(error)
    elif isinstance(port, Amqp10Management):
        port.gone(error)
    elif isinstance(port, Amqp10Sender):
        port.owner.detached(error)
