"""A whole broker without sockets, with NSQ and AMQP clients, under a manual clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from struct import Struct

from tallymark.bridge.amqp091.format import Amqp091Format
from tallymark.bridge.bridge import Bridge, Waiter
from tallymark.bridge.nsq.connection import Nsq
from tallymark.bridge.nsq.format import NsqFormat
from tallymark.bridge.nsq.in_flight import OnFinish
from tallymark.bridge.nsq.lifecycle import Settings
from tallymark.bridge.nsq.topics import Topics
from tallymark.engine.effects import (
    Cancelled,
    Confirm,
    Deliver,
    Durable,
    Effect,
    PublisherHeld,
    Refused,
)
from tallymark.engine.queue import Queue
from tallymark.stored.formats import AMQP091, NSQ
from tallymark.wire.nsq.frames import ERROR, MESSAGE, RESPONSE, decode_message, split_frames
from tallymark.wire.nsq.limits import Limits
from tests.bridge import rig as amqp

_size = Struct(">I").pack

OK = (RESPONSE, b"OK")
Frame = tuple[int, bytes]


class NsqRig(amqp.Rig):
    """One broker process; its AMQP clients are those of the AMQP rig."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        mem_queue_size: int = 10_000,
        draw: Callable[[], int] = lambda: 0,
        on_finish: OnFinish | None = None,
        max_channel_consumers: int = 0,
        adopts: bool = False,
    ) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.broker.clock.tell(self.now_ms)
        self.broker.formats[AMQP091] = Amqp091Format()
        self.broker.formats[NSQ] = NsqFormat()
        self.topics = Topics(self.broker, "/", mem_queue_size, adopts)
        self.nsq = Settings(limits or Limits(), self.topics, draw, on_finish, max_channel_consumers)
        self.peers: list[NsqPeer] = []
        self.held: list[tuple[Bridge, str, bool]] = []
        """Publishers that were held back for a queue, or let go [SC-D7]."""

    def turn(self) -> None:
        """One turn; takes no time."""
        broker, journal = self.broker, self.journal
        effects = broker.turn(self.now_ms)
        records = broker.take_records()
        position = journal.commit(records, self.now_ms) if records else journal.end
        broker.committed(position)
        if not self.hold_disk:
            journal.sync()
        effects += broker.synced(journal.synced)
        for effect in effects:
            if isinstance(effect, PublisherHeld):
                held = effect.connection.handle
                assert isinstance(held, Bridge)
                self.held.append((held, effect.queue.name, effect.held))
            else:
                _carry_out(effect)
        for peer in self.peers:
            peer.listen()

    def advance(self, ms: int) -> None:
        """Time passes, with a turn and ticks whenever something is due, as in the server."""
        end = self.now_ms + ms
        while True:
            due = min(
                [self.broker.next_due()]
                + [at for p in self.peers if (at := p.bridge.next_deadline()) is not None]
            )
            if due > end:
                break
            self.now_ms = max(self.now_ms, due)
            self._tick()
        self.now_ms = end
        self._tick()

    def _tick(self) -> None:
        self.broker.clock.tell(self.now_ms)
        for peer in self.peers:
            due = peer.bridge.next_deadline()
            if due is not None and due <= self.now_ms:
                peer.bridge.tick(self.now_ms)
        self.settle_down()

    def queue(self, topic: str = "t", channel: str = "c") -> Queue:
        found = self.topics.find(topic)
        assert found is not None
        return found.channels[channel]

    def vhost_exchange(self, name: str, type: str) -> None:
        self.broker.vhost("/").declare_exchange(name, type, True, False, False, {}, False)

    def vhost_queue(self, name: str, arguments: dict[str, object] | None = None) -> Queue:
        """One that is not NSQ's."""
        owner = self.broker.clients.open_connection("/", "", "owner")
        made = self.broker.registry.declare_queue(
            owner, name, True, False, False, arguments or {}, False
        )
        self.broker.clients.close_connection(owner, False)
        return made

    def client(self, **identify: object) -> NsqPeer:
        """A client that has said the magic word, and IDENTIFY where there is something to say."""
        peer = NsqPeer(self)
        peer.send(b"  V2")
        if identify:
            raw = json.dumps(identify).encode()
            assert peer.ask(b"IDENTIFY\n" + _size(len(raw)) + raw) == [OK]
        return peer

    def consumer(
        self, ready: int = 1, topic: str = "t", channel: str = "c", **identify: object
    ) -> NsqPeer:
        """A client that has subscribed; what it is sent at once is still to be heard."""
        peer = self.client(**identify)
        assert peer.ask(f"SUB {topic} {channel}\n".encode()) == [OK]
        if ready:
            peer.send(f"RDY {ready}\n".encode())
        return peer


def _carry_out(effect: Effect) -> None:
    bridge: object = None
    if isinstance(effect, Deliver):
        bridge = effect.consumer.session.connection.handle
        assert isinstance(bridge, Bridge)
        bridge.deliver(effect)
    elif isinstance(effect, Confirm):
        bridge = effect.session.connection.handle
        assert isinstance(bridge, Bridge)
        bridge.confirm(effect)
    elif isinstance(effect, Refused):
        bridge = effect.session.connection.handle
        assert isinstance(bridge, Bridge)
        bridge.refused(effect)
    elif isinstance(effect, Cancelled):
        bridge = effect.consumer.session.connection.handle
        assert isinstance(bridge, Bridge)
        bridge.cancelled(effect)
    elif isinstance(effect, Durable):
        assert isinstance(effect.waiter, Waiter)
        effect.waiter.durable()


def pub(body: bytes, topic: str = "t") -> bytes:
    return f"PUB {topic}\n".encode() + _size(len(body)) + body


def dpub(body: bytes, delay_ms: int, topic: str = "t") -> bytes:
    return f"DPUB {topic} {delay_ms}\n".encode() + _size(len(body)) + body


def mpub(*bodies: bytes, topic: str = "t") -> bytes:
    raw = _size(len(bodies)) + b"".join(_size(len(body)) + body for body in bodies)
    return f"MPUB {topic}\n".encode() + _size(len(raw)) + raw


class Message:
    """One that a client was sent."""

    def __init__(self, content: bytes) -> None:
        self.timestamp_ns, self.attempts, self.id, self.body = decode_message(content)

    def fin(self) -> bytes:
        return b"FIN " + self.id + b"\n"

    def req(self, delay_ms: int = 0) -> bytes:
        return b"REQ " + self.id + b" %d\n" % delay_ms

    def touch(self) -> bytes:
        return b"TOUCH " + self.id + b"\n"


class NsqPeer:
    """A client: sends bytes, remembers what it hears."""

    def __init__(self, rig: NsqRig) -> None:
        self.rig = rig
        self.bridge = Nsq(rig.broker, rig.nsq, "peer")
        self.bridge.tick(rig.now_ms)
        self._raw = b""
        rig.peers.append(self)

    def send(self, *parts: bytes) -> NsqPeer:
        self.rig.broker.clock.tell(self.rig.now_ms)
        self.bridge.receive(b"".join(parts), self.rig.now_ms, self.rig.now_ms)
        return self

    def listen(self) -> None:
        """What the server would write now is on its way."""
        self._raw += b"".join(self.bridge.take_output())

    def hear(self) -> list[Frame]:
        """Everything said to this client until the broker is quiet, heartbeats left out."""
        self.rig.settle_down()
        frames, rest = split_frames(self._raw)
        assert rest == b""
        self._raw = b""
        return [one for one in frames if one != (RESPONSE, b"_heartbeat_")]

    def ask(self, *parts: bytes) -> list[Frame]:
        self.send(*parts)
        return self.hear()

    def messages(self) -> list[Message]:
        """What it hears, which must be messages."""
        frames = self.hear()
        assert all(kind == MESSAGE for kind, _ in frames), frames
        return [Message(content) for _, content in frames]

    def message(self) -> Message:
        (one,) = self.messages()
        return one

    def error(self, *parts: bytes) -> str:
        """What it is told is wrong, and nothing else."""
        ((kind, content),) = self.ask(*parts)
        assert kind == ERROR, (kind, content)
        return content.decode()

    def leave(self) -> None:
        """The connection breaks."""
        self.bridge.eof()
        self.rig.settle_down()

    @property
    def in_flight(self) -> int:
        assert self.bridge.consumer is not None
        return self.bridge.consumer.unacked
