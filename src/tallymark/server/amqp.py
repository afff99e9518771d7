"""AMQP at the socket: bytes between a transport and its bridge, and nothing decided here.

A plain Protocol, not a BufferedProtocol: under uvloop both read into one shared 256 KiB buffer and
hand over a bytes object of the length read; the plain one costs one call less.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from typing import TYPE_CHECKING, Final, cast

from tallymark.bridge.amqp091 import Amqp091, Settings
from tallymark.server.clock import now_ms, wall_ms
from tallymark.server.logs import log_of
from tallymark.server.users import UsersError, permissions_of

if TYPE_CHECKING:
    from tallymark.server.node import Node

WRITE_HIGH: Final = 1 << 20
"""Bytes waiting in a socket's buffer above which its connection gets no more deliveries."""

LAST_WORDS_S: Final = 3.0
"""How long a client may take to read what is left for it when its connection is over."""

log = log_of("amqp")


class AmqpClient(asyncio.Protocol):
    """One client connection."""

    transport: asyncio.Transport
    bridge: Amqp091

    def __init__(self, node: Node, settings: Settings) -> None:
        self._node = node
        self._settings = settings
        self._login: asyncio.Task[None] | None = None
        self._last_words: asyncio.TimerHandle | None = None
        self.resting = False
        """Whether nothing is read from it for now."""
        self.id = 0
        self.since_ms = wall_ms()
        """When it connected; milliseconds since 1970."""
        self.peer = ""
        self.peer_host = ""
        self.touched = False
        """Whether it is on the node's list of clients to flush at the end of this turn."""
        self.armed_ms: int | None = None
        """When the node will look at its deadline next; monotonic milliseconds."""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.publishing = False
        """Whether it has ever published: it is held back when memory or disk run low."""
        self.blocked_reason: str | None = None
        self.told = False
        """Whether the log says already why it ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        transport = self.transport
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=WRITE_HIGH)
        peer, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.peer_host = peer[0] if peer else ""
        self.peer = f"{_address(peer)} -> {_address(here)}"
        self.bridge = Amqp091(self._node.broker, self._settings, self.peer)
        self.bridge.tick(now_ms())
        self._node.opened(self)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        try:
            self._node.received(self, data)
        except Exception as error:  # a bug of ours costs this connection, not the others
            self.broken(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._login is not None:
            self._login.cancel()
        if self._last_words is not None:
            self._last_words.cancel()
        self._node.lost(self, exc)

    def pause_writing(self) -> None:
        self._node.paused(self, True)

    def resume_writing(self) -> None:
        self._node.paused(self, False)

    def broken(self, error: Exception) -> None:
        """Drop the connection after an exception that should not have been possible."""
        self.told = True
        log.error(
            "connection.broken", peer=self.peer, error=repr(error),
            trace="".join(traceback.format_exception(error)),
        )  # fmt: skip
        self.transport.abort()

    def flush(self) -> None:
        """Write what the bridge has to say; begin a log-in, or close, where it asks for that."""
        bridge = self.bridge
        output = bridge.take_output()
        if output:
            self.sent_bytes += sum(map(len, output))
            if not self.transport.is_closing():
                self.transport.writelines(output)
        if bridge.closing:
            if not self.transport.is_closing():
                self.told = True
                log.info("connection.closed", peer=self.peer, id=self.id, reason=bridge.reason)
                self.transport.close()
                self._last_words = self._node.loop.call_later(LAST_WORDS_S, self.transport.abort)
        elif bridge.pending_login is not None and self._login is None:
            self._login = self._node.loop.create_task(self._check_login())

    def rest(self, resting: bool) -> None:
        """Read no more from this client, or go on reading."""
        if resting == self.resting or self.transport.is_closing():
            return
        self.resting = resting
        if resting:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    async def _check_login(self) -> None:
        assert self.bridge.pending_login is not None
        mechanism, name, password = self.bridge.pending_login
        try:
            user = await self._node.users.check(name, password, self.peer_host)
        except UsersError as error:
            log.error("login.impossible", error=str(error))
            user = None
        self._login = None
        if user is None:
            log.warning("login.refused", peer=self.peer, user=name, mechanism=mechanism)
            self.bridge.login_failed()
        else:
            self.bridge.login_succeeded(permissions_of(user))
        self._node.touch(self)


def _address(address: object) -> str:
    match address:
        case (str() as host, int() as port, *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return "?"
