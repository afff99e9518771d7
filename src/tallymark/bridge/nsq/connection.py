"""One NSQ client: wire events in, engine commands out; engine effects in, frames out.

Pure: the owner moves bytes and time, see Bridge. While `pending_auth` is set it asks the auth
server and answers with `auth_succeeded` or `auth_failed`. While `upgrade` is set it puts that layer
between itself and the transport, feeds `take_unread` into it and calls `upgraded` when it is ready.
It reads no more while `wants_data` is false. When `closing` turns true it closes the transport
after writing.

An OK means that the messages are on disk. Messages in flight to a client that leaves are ready
again at once [NQ-D2]; messages that exceed the time-out go to the tail, and the client continues
[NQ-14].
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, final

from tallymark.bridge.bridge import Bridge
from tallymark.bridge.conversion import amqp091_to_nsq as from_amqp091
from tallymark.bridge.conversion import amqp10_to_nsq as from_amqp10
from tallymark.bridge.formats import AMQP10, NSQ
from tallymark.bridge.nsq.answers import (
    AUTHORIZED,
    CLOSE_WAIT,
    IDENTIFIED,
    SUBSCRIBED,
    Answer,
    Answers,
    Batch,
)
from tallymark.bridge.nsq.auth import AuthState
from tallymark.bridge.nsq.in_flight import InFlightMessages, OnFinish
from tallymark.bridge.nsq.output import MessageBuffer
from tallymark.bridge.nsq.topics import Topics
from tallymark.bridge.output_gate import Gate, OutputGate
from tallymark.bridge.permissions import QUEUE, READ, Access, OnDenied, Permissions
from tallymark.engine.broker import Broker
from tallymark.engine.effects import Cancelled, CloseSession, Deliver, Durable
from tallymark.engine.errors import AccessRefused, BrokerError, PreconditionFailed
from tallymark.engine.message import Payload
from tallymark.engine.session import ACCEPTED, REQUEUES, Consumer
from tallymark.engine.session import Connection as EngineConnection
from tallymark.wire.nsq.connection import Connection as WireConnection
from tallymark.wire.nsq.errors import (
    E_BAD_TOPIC,
    WireError,
    auth_failed,
    publish_failed,
    refused,
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
from tallymark.wire.nsq.identify import Identify
from tallymark.wire.nsq.kernel import encode_bodies, encode_messages
from tallymark.wire.nsq.limits import Limits

NS_PER_MS: Final = 1_000_000


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


@final
class Nsq(Bridge):
    """The bridge of one NSQ client (see the module's docstring)."""

    __slots__ = (
        "_answers",
        "_auth",
        "_engine",
        "_gate",
        "_held",
        "_in_flight",
        "_is_asked",
        "_is_stopping",
        "_messages",
        "_now_ms",
        "_over",
        "_secret",
        "_wall_ms",
        "access",
        "broker",
        "consumer",
        "finish_count",
        "message_count",
        "peer",
        "pending_auth",
        "published",
        "requeue_count",
        "settings",
        "subscription",
        "upgrade",
        "wire",
    )

    def __init__(
        self, broker: Broker, settings: Settings, peer: str, limits: Limits | None = None
    ) -> None:
        """limits: None means those of the settings."""
        super().__init__()
        self.broker = broker
        self.settings = settings
        self.peer = peer
        """Peer address, which names the connection in logs and lists."""
        self.wire = WireConnection(settings.limits if limits is None else limits)
        self.consumer: Consumer | None = None
        """Consumer of the client once it has subscribed; `limit` is its RDY, `unacked` its
        in-flight count."""
        self.subscription = ("", "")
        """Topic and channel it subscribed to."""
        self.message_count = 0
        """Count of messages sent to the client."""
        self.finish_count = 0
        self.requeue_count = 0
        self.published: dict[str, int] = {}
        """Count of messages published by the client, by topic."""
        self._engine: EngineConnection | None = None
        """Engine's connection, from the moment the client is bound to a user: it counts among that
        user's and the virtual host's from then on; of nobody's client from SUB."""
        self.access: Access | None = None
        """Permissions of the user the client acts as; None: nothing is checked."""
        self.pending_auth: bytes | None = None
        """Secret for which the auth server must be asked; None: none is pending."""
        self.upgrade: UpgradeDue | None = None
        """Layer (TLS or compression) to be put in place once the output so far is written; None:
        none is due."""
        self._secret = b""
        self._auth: AuthState | None = None
        self._held: Event | None = None
        """Event that waits for the answer of the auth server."""
        self._in_flight: InFlightMessages | None = None
        self._messages = MessageBuffer()
        self._answers = Answers(broker, self.wire, self)
        self._gate = OutputGate(self)
        self._is_asked = False
        """True while the client waits for an answer to AUTH."""
        self._is_stopping = False
        self._now_ms = 0
        self._wall_ms = 0
        self._over = False

    # -- the owner's side

    @property
    def closing(self) -> bool:
        return self._over and not (self._answers.waiting or self._gate.shut)

    @property
    def connection(self) -> EngineConnection | None:
        return self._engine

    @property
    def identify(self) -> Identify:
        """Identification of the client and the settings in effect for it."""
        return self.wire.identify

    @property
    def wants_data(self) -> bool:
        """Return whether the owner should read on."""
        return self.wire.wants_data and self._held is None

    @property
    def input_bytes(self) -> int:
        return self.wire.line.kept_bytes()

    @property
    def output_bytes(self) -> int:
        return self._messages.size + self._gate.held_bytes()

    @property
    def write_timeout_ms(self) -> int:
        """Milliseconds for which written bytes may stay unread by the client before it counts as
        gone; 0: no limit [NQ-7]."""
        return self.wire.write_timeout_ms

    @property
    def auth(self) -> AuthState | None:
        """Permissions that the auth server last gave for the client's secret."""
        return self._auth

    def receive(self, data: bytes, now_ms: int, wall_ms: int) -> None:
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self.wire.receive_data(data, now_ms)
        self._handle_events()

    def eof(self) -> None:
        self._held = None
        self.wire.receive_eof()
        self._handle_events()

    def broken(self, reason: str) -> None:
        """End the connection because a layer cannot decode its input."""
        self.wire.receive_broken(reason)
        self._handle_events()

    def let_go(self) -> None:
        self.consumer = None
        self._engine = None
        self._in_flight = None
        self._answers.let_go()
        self._gate.let_go()

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        if self._held is not None:
            self.wire.receive_data(b"", now_ms)  # it is not read: its silence means nothing
        self.wire.tick(now_ms)
        self._handle_events()

    def next_deadline(self) -> int | None:
        due = self.wire.next_deadline()
        held = self._messages.next_due()
        if due is None or held is None:
            return held if due is None else due
        return min(due, held)

    def take_output(self) -> list[bytes]:
        """Return the output to write now. Messages that the client wants buffered may stay for a
        while, see nsq_output."""
        self._answers.taken()
        was_shut = self._gate.shut
        chunks = self._gate.take()
        connection = self.connection
        if connection is not None and was_shut:
            connection.gated = self._gate.shut
            if not connection.gated:
                self.broker.wake(connection)
        return chunks

    def said(self) -> list[bytes]:
        out = self.wire.take_output(self._now_ms)
        consumer = self.consumer
        at_once = bool(out) or consumer is None or consumer.unacked >= consumer.limit
        messages = self._messages.take(self._now_ms, at_once)
        return messages + out if messages and out else messages or out

    def take_unread(self) -> bytes:
        """Return the bytes that the client sent behind its IDENTIFY, which are the layer's first
        input."""
        return self.wire.take_unread()

    def upgraded(self) -> None:
        """Continue after the upgrade: the layer is in place."""
        self.upgrade = None
        self.wire.upgraded()
        self._handle_events()

    @property
    def user(self) -> str:
        return "" if self.access is None else self.access.user

    @property
    def publishes_as(self) -> tuple[str, str] | None:
        return self.settings.topics.vhost, self.user

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
        if consumer is None or not consumer.active or self._over:
            return
        topic, channel = self.subscription
        if not self.access.allows(QUEUE, consumer.queue.name, READ):
            self._fail(unauthorized("SUB", topic, channel))
            self._leave(False)
            self._handle_events()

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
        self._auth = state
        if self._is_asked and not self._enter("AUTH"):
            self._handle_events()
            return
        if self._is_asked:
            self._is_asked = False
            if not state.permission_count:
                self.wire.refuse()
            answer = Answer(AUTHORIZED)
            answer.auth = state
            self._answers.add(answer)
        self._handle_events()

    def auth_failed(self) -> None:
        """End a pending authentication for which no auth server could be reached."""
        if self.pending_auth is None:
            return
        self.pending_auth = None
        self._held = None
        self._fail(auth_failed())
        self._handle_events()

    def shutdown(self, reason: str = "shutdown") -> None:
        """End the connection. Publishes received so far are still answered; messages in flight are
        ready again at once."""
        self.reason = self.reason or reason
        self.wire.refuse()
        self._held = None
        self.pending_auth = None
        self._leave(False)
        self._over = True

    # -- effects

    def deliver(self, effect: Deliver) -> None:
        session = effect.consumer.session
        if session.closed:
            return
        piece = effect.slice
        payload = piece.payload
        attempts = piece.acquired + 1
        if effect.waits:
            self._gate.shut_for(self.broker)
        lo = piece.lo
        hi = piece.hi
        self.message_count += hi - lo
        if self.wire.identify.sample_rate:
            self._deliver_sample(effect, attempts)
        else:
            frames = _frames(payload, lo, hi, attempts, self.broker.clock.ahead_ms)
            self._messages.add(frames, self._now_ms)

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
                self._messages.add(frames, self._now_ms)
            else:
                self.message_count -= end - at
                first = effect.first_tag
                session = effect.consumer.session
                self.broker.settle(session, first + at, first + end - 1, ACCEPTED)
            at = end

    def cancelled(self, effect: Cancelled) -> None:
        """Close the connection because its channel was deleted, as nsqd does."""
        if not self._over:
            topic, channel = self.subscription
            self.shutdown(f"channel {topic}:{channel} was deleted")

    def close_session(self, effect: CloseSession) -> None:
        if not self._over:
            self.shutdown(str(effect.error))

    def durable(self, effect: Durable) -> None:
        batch = effect.waiter
        if isinstance(batch, Gate):
            self._gate.release(batch)
            return
        assert isinstance(batch, Batch)
        self._answers.release(batch)
        self._handle_events()

    # -- events

    def _handle_events(self) -> None:
        held = self._held
        self.is_behind = False
        if held is not None:
            if self.pending_auth is not None:
                return
            self._held = None
            self._handle(held)
        wire = self.wire
        while not self._is_held():
            event = wire.next_event()
            if event is None:
                self.is_behind = wire.line.is_spent()
                return
            self._handle(event)

    def _is_held(self) -> bool:
        """Return whether an event waits for the auth server. It is a method because mypyc assumes
        in the loop that the attribute keeps its value."""
        return self._held is not None

    def _enter(self, verb: str) -> bool:
        """Open the engine's connection once the client acts as a user. Return False when it is one
        too many and was refused."""
        if self._engine is not None or self.access is None or self._over:
            return True
        try:
            connection = self.broker.open_connection(
                self.settings.topics.vhost, self.user, self.peer
            )
        except BrokerError as error:
            self.reason = self.reason or str(error)
            self._fail(refused(verb, str(error)))
            return False
        connection.handle = self
        self._engine = connection
        return True

    def _handle(self, event: Event) -> None:
        if self._engine is None and self.access is not None:
            verb = verb_of(event)
            if verb and not self._enter(verb):
                return
        if isinstance(event, PublishReceived):
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
            self._subscribe(event)
        elif isinstance(event, ProtocolFailure):
            self._answers.fail(event.error)
        else:
            self._other_event(event)

    def _other_event(self, event: Event) -> None:
        if isinstance(event, IdentifyReceived):
            self._messages.follow(event.identify, self.settings.limits)
            self._answers.add(Answer(IDENTIFIED))
        elif isinstance(event, UpgradeDue):
            self.upgrade = event
        elif isinstance(event, AuthReceived):
            self._secret = event.secret
            self._is_asked = True
            self.pending_auth = event.secret
        elif isinstance(event, ClsReceived):
            self._is_stopping = True
            if self.consumer is not None:
                self.consumer.limit = 0
            self._answers.add(Answer(CLOSE_WAIT))
        elif isinstance(event, PeerClosed):
            self.reason = self.reason or event.reason
            self.pending_auth = None
            self._leave(not self._is_stopping)
            self._over = True

    def _publish(self, event: PublishReceived) -> None:
        topic = event.topic
        if self._auth is not None and not self._may(event, event.verb, topic, ""):
            return
        if self.access is not None:
            try:
                self.settings.topics.check_publish(self.access, topic)
            except AccessRefused:
                self._fail(unauthorized(event.verb, topic, ""))
                return
        try:
            self.settings.topics.publish(
                topic, event.raw, event.cuts, event.head, self._wall_ms, event.delay_ms
            )
        except BrokerError as error:
            if isinstance(error, (AccessRefused, PreconditionFailed)):
                self._fail(WireError(E_BAD_TOPIC, f"{event.verb} {error}"))
            else:
                self._fail(publish_failed(event.verb, str(error)))
            return
        self.published[topic] = self.published.get(topic, 0) + len(event)
        self._answers.ok_durable(event.answers)

    def _subscribe(self, event: SubReceived) -> None:
        if self._auth is not None and not self._may(event, "SUB", event.topic, event.channel):
            return
        topics = self.settings.topics
        if self.access is not None:
            try:
                topics.check_subscribe(self.access, event.topic, event.channel)
            except AccessRefused:
                self._fail(unauthorized("SUB", event.topic, event.channel))
                return
        try:
            queue = topics.channel(event.topic, event.channel)
        except BrokerError as error:
            self._fail(WireError(E_BAD_TOPIC, f"SUB {error}"))
            return
        most = self.settings.max_channel_consumers
        if most and len(queue.consumers) >= most:
            self._fail(too_many_consumers(event.topic, event.channel, most))
            return
        broker = self.broker
        connection = self._engine
        if connection is None:
            try:
                connection = broker.open_connection(topics.vhost, "", self.peer)
            except BrokerError as error:
                self._fail(sub_failed(str(error)))
                return
            connection.handle = self
            self._engine = connection
        connection.gated = True
        connection.holds_output = True
        try:
            session = broker.open_session(connection)
            consumer = broker.consume(session, queue, self.peer, False, False, 0, {})
        except BrokerError as refusal:  # an AMQP client consumes from it exclusively
            broker.close_connection(connection, False)
            self._fail(sub_failed(str(refusal)))
            return
        consumer.limit = 0
        consumer.timeout_ms = self.wire.identify.msg_timeout_ms
        consumer.on_timeout = REQUEUES
        self.consumer = consumer
        self.subscription = (event.topic, event.channel)
        self._in_flight = InFlightMessages(broker, consumer, self.settings.on_finish)
        answer = Answer(SUBSCRIBED)
        answer.connection = connection
        self._answers.add_durable(answer)

    def _ready(self, count: int) -> None:
        consumer = self.consumer
        if consumer is not None and consumer.active:
            consumer.limit = count
            if consumer.queue.ready:
                self.broker.state.agenda.mark(consumer.queue)

    def _finish(self, ids: array[int]) -> None:
        in_flight = self._in_flight
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
        for at in failed:
            if at > answered:
                self._answers.ok_durable(at - answered)
            self._tell_failed("FIN", [ids[at]])
            answered = at + 1
        if answered < len(ids):
            self._answers.ok_durable(len(ids) - answered)

    def _requeue(self, ids: array[int], delay_ms: int) -> None:
        in_flight = self._in_flight
        if in_flight is not None:
            failed = in_flight.requeue(ids, delay_ms)
            self.requeue_count += len(ids) - len(failed)
            self._tell_failed("REQ", failed)

    def _touch(self, ids: array[int]) -> None:
        in_flight = self._in_flight
        if in_flight is not None:
            failed = in_flight.touch(ids, self.settings.limits.max_msg_timeout_ms)
            self._tell_failed("TOUCH", failed)

    def _tell_failed(self, verb: str, ids: list[int]) -> None:
        in_flight = self._in_flight
        assert in_flight is not None
        for id in ids:
            self._answers.fail(settle_failed(verb, id, in_flight.reason(id)))

    def _may(self, event: Event, verb: str, topic: str, channel: str) -> bool:
        """Return whether the client may do this. False: it was refused, or the event waits until
        the auth server was asked again."""
        auth = self._auth
        assert auth is not None
        if auth.is_expired(self._now_ms):
            self._held = event
            self.pending_auth = self._secret
            return False
        if not auth.allows(topic, channel):
            self._fail(unauthorized(verb, topic, channel))
            return False
        return True

    # -- endings

    def _fail(self, error: WireError) -> None:
        """Stop reading; the error is sent in its order among the answers."""
        self.wire.refuse()
        self._answers.fail(error)

    def _leave(self, lost: bool) -> None:
        """End the engine's side: messages in flight are ready again at once [NQ-D2]."""
        connection = self.connection
        if connection is not None:
            self.broker.close_connection(connection, lost)


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
