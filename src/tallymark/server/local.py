"""A publisher inside the broker, which carries out publishes that come over HTTP in a user's name.

They are frames of AMQP 0-9-1, in which form messages are stored, and a bridge reads them as from a
socket. So permissions, properties, refusals and routing are those of AMQP, by the same code. What
needs no frames goes to the broker directly (bridge/operations.py).

    async with LocalChannel(node, user, vhost) as channel:
        channel.send(BasicPublish(exchange, key), section, body)

Such a connection lives for one request. In lists its name begins with "http".
"""

from __future__ import annotations

import asyncio
import platform
import secrets
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tallymark.bridge.amqp091.channel import Intake
from tallymark.bridge.amqp091.connection import Amqp091
from tallymark.bridge.amqp091.lifecycle import Settings
from tallymark.bridge.bridge import UNLIMITED, Bridge
from tallymark.server.access.user import User, permissions_of
from tallymark.server.amqp import AmqpClient
from tallymark.server.node import Node
from tallymark.wire.amqp091.errors import CONNECTION_FORCED
from tallymark.wire.amqp091.frames import (
    HEAD,
    METHOD,
    PROTOCOL_HEADER,
    content_frames,
    frame,
    frame_length,
)
from tallymark.wire.amqp091.layouts import decode_method, encode_method
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)

CHANNEL: Final = 1
FRAME_MAX: Final = 131_072
DONE: Final = 200
"""Reply code of a connection that ends without an error."""
Answer = TypeVar("Answer", bound=Method)


class ChannelRefused(Exception):
    """The broker answered by closing the channel or the connection: AMQP reply code and text."""

    def __init__(self, reply_code: int, reply_text: str) -> None:
        super().__init__(reply_text.partition(" - ")[2] or reply_text)
        self.reply_code = reply_code


class LocalTransport(asyncio.Transport):
    """Transport that reads the methods in the connection's output; content is passed over."""

    def __init__(self, client: LocalClient, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._client = client
        self._loop = loop
        self._closing = False
        self.received: asyncio.Queue[Method | None] = asyncio.Queue()
        """Methods received from the broker; None: the connection is gone."""

    def writelines(self, list_of_data: Any) -> None:
        raw = b"".join(list_of_data)
        pos = 0
        while pos < len(raw):
            after = pos + frame_length(raw, pos)
            if raw[pos] == METHOD:
                self.received.put_nowait(decode_method(raw[pos + HEAD : after - 1]))
            pos = after

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: no output waits here."""

    def get_write_buffer_size(self) -> int:
        """See set_write_buffer_limits."""
        return 0

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.received.put_nowait(None)
            self._loop.call_soon(self._client.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        """Do nothing: input comes from this process and was received already."""

    def resume_reading(self) -> None:
        """See pause_reading."""


class LocalClient(AmqpClient):
    """One connection of this kind, as the node sees it."""

    is_local = True

    def __init__(self, node: Node, name: str) -> None:
        limits = Limits(
            channel_max=CHANNEL, frame_max=FRAME_MAX, heartbeat_s=0,
            max_message_bytes=node.config.max_message_size,
        )  # fmt: skip
        random_name = secrets.token_urlsafe
        self._local = Settings(
            limits,
            f"Python {platform.python_version()}",
            lambda: random_name(16),
            node.clients.replies,
        )
        super().__init__(node, None)
        self.peer = self.peer_host = name

    def meet(self, transport: asyncio.Transport) -> Bridge:
        return Amqp091(self._node.broker, self._local, self.peer)

    def room(self) -> int:
        """Return no limit: a request asks for one answer."""
        return UNLIMITED

    def shut(self) -> None:
        self.transport.close()

    def tell_closed(self) -> None:
        """Log nothing: a refusal is reported to the request that the connection was made for."""
        self.told = True
        self.log.debug("connection.closed", peer=self.peer, id=self.id, reason=self.bridge.reason)


class LocalChannel:
    """A connection with one channel, for a user who has proven to be it."""

    def __init__(self, node: Node, user: User, vhost: str, name: str) -> None:
        """name: the connection's, in lists and logs."""
        self._node = node
        self._user = user
        self._vhost = vhost
        self._client = LocalClient(node, name)
        self._transport = LocalTransport(self._client, node.loop)

    async def __aenter__(self) -> Self:
        """Raises ChannelRefused: the user must not enter the virtual host."""
        client = self._client
        client.connection_made(self._transport)
        start = ConnectionStartOk({}, "PLAIN", f"\0{self._user.name}\0".encode())
        monotonic_ms = self._node.tell_time()
        time_ms = self._node.broker.clock.now_ms
        client.bridge.receive(PROTOCOL_HEADER + _method(0, start), monotonic_ms, time_ms)
        client.subject = self._user
        client.bridge.login_succeeded(permissions_of(self._user))
        self._send(_method(0, ConnectionTuneOk(CHANNEL, FRAME_MAX, 0)))
        self._send(_method(0, ConnectionOpen(self._vhost)) + _method(CHANNEL, ChannelOpen()))
        for expected in (ConnectionStart, ConnectionTune, ConnectionOpenOk, ChannelOpenOk):
            await self._expect(expected)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the connection as a client does; unsettled messages return to their queues."""
        if not self._transport.is_closing():
            self._send(_method(0, ConnectionClose(DONE, "request done")))

    async def call(self, method: Method, expected: type[Answer]) -> Answer:
        """Send a method and return the broker's answer to it. Raises ChannelRefused."""
        self.send(method)
        return await self._expect(expected)

    def send(self, method: Method, properties: bytes | None = None, body: bytes = b"") -> None:
        """Send a method, with content where there is a property section."""
        raw = _method(CHANNEL, method)
        if properties is not None:
            raw += content_frames(CHANNEL, properties, body, FRAME_MAX)
        self._send(raw)

    def take_into(self, intake: Intake) -> None:
        """Send all later publishes of the channel to this intake, and to no queue."""
        bridge = self._client.bridge
        assert isinstance(bridge, Amqp091), bridge
        client = bridge.client
        assert client is not None
        client.channels[CHANNEL].intake = intake

    @property
    def is_open(self) -> bool:
        """Return whether the channel is open; once it was refused something, `next` raises the
        refusal."""
        bridge = self._client.bridge
        assert isinstance(bridge, Amqp091), bridge
        client = bridge.client
        return client is not None and not client.closed and CHANNEL in client.channels

    def feed(self, data: bytes) -> None:
        """Send frames as they are."""
        self._send(data)

    async def next(self) -> Method:
        """Return the broker's next method on the channel. Raises ChannelRefused."""
        method = await self._transport.received.get()
        if method is None:
            raise ChannelRefused(CONNECTION_FORCED, "the broker ended the request's connection")
        if isinstance(method, ChannelClose):
            self.send(ChannelCloseOk())
            raise ChannelRefused(method.reply_code, method.reply_text)
        if isinstance(method, ConnectionClose):
            self._send(_method(0, ConnectionCloseOk()))
            raise ChannelRefused(method.reply_code, method.reply_text)
        return method

    async def _expect(self, expected: type[Answer]) -> Answer:
        method = await self.next()
        if not isinstance(method, expected):
            raise RuntimeError(f"{method!r}, expected {expected.__name__}")
        return method

    def _send(self, data: bytes) -> None:
        self._client.data_received(data)


def _method(channel: int, method: Method) -> bytes:
    return frame(METHOD, channel, encode_method(method))
