"""The adapter for AMQP 1.0: the client's words to `wire.amqp10`'s, and its events to the client."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, final

from tallymark.client.adapter import Adapter, Peer, ReceiverPort, SenderPort, SessionPort
from tallymark.client.amqp10_coordinator import CoordinatorEnd
from tallymark.client.amqp10_words import OUTCOMES, error_of, fields_of, outcome_of
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
from tallymark.client.options import ConnectionOptions, ReceiverOptions, SenderOptions
from tallymark.client.outcomes import RELEASED, Outcome
from tallymark.client.received import ReceivedMessage
from tallymark.client.uri import Endpoint
from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.errors import NOT_ALLOWED, NOT_IMPLEMENTED
from tallymark.wire.amqp10.events import (
    CloseReceived,
    ConnectionFailed,
    CreditReceived,
    DeliveriesWithdrawn,
    DispositionReceived,
    DrainFinished,
    Ended,
    Event,
    InflowStopped,
    LinkAttached,
    LinkDetached,
    LinkFailed,
    LinkRequested,
    OpenReceived,
    SaslReceived,
    SessionBegun,
    SessionEnded,
    SessionFailed,
    SessionRequested,
    SessionUnblocked,
    SettlementReceived,
    TransfersReceived,
)
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.link import Link, ReceiverLink, SenderLink
from tallymark.wire.amqp10.outcomes import (
    Declared,
    DeliveryState,
    Error,
    TransactionalState,
)
from tallymark.wire.amqp10.performatives import (
    COPY,
    DURABLE_UNSETTLED_STATE,
    EXPIRE_NEVER,
    RCV_SECOND,
    Attach,
    Open,
    Source,
    Target,
)
from tallymark.wire.amqp10.sasl import (
    AUTH,
    OK,
    SaslChallenge,
    SaslMechanisms,
    SaslOutcome,
    plain_response,
)
from tallymark.wire.amqp10.serial import MASK, diff, walk
from tallymark.wire.amqp10.session import Session

if TYPE_CHECKING:
    from tallymark.client.consumer import Consumer
    from tallymark.client.dispatcher import Dispatcher
    from tallymark.client.producer import Producer
    from tallymark.client.work import Work

SND_MODES: Final = {"unsettled": 0, "settled": 1, "mixed": 2}
RCV_MODES: Final = {"first": 0, "second": 1}
EXCLUSIVE: Final = "tallymark:exclusive"
"""Property of a link that wants to be the only one to consume."""
TAKEN_BACK: Final = "the server does not begin sessions or links with this client"
NO_TRACE: Final[Callable[[str], None] | None] = None


@final
class Amqp10(Adapter):
    """One AMQP 1.0 connection, the client's end."""

    def __init__(
        self,
        peer: Peer,
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
            handshake_timeout_ms=max(1, int(options.timeout_s * 1000)),
        )
        self._wire = Connection(limits, is_server=False, trace=trace)
        self._peer = peer
        self._options = options
        self._endpoint = endpoint
        self._wall_ms = wall_ms
        self._is_open = False
        self._is_closing = False
        self._error: ClientError | None = None
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            TransfersReceived: self._transfers,
            DispositionReceived: self._disposition,
            SettlementReceived: self._settlement,
            CreditReceived: self._credit,
            DrainFinished: self._drained,
            InflowStopped: self._inflow_stopped,
            SessionUnblocked: self._unblocked,
            DeliveriesWithdrawn: self._withdrawn,
            SaslReceived: self._sasl,
            OpenReceived: self._opened,
            CloseReceived: self._close_received,
            ConnectionFailed: self._failed,
            Ended: self._ended,
            SessionBegun: self._session_begun,
            SessionEnded: self._session_ended,
            SessionFailed: self._session_failed,
            SessionRequested: self._session_requested,
            LinkAttached: self._link_attached,
            LinkDetached: self._link_detached,
            LinkFailed: self._link_failed,
            LinkRequested: self._link_requested,
        }

    # Bytes and time

    def start(self, now_ms: int) -> None:
        self._wire.tick(now_ms)
        with_sasl = self._options.sasl != "none"
        self._wire.start(with_sasl)
        if not with_sasl:
            self._send_open()

    def receive(self, data: bytes, now_ms: int) -> None:
        self._wire.receive_data(data, now_ms)
        self._work()

    def receive_end(self, reason: str, now_ms: int) -> None:
        if reason:
            self._wire.receive_broken(reason)
        else:
            self._wire.receive_eof()
        self._work()

    def take_output(self, now_ms: int) -> list[bytes]:
        self._work()  # what came of our own calls, as of withdrawing a message
        return self._wire.take_output(now_ms)

    def tick(self, now_ms: int) -> None:
        self._wire.tick(now_ms)
        self._work()

    def next_deadline(self) -> int | None:
        return self._wire.next_deadline()

    def _work(self) -> None:
        wire = self._wire
        handlers = self._handlers
        while (event := wire.next_event()) is not None:
            handle = handlers.get(type(event))
            if handle is not None:
                handle(event)

    # What the client asks for

    def begin(self, dispatcher: Dispatcher) -> SessionPort:
        try:
            session = self._wire.begin()
        except ValueError as error:
            raise NotPossible(f"no further session: {error}") from error
        port = _SessionPort(session, dispatcher)
        session.context = port
        return port

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
        self._peer.opened(event.open.container_id, properties)

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
            kind = ConnectionLost if self._is_open else ConnectFailed
            error = kind(event.reason, is_remote=True)
        self._peer.closed(error)

    # Sessions

    def _session_begun(self, event: SessionBegun) -> None:
        port = event.session.context
        assert isinstance(port, _SessionPort)
        port.dispatcher.opened(port)

    def _session_ended(self, event: SessionEnded) -> None:
        event.session.end()
        port = event.session.context
        if isinstance(port, _SessionPort) and not port.is_closing:
            error = error_of(SessionClosed, event.error, "the server ended the session")
            port.dispatcher.closed(error, True)
        elif isinstance(port, _SessionPort):
            port.dispatcher.ended()

    def _session_failed(self, event: SessionFailed) -> None:
        port = event.session.context
        if isinstance(port, _SessionPort):
            text = event.error.description or "the server broke the session's rules"
            port.is_closing = True
            error = SessionClosed(text, condition=event.error.condition)
            port.dispatcher.closed(error, True)

    def _session_requested(self, event: SessionRequested) -> None:
        event.session.end(Error(NOT_ALLOWED, TAKEN_BACK))

    # Links

    def _link_attached(self, event: LinkAttached) -> None:
        port = event.link.context
        if isinstance(port, _ReceiverPort):
            source = event.attach.source
            mode = "second" if event.link.rcv_settle_mode == RCV_SECOND else "first"
            address = None if source is None else source.address
            filters = {} if source is None else source.filter or {}
            named = {str(name): value for name, value in filters.items()}
            port.consumer.attached(port, address or "", mode, named)
        elif isinstance(port, _SenderPort):
            target = event.attach.target
            address = target.address if isinstance(target, Target) else None
            port.max_message_size = event.attach.max_message_size or 0
            port.producer.attached(port, address)
        elif isinstance(port, CoordinatorEnd):
            session = event.link.session.context
            assert isinstance(session, _SessionPort)
            session.has_several = port.attached(event.attach)

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
        _tell(link, error)

    def _link_failed(self, event: LinkFailed) -> None:
        text = event.error.description or "the server broke the link's rules"
        was_attached = event.link.remote_attach is not None
        kind = LinkClosed if was_attached and not _is_opening(event.link) else LinkRefused
        _tell(event.link, kind(text, condition=event.error.condition))

    def _link_requested(self, event: LinkRequested) -> None:
        event.link.refuse(Error(NOT_ALLOWED, TAKEN_BACK))

    def _credit(self, event: CreditReceived) -> None:
        port = event.link.context
        if isinstance(port, _SenderPort):
            port.producer.may_send()
        elif isinstance(port, CoordinatorEnd):
            port.may_send()

    def _unblocked(self, event: SessionUnblocked) -> None:
        port = event.session.context
        if isinstance(port, _SessionPort) and not event.session.is_blocked:  # and not again since
            for producer in port.dispatcher.producers:
                producer.unblocked()

    def _withdrawn(self, event: DeliveriesWithdrawn) -> None:
        port = event.link.context
        if isinstance(port, _SenderPort):
            for low, high in reversed(walk(event.first, event.last)):
                port.producer.taken_back(low, high)

    def _drained(self, event: DrainFinished) -> None:
        port = event.link.context
        if isinstance(port, _ReceiverPort):
            port.consumer.drained(event.given_up)

    def _inflow_stopped(self, event: InflowStopped) -> None:
        port = event.link.context
        assert isinstance(port, _ReceiverPort)
        port.session.is_dry(event.link)

    # Deliveries

    def _transfers(self, event: TransfersReceived) -> None:
        port = event.link.context
        assert isinstance(port, _ReceiverPort)
        consumer = port.consumer
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
        for i in range(len(tags)):
            end = cuts[i + 1]
            messages.append(
                ReceivedMessage(
                    consumer, tag + i, tags[i], data[start:end], settled, second, now_ms
                )
            )
            start = end
        consumer.deliver(messages)

    def _settlement(self, event: SettlementReceived) -> None:
        port = event.link.context
        assert isinstance(port, _ReceiverPort)
        first = port.session.tag_of(event.first)
        last = first + diff(event.last, event.first)
        port.consumer.answered(first, last, outcome_of(event.state))

    def _disposition(self, event: DispositionReceived) -> None:
        port = event.session.context
        if not isinstance(port, _SessionPort):
            return
        outcome = outcome_of(event.state)
        is_final = event.settled or outcome is not None or isinstance(event.state, Declared)
        if not is_final:
            return  # `received`: how far it has come
        if not event.by_sender:
            for low, high in walk(event.first, event.last):
                port.coordinator.answered(low, high, event.state)
                port.dispatcher.sent_settled(low, high, outcome)
            if not event.settled:  # the receiver settles second: our turn
                event.session.settle_sent(event.first, event.last, event.state)
            return
        first = port.tag_of(event.first)
        last = first + diff(event.last, event.first)
        if not event.settled:
            event.session.settle_received(event.first, event.last, event.state)
        port.dispatcher.changed_by_peer(first, last, outcome)


@final
class _SessionPort(SessionPort):
    __slots__ = ("_moving", "coordinator", "dispatcher", "has_several", "is_closing", "wire")

    def __init__(self, session: Session, dispatcher: Dispatcher) -> None:
        self.wire = session
        self.dispatcher = dispatcher
        self.is_closing = False
        self.has_several = False
        self.coordinator = CoordinatorEnd(session, dispatcher)
        self._moving: set[ReceiverLink] | None = None  # while the inflow is being stopped

    def tag_of(self, delivery_id: int) -> int:
        """delivery-ids come round after 2^32, tags do not."""
        highest = self.dispatcher.highest_tag
        if highest < 0:
            return delivery_id
        return highest + diff(delivery_id, highest & MASK)

    def add_receiver(self, consumer: Consumer, options: ReceiverOptions) -> ReceiverPort:
        source = Source(
            address=options.address,
            durable=DURABLE_UNSETTLED_STATE if options.durable else 0,
            dynamic=options.dynamic,
            distribution_mode=COPY if options.browse else None,
            filter=fields_of(options.filter),
            outcomes=OUTCOMES,
            capabilities=options.capabilities,
        )
        if options.durable:
            source.expiry_policy = EXPIRE_NEVER
        asked = {EXCLUSIVE: True} if options.exclusive else {}
        attach = Attach(
            name=options.name,
            source=source,
            target=Target(),
            properties=fields_of({**asked, **(options.properties or {})}),
        )
        rcv_mode = _mode(RCV_MODES, options.rcv_mode)
        with _possible("receiver"):
            link = self.wire.attach_receiver(attach, _mode(SND_MODES, options.snd_mode), rcv_mode)
        port = _ReceiverPort(self, link, consumer)
        link.context = port
        return port

    def add_sender(self, producer: Producer, options: SenderOptions) -> SenderPort:
        target = Target(
            address=options.address,
            durable=DURABLE_UNSETTLED_STATE if options.durable else 0,
            dynamic=options.dynamic,
            capabilities=options.capabilities,
        )
        attach = Attach(
            name=options.name,
            source=Source(outcomes=OUTCOMES),
            target=target,
            properties=fields_of(options.properties),
        )
        snd_mode = _mode(SND_MODES, options.settle_mode)
        with _possible("sender"):
            link = self.wire.attach_sender(attach, snd_mode, _mode(RCV_MODES, options.rcv_mode))
        port = _SenderPort(self, link, producer)
        link.context = port
        return port

    def settle(self, first: int, last: int, outcome: Outcome, work: Work | None = None) -> None:
        self.wire.settle_received(first & MASK, last & MASK, _state(outcome, work))

    def close(self) -> None:
        self.is_closing = True
        self.wire.end()

    # Transactions

    def select(self) -> None:
        with _possible("link"):
            self.coordinator.attach()

    def begin(self, work: Work) -> None:
        self.coordinator.declare(work)

    def commit(self, work: Work) -> None:
        self.coordinator.discharge(work, False)

    def rollback(self, work: Work) -> None:
        self.coordinator.discharge(work, True)

    def stop_inflow(self) -> None:
        links = [link for link in self.wire.links if isinstance(link, ReceiverLink)]
        self._moving = {link for link in links if link.stop()}
        self._check_dry()

    def is_dry(self, link: Link) -> None:
        """Nothing more comes on it."""
        if self._moving is not None and isinstance(link, ReceiverLink):
            self._moving.discard(link)
            self._check_dry()

    def _check_dry(self) -> None:
        if self._moving is not None and not self._moving:
            self._moving = None
            self.dispatcher.inflow_stopped()

    def resume_inflow(self) -> None:
        """With the credit that is granted now."""

    def give_back(self, ranges: list[tuple[int, int]]) -> None:
        for first, last in ranges:
            self.wire.settle_received(first & MASK, last & MASK, RELEASED)
        self.dispatcher.given_back()  # what is sent from now on is heard behind it


@final
class _ReceiverPort(ReceiverPort):
    __slots__ = ("consumer", "link", "session")

    def __init__(self, session: _SessionPort, link: ReceiverLink, consumer: Consumer) -> None:
        self.session = session
        self.link = link
        self.consumer = consumer

    @property
    def credit(self) -> int:
        return self.link.credit

    @property
    def delivery_count(self) -> int:
        return self.link.delivery_count

    def grant(self, credit: int) -> None:
        self.link.flow(credit)

    def drain(self) -> bool:
        return self.link.drain()

    def revoke(self) -> None:
        self.link.flow(0)

    def settle(self, first: int, last: int, outcome: Outcome, work: Work | None = None) -> None:
        assert work is None, "a settlement in a transaction has one step"
        self.link.settle(first & MASK, last & MASK, outcome)

    def close(self) -> None:
        self.link.detach()


@final
class _SenderPort(SenderPort):
    __slots__ = ("link", "max_message_size", "producer", "session")

    def __init__(self, session: _SessionPort, link: SenderLink, producer: Producer) -> None:
        self.session = session
        self.link = link
        self.producer = producer
        self.max_message_size = 0

    @property
    def sendable(self) -> int:
        session = self.session.wire
        if session.is_blocked:
            return 0
        # one more than fits: so that we hear when the window opens
        return min(self.link.credit, session.remote_incoming_window + 1)

    @property
    def is_blocked(self) -> bool:
        return self.session.wire.is_blocked

    def send(self, messages: list[bytes], settled: bool, work: Work | None = None) -> Iterable[int]:
        link = self.link
        state = None if work is None else _state(None, work)
        if len(messages) == 1:
            return (link.send(messages[0], settled=settled, state=state),)
        cuts = array("I", [0])
        end = 0
        for message in messages:
            end += len(message)
            cuts.append(end)
        count = len(messages)
        first = link.send_run(b"".join(messages), cuts, 0, count, settled=settled, state=state)
        if first + count <= MASK:
            return range(first, first + count)
        return [(first + i) & MASK for i in range(count)]

    def withdraw(self, number: int) -> bool:
        return self.link.cancel(number)

    def idle(self) -> None:
        self.link.drained()

    def close(self) -> None:
        self.link.detach()


@final
class _possible:
    """Turns the wire's complaint about a limit of the peer's into the client's error."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError):
            raise NotPossible(f"no further {self._what}: {error}") from error


def _mode(modes: Mapping[str, int], name: str | None) -> int | None:
    return None if name is None else modes[name]


def _state(outcome: Outcome | None, work: Work | None) -> DeliveryState | None:
    """An outcome, or none yet; in a transaction, that which it is to have if that is committed."""
    if work is None:
        return outcome
    assert isinstance(work.handle, bytes), work.handle
    return TransactionalState(work.handle, outcome)


def _is_opening(link: Link) -> bool:
    port = link.context
    if isinstance(port, _ReceiverPort):
        return port.consumer.port is None
    return isinstance(port, _SenderPort) and port.producer.port is None


def _tell(link: Link, error: LinkClosed) -> None:
    port = link.context
    if isinstance(port, _ReceiverPort):
        port.consumer.detached(error)
        port.session.is_dry(link)
    elif isinstance(port, CoordinatorEnd):
        port.detached(error)
    elif isinstance(port, _SenderPort):
        port.producer.detached(error)
