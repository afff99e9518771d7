"""One NSQ client: wire events in, engine commands out; engine effects in, frames out.

An OK means that the messages are on disk. Messages that exceed the time-out go to the tail, and the
client continues [NQ-14].
"""

from __future__ import annotations

from array import array
from typing import Final, assert_never, final

from tallymark.bridge.conversion import amqp091_to_nsq as from_amqp091
from tallymark.bridge.conversion import amqp10_to_nsq as from_amqp10
from tallymark.bridge.nsq.answers import (
    CLOSE_WAIT,
    IDENTIFIED,
    SUBSCRIBED,
    Answer,
)
from tallymark.bridge.nsq.in_flight import InFlightMessages
from tallymark.bridge.nsq.lifecycle import Lifecycle, Settings
from tallymark.bridge.nsq.output import MessageBuffer
from tallymark.engine.broker import Broker
from tallymark.engine.effects import Cancelled, CloseSession, Deliver
from tallymark.engine.errors import (
    AccessRefused,
    BrokerError,
    PreconditionFailed,
    ResourceExhausted,
)
from tallymark.engine.message import Payload
from tallymark.engine.outcomes import ACCEPTED
from tallymark.engine.session import REQUEUES
from tallymark.stored.formats import AMQP10, NSQ
from tallymark.units import Ms, Tag
from tallymark.wire.line import MonotonicMs
from tallymark.wire.nsq.errors import (
    E_BAD_TOPIC,
    WireError,
    publish_failed,
    settle_failed,
    sub_failed,
    too_many_consumers,
    unauthorized,
)
from tallymark.wire.nsq.events import (
    AuthReceived,
    ClsReceived,
    Event,
    FinReceived,
    IdentifyReceived,
    PeerClosed,
    ProtocolFailure,
    PublishReceived,
    RdyReceived,
    ReqReceived,
    SubReceived,
    TouchReceived,
    UpgradeDue,
)
from tallymark.wire.nsq.kernel import encode_bodies, encode_messages
from tallymark.wire.nsq.limits import Limits
from tallymark.wire.octets import pair

NS_PER_MS: Final = 1_000_000
RANGES_A_STEP: Final = 16
"""Ranges of messages in flight that are searched in one step of work."""


@final
class Nsq(Lifecycle):
    """The bridge of one NSQ client (see the module's docstring)."""

    __slots__ = (
        "_is_stopping",
        "_messages",
        "finish_count",
        "message_count",
        "published",
        "requeue_count",
    )

    def __init__(
        self, broker: Broker, settings: Settings, peer: str, limits: Limits | None = None
    ) -> None:
        """limits: None means those of the settings."""
        super().__init__(broker, settings, peer, settings.limits if limits is None else limits)
        self.message_count = 0
        """Count of messages sent to the client."""
        self.finish_count = 0
        self.requeue_count = 0
        self.published: dict[str, int] = {}
        """Count of messages published by the client, by topic."""
        self._messages = MessageBuffer()
        self._is_stopping = False

    # -- the owner's side

    @property
    def closing(self) -> bool:
        return self.is_over and not (self.answers.waiting or self.gate.shut)

    @property
    def output_bytes(self) -> int:
        return self._messages.size + self.gate.held_bytes() + self.answers.waiting_bytes()

    @property
    def write_timeout_ms(self) -> int:
        """Milliseconds for which written bytes may stay unread by the client before it counts as
        gone; 0: no limit [NQ-7]."""
        return self.wire.write_timeout_ms

    def receive_data(self, data: bytes, now_ms: MonotonicMs) -> None:
        self.wire.receive_data(data, now_ms)

    def eof(self) -> None:
        self.held = None
        self.wire.receive_eof()
        self.handle_events()

    def tick(self, now_ms: MonotonicMs) -> None:
        self.now_ms = now_ms
        if self.held is not None:
            self.wire.receive_data(b"", now_ms)  # it is not read: its silence means nothing
        self.wire.tick(now_ms)
        self.handle_events()

    def next_deadline(self) -> MonotonicMs | None:
        due = self.wire.next_deadline()
        held = self._messages.next_due()
        if due is None or held is None:
            return held if due is None else due
        return min(due, held)

    def take_output(self) -> list[bytes]:
        """Return the output to write now. Messages that the client wants buffered may stay for a
        while, see output.py."""
        self.answers.taken()
        return super().take_output()

    def said(self) -> list[bytes]:
        out = self.wire.take_output(self.now_ms)
        consumer = self.consumer
        at_once = bool(out) or consumer is None or consumer.unacked >= consumer.limit
        messages = self._messages.take(self.now_ms, at_once)
        if self._messages.size:
            self.line.is_sooner = True  # they leave at a time of their own
        return messages + out if messages and out else messages or out

    # -- effects

    def deliver(self, effect: Deliver) -> None:
        session = effect.consumer.session
        if session.closed:
            return
        piece = effect.slice
        payload = piece.payload
        attempts = piece.acquired + 1
        if effect.waits:
            self.gate.shut_for(self.broker)
        lo = piece.lo
        hi = piece.hi
        self.message_count += hi - lo
        if self.wire.identify.sample_rate:
            self._deliver_sample(effect, attempts)
        else:
            frames = _frames(payload, lo, hi, attempts, self.broker.clock.ahead_ms)
            self._messages.add(frames, self.now_ms)

    def _deliver_sample(self, effect: Deliver, attempts: int) -> None:
        """Deliver each message with the probability of the sample, and settle the others
        [NQ-D6]."""
        piece = effect.slice
        rate = self.wire.identify.sample_rate
        draw = self.settings.draw
        ahead_ms = self.broker.clock.ahead_ms
        wanted = [draw() < rate for _ in range(len(piece))]
        at = 0
        while at < len(wanted):
            end = at + 1
            while end < len(wanted) and wanted[end] == wanted[at]:
                end += 1
            if wanted[at]:
                frames = _frames(piece.payload, piece.lo + at, piece.lo + end, attempts, ahead_ms)
                self._messages.add(frames, self.now_ms)
            else:
                self.message_count -= end - at
                first = effect.first_tag
                session = effect.consumer.session
                self.broker.settlement.settle(
                    session, Tag(first + at), Tag(first + end - 1), ACCEPTED
                )
            at = end

    def cancelled(self, effect: Cancelled) -> None:
        """Close the connection because its channel was deleted, as nsqd does."""
        if not self.is_over:
            topic, channel = self.subscription
            self.shutdown(f"channel {topic}:{channel} was deleted")

    def close_session(self, effect: CloseSession) -> None:
        if not self.is_over:
            self.shutdown(str(effect.error))

    # -- events

    def handle_events(self) -> None:
        held = self.held
        self.is_behind = False
        if held is not None:
            if self.pending_auth is not None:
                return
            self.held = None
            self._handle(held)
        wire = self.wire
        while not self._is_held():
            event = wire.next_event()
            if event is None:
                self.is_behind = self.line.is_share_done()
                return
            self._handle(event)

    def _is_held(self) -> bool:
        """Return whether an event waits for the auth server. It is a method because mypyc assumes
        in the loop that the attribute keeps its value."""
        return self.held is not None

    def _handle(self, event: Event) -> None:
        if self._engine is None and self.access is not None:
            verb = verb_of(event)
            if verb and not self.enter(verb):
                return
        if isinstance(event, PublishReceived):
            self.asked += 1
            self._publish(event)
        elif isinstance(event, FinReceived):
            self._finish(event.ids)
        elif isinstance(event, RdyReceived):
            self._ready(event.count)
        elif isinstance(event, ReqReceived):
            self._requeue(event.ids, event.delay_ms)
        elif isinstance(event, TouchReceived):
            self._touch(event.ids)
        elif isinstance(event, SubReceived):
            self.asked += 1
            self._subscribe(event)
        elif isinstance(event, ProtocolFailure):
            self.answers.fail(event.error)
        else:
            self._other_event(event)

    def _other_event(
        self, event: IdentifyReceived | UpgradeDue | AuthReceived | ClsReceived | PeerClosed
    ) -> None:
        self.asked += 1
        if isinstance(event, IdentifyReceived):
            self._messages.follow(event.identify, self.settings.limits)
            self.answers.add(Answer(IDENTIFIED))
        elif isinstance(event, UpgradeDue):
            self.upgrade = event
        elif isinstance(event, AuthReceived):
            self.secret = event.secret
            self.is_asked = True
            self.pending_auth = event.secret
        elif isinstance(event, ClsReceived):
            self._is_stopping = True
            if self.consumer is not None:
                self.broker.consuming.retire(self.consumer)
            self.answers.add(Answer(CLOSE_WAIT))
        elif isinstance(event, PeerClosed):
            self.reason = self.reason or event.reason
            self.pending_auth = None
            self.leave(not self._is_stopping)
            self.is_over = True
        else:
            assert_never(event)

    def _publish(self, event: PublishReceived) -> None:
        topic = event.topic
        if self.auth is not None and not self.may(event, event.verb, topic, ""):
            return
        if self.access is not None:
            try:
                self.settings.topics.check_publish(self.access, topic)
            except AccessRefused:
                self.fail(unauthorized(event.verb, topic, ""))
                return
        error = self._take(event)
        if event.answers > 1 and isinstance(error, ResourceExhausted):
            error = self._take_singly(event)
        if error is None:
            return
        if isinstance(error, (AccessRefused, PreconditionFailed)):
            self.fail(WireError(E_BAD_TOPIC, f"{event.verb} {error}"))
        else:
            self.fail(publish_failed(event.verb, str(error)))

    def _take(self, event: PublishReceived) -> BrokerError | None:
        """Publish all messages of a stretch, and answer; or return why none of them could be."""
        topic = event.topic
        try:
            targets = self.settings.topics.publish(
                topic, event.raw, event.cuts, event.head, self.engine_ms, event.delay_ms
            )
        except BrokerError as error:
            return error
        self.published[topic] = self.published.get(topic, 0) + len(event)
        self.answers.ok_durable(event.answers)
        self.broker.durability.answered(len(event))
        if targets.holding:
            self.broker.publishing.hold_publisher(self.publishes_by(), targets)
        return None

    def _take_singly(self, event: PublishReceived) -> BrokerError | None:
        """Publish the commands of a stretch one after the other, up to the first that is refused;
        return why it was."""
        cuts = event.cuts
        for i in range(len(event)):
            start, end = cuts[i], cuts[i + 1]
            raw = event.raw[start:end]
            one = PublishReceived(
                event.verb, event.topic, raw, pair(0, end - start), event.head, event.delay_ms
            )
            error = self._take(one)
            if error is not None:
                return error
        return None

    def _subscribe(self, event: SubReceived) -> None:
        if self.auth is not None and not self.may(event, "SUB", event.topic, event.channel):
            return
        topics = self.settings.topics
        if self.access is not None:
            try:
                topics.check_subscribe(self.access, event.topic, event.channel)
            except AccessRefused:
                self.fail(unauthorized("SUB", event.topic, event.channel))
                return
        broker = self.broker
        connection = self._engine
        try:  # before the channel: one that is ephemeral would stay where its client is refused
            if connection is None:
                connection = broker.clients.open_connection(topics.vhost, "", self.peer)
                connection.handle = self
                self._engine = connection
            session = broker.clients.open_session(connection)
        except BrokerError as error:
            self._refuse_subscriber(sub_failed(str(error)))
            return
        try:
            queue = topics.channel(event.topic, event.channel)
        except BrokerError as error:
            self._refuse_subscriber(WireError(E_BAD_TOPIC, f"SUB {error}"))
            return
        most = self.settings.max_channel_consumers
        if most and len(queue.consumers) >= most:
            self._refuse_subscriber(too_many_consumers(event.topic, event.channel, most))
            return
        connection.gated = True
        connection.holds_output = True
        try:
            consumer = broker.consuming.consume(session, queue, self.peer, False, False, 0, {})
        except BrokerError as error:  # an AMQP client consumes from it exclusively
            self._refuse_subscriber(sub_failed(str(error)))
            return
        consumer.timeout_ms = Ms(self.wire.identify.msg_timeout_ms)
        consumer.on_timeout = REQUEUES
        broker.consuming.set_limit(consumer, 0)
        self.consumer = consumer
        self.subscription = (event.topic, event.channel)
        self.in_flight = InFlightMessages(broker, consumer, self.settings.on_finish)
        answer = Answer(SUBSCRIBED)
        answer.connection = connection
        self.answers.add_durable(answer)

    def _refuse_subscriber(self, error: WireError) -> None:
        """Answer a SUB by an error, and end what the engine has of the client."""
        if self._engine is not None:
            self.broker.clients.close_connection(self._engine, False)
        self.fail(error)

    def _ready(self, count: int) -> None:
        if self.consumer is not None:
            self.broker.consuming.set_limit(self.consumer, count)

    def _finish(self, ids: array[int]) -> None:
        in_flight = self.in_flight
        if in_flight is not None:
            failed = in_flight.finish(ids)
            self.finish_count += len(ids) - len(failed)
            if self.wire.identify.fin_ack:
                self._acknowledge(ids, failed)
            elif failed:
                self._tell_failed("FIN", [ids[at] for at in failed])

    def _acknowledge(self, ids: array[int], failed: list[int]) -> None:
        """Answer each FIN in its order: OK when it is on disk, or its error [NQ-D11]."""
        answered = 0
        reasons = self._reasons([ids[at] for at in failed])
        for i, at in enumerate(failed):
            if at > answered:
                self.answers.ok_durable(at - answered)
            self.answers.fail(settle_failed("FIN", ids[at], reasons[i]))
            answered = at + 1
        if answered < len(ids):
            self.answers.ok_durable(len(ids) - answered)

    def _requeue(self, ids: array[int], delay_ms: int) -> None:
        in_flight = self.in_flight
        if in_flight is not None:
            failed = in_flight.requeue(ids, delay_ms)
            self.requeue_count += len(ids) - len(failed)
            self._tell_failed("REQ", failed)

    def _touch(self, ids: array[int]) -> None:
        in_flight = self.in_flight
        if in_flight is not None:
            failed = in_flight.touch(ids, self.settings.limits.max_msg_timeout_ms)
            self._tell_failed("TOUCH", failed)

    def _tell_failed(self, verb: str, ids: list[int]) -> None:
        reasons = self._reasons(ids)
        for i, id in enumerate(ids):
            self.answers.fail(settle_failed(verb, id, reasons[i]))

    def _reasons(self, ids: list[int]) -> list[str]:
        """Return for each why it failed. Each error is a step of work of its own, and so is the
        search of the channel."""
        in_flight = self.in_flight
        assert in_flight is not None
        searched = in_flight.searched
        reasons = in_flight.reasons(ids)
        searched = in_flight.searched - searched
        self.wire.line.steps -= len(ids) + searched // RANGES_A_STEP
        return reasons

    # -- endings


def verb_of(event: Event) -> str:
    """Return the command that binds a client to the user it acts as; empty: it is none of them."""
    if isinstance(event, IdentifyReceived):
        return "IDENTIFY"
    if isinstance(event, PublishReceived):
        return event.verb
    return "SUB" if isinstance(event, SubReceived) else ""


def _frames(payload: Payload, lo: int, hi: int, attempts: int, ahead_ms: int) -> bytes:
    """Return messages in the client's format, whatever protocol they were published by. ahead_ms:
    lead of wall time, which is in their time stamps, over engine time."""
    raw = payload.raw
    assert raw is not None, payload.position
    first_id = payload.first_id + lo
    timestamp_ns = max(0, payload.arrived_ms + ahead_ms) * NS_PER_MS
    if payload.format == NSQ:
        return encode_messages(raw, payload.cuts, lo, hi, first_id, timestamp_ns, attempts)
    if payload.format == AMQP10:
        bodies = from_amqp10.bodies(raw, payload.cuts, lo, hi)
    else:
        bodies = from_amqp091.bodies(raw, payload.cuts, lo, hi)
    return encode_bodies(bodies, first_id, timestamp_ns, attempts)
