"""A whole broker without sockets: real bridges, real engine, a journal in memory.

`Broker091` does what the server does once per loop turn; `Peer` is a client that speaks frames.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallymark.bridge.amqp091.connection import Amqp091
from tallymark.bridge.amqp091.format import Amqp091Format
from tallymark.bridge.amqp091.lifecycle import Settings
from tallymark.bridge.bridge import Waiter
from tallymark.bridge.direct_reply import DirectReplies
from tallymark.bridge.permissions import Permissions
from tallymark.engine.broker import Broker
from tallymark.engine.effects import (
    Cancelled,
    CloseSession,
    Confirm,
    Deliver,
    Durable,
    Effect,
    Refused,
    TimedOut,
)
from tallymark.engine.session import Session
from tallymark.stored.formats import AMQP091
from tallymark.wire.amqp091.frames import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    content_frames,
    frame_length,
)
from tallymark.wire.amqp091.layouts import decode_method
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    BasicPublish,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from tallymark.wire.amqp091.properties import Properties, decode_properties, encode_properties
from tests.support.amqp091 import method_frame
from tests.support.memory_journal import MemoryJournal

ALL_CAPABILITIES = {
    "authentication_failure_close": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
}


@dataclass(frozen=True, slots=True)
class Content:
    """A method that carries content, and what it carries."""

    method: Method
    properties: Properties
    body: bytes


Heard = tuple[int, Method | Content]
"""What a client heard, and on which channel."""


class Rig:
    """One broker process."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.journal = MemoryJournal()
        self.journal.start()
        self.broker = Broker(self.journal.fetch)
        self.broker.formats[AMQP091] = Amqp091Format()
        self.broker.registry.add_vhost("/")
        self.hold_disk = False
        """True: nothing more becomes synced."""
        self.now_ms = 1_000
        self.users = {"guest": Permissions.all("guest")}
        self.replies = DirectReplies()
        self._names = 0
        self.settings = Settings(limits or Limits(), "Python", self._name, self.replies)
        self.bridges: list[Amqp091] = []

    def _name(self) -> str:
        self._names += 1
        return f"{self._names:022d}"

    def turn(self) -> None:
        self.now_ms += 1
        broker, journal = self.broker, self.journal
        effects = broker.turn(self.now_ms)
        records = broker.take_records()
        position = journal.commit(records, self.now_ms) if records else journal.end
        broker.committed(position)
        if not self.hold_disk:
            journal.sync()
        effects += broker.synced(journal.synced)
        for effect in effects:
            _carry_out(effect)

    def settle_down(self) -> None:
        for _ in range(100):
            self.turn()
            waits = self.broker.durability.is_waiting() and not self.hold_disk
            if not waits and not self.broker.has_work():
                return
        raise AssertionError("a hundred turns and still work to do")

    def connect(self, user: str = "guest", **more: object) -> Peer:
        """A client through the whole handshake, with channel 1 open."""
        peer = Peer(self)
        peer.login(user, **more)  # type: ignore[arg-type]
        peer.open()
        return peer


def _carry_out(effect: Effect) -> None:
    if isinstance(effect, Deliver):
        _bridge_of(effect.consumer.session).deliver(effect)
    elif isinstance(effect, Confirm):
        _bridge_of(effect.session).confirm(effect)
    elif isinstance(effect, Refused):
        _bridge_of(effect.session).refused(effect)
    elif isinstance(effect, TimedOut):
        _bridge_of(effect.session).timed_out(effect)
    elif isinstance(effect, Cancelled):
        _bridge_of(effect.consumer.session).cancelled(effect)
    elif isinstance(effect, CloseSession):
        _bridge_of(effect.session).close_session(effect)
    elif isinstance(effect, Durable):
        assert isinstance(effect.waiter, Waiter)
        assert isinstance(effect.waiter.owner, Amqp091)
        effect.waiter.durable()


def _bridge_of(session: Session) -> Amqp091:
    bridge = session.connection.handle
    assert isinstance(bridge, Amqp091)
    return bridge


class Peer:
    """A client: sends frames, remembers what it hears."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.bridge = Amqp091(rig.broker, rig.settings, "peer")
        rig.bridges.append(self.bridge)
        self.frame_max = 131_072
        self._unread = b""

    # -- sending

    def send(self, *sent: bytes | Method | tuple[int, Method]) -> Peer:
        """Raw bytes, a method for channel 1, or (channel, method)."""
        parts = []
        for one in sent:
            if isinstance(one, bytes):
                parts.append(one)
            elif isinstance(one, tuple):
                parts.append(method_frame(one[0], one[1]))
            else:
                parts.append(method_frame(1, one))
        self.bridge.receive(b"".join(parts), self.rig.now_ms, self.rig.now_ms)
        return self

    def ask(self, *sent: bytes | Method | tuple[int, Method]) -> list[Heard]:
        """Send, let the broker work, and hear what came."""
        self.send(*sent)
        return self.hear()

    # -- hearing

    def hear(self) -> list[Heard]:
        """Everything said to this client until the broker is quiet."""
        self.rig.settle_down()
        return self.heard_now()

    def heard_now(self) -> list[Heard]:
        raw = self._unread + b"".join(self.bridge.take_output())
        self._unread = b""
        return _heard(raw)

    # -- the handshake

    def login(
        self,
        user: str = "guest",
        *,
        capabilities: dict[str, object] | None = None,
        vhost: str = "/",
        channel_max: int = 2047,
        frame_max: int = 131_072,
        heartbeat: int = 0,
    ) -> list[Heard]:
        """Up to and with connection.open; returns the answer to that."""
        self.start(capabilities)
        self.bridge.login_succeeded(self.rig.users[user])
        assert isinstance(self.heard_now()[0][1], ConnectionTune)
        self.frame_max = frame_max
        answer = self.ask(
            (0, ConnectionTuneOk(channel_max, frame_max, heartbeat)), (0, ConnectionOpen(vhost))
        )
        if vhost == "/":
            assert answer == [(0, ConnectionOpenOk())], answer
        return answer

    def start(
        self, capabilities: dict[str, object] | None = None, response: bytes = b"\0guest\0guest"
    ) -> None:
        """Up to and with connection.start-ok."""
        ((_, start),) = self.ask(PROTOCOL_HEADER)
        assert isinstance(start, ConnectionStart)
        known = ALL_CAPABILITIES if capabilities is None else capabilities
        properties: dict[str, object] = {"product": "test", "capabilities": known}
        self.send((0, ConnectionStartOk(properties, "PLAIN", response, "en_US")))

    def open(self, channel: int = 1) -> None:
        assert self.ask((channel, ChannelOpen())) == [(channel, ChannelOpenOk())]

    # -- shorthand

    def publish(
        self,
        body: bytes = b"x",
        key: str = "q",
        *,
        exchange: str = "",
        channel: int = 1,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: object,
    ) -> bytes:
        """The frames of one publish."""
        section = encode_properties(Properties(**properties))  # type: ignore[arg-type]
        method = BasicPublish(exchange, key, mandatory, immediate)
        return method_frame(channel, method) + content_frames(
            channel, section, body, self.frame_max
        )


def _heard(raw: bytes) -> list[Heard]:
    heard: list[Heard] = []
    pos = 0
    if raw.startswith(b"AMQP"):
        raise AssertionError(f"refused with protocol header {raw[:8]!r}")
    while pos < len(raw):
        after = pos + frame_length(raw, pos)
        kind = raw[pos]
        channel = int.from_bytes(raw[pos + 1 : pos + 3], "big")
        payload = raw[pos + 7 : after - 1]
        assert raw[after - 1] == 0xCE, (kind, channel, payload[:40])
        pos = after
        if kind == HEARTBEAT:
            continue
        assert kind == METHOD, (kind, payload[:40])
        method = decode_method(payload)
        if pos < len(raw) and raw[pos] == HEADER:
            content, pos = _content(raw, pos, channel, method)
            heard.append((channel, content))
        else:
            heard.append((channel, method))
    return heard


def _content(raw: bytes, pos: int, channel: int, method: Method) -> tuple[Content, int]:
    after = pos + frame_length(raw, pos)
    assert int.from_bytes(raw[pos + 1 : pos + 3], "big") == channel
    size = int.from_bytes(raw[pos + 11 : pos + 19], "big")
    properties = decode_properties(raw[pos + 19 : after - 1])
    pos = after
    body = b""
    while len(body) < size:
        assert raw[pos] == BODY
        assert int.from_bytes(raw[pos + 1 : pos + 3], "big") == channel
        after = pos + frame_length(raw, pos)
        body += raw[pos + 7 : after - 1]
        pos = after
    return Content(method, properties, body), pos
