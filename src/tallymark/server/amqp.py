"""AMQP at the socket: bytes between a transport and its bridge, and nothing decided here."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from tallymark.bridge.amqp091 import Amqp091, Settings
from tallymark.server.client import Client, address_text
from tallymark.server.clock import now_ms
from tallymark.server.logs import log_of
from tallymark.server.users import UsersError, permissions_of

if TYPE_CHECKING:
    from tallymark.server.node import Node

log = log_of("amqp")


class AmqpClient(Client):
    """One client connection."""

    bridge: Amqp091
    category = "amqp"

    def __init__(self, node: Node, settings: Settings) -> None:
        super().__init__(node)
        self._settings = settings
        self._login: asyncio.Task[None] | None = None
        self._is_reading = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        transport = self.transport
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.limit_output(transport)
        peer, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.peer_host = peer[0] if peer else ""
        self.peer = f"{address_text(peer)} -> {address_text(here)}"
        self.bridge = Amqp091(self._node.broker, self._settings, self.peer)
        self.bridge.tick(now_ms())
        self._node.opened(self)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        try:
            self._node.received(self, data)
        except Exception as error:  # a bug of ours costs this connection, not the others
            self.broken(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._login is not None:
            self._login.cancel()
        super().connection_lost(exc)

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
                self.tell_closed()
                self.transport.close()
                self.abort_soon()
        elif bridge.pending_login is not None and self._login is None:
            self._login = self._node.loop.create_task(self._check_login())

    def _read_or_not(self) -> None:
        wanted = not self.resting and not self.yielding
        if wanted == self._is_reading or self.transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

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
