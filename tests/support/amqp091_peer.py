"""A broker in memory for the client over AMQP 0-9-1: the real bridge and the real engine, joined to
the client by a pipe. It keeps every method of both sides in the order in which they were written,
and can be told to answer itself in the broker's place.

    peer = Peer091()
    connection = await connect("amqp091://guest:guest@peer", opener=peer.open)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tallymark.bridge.amqp091.connection import Amqp091
from tallymark.client import Connection, Session, connect
from tallymark.client.arguments import Endpoint
from tallymark.wire.amqp091.frames import (
    BODY,
    HEADER,
    METHOD,
    PROTOCOL_HEADER,
    content_frames,
    frame_length,
)
from tallymark.wire.amqp091.layouts import decode_method, layout_of
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    ChannelFlow,
    ConnectionClose,
    ConnectionStart,
    Method,
    QueueDeclare,
    QueueDelete,
)
from tallymark.wire.amqp091.trace import line
from tests.bridge.rig import Peer as RigPeer
from tests.bridge.rig import Rig
from tests.support.amqp091 import method_frame
from tests.support.amqp10_peer import Cut, MemoryTransport, whole

M = TypeVar("M", bound=Method)


@dataclass
class Said:
    """One method: who wrote it, when (ms), on which channel."""

    client: bool
    at_ms: int
    channel: int
    method: Method

    def __repr__(self) -> str:
        return line(self.client, self.channel, self.method)


class Peer091:
    """One broker. Each connection of the client's replaces the one before."""

    def __init__(
        self, cut: Cut = whole, *, has_flow: bool = True, limits: Limits | None = None
    ) -> None:
        self.rig = Rig(limits)
        self.cut = cut
        self.has_flow = has_flow
        """False: as RabbitMQ, which answers 540 to channel.flow(active=false) [TX-D3]."""
        self.said: list[Said] = []
        self.answers: Callable[[int, Method], bool] = lambda channel, method: False
        """Is given each method of the client's; True: the broker does not see it."""
        self.connections = 0
        self.refusing: OSError | None = None
        self.password = b"guest"
        self.transport: MemoryTransport | None = None
        self.bridge: Amqp091 | None = None
        self._other: RigPeer | None = None
        self._unread = b""
        self._skips = False  # content of a method that the broker does not see

    # Joining

    async def open(
        self, endpoint: Endpoint, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await asyncio.sleep(0)
        if self.refusing is not None:
            raise self.refusing
        self.connections += 1
        self.bridge = Amqp091(self.rig.broker, self.rig.settings, "client")
        self.rig.bridges = [self.bridge]
        self._unread = b""
        protocol = factory()
        self.transport = MemoryTransport(protocol, self)
        protocol.connection_made(self.transport)
        return self.transport, protocol

    @property
    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def receive(self, data: bytes) -> None:
        bridge = self.bridge
        assert bridge is not None
        for piece in self.cut(self._seen(data)):
            bridge.receive(piece, self.now_ms, self.now_ms)
            pending = bridge.pending_login
            if pending is not None and pending[2].encode() == self.password:
                bridge.login_succeeded(self.rig.users["guest"])
            elif pending is not None:
                bridge.login_failed()
        self.work()

    def lost(self) -> None:
        assert self.bridge is not None
        if not self.bridge.closing:
            self.bridge.eof()
        self.work()

    def work(self) -> None:
        """Let the broker do what there is to do, and say what it has to say."""
        self.rig.settle_down()
        bridge, transport = self.bridge, self.transport
        if bridge is None or transport is None:
            return
        data = b"".join(bridge.take_output())
        if data:
            self.send(data)
        if bridge.closing:
            transport.end()

    def send(self, data: bytes) -> None:
        """Bytes as they are, from the broker."""
        assert self.transport is not None
        data = self._noted(data)
        for piece in self.cut(data):
            self.transport.send(piece)

    def say(self, channel: int, method: Method, body: bytes | None = None) -> None:
        """A method, and the message that belongs to it, which the broker itself does not say."""
        content = b"" if body is None else content_frames(channel, b"\0\0", body, 4096)
        self.send(method_frame(channel, method) + content)

    def _seen(self, data: bytes) -> bytes:
        """What of the client's bytes goes to the broker: whole frames that nobody else answers."""
        data = self._unread + data
        passed = b""
        pos = 0
        if data.startswith(PROTOCOL_HEADER):
            passed, pos = PROTOCOL_HEADER, 8
        while pos + 7 <= len(data) and pos + frame_length(data, pos) <= len(data):
            after = pos + frame_length(data, pos)
            raw = data[pos:after]
            pos = after
            if raw[0] in (HEADER, BODY) and self._skips:
                continue
            if raw[0] == METHOD:
                channel = int.from_bytes(raw[1:3], "big")
                method = decode_method(raw[7:-1])
                self.said.append(Said(True, self.now_ms, channel, method))
                self._skips = self.answers(channel, method)
                if self._skips:
                    continue
                if isinstance(method, ChannelFlow) and not method.active and not self.has_flow:
                    self.say(0, ConnectionClose(540, "NOT_IMPLEMENTED - active=false", 20, 20))
                    continue
            passed += raw
        self._unread = data[pos:]
        return passed

    def _noted(self, data: bytes) -> bytes:
        pos = 0
        out = b""
        while pos < len(data):
            after = pos + frame_length(data, pos)
            raw = data[pos:after]
            pos = after
            if raw[0] == METHOD:
                channel = int.from_bytes(raw[1:3], "big")
                method = decode_method(raw[7:-1])
                if isinstance(method, ConnectionStart) and not self.has_flow:
                    capabilities = method.server_properties["capabilities"]
                    assert isinstance(capabilities, dict)
                    capabilities.pop("channel_flow", None)
                    raw = method_frame(0, method)
                self.said.append(Said(False, self.now_ms, channel, method))
            out += raw
        return out

    # The broker, from outside

    def declare(self, name: str = "q", **arguments: object) -> None:
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.other().ask(QueueDeclare(name, durable=True, arguments=table))
        self.work()

    def depth(self, name: str = "q") -> tuple[int, int]:
        """(ready, acquired) of a queue."""
        queue = self.rig.broker.vhosts["/"].queues[name]
        return queue.ready, queue.acquired

    def delete(self, name: str) -> None:
        self.other().ask(QueueDelete(name))
        self.work()

    def cut_off(self) -> None:
        """The cable is pulled."""
        assert self.transport is not None
        self.transport.cut()

    def put(self, name: str, *bodies: bytes) -> None:
        """Messages from somebody else."""
        other = self.other()
        for body in bodies:
            other.send(other.publish(body, name))
        self.work()

    def other(self) -> RigPeer:
        """Another client of the broker's."""
        if self._other is None:
            self._other = self.rig.connect()
        return self._other

    # What passed

    def forget(self) -> None:
        """Look only at what comes from now on."""
        self.said.clear()

    def sent(self, kind: type[M]) -> list[M]:
        """What the client has written."""
        return [one.method for one in self.said if one.client and isinstance(one.method, kind)]

    def heard(self, kind: type[M]) -> list[M]:
        """What the broker has written."""
        return [one.method for one in self.said if not one.client and isinstance(one.method, kind)]

    def story(self, channel: int = 1) -> list[str]:
        """The methods of a channel in short, in their order."""
        return [_short(one) for one in self.said if one.channel == channel]


def _short(said: Said) -> str:
    method: Any = said.method
    name = layout_of(method).name
    text = f"{'>' if said.client else '<'} {name}"
    if hasattr(method, "delivery_tag"):
        more = "".join(
            f" {word}"
            for word in ("multiple", "requeue", "redelivered")
            if getattr(method, word, False)
        )
        return f"{text} {method.delivery_tag}{more}"
    if hasattr(method, "prefetch_count"):
        return f"{text} {method.prefetch_count}"
    if isinstance(method, ChannelFlow):
        return f"{text} {method.active}"
    return text


@asynccontextmanager
async def connected091(peer: Peer091, **options: Any) -> AsyncIterator[Connection]:
    url = "amqp091://guest:guest@peer"
    async with connect(url, opener=peer.open, **options) as connection:
        yield connection


@asynccontextmanager
async def session091(peer: Peer091, **options: Any) -> AsyncIterator[Session]:
    async with connected091(peer, **options) as connection, connection.session() as session:
        yield session
